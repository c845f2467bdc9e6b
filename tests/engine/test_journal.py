"""Journals of runs: what executors append is there in order, fenced, and read back as it was."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec
import psycopg
import pytest
import trio

from penstock.core.graph.definition import InvalidDefinition
from penstock.core.rules.state import InstanceStatus
from penstock.engine.queues.journal_items import RULES, RULES_VERSION, NewRecord, RunEnd
from penstock.engine.runs.code import CodeWorkflow
from penstock.errors import BadRequest, Conflict, IdempotencyConflict, LeaseLost, PayloadTooLarge, Unavailable
from penstock.settings.secret import Secret
from penstock.store.rows import engines as engine_store
from penstock.store.rows import journal as store
from penstock.testing.definitions import definition, end, linear, service
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.engine.runs import CLOCK, HOLDER, ORDER, RETRY, append, begin, done, finish, paths, read, start, take


async def test_a_run_from_its_start_to_its_end(driver: Driver) -> None:
    instance = await start(driver, {"o": {"lines": [1]}}, id="order-17")
    [run] = await take(driver)
    assert (run.instance_id, run.job_type, run.arguments) == (instance, "code:order@1", b'{"o": {"lines": [1]}}')
    assert (run.run_lease.attempt, run.run_lease.holder, run.mail, run.expiries) == (1, HOLDER, 0, 0)
    first = await append(driver, run.run_lease, done("/0"), done("/1"))
    second = await append(driver, run.run_lease, NewRecord(CLOCK), after=first.placed[-1].pos)
    page = await read(driver, run.run_lease)
    assert [(r.pos, r.at) for r in page.records] == [*first.placed, *second.placed]
    assert [r.path for r in page.records] == ["/0", "/1", ""]
    assert (page.mail, page.more, first.reread) == (0, False, False)
    assert await finish(driver, run.run_lease, {"paid": True})
    view = await driver.view(instance)
    assert (view.status, view.business_key) == ("COMPLETED", "order-17")
    assert await driver.variables(instance) == {"o": {"lines": [1]}, "result": {"paid": True}}
    assert [(item.step_id, item.status) for item in await driver.history(instance)] == [
        ("run", "COMPLETED"), ("end", "COMPLETED"),
    ]  # fmt: skip


async def test_all_fields_of_a_record_come_back_also_sealed(make_driver: MakeDriver) -> None:
    record = NewRecord(RETRY, "/2.[sku-9]/0", "chárge", '{"a": "\\u0000"}', 0xFFFFFFFE, 3, 1200, "survey", 1)
    odd = NewRecord(1, "/3", None, "~zip:AAAA", 5)
    for keys in (None, Secret("k=" + "A" * 43 + "=")):
        driver = make_driver(encryption_keys=keys)
        run = await begin(driver)
        await append(driver, run.run_lease, record, odd)
        found = (await read(driver, run.run_lease)).records
        assert [NewRecord(r.kind, *r[3:]) for r in found] == [record, odd]
        stored = driver.rows(f"SELECT payload FROM journal WHERE instance_id = {run.run_lease.instance} ORDER BY pos")
        assert [("$enc" in payload) for (payload,) in stored] == [keys is not None] * 2
        await finish(driver, run.run_lease)


async def test_what_others_wrote_has_the_rules_of_who_wrote_next(driver: Driver) -> None:
    run = await begin(driver)
    engine, mail = driver.engine, 0
    for record in (done("/0"), None, None, done("/1"), None, done("/2", rules=1), None):
        if record is None:
            await engine.runs.send(run.instance_id, "go", b"1")
        else:
            after = (await read(driver, run.run_lease)).records
            await append(driver, run.run_lease, record, after=after[-1].pos if after else 0, mail=mail)
        mail = (await read(driver, run.run_lease)).mail or 0
    expected = [0, 0, 0, 0, 1, 1, None]
    rows = (await read(driver, run.run_lease)).records
    assert [row.rules for row in rows] == expected
    async with engine.database.connection() as connection:
        for size in range(1, len(rows)):  # wherever a page ends
            pages = list[store.JournalRow]()
            while len(pages) < len(rows):
                after = pages[-1].pos if pages else 0
                pages += (await store.read(connection, run.run_lease.instance, after, max_rows=size))[0]
            assert [row.rules for row in pages] == expected


async def test_rules_of_before_count_while_an_older_engine_lives(driver: Driver) -> None:
    driver.rows(
        "INSERT INTO engine (number, holder, leased_until, description, dispatch_mode, schema_version)"
        " VALUES (900, gen_random_uuid(), penstock_now() + interval '1 h', 'old', 'long_poll', 20) RETURNING 1"
    )
    needed = "SELECT value FROM setting WHERE name = 'schema_version_needed'"
    assert (await begin(driver)).rules == 0
    assert int(driver.rows(needed)[0][0]) < RULES_VERSION
    driver.rows("UPDATE engine SET leased_until = penstock_now() RETURNING 1")
    driver.engine.code._rules_refused_at = -inf
    assert (await begin(driver)).rules == RULES
    assert driver.rows(needed) == [(str(RULES_VERSION),)]  # no older one joins any more


async def test_executors_that_claim_first_at_once_have_the_newest_rules(driver: Driver) -> None:
    given: list[int] = []

    async def ask() -> None:
        given.append(await driver.engine.code.rules())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
    assert given == [RULES] * 3


async def test_a_database_that_is_away_says_nothing_of_rules(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes back to the queue. It was delivered by the oldest rules, which lose messages that do not fit."""
    driver = make_driver(services=True)  # the run goes back in the background, and may do so after the next poll

    async def away(connection: object, version: int) -> None:
        raise psycopg.OperationalError("the server closed the connection")

    instance = await start(driver)
    with monkeypatch.context() as patch:
        patch.setattr(engine_store, "require_version", away)
        with pytest.raises(Unavailable):
            await take(driver)
    [run] = await take(driver)
    assert (run.instance_id, run.rules) == (instance, RULES)


@pytest.mark.parametrize("change", [{"seq": 1}, {"attempt": 2}, {"holder": "e0.0123abcd/shop-2"}, {"instance": 5}])
async def test_who_does_not_hold_the_run_writes_nothing(driver: Driver, change: dict[str, Any]) -> None:
    run, other = await begin(driver), await begin(driver)
    wrong = run.run_lease._replace(**change)
    journal = driver.engine.journal
    refused = 0
    async with trio.open_nursery() as nursery:  # beside one that is right, in one statement

        async def attempt() -> None:
            nonlocal refused
            with pytest.raises(LeaseLost):
                await append(driver, wrong, done("/0"))
            refused += 1

        nursery.start_soon(attempt)
        nursery.start_soon(append, driver, other.run_lease, done("/0"))
    assert refused == 1
    with pytest.raises(LeaseLost):
        await finish(driver, wrong)
    with pytest.raises(LeaseLost):
        await journal.park(wrong, mail=0, due_at=None)
    with pytest.raises(LeaseLost):
        await journal.block(wrong, "no")
    with pytest.raises(LeaseLost):
        await journal.extend(wrong)
    await journal.release(wrong)
    assert await paths(driver, run.run_lease) == []
    assert await paths(driver, other.run_lease) == ["/0"]
    assert driver.rows("SELECT state, attempt, mail FROM token") == [(1, 1, 0)] * 2


async def test_an_ended_run_is_fenced_and_ends_once(driver: Driver) -> None:
    run = await begin(driver)
    assert await finish(driver, run.run_lease)
    assert await finish(driver, run.run_lease)
    with pytest.raises(LeaseLost):
        await append(driver, run.run_lease, done("/0"))


@pytest.mark.parametrize(
    ("status", "failure"), [(InstanceStatus.FAILED, "Declined: no"), (InstanceStatus.CANCELLED, None)]
)
async def test_failed_or_cancelled_runs_are_listed_as_instances(
    driver: Driver, status: InstanceStatus, failure: str | None
) -> None:
    run = await begin(driver, id="a")
    assert await driver.engine.journal.finish(run.run_lease, RunEnd(status, failure=failure), mail=0)
    view = await driver.view(run.instance_id)
    assert (view.status, view.failure_reason) == (status.name, failure)
    assert driver.rows("SELECT status FROM abnormal_end") == [(status,)]
    assert await start(driver, id="a") == run.instance_id, "the id stays used"


async def test_an_id_starts_one_run_and_other_arguments_are_refused(driver: Driver) -> None:
    first = await start(driver, {"n": 1, "result": 5}, id="a")
    assert await start(driver, {"result": 5, "n": 1}, id="a") == first
    with pytest.raises(IdempotencyConflict):
        await start(driver, {"n": 2}, id="a")
    [run] = await take(driver)
    await finish(driver, run.run_lease, 7)
    assert await start(driver, {"n": 1, "result": 5}, id="a") == first
    with pytest.raises(IdempotencyConflict):
        await start(driver, {"n": 2, "result": 5}, id="a")


async def test_a_takeover_keeps_the_journal_and_fences_its_predecessor(driver: Driver) -> None:
    run = await begin(driver)
    await append(driver, run.run_lease, done("/0"))
    await driver.engine.journal.release(run.run_lease)
    [again] = await take(driver, "e1.0123abcd/shop-1")
    assert (again.run_lease.attempt, again.run_lease.instance) == (2, run.run_lease.instance)
    with pytest.raises(LeaseLost):
        await append(driver, run.run_lease, done("/1"))
    await append(driver, again.run_lease, done("/1"))
    assert await paths(driver, again.run_lease) == ["/0", "/1"]
    await finish(driver, again.run_lease)


async def test_pages_are_bounded_in_rows_and_bytes(driver: Driver) -> None:
    run = await begin(driver)
    await append(driver, run.run_lease, *(done(f"/{n}", '"' + "x" * 1000 + '"') for n in range(10)))
    async with driver.engine.database.connection() as connection:
        after, pages = 0, []
        while True:
            records, _, more = await store.read(connection, run.run_lease.instance, after, max_rows=4, max_bytes=2500)
            pages.append([record.path for record in records])
            if not more:
                break
            after = records[-1].pos
        assert pages == [["/0", "/1"], ["/2", "/3"], ["/4", "/5"], ["/6", "/7"], ["/8", "/9"]]
        records, _, more = await store.read(connection, run.run_lease.instance, 0, max_rows=10, max_bytes=10)
        assert ([record.path for record in records], more) == (["/0"], True)
        records, _, more = await store.read(connection, run.run_lease.instance, 0, max_rows=10)
        assert (len(records), more) == (10, False)


async def test_what_is_too_much_or_wrong_is_named(driver: Driver) -> None:
    run = await begin(driver)
    with pytest.raises(PayloadTooLarge, match="/0"):
        await append(driver, run.run_lease, done("/0", "x" * 262_145))
    with pytest.raises(BadRequest, match="records"):
        await append(driver, run.run_lease)
    with pytest.raises(BadRequest, match="path"):
        await append(driver, run.run_lease, done("x" * 1001))
    for bad in ("\0", "\ud800"):
        for record in (NewRecord(1, bad), NewRecord(1, "/0", bad), NewRecord(1, "/0", None, bad)):
            with pytest.raises(BadRequest):
                await append(driver, run.run_lease, record)
    with pytest.raises(BadRequest, match="result"):
        await finish(driver, run.run_lease, "\0")
    with pytest.raises(BadRequest, match="view"):
        await driver.engine.journal.park(run.run_lease, mail=0, due_at=None, view=b'"\\u0000"')
    with pytest.raises(BadRequest, match="reason"):
        await driver.engine.runs.cancel(run.instance_id, "\0")
    with pytest.raises(PayloadTooLarge, match="arguments"):
        await driver.engine.code.start(ORDER, b'{"a": "' + b"x" * 262_144 + b'"}')
    for workflow, word in (
        (CodeWorkflow("a b"), "workflow"),
        (CodeWorkflow("a", 0), "version"),
        (CodeWorkflow("a", 1, ":"), "app"),
    ):
        with pytest.raises(BadRequest, match=word):
            await driver.engine.code.start(workflow)
    assert await paths(driver, run.run_lease) == []
    end = RunEnd(InstanceStatus.FAILED, failure="no\0t \ud800")
    assert await driver.engine.journal.finish(run.run_lease, end, mail=0)
    assert (await driver.view(run.instance_id)).failure_reason == "no\ufffdt \ufffd"


async def test_an_append_extends_the_lease_at_half_time(driver: Driver) -> None:
    run = await begin(driver)
    assert (await append(driver, run.run_lease, done("/0"))).lease_left_s is None
    [(before,)] = driver.rows("SELECT lease_until FROM token")
    lease = driver.engine.polls.leases.find(run.run_lease.instance, run.run_lease.seq)
    assert lease is not None
    lease.ends_at -= 16
    answer = await append(driver, run.run_lease, done("/1"))
    assert answer.lease_left_s is not None
    assert answer.lease_left_s > 29
    [(after,)] = driver.rows("SELECT lease_until FROM token")
    assert after > before
    assert lease.ends_at > trio.current_time() + 29
    extended = await driver.engine.journal.extend(run.run_lease, view=b'{"stage": 1}', branches=b"[]")
    assert extended.mail == 0
    assert extended.lease_left_s > 29
    progress = (await driver.view(run.instance_id)).progress or {}
    assert {step: bytes(value) for step, value in progress.items()} == {"run": b'{"stage": 1}'}


async def test_graphs_and_code_keep_out_of_each_others_ids(driver: Driver) -> None:
    await driver.upload(linear(1, definition_id="taken"))
    with pytest.raises(Conflict, match="'taken'"):
        await driver.engine.code.start(CodeWorkflow("taken"))
    await driver.engine.code.register(ORDER)
    assert await driver.engine.code.register(ORDER) == await driver.engine.code.register(CodeWorkflow("order", 1)) == 1
    assert await driver.engine.code.register(CodeWorkflow("order", 2)) == 2
    with pytest.raises(Conflict, match="'order'"):
        await driver.upload(linear(1, definition_id="order"))
    with pytest.raises(InvalidDefinition, match="code:"):
        await driver.upload(definition(service("a", "end", job_type="code:order@1"), end()))
    with pytest.raises(InvalidDefinition, match=r"metadata\.code"):
        await driver.upload({**linear(1), "metadata": {"code": {"version": 1}}})


async def test_the_marks_of_a_journal_are_of_all_records(driver: Driver) -> None:
    held = (await begin(driver)).run_lease
    await append(driver, held, done("/0"), done("/1", mark="fraud check"), done("/2", mark="b"))
    other = (await begin(driver)).run_lease
    await append(driver, other, done("/0", mark="of another"))
    assert await driver.engine.journal.marks(held.instance) == ["fraud check", "b"]
    assert [record.mark for record in (await read(driver, held)).records] == [None, "fraud check", "b"]


async def test_what_a_step_shows_may_be_deeper_than_variables(make_driver: MakeDriver) -> None:
    driver = make_driver(variables_max_depth=8)
    run = await begin(driver)
    deep = b'[{"path":"/0","kind":"step","progress":' + b"[" * 100 + b"]" * 100 + b"}]"
    extended = await driver.engine.journal.extend(run.run_lease, branches=deep)
    assert extended.lease_left_s > 0
    [branch] = (await driver.engine.runs.tree(run.instance_id)).branches
    assert (branch.path, branch.status) == ("/0", "running")
    assert msgspec.json.encode(branch.progress) == b"[" * 100 + b"]" * 100
    with pytest.raises(BadRequest, match="branches: nested"):
        await driver.engine.journal.extend(run.run_lease, branches=b"[" * 200 + b"]" * 200)
