"""A fault against operators: what they acknowledge, delete and list, through an engine that is killed all the while.

Each call is repeated until it is answered. In the end all that was answered has to be so, the audit trail has to have
each deletion once, and its list each record once. Names begin with ``fault-``: the verdict leaves them out, and
complaints go into ``rig.complaints``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

import psycopg
import trio

from chaos.processes import EngineProcess
from chaos.rig import Rig
from penstock.client import Client, ClientError, Conflict, NotFound
from penstock.engine.runs.code import CodeWorkflow
from penstock.testing.definitions import definition, end, step
from penstock.wire.bulk import BulkRequest
from penstock.wire.queue import QueuePolicy
from penstock.wire.schedule import ScheduleSpec

T = TypeVar("T")

WAITING: Final = "fault-operated"
"""A workflow of which nobody ends an instance but a bulk operation."""
INSTANCES: Final = 12
KILLS: Final = 3
PAGE: Final = 7
ASK_PAUSE_S: Final = 0.05
DELETED: Final = ("DEFINITION_DELETED", "QUEUE_DELETED", "SCHEDULE_DELETED")
LEFT: Final = """
SELECT 'definition ' || id FROM definition WHERE starts_with(id, %(p)s)
  AND id NOT IN (SELECT id FROM active_version WHERE key = 0)
UNION ALL SELECT 'queue ' || name FROM queue WHERE starts_with(name, %(p)s)
UNION ALL SELECT 'schedule ' || name FROM schedule WHERE starts_with(name, %(p)s)"""
NOTED: Final = "SELECT kind, detail FROM audit WHERE position(%(p)s IN detail) > 0"


class Operator:
    """One, whose names begin with ``prefix``."""

    def __init__(self, rig: Rig, engine: EngineProcess, prefix: str) -> None:
        self._rig, self._engine, self._prefix = rig, engine, prefix
        self._acknowledged: set[str] = set()
        self._rounds: list[str] = []

    async def _surely(self, ask: Callable[[Client], Awaitable[T]], *, gone: bool = False) -> T | None:
        """Return the answer; ``gone``: what is not found was done, once it has been asked for."""
        asked = False
        while True:
            try:
                async with Client(f"http://127.0.0.1:{self._engine.port}", timeout_s=5) as client:
                    return await ask(client)
            except NotFound:
                if not (gone and asked):
                    raise
                return None
            except Conflict:
                raise
            except ClientError:
                asked = True
            await trio.sleep(ASK_PAUSE_S)

    async def work(self, over: trio.Event) -> int:
        """Return how many rounds there were, at least one, until ``over``."""
        await self._surely(
            lambda client: client.upload_definition(
                definition(step("wait", "WAIT", nextStep="end"), end(), definition_id=WAITING)
            )
        )
        while not over.is_set() or not self._rounds:
            name = f"{self._prefix}-{len(self._rounds)}"
            self._rounds.append(name)
            await self._acknowledge(f"cause:{name}", withdrawn=len(self._rounds) % 2 == 0)
            await self._delete(name)
            await self._cancel_all(name)
        return len(self._rounds)

    async def _acknowledge(self, key: str, *, withdrawn: bool) -> None:
        await self._surely(lambda client: client.acknowledge(key, count=1))
        if withdrawn:
            await self._surely(lambda client: client.withdraw_acknowledgement(key), gone=True)
        else:
            self._acknowledged.add(key)

    async def _delete(self, name: str) -> None:
        with psycopg.connect(self._rig.dsn, autocommit=True) as connection:  # as a program does that is gone
            connection.execute(
                b"INSERT INTO definition (id, version, name, content, uploaded_at, code)"
                b" VALUES (%s, 1, %s, convert_from(%s, 'UTF8'), now(), true)",
                (name, name, CodeWorkflow(name).definition()),
            )
        await self._surely(lambda client: client.put_queue(name, QueuePolicy([])))
        await self._surely(lambda client: client.put_schedule(name, ScheduleSpec(WAITING, every="P1D")))
        await self._surely(lambda client: client.delete_definition(name), gone=True)
        await self._surely(lambda client: client.delete_queue(name), gone=True)
        await self._surely(lambda client: client.delete_schedule(name), gone=True)

    async def _cancel_all(self, name: str) -> None:
        """The list of what a bulk operation did has each instance once, with those of all that were begun."""
        ids: list[str] = []
        while len(ids) < INSTANCES:
            made = await self._surely(lambda client: client.start_instance(WAITING))
            assert made is not None
            ids.append(made.id)
        with suppress(Conflict):  # it was begun, and nobody heard so
            await self._surely(lambda client: client.start_bulk(BulkRequest(action="cancel", ids=ids, note=name)))
        begun = await self._surely(lambda client: client.list_bulk(limit=PAGE))
        assert begun is not None
        done: list[str] = []
        for each in begun.items:
            if each.note == name:
                await self._surely(lambda client, id=each.id: client.wait_for_bulk(id, timeout_s=60))  # type: ignore[misc]
                done += await self._done_by(each.id)
        if sorted(done) != sorted(ids):
            self._rig.complaints.append(f"{name}: cancelled {sorted(ids)}, listed {sorted(done)}")

    async def _done_by(self, bulk_id: str) -> list[str]:
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = await self._surely(
                lambda client, cursor=cursor: client.list_instances(bulk_id=bulk_id, limit=PAGE, cursor=cursor)  # type: ignore[misc]
            )
            assert page is not None
            found += [item.id for item in page.items]
            cursor = page.next
            if cursor is None:
                return found

    async def judge(self) -> None:
        """Compare the tables, and the audit trail as it is listed, with what was answered."""
        listed: Counter[tuple[str, str]] = Counter()
        cursor: str | None = None
        while True:
            page = await self._surely(
                lambda client, cursor=cursor: client.list_audit(contains=self._prefix, limit=PAGE, cursor=cursor)  # type: ignore[misc]
            )
            assert page is not None
            listed.update((record.kind, record.detail or "") for record in page.items)
            cursor = page.next
            if cursor is None:
                break
        about = {"p": self._prefix}
        with psycopg.connect(self._rig.dsn) as connection:
            left = [what for (what,) in connection.execute(LEFT.encode(), about).fetchall()]
            noted = Counter((str(kind), str(detail)) for kind, detail in connection.execute(NOTED.encode(), about))
            held = connection.execute(b"SELECT key FROM acknowledged WHERE position(%(p)s IN key) > 0", about)
            acknowledged = {str(key) for (key,) in held}
        complaints = [f"{what} was deleted, and is there" for what in left]
        if acknowledged != self._acknowledged:
            complaints.append(f"acknowledged is {acknowledged}, and was asked for {self._acknowledged}")
        if listed != noted:
            complaints.append(f"the audit trail has {noted - listed} and lists {listed - noted}")
        complaints += [
            f"{name}: {noted[kind, name]} records of {kind}"
            for name in self._rounds
            for kind in DELETED
            if noted[kind, name] != 1
        ]
        self._rig.complaints += complaints


async def operate_under_kills(rig: Rig, rng: random.Random) -> str:
    """Kill an engine a few times while an operator works through it."""
    engine, over = rng.choice(rig.victims), trio.Event()
    operator = Operator(rig, engine, f"fault-{rng.getrandbits(32):08x}")
    rounds = 0

    async def work() -> None:
        nonlocal rounds
        rounds = await operator.work(over)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        for _ in range(KILLS):
            await trio.sleep(rng.uniform(0.1, 0.6))
            engine.kill()
            engine.spawn()
            await engine.wait_ready()
        over.set()
    await operator.judge()
    rig.counts["rounds of an operator under kills"] += rounds
    return f"{engine.name}, {rounds} rounds"
