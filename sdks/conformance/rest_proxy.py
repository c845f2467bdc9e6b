"""Stands between a worker and an engine's REST port: records, breaks, and passes everything else on."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sdks.conformance.recorder import Fault, Message, Recorder

BATCH = {"complete": "results", "fail": "results", "heartbeat": "jobs", "release": "jobs"}
ROUTES = (
    (r"POST /v1/instances", "start"),
    (r"GET /v1/instances", "list"),
    (r"GET /v1/instances/[^/]+", "get"),
    (r"POST /v1/instances/[^/]+/signals/[^/]+", "signal"),
    (r"POST /v1/messages", "publish"),
    (r"POST /v1/instances/[^/]+/cancel", "cancel"),
    (r"POST /v1/instances/[^/]+/retry", "retry"),
)
HOP_BY_HOP = {"host", "connection", "upgrade", "http2-settings", "content-length", "transfer-encoding", "keep-alive"}


def messages_of(method: str, target: str, headers: Any, body: bytes) -> list[Message]:
    """What a request says, in the form of both wires."""
    path = target.partition("?")[0]
    given = json.loads(body) if body[:1] in (b"{", b"[") else {}
    if path == "/v1/jobs/poll":
        poll = {"jobs": given.get("maxJobs"), "jobTypes": given.get("jobTypes"), "token": headers.get("Authorization")}
        return [{"kind": "ask"}, {"kind": "poll", "workerId": given.get("workerId"), **poll}]
    if (found := re.fullmatch(r"/v1/jobs/([^/]+)/(complete|fail|heartbeat|release|park)", path)) is not None:
        return [_item(found[2], {**given, "jobId": found[1]})]
    if (found := re.fullmatch(r"/v1/jobs/(complete|fail|heartbeat|release)", path)) is not None:
        return [_item(found[1], item) for item in given[BATCH[found[1]]]]
    for pattern, kind in ROUTES:
        if re.fullmatch(pattern, f"{method} {path}"):
            return [{"kind": kind, "idempotencyKey": headers.get("Idempotency-Key"), "body": given}]
    return [{"kind": path}]


def _item(kind: str, given: dict[str, Any]) -> Message:
    return {"kind": kind, **given}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Broken connections are what this is for."""


@contextlib.contextmanager
def serving(recorder: Recorder, engine_port: Callable[[], int]) -> Generator[int]:
    """The port of a proxy for the engine's REST port, until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            _Exchange(self, recorder, engine_port()).run()

        do_GET = do_PUT = do_DELETE = do_POST  # noqa: N815 - BaseHTTPRequestHandler's names

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as in its base
            pass

        def handle_one_request(self) -> None:
            if recorder.down:
                recorder.record([{"kind": "refused"}])
                self.close_connection = True
                return
            with contextlib.suppress(OSError):
                super().handle_one_request()

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        recorder.down = True
        recorder.cut_all()
        server.shutdown()
        server.server_close()


class _Exchange:
    """One request and its answer."""

    def __init__(self, handler: BaseHTTPRequestHandler, recorder: Recorder, port: int) -> None:
        self._handler = handler
        self._recorder = recorder
        self._port = port

    def run(self) -> None:
        handler = self._handler
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        fault = self._recorder.record(messages_of(handler.command, handler.path, handler.headers, body))
        if self._recorder.down:
            return self._break()
        if fault is not None:
            if fault.do == "delay":
                time.sleep(fault.seconds)
            if fault.do == "lose-request":
                return self._break()
            if fault.do == "status":
                return self._refuse(fault)
            if fault.do == "answer":
                return self._answer(fault.status, {"Content-Type": "application/json"}, json.dumps(fault.body).encode())
            if fault.do == "twice":
                self._forward(body)
        answer = self._forward(body)
        if answer is None or (fault is not None and fault.do == "lose-answer"):
            return self._break()
        if fault is not None and fault.do == "garbage":
            return self._answer(200, {"Content-Type": "text/html"}, b"<html>not what you asked for")
        if fault is not None and fault.do in ("truncate", "stall"):
            return self._half_of(answer, fault.seconds)
        status, headers, text = answer
        if (found := self._jobs_fault(status, text)) is not None and found.do == "lose-answer":
            return self._break()
        return self._answer(status, headers, text)

    def _jobs_fault(self, status: int, text: bytes) -> Fault | None:
        if self._handler.path != "/v1/jobs/poll" or status != 200:
            return None
        jobs = json.loads(text)["jobs"]
        return self._recorder.record({"kind": "jobs", "jobId": job["id"], "attempt": job["attempt"]} for job in jobs)

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes] | None:
        """The engine's answer; None when there is none, or nobody waits for it any more."""
        handler = self._handler
        upstream = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in HOP_BY_HOP}
        try:
            upstream.request(handler.command, handler.path, body or None, headers)
            broken = threading.Event()
            self._recorder.cut.append(broken.set)
            while not select.select([upstream.sock], [], [], 0.02)[0]:
                if broken.is_set() or self._is_gone():
                    return None
            answer = upstream.getresponse()
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
            return answer.status, kept, answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            upstream.close()

    def _is_gone(self) -> bool:
        client = self._handler.connection
        if not select.select([client], [], [], 0)[0]:
            return False
        try:
            return client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except OSError:
            return True

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        handler = self._handler
        handler.send_response_only(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        if status != 204:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if status != 204:
            handler.wfile.write(body)

    def _half_of(self, answer: tuple[int, dict[str, str], bytes], seconds: float) -> None:
        """Send the head and half of the body, nothing for so long, and break the connection."""
        handler, (status, headers, body) = self._handler, answer
        handler.send_response_only(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body[: len(body) // 2])
        handler.wfile.flush()
        select.select([handler.connection], [], [], seconds)  # until then, or until the worker goes away
        self._break()

    def _refuse(self, fault: Fault) -> None:
        names = {401: "unauthenticated", 429: "resource-exhausted", 500: "internal-error", 503: "unavailable"}
        reported = {
            "error": names.get(fault.status, "bad-request"),
            "reason": "a fault of the test",
            "message": "the same",
        }
        headers = {"Content-Type": "application/json"} | fault.headers
        self._answer(fault.status, headers, json.dumps(reported).encode())

    def _break(self) -> None:
        self._handler.close_connection = True
        with contextlib.suppress(OSError):
            self._handler.connection.shutdown(socket.SHUT_RDWR)
