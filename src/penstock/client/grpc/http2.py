"""The HTTP/2 state machine (h2) as a gRPC client wants it: its windows, and a GOAWAY that lets calls finish.

Relies on one private thing of h2, held by a test: ``H2Connection._receive_goaway_frame``. Does no I/O.
"""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, Event
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame, GoAwayFrame

STREAM_WINDOW_BYTES = 1024 * 1024
"""What an engine may send ahead of the reader of one call."""
CONNECTION_WINDOW_BYTES = 8 * 1024 * 1024
"""What it may send ahead of all of them."""

_DEFAULT_WINDOW_BYTES = 65_535
# Headers stay bytes, and what is read is checked where it is read: as on the engine's side.
_CONFIG = H2Configuration(
    client_side=True,
    header_encoding=None,
    validate_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_inbound_headers=False,
    normalize_outbound_headers=False,
)


class ClientH2(H2Connection):
    """h2, except that the engine's GOAWAY closes nothing: calls that it still answers are read to their end."""

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        event = ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        event.additional_data = frame.additional_data or None
        return [], [event]


def open_h2() -> ClientH2:
    """A connection whose preface is ready to be sent."""
    h2 = ClientH2(config=_CONFIG)
    h2.local_settings = Settings(
        client=True,
        initial_values={
            SettingCodes.ENABLE_PUSH: 0,
            SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
        },
    )
    h2.initiate_connection()
    h2.increment_flow_control_window(CONNECTION_WINDOW_BYTES - _DEFAULT_WINDOW_BYTES)
    return h2
