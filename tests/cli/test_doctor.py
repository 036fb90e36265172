import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from rayeval.cli.doctor import disk_needed, nearest_existing


def checks(answer):
    return {check["check"]: check["ok"] for check in answer.json["checks"]}


def test_a_good_configuration(rayeval, config):
    answer = rayeval("doctor", config, "--json")
    assert answer.code == 0
    names = ("plan", "disk", "slots", "environment", "model", "tool call", "seed", "clock")
    assert checks(answer) == dict.fromkeys(names, True)
    (clock,) = [check["text"] for check in answer.json["checks"] if check["check"] == "clock"]
    assert clock.startswith("within 2 s of that of http://")
    cost = answer.json["cost"]
    assert cost["model_calls"] == 2 and cost["environment_calls"] == 3 and cost["tokens"] > 0
    assert answer.json["seconds"] < 20


def on(config, servers):
    text = config.read_text().replace("kind: shopsimulator, base_url: demo", f"kind: shopsimulator, base_url: '{servers.shop_url}'")
    config.write_text(text.replace("base_url: demo", f"base_url: '{servers.model_url}'"))
    return config


def test_doctor_leaves_no_lease_behind(rayeval, config, start_demo_with):
    servers = start_demo_with(slots=2)
    answer = rayeval("doctor", on(config, servers))
    assert answer.code == 0 and "cost: 2 model calls" in answer.out
    assert httpx.get(f"{servers.shop_url}/healthz", timeout=30).json()["free_slots"] == 2


def test_a_full_server_is_a_note_and_nothing_hangs(rayeval, config, start_demo_with):
    servers = start_demo_with(slots=1)
    body = {"action": "reset", "idx": 0, "if_persona": True, "include_private_goal": False, "interaction_mode": "single_turn"}
    httpx.post(f"{servers.shop_url}/api/shop_agent", json=body, timeout=30)
    answer = rayeval("doctor", on(config, servers), "--json")
    found = checks(answer)
    assert (found["slots"], found["environment"], found["tool call"]) == (None, None, True)
    assert answer.code == 0


def test_a_model_that_is_not_there_is_a_fault(rayeval, config):
    answer = rayeval("doctor", config, "--json", "--set", "model.base_url=http://127.0.0.1:9/v1")
    assert answer.code == 4
    assert checks(answer)["model"] is False and checks(answer)["environment"] is True


def test_an_environment_that_is_not_there_is_a_fault_and_the_model_is_still_asked(rayeval, config):
    answer = rayeval("doctor", config, "--json", "--set", "environment.base_url=http://127.0.0.1:9")
    assert answer.code == 4
    assert checks(answer)["environment"] is False and checks(answer)["tool call"] is True


@pytest.fixture
def chat():
    """A model server that answers as told: text without a call, other words each time, a day late by its clock, or not at all."""
    behaviour = {"delay_s": 0.0, "texts": iter(lambda: "hello", None)}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(behaviour["delay_s"])
            message = {"role": "assistant", "content": next(behaviour["texts"])}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            self._send({"id": "1", "choices": [choice], "usage": {"total_tokens": 5}})

        def do_GET(self):
            self._send({})

        def date_time_string(self, timestamp=None):
            return super().date_time_string((timestamp or time.time()) - 86_400)

        def _send(self, body):
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args): ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    behaviour["url"] = f"http://127.0.0.1:{server.server_port}/v1"
    yield behaviour
    server.shutdown()
    server.server_close()
    thread.join(timeout=10)


def test_a_model_without_tool_calls_is_a_fault(rayeval, config, chat):
    answer = rayeval("doctor", config, "--json", "--set", f"model.base_url={chat['url']}")
    assert answer.code == 4
    assert (checks(answer)["model"], checks(answer)["tool call"], checks(answer)["seed"]) == (True, False, True)
    assert answer.json["cost"]["tokens"] == 10


def test_a_seed_that_is_not_honoured_is_a_note(rayeval, config, chat):
    chat["texts"] = iter(["one", "two"])
    assert checks(rayeval("doctor", config, "--json", "--set", f"model.base_url={chat['url']}"))["seed"] is None


def test_a_seed_that_is_not_sent_is_not_tried(rayeval, config, chat):
    words = ("--set", f"model.base_url={chat['url']}", "--set", "model.send_seed=false")
    answer = rayeval("doctor", config, "--json", *words)
    assert checks(answer)["seed"] is None and answer.json["cost"]["model_calls"] == 1


def test_a_clock_that_is_far_off_is_a_note(rayeval, config, chat):
    words = ("--set", f"model.base_url={chat['url']}", "--set", "environment.base_url=http://127.0.0.1:9")
    answer = rayeval("doctor", config, "--json", *words)
    assert checks(answer)["clock"] is None
    assert any("86400 s ahead" in c["text"] or "86401 s ahead" in c["text"] for c in answer.json["checks"])


def test_a_model_that_hangs_ends_in_time(rayeval, config, chat):
    chat["delay_s"] = 30.0
    answer = rayeval("doctor", config, "--json", "--set", f"model.base_url={chat['url']}")
    assert answer.code == 4 and checks(answer)["model"] is False
    assert answer.json["seconds"] < 25


def test_disk_is_looked_at_where_the_run_will_be(tmp_path):
    assert nearest_existing(tmp_path / "a" / "b") == tmp_path
    assert disk_needed(100_000) == 7_200_000_000


def test_an_output_dir_below_a_file_is_a_fault(rayeval, config, tmp_path):
    (tmp_path / "file").write_text("")
    answer = rayeval("doctor", config, "--json", "--set", f"experiment.output_dir={tmp_path}/file/runs")
    assert checks(answer)["disk"] is False and answer.code == 4
