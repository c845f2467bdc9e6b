"""One HTTP/2 connection, shared by concurrent calls, without a task of its own.

Whoever waits reads: one of the waiting calls takes in bytes for all of them, and hands that office on when it has what
it waited for. So a connection needs no task group, works under asyncio and Trio wherever a client is made, and nothing
runs when nobody waits. Silence is noticed by whoever reads: after ``keepalive_idle_s`` it pings, without an answer
within ``keepalive_timeout_s`` the connection is dead.

Sending is shielded from cancellation, for at most ``stalled_send_s``: half a frame would be the end of the connection.
Must not reconnect: that is `channel.py`'s part.
"""

from __future__ import annotations

import select
from collections.abc import Callable

import anyio
import anyio.lowlevel
import msgspec
from anyio.abc import ByteStream, SocketAttribute

from penstock.client.errors import ClientError, ConnectionFailed, Unavailable
from penstock.client.grpc.call import GrpcCall
from penstock.wire.http2 import ConnectionSide, Http2, Http2Limits
from penstock.wire.http2_frames import (
    ConnectionTerminated,
    DataReceived,
    ErrorCodes,
    FrameEvent,
    ProtocolError,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)

READ_BYTES = 64 * 1024
# A send of at most this fits the sockets' buffers; during larger ones somebody has to read, or both sides wait.
SMALL_SEND_BYTES = 32 * 1024
CATCH_UP_S = 0.1
STREAM_WINDOW_BYTES = 1024 * 1024
"""What an engine may send ahead of the reader of one call."""
CONNECTION_WINDOW_BYTES = 8 * 1024 * 1024
"""What it may send ahead of all of them."""
_HTTP2_LIMITS = Http2Limits(stream_window_bytes=STREAM_WINDOW_BYTES, connection_window_bytes=CONNECTION_WINDOW_BYTES)
_NO_GREETING = " before it spoke HTTP/2: does this port speak gRPC, and without TLS if the URL says grpc://?"


class GrpcLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a connection. Times are in seconds."""

    max_message_bytes: int = 16 * 1024 * 1024
    """Largest answer that is taken; a larger one fails its call."""
    connect_timeout_s: float = 5.0
    """From the look-up of the name to the engine's first HTTP/2 frame."""
    keepalive_idle_s: float = 20.0
    """Nothing received for this long while a call waits: ping."""
    keepalive_timeout_s: float = 10.0
    """Still nothing for this long after the ping: the connection is dead."""
    stalled_send_s: float = 5.0
    """A send that the engine does not take for this long: the connection is dead."""


class Connection:
    """A connection that is open. ``stream`` is closed by ``aclose``, or when the connection dies."""

    def __init__(self, stream: ByteStream, limits: GrpcLimits, where: str) -> None:
        self._where = where
        self.limits = limits
        self.h2 = Http2(ConnectionSide.CLIENT, _HTTP2_LIMITS)
        self.leaving = False
        """The engine takes no new calls on it."""
        self.dead: ConnectionFailed | None = None
        self._stream = stream
        self._calls: dict[int, GrpcCall] = {}
        self._waiting: dict[anyio.Event, GrpcCall | None] = {}
        self._reading = False
        self._sending = False
        self._pinged = False
        self._check_at = 0.0
        self._greeted = False

    @property
    def usable(self) -> bool:
        """Return whether a new call may be opened."""
        return self.dead is None and not self.leaving and self.h2.has_stream_ids

    @property
    def is_busy(self) -> bool:
        """Return whether calls run on it."""
        return self.dead is None and bool(self._calls)

    async def greet(self) -> None:
        """Send the preface and wait for the engine's; till then it is just a socket that somebody has accepted.

        Raises:
            ConnectionFailed: the peer closed, or speaks something else. The socket is closed then.
        """
        try:
            await self.flush()
            await self.wait_until(lambda: self._greeted or self.dead is not None)
            if self.dead is not None:
                hint = "" if self._greeted else _NO_GREETING
                raise ConnectionFailed(self.dead.reason + hint, maybe_applied=False)
        except BaseException:
            await anyio.aclose_forcefully(self._stream)
            raise

    async def open_call(self, headers: list[tuple[bytes, bytes]]) -> GrpcCall:
        """Open a call, once the engine allows one more at the same time.

        Raises:
            ConnectionFailed: the connection can't be used any more; nothing was sent.
        """
        await self._catch_up()
        await self.wait_until(lambda: not self.usable or self._may_open())
        if not self.usable:
            raise ConnectionFailed("the connection was closed", maybe_applied=False)
        stream_id = self.h2.next_stream_id()
        self.h2.send_headers(stream_id, headers)
        call = self._calls[stream_id] = GrpcCall(self, stream_id, self.limits.max_message_bytes)
        return call

    def forget(self, call: GrpcCall) -> None:
        """The call's owner has done with it."""
        self._calls.pop(call.stream_id, None)
        self._wake(None)

    def _may_open(self) -> bool:
        return self.h2.may_open_stream

    async def _catch_up(self) -> None:
        """Read what came while nobody waited, so that a connection that was closed meanwhile is not used."""
        if self._reading or self.dead is not None or not self._is_readable():
            return
        try:
            with anyio.move_on_after(CATCH_UP_S):
                await self._read()
        finally:
            self._hand_on()

    def _is_readable(self) -> bool:
        number = self._stream.extra(SocketAttribute.raw_socket).fileno()  # noqa: S610 - no Django
        if number < 0 or not hasattr(select, "poll"):
            return False
        poll = select.poll()
        poll.register(number, select.POLLIN)
        return bool(poll.poll(0))

    # -- waiting

    async def wait_until(self, ready: Callable[[], bool], call: GrpcCall | None = None) -> None:
        """Wait until ``ready()``, reading for everybody while nobody else does. Always a checkpoint.

        ``ready`` must be true when the connection is dead. It is looked at when there is news of ``call``, and with
        None when a call ends or the connection itself changes.
        """
        await anyio.lowlevel.checkpoint()
        try:
            while not ready():
                if self._reading:
                    woken = anyio.Event()
                    self._waiting[woken] = call
                    try:
                        await woken.wait()
                    finally:
                        del self._waiting[woken]
                else:
                    await self._read()
        finally:
            self._hand_on()

    def _hand_on(self) -> None:
        """Whoever has read and leaves: one of those who wait has to read now."""
        if not self._reading and self._waiting:
            next(iter(self._waiting)).set()

    def _wake(self, call: GrpcCall | None) -> None:
        for woken, waits_for in self._waiting.items():
            if call is None or waits_for is call:
                woken.set()

    async def _read(self) -> None:
        """Take in what comes next. Cancel-safe: bytes are taken in whole or not at all."""
        self._reading = True
        try:
            data = await self._receive()
            if data is not None:
                self._take_in(data)
            await self.flush()
        finally:
            self._reading = False

    async def _receive(self) -> bytes | None:
        """Return the next bytes; None when there were none in time (a ping is due then) or the connection has died."""
        now = anyio.current_time()
        if not self._pinged and self._check_at < now:  # nobody has read for a while: the time begins now
            self._check_at = now + self.limits.keepalive_idle_s
        try:
            with anyio.move_on_at(self._check_at):
                data = await self._stream.receive(READ_BYTES)
                self._pinged = False
                self._check_at = anyio.current_time() + self.limits.keepalive_idle_s
                return data
        except anyio.EndOfStream:
            self.die(f"the engine at {self._where} closed the connection")
            return None
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            self.die(f"the connection to {self._where} broke: {error}".rstrip(": "))
            return None
        if self._pinged:
            self.die(f"the engine at {self._where} is silent: it answers no ping")
        else:
            self._pinged = True
            self._check_at = anyio.current_time() + self.limits.keepalive_timeout_s
            self.h2.ping(b"penstock")
        return None

    # -- sending

    async def flush(self) -> None:
        """Send what h2 has to say. Returns at once while another task sends: it goes on until nothing is left."""
        if self._sending:
            return
        self._sending = True
        try:
            while self.dead is None and (data := self.h2.data_to_send()):
                await self._send(data)
        finally:
            self._sending = False
        if self.dead is not None:
            await anyio.aclose_forcefully(self._stream)

    async def _send(self, data: bytes) -> None:
        scope = anyio.CancelScope(shield=True, deadline=anyio.current_time() + self.limits.stalled_send_s)
        with scope:
            if self._reading or len(data) <= SMALL_SEND_BYTES:
                await self._send_all(data)
            else:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._read_on)
                    await self._send_all(data)
                    tasks.cancel_scope.cancel()
        if scope.cancelled_caught:
            self.die("the engine has stopped reading from this connection")

    async def _send_all(self, data: bytes) -> None:
        try:
            await self._stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            self.die(f"the connection to {self._where} broke: {error}".rstrip(": "))

    async def _read_on(self) -> None:
        await self.wait_until(lambda: self.dead is not None)

    # -- events

    def _take_in(self, data: bytes) -> None:
        try:
            events = self.h2.receive(data)
        except ProtocolError as error:
            self.die(f"the engine broke the protocol: {error}")
            return
        for event in events:
            self._greeted = True
            self._on_event(event)

    def _on_event(self, event: FrameEvent) -> None:
        if isinstance(event, ConnectionTerminated):
            self._on_goaway(event)
            return
        stream_id: int | None = getattr(event, "stream_id", None)
        if not stream_id:  # settings, the connection's window, pings
            self._wake(None)
            return
        call = self._calls.get(stream_id)
        if isinstance(event, DataReceived):
            if call is None:  # given up: its bytes still count for the connection
                self.acknowledge(event.flow_controlled_length, stream_id)
            else:
                call.on_data(event.data, event.flow_controlled_length)
        elif call is None:
            return
        elif isinstance(event, ResponseReceived | TrailersReceived):
            call.on_headers(event.headers)
        elif isinstance(event, StreamEnded):
            call.on_end()
        elif isinstance(event, StreamReset):
            call.on_failure(_reset_error(event))
        elif not isinstance(event, WindowUpdated):
            return
        self._wake(call)
        if isinstance(event, StreamEnded | StreamReset):
            self._wake(None)  # there is room for another call

    def _on_goaway(self, event: ConnectionTerminated) -> None:
        self.leaving = True
        if event.error_code:
            text = (event.additional_data or b"").decode("utf-8", "replace")
            self.die(f"the engine ended the connection with error {event.error_code} {text}".rstrip())
            return
        for call in list(self._calls.values()):
            if call.stream_id > (event.last_stream_id or 0):
                call.on_failure(Unavailable("the engine is shutting down", maybe_applied=False))
        self._wake(None)

    def acknowledge(self, flow_bytes: int, stream_id: int) -> None:
        """Received bytes were let go of: the engine may send as many more."""
        if flow_bytes and self.dead is None:
            try:
                self.h2.acknowledge(flow_bytes, stream_id)
            except ProtocolError:  # the stream is closed, and the connection's window was opened all the same
                return

    # -- the end

    def die(self, reason: str) -> None:
        """Nothing can be sent or received any more. The socket is closed with the next flush."""
        if self.dead is None:
            self.dead = ConnectionFailed(reason)
            for call in self._calls.values():
                call.on_failure(ConnectionFailed(reason))
            self._wake(None)

    async def aclose(self) -> None:
        """Say good-bye and close. Calls in flight fail."""
        if self.dead is None:
            self.leaving = True  # for calls that begin while this is sent
            self.h2.close(ErrorCodes.NO_ERROR)
            await self.flush()
            self.die("the client was closed")
        await anyio.aclose_forcefully(self._stream)


def _reset_error(event: StreamReset) -> ClientError:
    if event.error_code == ErrorCodes.REFUSED_STREAM:
        return Unavailable("the engine refused the call", maybe_applied=False)
    return Unavailable(f"the engine reset the call (HTTP/2 error {event.error_code})")
