"""The bounds of the gRPC server, each with its unit in its name.

Defaults suit one engine with thousands of workers; tests make them small. Nothing here is read from settings: the
runtime builds one ``RpcLimits`` and hands it in.
"""

from __future__ import annotations

from msgspec import Struct


class RpcLimits(Struct, frozen=True, kw_only=True):
    """What one client, and all of them together, may make the server hold."""

    connections_per_address: int = 0
    """Of them from one address; one more is closed. 0: any."""
    unproved_per_address: int = 1_000
    """Of them those that made no call yet (with authentication: proved nothing); at the limit one makes room."""
    connections: int = 10_000
    """Open connections. At the limit one makes room that has proved nothing, else the longest idle one; when none is,
    newcomers wait to be accepted."""
    evict_after_idle_s: float = 30.0
    """Without a call for less than this is not idle: the next one may be on its way."""
    streams_per_connection: int = 1_000
    """Calls running at once on a connection; one more is refused (REFUSED_STREAM: the client may retry)."""
    message_bytes: int = 4 * 1024 * 1024
    """Largest request message (gRPC's own default). A larger one is INVALID_ARGUMENT, before it is read."""
    held_request_bytes: int = 256 * 1024 * 1024
    """Received and not yet taken by a handler, over all connections; beyond it, a call is RESOURCE_EXHAUSTED."""
    header_list_bytes: int = 16 * 1024
    """Decoded request headers; more ends the connection (HPACK state can't be skipped)."""
    stream_window_bytes: int = 1024 * 1024
    """What a client may send ahead of the handler on one stream."""
    connection_window_bytes: int = 8 * 1024 * 1024
    """What a client may send ahead of all handlers of one connection."""
    send_buffer_bytes: int = 256 * 1024
    """Written but not yet taken by the socket; beyond it, senders wait and nothing more is read."""
    status_message_bytes: int = 4 * 1024
    """Longest ``grpc-message``."""

    handshake_s: float = 10.0
    """From accept to the client's first SETTINGS, TLS included."""
    first_call_s: float = 60.0
    """From accept to the first call; then the client is told to go, and comes back when it has one."""
    request_s: float = 60.0
    """From the headers of a unary request to its whole message."""
    stalled_send_s: float = 120.0
    """How long a call may wait for a client that does not read its answers (RESOURCE_EXHAUSTED then)."""
    keepalive_idle_s: float = 60.0
    """Nothing received for this long: the server pings."""
    keepalive_timeout_s: float = 20.0
    """Nothing received for this long after the ping: the connection is dead."""
    keepalive_tick_s: float = 1.0
    """How often the server looks for connections that are silent."""
    linger_s: float = 1.0
    """How long a closing connection waits for the client to close its side (a close at once would be a reset)."""

    control_frames: int = 200
    """Pings, settings, priorities and empty frames a client may send in a burst, between two answers of ours."""
    control_frames_per_s: float = 10.0
    """How fast that allowance comes back on a connection that is sent nothing."""
    window_updates: int = 1_000
    """WINDOW_UPDATE frames in a burst; each answer, and each part of a long one, gives some back."""
    window_updates_per_s: float = 100.0
    """How fast that allowance comes back."""
    small_frames: int = 1_000
    """DATA frames in a burst that carry less than `small_frame_bytes` and no whole message."""
    small_frames_per_s: float = 100.0
    """How fast that allowance comes back."""
    small_frame_bytes: int = 64
    resets: int = 2_000
    """Streams a client may reset in a burst (CVE-2023-44487, rapid reset); each answered call gives one back."""
    resets_per_s: float = 100.0
    """How fast that allowance comes back."""

    expired_call_s: float = 3_600.0
    """How long a stream whose token has expired may still report what it holds."""
    drain_ping_s: float = 1.0
    """How long a drain waits for a client to have seen the first GOAWAY before it refuses new calls."""
    abort_s: float = 2.0
    """How long cancelled handlers get after the grace of a drain, before connections are cut."""
