"""A server that answers as a test scripts it: for what a healthy engine never does (drops, hangs, odd answers).

Real sockets in threads of its own, so that it serves clients under asyncio and Trio alike.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Request(NamedTuple):
    method: str
    path: str
    query: str
    headers: dict[str, str]
    content: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.content)


class Answer(NamedTuple):
    status: int = 200
    body: object = None
    content_type: str = "application/json"
    headers: dict[str, str] | None = None


class Drop(NamedTuple):
    """Close the connection without an answer."""


class Cut(NamedTuple):
    """Begin an answer and close the connection in the middle of it."""


class Hang(NamedTuple):
    """Never answer; the connection stays open until the server ends."""


Action = Answer | Drop | Cut | Hang
Script = Action | Callable[[Request], Action]


def refused(status: int, code: str, reason: str = "because") -> Answer:
    return Answer(status, {"error": code, "reason": reason, "message": reason})


class ScriptedEngine:
    """``on(method, path, first, second, …)``: the answers in turn, the last one for ever."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._scripts: dict[tuple[str, str], deque[Script]] = defaultdict(deque)
        self._changed = threading.Condition()
        self._ended = threading.Event()
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                engine._serve(self)

            do_GET = do_POST = do_DELETE = _serve  # noqa: N815 - names of the standard library

            def log_message(self, *_args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_args: object) -> None:
                pass  # broken pipes of clients that went away

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> ScriptedEngine:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def on(self, method: str, path: str, *script: Script) -> None:
        self._scripts[method, path] = deque(script)

    def seen(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]

    def wait_seen(self, path: str, count: int = 1, timeout_s: float = 10) -> None:
        """Wait (in a thread) until that many requests came for the path."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.seen(path)) >= count, timeout_s), self.requests

    def hold(self, seconds: float) -> None:
        """For scripts: wait before the answer, as an engine holds a poll."""
        self._ended.wait(seconds)

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        content = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        request = Request(handler.command, parts.path, parts.query, dict(handler.headers.items()), content)
        with self._changed:
            self.requests.append(request)
            script = self._scripts.get((request.method, request.path))
            step: Script = refused(404, "not-found", f"no script for {request.method} {request.path}")
            if script:
                step = script.popleft() if len(script) > 1 else script[0]
            self._changed.notify_all()
        action = step(request) if callable(step) else step
        self._act(handler, action)

    def _act(self, handler: BaseHTTPRequestHandler, action: Action) -> None:
        if isinstance(action, Hang):
            self._ended.wait()
        if isinstance(action, Cut):
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        if isinstance(action, Answer):
            raw = action.body if isinstance(action.body, bytes) else json.dumps(action.body).encode()
            handler.send_response(action.status)
            if action.status != 204:
                handler.send_header("Content-Type", action.content_type)
                handler.send_header("Content-Length", str(len(raw)))
            for name, value in (action.headers or {}).items():
                handler.send_header(name, value)
            handler.end_headers()
            if action.status != 204:
                handler.wfile.write(raw)
            return
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)
