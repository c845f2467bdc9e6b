"""One HTTP/2 connection on Trio: bytes in, calls out, and back.

Two tasks: one reads and hands events out (all frames of one read without a switch), one writes what there is to say
(what several calls wrote meanwhile goes out in one send). The server pings for
all. Calls run as children of the connection, so that none outlives it.

Relies on `penstock.wire.http2` for the protocol and on ``server`` for what calls do. Whatever a client sends ends at
most this connection. Must not keep anything that grows with what a client sends beyond ``Limits``.
"""

from __future__ import annotations

import contextlib
import logging
import math
from typing import TYPE_CHECKING, Any, ClassVar

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from penstock.allowance import Allowance
from penstock.poller import PolledStream
from penstock.rpc.inbox import is_whole_message
from penstock.wire.http2 import Http2, Http2Limits, Role
from penstock.wire.http2_frames import (
    ConnectionTerminated,
    DataReceived,
    ErrorCodes,
    Event,
    PingAckReceived,
    PingReceived,
    PriorityUpdated,
    ProtocolError,
    RemoteSettingsChanged,
    RequestReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    UnknownFrameReceived,
    WindowUpdated,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.rpc.call import ServerCall
    from penstock.rpc.limits import Limits
    from penstock.rpc.request import Request
    from penstock.rpc.server import Server
    from penstock.wire.http2_frames import Headers

log = logging.getLogger(__name__)

# More makes a batch of frames block the loop for longer (3,500 pings fit in 32 KiB: about 60 ms), less costs reads.
_READ_BYTES = 32 * 1024
PING_IDLE, PING_DRAIN = b"penstock", b"drained?"
WINDOW_UPDATES_PER_ANSWER = 20
WINDOW_UPDATES_PER_PART = 4
"""Of a part of an answer, which is a frame: one for the stream and one for the connection, and as many to spare."""
_BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError)


class Connection:
    """A client's connection, from its first byte to its last."""

    def __init__(
        self, server: Server, stream: trio.abc.Stream, peer: object, certificate: tuple[str, ...] = ()
    ) -> None:
        self.certificate = certificate
        """Whom the client's TLS certificate names."""
        self.server = server
        self.limits = server.limits
        self.peer = peer
        self.calls: dict[int, ServerCall[Any, Any]] = {}
        self.h2 = open_http2(self.limits, server.read_request)
        self._stream = stream
        self._out = bytearray()
        self._receiving = False  # what is written then leaves at the end of it
        self._wake_writer = trio.lowlevel.ParkingLot()
        self._uncongested = trio.lowlevel.ParkingLot()
        self._windows: dict[int, trio.Event] = {}  # streams that wait for their window, or the connection's
        self._new_calls: list[ServerCall[Any, Any]] = []
        self._unopened = 0  # consumed bytes by which the connection's window was not opened again yet
        self._expires_at = trio.current_time() + self.limits.handshake_s
        self._greeted = False
        self._pinged_at: float | None = None  # while that ping is not answered
        self._drain_pinged = trio.Event()
        self._last_received = trio.current_time()
        self.idle_since = trio.current_time()
        """Since when no call runs; infinite while one does, and once it is told to go."""
        self._closing = False
        self._refusing = False
        self._draining = False
        self._client_leaves = False
        self._control = Allowance(self.limits.control_frames, self.limits.control_frames_per_s)
        self._window_updates = Allowance(self.limits.window_updates, self.limits.window_updates_per_s)
        self._small_frames = Allowance(self.limits.small_frames, self.limits.small_frames_per_s)
        self._resets = Allowance(self.limits.resets, self.limits.resets_per_s)
        self._nursery: trio.Nursery

    async def run(self) -> None:
        """Serve until the client leaves, breaks the protocol or is silent, or until a drain is done."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._write_loop)
                if self.server.is_draining:
                    self.begin_drain()
                try:
                    await self._read_loop()
                finally:
                    for call in list(self.calls.values()):
                        if call.on_cancel is not None:  # nobody else would
                            call.reset()
                self._lose()
        finally:
            for call in self.calls.values():
                call.closed = True

    # ---------------------------------------------------------------------------------- for calls

    @property
    def is_congested(self) -> bool:
        """More is written than the socket takes."""
        return len(self._out) >= self.limits.send_buffer_bytes

    @property
    def hung_up(self) -> bool:
        """The client has closed its side, as far as that is known before it is read."""
        return isinstance(self._stream, PolledStream) and self._stream.hung_up

    async def wait_uncongested(self) -> None:
        """Wait until most of what was written is sent."""
        if self.is_congested:
            await self._uncongested.park()

    async def wait_window(self, stream_id: int) -> None:
        """Wait until the client may have opened the window of a stream."""
        opened = self._windows.setdefault(stream_id, trio.Event())
        try:
            await opened.wait()
        finally:
            self._windows.pop(stream_id, None)

    def answered(self) -> None:
        """An answer was sent: what the client pings to measure the bandwidth of is no flood."""
        self._control.refill()
        self._window_updates.give(WINDOW_UPDATES_PER_ANSWER)

    def sent_part(self) -> None:
        """A part of a long answer was sent: the client may open its windows for it."""
        self._window_updates.give(WINDOW_UPDATES_PER_PART)

    def flush(self) -> None:
        """Hand what there is to say to the writer."""
        data = self.h2.data_to_send()
        if data:
            self._out += data
            if self._wake_writer and not self._receiving and not self.server.taskless.sends_later(self):
                self._wake_writer.unpark_all()

    def flush_now(self) -> None:
        """As `flush`, in this turn of the loop: of a stream, with whose messages no other's answers come along."""
        self._out += self.h2.data_to_send()
        self.send_now()

    def send_now(self) -> None:
        """Send what is written as far as the socket takes it at once; the writer sends the rest."""
        if not (self._out and self._wake_writer):
            return  # nothing is there, or the writer is at it
        if isinstance(self._stream, PolledStream) and not self._closing:
            with contextlib.suppress(trio.BrokenResourceError):  # the writer finds out
                del self._out[: self._stream.send_nowait(self._out)]
            self._uncongested.unpark_all()
        if self._out:
            self._wake_writer.unpark_all()

    def start_task(self, run: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run something as a part of the connection, in the context of the caller."""
        self._nursery.start_soon(run, *args)

    def consumed(self, flow_bytes: int) -> None:
        """A call has let go of received bytes: others may come. Told to the client in quarters of the window."""
        self._unopened += flow_bytes
        if self._unopened * 4 >= self.limits.connection_window_bytes and not self._closing:
            self.h2.open_window(self._unopened)
            self._unopened = 0
            self.flush()

    def open_window(self, stream_id: int, flow_bytes: int) -> None:
        """Let the client send so much more on a stream."""
        try:
            self.h2.open_window(flow_bytes, stream_id)
        except ProtocolError:
            return  # reset in the bytes that are being processed
        self.flush()

    def forget(self, call: ServerCall[Any, Any]) -> None:
        """The call's handler has ended."""
        if self.calls.pop(call.stream_id, None) is not None and not call.closed:
            self._resets.give()
        if not self.calls and not self._draining:
            self.idle_since = trio.current_time()
        self._close_if_done()

    # ---------------------------------------------------------------------------------- ends

    def begin_drain(self) -> None:
        """Tell the client that no new call is wanted, then refuse them, then close when the last has ended.

        Two GOAWAYs: with one, calls that the client sent before it saw it would be refused. The ping's answer shows
        that it saw the first.
        """
        if self._draining or self._closing:
            return
        self._draining = True
        self.idle_since = math.inf
        self.flush()
        self._out += self.h2.goaway(final=False)
        self.h2.ping(PING_DRAIN)
        self.flush()
        self._nursery.start_soon(self._refuse_new_calls)

    async def _refuse_new_calls(self) -> None:
        with trio.move_on_after(self.limits.drain_ping_s):
            await self._drain_pinged.wait()
        if self._closing:
            return
        self._refusing = True
        self.flush()
        self._out += self.h2.goaway(final=True)
        self._wake_writer.unpark_all()
        self._close_if_done()

    def end_calls(self, error: GRPCError) -> None:
        """Cancel every handler and answer with ``error``."""
        for call in list(self.calls.values()):
            call.end_as(error)

    def _close_if_done(self) -> None:
        if (self._refusing or self._client_leaves) and not self.calls:
            self._close()

    def _close(self) -> None:
        """Read nothing more, send what is written, then end."""
        self._closing = True
        for call in list(self.calls.values()):
            call.reset()
        self._wake_writer.unpark_all()

    def _lose(self) -> None:
        """The client is gone, or has to go."""
        self._closing = True
        self._nursery.cancel_scope.cancel()

    def _give_up_on(self, why: str) -> None:
        self.server.counts.broken += 1
        log.debug("connection of %s ended: %s", self.peer, why)
        self._close()

    def keep_alive(self, now: float) -> bool:
        """End it when nothing was heard for too long, ping when for long. Whether there was something to do."""
        if now < self._expires_at:
            return False
        limits, pinged_at = self.limits, self._pinged_at
        if not self._greeted:
            self._lose()
        elif pinged_at is not None and self._last_received < pinged_at:
            self.server.counts.silent += 1
            self._lose()
        elif now - self._last_received < limits.keepalive_idle_s:
            self._pinged_at, self._expires_at = None, self._last_received + limits.keepalive_idle_s
            return False
        else:
            self._pinged_at, self._expires_at = now, now + limits.keepalive_timeout_s
            self.server.counts.pings += 1
            if not self._closing:
                self.h2.ping(PING_IDLE)
                self.flush()
        return True

    # ---------------------------------------------------------------------------------- the tasks

    async def _read_loop(self) -> None:
        try:
            while True:
                await self.wait_uncongested()
                data = await self._stream.receive_some(_READ_BYTES)
                if not data:
                    return
                if self._closing:
                    continue  # until the client has read our last words and closes
                self._last_received = trio.current_time()
                self._receive(data)
        except _BROKEN:
            return

    async def _write_loop(self) -> None:
        self.flush()
        try:
            while not self._closing or self._out:
                if not self._out:
                    await self._wake_writer.park()
                    continue
                data, self._out = self._out, bytearray()
                self._uncongested.unpark_all()
                await self._stream.send_all(data)
            if isinstance(self._stream, trio.abc.HalfCloseableStream):
                await self._stream.send_eof()
            await trio.sleep(self.limits.linger_s)
        except _BROKEN:
            pass
        self._lose()

    # ---------------------------------------------------------------------------------- events

    def _receive(self, data: bytes | bytearray) -> None:
        try:
            events = self.h2.receive(data)
        except ProtocolError as error:
            self._give_up_on(str(error))
            self.flush()  # the GOAWAY
            return
        except Exception as error:  # a fault of ours: only this client's state is lost
            log.warning("HTTP/2 failed on the bytes of %s: %r", self.peer, error)
            self._give_up_on("HTTP/2 failed")
            return
        self._receiving = True
        try:
            self._handle_events(events)
        finally:
            self._receiving = False
        self.flush()
        self.send_now()

    def _handle_events(self, events: list[Event]) -> None:
        for event in events:
            handle = self._handlers.get(type(event))
            if handle is not None:
                handle(self, event)
            if self._closing:
                break
        for call in self._new_calls:
            if call.closed:  # reset in the same bytes: no task was made for it
                self.server.abandon(call)
                self.forget(call)
            else:
                self.server.begin(call)
        self._new_calls.clear()

    def _on_request(self, event: RequestReceived) -> None:
        if self._refusing or len(self.calls) >= self.limits.streams_per_connection:
            self.server.counts.refused += 1
            self._reset_stream(event.stream_id, ErrorCodes.REFUSED_STREAM)
            return
        request: Request = event.request
        if request.flaw is not None:
            log.debug("a request of %s is malformed: %s", self.peer, request.flaw)
            self.server.counts.malformed += 1
            self._reset_stream(event.stream_id, ErrorCodes.PROTOCOL_ERROR)
            self._spend(self._control, "malformed requests")
            return
        call = self.server.new_call(self, event.stream_id, request)
        if call is not None:
            self.calls[event.stream_id] = call
            self.idle_since = math.inf
            self._new_calls.append(call)

    def answer_at_once(self, stream_id: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Answer a request that gets no call with these headers only."""
        try:
            self.h2.send_headers(stream_id, headers, end_stream=True)
        except ProtocolError:
            return
        self._reset_stream(stream_id, ErrorCodes.NO_ERROR)

    def _reset_stream(self, stream_id: int, code: ErrorCodes) -> None:
        with contextlib.suppress(ProtocolError):  # it is closed already
            self.h2.reset_stream(stream_id, code)

    def _on_data(self, event: DataReceived) -> None:
        if len(event.data) < self.limits.small_frame_bytes and not event.stream_ended:
            self._count_small_frame(event.data)
        call = self.calls.get(event.stream_id)
        if call is None:
            self.consumed(event.flow_controlled_length)
        else:
            call.inbox.feed(event.data, event.flow_controlled_length)
            self._look_for_request(call)

    def _look_for_request(self, call: ServerCall[Any, Any]) -> None:
        """A call without a task begins with its whole request, or with what is wrong with it."""
        if call.on_cancel is not None and not call.begun and call.inbox.has_news():
            call.on_cancel = None
            self._new_calls.append(call)

    def _count_small_frame(self, data: bytes) -> None:
        if not data:
            self._spend(self._control, "empty frames")
        elif not is_whole_message(data):
            self._spend(self._small_frames, "small frames")

    def _on_stream_ended(self, event: StreamEnded) -> None:
        call = self.calls.get(event.stream_id)
        if call is not None:
            call.inbox.feed_eof()
            self._look_for_request(call)

    def _on_stream_reset(self, event: StreamReset) -> None:
        self._spend(self._resets, "reset streams")
        call = self.calls.get(event.stream_id)
        if call is not None:
            call.reset()

    def _on_window(self, event: WindowUpdated) -> None:
        self._spend(self._window_updates, "window updates")
        if not event.stream_id:
            self._wake_all_windows()
        elif event.stream_id in self._windows:
            self._windows[event.stream_id].set()

    def _wake_all_windows(self) -> None:
        for opened in self._windows.values():
            opened.set()

    def _on_settings(self, event: RemoteSettingsChanged) -> None:
        if not self._greeted:
            self._greeted = True
            self._expires_at = trio.current_time() + self.limits.keepalive_idle_s
        self._on_control(event)
        self._wake_all_windows()

    def _on_control(self, _event: Event) -> None:
        self._spend(self._control, "control frames")

    def _on_ping_ack(self, event: PingAckReceived) -> None:
        if event.ping_data == PING_DRAIN:
            self._drain_pinged.set()
        self._on_control(event)

    def _on_goaway(self, _event: ConnectionTerminated) -> None:
        self._client_leaves = True
        self._close_if_done()

    def _spend(self, allowance: Allowance, what: str) -> None:
        if allowance.take() or self._closing:
            return
        self.server.counts.floods += 1
        try:
            self.h2.close(ErrorCodes.ENHANCE_YOUR_CALM, f"too many {what}".encode())
        except ProtocolError:
            log.debug("no GOAWAY: the connection has ended")
        self._give_up_on(f"too many {what}")

    _handlers: ClassVar[dict[type[Event], Callable[[Connection, Any], None]]] = {
        RequestReceived: _on_request,
        DataReceived: _on_data,
        StreamEnded: _on_stream_ended,
        StreamReset: _on_stream_reset,
        WindowUpdated: _on_window,
        RemoteSettingsChanged: _on_settings,
        SettingsAcknowledged: _on_control,
        PingReceived: _on_control,
        PriorityUpdated: _on_control,
        UnknownFrameReceived: _on_control,
        PingAckReceived: _on_ping_ack,
        ConnectionTerminated: _on_goaway,
    }


def open_http2(limits: Limits, read_request: Callable[[Headers], Request]) -> Http2:
    """The server's side of a connection within the limits; its preface is ready to be sent."""
    return Http2(
        Role.SERVER,
        Http2Limits(
            stream_window_bytes=limits.stream_window_bytes,
            connection_window_bytes=limits.connection_window_bytes,
            header_list_bytes=limits.header_list_bytes,
            streams=limits.streams_per_connection,
        ),
        read_request,
    )


UNAVAILABLE_DRAINED = GRPCError(Status.UNAVAILABLE, "the server is shutting down")
