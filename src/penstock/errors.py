"""The errors that operations raise: few, one per condition, each with the code that clients see.

A leaf: imports nothing of penstock. Adapters hold one table each from ``code`` to their own status
(`rest/problems.py`, `rpc/problems.py`); nothing else may decide a status. Operating errors (bad input, a lost
lease, a database that is away) are raised as these; programmer errors assert.
"""

from __future__ import annotations

from typing import TypeVar, cast

E = TypeVar("E", bound=BaseException)


class PenstockError(Exception):
    """Base of all operating errors. ``reason`` is shown to clients: no SQL, no stack traces."""

    code = "internal-error"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BadRequest(PenstockError):
    """The request itself is wrong, whatever the state of the engine. Nothing was changed."""

    code = "bad-request"


class Unauthenticated(PenstockError):
    """The call proves no identity, or proves it with what is wrong, expired or revoked."""

    code = "unauthenticated"


class Forbidden(PenstockError):
    """The caller is known, and may not do this; or the call comes from where it may not."""

    code = "forbidden"


class NotFound(PenstockError):
    """The thing that the request names does not exist."""

    code = "not-found"


class Conflict(PenstockError):
    """The thing exists, in a state which does not allow the request. Nothing was changed."""

    code = "conflict"


class LeaseLost(Conflict):
    """The caller no longer holds (or never held) the lease it acts under. Nothing was changed."""

    code = "lease-lost"


class JobCancelled(Conflict):
    """The job's instance ended or its step was interrupted: whoever works on it may stop."""

    code = "cancelled"


class IdempotencyConflict(Conflict):
    """The same idempotency key came with another request before."""

    code = "idempotency-conflict"


class DispatchModeConflict(PenstockError):
    """The call does not exist in this engine's dispatch mode (polling while Kafka dispatches)."""

    code = "gone"


class UnsupportedFormat(PenstockError):
    """The body has a content type that is not read."""

    code = "unsupported-format"


class PayloadTooLarge(PenstockError):
    """A body, a variable map or a result is over its limit."""

    code = "payload-too-large"


class JournalTooLong(PayloadTooLarge):
    """A run's journal has as many records as it may: the run can't go on."""


class TooManyRequests(PenstockError):
    """A bounded queue or a limit on parked calls is full. Try again later."""

    code = "resource-exhausted"


class MailboxFull(TooManyRequests):
    """The durable run has as many messages as it may without having read one."""


class Throttled(PenstockError):
    """More starts with a key than its rate allows: not before ``retry_after_s`` seconds. Nothing was started."""

    code = "throttled"

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class Unavailable(PenstockError):
    """The engine can't answer now: the database is away or the engine drains. Try again."""

    code = "unavailable"


class Overloaded(Unavailable):
    """There is no memory left for more large answers. Nothing was changed; try again."""


class BrokerUnavailable(Unavailable):
    """No Kafka broker can be reached or used; the reason names them. The engine does not start without one."""


def leaf_of(error: Exception) -> Exception:
    """Return the one exception in groups of one, as nurseries raise them; else the error itself."""
    inside: Exception = error
    while isinstance(inside, ExceptionGroup):
        members = list(cast("ExceptionGroup[Exception]", inside).exceptions)
        if len(members) != 1:
            return error
        inside = members[0]
    return inside


def leaves(group: BaseExceptionGroup[E]) -> list[E]:
    """Return the exceptions in a group and in those within it, as they stand there."""
    found: list[E] = []
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            found.extend(leaves(cast("BaseExceptionGroup[E]", error)))
        else:
            found.append(error)
    return found
