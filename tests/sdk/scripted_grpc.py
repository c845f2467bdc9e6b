"""A gRPC server that answers as a test scripts it: for what a healthy engine never does (drops, silence, odd frames).

Real sockets and threads of its own, h2 on the server's side; serves clients under asyncio and Trio alike.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, PingReceived, RequestReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame
from msgspec import Struct

from penstock.wire.codec import decode_message, encode_message

LAST_STREAM_ID = 2**31 - 1


class ScriptedCall:
    """One call as the server sees it. Scripts act on it in the connection's thread, once per event."""

    def __init__(self, connection: _Connection, stream_id: int, headers: dict[str, str]) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.headers = headers
        self.path = headers[":path"]
        self.inbox = bytearray()
        self.reset_with: int | None = None
        self.ended = False

    def messages(self, kind: type[Any]) -> list[Any]:
        """The messages that came since the last look."""
        found: list[Any] = []
        while len(self.inbox) >= 5 and len(self.inbox) >= 5 + int.from_bytes(self.inbox[1:5], "big"):
            size = int.from_bytes(self.inbox[1:5], "big")
            found.append(decode_message(bytes(self.inbox[5 : 5 + size]), kind))
            del self.inbox[: 5 + size]
        return found

    def send(self, *messages: Struct | bytes, compressed: bool = False) -> None:
        h2 = self.connection.h2
        with contextlib.suppress(KeyError):
            if not self.connection.opened[self.stream_id]:
                h2.send_headers(self.stream_id, [(":status", "200"), ("content-type", "application/grpc")])
                self.connection.opened[self.stream_id] = True
        for message in messages:
            body = message if isinstance(message, bytes) else encode_message(message)
            h2.send_data(self.stream_id, bytes([compressed]) + len(body).to_bytes(4, "big") + body)

    def end(self, status: int = 0, message: str = "", **trailers: str) -> None:
        found = [("grpc-status", str(status)), ("grpc-message", message)]
        found += [(name.replace("_", "-"), value) for name, value in trailers.items()]
        if not self.connection.opened[self.stream_id]:
            found = [(":status", "200"), ("content-type", "application/grpc"), *found]
        self.connection.h2.send_headers(self.stream_id, found, end_stream=True)

    def reset(self, code: ErrorCodes) -> None:
        self.connection.h2.reset_stream(self.stream_id, code)

    def goaway(self, last_stream_id: int) -> None:
        frame = GoAwayFrame(0)
        frame.last_stream_id = last_stream_id
        self.connection.raw(frame.serialize())

    def drop(self) -> None:
        self.connection.drop()


Script = Callable[[ScriptedCall], None]


def answer(*messages: Struct | bytes) -> Script:
    def act(call: ScriptedCall) -> None:
        if call.ended:
            call.send(*messages)
            call.end()

    return act


def refuse(status: int, message: str = "because", **trailers: str) -> Script:
    def act(call: ScriptedCall) -> None:
        if call.ended:
            call.end(status, message, **trailers)

    return act


def drop(call: ScriptedCall) -> None:
    call.drop()


def hang(_call: ScriptedCall) -> None:
    pass


class _Connection:
    def __init__(self, server: ScriptedGrpc, sock: socket.socket) -> None:
        self.server = server
        self.sock = sock
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.calls: dict[int, ScriptedCall] = {}
        self.scripts: dict[int, Script] = {}
        self.opened: dict[int, bool] = defaultdict(bool)
        self._lock = threading.RLock()

    def serve(self) -> None:
        try:
            with contextlib.suppress(OSError, ProtocolError):
                self._serve()
        finally:
            self.sock.close()

    def _serve(self) -> None:
        if self.server.tls is not None:
            self.sock = self.server.tls.wrap_socket(self.sock, server_side=True)
        limit = {SettingCodes.MAX_CONCURRENT_STREAMS: self.server.max_streams}
        self.h2.local_settings = Settings(client=False, initial_values=limit)
        self.h2.initiate_connection()
        if self.server.turns_away_with is not None:
            self.sock.sendall(self.server.turns_away_with)
            self.sock.shutdown(socket.SHUT_WR)
            self.sock.recv(65536)
            return
        self.flush()
        while data := self.sock.recv(65536):
            with self._lock:
                for event in self.h2.receive_data(data):
                    self._on_event(event)
                if self.server.silent:
                    self.h2.data_to_send()
                else:
                    self.flush()

    def _on_event(self, event: object) -> None:
        if isinstance(event, RequestReceived):
            headers = {str(name): str(value) for name, value in event.headers}
            call = self.calls[event.stream_id] = ScriptedCall(self, event.stream_id, headers)
            self.scripts[event.stream_id] = self.server.next_script(call)
        elif isinstance(event, DataReceived):
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self.calls[event.stream_id].inbox += event.data
        elif isinstance(event, StreamEnded):
            self.calls[event.stream_id].ended = True
        elif isinstance(event, StreamReset):
            self.calls[event.stream_id].reset_with = int(event.error_code)
            self.server.note()
            return
        elif isinstance(event, PingReceived):
            self.server.pings += 1
            self.server.note()
            return
        else:
            return
        call = self.calls[event.stream_id]
        with contextlib.suppress(ProtocolError):  # reset in the same bytes
            self.scripts[event.stream_id](call)
        self.server.note()

    def act(self, action: Callable[[], None]) -> None:
        """Do something outside of an event, e.g. push a message."""
        with self._lock, contextlib.suppress(ProtocolError):  # the client has gone
            action()
            self.flush()

    def raw(self, data: bytes) -> None:
        self.flush()
        self.sock.sendall(data)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.sendall(self.h2.data_to_send())

    def drop(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


class ScriptedGrpc:
    """``on(path, first, second, …)``: the scripts in turn, the last one for ever."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, max_streams: int = 100) -> None:
        self.tls = tls
        self.max_streams = max_streams
        self.calls: list[ScriptedCall] = []
        self.connections: list[_Connection] = []
        self.pings = 0
        self.turns_away_with: bytes | None = None
        """What connections are told before they are closed, in place of being served."""
        self.silent = False
        """Reads and answers nothing, not even pings."""
        self._scripts: dict[str, deque[Script]] = defaultdict(deque)
        self._changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        return f"grpc{'s' if self.tls else ''}://localhost:{self._listener.getsockname()[1]}"

    def __enter__(self) -> ScriptedGrpc:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self.connections:
            connection.drop()

    def on(self, path: str, *script: Script) -> None:
        self._scripts[path] = deque(script)

    def next_script(self, call: ScriptedCall) -> Script:
        with self._changed:
            self.calls.append(call)
            script = self._scripts.get(call.path)
            if not script:
                return refuse(12, f"no script for {call.path}")
            return script.popleft() if len(script) > 1 else script[0]

    def note(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def wait(self, condition: Callable[[], object], timeout_s: float = 10) -> None:
        """Wait (in a thread) until a condition holds, looked at after every event."""
        with self._changed:
            assert self._changed.wait_for(condition, timeout_s)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _address = self._listener.accept()
                connection = _Connection(self, sock)
                self.connections.append(connection)
                threading.Thread(target=connection.serve, daemon=True).start()
