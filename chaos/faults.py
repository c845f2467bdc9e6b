"""The faults: each hurts one thing for a moment and repairs it again. Choices come from the given source alone.

A fault returns what it did in a few words. It must leave everything as it found it, however it ends; what it killed it
starts again.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import psycopg
import trio

from chaos.archives import retry_while_archiving
from chaos.commits import promote_standby, terminate_in_commit
from chaos.operators import operate_under_kills
from chaos.processes import EngineProcess, Process, WorkerProcess
from chaos.rig import ANSWER_TIMEOUT_S, DATABASE, Rig
from chaos.server import MAX_CONNECTIONS, ROLE
from chaos.waits import beat_through_both, burst_on_drained, pause_in_transaction, roll_over
from chaos.worker_process import LEASE_S
from penstock.testing.faulty_network import FaultyProxy

BALLAST_STEP_BYTES = 2**20


class Fault(NamedTuple):
    """``inject`` does it. ``needs``: what the rig must have."""

    sentence: str
    inject: Callable[[Rig, random.Random], Awaitable[str]]
    needs: frozenset[str] = frozenset()


# -- processes


async def _kill(rig: Rig, process: Process, away_s: float) -> None:
    process.kill()
    rig.counts[f"kill -9 of {'engines' if isinstance(process, EngineProcess) else 'workers'}"] += 1
    await trio.sleep(away_s)
    process.spawn()


async def kill_engine(rig: Rig, rng: random.Random) -> str:
    engine = rng.choice(rig.victims)
    await _kill(rig, engine, rng.uniform(0, 1))
    await engine.wait_ready()
    return engine.name


async def kill_engines(rig: Rig, rng: random.Random) -> str:
    async with trio.open_nursery() as nursery:
        for engine in rig.victims:
            nursery.start_soon(_kill, rig, engine, rng.uniform(0, 1))
    for engine in rig.engines:
        await engine.wait_ready()
    return "all"


async def restart_often(rig: Rig, rng: random.Random) -> str:
    """Killed again and again while it starts."""
    engine = rng.choice(rig.victims)
    times = rng.randint(3, 6)
    for _ in range(times):
        await _kill(rig, engine, 0)
        await trio.sleep(rng.uniform(0, 1.2))
    await engine.wait_ready()
    return f"{engine.name}, {times} times"


async def stop_engine(rig: Rig, rng: random.Random) -> str:
    engine = rng.choice(rig.victims)
    code = await engine.stop()
    rig.counts["orderly stops of engines"] += 1
    engine.spawn()
    await engine.wait_ready()
    return f"{engine.name}, exit code {code}"


async def _pause(process: Process, seconds: float) -> None:
    process.signal(signal.SIGSTOP)
    try:
        await trio.sleep(seconds)
    finally:
        process.signal(signal.SIGCONT)


async def pause_engine(rig: Rig, rng: random.Random) -> str:
    engine = rng.choice(rig.engines)
    seconds = rng.uniform(LEASE_S, 3 * LEASE_S)
    await _pause(engine, seconds)
    rig.counts["engines stopped beyond leases"] += 1
    return f"{engine.name}, {seconds:.1f} s"


async def kill_worker(rig: Rig, rng: random.Random) -> str:
    worker = rng.choice(rig.workers)
    await _kill(rig, worker, rng.uniform(0, 1))
    return worker.name


async def pause_worker(rig: Rig, rng: random.Random) -> str:
    worker: WorkerProcess = rng.choice(rig.workers)
    seconds = rng.uniform(LEASE_S, 3 * LEASE_S)
    await _pause(worker, seconds)
    rig.counts["workers stopped beyond leases"] += 1
    return f"{worker.name}, {seconds:.1f} s"


# -- PostgreSQL


async def kill_backend(rig: Rig, rng: random.Random) -> str:
    """PostgreSQL then ends all sessions and recovers."""
    sessions = rig.server.sessions()
    if not sessions:
        return "no session"
    rig.server.kill_session(rng.choice(sessions))
    rig.counts["kill -9 of backends"] += 1
    await trio.sleep(rng.uniform(0.2, 1))
    return "one session"


async def terminate_backends(rig: Rig, rng: random.Random) -> str:
    share = rng.choice([0.3, 1.0])
    with suppress(psycopg.OperationalError), _admin(rig) as connection:
        rows = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s AND random() < %s", (ROLE, share)
        ).fetchall()
        rig.counts["backends terminated"] += len(rows)
    return f"share {share}"


async def _restarted(rig: Rig, end: Callable[[], Awaitable[None]], away_s: float) -> None:
    rig.database_wanted = False
    try:
        await end()
        rig.counts["outages"] += 1
        await trio.sleep(away_s)
    finally:
        with trio.CancelScope(shield=True):
            await rig.server.start()
        rig.database_wanted = True


async def kill_postgres(rig: Rig, rng: random.Random) -> str:
    away_s = rng.uniform(0, 2)
    await _restarted(rig, rig.server.kill, away_s)
    rig.counts["kill -9 of PostgreSQL"] += 1
    return f"away for {away_s:.1f} s"


async def stop_postgres(rig: Rig, rng: random.Random) -> str:
    """Beyond the time for which the engines wait, now and then."""
    away_s = rng.choice([0.0, 1.0, 6.0])
    await _restarted(rig, rig.server.stop_immediately, away_s)
    rig.counts["immediate stops of PostgreSQL"] += 1
    return f"away for {away_s:.1f} s"


async def pause_postgres(rig: Rig, rng: random.Random) -> str:
    seconds = rng.uniform(1, 2.5 * LEASE_S)
    rig.server.pause()
    rig.counts["outages"] += 1
    try:
        await trio.sleep(seconds)
    finally:
        rig.server.resume()
    rig.counts["PostgreSQL stopped (SIGSTOP)"] += 1
    return f"{seconds:.1f} s"


async def pause_sessions(rig: Rig, rng: random.Random) -> str:
    """SIGSTOP of some of the server's processes, maybe in the middle of a COMMIT: longer than they are waited for."""
    sessions = rig.server.sessions()
    paused = rng.sample(sessions, rng.randint(1, max(1, len(sessions) // 2))) if sessions else []
    seconds = rng.uniform(1, 3 * ANSWER_TIMEOUT_S)
    for number, pause_s in ((signal.SIGSTOP, seconds), (signal.SIGCONT, 0)):
        for pid in paused:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        with trio.CancelScope(shield=True):
            await trio.sleep(pause_s)
    rig.counts["sessions stopped (SIGSTOP)"] += len(paused)
    return f"{len(paused)} sessions, {seconds:.1f} s"


async def slow_postgres(rig: Rig, rng: random.Random) -> str:
    """Runs a fifth of the time."""
    for _ in range(rng.randint(8, 20)):
        rig.server.pause()
        try:
            await trio.sleep(0.16)
        finally:
            rig.server.resume()
        await trio.sleep(0.04)
    rig.counts["slow spells of PostgreSQL"] += 1
    return "stop and go"


def _admin(rig: Rig) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(rig.dsn, autocommit=True, connect_timeout=5)


async def lock_tables(rig: Rig, rng: random.Random) -> str:
    """Somebody's migration: what the engines write waits, with a connection of their pools each."""
    table = rng.choice(["history", "token", "instance", "ready"])
    seconds = rng.uniform(0.5, 3)
    with suppress(psycopg.OperationalError, psycopg.errors.LockNotAvailable), _admin(rig) as connection:
        connection.execute("BEGIN")
        connection.execute("SET LOCAL lock_timeout = '2s'")
        connection.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE".encode())
        await trio.sleep(seconds)
        connection.execute("ROLLBACK")
    rig.counts["locked tables"] += 1
    return f"{table}, {seconds:.1f} s"


async def too_many_connections(rig: Rig, rng: random.Random) -> str:
    """All connections that an ordinary role may have are ours; those that the engines had are ended."""
    seconds = rng.uniform(1, 5)
    ours: list[psycopg.Connection[tuple[object, ...]]] = []
    try:
        # in a thread: a session ends only if what it has sent is read, and the proxy that reads it runs in this one
        with suppress(psycopg.OperationalError):
            await trio.to_thread.run_sync(_take_all_connections, rig, ours)
        await trio.sleep(seconds)
        rig.counts["times without free connections"] += 1
    finally:
        for connection in ours:
            connection.close()
    return f"{seconds:.1f} s, {len(ours)} connections"


def _take_all_connections(rig: Rig, ours: list[psycopg.Connection[tuple[object, ...]]]) -> None:
    dsn = rig.server.dsn(DATABASE, ROLE)
    with _admin(rig) as admin:
        for _ in range(2 * MAX_CONNECTIONS):
            try:
                ours.append(psycopg.connect(dsn, connect_timeout=5))
            except psycopg.OperationalError:
                pids = [connection.info.backend_pid for connection in ours]
                rows = admin.execute(
                    "SELECT pg_terminate_backend(pid, 200) FROM pg_stat_activity WHERE usename = %s AND pid <> ALL(%s)",
                    (ROLE, pids),
                ).fetchall()
                if not rows:
                    return


async def read_only(rig: Rig, rng: random.Random) -> str:
    """As a standby that was taken for the primary, or a provider's brake on a full disk."""
    seconds = rng.uniform(0.5, 6)
    with suppress(psycopg.OperationalError):
        try:
            with _admin(rig) as connection:
                connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
                connection.execute("SELECT pg_reload_conf()")
            await trio.sleep(seconds)
        finally:
            with _admin(rig) as connection:
                connection.execute("SET default_transaction_read_only = off")
                connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
                connection.execute("SELECT pg_reload_conf()")
    rig.counts["read-only spells"] += 1
    return f"{seconds:.1f} s"


async def fill_disk(rig: Rig, rng: random.Random) -> str:
    """Not a byte is free. PostgreSQL refuses statements, or panics when it was the WAL; then it is started again."""
    ballast = rig.directory / "postgres" / "ballast"
    seconds = rng.uniform(2, 6)
    try:
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * BALLAST_STEP_BYTES)
        with suppress(OSError), ballast.open("ab", buffering=0) as file:
            while True:
                file.write(b"\0" * 512)
        rig.counts["full disks"] += 1
        await trio.sleep(seconds)
    finally:
        ballast.unlink(missing_ok=True)
    with trio.fail_after(60):
        while not rig.server.runs:
            await trio.sleep(0.1)
    return f"{seconds:.1f} s"


# -- clocks


async def jump_database_clock(rig: Rig, rng: random.Random) -> str:
    """Forward; back again too, but never to before where it was."""
    assert rig.clock is not None
    seconds = rng.choice([3.0, 60.0, 3_600.0])
    with suppress(psycopg.OperationalError):
        rig.clock.advance(seconds)
        rig.counts["jumps of the database's clock"] += 1
        await trio.sleep(rng.uniform(0.2, 1.5))
        if rng.random() < 0.4:
            rig.clock.advance(-seconds)
            rig.counts["jumps of the database's clock"] += 1
            await trio.sleep(rng.uniform(0.2, 1.5))
            rig.clock.advance(seconds)  # what was armed meanwhile is due within its time
    return f"{seconds:g} s"


async def jump_engine_clocks(rig: Rig, rng: random.Random) -> str:
    """The wall clock of both engines, hours either way; sometimes one of them starts anew with it."""
    assert rig.clock_file is not None
    seconds = rng.choice([-7_200.0, -1.0, 1.0, 7_200.0])
    rig.clock_file.write_text(str(seconds))
    rig.counts["jumps of the engines' clocks"] += 1
    if rng.random() < 0.3:
        return f"{seconds:g} s, " + await kill_engine(rig, rng)
    await trio.sleep(rng.uniform(0.2, 1.5))
    return f"{seconds:g} s"


# -- networks


async def _network(proxies: list[FaultyProxy], rng: random.Random) -> str:
    """One fault of a network, on the way through these proxies."""
    kind = rng.choice(["delay", "cut", "cut mid-message", "half-close", "black hole", "reorder", "refuse"])
    seconds = rng.uniform(0.5, 3)
    chosen = rng.sample(proxies, rng.randint(1, len(proxies)))
    for proxy in chosen:
        match kind:
            case "delay":
                proxy.delay(0.01, 0.15)
            case "cut":
                proxy.cut(rng.choice([0.3, 1.0]))
            case "cut mid-message":
                proxy.cut_mid_message(rng.randint(1, 5))
            case "half-close":
                proxy.half_close()
            case "black hole":
                proxy.black_hole()
            case "reorder":
                proxy.reorder_connects(rng.randint(2, 4))
                proxy.cut()
            case _:
                proxy.refuse()
                proxy.cut()
    await trio.sleep(seconds)
    for proxy in chosen:
        proxy.heal()
        if kind in ("black hole", "half-close"):
            proxy.cut()  # what was silent for long is dropped by real networks, too
    return f"{kind}, {seconds:.1f} s"


async def database_network(rig: Rig, rng: random.Random) -> str:
    return await _network([rig.to_database], rng)


async def engine_network(rig: Rig, rng: random.Random) -> str:
    return await _network(rig.to_engines, rng)


DATABASE_PROXY, ENGINE_PROXY = frozenset({"database proxy"}), frozenset({"engine proxy"})
NIGHTS = frozenset({"database clock", "engine clock", "nights"})
ARCHIVE = frozenset({"archive"})
SMALL_DISK, SMALL_POOL = frozenset({"small disk"}), frozenset({"small pool"})

FAULTS: dict[str, Fault] = {
    "kill-engine": Fault("kill -9 of one engine of two", kill_engine),
    "kill-engines": Fault("kill -9 of all engines", kill_engines),
    "restart-storm": Fault("an engine is killed while it starts, several times", restart_often),
    "stop-engine": Fault("an orderly stop and start of one engine", stop_engine),
    "pause-engine": Fault("SIGSTOP of an engine, beyond leases", pause_engine),
    "kill-worker": Fault("kill -9 of a process of workers", kill_worker),
    "pause-worker": Fault("SIGSTOP of workers, beyond their leases", pause_worker),
    "kill-backend": Fault("kill -9 of a PostgreSQL backend", kill_backend),
    "terminate-backends": Fault("sessions terminated by an administrator", terminate_backends),
    "terminate-in-commit": Fault("sessions terminated inside long COMMITs", terminate_in_commit),
    "promote-standby": Fault("the primary is killed, its standby promoted", promote_standby, frozenset({"standby"})),
    "kill-postgres": Fault("kill -9 of PostgreSQL", kill_postgres),
    "stop-postgres": Fault("immediate stop of PostgreSQL, up to 6 s away", stop_postgres),
    "pause-postgres": Fault("SIGSTOP of all of PostgreSQL, beyond leases", pause_postgres),
    "pause-sessions": Fault("SIGSTOP of some sessions of PostgreSQL, beyond what they are waited for", pause_sessions),
    "slow-postgres": Fault("PostgreSQL that runs a fifth of the time", slow_postgres),
    "lock-tables": Fault("locked tables and a pool of two connections", lock_tables, SMALL_POOL),
    "too-many-connections": Fault("no connection to PostgreSQL is free", too_many_connections),
    "read-only": Fault("PostgreSQL takes no writes", read_only),
    "full-disk": Fault("PostgreSQL's disk is full (a small file system)", fill_disk, SMALL_DISK),
    "database-clock": Fault("the database's clock jumps", jump_database_clock, frozenset({"database clock"})),
    "engine-clock": Fault("the engines' wall clock jumps", jump_engine_clocks, frozenset({"engine clock"})),
    "database-network": Fault("faults between engines and PostgreSQL", database_network, DATABASE_PROXY),
    "pause-in-transaction": Fault("SIGSTOP of an engine in a transaction; others are timed", pause_in_transaction),
    "burst-on-drained": Fault("2,000 jobs on tables that were analyzed when drained", burst_on_drained),
    "beat-through-both": Fault("one job, heart-beaten through both engines", beat_through_both),
    "nights": Fault("a day passes, with new partitions, again and again", roll_over, NIGHTS),
    "retry-while-archiving": Fault("old failures are archived, and retried meanwhile", retry_while_archiving, ARCHIVE),
    "operate-under-kills": Fault("deletions, acknowledgements and lists through a killed engine", operate_under_kills),
    "engine-network": Fault("faults between workers and engines", engine_network, ENGINE_PROXY),
}


def may_mount() -> bool:
    """Whether a small file system can be made here."""
    return os.geteuid() == 0
