import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from rayeval.demo import DemoServers
from rayeval.demo.catalogue import demo_catalogue
from rayeval.demo.shop import Shop
from tests.demo.shopping import STATIC_TOOLS, opening_messages

StartDemo = Callable[..., DemoServers]
MESSAGES = opening_messages(Shop(demo_catalogue()).open(1))


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": MESSAGES, "tools": STATIC_TOOLS, "seed": 3, **fields}


def _post(servers: DemoServers, body: Any = None, **how: Any) -> httpx.Response:
    return httpx.post(f"{servers.model_url}/chat/completions", json=body or _body(), timeout=20, trust_env=False, **how)


def _stats(servers: DemoServers) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{servers.model_url}/stats", trust_env=False).json()["model"]
    return found


def test_an_answer_has_the_shape_of_vllm(demo_servers: DemoServers) -> None:
    answer = _post(demo_servers, _body(seed=1)).json()
    assert set(answer) == {"id", "object", "created", "model", "choices", "usage"}
    assert (answer["object"], answer["model"]) == ("chat.completion", "scripted")
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert set(choice["message"]) == {"role", "content", "reasoning_content", "tool_calls"}
    call = choice["message"]["tool_calls"][0]
    assert (call["type"], call["function"]["name"]) == ("function", "search")
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] > 0


def test_equal_requests_get_equal_bytes_from_any_server(demo_servers: DemoServers, start_demo_with: StartDemo) -> None:
    other = start_demo_with()
    first = _post(demo_servers).content
    _post(demo_servers, _body(seed=4))
    assert first == _post(demo_servers).content == _post(other).content


def test_models_are_listed(demo_servers: DemoServers) -> None:
    listed = httpx.get(f"{demo_servers.model_url}/models", trust_env=False).json()
    assert [m["id"] for m in listed["data"]] == ["scripted", "scripted-careful", "random"]


def test_the_random_model_answers_without_thought(demo_servers: DemoServers) -> None:
    answers = {
        _post(demo_servers, _body(model="random", seed=s)).json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
        for s in range(8)
    }
    assert len(answers) > 1


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"model": "gpt"}, 404),
        ({"messages": []}, 400),
        ({"messages": ["x"]}, 400),
        ({"tools": "x"}, 400),
        ({"tools": [1]}, 400),
        ({"seed": "1"}, 400),
        ({"stream": True}, 400),
    ],
)
def test_bad_requests_are_refused(demo_servers: DemoServers, change: dict[str, Any], status: int) -> None:
    answer = _post(demo_servers, _body(**change))
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_a_body_that_is_not_json_is_refused(demo_servers: DemoServers) -> None:
    answer = httpx.post(f"{demo_servers.model_url}/chat/completions", content=b"{", trust_env=False)
    assert answer.status_code == 400


def test_a_429_says_when_to_come_back_and_a_retry_passes(start_demo_with: StartDemo) -> None:
    servers = start_demo_with(fault_429=0.4, retry_after=0.25)
    refused = 0
    for seed in range(20):
        while (answer := _post(servers, _body(seed=seed))).status_code == 429:
            assert answer.headers["retry-after"] == "0.25"
            refused += 1
        assert answer.status_code == 200
    stats = _stats(servers)
    assert refused > 0
    assert (stats["fault_429"], stats["ok"], stats["requests"]) == (refused, 20, 20 + refused)


def test_a_500_passes_on_a_retry(start_demo_with: StartDemo) -> None:
    servers = start_demo_with(fault_500=0.5)
    statuses = [_post(servers, _body(seed=1)).status_code for _ in range(40)]
    assert set(statuses) == {200, 500}


def test_malformed_answers_come_in_several_kinds(start_demo_with: StartDemo) -> None:
    servers = start_demo_with(fault_malformed=1.0)
    answers = [_post(servers, _body(model="random", seed=seed)) for seed in range(60)]
    assert {a.status_code for a in answers} == {200}

    def kind(answer: httpx.Response) -> str:
        try:
            choices = answer.json()["choices"]
        except ValueError:
            return "no json"
        if not choices:
            return "no choices"
        calls = choices[0]["message"]["tool_calls"]
        if len(calls) != 1:
            return f"{len(calls)} calls, content {choices[0]['message']['content'] is not None}"
        return str(calls[0]["function"]["name"] + calls[0]["function"]["arguments"][:2])

    assert len({kind(a) for a in answers}) >= 8
    assert _stats(servers)["fault_malformed"] == 60


def test_cut_answers_have_no_call(start_demo_with: StartDemo) -> None:
    servers = start_demo_with(fault_length=1.0)
    choice = _post(servers).json()["choices"][0]
    assert (choice["finish_reason"], choice["message"]["tool_calls"]) == ("length", [])


@pytest.mark.parametrize(("option", "status"), [("echo_key", 401), ("echo_key_500", 500)])
def test_the_key_is_echoed_for_leak_tests(start_demo_with: StartDemo, option: str, status: int) -> None:
    servers = start_demo_with(**{option: True})
    answer = _post(servers, headers={"Authorization": "Bearer sk-made-up"})
    assert answer.status_code == status
    assert "Bearer sk-made-up" in answer.json()["error"]["message"]


def test_a_context_overflow_is_a_400_that_says_so(start_demo_with: StartDemo) -> None:
    answer = _post(start_demo_with(model_context=100))
    assert answer.status_code == 400
    assert "maximum context length is 100 tokens" in answer.json()["error"]["message"]


def _in_threads(count: int, call: Callable[[int], Any]) -> list[Any]:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda i=i: found.append(call(i)), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def test_requests_beyond_the_slots_queue(start_demo_with: StartDemo) -> None:
    servers = start_demo_with(model_slots=2, model_latency="fixed:0.3")
    assert _in_threads(6, lambda i: _post(servers, _body(seed=i)).status_code) == [200] * 6
    stats = _stats(servers)
    assert stats["peak_in_flight"] == 2
    assert stats["peak_queued"] >= 1
    assert (stats["in_flight"], stats["queued"]) == (0, 0)
    assert stats["busy_slot_seconds"] >= 1.7


def test_requests_beyond_the_slots_are_refused_if_asked(start_demo_with: StartDemo) -> None:
    servers = start_demo_with(model_slots=1, model_full="429", model_latency="fixed:0.5")
    statuses = _in_threads(4, lambda i: _post(servers, _body(seed=i)).status_code)
    assert statuses.count(429) == _stats(servers)["refused_full"] >= 1
    assert statuses.count(200) >= 1


def test_a_client_that_leaves_frees_its_slot(start_demo_with: StartDemo) -> None:
    servers = start_demo_with(model_slots=1, fault_hang=1.0, hang_s=600)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{servers.model_url}/chat/completions", json=_body(), timeout=httpx.Timeout(10, read=0.3))
    deadline = time.monotonic() + 15
    while _stats(servers)["in_flight"]:
        assert time.monotonic() < deadline, "the slot was not freed within 15 s"
        time.sleep(0.01)
    assert (_stats(servers)["fault_hang"], _stats(servers)["client_disconnects"]) == (1, 1)


def test_other_paths_are_404(demo_servers: DemoServers) -> None:
    assert httpx.get(f"{demo_servers.model_url}/nothing", trust_env=False).status_code == 404
