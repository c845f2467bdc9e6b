"""What a gRPC server has counted, and how it is at this moment. Does nothing."""

from __future__ import annotations

from msgspec import Struct


class CallCounts(Struct):
    """What happened since the start."""

    accepted: int = 0
    calls: int = 0
    refused: int = 0
    """Calls told to go elsewhere: too many at once on a connection, or draining."""
    evicted: int = 0
    """Idle connections that made room for others."""
    broken: int = 0
    """Connections ended because the client broke the protocol."""
    malformed: int = 0
    """Requests that were reset because their headers break the protocol."""
    floods: int = 0
    """... of these, by too many control frames or resets."""
    silent: int = 0
    """Connections ended because a ping was not answered."""
    pings: int = 0
    handshake_failures: int = 0


class RpcStatistics(Struct, frozen=True):
    """A look inside, at this moment."""

    connections: int
    calls_running: int
    held_request_bytes: int
    draining: bool
    counts: CallCounts
