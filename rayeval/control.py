"""Requests to a live run: what may be asked, how it is checked, and what is answered. ``mailbox.py`` carries them."""

from __future__ import annotations

import getpass
import math
import os
import platform
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from rayeval.exceptions import InputError, RayevalError, RefusedError
from rayeval.schemas import ExitCode, JsonObject
from rayeval.selection import task_ranges

CONTROL_SCHEMA = "rayeval-control-v1"
VERBS = ("pause", "resume", "drain", "set", "cancel")


def _count(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000_000_000:
        raise InputError(key, value, "give a whole number, 1 or more")
    return value


def _slots(key: str, value: Any) -> int:
    if _count(key, value) > 1_000_000:
        raise InputError(key, value, "give a whole number from 1 to 1000000")
    return int(value)


def _number(key: str, value: Any, *, above: bool) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0 or (above and value == 0):
        raise InputError(key, value, f"give a number {'above 0' if above else 'of 0 or more'}")
    return float(value)


def _or_null(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda key, value: None if value is None else check(key, value)


SETTINGS: dict[str, Callable[[str, Any], Any]] = {
    "concurrency": _slots,
    "grace_s": lambda key, value: _number(key, value, above=False),
    "max_cost": _or_null(lambda key, value: _number(key, value, above=True)),
    "max_tokens_total": _or_null(_count),
    "max_wall_s": _or_null(lambda key, value: _number(key, value, above=True)),
}
"""Keys of ``execution`` that a live run takes, each with its check."""


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """One request. ``arguments``: of ``set`` the new values by key; of ``cancel`` ``task`` (``12,40-60``) and ``episodes`` (ids); of
    ``drain`` ``grace_s`` or nothing."""

    verb: str
    arguments: JsonObject = field(default_factory=dict)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    user: str = ""
    host: str = ""
    sent_at: str = ""

    def signed(self) -> ControlRequest:
        """With the name of this process's user and host, and the time. These are for the record; nothing is decided from them."""
        try:
            user = getpass.getuser()
        except (OSError, KeyError):  # no such user here
            user = str(os.getuid())
        return replace(self, user=user, host=platform.node(), sent_at=datetime.now(UTC).isoformat(timespec="seconds"))

    def checked(self) -> ControlRequest:
        """The same with checked arguments. Raises InputError."""
        given, known = self.arguments, dict[str, Any]()
        if self.verb not in VERBS:
            raise InputError("verb", self.verb, f"is not known; give one of {', '.join(VERBS)}")
        if self.verb == "set":
            for key, value in given.items():
                check = SETTINGS.get(key.removeprefix("execution."))
                if check is None:
                    raise InputError("setting", key, f"cannot be set on a live run; known are {', '.join(SETTINGS)}")
                known[key.removeprefix("execution.")] = check(key, value)
            if not known:
                raise InputError("set", None, f"give KEY=VALUE; known are {', '.join(SETTINGS)}")
        elif self.verb == "cancel":
            task, episodes = given.get("task"), given.get("episodes") or []
            if task is not None:
                known["task"] = str(task)
                task_ranges(known["task"])
            if not isinstance(episodes, list) or not all(isinstance(e, str) for e in episodes):
                raise InputError("--episode", str(episodes), "give ids of episodes")
            known["episodes"] = episodes
            if task is None and not episodes:
                raise InputError("cancel", None, "give --task 12,40-60, or --episode ID, or both")
        elif self.verb == "drain" and given.get("grace_s") is not None:
            known["grace_s"] = _number("--grace-s", given["grace_s"], above=False)
        return replace(self, arguments=known)

    def to_json(self) -> JsonObject:
        return {"schema": CONTROL_SCHEMA, **asdict(self)}


def parse_setting(text: str) -> tuple[str, Any]:
    """``concurrency=32`` -> ("concurrency", 32); ``null`` lifts a cap. Raises InputError; what the value may be is checked later."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError("set", text, f"give KEY=VALUE, such as concurrency=32; known are {', '.join(SETTINGS)}")
    word = value.strip()
    if word == "null":
        return key.strip(), None
    for read in (int, float):
        with suppress(ValueError):
            return key.strip(), read(word)
    return key.strip(), word


def request_of(value: Any) -> ControlRequest:
    """Data that came from elsewhere -> a request with an id that is safe as a file's name. Raises InputError."""
    if not isinstance(value, dict) or value.get("schema") != CONTROL_SCHEMA:
        raise InputError("request", None, f"is no {CONTROL_SCHEMA}")
    texts = {name: str(value.get(name) or "")[:200] for name in ("verb", "id", "user", "host", "sent_at")}
    arguments = value.get("arguments")
    if not texts["id"].isalnum() or not isinstance(arguments, dict):
        raise InputError("request", None, "has no id, or no arguments")
    return ControlRequest(arguments=arguments, **texts)


def done_reply(request: ControlRequest, text: str, result: JsonObject) -> JsonObject:
    """What a driver answers when it has done as asked. ``text`` is for people."""
    return {"schema": CONTROL_SCHEMA, "id": request.id, "verb": request.verb, "ok": True, "done": text, "result": result}


def refusal(request: ControlRequest, error: RayevalError) -> JsonObject:
    """What it answers when it does not."""
    wrong = {"field": error.field, "value": error.value, "hint": error.hint} if isinstance(error, InputError) else {"hint": str(error)}
    return {"schema": CONTROL_SCHEMA, "id": request.id, "verb": request.verb, "ok": False, "error": {"code": int(error.exit_code), **wrong}}


def read_reply(reply: JsonObject) -> JsonObject:
    """-> the reply of a request that was done. Raises InputError (exit 2) or RefusedError (exit 4) as the driver said."""
    if reply.get("ok") is True:
        return reply
    error = reply.get("error") or {}
    if error.get("code") == ExitCode.BAD_INPUT:
        raise InputError(str(error.get("field")), error.get("value"), str(error.get("hint")))
    raise RefusedError(str(error.get("hint") or "the run refused the request"))
