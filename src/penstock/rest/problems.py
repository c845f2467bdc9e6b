"""From errors to answers: the one table of statuses, and the error object of the contract.

A status is decided nowhere else. What is not an operating error is a bug: it is logged with its trace and answered
without a word of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from penstock.core.graph.definition import InvalidDefinition, Problem
from penstock.engine.definitions.json_schema import WrongValue
from penstock.errors import DispatchModeConflict, PenstockError, Throttled
from penstock.log.log import get_logger
from penstock.rest.exchange import Headers, Reply
from penstock.settings import DispatchMode
from penstock.store.db.database import AWAY, away_reason
from penstock.wire.paths import read_part

log = get_logger(__name__)

STATUS_BY_CODE: Final[Mapping[str, int]] = {
    "bad-request": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "not-found": 404,
    "method-not-allowed": 405,
    "conflict": 409,
    "lease-lost": 409,
    "cancelled": 409,
    "idempotency-conflict": 409,
    "gone": 410,
    "payload-too-large": 413,
    "unsupported-format": 415,
    "resource-exhausted": 429,
    "throttled": 429,
    "internal-error": 500,
    "unavailable": 503,
}
WRONG_VALUE_STATUS: Final = 422
"""Of a `bad-request` that is well formed, with a value that does not fit what a program has published."""
_CODE_BY_STATUS: Final[Mapping[int, str]] = {404: "not-found", 405: "method-not-allowed", 413: "payload-too-large"}
RETRY_AFTER_SECONDS: Final = 1
SHOWN_PATH_MAX_CHARS: Final = 200
RETRY_LATER: Final[Headers] = ((b"retry-after", b"%d" % RETRY_AFTER_SECONDS),)
_HEADERS: Final[Mapping[int, Headers]] = {
    401: ((b"www-authenticate", b'Bearer realm="penstock"'),),
    429: RETRY_LATER,
    503: RETRY_LATER,
}


class ErrorObject(msgspec.Struct, omit_defaults=True):
    """The body of every answer that is not a success."""

    error: str
    reason: str
    message: str
    problems: list[Problem] | None = None
    dispatch_mode: str | None = None
    hint: str | None = None


_encode = msgspec.json.Encoder().encode


def problem(code: str, reason: str, headers: Headers = ()) -> Reply:
    """Return the answer for a code of the table."""
    return Reply(STATUS_BY_CODE[code], _encode(ErrorObject(code, reason, reason)), headers=headers)


def problem_of(error: PenstockError) -> Reply:
    """Return the answer for an operating error."""
    code = error.code
    status = STATUS_BY_CODE[code]
    if isinstance(error, (InvalidDefinition, WrongValue)):
        status = WRONG_VALUE_STATUS if isinstance(error, WrongValue) else status
        return Reply(status, _encode(ErrorObject(code, error.reason, error.reason, problems=error.problems)))
    if isinstance(error, WrongValue):
        return Reply(
            WRONG_VALUE_STATUS, _encode(ErrorObject(code, error.reason, error.reason, problems=error.problems))
        )
    if isinstance(error, DispatchModeConflict):
        hint = "consume the Kafka topics workflow.jobs.<jobType>; complete and fail jobs through this API as before"
        mode = DispatchMode.KAFKA_OUTBOX.value
        return Reply(status, _encode(ErrorObject(code, error.reason, error.reason, dispatch_mode=mode, hint=hint)))
    if isinstance(error, Throttled):
        return problem(code, error.reason, ((b"retry-after", b"%d" % math.ceil(error.retry_after_s)),))
    return problem(code, error.reason, _HEADERS.get(status, ()))


def bug(error: BaseException, method: str, path: str) -> Reply:
    """The answer for what should not have happened; the trace goes to the log. A database that is away may happen:
    reads do not wait for it."""
    if isinstance(error, AWAY):
        return problem("unavailable", away_reason(error), RETRY_LATER)
    log.error("request failed", method=method, path=path, exc_info=error)
    return problem("internal-error", "the request failed inside the engine; the engine's log says why")


def problem_of_status(status: int, reason: str) -> Reply:
    """Return the answer for a status that a library chose."""
    code = _CODE_BY_STATUS.get(status, "bad-request" if status < 500 else "internal-error")
    return problem(code, reason)


def nothing_at(path: str) -> Reply:
    """404 for a path that is no route."""
    return problem("not-found", f"there is nothing at {read_part(path[:SHOWN_PATH_MAX_CHARS])}")


def method_not_allowed(method: str, allowed: Sequence[str]) -> Reply:
    """405 with the methods that the path has."""
    allow = ", ".join(allowed)
    return problem("method-not-allowed", f"{method} is not one of {allow}", ((b"allow", allow.encode()),))
