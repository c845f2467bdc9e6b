"""`Http2` under h2spec: ``python -m tests.wire.h2spec H2SPEC [-S …]``, of the program that
``go install github.com/summerwind/h2spec/cmd/h2spec@latest`` makes. All its cases pass, and those of ``-S``.

Serves what h2spec asks for: five bytes behind each request, within its windows.
"""

from __future__ import annotations

import contextlib
import sys
from functools import partial

import trio

from penstock.rpc.headers import flaw_of
from penstock.wire.http2 import ConnectionSide, Http2, Http2Limits
from penstock.wire.http2_frames import (
    DEFAULT_WINDOW_BYTES,
    DataReceived,
    ErrorCodes,
    FrameEvent,
    ProtocolError,
    RequestReceived,
    StreamEnded,
    StreamReset,
)

STREAMS = 100
LIMITS = Http2Limits(
    stream_window_bytes=DEFAULT_WINDOW_BYTES, connection_window_bytes=DEFAULT_WINDOW_BYTES, header_list_bytes=16_384,
    streams=STREAMS,
)  # fmt: skip


class Answers:
    """What is to be sent on one connection."""

    def __init__(self) -> None:
        self.http2 = Http2(ConnectionSide.SERVER, LIMITS, flaw_of)
        self._open: dict[int, bytes] = {}

    def take(self, event: FrameEvent) -> None:
        if isinstance(event, RequestReceived):
            if event.request or len(self._open) >= STREAMS:
                code = ErrorCodes.PROTOCOL_ERROR if event.request else ErrorCodes.REFUSED_STREAM
                self.http2.reset_stream(event.stream_id, code)
            else:
                self._open[event.stream_id] = b""
        elif isinstance(event, StreamEnded):
            with contextlib.suppress(ProtocolError):  # refused
                self.http2.send_headers(event.stream_id, ((b":status", b"200"),))
                self._open[event.stream_id] = b"hello"
        elif isinstance(event, StreamReset):
            self._open.pop(event.stream_id, None)
        elif isinstance(event, DataReceived):
            self.http2.acknowledge(event.flow_controlled_length, event.stream_id)

    def go_on(self) -> bytes:
        for stream_id, data in list(self._open.items()):
            size = min(len(data), self.http2.send_window_bytes(stream_id)) if data else 0
            if size > 0:
                ended = size == len(data)
                self.http2.send_data(stream_id, data[:size], end_stream=ended)
                self._open[stream_id] = data[size:]
                if ended:
                    del self._open[stream_id]
        return self.http2.data_to_send()


async def serve(stream: trio.SocketStream) -> None:
    answers = Answers()
    with contextlib.suppress(trio.BrokenResourceError):
        await stream.send_all(answers.http2.data_to_send())
        while data := await stream.receive_some(32_768):
            try:
                for event in answers.http2.receive(data):
                    answers.take(event)
            except ProtocolError:
                await stream.send_all(answers.http2.data_to_send())
                await stream.send_eof()
                return
            await stream.send_all(answers.go_on())


async def main() -> int:
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        done = await trio.run_process([sys.argv[1], "-h", "127.0.0.1", "-p", str(port), *sys.argv[2:]], check=False)
        nursery.cancel_scope.cancel()
    return done.returncode


if __name__ == "__main__":
    sys.exit(trio.run(main))
