"""The wall clock jumps under a run. Every deadline, fence and lease goes by the monotonic clock."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# the clock is changed before anything is imported, so that no module keeps the true one under a name of its own
JUMPING = """
    import datetime, sys, time

    offset, true_time, true_datetime = 0.0, time.time, datetime.datetime

    class Jumping(true_datetime):
        @classmethod
        def now(cls, tz=None):
            return true_datetime.fromtimestamp(true_time() + offset, tz)

    time.time = lambda: true_time() + offset
    datetime.datetime = Jumping

    import asyncio, json
    from pathlib import Path
    from actors.engine import RunRequest, run
    from rayeval.config import load_config
    from rayeval.display import NoDisplay
    from rayeval.plan import make_plan
    from rayeval.store import iter_traces, load_journal
    from tests.actors.plans import SHOP, write_config
    from tests.actors.worlds import KIND, new_world

    calls, jumps, stuck = 0, [3600.0, -3600.0, 0.0, -3600.0, 3600.0], asyncio.Event()

    def back():
        global offset
        offset = -7200.0

    async def jump(call):
        global calls, offset
        calls += 1
        if calls % 20 == 0:
            offset = jumps[calls // 20 % len(jumps)]
        if call.job.task_id == 3 and call.name == "step" and call.number == 0:
            offset = -3600.0  # its deadline would be an hour away
            try:
                await asyncio.sleep(3600.0)
            finally:
                asyncio.get_running_loop().call_later(0.3, back)  # and so would its next attempt
        await asyncio.sleep(0.002)

    root = Path(sys.argv[1])
    world = new_world("jumping", (SHOP,), hook=jump)
    loaded = load_config(write_config(root, tasks=24, overrides={
        "environment.kind": KIND, "environment.options": {"world": "jumping"},
        "execution.fence_s": 60, "execution.step_timeout_s": 1.0, "execution.episode_timeout_s": 600, "execution.reset_timeout_s": 600,
        "execution.stall_timeout_s": 600, "execution.endpoint_outage_s": 600,
    }))
    notes = []
    display = NoDisplay()
    display.note = lambda level, text: notes.append((level, text))
    outcome = run(RunRequest(loaded, make_plan(loaded), root / "run", show=True), display)
    traces = [(t["job"]["task_id"], t["attempt"], t["status"], (t["error"] or {}).get("kind"), t["duration_ms"])
              for t in iter_traces(outcome.run_dir / "traces.jsonl")]
    print(json.dumps({
        "exit_code": outcome.exit_code, "reason": outcome.reason, "calls": calls, "traces": traces, "held": len(world.held),
        "journal": len(load_journal(outcome.run_dir / "leases.jsonl").held), "status": outcome.status,
        "notes": [n for n in notes if n[0] in ("warning", "error")],
    }))
"""


@pytest.mark.slow
def test_neither_deadlines_nor_fences_nor_leases_go_by_the_wall_clock(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(JUMPING), str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["exit_code"] == 0, told
    assert all("first failure of kind environment_unavailable" in text for _, text in told["notes"]), told["notes"]
    assert told["calls"] > 100, "the clock jumped less often than meant"
    failed = [t[:4] for t in told["traces"] if t[2] == "failed"]
    assert failed == [[3, 1, "failed", "environment_unavailable"]], "only the one whose step never answers, when its time is up"
    assert sorted(t[0] for t in told["traces"] if t[2] == "completed") == list(range(24))
    assert all(0 <= t[4] < 60_000 for t in told["traces"])
    assert told["held"] == told["journal"] == 0
    assert told["status"]["lost"] == 0
