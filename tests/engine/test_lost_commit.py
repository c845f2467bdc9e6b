"""The connection breaks around a COMMIT: what became of it is looked up, and nothing is done twice or lost.

Each operation runs through a proxy that breaks the connection of its transaction: ``committed`` after the server has
committed it and before we hear of it, else before the server has got it. Whoever called must see no difference.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import psycopg
import pytest
import trio

from penstock.engine.instances.batches import BatchStart
from penstock.errors import NotFound
from penstock.runtime.supervise import forever
from penstock.store.db.database import AWAY
from penstock.testing.definitions import Json, definition, end, fork, linear, service, step
from penstock.wire.attention import AcknowledgeBody
from penstock.wire.edits import MigrationRequest, StepSkip, TokenMove
from penstock.wire.model import Job, StartRequest
from penstock.wire.schedule import ScheduleSpec
from penstock.wire.start import Debounce, Dedupe, Throttle
from tests.engine import runs
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, variables_of
from tests.store.proxy import Proxy
from tests.waiting import wait_until

MARK = "mark-of-this-test"
"""In the statement that is lost, and in no other one."""

LOST = pytest.param(False, id="not-committed", marks=pytest.mark.slow(reason="every operation is cut off once more"))
pytestmark = pytest.mark.parametrize("committed", [pytest.param(True, id="committed"), LOST])


@pytest.fixture
async def cut_driver(proxy: Proxy, make_driver: MakeDriver, nursery: trio.Nursery, database_dsn: str) -> Driver:
    """An engine behind the proxy, with the loop that serves parked polls, which outlasts a lost connection."""
    driver = make_driver(dsn=proxy.dsn, outage_wait_seconds=60)
    driver.dsn = database_dsn  # blocking looks must not go through the proxy, which runs in this thread

    async def probe() -> None:
        await driver.engine.polls.wait_probe()
        await driver.engine.polls.probe_once()

    nursery.start_soon(partial(forever, "probe", probe))
    return driver


def chosen() -> dict[str, Any]:
    """A DECISION first and last: everything takes the full path."""
    branch = {"conditionalNextSteps": {"x == 1": "task"}}
    return definition(
        step("first", "DECISION", **branch), service("task", "last"),
        step("last", "DECISION", conditionalNextSteps={"x == 1": "end"}), end(), definition_id="chosen",
    )  # fmt: skip


REPORTED = definition(
    step("told", "WAIT", nextStep="end", message={"name": "told", "correlationKey": "k"}), end(), definition_id="told"
)


async def losing(
    proxy: Proxy, committed: bool, operation: Callable[[], Awaitable[Any]], pattern: bytes = MARK.encode()
) -> Any:
    """Run the operation with its transaction's answer lost; its result. ``pattern``: by which it is known."""
    cut = proxy.cut_at(pattern, committed=committed)
    with trio.fail_after(60):
        answer = await operation()
    assert cut.done.is_set(), "the connection was not cut: the test shows nothing"
    return answer


async def parked_poll(driver: Driver, nursery: trio.Nursery, *types: str) -> list[Job]:
    """A poll that waits; the list gets its jobs."""
    jobs: list[Job] = []

    async def poll() -> None:
        jobs.extend(await driver.poll(*types, worker="parked", n=1, wait=60))

    nursery.start_soon(poll)

    async def parked() -> bool:
        return len(driver.engine.polls.waiters) == 1

    await wait_until(parked)
    return jobs


async def delivered(driver: Driver, jobs: list[Job]) -> Job:
    """The job of a parked poll; nothing may be left reserved."""

    async def answered() -> bool:
        return bool(jobs)

    await wait_until(answered)
    assert len(driver.engine.polls.waiters) == 0
    (job,) = jobs
    return job


def closed(driver: Driver) -> int:
    """Completed executions of jobs."""
    return int(driver.rows("SELECT count(*) FROM history WHERE kind = 1 AND worker IS NOT NULL")[0][0])


async def test_a_narrow_completion(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    instance = await cut_driver.run(linear(2))
    job = await cut_driver.one("work")
    await losing(proxy, committed, lambda: cut_driver.complete(job, {"x": MARK}))
    assert closed(cut_driver) == 1
    following = await cut_driver.one("work")
    assert (following.step_id, following.attempt) == ("task-2", 1)
    assert await cut_driver.variables(instance) == {"x": MARK}


async def test_a_narrow_completion_that_hands_the_next_job_over(
    cut_driver: Driver, proxy: Proxy, committed: bool, nursery: trio.Nursery
) -> None:
    instance = await cut_driver.run(linear(2))
    job = await cut_driver.one("work")
    jobs = await parked_poll(cut_driver, nursery, "work")
    await losing(proxy, committed, lambda: cut_driver.complete(job, {"x": MARK}))
    following = await delivered(cut_driver, jobs)
    assert (following.step_id, following.attempt, following.worker_id) == ("task-2", 1, "parked")
    await cut_driver.complete(following)
    assert await cut_driver.status(instance) == "COMPLETED"
    assert closed(cut_driver) == 2


async def test_a_narrow_completion_that_ends_the_instance(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    instance = await cut_driver.run(linear(1))
    job = await cut_driver.one("work")
    await losing(proxy, committed, lambda: cut_driver.complete(job, {"x": MARK}))
    assert await cut_driver.status(instance) == "COMPLETED"
    assert await cut_driver.variables(instance) == {"x": MARK}


async def test_a_fork(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    run = await runs.begin(cut_driver, arguments={"x": MARK})
    await runs.append(cut_driver, run.run_lease, runs.done("/0"), runs.done("/1"))
    await runs.finish(cut_driver, run.run_lease)
    await losing(proxy, committed, lambda: cut_driver.engine.forks.fork(run.instance_id, "/1"))
    [taken] = await runs.take(cut_driver, n=5)
    assert await runs.paths(cut_driver, taken.run_lease) == ["", "/0"]
    assert cut_driver.rows("SELECT count(*) FROM instance") == [(2,)]
    assert cut_driver.rows("SELECT count(*) FROM audit WHERE kind = 'FORKED'") == [(1,)]


async def test_a_wide_completion(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    instance = await cut_driver.run(chosen(), {"x": 1})
    job = await cut_driver.one("work")
    await losing(proxy, committed, lambda: cut_driver.complete(job, {"y": MARK}))
    assert await cut_driver.status(instance) == "COMPLETED"
    assert closed(cut_driver) == 1


async def test_a_wide_completion_that_hands_jobs_over(
    cut_driver: Driver, proxy: Proxy, committed: bool, nursery: trio.Nursery
) -> None:
    definition_ = definition(
        service("task", "choose"), step("choose", "DECISION", conditionalNextSteps={"x == 1": "next"}),
        service("next", "end", job_type="next"), end(),
    )  # fmt: skip
    instance = await cut_driver.run(definition_, {"x": 1})
    job = await cut_driver.one("work")
    jobs = await parked_poll(cut_driver, nursery, "next")
    await losing(proxy, committed, lambda: cut_driver.complete(job, {"y": MARK}))
    following = await delivered(cut_driver, jobs)
    assert following.attempt == 1
    await cut_driver.complete(following)
    assert await cut_driver.status(instance) == "COMPLETED"


@pytest.mark.parametrize("retryable", [True, False])
async def test_a_failure(cut_driver: Driver, proxy: Proxy, committed: bool, retryable: bool) -> None:
    instance = await cut_driver.run(linear(1, retry_count=2))
    job = await cut_driver.one("work")
    await losing(proxy, committed, lambda: cut_driver.fail(job, MARK, retryable=retryable))
    if retryable:
        again = await cut_driver.one("work")
        assert (again.attempt, again.retries_remaining) == (2, 1)
    else:
        assert (await cut_driver.view(instance)).failure_reason == MARK


async def test_a_narrow_start(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    await cut_driver.upload(linear(1))
    view = await losing(proxy, committed, lambda: cut_driver.start("linear", {"x": MARK}))
    assert cut_driver.rows("SELECT count(*) FROM instance") == [(1,)]
    job = await cut_driver.one("work")
    assert job.instance_id == view.id


async def test_a_narrow_start_that_hands_its_first_job_over(
    cut_driver: Driver, proxy: Proxy, committed: bool, nursery: trio.Nursery
) -> None:
    await cut_driver.upload(linear(1))
    jobs = await parked_poll(cut_driver, nursery, "work")
    view = await losing(proxy, committed, lambda: cut_driver.start("linear", {"x": MARK}))
    job = await delivered(cut_driver, jobs)
    assert (job.instance_id, job.attempt) == (view.id, 1)
    await cut_driver.complete(job)
    assert await cut_driver.status(view.id) == "COMPLETED"
    assert cut_driver.rows("SELECT count(*) FROM instance") == [(1,)]


TAKEN_ONCE = """
CREATE SEQUENCE once;
CREATE FUNCTION taken() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN IF nextval(''once'') = 1 THEN {change}; END IF; RETURN NEW; END';
CREATE TRIGGER taken BEFORE INSERT ON token FOR EACH ROW EXECUTE FUNCTION taken()
"""


@pytest.mark.parametrize(
    "change",
    [
        "NEW.attempt := 2; NEW.claimed_by := ''other''",
        "NEW.attempt := 2",
        "NEW.claimed_by := ''other''",
        "NEW.lease_until := NEW.entered_at",
        "NEW.entered_at := NEW.entered_at + interval ''1 s''",
    ],
)
async def test_a_first_job_taken_meanwhile_is_not_handed_over(
    cut_driver: Driver, proxy: Proxy, committed: bool, nursery: trio.Nursery, change: str
) -> None:
    """Between a lost COMMIT and the look at it the lease may have ended, and another worker may have the job."""
    await cut_driver.upload(linear(1))
    with psycopg.connect(cut_driver.dsn, autocommit=True) as connection:
        for statement in TAKEN_ONCE.format(change=change).split(";\n"):
            connection.execute(statement.encode())
    jobs = await parked_poll(cut_driver, nursery, "work")
    view = await losing(proxy, committed, lambda: cut_driver.start("linear", {"x": MARK}))
    if committed:
        assert not jobs
        assert len(cut_driver.engine.polls.waiters) == 1
        view = await cut_driver.start("linear")
    job = await delivered(cut_driver, jobs)
    assert (job.instance_id, job.attempt, job.worker_id) == (view.id, 1, "parked")


async def test_a_wide_start(cut_driver: Driver, proxy: Proxy, committed: bool, nursery: trio.Nursery) -> None:
    await cut_driver.upload(fork(1, 1))
    jobs = await parked_poll(cut_driver, nursery, "work")
    view = await losing(proxy, committed, lambda: cut_driver.start("fork", {"x": MARK}))
    first = await delivered(cut_driver, jobs)
    second = await cut_driver.one("work")
    await cut_driver.complete(first)
    await cut_driver.complete(second)
    assert await cut_driver.status(view.id) == "COMPLETED"
    assert cut_driver.rows("SELECT count(*) FROM instance") == [(1,)]
    assert cut_driver.engine.metrics.registry.get_sample_value("workflow_instances_started_total") == 1


async def test_a_timer_that_is_armed_by_it_fires_in_time(
    cut_driver: Driver, proxy: Proxy, committed: bool, nursery: trio.Nursery
) -> None:
    instance = await cut_driver.run(
        definition(
            step("ask", "USER_TASK", nextStep="sleep"),
            step("sleep", "WAIT", duration="PT0.3S", nextStep="end"),
            end(),
        )
    )

    async def fire() -> None:
        await cut_driver.engine.timers.wait_due()
        await cut_driver.engine.timers.fire_once()

    cut_driver.engine.timers._next_at = trio.current_time() + 3_600  # no look comes by itself
    nursery.start_soon(partial(forever, "timers", fire))
    await losing(proxy, committed, lambda: cut_driver.finish_task(instance, "ask", {"x": MARK}))

    async def over() -> bool:
        return await cut_driver.status(instance) == "COMPLETED"

    await wait_until(over)
    items = await cut_driver.history(instance)
    ended_at = items[1].ended_at
    assert ended_at is not None
    assert (ended_at - items[1].started_at).total_seconds() >= 0.3  # pyright: ignore[reportOperatorIssue] - they are there


async def test_a_start_with_a_key(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    await cut_driver.upload(linear(1))
    view = await losing(proxy, committed, lambda: cut_driver.start("linear", {"x": MARK}, idempotency_key="key"))
    again = await cut_driver.start("linear", {"x": MARK}, idempotency_key="key")
    assert again.id == view.id
    assert cut_driver.rows("SELECT count(*) FROM instance") == [(1,)]


RULES: list[dict[str, Any]] = [
    {"delay": "PT1H"},
    {"dedupe": Dedupe("k", "PT1H")},
    {"throttle": Throttle("k", 1, "PT1H", 2, "DELAY")},
    {"debounce": Debounce("k", "PT1H")},
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: next(iter(rule)))
async def test_a_start_with_a_rule(cut_driver: Driver, proxy: Proxy, committed: bool, rule: dict[str, Any]) -> None:
    await cut_driver.upload(linear(1))
    cut_driver.clock.stop()
    await losing(proxy, committed, lambda: cut_driver.start("linear", {"x": MARK}, **rule))
    assert cut_driver.rows("SELECT count(*) FROM instance") == [(1,)]
    again = await cut_driver.start("linear", {"x": 1}, **rule)
    assert cut_driver.rows("SELECT count(*) FROM instance") == [(1 if again.deduplicated else 2,)]
    assert (again.deduplicated, again.start_at is None) == (
        None if "delay" in rule or "throttle" in rule else True,
        "dedupe" in rule or "throttle" in rule,  # counted once: the second is of the burst
    )


async def test_a_start_that_is_put_off(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    await cut_driver.upload(linear(1))
    cut_driver.clock.stop()
    rule = Debounce("k", "PT1M", None, "MERGE")
    first = await cut_driver.start("linear", {"a": 1}, debounce=rule)
    again = partial(cut_driver.start, "linear", {"b": 2}, debounce=rule)
    view = await losing(proxy, committed, again, b"DEBOUNCED")
    assert (view.id, view.deduplicated, variables_of(view)) == (first.id, True, {"a": 1, "b": 2})
    assert cut_driver.rows("SELECT count(*) FROM audit WHERE kind = 'DEBOUNCED'") == [(1,)]
    assert await cut_driver.due(60) == 1
    assert variables_of(await cut_driver.one("work")) == {"a": 1, "b": 2}


async def test_the_time_of_a_start(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    cut_driver.clock.stop()
    await cut_driver.upload(definition(step("ask", "USER_TASK", nextStep="end"), end(), definition_id="asks"))
    made = await cut_driver.start("asks", delay="PT1H")
    await losing(proxy, committed, lambda: cut_driver.due(3_600), b"INSERT INTO open_task")
    assert await cut_driver.open_steps(made.id) == ["ask"]
    assert cut_driver.rows("SELECT count(*) FROM open_task") == [(1,)]


async def test_a_cancel(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    instance = await cut_driver.run(linear(1))
    view = await losing(proxy, committed, lambda: cut_driver.cancel(instance, MARK))
    assert (view.status, view.failure_reason) == ("CANCELLED", MARK)


async def test_a_user_task(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    instance = await cut_driver.run(definition(step("ask", "USER_TASK", nextStep="end"), end()))
    await losing(proxy, committed, lambda: cut_driver.finish_task(instance, "ask", {"x": MARK}))
    assert await cut_driver.status(instance) == "COMPLETED"


async def test_a_signal(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    instance = await cut_driver.run(definition(step("wait", "WAIT", nextStep="end"), end()))
    await losing(proxy, committed, lambda: cut_driver.signal(instance, "wait", {"x": MARK}))
    assert await cut_driver.status(instance) == "COMPLETED"
    assert await cut_driver.variables(instance) == {"x": MARK}


async def test_a_message_to_who_waits(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    instance = await cut_driver.run(REPORTED)
    published = await losing(proxy, committed, lambda: cut_driver.publish("told", "k", {"x": MARK}))
    assert [one.instance_id for one in published.delivered] == [instance]
    assert await cut_driver.status(instance) == "COMPLETED"
    assert cut_driver.rows("SELECT id FROM message") == []


async def test_a_message_that_is_kept(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    published = await losing(proxy, committed, lambda: cut_driver.publish("told", "k", {"x": MARK}, message_id="m"))
    assert (published.delivered, published.kept) == ([], True)
    assert await cut_driver.publish("told", "k", {"x": MARK}, message_id="m") == published
    assert cut_driver.rows("SELECT body FROM message") == [({"x": MARK},)]


async def test_a_start_that_a_message_waits_for(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    await cut_driver.upload(REPORTED)
    await cut_driver.publish("told", "k", {"x": 1})
    view = await losing(proxy, committed, lambda: cut_driver.start("told"), b"INSERT INTO subscription")
    await cut_driver.due()
    assert await cut_driver.status(view.id) == "COMPLETED"
    assert cut_driver.rows("SELECT count(*) FROM instance") == [(1,)]


async def test_a_message_that_gets_there(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    await cut_driver.publish("told", "k", {"x": MARK})
    instance = await cut_driver.run(REPORTED)
    await losing(proxy, committed, cut_driver.due, b"DELETE FROM message")
    await cut_driver.due()
    assert await cut_driver.status(instance) == "COMPLETED"
    assert cut_driver.rows("SELECT id FROM message") == []


@pytest.mark.parametrize("payload", [None, b'"new"'], ids=["dropped", "corrected"])
async def test_a_rejected_message(cut_driver: Driver, proxy: Proxy, committed: bool, payload: bytes | None) -> None:
    """It is dropped or corrected once."""
    run = await runs.begin(cut_driver)
    await cut_driver.engine.runs.send(run.instance_id, "go", b"1")
    [message] = (await runs.read(cut_driver, run.run_lease)).records
    at = f"{message.pos:x}"
    wait = {"path": "/0", "kind": "receive", "name": "go", "as_of": at, "rejected": [{"pos": at}]}
    assert await cut_driver.engine.journal.park(
        run.run_lease, mail=1, due_at=None, branches=msgspec.json.encode([wait])
    )
    resolve = partial(cut_driver.engine.runs.resolve_message, run.instance_id, at, payload, note=MARK)
    await losing(proxy, committed, resolve)
    records = (await runs.read(cut_driver, run.run_lease)).records
    text = None if payload is None else payload.decode()
    assert [(each.kind, each.path, each.payload) for each in records[1:]] == [(14, at, text)]
    kind = "MESSAGE_DROPPED" if payload is None else "MESSAGE_CORRECTED"
    assert cut_driver.rows("SELECT detail FROM audit WHERE kind = %s", kind) == [(f"go: {MARK}",)]


async def test_an_acknowledgement(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    """Who asks is told that nobody knows, and may ask again."""
    overview, body = cut_driver.engine.overview, AcknowledgeBody(1)
    await overview.acknowledge("cause:other", body)  # the first of all has a COMMIT of its own, for the version
    await overview.withdraw("cause:other")
    cut = proxy.cut_at(b"COMMIT" if committed else MARK.encode(), committed=committed)
    with trio.fail_after(60), pytest.raises(AWAY):
        await overview.acknowledge(f"cause:{MARK}", body)
    assert cut.done.is_set()
    assert cut_driver.rows("SELECT key FROM acknowledged") == [(f"cause:{MARK}",)] * committed
    await overview.acknowledge(f"cause:{MARK}", body)
    assert cut_driver.rows("SELECT key, count FROM acknowledged") == [(f"cause:{MARK}", 1)]
    await overview.withdraw(f"cause:{MARK}")
    assert cut_driver.rows("SELECT key FROM acknowledged") == []


@pytest.mark.parametrize("kind", ["definition", "queue", "schedule"])
async def test_a_deletion(cut_driver: Driver, proxy: Proxy, committed: bool, kind: str) -> None:
    """Of what no code has any more. Who asks is told that nobody knows, and may ask again: it is deleted once."""
    engine = cut_driver.engine
    await runs.undeclared(cut_driver, "order")
    delete = {"definition": engine.code.delete, "queue": engine.queues.delete, "schedule": engine.schedules.delete}
    cut = proxy.cut_at(b"COMMIT", committed=committed)
    with trio.fail_after(60), pytest.raises(AWAY):
        await delete[kind]("order")
    assert cut.done.is_set()
    all_kinds = sorted(delete)
    assert runs.left(cut_driver, "order") == [each for each in all_kinds if each != kind or not committed]
    if committed:
        with pytest.raises(NotFound):
            await delete[kind]("order")
    else:
        await delete[kind]("order")
    assert runs.left(cut_driver, "order") == [each for each in all_kinds if each != kind]
    noted = cut_driver.rows("SELECT detail FROM audit WHERE kind = %s", f"{kind.upper()}_DELETED")
    assert noted == [("order",)]
    declared = (await engine.declarations.list(None, None)).items
    assert [each.state for each in declared] == ["NOT_IN_CODE"] * 2


async def test_a_skip(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    instance = await cut_driver.run(linear(2))
    skipped = StepSkip("task-1", msgspec.Raw(msgspec.json.encode({"x": MARK})))
    await losing(proxy, committed, lambda: cut_driver.engine.repair.skip(instance, skipped))
    assert await cut_driver.open_steps(instance) == ["task-2"]


async def test_a_move(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    instance = await cut_driver.run(linear(3))
    moved = TokenMove("task-1", "task-3", note=MARK)
    await losing(proxy, committed, lambda: cut_driver.engine.repair.move(instance, moved))
    assert await cut_driver.path(instance) == [("task-1", "SKIPPED"), ("task-3", "RUNNING")]


async def test_a_migration(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    instance = await cut_driver.run(linear(1))
    await cut_driver.upload(linear(2))
    asked = MigrationRequest(note=MARK)
    await losing(proxy, committed, lambda: cut_driver.engine.migrations.migrate(instance, asked))
    assert (await cut_driver.view(instance)).definition_version == 2
    assert cut_driver.rows("SELECT count(*) FROM instance_version") == [(2,)]


async def test_an_item_that_is_the_last(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    each: Json = {"items": "${[1]}", "collect": "${result.x}", "into": "all"}
    instance = await cut_driver.run(definition(service("each", "end", job_type="each", forEach=each), end()))
    job = await cut_driver.one("each")
    await losing(proxy, committed, lambda: cut_driver.complete(job, {"x": MARK}))
    assert await cut_driver.variables(instance) == {"all": [MARK]}
    assert cut_driver.rows("SELECT FROM map_state") == []


async def test_a_heartbeat(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    await cut_driver.run(linear(1))
    job = await cut_driver.one("work")
    answer = await losing(
        proxy, committed, lambda: cut_driver.heartbeat(job, lease_seconds=60, checkpoint=f'"{MARK}"'.encode())
    )
    assert answer.lock_expires_at > job.lock_expires_at
    await cut_driver.complete(job)


async def test_an_unheard_claim_comes_back_with_its_leases_end(
    cut_driver: Driver, proxy: Proxy, committed: bool
) -> None:
    """Nobody knows of the lease: the job is late, never lost."""
    await cut_driver.run(linear(1))
    cut = proxy.cut_at(MARK.encode(), committed=committed)
    jobs = await cut_driver.poll("work", worker=MARK)
    assert cut.done.is_set()
    if not committed:
        assert len(jobs) == 1
        return
    if not jobs:
        assert cut_driver.rows("SELECT state, claimed_by FROM token") == [(1, MARK)]
        assert await cut_driver.expire(31) == 1
        jobs = await cut_driver.poll("work")
    assert len(jobs) == 1


SLOW_COMMIT = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0
  AS 'BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER slow AFTER INSERT OR UPDATE ON {table} DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION slow();
SELECT pg_advisory_lock(42)
"""
WAITING = """SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = 42 AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


async def slowly(
    driver: Driver, proxy: Proxy, table: str, committed: bool, operation: Callable[[], Awaitable[Any]]
) -> Any:
    """Run the operation with the connection broken while the server is committing, which it goes on with."""
    answers: list[Any] = []
    with psycopg.connect(driver.dsn, autocommit=True) as holder:
        for statement in SLOW_COMMIT.format(table=table).split(";\n"):
            holder.execute(statement.encode())

        async def operate() -> None:
            answers.append(await operation())

        async def committing() -> bool:
            return bool(holder.execute(WAITING).fetchall())

        async def tried_again() -> bool:
            return any(link.sent for link in proxy.links[before:])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(operate)
            await wait_until(committing)
            (pid,) = holder.execute(WAITING).fetchall()[0]
            before = len(proxy.links)
            for link in proxy.links:
                link.end()
            await wait_until(tried_again)
            assert not answers
            if not committed:
                holder.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
            holder.execute("SELECT pg_advisory_unlock(42)")
            with trio.fail_after(60):
                while not answers:
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    return answers[0]


async def test_a_wide_commit_that_takes_its_time(cut_driver: Driver, proxy: Proxy, committed: bool) -> None:
    instance = await cut_driver.run(chosen(), {"x": 1})
    job = await cut_driver.one("work")
    await slowly(cut_driver, proxy, "instance", committed, lambda: cut_driver.complete(job))
    assert await cut_driver.status(instance) == "COMPLETED"
    assert closed(cut_driver) == 1


async def test_a_narrow_commit_that_takes_its_time(
    cut_driver: Driver, proxy: Proxy, committed: bool, nursery: trio.Nursery
) -> None:
    instance = await cut_driver.run(linear(2))
    job = await cut_driver.one("work")
    jobs = await parked_poll(cut_driver, nursery, "work")
    await slowly(cut_driver, proxy, "history", committed, lambda: cut_driver.complete(job))
    following = await delivered(cut_driver, jobs)
    assert (following.step_id, following.attempt) == ("task-2", 1)
    assert closed(cut_driver) == 1
    assert await cut_driver.open_steps(instance) == ["task-2"]


@pytest.mark.parametrize("key", [None, "key"])
async def test_a_start_whose_commit_takes_its_time(
    cut_driver: Driver, proxy: Proxy, committed: bool, nursery: trio.Nursery, key: str | None
) -> None:
    await cut_driver.upload(linear(1))
    jobs = await parked_poll(cut_driver, nursery, "work")
    start = lambda: cut_driver.start("linear", idempotency_key=key)  # noqa: E731
    view = await slowly(cut_driver, proxy, "instance", committed, start)
    job = await delivered(cut_driver, jobs)
    assert (job.instance_id, job.attempt) == (view.id, 1)
    assert cut_driver.rows("SELECT count(*) FROM instance") == [(1,)]


async def test_a_batch_that_starts(proxy: Proxy, cut_driver: Driver, committed: bool) -> None:
    await cut_driver.upload(linear(1))
    items = [StartRequest(definition_id="linear", variables=b"{}", business_key=MARK) for _ in range(3)]
    made = await cut_driver.engine.batches.create(BatchStart(items))
    await losing(proxy, committed, cut_driver.engine.batches.step)
    found = await cut_driver.engine.batches.get(made.id)
    assert (found.state, found.active) == ("RUNNING", 3)
    assert cut_driver.rows("SELECT count(*) FROM instance") == [(3,)]
    assert cut_driver.rows("SELECT count(DISTINCT instance_id) FROM batch_item") == [(3,)]


async def test_a_schedule_that_fires(proxy: Proxy, cut_driver: Driver, committed: bool) -> None:
    await cut_driver.upload(linear(1))
    schedules = cut_driver.engine.schedules
    await schedules.put("nightly", ScheduleSpec("linear", every="P1D", business_key=MARK))
    while await schedules.fire_once():
        pass
    await schedules.backfill("nightly", "2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z", None)
    await losing(proxy, committed, schedules.fire_once)
    while await schedules.fire_once():
        pass
    assert cut_driver.rows("SELECT count(*), count(DISTINCT at) FROM scheduled") == [(3, 3)]
    assert cut_driver.rows("SELECT count(*) FROM instance") == [(3,)]
    assert len(await cut_driver.poll("work")) == 3
