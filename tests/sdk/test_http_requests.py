"""The ready HTTP worker: what it sends, where it refuses to go, what becomes of answers."""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from penstock.client import SyncClient
from penstock.testing.postgres import PostgresServer
from penstock.worker import StepError
from penstock.worker.http_requests import AllowedPlace, HttpRequests, RequestSecret
from tests.sdk.running_engine import REPOSITORY, RunningEngine, running_engine

LOOPBACK = [ipaddress.ip_network("127.0.0.0/8")]
TLS = httpx.create_ssl_context()
"""Of no use here; to make one for each test would take 30 ms."""


class Site:
    """An HTTP server that answers as it is told and remembers what came."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.answer: tuple[int, dict[str, str], bytes] = (200, {"Content-Type": "application/json"}, b'{"id": 7}')
        self.silent = threading.Event()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                site.seen.append((self.command, self.path, headers, body))
                if self.path.endswith("/silent"):
                    site.silent.wait(30)
                status, fields, sent = site.answer
                self.send_response(status)
                for name, value in (fields | {"Content-Length": str(len(sent))}).items():
                    self.send_header(name, value)
                self.end_headers()
                with suppress(BrokenPipeError):
                    self.wfile.write(sent)

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return self.do_any
                raise AttributeError(name)

            def log_message(self, format: str, *_: Any) -> None: ...  # noqa: A002 - the name in the base class

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.silent.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


async def handle(site: Site, request: dict[str, Any], *, name: str = "http", **options: Any) -> dict[str, Any]:
    options = {"private": LOOPBACK, "tls": TLS} | options
    requests = HttpRequests([AllowedPlace.parse(site.url + "/api")], **options)
    context = SimpleNamespace(step_id="call", idempotency_key="1f-2")
    return await requests.handle({name: request}, cast(Any, context))


async def refusal(site: Site, request: dict[str, Any], **options: Any) -> StepError:
    with pytest.raises(StepError) as caught:
        await handle(site, request, **options)
    return caught.value


async def test_a_request_is_sent_as_said_and_its_answer_kept(site: Site) -> None:
    request = {
        "url": site.url + "/api/orders?x=1",
        "method": "POST",
        "headers": {"Authorization": "Bearer {{TOKEN}}", "X-A": "b"},
        "query": {"n": 2},
        "body": {"sum": 10},
    }
    found = await handle(site, request, secrets={"TOKEN": RequestSecret("s3cret")})
    ((method, path, headers, body),) = site.seen
    assert (method, path, json.loads(body)) == ("POST", "/api/orders?x=1&n=2", {"sum": 10})
    assert headers["host"] == site.url.removeprefix("http://")
    assert (headers["authorization"], headers["x-a"]) == ("Bearer s3cret", "b")
    assert (headers["content-type"], headers["idempotency-key"]) == ("application/json", "1f-2")
    answer = found["httpResponse"]
    assert (answer["status"], answer["body"], answer["headers"]["content-type"]) == (200, {"id": 7}, "application/json")


async def test_the_steps_own_variable_comes_first_and_names_the_answer(site: Site) -> None:
    assert set(await handle(site, {"url": site.url + "/api"}, name="call")) == {"callResponse"}
    assert set(await handle(site, {"url": site.url + "/api", "result": "order"}, name="call")) == {"order"}


@pytest.mark.parametrize(
    ("kind", "sent", "body"),
    [
        ("text/plain; charset=utf-8", "é".encode(), "é"),
        ("text/plain; charset=latin-1", b"\xe9", "é"),
        ("application/problem+json", b"[1]", [1]),
        ("application/json", b"", None),
        ("", b"x", "x"),
    ],
)
async def test_a_body_is_its_json_or_its_text(site: Site, kind: str, sent: bytes, body: object) -> None:
    site.answer = (200, {"Content-Type": kind}, sent)
    assert (await handle(site, {"url": site.url + "/api"}))["httpResponse"]["body"] == body


@pytest.mark.parametrize(
    ("status", "retryable"),
    [(400, False), (401, False), (404, False), (409, False), (429, True), (500, True), (503, True)],
)
async def test_a_status_of_failure_is_the_code_of_an_error(site: Site, status: int, retryable: bool) -> None:
    site.answer = (status, {"Content-Type": "application/json"}, b'{"why": "s3cret"}')
    error = await refusal(site, {"url": site.url + "/api"}, secrets={"TOKEN": RequestSecret("s3cret")})
    assert (error.code, error.retryable) == (f"HTTP_{status}", retryable)
    assert str(error) == f'{site.url}/api answered {status}: {{"why":"{{{{TOKEN}}}}"}}'
    assert json.loads(bytes(cast(Any, error.variables)))["httpResponse"]["status"] == status


async def test_a_redirect_is_an_answer_and_is_not_followed(site: Site) -> None:
    site.answer = (302, {"Location": "http://169.254.169.254/"}, b"")
    assert (await handle(site, {"url": site.url + "/api"}))["httpResponse"]["status"] == 302
    assert len(site.seen) == 1


@pytest.mark.parametrize(
    "url",
    [
        "{}/", "{}/other", "{}/apix", "{}/api/../other", "{}/api/%2e%2e/other", "{}/api/%252e%252e/x", "{}/api/..%5Cx",
        "http://localhost:1/api", "https://127.0.0.1/api", "http://127.0.0.1.example/api", "http://x@169.254.169.254/api",
        "file:///etc/passwd", "api", "",
    ],
)  # fmt: skip
async def test_what_is_not_below_an_allowed_address_is_refused(site: Site, url: str) -> None:
    error = await refusal(site, {"url": url.format(site.url)})
    assert (error.code, error.retryable, site.seen) == ("HTTP_NOT_ALLOWED", False, [])


async def test_a_private_address_is_refused_unless_its_network_is_given(site: Site) -> None:
    error = await refusal(site, {"url": site.url + "/api"}, private=[ipaddress.ip_network("10.0.0.0/8")])
    assert (error.code, site.seen) == ("HTTP_NOT_ALLOWED", [])
    assert "127.0.0.1, a private address" in str(error)


async def test_a_name_is_judged_by_what_it_resolves_to() -> None:
    requests = HttpRequests([AllowedPlace.parse("http://localhost:9")])
    context = SimpleNamespace(step_id="call", idempotency_key="k")
    with pytest.raises(StepError, match="a private address"):
        await requests.handle({"http": {"url": "http://localhost:9/"}}, cast(Any, context))


async def test_a_secret_goes_only_where_it_may(site: Site) -> None:
    secrets = {"TOKEN": RequestSecret("s3cret", AllowedPlace.parse("https://api.example"))}
    for header in ("{{TOKEN}}", "{{OTHER}}", "{{PATH}}"):
        error = await refusal(site, {"url": site.url + "/api", "headers": {"A": header}}, secrets=secrets)
        assert (error.code, site.seen) == ("HTTP_NOT_ALLOWED", [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"method": "BREW"}, "http: Invalid enum value 'BREW' - at `$.method`"),
        ({"retries": 3}, "http: Object contains unknown field `retries`"),
        ({"timeoutSeconds": 0}, "http.timeoutSeconds: over 0, at most 600"),
        ({"timeoutSeconds": 601}, "http.timeoutSeconds: over 0, at most 600"),
        ({"headers": {"Host": "x"}}, "headers: Host is not yours to set"),
        ({"headers": {"A": "b\r\nC: d"}}, "headers: 'A' holds what no header can"),
    ],
)
async def test_a_request_that_can_not_be_sent_names_its_field(site: Site, change: dict[str, Any], said: str) -> None:
    error = await refusal(site, {"url": site.url + "/api"} | change)
    assert (error.code, error.retryable, str(error), site.seen) == ("HTTP_INVALID", False, said, [])


async def test_answers_are_bounded_in_bytes_and_time(site: Site) -> None:
    site.answer = (200, {}, b"x" * 101)
    error = await refusal(site, {"url": site.url + "/api"}, answer_max_bytes=100)
    assert (error.code, error.retryable) == ("HTTP_TOO_LARGE", False)
    error = await refusal(site, {"url": site.url + "/api/silent", "timeoutSeconds": 0.05})
    assert (error.code, error.retryable) == ("HTTP_TIMEOUT", True)


async def test_nobody_there_is_tried_again() -> None:
    site = Site()
    site.close()
    error = await refusal(site, {"url": site.url + "/api"})
    assert (error.code, error.retryable) == ("HTTP_UNREACHABLE", True)


@pytest.mark.parametrize("sent", [b"\xff\xfe\x00", b"a\0b"])
async def test_a_body_that_no_variable_can_hold_fails_the_job(site: Site, sent: bytes) -> None:
    site.answer = (200, {"Content-Type": "application/octet-stream"}, sent)
    error = await refusal(site, {"url": site.url + "/api"})
    assert (error.code, error.retryable) == ("HTTP_UNREADABLE", False)


@contextmanager
def worker_process(engine: RunningEngine, *options: str, **variables: str) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "penstock", "worker", "http", "--url", engine.url, *options]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "src")} | variables
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.slow(reason="starts an engine process and the command")
def test_the_command_runs_jobs_of_an_engine(site: Site, postgres_server: PostgresServer, tmp_path: Any) -> None:
    steps = [
        {"id": "call", "name": "Call", "type": "SERVICE_TASK", "jobType": "http.request", "nextStep": "end"},
        {"id": "end", "name": "End", "type": "END"},
    ]
    options = ["--allow", site.url, "--private", "127.0.0.0/8", "--secret", "TOKEN"]
    with running_engine(postgres_server, tmp_path) as engine, SyncClient(engine.url) as client:
        client.upload_definition({"id": "fetch", "name": "Fetch", "steps": steps})
        with worker_process(engine, *options, TOKEN="s3cret"):
            http = {"url": site.url + "/a", "headers": {"Authorization": "{{TOKEN}}"}}
            instance = client.start_instance("fetch", {"http": http})
            ended = client.wait_until_ended(instance.id, timeout_s=60)
    assert (ended.status, ended.variables["httpResponse"]["body"]) == ("COMPLETED", {"id": 7})
    assert [headers["authorization"] for _, _, headers, _ in site.seen] == ["s3cret"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--allow", "api.example"], "'api.example': give an address such as https://api.example"),
        (["--allow", "https://a.example", "--secret", "NOT_THERE"], "--secret NOT_THERE: the environment has no such"),
        (["--allow", "https://a.example", "--private", "ten"], "'ten' does not appear to be an IPv4 or IPv6 network"),
    ],
)
def test_the_command_says_what_is_wrong_with_an_option(options: list[str], said: str) -> None:
    from typer.testing import CliRunner

    from penstock.cli.app import app

    result = CliRunner().invoke(app, ["worker", "http", *options])
    assert (result.exit_code, said in result.output) == (2, True), result.output


def test_places_are_origins_with_a_path() -> None:
    assert AllowedPlace.parse("https://api.example/v2/").holds(httpx.URL("https://api.example:443/v2/x"))
    assert not AllowedPlace.parse("https://api.example/v2").holds(httpx.URL("https://api.example:444/v2/x"))
    for text in ("https://user@api.example", "https://api.example?x=1", "ftp://a", "https://"):
        with pytest.raises(ValueError, match="give an address"):
            AllowedPlace.parse(text)
