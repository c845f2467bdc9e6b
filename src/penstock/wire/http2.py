"""HTTP/2 without I/O, for both sides of gRPC: bytes in, events out, and what is to be sent.

``Http2`` is one connection in a role. Neither server nor client imports a frame layer: they know the events, the error
and the methods that stand here, so that another one can take h2's place. Validation of headers is left out: what is
read is checked where it is read (``rpc.headers``), and they stay bytes, as decoding all of them costs more than the two
or three that are looked at.

Relies on two private things of h2, each held by a test: ``H2Connection._receive_goaway_frame`` (whoever says GOAWAY
still gets the answers it waits for, and gives those it owes) and ``FrameBuffer._data`` (a frame too large is refused by
its head). Does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    PingReceived,
    PriorityUpdated,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    UnknownFrameReceived,
    WindowUpdated,
)
from h2.exceptions import FrameTooLargeError, H2Error
from h2.frame_buffer import FrameBuffer
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame, GoAwayFrame

__all__ = [
    "ConnectionTerminated",
    "DataReceived",
    "ErrorCodes",
    "Event",
    "Http2",
    "Http2Limits",
    "PingAckReceived",
    "PingReceived",
    "PriorityUpdated",
    "ProtocolError",
    "RemoteSettingsChanged",
    "RequestReceived",
    "ResponseReceived",
    "Role",
    "SettingsAcknowledged",
    "StreamEnded",
    "StreamReset",
    "TrailersReceived",
    "UnknownFrameReceived",
    "WindowUpdated",
]

DEFAULT_WINDOW_BYTES = 65_535
"""What either side may send before it hears of a larger window: HTTP/2's own."""
LAST_STREAM_ID = 2**31 - 1
HPACK_TABLE_BYTES = 4_096
"""A peer may offer a table of any size, and grpc-message texts would fill it."""
_FRAME_HEAD_BYTES = 9


class Role(Enum):
    """Which side of a connection this is."""

    CLIENT = "client"
    SERVER = "server"


class ProtocolError(Exception):
    """The peer broke the protocol, or what was asked for can't be done in this state of the connection or stream."""


class Http2Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the peer may send ahead; and of a server, how much of what."""

    stream_window_bytes: int
    connection_window_bytes: int
    header_list_bytes: int | None = None
    streams: int | None = None


class _FrameBuffer(FrameBuffer):
    """h2's, except that it does not first collect the 16 MiB that a frame's head may announce."""

    def __next__(self) -> Frame:
        if len(self._data) >= _FRAME_HEAD_BYTES and int.from_bytes(self._data[:3], "big") > self.max_frame_size:
            raise FrameTooLargeError(f"a frame of more than {self.max_frame_size} bytes")
        return super().__next__()


class _H2(H2Connection):
    """h2, except that the peer's GOAWAY closes nothing: it only says that no new call will come, or be taken.

    h2 takes it as the end of the connection and refuses to send; Java's ``channel.shutdown()`` says GOAWAY and then
    waits for the answers of its running calls, and a server that drains answers those it has.
    """

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        event = ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        event.additional_data = frame.additional_data or None
        return [], [event]


class Http2:
    """One side of a connection; its preface is ready to be sent. Methods raise ProtocolError, and nothing else but
    `receive`."""

    __slots__ = ("_h2", "role")

    def __init__(self, role: Role, limits: Http2Limits) -> None:
        self.role = role
        is_client = role is Role.CLIENT
        self._h2 = h2 = _H2(
            config=H2Configuration(
                client_side=is_client,
                header_encoding=None,
                validate_inbound_headers=False,
                validate_outbound_headers=False,
                normalize_inbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        settings: dict[SettingCodes, int] = {SettingCodes.INITIAL_WINDOW_SIZE: limits.stream_window_bytes}
        if is_client:
            settings[SettingCodes.ENABLE_PUSH] = 0
        if limits.streams is not None:
            settings[SettingCodes.MAX_CONCURRENT_STREAMS] = limits.streams
        if limits.header_list_bytes is not None:
            settings[SettingCodes.MAX_HEADER_LIST_SIZE] = limits.header_list_bytes
            h2.decoder.max_header_list_size = limits.header_list_bytes
        h2.incoming_buffer = _FrameBuffer(server=not is_client)
        h2.local_settings = Settings(client=is_client, initial_values=settings)
        h2.initiate_connection()
        if limits.connection_window_bytes > DEFAULT_WINDOW_BYTES:
            h2.increment_flow_control_window(limits.connection_window_bytes - DEFAULT_WINDOW_BYTES)
        if limits.streams is not None:
            # h2 ends the whole connection at a stream too many; a client that has not yet seen the setting does nothing
            # wrong. So h2 is told twice the number, and the transport refuses the single stream at the right one.
            h2.local_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 2 * limits.streams + 100
            h2.local_settings.acknowledge()

    # ---------------------------------------------------------------------------------- in

    def receive(self, data: bytes | bytearray) -> list[Event]:
        """What the bytes say. Raises ProtocolError, or whatever else the frame layer raises on hostile ones."""
        try:
            events = self._h2.receive_data(bytes(data))
        except H2Error as error:
            raise ProtocolError(str(error)) from error
        for event in events:
            if isinstance(event, RemoteSettingsChanged) and self._h2.encoder.header_table_size > HPACK_TABLE_BYTES:
                self._h2.encoder.header_table_size = HPACK_TABLE_BYTES
        return events

    def acknowledge(self, flow_bytes: int, stream_id: int) -> None:
        """Received bytes were let go of: the peer may send as many more, told when it is worth a frame."""
        try:
            self._h2.acknowledge_received_data(flow_bytes, stream_id)
        except H2Error as error:
            raise ProtocolError(str(error)) from error

    def open_window(self, flow_bytes: int, stream_id: int | None = None) -> None:
        """Let the peer send so much more on a stream, or on the connection."""
        try:
            self._h2.increment_flow_control_window(flow_bytes, stream_id)
        except (H2Error, KeyError) as error:
            raise ProtocolError(f"the window can't be opened: {error}") from error

    @property
    def receive_window_bytes(self) -> int:
        """What the peer may send on the connection."""
        return self._h2.inbound_flow_control_window

    # ---------------------------------------------------------------------------------- out

    def data_to_send(self) -> bytes:
        """What is to be sent, each byte once."""
        return self._h2.data_to_send()

    def send_headers(self, stream_id: int, headers: Iterable[tuple[bytes, bytes]], *, end_stream: bool = False) -> None:
        """Open a stream, answer it, or end it with trailers."""
        try:
            self._h2.send_headers(stream_id, headers, end_stream=end_stream)
        except H2Error as error:
            raise ProtocolError(str(error)) from error

    def send_data(self, stream_id: int, data: bytes, *, end_stream: bool = False) -> None:
        """A frame of at most `send_window_bytes` and `max_send_frame_bytes`."""
        try:
            self._h2.send_data(stream_id, data, end_stream=end_stream)
        except H2Error as error:
            raise ProtocolError(str(error)) from error

    def send_window_bytes(self, stream_id: int) -> int:
        """What may be sent on a stream now."""
        try:
            return self._h2.local_flow_control_window(stream_id)
        except (H2Error, KeyError) as error:
            raise ProtocolError(f"the stream is closed: {error}") from error

    @property
    def max_send_frame_bytes(self) -> int:
        """The largest frame that the peer takes."""
        return self._h2.max_outbound_frame_size

    def reset_stream(self, stream_id: int, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """End a stream, both ways."""
        try:
            self._h2.reset_stream(stream_id, code)
        except H2Error as error:
            raise ProtocolError(str(error)) from error

    def ping(self, data: bytes) -> None:
        """Eight bytes that come back."""
        try:
            self._h2.ping(data)
        except H2Error as error:
            raise ProtocolError(str(error)) from error

    # ---------------------------------------------------------------------------------- streams, and the end

    @property
    def has_stream_ids(self) -> bool:
        """Whether there are numbers left for new streams of ours."""
        return self._h2.highest_outbound_stream_id < LAST_STREAM_ID - 2

    @property
    def may_open_stream(self) -> bool:
        """Whether the peer takes one more stream at the same time."""
        return self._h2.open_outbound_streams < self._h2.remote_settings.max_concurrent_streams

    def next_stream_id(self) -> int:
        """The number of the next stream of ours."""
        try:
            return self._h2.get_next_available_stream_id()
        except H2Error as error:
            raise ProtocolError(str(error)) from error

    def goaway(self, *, final: bool) -> bytes:
        """The frame that says "no new streams": with ``final`` from now on, else "soon".

        Not `close`: that would forbid the answers that are still due.
        """
        frame = GoAwayFrame(0)
        frame.last_stream_id = self._h2.highest_inbound_stream_id if final else LAST_STREAM_ID
        frame.error_code = ErrorCodes.NO_ERROR
        return frame.serialize()

    def close(self, code: ErrorCodes, reason: bytes | None = None) -> None:
        """Say good-bye: nothing can be sent afterwards but what `data_to_send` has."""
        try:
            self._h2.close_connection(code, reason)
        except H2Error as error:
            raise ProtocolError(str(error)) from error

    def dispose(self) -> None:
        """Nothing is called any more: what h2 has made goes at once, though its table of its own methods makes it a
        cycle, of 90 objects that a collection of all garbage would have to find."""
        vars(self._h2).clear()
