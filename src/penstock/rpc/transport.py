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
from typing import TYPE_CHECKING, Any, ClassVar, cast

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from penstock.loop.poller import PolledStream, has_input
from penstock.net.accept import Guest
from penstock.net.allowance import Allowance
from penstock.rpc.inbox import PREFIX_BYTES, is_whole_message
from penstock.rpc.sending import BROKEN, Sending, open_http2
from penstock.wire.http2_frames import (
    CallReceived,
    ConnectionTerminated,
    DataReceived,
    ErrorCodes,
    FrameEvent,
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
    from penstock.rpc.request import RpcRequest
    from penstock.rpc.server import GrpcServer

log = logging.getLogger(__name__)

# More makes a batch of frames block the loop for longer (3,500 pings fit in 32 KiB: about 60 ms), less costs reads.
_READ_BYTES = 32 * 1024
PING_IDLE, PING_DRAIN = b"penstock", b"drained?"
WINDOW_UPDATES_PER_ANSWER = 20
WINDOW_UPDATES_PER_PART = 4
"""Of a part of an answer, which is a frame: one for the stream and one for the connection, and as many to spare."""


class RpcConnection(Sending):
    """A client's connection, from its first byte to its last."""

    def __init__(
        self,
        server: GrpcServer,
        stream: trio.abc.Stream,
        peer: object,
        certificate: tuple[str, ...] = (),
        guest: Guest | None = None,
    ) -> None:
        """``guest``: of a connection that came through the door."""
        self.certificate = certificate
        """Whom the client's TLS certificate names."""
        http2 = open_http2(server.limits, server.read_request)
        super().__init__(http2, stream, server.limits, server.taskless.sends_later)
        self.server = server
        self.peer = peer
        self.calls: dict[int, ServerCall[Any, Any]] = {}
        self._windows: dict[int, trio.Event] = {}  # streams that wait for their window, or the connection's
        self._new_calls: list[ServerCall[Any, Any]] = []
        self._unopened = 0  # consumed bytes by which the connection's window was not opened again yet
        self._expires_at = trio.current_time() + self.limits.handshake_s
        self._greeted = False
        self._pinged_at: float | None = None  # while that ping is not answered
        self._drain_pinged = trio.Event()
        self.last_received = trio.current_time()
        """When bytes came last."""
        self.idle_since = trio.current_time()
        """Since when no call runs; infinite while one does, and once it is told to go."""
        self._refusing = False
        self._draining = False
        self._client_leaves = False
        self._control = Allowance(self.limits.control_frames, self.limits.control_frames_per_s)
        self._window_updates = Allowance(self.limits.window_updates, self.limits.window_updates_per_s)
        self._small_frames = Allowance(self.limits.small_frames, self.limits.small_frames_per_s)
        self._resets = Allowance(self.limits.resets, self.limits.resets_per_s)
        self.unpaid_answers = 0
        """Answers that were not yet added to what the client may do for them, nor calls that have ended."""
        self._unpaid_calls = 0
        self._asked = False  # it has made a call
        self._opened_at = trio.current_time()
        self._guest = guest
        self._nursery: trio.Nursery

    async def run(self) -> None:
        """Serve until the client leaves, breaks the protocol or is silent, or until a drain is done."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._write)
                if self._guest is not None:
                    self._guest.end = self._end_for_another
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

    def _end_for_another(self) -> bool:
        """End it for another's sake, unless it has a call or has sent what was not read."""
        stream = self._stream
        if isinstance(stream, trio.SSLStream):
            stream = cast("trio.SSLStream[trio.abc.Stream]", stream).transport_stream
        if self.calls or (isinstance(stream, trio.SocketStream | PolledStream) and has_input(stream.socket)):
            return False
        self._lose()
        return True

    # ---------------------------------------------------------------------------------- for calls

    def on_proved(self) -> None:
        """It is known who calls."""
        if self._guest is not None:
            self._guest.prove()

    @property
    def hung_up(self) -> bool:
        """The client has closed its side, as far as that is known before it is read."""
        return self._polled is not None and self._polled.hung_up

    async def wait_window(self, stream_id: int) -> None:
        """Wait until the client may have opened the window of a stream."""
        opened = self._windows.setdefault(stream_id, trio.Event())
        try:
            await opened.wait()
        finally:
            self._windows.pop(stream_id, None)

    def _pay_answers(self) -> None:
        """Answers were sent: what the client pings to measure the bandwidth of is no flood."""
        if self.unpaid_answers:
            self._control.refill()
            self._window_updates.give(WINDOW_UPDATES_PER_ANSWER * self.unpaid_answers)
            self.unpaid_answers = 0
        if self._unpaid_calls:
            self._resets.give(self._unpaid_calls)
            self._unpaid_calls = 0

    def sent_part(self) -> None:
        """A part of a long answer was sent: the client may open its windows for it."""
        self._window_updates.give(WINDOW_UPDATES_PER_PART)

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
            self._unpaid_calls += 1
        if not self.calls:
            if not self._draining:
                self.idle_since = self.server.now()
            if self._refusing or self._client_leaves:
                self._close()

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
        if (
            self._guest is not None
            and not (self._asked or self._draining)
            and now >= self._opened_at + self.limits.first_call_s
        ):
            self.begin_drain()
            return True
        if now < self._expires_at:
            return False
        limits, pinged_at = self.limits, self._pinged_at
        if not self._greeted:
            self._lose()
        elif pinged_at is not None and self.last_received < pinged_at:
            self.server.counts.silent += 1
            self._lose()
        elif now - self.last_received < limits.keepalive_idle_s:
            self._pinged_at, self._expires_at = None, self.last_received + limits.keepalive_idle_s
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
            going = True
            while going:
                await self.wait_uncongested()
                if self._polled is not None:
                    going = await self._polled.hand_out(self._take, _READ_BYTES)
                else:
                    data = await self._stream.receive_some(_READ_BYTES)
                    going = data != b""
                    self._take(data)
        except BROKEN:
            return

    def _take(self, data: bytes | bytearray) -> bool:
        """Deal with what has come; whether more may come at once. Nothing counts any more once it is closing: it ends
        when the client has read our last words and closes."""
        if data and not self._closing:
            self.last_received = self.server.now()
            self._receive(data)
        return not self.is_congested

    async def _write(self) -> None:
        await self.write_loop()
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
        self.send_now()

    def _handle_events(self, events: list[FrameEvent]) -> None:
        for event in events:
            handle = self._handlers.get(type(event))
            if handle is not None:
                handle(self, event)
            if self._closing:
                break
        if self._new_calls and not self._asked:
            self._asked = True
            if self._guest is not None:
                self._guest.ask()
        for call in self._new_calls:
            if call.closed:  # reset in the same bytes: it was not begun
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
        request: RpcRequest = event.request
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

    def _on_call(self, event: CallReceived) -> None:
        """A whole request. One that is not just a message for a method without a task goes the way of all others."""
        id, request, data = event.stream_id, event.request, event.data
        method, size, limits = request.short, len(data), self.limits
        if (
            method is None
            or self._refusing
            or len(self.calls) >= limits.streams_per_connection
            or not PREFIX_BYTES <= size <= limits.message_bytes + PREFIX_BYTES
            or int.from_bytes(data[:PREFIX_BYTES], "big") != size - PREFIX_BYTES
            or self.server.holds_too_much()
        ):
            self._on_request(RequestReceived(id, event.headers, request))
            self._on_data(DataReceived(id, data, size, True))
            self._on_stream_ended(StreamEnded(id))
            return
        call = self.server.open_call(self, id, request, method, data[PREFIX_BYTES:])
        self.calls[id] = call
        self.idle_since = math.inf
        self._new_calls.append(call)
        self._unopened += size
        if self._unopened * 4 >= limits.connection_window_bytes:
            self.consumed(0)

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
        if call is None or call.came_whole:  # ended, or reset by these very bytes
            self.consumed(event.flow_controlled_length)
        else:
            call.inbox.feed(event.data, event.flow_controlled_length)
            self._check_request(call)

    def _check_request(self, call: ServerCall[Any, Any]) -> None:
        """A call without a task begins with its whole request, or with what is wrong with it."""
        if call.on_cancel is not None and not call.begun and call.has_more:
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
            self._check_request(call)

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

    def _on_control(self, _event: FrameEvent) -> None:
        self._spend(self._control, "control frames")

    def _on_ping_ack(self, event: PingAckReceived) -> None:
        if event.ping_data == PING_DRAIN:
            self._drain_pinged.set()
        self._on_control(event)

    def _on_goaway(self, _event: ConnectionTerminated) -> None:
        self._client_leaves = True
        self._close_if_done()

    def _spend(self, allowance: Allowance, what: str) -> None:
        self._pay_answers()
        if allowance.take() or self._closing:
            return
        self.server.counts.floods += 1
        try:
            self.h2.close(ErrorCodes.ENHANCE_YOUR_CALM, f"too many {what}".encode())
        except ProtocolError:
            log.debug("no GOAWAY: the connection has ended")
        self._give_up_on(f"too many {what}")

    _handlers: ClassVar[dict[type[FrameEvent], Callable[[RpcConnection, Any], None]]] = {
        CallReceived: _on_call,
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


UNAVAILABLE_DRAINED = GRPCError(Status.UNAVAILABLE, "the server is shutting down")
