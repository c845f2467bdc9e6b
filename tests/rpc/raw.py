"""A gRPC client of which every frame can be chosen, on any Trio stream."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    PingReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame, GoAwayFrame


class _ClientH2(H2Connection):
    """h2 takes a GOAWAY as the end; a gRPC client still wants the answers of its running calls."""

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        event = ConnectionTerminated()
        event.error_code, event.last_stream_id = frame.error_code, frame.last_stream_id
        event.additional_data = frame.additional_data
        return [], [event]


@dataclass
class Answer:
    """What came back on one stream."""

    headers: dict[str, str] = field(default_factory=dict)
    trailers: dict[str, str] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    reset: int | None = None
    done: trio.Event = field(default_factory=trio.Event)
    changes: trio.Event = field(default_factory=trio.Event)

    @property
    def status(self) -> int:
        """The grpc-status."""
        return int({**self.headers, **self.trailers}["grpc-status"])

    @property
    def reason(self) -> str:
        return {**self.headers, **self.trailers}.get("grpc-message", "")

    @property
    def messages(self) -> list[bytes]:
        found, data = [], bytes(self.data)
        while len(data) >= 5:
            size = int.from_bytes(data[1:5], "big")
            if len(data) < 5 + size:
                break
            found.append(data[5 : 5 + size])
            data = data[5 + size :]
        return found


def framed(message: bytes, *, compressed: int = 0) -> bytes:
    return bytes([compressed]) + len(message).to_bytes(4, "big") + message


class RawClient:
    def __init__(self, stream: trio.abc.Stream, *, window: int = 65_535, reads: bool = True) -> None:
        self.stream = stream
        self.h2 = _ClientH2(config=H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.local_settings = Settings(client=True, initial_values={SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.reads = reads
        """Whether windows are opened again for what came."""
        self.answers: dict[int, Answer] = {}
        self.goaways: list[ConnectionTerminated] = []
        self.pings = 0
        self.closed = trio.Event()
        self.changed = trio.Event()
        self.lock = trio.Lock()
        self.nursery: trio.Nursery | None = None
        """Of the tasks that read and send; none once the client has ended."""

    async def start(self) -> None:
        self.h2.initiate_connection()
        await self.flush()

    async def flush(self) -> None:
        """Send what h2 has to say. Cancelled, it is sent all the same: it may be other calls' frames as well."""
        await self._flush_soon().wait()

    def _flush_soon(self) -> trio.Event:
        sent = trio.Event()
        if self.nursery is None:
            sent.set()
        else:
            self.nursery.start_soon(self._send, sent)
        return sent

    async def _send(self, sent: trio.Event) -> None:
        try:
            async with self.lock:
                data = self.h2.data_to_send()
                if data:
                    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                        await self.stream.send_all(data)
        finally:
            sent.set()

    async def read_loop(self) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await self.stream.receive_some(65_536):
                for event in self.h2.receive_data(data):
                    self._on_event(event)
                self.changed.set()
                self.changed = trio.Event()
                self._flush_soon()
        await trio.aclose_forcefully(self.stream)
        self.closed.set()
        self.changed.set()
        for answer in self.answers.values():
            answer.done.set()
            answer.changes.set()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ConnectionTerminated):
            self.goaways.append(event)
        elif isinstance(event, PingReceived):
            self.pings += 1
        elif isinstance(event, PingAckReceived):
            pass
        answer = self.answers.get(getattr(event, "stream_id", None) or 0)
        if answer is None:
            return
        if isinstance(event, ResponseReceived):
            answer.headers.update(event.headers)
        elif isinstance(event, TrailersReceived):
            answer.trailers.update(event.headers)
        elif isinstance(event, DataReceived):
            answer.data += event.data
            if self.reads and event.flow_controlled_length:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamEnded):
            answer.done.set()
        elif isinstance(event, StreamReset):
            answer.reset = answer.reset if answer.done.is_set() else event.error_code
            answer.done.set()
        answer.changes.set()
        answer.changes = trio.Event()

    async def open(self, path: str, *, end: bool = False, body: bytes = b"", **headers: str) -> int:
        """With a ``body`` all of it in one send, as most clients do."""
        stream_id = self.h2.get_next_available_stream_id()
        self.answers[stream_id] = Answer()
        all_headers = {
            ":method": "POST", ":scheme": "http", ":path": path, ":authority": "test", "te": "trailers",
            "content-type": "application/grpc",
        }  # fmt: skip
        all_headers.update({name.replace("__", ":").replace("_", "-"): value for name, value in headers.items()})
        self.h2.send_headers(stream_id, list(all_headers.items()), end_stream=end)
        if body:
            self.h2.send_data(stream_id, body, end_stream=True)
        await self.flush()
        return stream_id

    async def send(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        """Send data as fast as the windows allow, until the connection ends."""
        while not self.closed.is_set():
            window = min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size)
            if window <= 0 and data:
                await self.changed.wait()
                continue
            part, data = data[:window], data[window:]
            self.h2.send_data(stream_id, part, end_stream=end and not data)
            await self.flush()
            if not data:
                return

    async def reset(self, stream_id: int, code: ErrorCodes = ErrorCodes.CANCEL) -> None:
        with contextlib.suppress(H2Error):
            self.h2.reset_stream(stream_id, code)
        await self.flush()

    async def finished(self, stream_id: int) -> Answer:
        await self.answers[stream_id].done.wait()
        return self.answers[stream_id]

    async def messages(self, stream_id: int, count: int) -> list[bytes]:
        answer = self.answers[stream_id]
        while len(answer.messages) < count and not answer.done.is_set():
            await answer.changes.wait()
        return answer.messages

    async def call(self, path: str, message: bytes = b"", **headers: str) -> Answer:
        """One unary call."""
        stream_id = await self.open(path, **headers)
        with contextlib.suppress(H2Error):
            await self.send(stream_id, framed(message), end=True)
        return await self.finished(stream_id)

    async def ping(self, data: bytes = b"12345678") -> None:
        self.h2.ping(data)
        await self.flush()


@contextlib.asynccontextmanager
async def client_on(stream: trio.abc.Stream, *, window: int = 65_535, reads: bool = True) -> AsyncIterator[RawClient]:
    """A client with its reading task; the stream is cut at the end."""
    client = RawClient(stream, window=window, reads=reads)
    try:
        async with trio.open_nursery() as client.nursery:
            await client.start()
            client.nursery.start_soon(client.read_loop)
            yield client
            client.nursery.cancel_scope.cancel()
    finally:
        client.nursery = None
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(stream)
