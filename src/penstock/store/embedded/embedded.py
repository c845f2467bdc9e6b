"""The embedded PostgreSQL: started with the first who uses it, stopped with the last, its data kept.

One engine per data directory, enforced by a lock which the kernel frees however the engine ends; programs of users
(`shared`) attach to the server that runs there. Who uses it holds a lock of its own (``users``), shared, so that the
last one to leave knows that it is the last; who starts or stops the server holds ``starting`` meanwhile. A server that
was left running by ``kill -9`` of all who used it is stopped first and a new one started (adopting it would keep its
old settings). The server runs in a session of its own: Ctrl-C in a terminal goes to the
engine alone, which drains and then stops it. For development and single machines: no replication, no backup schedule.
Relies on `cluster.py` for the files. Must not know the schema.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import trio
from psycopg.conninfo import make_conninfo

from penstock.store.embedded.cluster import (
    NOBODY,
    PORT,
    EmbeddedPostgresError,
    Installation,
    Postmaster,
    default_data_dir,
    find_installation,
    is_running,
    log_tail,
    make_data_dir,
    make_socket_dir,
    open_lock,
    open_log,
    read_postmaster,
    remove_socket_dir,
    server_environment,
    write_settings,
)

__all__ = [
    "DataDirectoryInUse",
    "EmbeddedPostgresError",
    "EmbeddedServer",
    "default_data_dir",
    "embedded",
    "run_embedded",
    "running_dsn",
]

SUPERUSER = "postgres"

START_TIMEOUT_S = 300.0
"""Recovery after a crash of the machine can replay 4 GB of WAL (`max_wal_size`); else a start takes 0.1 s."""

STOP_TIMEOUT_S = 60.0
"""Bound of the fast shutdown, with its checkpoint; past it the server is stopped without, and recovers when started."""

KILL_TIMEOUT_S = 5.0

ORPHANS_TIMEOUT_S = 10.0
"""How long to wait for the processes of a server that was itself killed: idle ones end at once, busy ones don't."""

POLL_INTERVAL_S = 0.02
WATCH_INTERVAL_S = 0.5
"""Between two looks at a server that is not our child."""
USERS, STARTING = "users", "starting"
"""Lock files beside the first: who uses the server, and who starts or stops it."""
LOCK_MAX_BYTES = 4096

_ORPHANS_LEFT = "pre-existing shared memory block"

log = logging.getLogger("penstock.store.embedded")


class DataDirectoryInUse(EmbeddedPostgresError):
    """Another engine runs on the data directory."""

    code = "conflict"


class EmbeddedServer:
    """A server that runs. ``alone``: it was started by us, and nobody else has used it since."""

    def __init__(self, dsn: str, wait: Callable[[], Awaitable[object]], *, alone: bool) -> None:
        self.dsn, self.alone = dsn, alone
        self._wait = wait

    async def watch(self, scope: trio.CancelScope | None = None) -> None:
        """Wait for its end; raises EmbeddedPostgresError then, as nobody asked for it. Cancel this before a stop."""
        with scope or trio.CancelScope():
            await self._wait()
            raise EmbeddedPostgresError("the embedded PostgreSQL ended by itself")

    @asynccontextmanager
    async def watched(self, nursery: trio.Nursery) -> AsyncGenerator[None]:
        """While the block runs, its end is that of ``nursery``."""
        watching = trio.CancelScope()
        nursery.start_soon(self.watch, watching)
        try:
            yield
        finally:
            watching.cancel()


@asynccontextmanager
async def embedded(
    data_dir: Path | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    start_timeout_s: float = START_TIMEOUT_S,
    stop_timeout_s: float = STOP_TIMEOUT_S,
) -> AsyncGenerator[str]:
    """`run_embedded` for those who need its conninfo only."""
    async with run_embedded(
        data_dir, settings=settings, start_timeout_s=start_timeout_s, stop_timeout_s=stop_timeout_s
    ) as server:
        yield server.dsn


@asynccontextmanager
async def run_embedded(
    data_dir: Path | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    start_timeout_s: float = START_TIMEOUT_S,
    stop_timeout_s: float = STOP_TIMEOUT_S,
    shared: bool = False,
) -> AsyncGenerator[EmbeddedServer]:
    """Run PostgreSQL on ``data_dir`` (default: `default_data_dir`) for the block, or use the one that runs there.

    Makes the directory and the cluster if they don't exist (about 1 s). ``settings`` go before our own. Raises
    `DataDirectoryInUse` if another engine has the directory and this is not ``shared``, `EmbeddedPostgresError` if the
    server does not start. Cancelled at any point, the server is stopped by the last who uses it, in bounded time.
    """
    data_dir = (data_dir or default_data_dir()).absolute()
    with _locked(data_dir, shared=shared) as lock:
        installation = await trio.to_thread.run_sync(find_installation, data_dir)
        _warn_of_shared(installation)
        server = _Server(installation, lock, settings or {}, start_timeout_s, stop_timeout_s, shared=shared)
        with _opened(data_dir, USERS) as users:
            try:
                async with _changing(data_dir, start_timeout_s):
                    alone = _join(users)
                    running = None if alone and not (shared and lock.is_taken()) else await server.attach()
                    if running is None:
                        running = await server.start()
                yield running
            finally:
                with trio.CancelScope(shield=True):
                    async with _changing(data_dir, stop_timeout_s):
                        if _is_last(users) and not (shared and lock.is_taken()):
                            await server.stop()
                        else:
                            server.leave()


_LEFT_RUNNING: list[trio.Process] = []
"""Servers that we started and that others use on. Kept, as Python complains of processes that it forgets."""


class _Server:
    """The server of a data directory: started here, or found. One at a time looks after it (`_changing`)."""

    def __init__(
        self,
        installation: Installation,
        lock: _Lock,
        settings: Mapping[str, str],
        start_timeout_s: float,
        stop_timeout_s: float,
        *,
        shared: bool,
    ) -> None:
        # a program that was killed and is run again is nothing to warn of
        self._left_level = logging.INFO if shared else logging.WARNING
        self._installation, self._lock, self._settings = installation, lock, settings
        self._start_timeout_s, self._stop_timeout_s = start_timeout_s, stop_timeout_s
        self._process: trio.Process | None = None
        self._began = False

    async def start(self) -> EmbeddedServer:
        """A new one, on a cluster that is made if there is none."""
        installation, lock = self._installation, self._lock
        self._began = True
        lock.note(lock.socket_dir)  # whatever ran there, nobody is to be sent to it
        left = await _stop_leftover(installation, self._stop_timeout_s, log_level=self._left_level)
        if lock.socket_dir is not None:  # of one that was killed
            remove_socket_dir(installation, lock.socket_dir)
        if not installation.cluster.exists():
            await _make_cluster(installation, sync=self._settings.get("fsync") != "off")
        socket_dir = make_socket_dir(installation)
        try:
            temporary = None if socket_dir == installation.cluster else socket_dir
            lock.note(temporary)
            await trio.to_thread.run_sync(write_settings, installation, socket_dir, self._settings)
            self._process = process = await _start_ready(installation, left, self._start_timeout_s)
        except BaseException:
            remove_socket_dir(installation, socket_dir)
            raise
        log.info("embedded PostgreSQL runs on %s (pid %d)", installation.cluster.parent, process.pid)
        dsn = make_conninfo(host=str(socket_dir), port=PORT, user=SUPERUSER, dbname="postgres")
        lock.note(temporary, dsn)
        return EmbeddedServer(dsn, process.wait, alone=True)

    async def attach(self) -> EmbeddedServer | None:
        """Return the one that others use; None when it is gone: then they are about to end."""
        self._began = True
        postmaster = read_postmaster(self._installation)
        dsn = self._lock.dsn
        if postmaster is None or not dsn or not await self._runs(postmaster):
            return None

        async def wait() -> None:
            while await self._runs(postmaster):  # noqa: ASYNC110 – nothing tells us
                await trio.sleep(WATCH_INTERVAL_S)

        log.info("embedded PostgreSQL runs already (pid %d)", postmaster.pid)
        return EmbeddedServer(dsn, wait, alone=False)

    async def _runs(self, postmaster: Postmaster) -> bool:
        return await trio.to_thread.run_sync(is_running, self._installation, postmaster)

    def leave(self) -> None:
        """Others use it on: it goes on without its parent."""
        if self._process is not None:
            _LEFT_RUNNING.append(self._process)

    async def stop(self) -> None:
        """By the last who used it."""
        if not self._began:
            return
        if self._process is not None:
            await _stop(self._process, self._stop_timeout_s)
        else:
            await _stop_leftover(self._installation, self._stop_timeout_s, log_level=logging.INFO)
        if self._lock.socket_dir is not None:
            remove_socket_dir(self._installation, self._lock.socket_dir)


@contextmanager
def _opened(data_dir: Path, name: str) -> Generator[int]:
    fd = open_lock(data_dir, name)
    try:
        yield fd
    finally:
        os.close(fd)


@asynccontextmanager
async def _changing(data_dir: Path, timeout_s: float) -> AsyncGenerator[None]:
    """Alone with the question whether there is a server."""
    with _opened(data_dir, STARTING) as fd:
        with trio.move_on_after(timeout_s) as limit:
            while not _lock_nowait(fd, fcntl.LOCK_EX):  # noqa: ASYNC110 – nothing tells us
                await trio.sleep(POLL_INTERVAL_S)
        if limit.cancelled_caught:
            raise EmbeddedPostgresError(f"another process has been starting or stopping the server for {timeout_s} s")
        yield


def _join(users: int) -> bool:
    """Be one of those who use the server; whether there are no others."""
    alone = _lock_nowait(users, fcntl.LOCK_EX)
    fcntl.flock(users, fcntl.LOCK_SH)
    return alone


def _is_last(users: int) -> bool:
    """Return whether nobody else uses the server."""
    return _lock_nowait(users, fcntl.LOCK_EX)


def _lock_nowait(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class _Lock:
    """The lock file. Its lines: the pid of the engine that has it, or of who started the server; the socket's
    directory, if it is a temporary one; the conninfo once the server runs."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pid = os.getpid()

    def _lines(self) -> list[str]:
        return [*os.fsdecode(os.pread(self._fd, LOCK_MAX_BYTES, 0)).splitlines(), "", "", ""]

    @property
    def socket_dir(self) -> Path | None:
        """Return the temporary directory of who started a server last, if it left one."""
        name = self._lines()[1]
        return Path(name) if name else None

    @property
    def dsn(self) -> str:
        """Of the server that was started last."""
        return self._lines()[2]

    def is_taken(self) -> bool:
        """Return whether an engine has the directory: one of before there was a `USERS` says so in no other way."""
        if not _lock_nowait(self._fd, fcntl.LOCK_EX):
            return True
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return False

    def note(self, socket_dir: Path | None, dsn: str = "") -> None:
        """Tell whoever comes next of a directory that is to be removed, and others (`running_dsn`) of the server."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, os.fsencode(f"{self._pid}\n{socket_dir or ''}\n{dsn}"), 0)


def _warn_of_shared(installation: Installation) -> None:
    if installation.account is not None and installation.account.pw_name == NOBODY:
        log.warning(
            "the embedded PostgreSQL runs as the user nobody, which is also that of other programs: they can do what it"
            " can. Before the first start, make one of its own: useradd --system penstock"
        )


def running_dsn(data_dir: Path | None = None) -> str | None:
    """The conninfo of the server that another process runs on a data directory; None when there is none, or not yet.

    It stands in the lock file, which only the engine's account can write.
    """
    try:
        lines = ((data_dir or default_data_dir()) / "lock").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return lines[2] if len(lines) == 3 else None


@contextmanager
def _locked(data_dir: Path, *, shared: bool) -> Generator[_Lock]:
    """Hold the data directory, made if need be. The file descriptor is not inherited by the server."""
    try:
        make_data_dir(data_dir)
        fd = open_lock(data_dir)
    except OSError as error:
        raise EmbeddedPostgresError(f"the data directory {data_dir} can't be used: {error.strerror}") from error
    try:
        lock = _Lock(fd)
        if not shared:
            if not _lock_nowait(fd, fcntl.LOCK_EX):
                holder = os.fsdecode(os.pread(fd, 32, 0)).partition("\n")[0]
                raise DataDirectoryInUse(
                    f"the data directory {data_dir} is in use by another engine (pid {holder or 'unknown'})"
                ) from None
            lock.note(lock.socket_dir, lock.dsn)
        yield lock
    finally:
        os.close(fd)


async def _make_cluster(installation: Installation, *, sync: bool) -> None:
    """initdb, into a directory that gets its name when it is complete."""
    unfinished = installation.cluster.with_suffix(".new")
    await trio.to_thread.run_sync(lambda: shutil.rmtree(unfinished, ignore_errors=True))
    unfinished.mkdir(mode=0o700)
    installation.give(unfinished)
    result = await trio.run_process(
        [
            installation.programs / "bin" / "initdb",
            f"--pgdata={unfinished}",
            f"--username={SUPERUSER}",
            "--auth-local=peer",  # until `write_settings` says who that may be
            "--auth-host=reject",
            "--encoding=UTF8",
            "--locale=C",
            "--locale-provider=builtin",  # sorting that no update of the system's libc changes
            "--builtin-locale=C.UTF-8",
            "--no-instructions",
            *([] if sync else ["--no-sync"]),
        ],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        cwd="/",
        env=server_environment(),
        **installation.identity,
    )
    if result.returncode != 0:
        raise EmbeddedPostgresError(f"initdb failed: {result.stderr.decode(errors='replace').strip()}")
    include = "\ninclude_if_exists 'penstock.conf'\n"
    await trio.to_thread.run_sync(lambda: installation.write(unfinished / "postgresql.conf", include, append=True))
    unfinished.rename(installation.cluster)


async def _start_ready(installation: Installation, left: Postmaster | None, timeout_s: float) -> trio.Process:
    """Start the server and wait until it takes connections. Cancelled, none is left running."""
    give_up_at = trio.current_time() + ORPHANS_TIMEOUT_S
    while True:
        process = await _start(installation, left)
        try:
            await _wait_ready(installation, process, timeout_s)
        except EmbeddedPostgresError as error:
            await _stop(process, KILL_TIMEOUT_S)
            if left is None or _ORPHANS_LEFT not in str(error) or trio.current_time() > give_up_at:
                raise
            await trio.sleep(POLL_INTERVAL_S)
        except BaseException:
            await _stop(process, KILL_TIMEOUT_S)
            raise
        else:
            return process


async def _start(installation: Installation, left: Postmaster | None) -> trio.Process:
    environment = server_environment()
    if left is not None:
        # The pid may be another process's by now, or a zombie's: PostgreSQL takes either for a running server, unless
        # it is told (as pg_ctl does) that the pid is of its own ancestors. It still looks for orphaned backends.
        environment["PG_GRANDPARENT_PID"] = str(left.pid)
    log_fd = open_log(installation)
    try:
        return await trio.lowlevel.open_process(
            [installation.programs / "bin" / "postgres", "-D", str(installation.cluster)],
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=log_fd,
            cwd="/",
            env=environment,
            start_new_session=True,
            **installation.identity,
        )
    finally:
        os.close(log_fd)


async def _wait_ready(installation: Installation, process: trio.Process, timeout_s: float) -> None:
    with trio.move_on_after(timeout_s):
        while process.poll() is None:
            postmaster = read_postmaster(installation)
            if postmaster is not None and postmaster.pid == process.pid and postmaster.ready:
                return
            await trio.sleep(POLL_INTERVAL_S)
        raise EmbeddedPostgresError(f"the embedded PostgreSQL did not start:\n{log_tail(installation)}")
    raise EmbeddedPostgresError(
        f"the embedded PostgreSQL did not get ready within {timeout_s} s:\n{log_tail(installation)}"
    )


async def _stop(process: trio.Process, timeout_s: float) -> None:
    """Fast shutdown: open transactions are rolled back, a checkpoint written. Shielded; bounded by the time-outs."""
    with trio.CancelScope(shield=True):
        for number, bound_s in (
            (signal.SIGINT, timeout_s),
            (signal.SIGQUIT, KILL_TIMEOUT_S),
            (signal.SIGKILL, KILL_TIMEOUT_S),
        ):
            process.send_signal(number)
            began = trio.current_time()
            with trio.move_on_after(bound_s):
                await process.wait()
                log.info("embedded PostgreSQL stopped within %.1f s", trio.current_time() - began)
                return
            log.warning("embedded PostgreSQL did not stop within %g s of %s", bound_s, number.name)


async def _stop_leftover(
    installation: Installation, timeout_s: float, *, log_level: int = logging.WARNING
) -> Postmaster | None:
    """Stop the server of an engine that was killed. Gives what such a server, or one that crashed, says it was."""
    left = read_postmaster(installation)
    if left is None:
        return None
    if await trio.to_thread.run_sync(is_running, installation, left):
        log.log(log_level, "stopping the embedded PostgreSQL (pid %d) that another process started", left.pid)
        if not (
            await _signalled_ends(installation, left, signal.SIGINT, timeout_s)
            or await _signalled_ends(installation, left, signal.SIGQUIT, KILL_TIMEOUT_S)
        ):
            raise EmbeddedPostgresError(
                f"the PostgreSQL server (pid {left.pid}) that runs on {installation.cluster} does not stop"
            )
    return left


async def _signalled_ends(
    installation: Installation, postmaster: Postmaster, number: signal.Signals, timeout_s: float
) -> bool:
    """Signal a server that is not our child; whether it ends within the time."""
    with suppress(ProcessLookupError):
        os.kill(postmaster.pid, number)
    with trio.move_on_after(timeout_s):
        while await trio.to_thread.run_sync(is_running, installation, postmaster):  # noqa: ASYNC110 – nothing tells us
            await trio.sleep(POLL_INTERVAL_S)
        return True
    return False
