"""Executors on the Work stream, on a real engine and database: the fence, the end of a stream, its bounds."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
from grpclib.const import Status
from psycopg import OperationalError

from penstock.engine.queues.journal_items import RULES, UPDATE_RULES
from penstock.engine.runs.code import CodeWorkflow
from penstock.rpc import run_stream_handler
from penstock.settings import DispatchMode
from penstock.store.rows import run_claims
from penstock.wire import penstock_v1 as w
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.rpc.served import WORKER, Served, Work, served

__all__ = ["make_driver"]  # pytest finds the fixture here
ORDER = CodeWorkflow("order")
JOURNAL = "SELECT kind::int, path, attempt::int FROM journal ORDER BY pos"


@pytest.fixture
async def driver(make_driver: MakeDriver) -> Driver:
    return make_driver(services=True, lease_min_seconds=1, journal_max_records=40)


@pytest.fixture
async def grpc(driver: Driver) -> AsyncGenerator[Served]:
    with trio.fail_after(60):
        async with served(driver.engine) as run:
            yield run


class HandlerOfRuns(Work):
    """The stream of an executor. What came of each list is kept until it is asked for."""

    @classmethod
    async def opened(cls, grpc: Served, credit: int = 5, **fields: Any) -> HandlerOfRuns:
        handler = cls(grpc.client, await grpc.client.open(WORKER + "Work"))
        await handler.send(worker_id="w", executor=True, credits=[w.Credit(ORDER.job_type, credit)], **fields)
        return handler

    async def gather(self, **counts: int) -> dict[str, list[Any]]:
        """So many of each list, in however many messages they come."""
        found: dict[str, list[Any]] = {name: [] for name in counts}
        while any(len(found[name]) < count for name, count in counts.items()):
            message = await self.next()
            for name in counts:
                found[name] += getattr(message, name)
        return found

    async def run(self) -> w.Run:
        [run] = (await self.gather(runs=1))["runs"]
        return run

    async def append(self, *items: w.RunAppend) -> list[w.RunAppended]:
        await self.send(appends=list(items))
        return (await self.gather(appended=len(items)))["appended"]


def done(run: w.Run, path: str, payload: str = "1", attempt: int | None = None, mail: int = 0) -> w.RunAppend:
    record = w.RunRecord(kind=1, path=path, payload=payload, attempt=1)
    return w.RunAppend(run.job_id, run.attempt if attempt is None else attempt, mail=mail, records=[record])


async def test_only_the_stream_that_has_a_run_writes_its_journal(driver: Driver, grpc: Served) -> None:
    started = await driver.engine.code.start(ORDER, b'{"n":1}', id="o-1")
    first, second = await HandlerOfRuns.opened(grpc), await HandlerOfRuns.opened(grpc, credit=0)
    run = await first.run()
    assert (run.instance_id, run.attempt, run.expiries) == (started.id, 1, 0)
    answers = await first.append(done(run, "/0"), done(run, "/1", attempt=2), done(run, "/1", attempt=0))
    assert [answer.outcome for answer in answers] == [w.OutcomeCode.OK, *[w.OutcomeCode.LEASE_LOST] * 2]
    lost = w.OutcomeCode.LEASE_LOST
    assert [answer.outcome for answer in await second.append(done(run, "/2"))] == [lost]
    unknown = w.Run(job_id="no id", attempt=1)
    assert [answer.outcome for answer in await second.append(done(unknown, "/2"))] == [lost]

    await first.send(end=True)  # however a stream ends
    assert (await first.ended())[0] is Status.OK
    await second.send(credits=[w.Credit(ORDER.job_type, 1)])
    again = await second.run()
    assert (again.instance_id, again.attempt, again.key) == (started.id, 2, "o-1")
    assert again.page is not None
    assert [record.path for record in again.page.records] == ["/0"]
    reopened = await HandlerOfRuns.opened(grpc, credit=0)
    assert [answer.outcome for answer in await reopened.append(done(run, "/3"))] == [lost]
    await second.send(finishes=[w.RunFinish(again.job_id, 2, result="7"), w.RunFinish(again.job_id, 2, result="8")])
    ended = (await second.gather(finished=2))["finished"]
    assert ended[0].outcome == w.OutcomeCode.OK
    assert driver.rows(JOURNAL) == [(1, "/0", 1)]
    assert (await driver.engine.instances.get(started.id)).status == "COMPLETED"


async def test_a_full_journal_and_a_long_one(driver: Driver, grpc: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_stream_handler, "PAGE_MAX_BYTES", 1_000)
    await driver.engine.code.start(ORDER)
    handler = await HandlerOfRuns.opened(grpc)
    run = await handler.run()
    odd = [w.RunRecord(kind=6, payload="1"), w.RunRecord(kind=70_000), w.RunRecord(kind=1, took_ms=1 << 31)]
    odd += [w.RunRecord(kind=1, attempt=-1), w.RunRecord(kind=1, payload="{"), w.RunRecord(kind=1, payload="1\0")]
    wrong = await handler.append(*(w.RunAppend(run.job_id, 1, records=[record]) for record in odd))
    assert [answer.outcome for answer in wrong] == [w.OutcomeCode.INVALID] * len(odd)
    child: dict[str, Any] = {"workflow": "order", "version": 1, "key": "k"}
    children = [w.RunChild(run.job_id, 1, path, id=id, **child) for path, id in (("/\0", "a"), ("/1", "a\0"))]
    children += [w.RunChild(run.job_id, 1, "/1", workflow="no name", version=1, key="k")]
    await handler.send(children=[*children, w.RunChild(run.job_id, 1, "/1", "", "order", 0, key="k")])
    assert [each.outcome for each in (await handler.gather(children=4))["children"]] == [w.OutcomeCode.INVALID] * 4
    large = f'"{"x" * 400}"'
    await handler.append(*(done(run, f"/{n}", large) for n in range(40)))
    [refused] = await handler.append(done(run, "/40"))
    assert (refused.outcome, refused.full) == (w.OutcomeCode.INVALID, True)
    reads = [w.RunRead(run.job_id, run.attempt) for _ in range(30)]  # many more than are read ahead
    await handler.send(reads=[*reads, w.RunRead(run.job_id, run.attempt, "not hex")])
    pages = (await handler.gather(pages=31))["pages"]
    assert pages.pop().outcome == w.OutcomeCode.INVALID
    assert {(page.more, len(page.records)) for page in pages} == {(True, len(pages[0].records))}
    seen, after = 0, ""
    while True:
        await handler.send(reads=[w.RunRead(run.job_id, run.attempt, after)])
        [page] = (await handler.gather(pages=1))["pages"]
        seen, after = seen + len(page.records), page.records[-1].position
        if not page.more:
            break
    assert seen == 40


async def test_a_sender_who_is_not_answered_is_read_on_later(
    driver: Driver, grpc: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.rpc.work_stream.PENDING_MAX_BYTES", 1)
    await driver.engine.code.start(ORDER)
    handler = await HandlerOfRuns.opened(grpc)
    run = await handler.run()
    for n in range(20):  # each of them is more than may be pending
        await handler.send(appends=[done(run, f"/{n}")])
    answers = (await handler.gather(appended=20))["appended"]
    assert {answer.outcome for answer in answers} == {w.OutcomeCode.OK}


async def test_runs_that_could_not_be_reported_cost_no_credit(
    driver: Driver, grpc: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = await driver.engine.code.start(ORDER)
    read, failed = run_claims.taken_runs, list[int]()

    async def fail_once(*args: Any) -> Any:
        if not failed:
            failed.append(1)
            raise OperationalError("the server closed the connection unexpectedly")
        return await read(*args)

    monkeypatch.setattr(run_claims, "taken_runs", fail_once)
    handler = await HandlerOfRuns.opened(grpc, credit=1)
    run = await handler.run()
    assert (run.instance_id, run.attempt, failed) == (started.id, 2, [1])


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"executor": True, "completions": [w.Completion("1-1-1")]}, Status.INVALID_ARGUMENT, "no results"),
        ({"executor": True, "credits": [w.Credit("work", 1)]}, Status.INVALID_ARGUMENT, "executors take 'code:"),
        ({"reads": [w.RunRead("1-1-1", 1)]}, Status.INVALID_ARGUMENT, "executor: is missing"),
        ({"credits": [w.Credit("code:order@1", 1)]}, Status.PERMISSION_DENIED, "for executors"),
    ],
)
async def test_workers_and_executors_are_kept_apart(
    driver: Driver, grpc: Served, fields: dict[str, Any], status: Status, reason: str
) -> None:
    work = Work(grpc.client, await grpc.client.open(WORKER + "Work"))
    await work.send(worker_id="w", **fields)
    found, said = await work.ended()
    assert found is status
    assert reason in said


async def test_runs_are_taken_while_jobs_go_through_kafka(make_driver: MakeDriver) -> None:
    driver = make_driver(services=True, dispatch_mode=DispatchMode.KAFKA_OUTBOX)
    with trio.fail_after(60):
        async with served(driver.engine) as grpc:
            started = await driver.engine.code.start(ORDER)
            handler = await HandlerOfRuns.opened(grpc)
            assert (await handler.run()).instance_id == started.id
            work = Work(grpc.client, await grpc.client.open(WORKER + "Work"))
            await work.send(worker_id="w", credits=[w.Credit("work", 1)])
            assert (await work.ended())[0] is Status.FAILED_PRECONDITION


async def test_an_older_app_gets_no_run_of_newer_rules(driver: Driver, grpc: Served) -> None:
    """What it began itself it goes on with, and its records are those of before."""
    old = await HandlerOfRuns.opened(grpc)
    await driver.engine.code.start(ORDER, id="old")
    mine = await old.run()
    assert mine.rules == 0
    await old.append(done(mine, "/0"))
    await old.send(end=True)
    assert (await old.ended())[0] is Status.OK
    old = await HandlerOfRuns.opened(grpc)
    again = await old.run()
    assert (again.instance_id, again.rules) == (mine.instance_id, 0)
    await old.send(finishes=[w.RunFinish(again.job_id, again.attempt, result="7")])
    await old.gather(finished=1)

    await old.send(credits=[w.Credit(ORDER.job_type, -5)])
    await old.gather(credits=1)
    new = await HandlerOfRuns.opened(grpc, rules=RULES)
    await driver.engine.code.start(ORDER, id="new")
    run = await new.run()
    assert run.rules == RULES
    records = [
        w.RunRecord(kind=1, path="/0", payload="1", attempt=1, rules=rules) for rules in (RULES, UPDATE_RULES + 1)
    ]
    items = [w.RunAppend(run.job_id, run.attempt, records=[record]) for record in records]
    written, refused = await new.append(*items)
    assert (written.outcome, refused.outcome) == (w.OutcomeCode.OK, w.OutcomeCode.INVALID)
    await new.send(end=True)
    assert (await new.ended())[0] is Status.OK
    await old.send(credits=[w.Credit(ORDER.job_type, 1)])
    blocked = "SELECT reason FROM history WHERE kind = 10"
    while not (found := driver.rows(blocked)):
        await trio.sleep(0.02)
    assert "upgrade penstock in all Apps" in found[0][0]
    assert driver.rows("SELECT path, rules::int FROM journal ORDER BY pos") == [("/0", None), ("/0", RULES)]
    other = (await driver.engine.code.start(ORDER, id="other")).id
    assert (await old.run()).instance_id == other  # its credit is as it was
