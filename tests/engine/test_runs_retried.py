"""Failed durable runs that go on: what of their journals stays, who may take them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.rules.state import InstanceStatus
from penstock.engine.queues.journal_items import ClaimedRun, NewRecord, RunEnd
from penstock.errors import BadRequest, Conflict, LeaseLost
from penstock.testing.definitions import linear
from tests.engine.driver import Driver
from tests.engine.runs import FAILED, RETRY, append, begin, done, finish, paths, read, start, take


def failed(path: str) -> NewRecord:
    return NewRecord(FAILED, path, "charge", '{"type": "Declined"}')


async def fail(driver: Driver, run: ClaimedRun, *records: NewRecord, mail: int = 0) -> None:
    if records:
        await append(driver, run.run_lease, *records, mail=mail)
    end = RunEnd(InstanceStatus.FAILED, failure="Declined", view=b'"last"')
    assert await driver.engine.journal.finish(run.run_lease, end, mail=mail)


async def retry(driver: Driver, run: ClaimedRun, path: str | None = None) -> None:
    await driver.engine.instances.retry_run(run.instance_id, path, "again")


def kinds(driver: Driver) -> list[Any]:
    return driver.rows("SELECT kind, path FROM journal ORDER BY pos")


async def test_a_failed_run_goes_on_from_the_step_that_failed(driver: Driver) -> None:
    run = await begin(driver, id="a-1", arguments={"n": 1})
    await driver.engine.runs.send(run.instance_id, "go", b"1")
    await append(
        driver, run.run_lease, done("/0"), NewRecord(RETRY, "/1", "charge", '{"due": 1.0, "begun_at": 1.0}'), mail=1
    )
    await fail(driver, run, failed("/1"), mail=1)
    driver.clock.advance(3600)
    await retry(driver, run)
    assert kinds(driver) == [(6, ""), (1, "/0"), (5, "")], "the attempt before is time that has passed"
    assert driver.rows("SELECT count(*) FROM abnormal_end") == [(0,)]
    [again] = await take(driver)
    assert again.run_lease.seq > run.run_lease.seq
    assert again.run_lease.attempt == 2, "who takes it knows that there is a journal"
    assert (again.started_at, again.arguments, again.key) == (run.started_at, b'{"n": 1}', "a-1")
    assert again.page is not None
    assert (len(again.page.records), again.mail) == (3, 0)
    with pytest.raises(LeaseLost):
        await append(driver, run.run_lease, done("/1"))
    await driver.engine.runs.send(run.instance_id, "go", b"2")
    assert await finish(driver, again.run_lease, "paid", mail=1)
    assert await driver.status(run.instance_id) == "COMPLETED"
    assert await driver.variables(run.instance_id) == {"n": 1, "result": "paid"}
    audit = await driver.engine.instances.audit(run.instance_id)
    assert [each.detail for each in audit.items if each.kind == "RETRIED"] == ["again"]


async def test_where_it_goes_on_may_be_said(driver: Driver) -> None:
    run = await begin(driver)
    records = (done("/0"), done("/1.[a]/0"), done("/1.[b]/0"), failed("/2"), done("/3"))
    await fail(driver, run, *records)
    with pytest.raises(Conflict, match=r"'charge' at /3 was done after the step that failed, at /2: say from where"):
        await retry(driver, run)
    for path in ("/9", "/1.[", "", "/"):
        with pytest.raises(BadRequest, match=f"fromStepId: nothing with the path '{path}'".replace("[", r"\[")):
            await retry(driver, run, path)
    assert len(kinds(driver)) == 6, "and nothing is changed"
    await retry(driver, run, "end")
    for path, left in (("/2", 3), ("/1", 1), ("start", 0)):
        [again] = await take(driver)
        assert len((await read(driver, again.run_lease)).records) == 5 if path == "/2" else True
        await fail(driver, again)
        await retry(driver, again, path)
        assert len(kinds(driver)) == left
    assert (await take(driver))[0].run_lease.attempt == 5


async def test_messages_stay_and_a_cancel_may_come_again(driver: Driver) -> None:
    run = await begin(driver)
    runs, id = driver.engine.runs, run.instance_id
    await append(driver, run.run_lease, done("/0"))
    await runs.send(id, "go", b"1", dedup="once")
    await driver.cancel(id)
    await fail(driver, run, failed("/1"), mail=2)
    await retry(driver, run, "/0")
    assert kinds(driver) == [(6, "")]
    [again] = await take(driver)
    await runs.send(id, "go", b"1", dedup="once")
    await driver.cancel(id)
    assert [record.kind for record in (await read(driver, again.run_lease)).records] == [6, 7]
    await fail(driver, again, done("/0"), failed("/1"), mail=1)
    await retry(driver, again)
    await driver.cancel(id)
    assert [record.kind for record in (await read(driver, again.run_lease)).records] == [6, 7, 1], "it was cancelled"


async def test_only_what_has_failed_is_retried(driver: Driver) -> None:
    run = await begin(driver)
    for _ in range(2):
        with pytest.raises(Conflict, match="only a FAILED instance can be retried"):
            await retry(driver, run)
        with pytest.raises(Conflict, match="only a FAILED instance can be retried"):
            await driver.retry(run.instance_id)
        if await driver.status(run.instance_id) == "ACTIVE":
            await finish(driver, run.run_lease)
    for fails in (False, True):
        graph = await driver.run(linear(1))
        if fails:
            await driver.fail(await driver.one("work"), retryable=False)
        with pytest.raises(Conflict, match="is of a definition, not a durable run"):
            await driver.engine.instances.retry_run(graph, None)


async def test_the_calls_for_instances_retry_runs(driver: Driver) -> None:
    """So do REST, the console, the client and a bulk operation."""
    run = await begin(driver)
    await fail(driver, run, done("/0"), failed("/1"))
    assert (await driver.retry(run.instance_id)).status == "ACTIVE"
    [again] = await take(driver)
    assert await paths(driver, again.run_lease) == ["/0"]
    await fail(driver, again, failed("/1"))
    with pytest.raises(BadRequest, match="stepId: a durable run has no steps"):
        await driver.engine.repair.retry_from(run.instance_id, "/0", "run", None)
    assert (await driver.engine.repair.retry_from(run.instance_id, "/0", None, None)).status == "ACTIVE"
    assert kinds(driver) == []
    [again] = await take(driver)
    await fail(driver, again, failed("/0"))
    now = driver.clock.now()
    await driver.engine.repair.move_one_of_many(again.run_lease.instance, None, "end", None, now, retries=True)
    assert kinds(driver) == [(FAILED, "/0")]
    [again] = await take(driver)
    driver.clock.advance(60)
    await fail(driver, again)
    with pytest.raises(Conflict, match="failed again since"):
        await driver.engine.instances.retry_one_of_many(again.run_lease.instance, None, now)
    assert await start(driver), "others start as ever"
