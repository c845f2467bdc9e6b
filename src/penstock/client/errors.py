"""What a call to the engine can raise: one class per condition, so that callers catch what they can act on.

Every error carries ``code`` (the engine's word for the condition), ``reason`` (text for a person) and ``status``
(the HTTP status, None where none was received). The table from code and status to class is here and nowhere else.
Independent of ``penstock.errors``, which belongs to the engine's side of the wire: a client also meets engines
that are newer than itself, broken connections and proxies.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong with an uploaded definition, and where."""

    path: str
    reason: str


class ClientError(Exception):
    """Base of everything that a call to the engine raises."""

    default_code = "internal-error"

    def __init__(self, reason: str, *, code: str | None = None, status: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code or self.default_code
        self.status = status

    def __str__(self) -> str:
        where = f" (HTTP {self.status})" if self.status is not None else ""
        return f"{self.code}: {self.reason}{where}"


class BadRequest(ClientError):
    """The request is wrong, whatever the state of the engine; repeating it can't help. Nothing was changed.

    ``problems`` lists everything that is wrong with a refused definition; empty for other requests.
    """

    default_code = "bad-request"

    def __init__(
        self, reason: str, *, code: str | None = None, status: int | None = None, problems: Sequence[Problem] = ()
    ) -> None:
        super().__init__(reason, code=code, status=status)
        self.problems = list(problems)


class Unauthenticated(ClientError):
    """The engine knows no caller by this token, or was given none. Nothing was changed."""

    default_code = "unauthenticated"


class Forbidden(ClientError):
    """The caller lacks the role that this needs; the reason names it. Nothing was changed."""

    default_code = "forbidden"


class NotFound(ClientError):
    """What the request names does not exist."""

    default_code = "not-found"


class Conflict(ClientError):
    """What the request names exists, in a state that does not allow it. Nothing was changed."""

    default_code = "conflict"


class LeaseLost(Conflict):
    """The caller does not hold the job any more: its lease ended, or another attempt has it."""

    default_code = "lease-lost"


class JobCancelled(Conflict):
    """The job's instance ended or its step was interrupted: work on it can stop."""

    default_code = "cancelled"


class IdempotencyConflict(Conflict):
    """The idempotency key was used before, with another request."""

    default_code = "idempotency-conflict"


class DispatchModeConflict(ClientError):
    """The engine dispatches jobs through Kafka: there is nothing to poll."""

    default_code = "gone"


class PayloadTooLarge(ClientError):
    """The body is over the engine's limit."""

    default_code = "payload-too-large"


class UnsupportedFormat(ClientError):
    """The engine does not read this content type."""

    default_code = "unsupported-format"


class NotImplementedByEngine(ClientError):
    """The request is valid, but this engine can't run what it asks for."""

    default_code = "not-implemented"


class NotOverGrpc(ClientError):
    """The call, or something in it, has no form in gRPC: make it over REST. Nothing was sent."""

    default_code = "not-over-grpc"


class InternalError(ClientError):
    """The engine failed, or its answer can't be read. Whether the request took effect is not known."""

    default_code = "internal-error"


class Unavailable(ClientError):
    """The engine can't be reached or can't answer now; the same call may succeed later.

    ``maybe_applied`` tells whether the request may have taken effect all the same. It is False when it surely
    did not (the connection was refused, the engine turned it away). ``retry_after_s`` is the pause that the engine
    asks for, in seconds; None when it names none.
    """

    default_code = "unavailable"

    def __init__(
        self, reason: str, *, code: str | None = None, status: int | None = None, maybe_applied: bool = True
    ) -> None:
        super().__init__(reason, code=code, status=status)
        self.maybe_applied = maybe_applied
        self.retry_after_s: float | None = None


class TooManyRequests(Unavailable):
    """A bounded queue of the engine is full. The request was turned away."""

    default_code = "resource-exhausted"


class Throttled(ClientError):
    """More starts with the key than its ``throttle`` allows. Nothing was started; the reason says when one may be."""

    default_code = "throttled"


class ConnectionFailed(Unavailable):
    """No connection could be made, or it broke before the answer was complete."""

    default_code = "connection-failed"


class TimedOut(Unavailable):
    """No answer within the time that the caller allowed."""

    default_code = "timed-out"


_BY_CODE: dict[str, type[ClientError]] = {
    kind.default_code: kind
    for kind in (
        BadRequest,
        Unauthenticated,
        Forbidden,
        NotFound,
        Conflict,
        LeaseLost,
        JobCancelled,
        IdempotencyConflict,
        DispatchModeConflict,
        PayloadTooLarge,
        UnsupportedFormat,
        NotImplementedByEngine,
        InternalError,
        Unavailable,
        TooManyRequests,
        Throttled,
        ConnectionFailed,  # of an item of a batch
        TimedOut,
    )
}

_BY_STATUS: dict[int, type[ClientError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    408: Unavailable,  # the request did not arrive whole: this process stood still, or the network did
    409: Conflict,
    410: DispatchModeConflict,
    413: PayloadTooLarge,
    415: UnsupportedFormat,
    429: TooManyRequests,
    501: NotImplementedByEngine,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def error_for(
    code: str | None, reason: str, status: int | None = None, problems: Sequence[Problem] = ()
) -> ClientError:
    """Return the error for an answer of the engine: by its code, by its status where the code is unknown or missing.

    A redirect is no answer of an engine: whoever calls has the wrong address.
    """
    kind = _BY_CODE.get(code or "")
    if kind is None and status is not None:
        kind = _BY_STATUS.get(status) or (BadRequest if 300 <= status < 500 else InternalError)
    if kind is None:
        kind = InternalError
    if issubclass(kind, BadRequest):
        return kind(reason, code=code, status=status, problems=problems)
    if issubclass(kind, Unavailable):
        turned_away = kind is TooManyRequests or status == 408
        return kind(reason, code=code, status=status, maybe_applied=not turned_away)
    return kind(reason, code=code, status=status)
