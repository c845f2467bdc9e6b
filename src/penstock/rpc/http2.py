"""The HTTP/2 state machine (h2) as the gRPC server wants it: its settings, and a GOAWAY that lets calls finish.

Relies on two private things of h2, each held by a test: ``H2Connection._receive_goaway_frame`` (a client that says
GOAWAY still gets the answers it waits for) and ``FrameBuffer._data`` (a frame too large is refused by its head).
Does no I/O.
"""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, Event
from h2.exceptions import FrameTooLargeError
from h2.frame_buffer import FrameBuffer
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame, GoAwayFrame

from penstock.rpc.limits import Limits

# Headers stay bytes: decoding all of them costs more than the two or three that are looked at, and a byte outside
# ASCII would raise out of h2. Validation is left out as in grpclib: what is read is checked where it is read.
_CONFIG = H2Configuration(
    client_side=False,
    header_encoding=None,
    validate_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_inbound_headers=False,
    normalize_outbound_headers=False,
)
_DEFAULT_WINDOW_BYTES = 65_535
_FRAME_HEAD_BYTES = 9
_LAST_STREAM_ID = 2**31 - 1
# A client may offer a table of any size, and grpc-message texts would fill it.
HPACK_TABLE_BYTES = 4_096
PING_IDLE = b"penstock"
PING_DRAIN = b"drained?"


class _FrameBuffer(FrameBuffer):
    """h2's, except that it does not first collect the 16 MiB that a frame's head may announce."""

    def __next__(self) -> Frame:
        if len(self._data) >= _FRAME_HEAD_BYTES and int.from_bytes(self._data[:3], "big") > self.max_frame_size:
            raise FrameTooLargeError(f"a frame of more than {self.max_frame_size} bytes")
        return super().__next__()


class ServerH2(H2Connection):
    """h2, except that a client's GOAWAY closes nothing: it only says that no new call will come.

    h2 takes it as the end of the connection and refuses to send; Java's ``channel.shutdown()`` says GOAWAY and then
    waits for the answers of its running calls.
    """

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        event = ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        event.additional_data = frame.additional_data or None
        return [], [event]

    def goaway(self, *, final: bool) -> bytes:
        """The frame that says "no new calls": with ``final`` from now on, else "soon".

        Not ``close_connection()``: that would forbid the answers that are still due.
        """
        frame = GoAwayFrame(0)
        frame.last_stream_id = self.highest_inbound_stream_id if final else _LAST_STREAM_ID
        frame.error_code = ErrorCodes.NO_ERROR
        return frame.serialize()


def open_h2(limits: Limits) -> ServerH2:
    """A connection whose preface is ready to be sent."""
    h2 = ServerH2(config=_CONFIG)
    h2.incoming_buffer = _FrameBuffer(server=True)
    h2.local_settings = Settings(
        client=False,
        initial_values={
            SettingCodes.MAX_CONCURRENT_STREAMS: limits.streams_per_connection,
            SettingCodes.MAX_HEADER_LIST_SIZE: limits.header_list_bytes,
            SettingCodes.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
        },
    )
    h2.decoder.max_header_list_size = limits.header_list_bytes
    h2.initiate_connection()
    if limits.connection_window_bytes > _DEFAULT_WINDOW_BYTES:
        h2.increment_flow_control_window(limits.connection_window_bytes - _DEFAULT_WINDOW_BYTES)
    # h2 ends the whole connection at a stream too many; a client that has not yet seen the setting does nothing
    # wrong. So h2 is told twice the number, and the transport refuses the single stream at the right one.
    h2.local_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 2 * limits.streams_per_connection + 100
    h2.local_settings.acknowledge()
    return h2
