"""A server in the engine's place that answers what a test says, one answer a request, and keeps what it was asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple

import msgspec

POLL: Final = "/v1/jobs/poll"


class Answer(NamedTuple):
    status: int
    body: bytes


class Asked(NamedTuple):
    at: float
    """Of time.monotonic(), when the request had come whole."""
    path: str
    token: str | None
    body: dict[str, object]


class FaultyEngine:
    """Answers polls and reports from a list for each; ``None`` ends the connection without a byte."""

    def __init__(self, polls: Iterable[Answer | None], reports: Iterable[Answer | None]) -> None:
        self.asked: list[Asked] = []
        self.done = threading.Event()
        """Set by the first poll that there is no answer for."""
        self.over = threading.Event()
        """Set when it is not served any more."""
        self._polls, self._reports = iter(polls), iter(reports)

    def answer(self, asked: Asked) -> Answer | None:
        """The next of its list. A poll that comes behind all of them is kept waiting, and gets no jobs."""
        self.asked.append(asked)
        if asked.path != POLL:
            return next(self._reports)
        for answer in self._polls:
            return answer
        self.done.set()
        self.over.wait(60)
        return Answer(200, b'{"jobs": []}')


@contextmanager
def serving(engine: FaultyEngine) -> Generator[str]:
    """Its URL, while it is served on a port of the loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])), type=dict[str, object])
            answer = engine.answer(Asked(time.monotonic(), self.path, self.headers["Authorization"], body))
            if answer is not None:
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the class above
            """Not to standard error."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            engine.over.set()
            server.shutdown()
            thread.join()
