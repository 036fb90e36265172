"""What a ShopSimulator server answers, read: results, the lease in whatever came, and errors that quote neither lease nor solution.

An answer is taken for what it says even where it is no JSON: a slot that is taken must be given back. Every error is made by
``call_error``, the one door from a server's words to a trace. A body that is not the contract's is never quoted, for it may hold the task's
solution under any name: ``outline`` says of what kind it is. What is quoted is an error that the server itself words, as far as it is text.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from rayeval.encoding import encode, json_kind, well_formed
from rayeval.exceptions import EnvironmentCallError, ReplyTooLargeError, TransportError
from rayeval.private_fields import is_private, without_solution
from rayeval.schemas import ErrorKind, JsonObject, Lease
from rayeval.transport import HttpResponse, public_url

_LEASE_FIELDS = ("env_idx", "lease_id")
_BAD_INPUT = (
    "unknown or inactive task_id",
    "task idx must be",
    "requires idx parameter",
    "unsupported interaction_mode",
    "unsupported termination reason",
    "requires response parameter",
)
"""Texts of a 500 that say that the request is wrong and will be wrong again."""
UNAVAILABLE_STATUSES = frozenset({408, 425, 429, 502, 503, 504})
_SHOWN_CHARS = 500
_SHOWN_NAMES = 8
_PLAIN_NAME = re.compile(r"[a-z][a-z_]{0,31}")
"""A key that names something; others may be an article, a person or a lease."""
_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""Where a half of a pair may stand; Python's json module writes such halves, and orjson refuses them."""
_ENV_IDX = re.compile(rb'"env_idx"\s*:\s*(-?[0-9]{1,9})(?![0-9.eE])')
_LEASE_ID = re.compile(rb'"lease_id"\s*:\s*("(?:[^"\\]|\\.){1,512}")')
_SPACE = r"(?:\s|\\[nrt])*"
_SAID_LEASE = re.compile(
    rf"""(lease(?:[_ -]?id)?\\*["']?{_SPACE}(?:[:=]{_SPACE})?)"""
    r"""(?:(?:(?<=[:=\s])|(?<=\\[nrt]))\\*(?P<quote>["'])(?:\\.|(?!(?P=quote)).)*|(?=[A-Za-z_-]*[0-9])[\w-]{8,})""",
    re.IGNORECASE | re.DOTALL,
)
"""A lease id behind its name, in JSON, in Python's or in prose, also when its end is cut off."""


def result_of(response: HttpResponse, server: str, action: str, lease: Lease | None = None) -> JsonObject:
    """``result`` of an answer that is the contract's and no error; raises EnvironmentCallError with the kind and whether to retry, in which
    the id of ``lease`` is not quoted."""
    body = parsed(response.body)
    result = body.get("result") if isinstance(body, dict) else None
    status = response.status
    if not isinstance(result, dict):
        text = f"HTTP {status} without a result object: {outline(response.body, body)}"
        raise call_error(server, action, text, *_verdict(status, action, None), lease)
    error = result.get("error")
    if error is None and 200 <= status < 300:
        return result
    text = f"HTTP {status}" if error is None else f"HTTP {status}: {_words(error)}"
    raise call_error(server, action, text, *_verdict(status, action, str(error)), lease)


def _verdict(status: int, action: str, error: str | None) -> tuple[ErrorKind, bool]:
    """-> the kind, and whether another attempt makes sense. ``error`` is None for a body that is not the contract's."""
    if status == 409 and action != "reset":
        return ErrorKind.LEASE_LOST, True
    if status in UNAVAILABLE_STATUSES:
        return ErrorKind.ENVIRONMENT_UNAVAILABLE, True
    if 400 <= status < 500 and status != 409:
        return ErrorKind.ENVIRONMENT_REFUSED, False
    if error is not None and any(text in error for text in _BAD_INPUT):
        return ErrorKind.ENVIRONMENT_REFUSED, False
    return ErrorKind.ENVIRONMENT_ERROR, True


def parsed(body: bytes) -> Any:
    """The JSON value, lone surrogates in it replaced; None for what is no JSON."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        if not _LONE_SURROGATE.search(body):
            return None
    try:
        return orjson.loads(encode(json.loads(body, parse_constant=_no_number)))
    except (ValueError, RecursionError):
        return None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def lease_of(body: bytes, server: str) -> Lease | None:
    """The lease in an answer, also when the rest of the answer is no good: the slot is taken all the same."""
    value = parsed(body)
    result = value.get("result") if isinstance(value, dict) else None
    if isinstance(result, dict):
        env_idx, lease_id = result.get("env_idx"), result.get("lease_id")
        return Lease(server, env_idx, lease_id) if type(env_idx) is int and isinstance(lease_id, str) and lease_id else None
    number, text = _ENV_IDX.search(body), _LEASE_ID.search(body)
    if number is None or text is None:
        return None
    try:
        return Lease(server, int(number[1]), well_formed(json.loads(text[1], strict=False)))
    except ValueError:
        return None


def reset_start_fault(result: JsonObject, task_id: int) -> str | None:
    """The first fault of a reset beside its page (``pages.reset_fault``)."""
    if type(result.get("env_idx")) is not int:
        return f"env_idx is {json_kind(result['env_idx']) if 'env_idx' in result else 'missing'}; it must be an integer"
    if not isinstance(result.get("lease_id"), str) or not result["lease_id"]:
        return "lease_id is missing or no text"
    if "instruction" in result:
        return "the retired field 'instruction' is present: the server is too old"
    if result.get("idx", task_id) != task_id:
        started = result["idx"]
        return f"task {started if type(started) is int else json_kind(started)} was started, asked was {task_id}"
    return None


def public_reset(result: JsonObject) -> JsonObject:
    """A reset without the lease and without what would give the task away."""
    kept = {k: v for k, v in result.items() if not is_private(k)}
    persona = kept.get("user_persona")
    if isinstance(persona, dict) and "__reasoning__" in persona:
        kept["user_persona"] = {k: v for k, v in persona.items() if k != "__reasoning__"}
    return kept


def without_lease(result: JsonObject) -> JsonObject:
    """Any other result without the lease."""
    return {k: v for k, v in result.items() if k not in _LEASE_FIELDS}


def call_error(server: str, action: str, text: str, kind: ErrorKind, retryable: bool, lease: Lease | None = None) -> EnvironmentCallError:
    """The one way from a server's words to an error: no lease id stands in it, neither that of ``lease`` nor one that the words name, and
    nothing from the name of a private field on."""
    said = text if lease is None else text.replace(lease.lease_id, "***")
    said = _SAID_LEASE.sub(r"\1***", without_solution(said[: 8 * _SHOWN_CHARS]))[:_SHOWN_CHARS]
    return EnvironmentCallError(f"{public_url(server)}: {action}: {said}", kind, retryable)


def unavailable(server: str, action: str, text: str) -> EnvironmentCallError:
    """The server is not there, or not now."""
    return call_error(server, action, text, ErrorKind.ENVIRONMENT_UNAVAILABLE, True)


def no_answer(server: str, action: str, error: TransportError) -> EnvironmentCallError:
    """An answer that is too large will be so again: the server is there, and this attempt is used up."""
    if isinstance(error, ReplyTooLargeError):
        return off_contract(server, action, str(error))
    return unavailable(server, action, str(error))


def off_contract(server: str, action: str, text: str, lease: Lease | None = None) -> EnvironmentCallError:
    """The server is there and answers something else than the contract says: an attempt is used up, as by an error of its own."""
    return call_error(server, action, text, ErrorKind.ENVIRONMENT_ERROR, True, lease)


def excerpt(body: bytes, limit: int = 200) -> str:
    """The start of a health page, for ``call_error``. Not for the other answers: they may hold a task's solution."""
    return repr(body[:limit].decode(errors="replace"))


def outline(body: bytes, value: Any) -> str:
    """What a body is, without a word of it: its length, kind, and the first plain names of its keys. ``value``: as ``parsed`` gave it."""
    length = f"{len(body)} bytes"
    if value is None and body.strip() != b"null":
        start = body[:200].lstrip().lower()
        return f"{length}, {'an HTML page' if start.startswith((b'<!doctype html', b'<html')) else 'no JSON' if start else 'empty'}"
    if not isinstance(value, dict):
        return f"{length}, {json_kind(value)}"
    names = [name for name in value if _PLAIN_NAME.fullmatch(name)][:_SHOWN_NAMES]
    more = len(value) - len(names)
    return f"{length}, an object with {', '.join(names) or 'no plain key'}{f' and {more} more' if more else ''}"


def _words(error: Any) -> str:
    said = error.get("message") if isinstance(error, dict) else error
    return said if isinstance(said, str) else f"an error that is {json_kind(error)}"
