import json
import os
import threading
import time

import pytest

from rayeval.control import ControlRequest, done_reply
from rayeval.exceptions import RefusedError
from rayeval.mailbox import DirectoryMailbox, append_record, send
from rayeval.store import RunLock, write_status
from tests.helpers.runs import make_run


@pytest.fixture
def run_dir(tmp_path):
    return make_run(tmp_path / "r", [])


@pytest.fixture
def box(run_dir):
    made = DirectoryMailbox(run_dir)
    made.open()
    return made


def put(run_dir, request):
    (run_dir.control / f"{request.id}.request.json").write_text(json.dumps(request.to_json()))


def poll(box, times=20):
    return [request for _ in range(times) for request in box.poll()]


def left(run_dir):
    return sorted(os.listdir(run_dir.control))


class Driver(threading.Thread):
    """Looks into the mailbox as a run does."""

    def __init__(self, box, answers=True):
        super().__init__(daemon=True)
        self.box, self.answers, self.seen, self.stop = box, answers, [], threading.Event()

    def run(self):
        while not self.stop.wait(0.02):
            for request in self.box.poll():
                self.seen.append(request)
                if self.answers:
                    self.box.answer(done_reply(request, "done", {}))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc):
        self.stop.set()
        self.join()


def test_a_request_is_given_once_and_gone(run_dir, box):
    request = ControlRequest("pause").signed()
    put(run_dir, request)
    assert poll(box) == [request]
    assert left(run_dir) == []


def test_requests_come_in_the_order_they_were_sent(run_dir, box):
    requests = [ControlRequest("pause", id=f"{9 - n}", sent_at=f"2026-01-0{n}") for n in range(1, 5)]
    for request in reversed(requests):
        put(run_dir, request)
    assert poll(box) == requests


def test_what_was_left_for_an_earlier_driver_is_removed(run_dir, box):
    put(run_dir, ControlRequest("pause"))
    (run_dir.control / "x.reply.json").write_text("{}")
    (run_dir.control / ".half.tmp").write_text("{")
    DirectoryMailbox(run_dir).open()
    assert left(run_dir) == []


def test_rubbish_is_answered_and_does_no_harm(run_dir, box):
    (run_dir.control / "a1.request.json").write_text("{")
    (run_dir.control / "a2.request.json").write_text(json.dumps(ControlRequest("pause", id="other").to_json()))
    (run_dir.control / "a-3.request.json").write_text("[]")
    assert poll(box) == []
    assert left(run_dir) == ["a1.reply.json", "a2.reply.json"]
    assert not json.loads((run_dir.control / "a1.reply.json").read_text())["ok"]


def test_a_link_a_pipe_and_a_heap_are_not_read(run_dir, box, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(json.dumps(ControlRequest("pause", id="link").to_json()))
    (run_dir.control / "link.request.json").symlink_to(secret)
    os.mkfifo(run_dir.control / "pipe.request.json")
    (run_dir.control / "heap.request.json").write_bytes(b" " * (2 << 20))
    assert poll(box) == []
    put(run_dir, ControlRequest("resume"))
    assert [request.verb for request in poll(box)] == ["resume"]


def test_a_quiet_directory_costs_one_look_at_its_time(run_dir, box):
    poll(box, 30)
    os.utime(run_dir.control)
    put(run_dir, ControlRequest("pause"))
    assert len(poll(box, 30)) == 1


def test_a_request_whose_coming_left_no_trace_in_the_time_is_found(run_dir, box):
    poll(box, 30)
    before = run_dir.control.stat()
    put(run_dir, ControlRequest("pause"))
    os.utime(run_dir.control, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert len(poll(box, 30)) == 1


def test_without_a_directory_there_are_no_requests(run_dir):
    run_dir.control.write_text("a file")
    box = DirectoryMailbox(run_dir)
    box.open()
    assert box.poll() == []
    box.answer({"id": "x"})
    box.close()


def test_a_closing_run_refuses_what_waits(run_dir, box):
    put(run_dir, ControlRequest("pause", id="a"))
    box.close()
    assert "has ended" in json.loads((run_dir.control / "a.reply.json").read_text())["error"]["hint"]


def test_the_box_goes_with_its_run(run_dir, box):
    box.close()
    assert not run_dir.control.exists()
    box.close()
    DirectoryMailbox(run_dir).open()
    assert left(run_dir) == []


def test_a_run_that_ends_while_a_sender_waits_is_told_of_at_once(run_dir, box):
    lock = RunLock.acquire(run_dir)
    threading.Timer(0.3, lock.release).start()
    with pytest.raises(RefusedError, match="has ended meanwhile; the request was withdrawn"):
        send(run_dir, ControlRequest("pause"), timeout_s=60.0)


def test_a_sent_request_is_answered(run_dir, box):
    with RunLock.acquire(run_dir), Driver(box) as driver:
        assert send(run_dir, ControlRequest("set", {"concurrency": 3}))["done"] == "done"
        assert driver.seen[0].arguments == {"concurrency": 3}
    assert left(run_dir) == []


def test_nobody_to_answer_is_said_at_once(run_dir, box):
    with pytest.raises(RefusedError, match="is not running"):
        send(run_dir, ControlRequest("pause"))
    write_status(run_dir, {"state": "ended", "exit_code": 4})
    with pytest.raises(RefusedError, match="exit code 4"):
        send(run_dir, ControlRequest("pause"))
    assert left(run_dir) == []


def test_a_request_that_is_not_taken_is_withdrawn(run_dir, box):
    write_status(run_dir, {"state": "starting"})
    with RunLock.acquire(run_dir):
        with pytest.raises(RefusedError, match=r"is starting.*nothing was done"):
            send(run_dir, ControlRequest("pause"), timeout_s=0.2)
        assert poll(box) == []


def test_a_request_that_was_taken_and_not_answered_is_not_called_undone(run_dir, box):
    with RunLock.acquire(run_dir), Driver(box, answers=False), pytest.raises(RefusedError, match="took the request"):
        send(run_dir, ControlRequest("pause"), timeout_s=0.5, taken_s=0.2)


def test_a_run_without_a_mailbox_takes_none(run_dir):
    with RunLock.acquire(run_dir), pytest.raises(RefusedError, match="starting, or ending"):
        send(run_dir, ControlRequest("pause"), timeout_s=0.2)


def test_a_reply_that_nobody_fetched_is_removed_in_time(run_dir, box):
    box.answer({"id": "old"})
    box.answer({"id": "new"})
    then = time.time() - 3600
    os.utime(run_dir.control / "old.reply.json", (then, then))
    poll(box, 40)
    assert left(run_dir) == ["new.reply.json"]


def test_the_record_says_who_asked_for_what(run_dir):
    request = ControlRequest("pause").signed()
    append_record(run_dir, request, done_reply(request, "paused", {}), "directory")
    append_record(run_dir, request, done_reply(request, "it was paused already", {}), "cluster")
    rows = [json.loads(line) for line in run_dir.control_log.read_text().splitlines()]
    assert [(r["via"], r["verb"], r["user"], r["outcome"]) for r in rows] == [
        ("directory", "pause", request.user, "paused"),
        ("cluster", "pause", request.user, "it was paused already"),
    ]
