"""What the headers of a request ask for, read once for all requests with the same block of them.

Pure. Must depend on nothing but the headers and the methods that are served: connections remember what it found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.metadata import decode_timeout
from msgspec import Struct

from penstock.rpc.headers import flaw_of
from penstock.rpc.methods import Method
from penstock.wire.http2_frames import Headers

_ENCODING_IDENTITY: Final = b"identity"
# Ten years: Trio's clock takes any float, a client's "99999999H" is meant as "never".
_MAX_TIMEOUT_S: Final = 10 * 365 * 86_400.0
_TYPES: Final = (b"application/grpc", b"application/grpc+proto")


class RpcRequest(Struct, frozen=True, kw_only=True):
    """Headers, read. To be shared: nobody changes ``headers``."""

    headers: dict[bytes, bytes]
    flaw: str | None = None
    """What breaks the protocol; nothing else was read then."""
    http_status: bytes | None = None
    """What it is answered with when it is no gRPC."""
    method: Method | None = None
    timeout_s: float = math.inf
    error: GRPCError | None = None
    """Why it gets no call. One of the two, this or ``method`` alone, unless it is no gRPC."""
    short: Method | None = None
    """The method, if it may be begun with a request that came whole, without a task."""


def read_request(methods: Mapping[bytes, Method], given: Headers) -> RpcRequest:
    """Never raises: whatever is wrong is told in the request."""
    flaw = flaw_of(given)
    if flaw is not None:
        return RpcRequest(headers={}, flaw=flaw)
    headers = dict(given)
    if len(headers) < len(given):
        _join_proofs(headers, given)
    is_grpc = headers.get(b"content-type", b"").partition(b";")[0].strip() in _TYPES
    if headers[b":method"] != b"POST" or not is_grpc:
        return RpcRequest(headers=headers, http_status=b"405" if is_grpc else b"415")
    method = methods.get(headers[b":path"])
    timeout_s: float | None = math.inf
    error: GRPCError | None = None
    if method is None:
        error = GRPCError(Status.UNIMPLEMENTED, "no such method")
    elif headers.get(b"grpc-encoding", _ENCODING_IDENTITY) != _ENCODING_IDENTITY:
        error = GRPCError(Status.UNIMPLEMENTED, "compressed messages are not supported")
    elif b"grpc-timeout" in headers:
        timeout_s = _parse_timeout(headers[b"grpc-timeout"])
        if timeout_s is None:
            error = GRPCError(Status.INVALID_ARGUMENT, "grpc-timeout can't be read")
    short = method if method is not None and method.taskless and error is None else None
    return RpcRequest(headers=headers, method=method, timeout_s=timeout_s or 0.0, error=error, short=short)


def _join_proofs(headers: dict[bytes, bytes], given: Headers) -> None:
    """Of names given twice the last value counts; of two proofs of identity none does: together they are no token."""
    proofs = [value for name, value in given if name == b"authorization"]
    if len(proofs) > 1:
        headers[b"authorization"] = b", ".join(proofs)


def _parse_timeout(value: bytes) -> float | None:
    if len(value) > 9:  # eight digits and a unit, by gRPC's specification
        return None
    try:
        return min(decode_timeout(value.decode("ascii")), _MAX_TIMEOUT_S)
    except ValueError:
        return None
