"""The shop over HTTP against the shapes, statuses and error texts recorded from the environment it stands for."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rayeval.demo import DemoServers

WIRE = json.loads((Path(__file__).parent / "data" / "wire_shapes.json").read_text(encoding="utf-8"))
API = "/api/shop_agent"
StartDemo = Callable[..., DemoServers]
TASK = 1
ASIN = "710000001011"


class Client:
    """Calls one shop and remembers the lease of its last reset."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=20, trust_env=False)
        self.lease: dict[str, Any] = {}

    def call(self, action: str, **fields: Any) -> httpx.Response:
        return self.http.post(API, json={"action": action, **fields})

    def reset(self, idx: int = TASK, **fields: Any) -> dict[str, Any]:
        result: dict[str, Any] = self.call("reset", idx=idx, **fields).json()["result"]
        self.lease = {k: result[k] for k in ("env_idx", "lease_id")}
        return result

    def act(self, *actions: str) -> dict[str, Any]:
        results: list[dict[str, Any]] = [self.call("interact", response=a, **self.lease).json()["result"] for a in actions]
        return results[-1]

    def release(self) -> int:
        return self.call("release_one", **self.lease).status_code

    def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get("/stats").json()["env"]
        return found


@pytest.fixture
def shop(demo_servers: DemoServers) -> Iterator[Client]:
    client = Client(demo_servers.shop_url)
    yield client
    if client.lease:
        client.release()
    client.http.close()


def _fits(value: Any, shape: Any, path: str) -> list[str]:
    if shape == "map":
        return [] if isinstance(value, dict) else [f"{path}: no object"]
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return [f"{path}: no object"]
        wrong = [f"{path}: keys {sorted(set(value) ^ set(shape))}"] if set(value) != set(shape) else []
        return wrong + [w for k in set(value) & set(shape) for w in _fits(value[k], shape[k], f"{path}.{k}")]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{path}: no list"]
        return [] if shape == ["any"] else [w for i, v in enumerate(value) for w in _fits(v, shape[0], f"{path}[{i}]")]
    name = "null" if value is None else type(value).__name__
    return [] if name in shape.split("|") else [f"{path}: {name}, not {shape}"]


def _kind(result: dict[str, Any]) -> str:
    state = result["observation_state"]
    price = "+price" if "selected_price" in state else ""
    return f"interact {state['page_type']}{price} {result['action_feedback']['reason']}"


def test_results_have_the_recorded_shapes(shop: Client) -> None:
    seen: dict[str, dict[str, Any]] = {"health": shop.http.get("/healthz").json(), "reset": shop.reset()}
    for action in (
        "hello",
        "search[]",
        "click[nothing]",
        "search[a] click[b]",
        "search[台灯]",
        "search[台灯]",
        "click[back to search]",
        "search[台灯]",
        f"click[{ASIN}]",
        "click[buy now]",
        "click[款式=标准款]",
        "click[款式=标准款]",
        "click[颜色分类=暖白]",
        "click[buy now]",
    ):
        result = shop.act(action)
        seen[_kind(result)] = result
    seen["release_one"] = shop.call("release_one", **shop.lease).json()["result"]
    seen["reset private"] = shop.reset(include_private_goal=True)
    seen["terminate search_home"] = shop.call("terminate", **shop.lease).json()["result"]
    shop.release()
    shop.reset()
    shop.act("search[台灯]")
    ended = shop.call("terminate", termination_reason="generation_length", **shop.lease)
    seen["terminate search_results"] = ended.json()["result"]
    recorded = {k: v for k, v in WIRE["shapes"].items() if k != "release_all"}
    assert set(seen) == set(recorded)
    assert [w for kind, shape in recorded.items() for w in _fits(seen[kind], shape, kind)] == []


def test_release_all_has_the_recorded_shape_and_ends_every_lease(start_demo_with: StartDemo) -> None:
    shop = Client(start_demo_with(slots=2).shop_url)
    shop.reset()
    assert _fits(shop.call("release_all").json()["result"], WIRE["shapes"]["release_all"], "release_all") == []
    assert shop.call("interact", response="x", **shop.lease).status_code == 409
    assert shop.http.get("/healthz").json()["free_slots"] == 2


_DIRECT = [e for e in WIRE["errors"] if "when" not in e["request"]]
_STALE = "stale or invalid lease for environment <slot>"


@pytest.mark.parametrize("recorded", _DIRECT, ids=lambda e: f"{e['status']} {e['request']}"[:60])
def test_errors_have_the_recorded_status_and_text(shop: Client, recorded: dict[str, Any]) -> None:
    shop.reset()
    request = recorded["request"]
    if request.get("json") is not None:
        places = {"<lease>": shop.lease["lease_id"], "<slot>": shop.lease["env_idx"]}
        body = {k: places.get(v, v) if isinstance(v, str) else v for k, v in request["json"].items()}
        answer = shop.http.post(API, json=body)
    else:
        answer = shop.http.request(request["method"], API, content=request["raw"])
    assert answer.status_code == recorded["status"]
    assert answer.headers["content-type"] == recorded["content_type"]
    if recorded["error"] is not None:
        assert answer.json() == {"result": {"error": recorded["error"]}}


def test_errors_of_the_order_of_calls(shop: Client) -> None:
    def error(action: str, **fields: Any) -> tuple[int, str]:
        answer = shop.call(action, **shop.lease, **fields)
        return answer.status_code, re.sub(r"environment \d+", "environment <slot>", answer.json()["result"]["error"])

    shop.reset()
    seen = {("bad reason", *error("terminate", termination_reason="bored"))}
    shop.call("terminate", **shop.lease)
    seen.add(("step after terminal", *error("interact", response="search[x]")))
    seen.add(("terminate after terminal", *error("terminate")))
    seen.add(("second terminate", *error("terminate")))
    shop.release()
    seen.add(("double release", *error("release_one")))
    seen.add(("stale lease interact", *error("interact", response="search[x]")))
    recorded = [e for e in WIRE["errors"] if "when" in e["request"]]
    assert seen == {(e["request"]["when"], e["status"], e["error"]) for e in recorded}


def test_json_is_sorted_and_escaped(shop: Client) -> None:
    answer = shop.call("reset", idx=TASK, if_persona=True)
    shop.lease = {k: answer.json()["result"][k] for k in ("env_idx", "lease_id")}
    assert answer.text.isascii()
    assert answer.text == json.dumps(answer.json(), sort_keys=True, separators=(",", ":")) + "\n"


def test_a_lease_has_a_slot_and_a_fresh_id(shop: Client) -> None:
    first = shop.reset(env_idx=None)
    assert re.fullmatch(r"[0-9a-f]{32}", first["lease_id"])
    assert first["idx"] == TASK
    result = shop.act("search[台灯]")
    assert result["idx"] == f"slot-{first['env_idx']}-{TASK}"
    shop.release()
    assert shop.reset()["lease_id"] != first["lease_id"]


def test_the_hidden_verb_crashes_and_still_costs_an_action(shop: Client) -> None:
    shop.reset()
    answer = shop.call("interact", response="search[<a> 1]", **shop.lease)
    assert (answer.status_code, answer.json()["result"]["error"]) == (500, "'NoneType' object is not subscriptable")
    results = [shop.act("nonsense")["done"] for _ in range(29)]
    assert results == [False] * 28 + [True]


def test_done_does_not_release(shop: Client) -> None:
    shop.reset()
    shop.call("terminate", **shop.lease)
    assert shop.stats()["never_released_done"] >= 1
    assert shop.release() == 200


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true within 15 s"
        time.sleep(0.01)


def test_a_reset_on_a_full_pool_waits_for_a_release(start_demo_with: StartDemo) -> None:
    url = start_demo_with(slots=1).shop_url
    holder, waiter = Client(url), Client(url)
    holder.reset()
    got: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: got.append(waiter.reset(idx=2)), daemon=True)
    thread.start()
    _wait_for(lambda: holder.stats()["resets_waiting"] == 1)
    assert holder.stats()["resets_in_flight"] == 1 and not got
    holder.release()
    thread.join(15)
    assert got[0]["idx"] == 2
    assert holder.stats()["leases_held"] == 1
    assert holder.stats()["free_slots"] == 0


def test_a_bad_task_on_a_full_pool_waits_first_and_rolls_back(start_demo_with: StartDemo) -> None:
    url = start_demo_with(slots=1).shop_url
    holder, waiter = Client(url), Client(url)
    holder.reset()
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(waiter.call("reset", idx=999).status_code), daemon=True)
    thread.start()
    _wait_for(lambda: holder.stats()["resets_waiting"] == 1)
    holder.release()
    thread.join(15)
    assert got == [500]
    assert holder.stats()["free_slots"] == 1


def test_a_client_that_leaves_a_queued_reset_leaks_its_slot(start_demo_with: StartDemo) -> None:
    shop = Client(start_demo_with(slots=1).shop_url)
    shop.reset()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(str(shop.http.base_url) + API, json={"action": "reset", "idx": 2}, timeout=httpx.Timeout(10, read=0.3))
    _wait_for(lambda: shop.stats()["resets_waiting"] == 1)
    shop.release()
    _wait_for(lambda: shop.stats()["leaked_to_nobody"] == 1)
    assert (shop.stats()["leases_held"], shop.stats()["free_slots"]) == (1, 0)
    shop.call("release_all")
    assert shop.stats()["free_slots"] == 1


def test_release_all_wakes_queued_resets(start_demo_with: StartDemo) -> None:
    url = start_demo_with(slots=1).shop_url
    holder, waiter = Client(url), Client(url)
    holder.reset()
    thread = threading.Thread(target=waiter.reset, daemon=True)
    thread.start()
    _wait_for(lambda: holder.stats()["resets_waiting"] == 1)
    holder.call("release_all")
    thread.join(15)
    assert waiter.release() == 200


def test_stats_count_episodes_and_rewards(start_demo_with: StartDemo) -> None:
    servers = start_demo_with(slots=3)
    shop = Client(servers.shop_url)
    shop.reset()
    shop.act("search[台灯]", f"click[{ASIN}]", "click[颜色分类=暖白]", "click[款式=标准款]", "click[buy now]")
    shop.release()
    shop.reset(idx=5)
    shop.call("terminate", termination_reason="generation_length", **shop.lease)
    stats = shop.stats()
    assert (stats["episodes_done"], stats["reward_sum"], stats["purchase"], stats["generation_length"]) == (2, 1, 1, 1)
    assert (stats["leases_held"], stats["peak_leases_held"], stats["distinct_tasks"]) == (1, 1, 2)
    assert (stats["reset"], stats["interact"], stats["requests"]) == (2, 5, 9)
    assert shop.http.post("/stats/reset").json() == {"ok": True}
    after = shop.stats()
    assert (after["episodes_done"], after["reward_sum"], after["leases_held"], after["peak_leases_held"]) == (0, 0, 1, 1)
    assert httpx.get(f"{servers.model_url}/stats").json()["env"]["leases_held"] == 1


def test_the_request_log_has_a_line_a_request(start_demo_with: StartDemo, tmp_path: Path) -> None:
    log = tmp_path / "requests.log"
    shop = Client(start_demo_with(request_log=str(log)).shop_url)
    shop.reset()
    shop.act("search[台灯]")
    shop.release()
    shop.release()
    shop.http.post(API, content=b"no json")
    lines = [line.split() for line in log.read_text().splitlines()]
    env_idx, lease_id = str(shop.lease["env_idx"]), shop.lease["lease_id"]
    assert [line[1:] for line in lines] == [
        ["reset", env_idx, lease_id, "200"],
        ["interact", env_idx, lease_id, "200"],
        ["release_one", env_idx, lease_id, "200"],
        ["release_one", env_idx, lease_id, "409"],
        ["-", "-", "-", "200"],
    ]
    assert all(abs(float(line[0]) - time.time()) < 60 for line in lines)


def test_env_faults_repeat_by_task_and_turn(start_demo_with: StartDemo) -> None:
    def statuses() -> list[int]:
        shop = Client(start_demo_with(env_fault_500=0.3).shop_url)
        found = []
        for idx in range(12):
            answer = shop.call("reset", idx=idx)
            found.append(answer.status_code)
            if answer.status_code == 200:
                found.append(shop.call("interact", response="x", **{**answer.json()["result"]}).status_code)
        assert shop.stats()["fault_500"] == found.count(500)
        return found

    first = statuses()
    assert first == statuses()
    assert {200, 500} == set(first)


def test_a_lost_lease_is_409_and_frees_the_slot(start_demo_with: StartDemo) -> None:
    shop = Client(start_demo_with(env_fault_lease_lost=1.0, slots=1).shop_url)
    shop.reset()
    assert shop.call("interact", response="x", **shop.lease).status_code == 409
    assert shop.release() == 409
    assert (shop.stats()["fault_lease_lost"], shop.stats()["free_slots"]) == (1, 1)


def test_a_hang_gives_no_answer_until_hang_s(start_demo_with: StartDemo) -> None:
    shop = Client(start_demo_with(env_fault_hang=1.0, hang_s=0.4).shop_url)
    started = time.monotonic()
    assert shop.call("reset", idx=1).status_code == 504
    assert time.monotonic() - started >= 0.4
    assert (shop.stats()["fault_hang"], shop.stats()["leases_held"]) == (1, 0)


def test_latency_delays_every_answer(start_demo_with: StartDemo) -> None:
    shop = Client(start_demo_with(env_latency="fixed:0.2").shop_url)
    started = time.monotonic()
    shop.reset()
    assert time.monotonic() - started >= 0.2


def test_other_paths_are_404(shop: Client) -> None:
    assert shop.http.get("/nothing").status_code == 404
