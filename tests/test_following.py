"""Following a job: every character once, the job's own exit code, whatever happens to the connection."""

import asyncio
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayeval.exceptions import InputError, StoppedError
from rayeval.following import Follower, job_end
from rayeval.job_server import JobInfo, JobServer, UnknownJobError, job_address, known_token
from rayeval.submission import end_line
from tests.helpers.job_server import FakeJob, FakeJobServer

ID = "rayeval-0123456789ab-1"


class Seen:
    def __init__(self):
        self.log, self.notes = "", []

    def write(self, text):
        self.log += text


async def follow(fake, seen, *, patience_s=5.0, tail=None, token=None):
    async with JobServer(fake.url, token) as server:
        await server.greet()
        follower = Follower(server, ID, seen.write, seen.notes.append, patience_s=patience_s, poll_s=0.05, tail=tail)
        return await asyncio.wait_for(follower.follow(), 20.0)


async def talk(job, lines, *, every_s=0.02, end=("SUCCEEDED", 0)):
    for k in range(lines):
        job.log += f"line {k}\n"
        await asyncio.sleep(every_s)
    job.end(*end)


async def until(holds):
    async with asyncio.timeout(5.0):
        while not holds():  # noqa: ASYNC110  what is waited for is a stream's text, not an event
            await asyncio.sleep(0.01)


def whole(lines):
    return "".join(f"line {k}\n" for k in range(lines))


async def test_the_log_comes_as_it_is_written_and_the_exit_code_is_the_jobs_own():
    async with FakeJobServer() as fake:
        job, seen = fake.jobs.setdefault(ID, FakeJob("PENDING")), Seen()
        following = asyncio.create_task(follow(fake, seen))
        job.status, job.log = "RUNNING", "first\n"
        await until(lambda: seen.log == "first\n")
        job.log += "last\n"
        job.end("FAILED", 3)
        assert (await following).exit_code == 3
        assert seen.log == "first\nlast\n" and seen.notes == []


@pytest.mark.parametrize("cut_after", [0, 7, 60])
async def test_a_cut_stream_costs_no_character_and_repeats_none(cut_after):
    async with FakeJobServer() as fake:
        job, seen = fake.jobs.setdefault(ID, FakeJob()), Seen()
        fake.cut_after = cut_after
        talking = asyncio.create_task(talk(job, 15))
        assert (await follow(fake, seen)).exit_code == 0
        await talking
        assert seen.log == whole(15)


@pytest.mark.parametrize("fault", ["refuse_streams", "hang_streams"])
async def test_without_a_stream_the_log_is_read_as_a_whole(fault):
    async with FakeJobServer() as fake:
        job, seen = fake.jobs.setdefault(ID, FakeJob()), Seen()
        setattr(fake, fault, True)
        following = asyncio.create_task(follow(fake, seen))
        await talk(job, 5)
        assert (await following).exit_code == 0
        assert seen.log == whole(5)


async def test_a_stream_that_goes_deaf_does_not_keep_the_log_back():
    async with FakeJobServer() as fake:
        job, seen = fake.jobs.setdefault(ID, FakeJob(log="line 0\n")), Seen()
        fake.hang_streams = True
        following = asyncio.create_task(follow(fake, seen))
        await until(lambda: seen.log == "line 0\n")
        job.end("SUCCEEDED", 0)
        assert (await following).exit_code == 0


async def test_a_server_that_goes_away_and_comes_back_is_waited_for():
    async with FakeJobServer() as fake:
        job, seen = fake.jobs.setdefault(ID, FakeJob()), Seen()
        following = asyncio.create_task(follow(fake, seen))
        talking = asyncio.create_task(talk(job, 30))
        await asyncio.sleep(0.2)
        fake.down = True
        await asyncio.sleep(0.4)
        fake.down = False
        assert (await following).exit_code == 0
        await talking
        assert seen.log == whole(30)
        assert [("does not answer" in n or "status 503" in n, "again" in n) for n in seen.notes] == [(True, True), (False, True)]


async def test_patience_ends_and_says_for_how_long():
    async with FakeJobServer() as fake:
        fake.jobs[ID], seen = FakeJob(), Seen()
        following = asyncio.create_task(follow(fake, seen, patience_s=0.3))
        await asyncio.sleep(0.1)
        fake.down, began = True, time.monotonic()
        with pytest.raises(StoppedError, match=rf"503, since 0 s; {ID} may go on"):
            await following
        assert 0.2 < time.monotonic() - began < 3.0


async def test_a_job_that_is_forgotten_is_told_apart_from_one_that_never_was():
    async with FakeJobServer() as fake:
        seen = Seen()
        with pytest.raises(UnknownJobError):
            await follow(fake, seen)
        fake.jobs[ID] = FakeJob()
        following = asyncio.create_task(follow(fake, seen))
        await asyncio.sleep(0.2)
        del fake.jobs[ID]
        with pytest.raises(StoppedError, match="its head was replaced"):
            await following


async def test_the_log_of_an_ended_job_that_cannot_be_read_is_not_waited_for_long():
    async with FakeJobServer() as fake:
        fake.jobs[ID], seen = FakeJob("FAILED", "said\n", driver_exit_code=5), Seen()
        fake.log_fails = True
        end = await follow(fake, seen, patience_s=0.2)
        assert end.exit_code == 5 and "cannot be read any more" in seen.notes[-1]


class Odd(JobServer):
    """Answers with JSON that is none of a job server."""

    def __init__(self, answer):
        super().__init__("http://cluster:8265")
        self._given = answer

    async def _ask(self, path):
        return 200, json.dumps(self._given).encode()


@pytest.mark.parametrize("answer", [[{"submission_id": 5, "status": "RUNNING"}], [{"submission_id": "a"}], [3], {"jobs": []}, None, "x"])
async def test_a_list_of_jobs_that_is_none_is_bad_input(answer):
    with pytest.raises(InputError, match="is no Ray job server"):
        await Odd(answer).jobs()


@pytest.mark.parametrize(
    "answer", [[], None, 3, {}, {"status": None}, {"status": "RUNNING", "driver_exit_code": "1"}, {"status": "RUNNING", "metadata": [1]}]
)
async def test_a_job_that_is_none_is_bad_input(answer):
    with pytest.raises(InputError, match="is no Ray job server"):
        await Odd(answer).job(ID)
    if not isinstance(answer, dict):
        with pytest.raises(InputError, match="is no Ray job server"):
            await Odd(answer).log(ID)


class Flickering(JobServer):
    """Its log is empty or short at times, as Ray gives it while it cannot read the file."""

    def __init__(self, url, given):
        super().__init__(url)
        self._given = list(given)

    async def log(self, submission_id):
        return self._given.pop(0) if self._given else await super().log(submission_id)


async def test_a_log_that_cannot_be_read_for_a_moment_is_not_printed_again():
    async with FakeJobServer() as fake:
        job, seen = fake.jobs.setdefault(ID, FakeJob()), Seen()
        fake.refuse_streams = True
        job.log = whole(3) + end_line(ID, 4) + "\n"
        async with JobServer(fake.url) as plain, Flickering(fake.url, [whole(1), "", whole(2), "line 0\n", job.log, ""]) as server:
            await plain.greet()
            follower = Follower(server, ID, seen.write, seen.notes.append, patience_s=5.0, poll_s=0.01)
            following = asyncio.create_task(follower.follow())
            await until(lambda: seen.log == job.log)
            job.end("STOPPED", None)
            assert await asyncio.wait_for(following, 20.0) == ("STOPPED", 4, None)
        assert seen.log == job.log


async def test_another_log_under_the_same_id_is_told_from_its_beginning():
    async with FakeJobServer() as fake:
        job, seen = fake.jobs.setdefault(ID, FakeJob(log="12:00:00 old\nmore\n")), Seen()
        fake.refuse_streams = True
        following = asyncio.create_task(follow(fake, seen))
        await until(lambda: seen.log == "12:00:00 old\nmore\n")
        job.log = "12:30:00 new\n"
        await until(lambda: seen.log.endswith("12:30:00 new\n"))
        job.log += "last\n"
        job.end("SUCCEEDED", 0)
        await following
        assert seen.log == "12:00:00 old\nmore\n12:30:00 new\nlast\n" and len(seen.notes) == 1 and "another job" in seen.notes[0]


@pytest.mark.parametrize(("tail", "shown"), [(0, ""), (1, f"{end_line(ID, 0)}\n")])
async def test_how_a_stopped_job_ended_is_read_in_its_whole_log(tail, shown):
    async with FakeJobServer() as fake:
        job, seen = fake.jobs.setdefault(ID, FakeJob(log=f"x\n{end_line(ID, 0)}\n")), Seen()
        job.end("STOPPED", None)
        async with JobServer(fake.url) as server:
            info, log = await Follower(server, ID, seen.write, seen.notes.append, tail=tail).so_far()
        assert (job_end(info, log).exit_code, log, seen.log) == (0, job.log, shown)


@pytest.mark.parametrize(("tail", "shown"), [(0, "end\n"), (2, "line 3\nline 4\nend\n"), (99, whole(5) + "end\n")])
async def test_coming_back_begins_at_the_tail(tail, shown):
    async with FakeJobServer() as fake:
        job, seen = fake.jobs.setdefault(ID, FakeJob(log=whole(5))), Seen()
        following = asyncio.create_task(follow(fake, seen, tail=tail))
        await asyncio.sleep(0.2)
        job.log += "end\n"
        job.end("SUCCEEDED", 0)
        await following
        assert seen.log == shown


async def test_a_job_that_does_not_begin_is_told_once_with_its_reason(monkeypatch):
    monkeypatch.setattr("rayeval.following._PENDING_S", 0.1)
    async with FakeJobServer() as fake:
        job, seen = fake.jobs.setdefault(ID, FakeJob("PENDING", message="\nIt may be waiting for resources.\nmore")), Seen()
        following = asyncio.create_task(follow(fake, seen))
        await until(lambda: seen.notes)
        await asyncio.sleep(0.2)
        job.end("SUCCEEDED", 0)
        await following
        assert seen.notes == [f"{ID} has not begun: It may be waiting for resources."]


async def test_what_the_writer_raises_ends_the_following():
    async with FakeJobServer() as fake:
        fake.jobs[ID] = FakeJob(log="line\n")

        class Closed(Seen):
            def write(self, text):
                raise BrokenPipeError

        with pytest.raises(BrokenPipeError):
            await follow(fake, Closed())


async def test_a_token_is_sent_only_where_it_is_asked_for():
    async with FakeJobServer(token="t0ken") as fake:
        async with JobServer(fake.url, "t0ken") as server:
            assert await server.greet() == "2.60.0" and server.auth_mode == "token"
        for token, hint in ((None, "wants a token"), ("other", "does not accept the token")):
            async with JobServer(fake.url, token) as server:
                with pytest.raises(InputError, match=hint):
                    await server.greet()
        fake.token = None
        async with JobServer(fake.url, "t0ken") as server:
            await server.greet()
            assert server.auth_mode == "disabled" and server._headers == {}


@given(code=st.integers(-31, 143))
@settings(max_examples=40)
def test_an_exit_code_that_ray_keeps_is_the_one(code):
    end = job_end(JobInfo(ID, "FAILED" if code else "SUCCEEDED", "", code, {}), end_line(ID, 77))
    assert end.exit_code == (code if code >= 0 else 128 - code)


@pytest.mark.parametrize(
    ("status", "log", "code"),
    [
        ("STOPPED", f"x\n{end_line(ID, 143)}\n", 143),
        ("STOPPED", f"x\n{end_line(ID, 0)}\n\n", 0),
        ("STOPPED", end_line("rayeval-0123456789ab-2", 0), 143),
        ("STOPPED", "killed at once", 143),
        ("FAILED", end_line(ID, 0), 5),
        ("SUCCEEDED", "", 0),
    ],
)
def test_an_exit_code_that_ray_does_not_keep(status, log, code):
    end = job_end(JobInfo(ID, status, "\n  the node died\nmore", None, {}), log)
    assert end.exit_code == code
    assert end.reason == ("the node died" if status == "FAILED" else end.reason)


@pytest.mark.parametrize("address", [None, "", "HEAD:8265", "ray://h:10001", "http://", "http://u:p@h:8265", "http://h:99999"])
def test_an_address_that_is_none_is_bad_input_and_repeats_no_password(address):
    with pytest.raises(InputError) as caught:
        job_address(address, {})
    assert "p@" not in str(caught.value)


def test_the_address_may_come_from_the_environment():
    assert job_address(None, {"RAY_API_SERVER_ADDRESS": "http://h:1/"}) == "http://h:1"
    assert job_address("http://g:2", {"RAY_API_SERVER_ADDRESS": "http://h:1/"}) == "http://g:2"


def test_a_token_is_looked_for_where_rays_clients_look(tmp_path):
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("from home\n")
    (tmp_path / "t").write_text("from file\n")
    home = {"HOME": str(tmp_path)}
    assert known_token({}) is None and known_token(home) == "from home"
    assert known_token({**home, "RAY_AUTH_TOKEN_PATH": str(tmp_path / "t")}) == "from file"
    assert known_token({**home, "RAY_AUTH_TOKEN": "given"}) == "given"
