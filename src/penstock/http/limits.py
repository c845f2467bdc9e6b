"""What one client may cost: every bound of the HTTP servers, named, with its unit.

Relies on nothing. The runtime fills it from the settings; the defaults are what a public port can live with.
"""

from __future__ import annotations

import dataclasses

_KIB = 1024
_MIB = 1024 * _KIB


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Bounds of one server. Sizes are bytes on the wire, times are seconds. All must be above zero."""

    max_request_line_bytes: int = 8 * _KIB
    """Method, target and version. More is a 414."""
    max_header_count: int = 100
    """More is a 431."""
    max_head_bytes: int = 32 * _KIB
    """Request line and all headers together. More is a 431."""
    max_body_bytes: int = 8 * _MIB
    """Of one request, after chunked decoding. More is a 413."""
    max_request_memory_bytes: int = 256 * _MIB
    """Bodies of all requests that are being received or answered. At the limit the one that has been on its way for
    longest is a 503; so is a new one when all others have come."""
    max_pipeline_bytes: int = 64 * _KIB
    """Read ahead while a request is answered; above it the socket is not read until the answer is out."""
    max_connections_per_address: int = 10_000
    """One more is closed as soon as it is accepted."""
    max_unproved_per_address: int = 1_000
    """Of them those that have not asked for anything yet (with authentication: not proved who they are); at the limit
    one of them makes room."""
    max_connections: int = 10_000
    """At the limit one makes room that has proved nothing, else the longest idle one; when none is idle, newcomers wait
    to be accepted."""
    evict_after_idle_seconds: float = 30.0
    """Idle for less than this is not idle: the next request may be on its way, and an old client reports a failure
    when its connection is closed under it."""
    header_timeout_seconds: float = 10.0
    """From the first byte of a request to the end of its headers, however the bytes trickle in; and before the first
    byte of a connection's first request."""
    body_timeout_seconds: float = 30.0
    """Without a byte of the body, and for all of it, lengthened by `min_body_bytes_per_second`."""
    min_body_bytes_per_second: int = 4 * _KIB
    """A body may take `body_timeout_seconds` plus its size divided by this."""
    keep_alive_timeout_seconds: float = 120.0
    """Between requests. Above the 90 s after which Go's client gives up an idle connection: who closes first never
    cuts off a request that is on its way."""
    resets_burst: int = 1_000
    """HTTP/2 requests that a client may take back at once (rapid reset, CVE-2023-44487); more end its connection."""
    resets_per_second: float = 50.0
    write_timeout_seconds: float = 30.0
    """For each `write_slice_bytes` of an answer to leave."""
    write_slice_bytes: int = 256 * _KIB
    linger_timeout_seconds: float = 2.0
    """How long a client that is still sending is read after the last answer (and what it sends thrown away), so that
    closing does not reset the connection under that answer."""
    max_linger_bytes: int = 16 * _MIB
    drain_quiet_seconds: float = 0.05
    """After `drain()`, how long idle connections stay open for requests that were on their way; also how long an
    unasked close waits for the client's."""
    deadline_tick_seconds: float = 0.5
    """How often deadlines are looked at: a time-out comes up to this much late."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"{field.name} must be above 0")
