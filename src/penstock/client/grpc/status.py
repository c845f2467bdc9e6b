"""What a gRPC status means: one exception per condition, the same as over REST.

An engine adds the trailer ``penstock-error``, its own word for the condition; without it (a proxy, another server) the
status number decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

from penstock.client.errors import (
    BadRequest,
    ClientError,
    Conflict,
    ConnectionFailed,
    Forbidden,
    InternalError,
    LeaseLost,
    NotFound,
    NotImplementedByEngine,
    TimedOut,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    error_for,
)

OK = 0
UNAVAILABLE = 14

_BY_STATUS: Mapping[int, type[ClientError]] = {
    1: Unavailable,  # CANCELLED, by something on the way: a call that we cancel has no reader
    2: InternalError,
    3: BadRequest,
    4: TimedOut,
    5: NotFound,
    6: Conflict,
    7: Forbidden,
    8: TooManyRequests,
    9: Conflict,
    10: LeaseLost,
    11: BadRequest,
    12: NotImplementedByEngine,
    13: InternalError,
    UNAVAILABLE: Unavailable,
    15: InternalError,
    16: Unauthenticated,
}


def error_of(trailers: Mapping[bytes, bytes]) -> ClientError | None:
    """Return the error that a call ended with; None when it ended well."""
    try:
        status = int(trailers.get(b"grpc-status", b""))
    except ValueError:
        return _without_status(trailers)
    if status == OK:
        return None
    reason = unquote_to_bytes(trailers.get(b"grpc-message", b"")).decode("utf-8", "replace")
    code = trailers.get(b"penstock-error", b"").decode("ascii", "replace")
    if code:
        return error_for(code, reason)
    kind = _BY_STATUS.get(status, InternalError)
    text = reason or f"gRPC status {status}"
    if kind is TooManyRequests:
        return TooManyRequests(text, maybe_applied=False)
    return kind(text)


def _without_status(trailers: Mapping[bytes, bytes]) -> ClientError:
    """An answer that is no gRPC: a proxy's, by its HTTP status."""
    try:
        http_status = int(trailers.get(b":status", b""))
    except ValueError:
        return ConnectionFailed("the answer ended without a status")
    if http_status == 200:
        return InternalError("the answer has no gRPC status: is this port one that speaks gRPC?")
    return error_for(None, f"HTTP status {http_status} in place of a gRPC answer", http_status)
