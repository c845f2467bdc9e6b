"""An engine starts while PostgreSQL recovers, and through PgBouncer."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Generator
from functools import partial

import psycopg
import pytest
import trio
from psycopg.conninfo import conninfo_to_dict

from chaos.server import Server
from penstock.http import reserved_ports
from penstock.runtime.doctor import CheckLevel, examine
from penstock.settings import Secret, Settings
from penstock.testing.definitions import linear
from penstock.testing.invariants import assert_invariants
from tests.runtime.conftest import StartEngine
from tests.runtime.embedded_engine import data_directory
from tests.runtime.engine_process import EngineProcess, call
from tests.runtime.waiting import wait_until

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
WAITS = "waiting for the database to take writes"


@pytest.fixture
def server() -> Generator[Server]:
    """A server of the test's own, stopped."""
    with data_directory() as directory:
        server = Server(directory / "postgres")
        try:
            trio.run(server.make)
            trio.run(server.stop)
            yield server
        finally:
            trio.run(server.remove)


@pytest.mark.slow(reason="a PostgreSQL of its own that starts late")
@pytest.mark.parametrize("hot", [False, True], ids=["takes-no-connection", "reads-only"])
def test_a_recovery_longer_than_the_outage_wait_is_waited_for(
    server: Server, start_engine: StartEngine, hot: bool
) -> None:
    """Alive, not ready, and a line every few seconds; ready once the database takes writes."""
    server.recover_for_ever()
    trio.run(partial(server.start, {"hot_standby": "on" if hot else "off"}, ready=False))
    with reserved_ports(1) as (port,):
        engine = start_engine("--rest-port", str(port), dsn=server.dsn("postgres"), WE_OUTAGE_WAIT_SECONDS="0.5")
        wait_until(lambda: health(port) == (200, 503))
        assert call(port, "POST", "/v1/jobs/poll", {})[0] == 503
        wait_until(lambda: [line["message"] for line in engine.lines].count(WAITS) >= 2)
        assert engine.process.poll() is None
        server.promote()
        engine.wait_ready()
        assert health(port) == (200, 200)
        assert call(port, "POST", "/v1/definitions", linear(1))[0] == 201
        assert engine.stop() == 0


def health(port: int) -> tuple[int, int] | None:
    """What the probes are told: alive, ready."""
    try:
        return call(port, "GET", "/healthz")[0], call(port, "GET", "/readyz")[0]
    except OSError:
        return None


@pytest.mark.slow(reason="starts engine processes")
def test_a_missing_server_is_tried_for_the_outage_wait(start_engine: StartEngine) -> None:
    engine = start_engine(dsn="host=127.0.0.1 port=1 user=x dbname=x", WE_OUTAGE_WAIT_SECONDS="0.5")
    assert engine.process.wait(120) == 1
    said = engine.said("the engine could not start") or engine.said("the engine stopped: it could not go on")
    assert said is not None
    assert "can't be reached" in said["error"]


# -- PgBouncer

needs_pgbouncer = pytest.mark.skipif(PGBOUNCER is None, reason="PGBOUNCER IS NOT HERE: apt-get install pgbouncer")
MakePool = Callable[[str], str]


@pytest.fixture
def make_pool(database_dsn: str) -> Generator[MakePool]:
    """PgBouncer in a mode, before the test's database; the DSN that leads through it."""
    processes: list[subprocess.Popen[bytes]] = []
    with data_directory() as directory, reserved_ports(1) as (port,):

        def make(mode: str) -> str:
            assert PGBOUNCER is not None
            target = conninfo_to_dict(database_dsn)
            ini = directory / "pgbouncer.ini"
            ini.write_text(
                f"[databases]\n{target['dbname']} = host={target['host']} port={target['port']} user={target['user']}\n"
                f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
                f"pool_mode = {mode}\nmax_client_conn = 200\ndefault_pool_size = 50\n"
            )
            account = pwd.getpwnam("postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name)
            identity = {"user": account.pw_uid, "group": account.pw_gid} if os.geteuid() == 0 else {}
            processes.append(
                subprocess.Popen(  # pyright: ignore[reportCallIssue] - user and group
                    [PGBOUNCER, str(ini)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    **identity,  # pyright: ignore[reportArgumentType] - user and group
                )
            )
            dsn = f"host=127.0.0.1 port={port} user={target['user']} dbname={target['dbname']}"

            def answers() -> bool:
                try:
                    psycopg.connect(dsn, connect_timeout=2).close()
                except psycopg.OperationalError:
                    return False
                return True

            wait_until(answers)
            return dsn

        yield make
        for process in processes:
            process.terminate()
            process.wait(120)


@pytest.mark.slow(reason="starts engine processes")
@needs_pgbouncer
@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_a_pooler_that_gives_sessions_away_is_refused_by_name(
    make_pool: MakePool, start_engine: StartEngine, mode: str
) -> None:
    dsn = make_pool(mode)
    engine = start_engine(dsn=dsn, WE_OUTAGE_WAIT_SECONDS="1")
    assert engine.process.wait(120) == 1
    said = engine.said("the engine could not start") or engine.said("the engine stopped: it could not go on")
    assert said is not None
    assert "PgBouncer" in said["error"] if mode == "transaction" else "statement" in said["error"]
    problems = [each for each in examine(Settings(postgres_dsn=Secret(dsn))) if each.verdict is CheckLevel.PROBLEM]
    assert [each.subject for each in problems] == (["pooler"] if mode == "transaction" else ["database"])
    assert mode in problems[0].found


@pytest.mark.slow(reason="starts engine processes")
@needs_pgbouncer
def test_through_a_pooler_in_session_mode_two_engines_serve(
    make_pool: MakePool, start_engine: StartEngine, database_dsn: str
) -> None:
    """Listening, session locks and prepared statements included."""
    dsn = make_pool("session")
    engines: list[EngineProcess] = [
        start_engine(dsn=dsn, WE_READY_PROBE_INTERVAL_SECONDS="5").wait_ready() for _ in "ab"
    ]
    assert engines[0].call("POST", "/v1/definitions", linear(2))[0] == 201
    for number in range(6):
        starter, worker = engines[number % 2], engines[(number + 1) % 2]
        status, _ = starter.call("POST", "/v1/instances", {"definitionId": "linear"})
        assert status == 201
        for _ in range(2):
            poll = {"workerId": "w", "jobTypes": ["work"], "maxJobs": 1, "waitSeconds": 20}
            status, jobs = worker.call("POST", "/v1/jobs/poll", poll)
            (job,) = jobs["jobs"] if isinstance(jobs, dict) else jobs
            assert worker.call("POST", f"/v1/jobs/{job['id']}/complete", {"workerId": "w"})[0] == 204
    for engine in engines:
        assert engine.stop() == 0
    with psycopg.connect(database_dsn) as connection:
        assert connection.execute("SELECT status, count(*) FROM instance GROUP BY 1").fetchall() == [(1, 6)]
    assert_invariants(database_dsn)
