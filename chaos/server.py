"""A PostgreSQL server that can be killed, stopped, starved and started again; durable (fsync on).

Its programs are those of the embedded server; unlike that one it is nobody's child to mourn: here its death is the
point. One cluster, one directory, a Unix socket. Relies on `penstock.store.cluster` for files and accounts.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import trio

from benchmarks.processes import all_processes, tree
from penstock.store.cluster import (
    PORT,
    Installation,
    find_installation,
    log_tail,
    make_socket_dir,
    open_log,
    read_postmaster,
    remove_socket_dir,
    write_settings,
)
from penstock.store.embedded import SUPERUSER, run_embedded

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

    def dsn(self, database: str, role: str = SUPERUSER) -> str:
        """The conninfo of a database."""
        return f"host={self._socket_dir} port={PORT} user={role} dbname={database}"

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

    async def start(self, settings: Mapping[str, str] | None = None, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start it and wait until it takes connections; processes of the one before are waited out."""
        installation = self._installed()
        assert self._socket_dir is not None
        if settings is not None:
            write_settings(installation, self._socket_dir, {**SETTINGS, **settings})
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
            return subprocess.Popen(
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
        found = []
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
