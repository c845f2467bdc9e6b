"""What tests do with runs of durable workflows: an executor by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.core.rules.state import InstanceStatus
from penstock.engine.queues.journal_items import AppendAnswer, ClaimedRun, JournalPage, NewRecord, RunEnd, RunLease
from penstock.engine.runs.code import CodeWorkflow
from penstock.engine.schedules.declared import InCode
from penstock.wire.queue import QueuePolicy
from penstock.wire.schedule import ScheduleSpec
from tests.engine.driver import Driver

ORDER = CodeWorkflow("order")
LEFT = """SELECT x.kind FROM (
  SELECT 'definition', id FROM definition WHERE id NOT IN (SELECT id FROM active_version WHERE key = 0)
  UNION ALL SELECT 'queue', name FROM queue UNION ALL SELECT 'schedule', name FROM schedule) x (kind, name)
WHERE x.name = %s ORDER BY 1"""
"""What of a workflow nobody has deleted."""
HOLDER = "e0.0123abcd/shop-1"
DONE, FAILED, STOPPED, CLOCK, RETRY = 1, 2, 3, 5, 9


async def start(driver: Driver, arguments: dict[str, Any] | None = None, id: str | None = None) -> str:
    return (await driver.engine.code.start(ORDER, msgspec.json.encode(arguments or {}), id=id)).id


async def take(driver: Driver, holder: str = HOLDER, *, wait_s: float = 5, n: int = 1) -> list[ClaimedRun]:
    return await driver.engine.code.take(holder, [ORDER], n, wait_s=wait_s)


async def begin(driver: Driver, holder: str = HOLDER, **fields: Any) -> ClaimedRun:
    """A new run, held."""
    instance = await start(driver, **fields)
    taken = await take(driver, holder)
    assert [run.instance_id for run in taken] == [instance]
    return taken[0]


def done(path: str, payload: str = '"ok"', **fields: Any) -> NewRecord:
    return NewRecord(kind=DONE, path=path, name="charge", payload=payload, **fields)


async def append(driver: Driver, held: RunLease, *records: NewRecord, after: int = 0, mail: int = 0) -> AppendAnswer:
    return await driver.engine.journal.append(held, records, after=after, mail=mail)


async def finish(driver: Driver, held: RunLease, result: Any = None, *, mail: int = 0) -> bool:
    end = RunEnd(InstanceStatus.COMPLETED, msgspec.json.encode({"result": result}))
    return await driver.engine.journal.finish(held, end, mail=mail)


async def continue_as_new(
    driver: Driver, held: RunLease, payload: str = "{}", *, name: str = "1", mail: int = 0, kept: Sequence[int] = ()
) -> bool:
    return await driver.engine.journal.continue_as_new(held, payload, name=name, mail=mail, kept=kept)


async def read(driver: Driver, held: RunLease, after: int = 0) -> JournalPage:
    return await driver.engine.journal.read(held.instance, after)


async def paths(driver: Driver, held: RunLease) -> list[str]:
    return [record.path for record in (await read(driver, held)).records]


async def undeclared(driver: Driver, name: str) -> None:
    """A workflow whose code had a schedule and a queue with limits of that name, and has them no more."""
    workflow, engine = CodeWorkflow(name), driver.engine
    await engine.code.register(workflow, anew=True)
    spec, policy = msgspec.json.encode(ScheduleSpec(every="P1D")), msgspec.json.encode(QueuePolicy([], concurrency=10))
    await engine.declarations.register(workflow, InCode(spec, name, policy))
    await engine.declarations.register(workflow, InCode())


def left(driver: Driver, name: str) -> list[str]:
    """Return which of the workflow, its queue and its schedule nobody has deleted."""
    return [kind for (kind,) in driver.rows(LEFT, name)]
