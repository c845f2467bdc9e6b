"""The embedded PostgreSQL: started with the engine, stopped with it, its data kept.

One engine per data directory, enforced by a lock which the kernel frees however the engine ends. A server that an
engine killed by ``kill -9`` left running is stopped first and a new one started (adopting it would keep its old
settings, and it could not be waited for). The server runs in a session of its own: Ctrl-C in a terminal goes to the
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
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import trio
from psycopg.conninfo import make_conninfo

from penstock.store.cluster import (
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
LOCK_MAX_BYTES = 4096

_ORPHANS_LEFT = "pre-existing shared memory block"

log = logging.getLogger("penstock.store.embedded")


class DataDirectoryInUse(EmbeddedPostgresError):
    """Another engine runs on the data directory."""

    code = "conflict"


class EmbeddedServer:
    """A server that runs."""

    def __init__(self, dsn: str, process: trio.Process) -> None:
        self.dsn = dsn
        self._process = process

    async def watch(self) -> None:
        """Wait for its end; raises EmbeddedPostgresError then, as nobody asked for it. Cancel this before a stop."""
        code = await self._process.wait()
        raise EmbeddedPostgresError(f"the embedded PostgreSQL ended by itself (exit code {code})")


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
) -> AsyncGenerator[EmbeddedServer]:
    """Run PostgreSQL on ``data_dir`` (default: `default_data_dir`) for the block.

    Makes the directory and the cluster if they don't exist (about 1 s). ``settings`` go before our own. Raises
    `DataDirectoryInUse` if another engine has the directory, `EmbeddedPostgresError` if the server does not start.
    Cancelled at any point, it stops the server, in bounded time.
    """
    data_dir = (data_dir or default_data_dir()).absolute()
    settings = settings or {}
    with _locked(data_dir) as lock:
        installation = await trio.to_thread.run_sync(find_installation, data_dir)
        _warn_of_shared(installation)
        left = await _stop_leftover(installation, stop_timeout_s)
        if lock.socket_dir is not None:  # of an engine that was killed
            remove_socket_dir(installation, lock.socket_dir)
        if not installation.cluster.exists():
            await _make_cluster(installation, sync=settings.get("fsync") != "off")
        socket_dir = make_socket_dir(installation)
        try:
            temporary = None if socket_dir == installation.cluster else socket_dir
            lock.note(temporary)
            await trio.to_thread.run_sync(write_settings, installation, socket_dir, settings)
            process = await _start_ready(installation, left, start_timeout_s)
            try:
                log.info("embedded PostgreSQL runs on %s (pid %d)", data_dir, process.pid)
                dsn = make_conninfo(host=str(socket_dir), port=PORT, user=SUPERUSER, dbname="postgres")
                lock.note(temporary, dsn)
                yield EmbeddedServer(dsn, process)
            finally:
                await _stop(process, stop_timeout_s)
        finally:
            remove_socket_dir(installation, socket_dir)


class _Lock:
    """The lock file, held. Its lines: the holder's pid; the socket's directory, if it is a temporary one; the conninfo
    once the server runs."""

    def __init__(self, fd: int) -> None:
        _, socket_dir, *_ = [*os.fsdecode(os.pread(fd, LOCK_MAX_BYTES, 0)).splitlines(), "", ""]
        self.socket_dir = Path(socket_dir) if socket_dir else None
        """Of the holder before, if it left one."""
        self._fd = fd
        self.note(self.socket_dir)

    def note(self, socket_dir: Path | None, dsn: str = "") -> None:
        """Tell whoever comes next of a directory that is to be removed, and others (`running_dsn`) of the server."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, os.fsencode(f"{os.getpid()}\n{socket_dir or ''}\n{dsn}"), 0)


def _warn_of_shared(installation: Installation) -> None:
    if installation.account is not None and installation.account.pw_name == "nobody":
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
def _locked(data_dir: Path) -> Generator[_Lock]:
    """Hold the data directory, made if need be. The file descriptor is not inherited by the server."""
    try:
        make_data_dir(data_dir)
        fd = open_lock(data_dir)
    except OSError as error:
        raise EmbeddedPostgresError(f"the data directory {data_dir} can't be used: {error.strerror}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.fsdecode(os.pread(fd, 32, 0)).partition("\n")[0]
            raise DataDirectoryInUse(
                f"the data directory {data_dir} is in use by another engine (pid {holder or 'unknown'})"
            ) from None
        yield _Lock(fd)
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
            "--auth=trust",  # only who may enter the socket's directory gets here: the owner
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
            with trio.move_on_after(bound_s):
                await process.wait()
                return
            log.warning("embedded PostgreSQL did not stop within %g s of %s", bound_s, number.name)


async def _stop_leftover(installation: Installation, timeout_s: float) -> Postmaster | None:
    """Stop the server of an engine that was killed. Gives what such a server, or one that crashed, says it was."""
    left = read_postmaster(installation)
    if left is None:
        return None
    if await trio.to_thread.run_sync(is_running, installation, left):
        log.warning("stopping the embedded PostgreSQL (pid %d) that a killed engine left running", left.pid)
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
