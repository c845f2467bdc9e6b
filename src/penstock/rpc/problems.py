"""The one table from error codes to gRPC statuses (``rest/problems.py`` has REST's).

A status covers several codes: the code itself goes into the error's details, which a call sends as ``penstock-error``.
"""

from __future__ import annotations

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from penstock.errors import Overloaded, PenstockError
from penstock.store.db.database import AWAY, away_reason

STATUS_BY_CODE = {
    "bad-request": Status.INVALID_ARGUMENT,
    "unauthenticated": Status.UNAUTHENTICATED,
    "forbidden": Status.PERMISSION_DENIED,
    "not-found": Status.NOT_FOUND,
    "conflict": Status.FAILED_PRECONDITION,
    "lease-lost": Status.ABORTED,
    # Not CANCELLED: that is what a client sees of a call that it cancelled itself.
    "cancelled": Status.FAILED_PRECONDITION,
    "idempotency-conflict": Status.FAILED_PRECONDITION,
    "gone": Status.FAILED_PRECONDITION,
    "unsupported-format": Status.INVALID_ARGUMENT,
    "payload-too-large": Status.INVALID_ARGUMENT,
    "resource-exhausted": Status.RESOURCE_EXHAUSTED,
    "throttled": Status.RESOURCE_EXHAUSTED,
    "unavailable": Status.UNAVAILABLE,
    "internal-error": Status.INTERNAL,
}


def status_of(error: Exception) -> GRPCError | None:
    """What a client is told of an operating error; None for anything else (INTERNAL, and it is logged)."""
    if isinstance(error, AWAY):  # reads don't wait for a database that is away
        return GRPCError(Status.UNAVAILABLE, away_reason(error))
    if not isinstance(error, PenstockError):
        return None
    # gRPC has a status of its own for it; REST has 503 for both.
    status = Status.RESOURCE_EXHAUSTED if isinstance(error, Overloaded) else STATUS_BY_CODE[error.code]
    return GRPCError(status, error.reason, error.code)
