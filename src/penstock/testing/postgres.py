"""One embedded PostgreSQL for a whole test run, and a database for each test.

The server runs in a process of its own, as the workers of pytest-xdist share it. Every process that uses it holds a
shared lock on a file of the run's directory; the server's process waits for the exclusive one and so ends after the
last of them, however they end. No test waits for the making of its database, nor for its end. Durability is off (no
fsync) unless asked for. Blocking: for fixtures and threads.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
import trio
from psycopg import sql
from psycopg.conninfo import make_conninfo

import penstock
from penstock.store.db.schema import schema_sql
from penstock.store.embedded.embedded import embedded
from penstock.testing.machine import guard_sql

MEMORY = Path("/dev/shm")  # noqa: S108 - the directory made in it is our own, and checked to be
MEMORY_MIN_FREE_BYTES = 2 * 2**30
STOP_TIMEOUT_S = 60.0
DROPS_MAX_WAITING = 4
"""More databases of tests that ended are not kept: the next test waits for one to go."""

TEST_SETTINGS = {
    "max_connections": "400",
    "shared_buffers": "128MB",
    "autovacuum_naptime": "1min",
    "max_wal_size": "512MB",
    "max_prepared_transactions": "20",  # for tests of programs that commit in two phases
}
FAST_SETTINGS = {**TEST_SETTINGS, "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

# The package may be on sys.path only by a setting of pytest. Appended, so that it shadows nothing.
_PROGRAM = """
import sys
sys.path.append(sys.argv[3])
from penstock.testing.postgres import serve_until_unused
serve_until_unused()
"""


class _Server(subprocess.Popen[bytes]):
    """The server's process. It may outlive this one, which is what the warning of a ``Popen`` would be about."""

    def __del__(self) -> None:
        pass


def apply_schema(dsn: str) -> None:
    """Fill an empty database with the engine's tables, guarded by the table of transitions: the usual template."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(schema_sql().encode())
        connection.execute(guard_sql().encode())


def run_directory(durable: bool) -> Path:
    """Return the same for all workers of a pytest-xdist run."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))[:12]
    if durable:
        return Path(tempfile.gettempdir(), f"penstock-tests-{run}-durable")
    # A new database is 300 files: 8 ms in memory, 130 ms on this project's first disk.
    in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_MIN_FREE_BYTES
    return Path(MEMORY if in_memory else tempfile.gettempdir(), f"penstock-tests-{run}-fast")


MakeTemplate = Callable[[str], None]
_NUMBERS = count(1)


class PostgresServer:
    """The run's server, from one process's view.

    A thread makes and drops the databases, one after the other, and makes one ahead: to make one takes two checkpoints,
    and to drop one a wait for the sessions that it ends, of 0.1 s where one is late.
    """

    def __init__(self, directory: Path, dsn: str) -> None:
        self.directory = directory
        self.dsn = dsn
        self._admin = psycopg.connect(dsn, autocommit=True)
        self._thread = ThreadPoolExecutor(1, "test-databases")
        self._ahead: dict[MakeTemplate | None, Future[str] | None] = {}
        self._drops: deque[Future[None]] = deque()

    def close(self) -> None:
        """Ends when the databases of all tests are dropped; raises what went wrong with one. Those made ahead end with
        the server."""
        self._thread.shutdown()
        self._admin.close()
        for drop in self._drops:
            drop.result()

    @contextmanager
    def database(self, make_template: MakeTemplate | None = None) -> Generator[str]:
        """The DSN of a new database, dropped afterwards with whoever is still connected.

        Made of a template database that ``make_template`` fills once per run; empty without it.
        """
        asked_again = make_template in self._ahead
        made = self._ahead.pop(make_template, None) or self._thread.submit(self._make, make_template)
        name = made.result()
        self._ahead[make_template] = self._thread.submit(self._make, make_template) if asked_again else None
        try:
            yield make_conninfo(self.dsn, dbname=name)
        finally:
            self._drops.append(self._thread.submit(self._drop, name))
            while len(self._drops) > DROPS_MAX_WAITING:
                self._drops.popleft().result()

    def _make(self, make_template: MakeTemplate | None) -> str:
        template = "template1" if make_template is None else self._template(make_template)
        name = f"test_{os.getpid()}_{next(_NUMBERS)}"
        # 8 ms; STRATEGY wal_log, the default, takes 11.
        self._admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        return name

    def _drop(self, name: str) -> None:
        self._admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def _template(self, make_template: MakeTemplate) -> str:
        made_of = make_template.__qualname__ + schema_sql() + guard_sql()
        name = f"template_{hashlib.sha256(made_of.encode()).hexdigest()[:12]}"
        with _flocked(self.directory / "template.lock", fcntl.LOCK_EX):
            found = self._admin.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone()
            if found is None:
                unfinished = f"{name}_new"
                self._admin.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(unfinished)))
                self._admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(unfinished)))
                dsn = make_conninfo(self.dsn, dbname=unfinished)
                make_template(dsn)
                # A database's first session writes down what it found in the catalogs: each copy has it then, 3 ms.
                psycopg.connect(dsn).close()
                self._admin.execute(
                    sql.SQL("ALTER DATABASE {} RENAME TO {}").format(sql.Identifier(unfinished), sql.Identifier(name))
                )
        return name


@contextmanager
def shared_server(directory: Path, *, durable: bool) -> Generator[PostgresServer]:
    """Use the server of ``directory``, started by whoever comes first."""
    spawned = None
    with _used(directory):
        with _flocked(directory / "start.lock", fcntl.LOCK_EX):
            if not (directory / "dsn").exists():
                spawned = _spawn(directory, durable=durable)
        server = PostgresServer(directory, (directory / "dsn").read_text())
        try:
            yield server
        finally:
            server.close()
    if spawned is not None and "PYTEST_XDIST_WORKER" not in os.environ:  # there it runs until the last worker ends
        assert spawned.wait(STOP_TIMEOUT_S) == 0, "the PostgreSQL for tests did not end well"


@contextmanager
def _used(directory: Path) -> Generator[None]:
    """Hold the shared lock that keeps the server, in a directory that is not just being removed."""
    users = directory / "users.lock"
    while True:
        directory.mkdir(mode=0o755, exist_ok=True)
        try:
            if directory.stat().st_uid != os.geteuid():
                raise RuntimeError(f"{directory} belongs to somebody else")
            fd = os.open(users, os.O_RDWR | os.O_CREAT)
            fcntl.flock(fd, fcntl.LOCK_SH)
            if os.fstat(fd).st_ino == users.stat().st_ino:
                break
        except FileNotFoundError:
            continue
        os.close(fd)
    try:
        yield
    finally:
        os.close(fd)


@contextmanager
def _flocked(path: Path, operation: int) -> Generator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, operation)
        yield
    finally:
        os.close(fd)


def _spawn(directory: Path, *, durable: bool) -> _Server:
    log = directory / "log"
    package = str(Path(penstock.__file__).resolve().parents[1])
    with log.open("wb") as log_file:
        process = _Server(
            [sys.executable, "-c", _PROGRAM, str(directory), "durable" if durable else "fast", package],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_file,
            start_new_session=True,  # Ctrl-C ends pytest, and with it the server
        )
    assert process.stdout is not None
    with process.stdout:
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the PostgreSQL for tests did not start:\n{log.read_text()}")
    return process


async def _serve(directory: Path, durable: bool) -> None:
    """Run the server until nobody holds the shared lock, then remove the directory."""
    settings = TEST_SETTINGS if durable else FAST_SETTINGS
    try:
        async with embedded(directory / "data", settings=settings) as dsn:
            unfinished = directory / "dsn.new"
            unfinished.write_text(dsn)
            unfinished.rename(directory / "dsn")
            print("ready", flush=True)  # noqa: T201 - tells who started us
            fd = os.open(directory / "users.lock", os.O_RDWR)
            await trio.to_thread.run_sync(fcntl.flock, fd, fcntl.LOCK_EX)
    finally:
        shutil.rmtree(directory)


def serve_until_unused() -> None:
    """The main function of the server's process; its arguments are the directory and ``fast`` or ``durable``."""
    trio.run(_serve, Path(sys.argv[1]), sys.argv[2] == "durable")
