"""Authentication on real engine processes: tokens by the command line, revocation everywhere, actors, metrics, bind."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import httpx
import pytest
from psycopg.conninfo import conninfo_to_dict

from penstock.store.embedded.embedded import running_dsn
from penstock.testing.definitions import definition, end, linear, service, step
from tests.access.people import TOKENS, bearer, lines
from tests.house.sources import SRC
from tests.runtime.embedded_engine import data_directory
from tests.runtime.engine_process import EngineProcess
from tests.runtime.waiting import wait_until

StartEngine = Callable[..., EngineProcess]


@pytest.fixture
def start_engine(database_dsn: str) -> Generator[StartEngine]:
    running: list[EngineProcess] = []

    def start(*arguments: str, dsn: str | None = database_dsn, **settings: Any) -> EngineProcess:
        running.append(EngineProcess(dsn, *arguments, **settings))
        return running[-1]

    yield start
    for engine in running:
        engine.__exit__()


def penstock(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", *arguments]
    environment = {"PYTHONPATH": str(SRC), "PATH": "/usr/bin:/bin", "USER": "kim", **environ}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


def ask(port: int, method: str, path: str, token: str = "", body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        kind = answer.headers.get("content-type", "")
        return answer.status, json.loads(text) if text and "json" in kind else text
    finally:
        connection.close()


def lets_in(port: int, path: str, token: str) -> bool:
    return ask(port, "GET", path, token)[0] == 200


@pytest.mark.slow(reason="starts engine processes")
def test_several_processes_begin_on_a_database_without_tables(empty_database_dsn: str) -> None:
    """And go on where the tables are in a schema of their own: the parent asked for them in `public`, and ended."""
    for _ in range(2):
        with EngineProcess(empty_database_dsn, "--processes", "2", authentication=True) as engine:
            engine.wait_ready()
            token = penstock("token", "new", "ci", "--role", "viewer", WE_POSTGRES_DSN=empty_database_dsn).stdout
            token = token.strip()
            for port, path in ((engine.port, "/v1/definitions"), (engine.metrics_port, "/metrics")):
                assert ask(port, "GET", path)[0] == 401
                wait_until(partial(lets_in, port, path, token), timeout_s=120)
            assert engine.process.poll() is None


@pytest.mark.slow(reason="starts engine processes")
def test_a_token_counts_on_all_engines_until_it_is_revoked(database_dsn: str, start_engine: StartEngine) -> None:
    engines = [start_engine(authentication=True).wait_ready(), start_engine("--processes", "2", authentication=True)]
    engines[1].wait_ready()
    made = penstock("token", "new", "ci", "--role", "viewer", WE_POSTGRES_DSN=database_dsn)
    token = made.stdout.strip()
    assert made.returncode == 0
    assert token not in made.stderr
    id = token.split("_")[1]
    for engine in engines:
        for port, path in ((engine.port, "/v1/definitions"), (engine.metrics_port, "/metrics")):
            assert ask(port, "GET", path)[0] == 401
            wait_until(lambda port=port, path=path: ask(port, "GET", path, token)[0] == 200, timeout_s=120)
            assert ask(port, "GET", "/healthz")[0] == (200 if path != "/metrics" else 401)
    listed = penstock("token", "list", WE_POSTGRES_DSN=database_dsn).stdout
    assert [id, "counts", "ci", "viewer"] == [*listed.split()[:2], *listed.split()[-2:]]
    assert re.search(r"\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)  ", listed), "with its zone"
    assert token not in listed

    revoked = penstock("token", "revoke", id, WE_POSTGRES_DSN=database_dsn)
    began = time.monotonic()
    assert revoked.stdout == f"revoked {id} (ci)\n"
    for engine in engines:
        for port, path in ((engine.port, "/v1/definitions"), (engine.metrics_port, "/metrics")):
            wait_until(lambda port=port, path=path: ask(port, "GET", path, token)[0] == 401, timeout_s=120)
    assert time.monotonic() - began < 15  # a second or two, on a machine that is not busy with others
    assert penstock("token", "list", WE_POSTGRES_DSN=database_dsn).stdout == ""
    assert " over " in penstock("token", "list", "--all", WE_POSTGRES_DSN=database_dsn).stdout
    again = penstock("token", "revoke", id, WE_POSTGRES_DSN=database_dsn)
    assert (again.returncode, "there is no token" in again.stderr) == (1, True)
    text = "".join(engine.reported for engine in engines)
    assert token not in text


def test_audit_rows_name_the_actor(start_engine: StartEngine) -> None:
    engine = start_engine(authentication=True, api_tokens=",".join(lines())).wait_ready()
    tokens = {role: made.text for role, made in TOKENS.items()}

    def call(role: str, path: str, body: Any = None) -> Any:
        status, answer = ask(engine.port, "POST", path, tokens[role], body)
        assert status < 300, answer
        return answer

    task = step("ask", "USER_TASK", nextStep="wait")
    wait = step("wait", "WAIT", nextStep="end")
    call("admin", "/v1/definitions", definition(task, wait, end(), definition_id="d"))
    started = call("operator", "/v1/instances", {"definitionId": "d"})["id"]
    call("clerk", f"/v1/instances/{started}/user-tasks/ask/complete", {"completedBy": "lee"})
    call("operator", f"/v1/instances/{started}/signals/wait", {})
    other = call("operator", "/v1/instances", {"definitionId": "d"})["id"]
    call("operator", f"/v1/instances/{other}/cancel", {"reason": "why"})
    found: dict[str, tuple[Any, Any]] = {}
    for id in (started, other):
        items = ask(engine.port, "GET", f"/v1/instances/{id}/audit", tokens["viewer"])[1]["items"]
        found |= {item["kind"]: (item.get("actor"), item.get("detail")) for item in items}
    assert found["USER_TASK_COMPLETED"] == ("token:clerk", "for lee")
    assert found["SIGNALLED"][0] == "token:operator"
    assert found["CANCELLED"] == ("token:operator", "why")
    assert found["STARTED"][0] == "token:operator"
    call("admin", "/v1/definitions", definition(service("s", "end"), end(), definition_id="narrow"))
    narrow = call("admin", "/v1/instances", {"definitionId": "narrow"})["id"]
    (first, *_) = ask(engine.port, "GET", f"/v1/instances/{narrow}/audit", tokens["viewer"])[1]["items"]
    assert (first["kind"], first["actor"]) == ("STARTED", "token:admin")


@pytest.mark.slow(reason="starts engine processes")
def test_tokens_are_made_with_and_without_a_running_embedded_engine(start_engine: StartEngine) -> None:
    with data_directory() as directory:
        made = penstock("token", "new", "a", "--role", "admin", "--data-dir", str(directory))
        assert made.returncode == 0, made.stderr
        assert running_dsn(directory) is not None  # of a server that has ended
        engine = start_engine("--data-dir", str(directory), dsn=None, authentication=True).wait_ready()
        assert ask(engine.port, "GET", "/v1/me", made.stdout.strip())[0] == 200
        second = penstock("token", "new", "b", "--role", "viewer", "--data-dir", str(directory))
        assert second.returncode == 0, second.stderr
        user = str(conninfo_to_dict(running_dsn(directory) or "")["user"])
        allowed = penstock("migrate", "--may-complete", user, "--data-dir", str(directory))
        assert allowed.returncode == 0, allowed.stderr
        wait_until(lambda: ask(engine.port, "GET", "/v1/me", second.stdout.strip())[0] == 200, timeout_s=120)
        assert engine.stop() == 0


@pytest.mark.slow(reason="starts engine processes")
def test_without_authentication_and_bind_the_log_says_where_it_listens(
    database_dsn: str, start_engine: StartEngine
) -> None:
    engine = start_engine(dsn=None, postgres_dsn=database_dsn).wait_ready()
    assert engine.said("no authentication: listening on 127.0.0.1 only (docs/security.md)")
    assert engine.wait_said("ready", "metrics")["REST"].startswith("127.0.0.1:")


@pytest.mark.slow(reason="starts engine processes")
@pytest.mark.parametrize("settings", [{}, {"insecure": True}, {"authentication": True}])
def test_an_address_that_others_reach(
    database_dsn: str, start_engine: StartEngine, settings: dict[str, object]
) -> None:
    engine = start_engine(dsn=None, postgres_dsn=database_dsn, bind="0.0.0.0", **settings)
    if not settings:
        assert engine.process.wait(120) == 2
        return
    engine.wait_ready()
    insecure = "insecure" in settings
    assert (
        bool(engine.said("INSECURE: no authentication, everybody who reaches the engine may do everything")) == insecure
    )
    assert ask(engine.port, "GET", "/readyz")[1] == {"status": "ready", **settings} if insecure else {"status": "ready"}
    assert ask(engine.port, "GET", "/v1/definitions")[0] == (200 if insecure else 401)


@pytest.mark.slow(reason="starts engine processes")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"api_tokens": "a=viewer=pst_secret"}, "entry 1 of api_tokens is not name=roles=sha256:<64 hex digits>"),
        (
            {"trusted_networks": "10.0.0.0/8=root"},
            "trusted_networks: '10.0.0.0/8=root': 'root' is not one of the roles",
        ),
    ],
)
def test_settings_that_the_gate_can_t_read_end_the_start(
    start_engine: StartEngine, settings: dict[str, str], said: str
) -> None:
    engine = start_engine(authentication=True, **settings)
    assert engine.process.wait(120) == 2
    assert f"penstock: the settings are wrong:\n  {said}" in engine.reported
    assert "pst_secret" not in engine.reported


@pytest.mark.slow(reason="starts engine processes")
def test_an_offline_token_and_its_line_for_the_settings(start_engine: StartEngine) -> None:
    made = penstock("token", "new", "ops", "--role", "operator", "--role", "worker", "--job-type", "work", "--offline")
    line = made.stderr.removeprefix("api_tokens: ").strip()
    engine = start_engine(authentication=True, api_tokens=line).wait_ready()
    me = ask(engine.port, "GET", "/v1/me", made.stdout.strip())[1]
    assert me == {"can": ["view", "operate", "tasks", "work"], "name": "token:ops", "jobTypes": ["work"]}


@pytest.mark.parametrize(
    "arguments", [("--role", "boss"), ("--role", "viewer", "--job-type", "a"), ("--role", "viewer+", "--offline"), ()]
)
def test_a_token_that_makes_no_sense_is_not_made(arguments: tuple[str, ...]) -> None:
    assert penstock("token", "new", "x", *arguments).returncode == 2


@pytest.mark.slow(reason="starts engine processes")
def test_a_worker_by_network_needs_no_header(start_engine: StartEngine) -> None:
    """SDKs that have no place for one: unchanged against an engine with authentication."""
    engine = start_engine(authentication=True, trusted_networks="127.0.0.0/8=worker", api_tokens=",".join(lines()))
    engine.wait_ready()
    assert ask(engine.port, "POST", "/v1/definitions", TOKENS["admin"].text, linear(1))[0] == 201
    assert ask(engine.port, "POST", "/v1/instances", TOKENS["operator"].text, {"definitionId": "linear"})[0] == 201
    (job,) = ask(engine.port, "POST", "/v1/jobs/poll", body={"workerId": "w", "jobTypes": ["work"]})[1]["jobs"]
    assert ask(engine.port, "POST", f"/v1/jobs/{job['id']}/complete", body={"workerId": "w"})[0] == 204
    assert ask(engine.port, "POST", f"/v1/instances/{job['instanceId']}/cancel", body={})[0] == 403
    assert bearer("admin").startswith("Bearer pst_")


@pytest.mark.slow(reason="starts engine processes")
async def test_over_http_2_the_same_is_asked(start_engine: StartEngine) -> None:
    engine = start_engine(authentication=True, api_tokens=",".join(lines()), http_server="hypercorn").wait_ready()
    right = ("authorization", bearer("viewer"))
    async with httpx.AsyncClient(http1=False, http2=True, base_url=f"http://127.0.0.1:{engine.port}") as client:

        async def status(*headers: tuple[str, str], path: str = "/v1/definitions") -> int:
            answer = await client.get(path, headers=list(headers))
            assert answer.http_version == "HTTP/2"
            return answer.status_code

        assert await status(right) == 200
        assert (
            await status()
            == await status(right, right)
            == await status(("authorization", "Bearer wrong"), right)
            == 401
        )
        assert await status(right, ("host", "evil.example")) == 403
        assert await status(path="/healthz") == 200
        assert await status(path="/v1/definitions?access_token=" + TOKENS["admin"].text) == 401
        assert (await client.post("/v1/definitions", headers=[right], json=linear(1))).status_code == 403


@pytest.mark.slow(reason="starts engine processes")
async def test_over_http_2_a_web_page_is_refused_likewise(start_engine: StartEngine) -> None:
    engine = start_engine(http_server="hypercorn").wait_ready()
    here = f"http://127.0.0.1:{engine.port}"
    async with httpx.AsyncClient(http1=False, http2=True, base_url=here) as client:

        async def status(**headers: str) -> int:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            answer = await client.post("/v1/definitions", headers=named, json=linear(1))
            assert answer.http_version == "HTTP/2"
            return answer.status_code

        assert await status(origin=here) == await status() == 201
        assert await status(origin="https://evil.example") == await status(origin="null") == 403
        assert await status(sec_fetch_site="cross-site") == await status(host="evil.example") == 403
        assert await status(host=f"evil.example:{engine.port}", origin=f"http://evil.example:{engine.port}") == 403
