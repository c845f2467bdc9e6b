"""Faults against waiting: what one engine is in the middle of, or one job, must not hold up the others.

Each looks at calls of a bystander meanwhile: calls through another engine, of workflows that only it knows (their ids
begin with ``fault-``, and the verdict leaves them out). What a bystander had to wait for goes into ``rig.complaints``.
"""

from __future__ import annotations

import random
import signal
import statistics
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import psycopg
import trio

from chaos.processes import EngineProcess
from chaos.rig import Rig
from penstock.client import Client, ClientError, Completion, Job, LeaseLost, StartRequest
from penstock.store.db.database import TRANSACTION_IDLE_MS
from penstock.testing.definitions import linear

T = TypeVar("T")

USUAL_S, WORST_S = 1.0, 4.0
"""How long a bystander's calls may take: half of each kind, and all of them (the machine may be busy with others)."""
PROBE, BURST, BEATEN = "fault-probe", "fault-burst", "fault-beaten"
WORKER = "bystander"
CATCH_TRIES = 200
ENDED_S = 10.0
"""Beyond its time, for the server to get to end a transaction: the machine may be busy with others."""
HELD_MAX = 5
BURST_ITEMS = 2_000
BURST_POLL = 250
DAY_S = 86_400.0
STALE_TABLES = "('token', 'ready', 'instance', 'timer', 'job_note', 'instance_key')"


class Bystander:
    """Calls through one engine, each with the time it took."""

    def __init__(self, client: Client, definition: str) -> None:
        self.client = client
        self.definition = definition
        self.took_s: defaultdict[str, list[float]] = defaultdict(list)
        self.refused: list[str] = []

    async def timed(self, name: str, call: Awaitable[T]) -> T:
        """One call."""
        began = trio.current_time()
        try:
            return await call
        except ClientError as error:
            self.refused.append(f"{name}: {error}")
            raise
        finally:
            self.took_s[name].append(trio.current_time() - began)

    async def round(self) -> None:
        """An instance from its start to its end, and one that is cancelled: both group-commit queues."""
        with suppress(ClientError):  # noted in `refused`
            await self._round()

    async def _round(self) -> None:
        instance = await self.timed("start", self.client.start_instance(self.definition))
        await self.timed("cancel", self.client.cancel_instance(instance.id))
        await self.timed("start", self.client.start_instance(self.definition))
        for job in await self.poll():
            await self.timed("heartbeat", self.client.heartbeat_job(job.id, WORKER))
            await self.timed("complete", self.client.complete_job(job.id, WORKER))

    async def poll(self, max_jobs: int = 10) -> list[Job]:
        """Jobs, without waiting for any."""
        return await self.timed("poll", self.client.poll_jobs(WORKER, [self.definition], max_jobs=max_jobs, lease_s=60))

    async def clear(self) -> None:
        """End what is left."""
        while jobs := await self.poll(BURST_POLL):
            await self.client.complete_jobs(WORKER, [Completion(job_id=job.id) for job in jobs])

    def complaints(self, meanwhile: str) -> list[str]:
        """Kinds of calls that had to wait."""
        slow = [
            f"{name} took {statistics.median(took):.2f} s, {max(took):.2f} s at worst, {meanwhile}"
            for name, took in self.took_s.items()
            if statistics.median(took) > USUAL_S or max(took) > WORST_S
        ]
        return slow + [f"refused {meanwhile}: {each}" for each in self.refused]


@asynccontextmanager
async def bystander(rig: Rig, engine: EngineProcess, definition: str, meanwhile: str) -> AsyncGenerator[Bystander]:
    """One at an engine; complains at the end."""
    async with Client(f"http://127.0.0.1:{engine.port}", timeout_s=30) as client:
        await client.upload_definition(linear(1, definition_id=definition, job_type=definition))
        found = Bystander(client, definition)
        yield found
        rig.complaints += found.complaints(meanwhile)
        await found.clear()


def _rows(dsn: str, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as connection:
        return connection.execute(sql.encode()).fetchall()


def _in_transaction(rig: Rig, engine: EngineProcess) -> int:
    """Sessions of an engine that are silent in a transaction."""
    sql = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{engine.name}'"
    sql += " AND state LIKE 'idle in transaction%'"
    return int(str(_rows(rig.dsn, sql)[0][0]))


def _held_instances(rig: Rig) -> Sequence[str]:
    with psycopg.connect(rig.dsn, connect_timeout=5) as connection:
        free = connection.execute("SELECT id FROM token WHERE id = instance_id FOR UPDATE SKIP LOCKED").fetchall()
        found = connection.execute(
            "SELECT to_hex(id) FROM token WHERE id = instance_id AND id <> ALL(%s) LIMIT %s",
            ([row[0] for row in free], HELD_MAX),
        ).fetchall()
        connection.rollback()
    return [str(row[0]) for row in found]


async def _stop_in_transaction(rig: Rig, engine: EngineProcess, rng: random.Random) -> bool:
    """SIGSTOP just when the engine has a transaction open that waits for it."""
    for _ in range(CATCH_TRIES):
        await trio.sleep(rng.uniform(0, 0.03))
        engine.signal(signal.SIGSTOP)
        await trio.sleep(0.05)  # what the server was doing for it is done
        if _in_transaction(rig, engine):
            return True
        engine.signal(signal.SIGCONT)
    return False


async def pause_in_transaction(rig: Rig, rng: random.Random) -> str:
    """Beyond the time for which a transaction may be silent; calls for the same instances through the other engine."""
    stopped, other = rng.sample(rig.engines, 2)
    async with bystander(rig, other, PROBE, "while another engine was stopped in a transaction") as probe:
        try:
            if not await _stop_in_transaction(rig, stopped, rng):
                return f"{stopped.name} was not met in a transaction"
            rig.counts["engines stopped in a transaction"] += 1
            held = _held_instances(rig)
            rig.counts["instances held by them"] += len(held)
            end = trio.current_time() + TRANSACTION_IDLE_MS / 1000 + 1
            async with trio.open_nursery() as nursery:
                for instance in held:
                    nursery.start_soon(_call_for, probe.client, instance)
                while trio.current_time() < end:
                    await probe.round()
            with trio.move_on_after(ENDED_S):  # nobody but the server ends it: the engine stands still
                while _in_transaction(rig, stopped):
                    await trio.sleep(0.1)
            if _in_transaction(rig, stopped):
                rig.complaints.append(f"{stopped.name}'s transaction was open for more than its time")
        finally:
            stopped.signal(signal.SIGCONT)
    return f"{stopped.name}, {len(held)} instances held"


async def _call_for(client: Client, instance: str) -> None:
    """Something that needs the instance and changes nothing."""
    with suppress(ClientError):
        await client.signal(instance, "no such step")


async def burst_on_drained(rig: Rig, rng: random.Random) -> str:
    """The planner is told that the tables are drained, as an analyze of an empty queue does; then many jobs come."""
    engine = rng.choice(rig.engines)
    async with bystander(rig, engine, BURST, "in a burst on tables that were analyzed when drained") as found:
        try:
            _rows(
                rig.dsn,
                "UPDATE pg_class SET reltuples = 1, relpages = 251 WHERE relkind = 'r'"
                f" AND (relname IN {STALE_TABLES} OR relname LIKE 'history_%') RETURNING 1",
            )
            await found.client.start_instances([StartRequest(definition_id=BURST)] * BURST_ITEMS)
            done = 0
            while jobs := await found.poll(BURST_POLL):
                results = [Completion(job_id=job.id) for job in jobs]
                await found.timed("complete", found.client.complete_jobs(WORKER, results))
                done += len(jobs)
            rig.counts["jobs in bursts"] += done
        finally:
            with psycopg.connect(rig.dsn, autocommit=True) as connection:
                connection.execute("ANALYZE")
    return f"{engine.name}, {done} jobs"


async def beat_through_both(rig: Rig, rng: random.Random) -> str:
    """One job, heart-beaten through both engines at once, over ends of its lease: it stays its worker's."""
    seconds = rng.uniform(4, 8)
    one, two = rig.engines[:2]
    beats = 0
    async with (
        bystander(rig, one, BEATEN, "while one job was heart-beaten through two engines") as found,
        Client(f"http://127.0.0.1:{two.port}", timeout_s=30) as other,
    ):
        await found.client.start_instance(BEATEN)
        (job,) = await found.poll()

        async def beat(client: Client) -> None:
            nonlocal beats
            try:
                await client.heartbeat_job(job.id, WORKER, lease_s=1)
                beats += 1
            except LeaseLost:
                rig.complaints.append("a heartbeat of the only worker that ever had the job was refused")

        end = trio.current_time() + seconds
        while trio.current_time() < end:
            async with trio.open_nursery() as nursery:
                for client in (found.client, other) * rng.randint(1, 3):
                    nursery.start_soon(beat, client)
            await trio.sleep(rng.choice([0, 0, 0.02, 1.3]))  # beyond the lease now and then
        await rng.choice([found.client, other]).complete_job(job.id, WORKER)
    rig.counts["heartbeats of one job"] += beats
    return f"{seconds:.1f} s, {beats} heartbeats"


async def roll_over(rig: Rig, rng: random.Random) -> str:
    """A night passes for engines and database; the next partitions are made at the start of an engine, under load."""
    assert rig.clock is not None
    assert rig.clock_file is not None
    rig.clock.advance(DAY_S)
    rig.clock_file.write_text(str(float(rig.clock_file.read_text() or 0) + DAY_S))
    rig.counts["nights"] += 1
    await trio.sleep(rng.uniform(0.2, 1.5))
    engine = rng.choice(rig.engines)
    await engine.stop()
    engine.spawn()
    await engine.wait_ready()
    for parent in ("history", "audit"):
        ((left,),) = _rows(rig.dsn, f"SELECT count(*) FROM {parent}_other")
        if left:
            rig.complaints.append(f"{left} rows of {parent} found no partition of their day")
    return f"a day, {engine.name} started anew"
