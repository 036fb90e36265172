"""What keeps a run from getting on, as far as its status tells: the line one looks for at night."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayeval.cli.words import duration, number, objects, short_url, shown

LONG_S = 60.0
"""In one stage so long is worth a word."""
_IN_STAGE = {
    "queued": "wait in their actors",
    "pacing": "wait to reset",
    "resetting": "wait for a reset's answer",
    "model": "wait for the model",
    "environment": "wait for the environment",
    "releasing": "wait for their release",
}
_STARTS_S = 20.0
"""An actor that has room is there sooner."""
_SLOW_LAG_S = 2.0
_BROKER_SILENT_S = 10.0


def troubles(status: Mapping[str, Any]) -> list[str]:
    """In words, worst first; empty when all goes well."""
    if status.get("state") == "closing":
        return []
    found = [*_paused(status), *_servers(status), *_starved(status), *_slow_episodes(status), *_idle(status)]
    broker = status.get("broker")
    silent = number(broker.get("silent_s")) if isinstance(broker, Mapping) else None
    if silent is not None and silent > _BROKER_SILENT_S:
        found.append(f"the slot broker has been silent for {duration(silent)}")
    for actor in objects(status.get("actors")):
        lag = number(actor.get("lag_s")) or 0.0
        if actor.get("state") == "slow" or lag > _SLOW_LAG_S:
            found.append(f"{shown(actor.get('id'), 40)} is slow" + (f", its loop was {duration(lag)} late" if lag > _SLOW_LAG_S else ""))
        elif actor.get("state") == "dead":
            found.append(f"{shown(actor.get('id'), 40)} is dead, its episodes run again")
    return found


def _paused(status: Mapping[str, Any]) -> list[str]:
    return ["paused by request: nothing new starts until `rayeval control RUN resume`"] if status.get("state") == "paused" else []


def _servers(status: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for kind, field, rows in (
        ("model endpoint", "endpoint", objects(status.get("model"))),
        ("environment server", "server", objects(status.get("environment"))),
    ):
        out = [(short_url(row.get(field)), number(row.get("out_s")) or 0.0) for row in rows if number(row.get("out_s")) is not None]
        if not out:
            continue
        longest = duration(max(seconds for _, seconds in out))
        if len(out) == len(rows):
            found.append(f"no {kind} answers, for {longest}: {', '.join(name for name, _ in out)}")
        else:
            found.append(f"{len(out)} of {len(rows)} {kind}s {'does' if len(out) == 1 else 'do'} not answer, for {longest}: {out[0][0]}")
    for row in objects(status.get("environment")):
        if row.get("refused") is True:
            found.append(f"{short_url(row.get('server'))} is of another version and gets no work")
    for row in objects(status.get("model")):
        if (pause := number(row.get("pause_s"))) and number(row.get("out_s")) is None:
            found.append(f"{short_url(row.get('endpoint'))} asked for a pause, {duration(pause)} left")
    return found


def _starved(status: Mapping[str, Any]) -> list[str]:
    rows = objects(status.get("environment"))
    open_slots = [number(row.get("admission")) for row in rows]
    if rows and (number(status.get("queued")) or 0.0) > 0 and status.get("state") == "running" and open_slots == [0.0] * len(rows):
        return ["the environment has no slot free for this run"]
    return []


def _slow_episodes(status: Mapping[str, Any]) -> list[str]:
    long: dict[str, list[Mapping[str, Any]]] = {}
    for row in objects(status.get("slowest")):
        if (number(row.get("stage_s")) or 0.0) >= LONG_S:
            long.setdefault(shown(row.get("stage"), 20), []).append(row)
    found = []
    for stage, rows in sorted(long.items(), key=lambda item: -max(number(row.get("stage_s")) or 0.0 for row in item[1])):
        worst = max(rows, key=lambda row: number(row.get("stage_s")) or 0.0)
        n = len(rows)
        who = f"{shown(worst.get('episode_id'), 60)} has" if n == 1 else f"{n} episodes"
        doing = _IN_STAGE.get(stage, "do not move")
        longest = duration(number(worst.get("stage_s")) or 0.0)
        step = number(worst.get("step"))
        at = f" (step {step:.0f})" if step else ""
        if n == 1:
            doing = f"been {_SINGULAR.get(stage, 'in one stage')}"
            found.append(f"{who} {doing} for {longest}{at}")
        else:
            found.append(f"{who} {doing}, up to {longest}")
    return found


_SINGULAR = {
    "queued": "waiting in its actor",
    "pacing": "waiting to reset",
    "resetting": "resetting",
    "model": "in one model call",
    "environment": "in one environment step",
    "releasing": "releasing its slot",
}


def _idle(status: Mapping[str, Any]) -> list[str]:
    if status.get("state") != "running":
        return []
    flying, waiting = number(status.get("in_flight")) or 0.0, number(status.get("queued")) or 0.0
    elapsed = number(status.get("elapsed_s")) or 0.0
    actors = objects(status.get("actors"))
    starting = [number(actor.get("starting_s")) or 0.0 for actor in actors if actor.get("state") == "starting"]
    if waiting and starting and max(starting) > _STARTS_S and not any(actor.get("state") in ("working", "slow") for actor in actors):
        are = "1 has been starting" if len(starting) == 1 else f"{len(starting)} have been starting"
        needs = "each needs a free CPU on one node (`ray status`)"
        return [f"no actor runs and {waiting:.0f} wait; {are} for {duration(max(starting))}: {needs}"]
    if not flying and waiting and elapsed > LONG_S:
        return [f"nothing is in flight and {waiting:.0f} wait"]
    if flying and status.get("rate_per_min") is None and elapsed > 2 * LONG_S:
        return ["no episode was completed in the last minute"]
    return []
