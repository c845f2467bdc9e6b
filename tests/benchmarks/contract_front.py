"""A real engine behind a front that knows the contract alone, and answers in chunks as others' servers do."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks.deployment import Deployment

ADDITIONS = ("/v1/instances/batch", "/v1/jobs/complete", "/v1/jobs/fail")


class Front(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    behind: tuple[str, int]
    polled: set[int]

    def setup(self) -> None:
        super().setup()
        self.engine = http.client.HTTPConnection(*self.behind, timeout=60)

    def finish(self) -> None:
        self.engine.close()
        super().finish()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path in ADDITIONS:
            self.answer(404, "text/plain", b"404 page not found\n")
            return
        if self.path == "/v1/jobs/poll":
            self.polled.add(json.loads(body)["maxJobs"])
        self.engine.request("POST", self.path, body, {"Content-Type": "application/json"})
        answer = self.engine.getresponse()
        self.answer(answer.status, "application/json", answer.read())

    def answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Type", content_type)
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if status != 204:
            parts = (body[:100], body[100:])
            self.wfile.write(b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base class
        """Says nothing."""


@contextmanager
def contract_front(engine: Deployment) -> Generator[tuple[str, set[int]]]:
    """Its URL, and how many jobs polls have asked for."""
    polled: set[int] = set()
    handler = type("Handler", (Front,), {"behind": (engine.host, engine.port), "polled": polled})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", polled
        finally:
            server.shutdown()
            thread.join()
