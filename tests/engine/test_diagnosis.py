"""Where an instance stands, in one sentence, and its history in slices: the same cost for 5 steps and for 100,000."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg
import pytest

from penstock.api.instances import AT_START
from penstock.engine.status import diagnosis as module
from penstock.errors import BadRequest, Conflict, NotFound
from penstock.settings import Secret
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import configure
from penstock.store.rows import diagnosis as store
from penstock.store.rows import variables
from penstock.testing.definitions import definition, end, linear, service, step, timer
from penstock.wire.edits import VariablesEdit
from penstock.wire.queue import QueuePolicy, Rate
from tests.engine import runs
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number
from tests.shapes import assign, choose, gateway, joining, user

FORK = definition(
    step("fork", "PARALLEL_GATEWAY", parallelNextSteps=["a", "b"], joinStep="join"),
    step("a", "SERVICE_TASK", jobType="a", nextStep="join"),
    step("b", "USER_TASK", name="Ask somebody", nextStep="join"),
    step("join", "JOIN_GATEWAY", nextStep="end"),
    end(),
    definition_id="fork",
)
BLOCKS = """SELECT coalesce(sum(pg_stat_get_xact_blocks_fetched(oid)), 0)::bigint FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i', 'S')"""


@pytest.fixture
def driver(make_driver: MakeDriver) -> Driver:
    return make_driver()


async def why(driver: Driver, instance: str) -> tuple[str, str, str | None]:
    found = (await driver.engine.diagnosis.state(instance)).why
    return found.code, found.text, found.step_id


async def test_a_job_that_waits_runs_fails_and_is_tried_again(driver: Driver) -> None:
    charge = step("charge", "SERVICE_TASK", name="Charge the card", jobType="pay", retryCount=1, nextStep="end")
    backoff = {"initial": "PT1H", "multiplier": 1, "max": "PT1H"}
    instance = await driver.run(definition({**charge, "retryBackoff": backoff}, end()))
    assert await why(driver, instance) == ("waits-for-worker", "Charge the card waits for a worker", "charge")
    job = await driver.one("pay")
    assert (await why(driver, instance))[:2] == ("runs", "Charge the card runs at w1")
    assert (await driver.engine.diagnosis.state(instance)).tokens[0].progress is None
    await driver.heartbeat(job, progress=b'{"percent": 40}')
    reported = (await driver.engine.diagnosis.state(instance)).tokens[0].progress
    assert msgspec.json.decode(reported or b"") == {"percent": 40}
    await driver.fail(job, "503 from the bank")
    said = await driver.engine.diagnosis.state(instance)
    if said.why.code == "retries":
        assert said.why.text == "Charge the card will be tried again: 503 from the bank"
        assert said.why.next == said.tokens[0].retry_at
        assert [timer.kind for timer in said.timers] == ["retry"]
        await driver.due(3_700)
    await driver.fail(await driver.one("pay"), "no money", retryable=False)
    said = await driver.engine.diagnosis.state(instance)
    assert said.why.text == "Charge the card failed after 2 attempts (not retryable): no money"
    assert (said.why.code, said.why.step_id, said.tokens) == ("failed", "charge", [])
    assert said.instance.status == "FAILED"


async def test_a_queue_without_workers_is_reported_after_a_while(driver: Driver) -> None:
    driver.clock.stop()
    instance = await driver.run(linear(1, job_type="alone"))
    assert (await why(driver, instance))[0] == "waits-for-worker"
    driver.clock.advance(60)
    assert (await why(driver, instance))[:2] == ("no-worker", "task-1 waits for a worker; nobody polls for alone")


async def test_a_paused_queue_is_why_its_jobs_wait(driver: Driver) -> None:
    queues = driver.engine.queues
    await queues.put("crm", QueuePolicy(["sync"], paused=True))
    driver.clock.stop()
    instance = await driver.run(linear(1, job_type="sync"))
    assert await driver.poll("sync") == []
    assert await why(driver, instance) == ("queue-paused", "task-1 waits: its queue 'crm' is paused", "task-1")
    driver.clock.advance(60)
    text = (await why(driver, instance))[1]
    assert text == "task-1 waits: its queue 'crm' is paused; nobody polls for sync"
    await queues.pause("crm", paused=False)
    assert (await why(driver, instance))[0] == "no-worker"


async def test_a_limit_is_why_jobs_wait_in_their_queue(driver: Driver) -> None:
    queues = driver.engine.queues
    driver.clock.stop()
    await queues.put("crm", QueuePolicy(["sync"], concurrency=2, concurrency_per_key=1))
    await driver.upload(linear(1, job_type="sync"))
    first, mate, other = [(await driver.start("linear", flow_key=key)).id for key in ("a", "a", "b")]
    assert await why(driver, first) == ("waits-for-worker", "task-1 waits for a worker", "task-1")
    jobs = await driver.poll("sync", n=1)
    text = "task-1 waits: in its queue 'crm' 1 job of 'a' runs, of 1 at most"
    assert await why(driver, mate) == ("queue-full", text, "task-1")
    assert (await why(driver, other))[0] == "waits-for-worker"
    jobs += await driver.poll("sync", n=1)
    assert (await why(driver, mate))[:2] == ("queue-full", "task-1 waits: in its queue 'crm' 2 jobs run, of 2 at most")
    for job in jobs:
        await driver.complete(job)
    assert (await why(driver, mate))[0] == "waits-for-worker"
    await queues.put("crm", QueuePolicy(["sync"], rate=Rate(limit=1, period="PT10S")))
    assert len(await driver.poll("sync", n=5)) == 1
    later = (await driver.start("linear")).id
    said = (await driver.engine.diagnosis.state(later)).why
    assert (said.code, said.text) == ("queue-rate", "task-1 waits: its queue 'crm' lets the next begin in 10.0 s")
    assert said.next is not None


async def test_open_branches_are_reported_together(driver: Driver) -> None:
    instance = await driver.run(FORK)
    found = await driver.engine.diagnosis.state(instance)
    assert found.why.text == "a waits for a worker; Ask somebody waits for a person"
    assert [(token.step_id, token.state) for token in found.tokens] == [("a", "READY"), ("b", "PARKED")]


async def test_waits_tell_their_time_and_boundaries_their_target(driver: Driver) -> None:
    boundary = [{"type": "TIMER", "duration": "PT2H", "interrupting": True, "targetStepId": "late"}]
    task = step("ask", "USER_TASK", nextStep="sleep", boundaryEvents=boundary)
    sleep = step("sleep", "WAIT", duration="PT1H", nextStep="end")
    instance = await driver.run(
        definition(task, sleep, step("late", "SERVICE_TASK", jobType="late", nextStep="end"), end())
    )
    found = await driver.engine.diagnosis.state(instance)
    assert [(timer.step_id, timer.kind, timer.target) for timer in found.timers] == [("ask", "boundary", "late")]
    assert found.why.next == found.timers[0].fire_at
    await driver.finish_task(instance, "ask")
    found = await driver.engine.diagnosis.state(instance)
    assert (found.why.code, found.why.text) == ("waits-for-time", "sleep waits for a signal or its time")
    assert [timer.kind for timer in found.timers] == ["wait"]


async def test_what_has_ended_says_so(driver: Driver) -> None:
    cancelled = await driver.run(linear(1, job_type="x"))
    await driver.cancel(cancelled, "a test")
    assert (await why(driver, cancelled))[0] == "cancelled"
    done = await driver.run(definition(end()))
    assert await why(driver, done) == ("completed", "It has completed", None)
    with pytest.raises(NotFound):
        await driver.engine.diagnosis.state("abc")


async def every(driver: Driver, instance: str, limit: int) -> list[Any]:
    """All slices, one after the other."""
    items: list[Any] = []
    cursor: str | None = None
    while True:
        found = await driver.engine.diagnosis.history(instance, cursor, limit, output=False)
        items += found.items
        cursor = found.next
        if cursor is None:
            return items


@pytest.mark.parametrize("limit", [1, 2, 3, 500])
async def test_slices_hold_what_the_whole_history_holds(driver: Driver, limit: int) -> None:
    instance = await driver.run(linear(5, job_type="j", retry_count=1))
    for at in range(4):
        job = await driver.one("j")
        if at == 2:
            await driver.fail(job, "once")
            await driver.due(3_600)
            job = await driver.one("j")
        await driver.complete(job, {"at": at})
    whole = {item.id: item for item in await driver.history(instance)}
    items = await every(driver, instance, limit)
    assert [item.id for item in items] == [*reversed(whole)]
    for item in items:
        expected = whole[item.id]
        for name in ("step_id", "status", "started_at", "ended_at", "failure_reason", "attempts"):
            assert getattr(item, name) == getattr(expected, name), (item.id, name)
    assert [len(item.attempts) for item in items] == [0, 1, 2, 1, 1]


async def test_a_slice_tells_what_each_execution_wrote(driver: Driver) -> None:
    instance = await driver.run(linear(2, job_type="j"))
    await driver.complete(await driver.one("j"), {"small": 1})
    await driver.complete(await driver.one("j"), {"large": "ä\u0001" * 60_000})
    found = await driver.engine.diagnosis.history(instance, None, 0, output=True)
    by_step = {item.step_id: item for item in found.items}
    assert bytes(by_step["task-1"].output or b"") == b'{"small": 1}'
    assert by_step["task-2"].output is None
    assert (by_step["task-2"].output_bytes or 0) > 0


async def test_cursors_that_are_none_are_refused(driver: Driver) -> None:
    instance = await driver.run(linear(1, job_type="j"))
    for cursor in ("x", "-1", "9" * 40, "1.5"):
        with pytest.raises(BadRequest, match="cursor"):
            await driver.engine.diagnosis.history(instance, cursor, 1, output=False)
    with pytest.raises(NotFound):
        await driver.engine.diagnosis.history("abc", None, 1, output=False)


def long_run(dsn: str, instance: int, steps: int, output: str | None = '{"a": 1}') -> None:
    """So many more closed executions of its first step."""
    with psycopg.connect(dsn) as connection:
        connection.execute(
            """INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, claimed_at, attempt, step,
                 kind, worker, output)
               SELECT %(i)s, n.pos, %(i)s, n.pos - 1, now(), now(), now(), 2, 0, 1, 'w', %(output)s
               FROM (SELECT nextval('step_seq') * 3 AS pos FROM generate_series(1, %(n)s)) n""",
            {"i": instance, "n": steps, "output": output},
        )


LOOP = definition(
    choose("more", {"n < 2": "work", "true": "fork"}),
    service("work", "more", job_type="j"),
    gateway("fork", "a", "b"),
    assign("a", {"x": 1}, "join"),
    user("b", "join", boundaryEvents=[timer("beside", "PT1H"), timer("late", "PT2H", interrupting=True)]),
    assign("beside", {"y": 1}, "join"),
    user("late", "join"),
    joining(),
    end(),
    definition_id="loop",
)


async def taken(driver: Driver, instance: str) -> list[tuple[str, str, int]]:
    path = (await driver.engine.diagnosis.state(instance)).path
    return [(edge.source, edge.target, edge.times) for edge in path]


async def test_the_path_tells_loops_branches_and_timers(driver: Driver) -> None:
    instance = await driver.run(LOOP, {"n": 0})
    assert await taken(driver, instance) == [("more", "work", 1)]
    for n in (1, 2):
        await driver.complete(await driver.one("j"), {"n": n})
    begun = [("more", "work", 2), ("more", "fork", 1), ("work", "more", 2), ("fork", "a", 1), ("fork", "b", 1)]
    assert await taken(driver, instance) == [*begun, ("a", "join", 1)]
    await driver.due(3_700)
    beside = [("a", "join", 1), ("b", "beside", 1), ("beside", "join", 1)]
    assert await taken(driver, instance) == [*begun, *beside]
    await driver.due(3_700)
    beside.insert(2, ("b", "late", 1))
    assert await taken(driver, instance) == [*begun, *beside]
    await driver.finish_task(instance, "late")
    assert await driver.status(instance) == "COMPLETED"
    assert await taken(driver, instance) == [*begun, *beside, ("late", "join", 1), ("join", "end", 1)]


async def test_a_failed_step_that_is_tried_again_is_no_way(driver: Driver) -> None:
    instance = await driver.run(linear(2, job_type="j"))
    await driver.complete(await driver.one("j"))
    await driver.fail(await driver.one("j"), retryable=False)
    assert await taken(driver, instance) == [("task-1", "task-2", 1)]
    await driver.retry(instance)
    await driver.complete(await driver.one("j"))
    assert await taken(driver, instance) == [("task-1", "task-2", 1), ("task-2", "end", 1)]


async def test_an_error_that_is_caught_leads_to_its_boundary(driver: Driver) -> None:
    caught = {"type": "ERROR", "errorCodes": ["Declined"], "targetStepId": "ask"}
    pay = service("pay", "end", job_type="j", boundaryEvents=[caught])
    instance = await driver.run(definition(pay, user("ask"), end()))
    await driver.fail(await driver.one("j"), retryable=False, error_code="Declined")
    assert await taken(driver, instance) == [("pay", "ask", 1)]


async def test_the_path_of_a_long_run_is_of_its_newest(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = await driver.run(LOOP, {"n": -10})
    for n in range(-9, 3):
        await driver.complete(await driver.one("j"), {"n": n})
    assert ("more", "work", 12) in await taken(driver, instance)
    monkeypatch.setattr(module, "PATH_MAX", 3)
    assert await taken(driver, instance) == [("more", "fork", 1), ("fork", "a", 1), ("fork", "b", 1), ("a", "join", 1)]


async def test_a_chained_instance_is_a_child(driver: Driver) -> None:
    await driver.upload(definition(user("u"), end(), definition_id="second"))
    chained = {"autoStartNextWorkflow": True, "nextWorkflowId": "second"}
    parent = await driver.run(definition(user("u"), end(), definition_id="first") | chained)
    assert (await driver.engine.diagnosis.state(parent)).children == []
    await driver.finish_task(parent, "u")
    (child,) = (await driver.engine.diagnosis.state(parent)).children
    assert (await driver.view(child)).parent_instance_id == parent


async def test_the_version_is_that_of_the_variables(driver: Driver) -> None:
    async def version() -> str:
        return (await driver.engine.diagnosis.state(instance)).version

    instance = await driver.run(definition(service("one", "ask", job_type="j"), user("ask"), end()))
    seen = [await version()]
    await driver.complete(await driver.one("j"), {"a": 1})
    seen.append(await version())
    assert await version() == seen[1]
    edit = VariablesEdit(set=msgspec.Raw(b'{"a": 2}'), if_version=seen[0])
    with pytest.raises(Conflict, match="ifVersion"):
        await driver.engine.repair.edit_variables(instance, edit)
    edit.if_version = seen[1]
    await driver.engine.repair.edit_variables(instance, edit)
    seen.append(await version())
    long_run(driver.dsn, number(instance), 1_100, output=None)
    seen.append(await version())
    driver.rows("DELETE FROM history WHERE worker = 'w' RETURNING 1")
    assert seen == sorted(set(seen), key=int)


async def test_a_list_for_people_tells_where_each_stands(driver: Driver) -> None:
    instance = await driver.run(FORK)
    failed = await driver.run(linear(1, job_type="j"))
    await driver.fail(await driver.one("j"), "503 from 'A'", retryable=False)
    found = {row.id: row for row in await driver.engine.instances.summaries([number(instance), number(failed)])}
    assert [(at.step_id, at.state) for at in found[instance].where] == [("a", "READY"), ("b", "PARKED")]
    assert found[instance].cause is None
    (at,) = found[failed].where
    assert (at.step_id, at.state, at.since) == ("task-1", "FAILED", found[failed].completed_at)
    assert found[failed].cause == "… from …"
    done = await driver.run(definition(end(), definition_id="done"))
    assert (await driver.engine.instances.summaries([number(done)]))[0].where == []


async def blocks(dsn: str, instance: int) -> int:
    """What the page's two reads of an instance fetch."""
    async with await TrioConnection.connect(dsn) as connection:
        await configure(connection)
        async with store.brief_read(connection):
            await connection.fetch(b"SET LOCAL statement_timeout = 0")  # it is not time that is measured
            await store.tokens(connection, instance)
            await store.failure(connection, instance)
            await store.signals(connection, instance)
            await store.open_history(connection, instance)
            await store.children(connection, instance, 200)
            await store.passages(connection, instance, 500)
            await variables.version(connection, instance)
            rows = await store.history_slice(
                connection, instance, before=store.BEYOND_ALL, most=500, output_max_bytes=None
            )
            assert rows
            return int(str((await connection.fetch(BLOCKS.encode()))[0][0]))


async def test_a_long_run_costs_as_much_as_its_newest_page(driver: Driver) -> None:
    short, long = await driver.run(linear(2, job_type="j")), await driver.start("linear", {})
    await driver.complete(await driver.one("j"))
    long_run(driver.dsn, number(short), 500)
    long_run(driver.dsn, number(long.id), 100_000)
    costs = await blocks(driver.dsn, number(short)), await blocks(driver.dsn, number(long.id))
    driver.rows("DELETE FROM history WHERE worker = 'w' RETURNING 1")  # made up: the invariants would find them
    assert costs[1] < 1.5 * costs[0] + 100, costs


async def test_variables_are_reported_as_each_execution_left_them(driver: Driver) -> None:
    instance = await driver.run(linear(4, job_type="j"), {"start": 1, "a": 0})
    expected: list[dict[str, Any]] = [{"start": 1, "a": 0}]
    for wrote in ({"a": 1}, {"b": 2}, {}, {"a": 3, "c": 4}):
        await driver.complete(await driver.one("j"), wrote)
        expected.append(expected[-1] | wrote)
    items = [item for item in await driver.history(instance) if item.step_type == "SERVICE_TASK"]
    for item, before, after in zip(items, expected[:-1], expected[1:], strict=True):
        found = await driver.engine.diagnosis.variables_after(instance, item.id)
        assert msgspec.json.decode(found.variables) == after
        assert found.by == item.step_id
        assert {name for name in after if before.get(name) != after[name]} == set(found.changed)
    at_the_end = (await driver.history(instance))[-1]
    found = await driver.engine.diagnosis.variables_after(instance, at_the_end.id)
    assert (msgspec.json.decode(found.variables), found.by) == (expected[-1], "end")


async def test_variables_before_an_edit_are_reported_after_it(driver: Driver) -> None:
    ask = step("ask", "USER_TASK", nextStep="more")
    instance = await driver.run(
        definition(service("one", "ask", job_type="j"), ask, service("more", "end", job_type="j"), end())
    )
    await driver.complete(await driver.one("j"), {"amount": 1, "typo": True})
    edit = VariablesEdit(set=msgspec.Raw(b'{"amount": 2}'), remove=["typo"])
    await driver.engine.repair.edit_variables(instance, edit)
    await driver.finish_task(instance, "ask", {"asked": True})
    await driver.complete(await driver.one("j"), {"amount": 3})
    history = {item.step_id: item.id for item in await driver.history(instance)}
    found = {
        name: msgspec.json.decode((await driver.engine.diagnosis.variables_after(instance, history[name])).variables)
        for name in ("one", "ask", "more")
    }
    assert found["one"] == {"amount": 1, "typo": True}
    assert found["ask"] == {"amount": 2, "asked": True}
    assert found["more"] == {"amount": 3, "asked": True}


async def started_with(driver: Driver, instance: str) -> dict[str, Any]:
    found = await driver.engine.diagnosis.variables_after(instance, AT_START)
    assert (found.changed, found.by) == ([], "")
    return msgspec.json.decode(found.variables, type=dict[str, Any])


async def test_what_an_instance_was_started_with_stays_apart_from_its_variables(driver: Driver) -> None:
    given = {"amount": 1, "typo": True, "kept": {"deep": [1]}}
    steps = service("one", "ask", job_type="j"), user("ask", "more"), service("more", "end", job_type="j"), end()
    instance = await driver.run(definition(*steps), given)
    assert await started_with(driver, instance) == given
    await driver.complete(await driver.one("j"), {"amount": 2, "new": 3})
    async with driver.engine.database.connection() as connection:
        for statement in (
            variables.fold([number(instance)], 1_000_000),
            *variables.record_folded([number(instance)], []),
        ):
            await connection.fetch(*statement)
    assert await started_with(driver, instance) == given
    for amount in (4, 5):
        edit = VariablesEdit(set=msgspec.Raw(b'{"amount": %d}' % amount), remove=["typo"])
        await driver.engine.repair.edit_variables(instance, edit)
        assert await started_with(driver, instance) == given
    await driver.finish_task(instance, "ask")
    await driver.complete(await driver.one("j"), {"kept": None})
    assert await driver.variables(instance) == {"amount": 5, "new": 3, "kept": None}
    assert await started_with(driver, instance) == given
    assert await started_with(driver, await driver.run(linear(1))) == {}
    with pytest.raises(NotFound, match="is unknown"):
        await started_with(driver, "7fffffffffffffff")


async def test_what_the_first_steps_write_is_no_part_of_what_an_instance_was_started_with(driver: Driver) -> None:
    instance = await driver.run(definition(assign("first", {"amount": "${amount + 1}"}), end()), {"amount": 1})
    assert await driver.status(instance) == "COMPLETED"
    assert await driver.variables(instance) == {"amount": 2}
    assert await started_with(driver, instance) == {"amount": 1}


async def test_what_an_instance_was_started_with_is_opened(make_driver: MakeDriver) -> None:
    driver = make_driver(encryption_keys=Secret("k1=" + "A" * 43 + "="))
    instance = await driver.run(linear(1, job_type="j"), {"secret": "s"})
    await driver.complete(await driver.one("j"), {"secret": "t"})
    assert "k1:" in driver.rows("SELECT vars::text FROM instance")[0][0]
    assert await started_with(driver, instance) == {"secret": "s"}


async def test_a_run_was_started_with_its_arguments(driver: Driver) -> None:
    run = await runs.begin(driver, arguments={"order": 17})
    assert await started_with(driver, run.instance_id) == {"order": 17}


async def test_an_open_or_foreign_execution_has_left_nothing(driver: Driver) -> None:
    instance, other = await driver.run(linear(1, job_type="j")), (await driver.start("linear")).id
    (item,) = await driver.history(instance)
    with pytest.raises(Conflict, match="has not ended"):
        await driver.engine.diagnosis.variables_after(instance, item.id)
    with pytest.raises(NotFound):
        await driver.engine.diagnosis.variables_after(other, item.id)
    with pytest.raises(NotFound):
        await driver.engine.diagnosis.variables_after(instance, "x")


async def test_an_instance_without_a_branch_says_that_nothing_goes_on(driver: Driver) -> None:
    instance = await driver.run(definition(choose("d", {"x": "end", "true": "a"}), service("a"), end()), {"x": False})
    await driver.complete(await driver.one("work"))
    reported = await why(driver, instance)
    assert reported == (
        "dead-end",
        "Its last branch has ended without an END: nothing goes on by itself; cancel it",
        None,
    )
    await driver.cancel(instance)
    assert (await why(driver, instance))[0] == "cancelled"
