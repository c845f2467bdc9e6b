"""Every operation cancelled at every point: the state is the one before or the one after, and nothing is left behind.

Each scenario is run once undisturbed, to know the state after it, and then once per scheduling step (see
`penstock.testing.cancellation`). After each run nothing may be under way, reserved, parked or leased to a caller who
heard nothing, and the instance is then brought to its end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec
import pytest
import trio

from penstock.core.rules.state import START_TIMER, InstanceStatus
from penstock.engine.advance.call_commands import timer_command
from penstock.engine.engine import Engine
from penstock.engine.instances.batches import BatchStart
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.engine.queues.journal_items import ClaimedRun, NewRecord, RunEnd
from penstock.engine.runs.code import CodeWorkflow
from penstock.runtime.supervise import forever
from penstock.settings import Settings
from penstock.store.db.database import Database
from penstock.store.rows import journal as journal_store
from penstock.store.rows.journal import Finish
from penstock.store.rows.messages import OWN_DELIVERY_S
from penstock.telemetry.metrics import Metrics
from penstock.testing.cancellation import CancelAtStep, CancelledAttempt, cancel_at_step
from penstock.testing.definitions import definition, end, fork, linear, service, step
from penstock.wire.attention import AcknowledgeBody
from penstock.wire.bulk import BulkFilter, BulkRequest
from penstock.wire.drafts import ExpressionCheck
from penstock.wire.edits import MigrationRequest, StepSkip, TokenMove, VariablesEdit
from penstock.wire.model import Failure, Heartbeat, Job, JobRef, Park, StartRequest
from penstock.wire.queue import QueuePolicy
from penstock.wire.repair_v1 import ListAuditRequest
from penstock.wire.schedule import ScheduleSpec
from penstock.wire.start import Debounce, Throttle
from penstock.wire.update import UpdateCall
from tests.engine import runs
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, completion, number
from tests.shapes import call
from tests.shares import mostly_slow
from tests.waiting import wait_until

STEPS_MAX = 800
"""More is an endless loop."""
ROUNDS = 2
"""Sockets answer at other moments each time: what one round passes over, another one meets."""

Operation = Callable[[], Awaitable[Any]]


class LockedBatch(NamedTuple):
    """An instance (0: one that the operation starts) and what is to be cancelled. ``key`` is its business key."""

    key: str
    operation: Operation


Prepare = Callable[[Driver, str], Awaitable[LockedBatch]]

CHOICE = definition(
    service("task", "choose"), step("choose", "DECISION", conditionalNextSteps={"x == 1": "next"}),
    service("next", "end"), end(), definition_id="choice",
)  # fmt: skip
LINE = linear(2, definition_id="line")
ASK = definition(step("ask", "USER_TASK", nextStep="task"), service("task", "end"), end(), definition_id="ask")
WAIT = definition(step("wait", "WAIT", nextStep="task"), service("task", "end"), end(), definition_id="wait")

LATER = definition(
    step("ask", "USER_TASK", nextStep="wait"), step("wait", "WAIT", nextStep="end"), end(), definition_id="later"
)

KINDS = ("definition", "queue", "schedule")
"""What code has, and is deleted."""
CHILD = definition(service("task", "end"), end(), definition_id="child")
CALLER = definition(call("call", "child", output={"y": "${result.y}"}), end(), definition_id="caller")

AUDIT = CodeWorkflow("audit")

REPORTED = definition(
    step("told", "WAIT", nextStep="end", message={"name": "told", "correlationKey": "${key}"}),
    end(),
    definition_id="told",
)

OLD = definition(service("a", "end"), end(), definition_id="versions")
NEW = definition(service("z", "b"), service("b", "end"), end(), definition_id="versions")

UNDONE = definition(
    service("task", "next", compensation={"jobType": "work"}), service("next", "end"), end(), definition_id="undone",
    onFailure="COMPENSATE",
)  # fmt: skip

EACH = definition(
    service("task", "end", forEach={"items": "${1..2}", "parallel": 1, "collect": "${result.y}", "into": "all"}),
    end(),
    definition_id="each",
)

UPLOADS = (EACH, UNDONE, linear(1), fork(1, 1), LINE, CHOICE, ASK, WAIT, LATER, CHILD, CALLER, OLD, NEW, REPORTED)


async def begun(driver: Driver, key: str, about: dict[str, Any], **variables: Any) -> tuple[str, Job]:
    """An instance whose first job is under lease."""
    view = await driver.start(about["id"], variables, business_key=key)
    (job,) = await driver.poll("work", n=1)
    return view.id, job


def starting(about: dict[str, Any], keyed: bool = False, own: bool = False, **rules: Any) -> Prepare:
    async def prepare(driver: Driver, key: str) -> LockedBatch:
        fields: dict[str, Any] = {"idempotency_key": key} if keyed else dict(rules)
        if own:
            fields |= {"instance_key": key, "keep_instance_key": True}
        return LockedBatch(key, lambda: driver.start(about["id"], {"x": 1}, business_key=key, **fields))

    return prepare


async def put_off(driver: Driver, key: str) -> LockedBatch:
    """A start in whose place another one comes."""
    rule = Debounce(key, "PT1H")
    await driver.start("linear", {"x": 0}, business_key=key, debounce=rule)
    return LockedBatch(key, lambda: driver.start("linear", {"x": 1}, business_key=key, debounce=rule))


async def begin(driver: Driver, key: str) -> LockedBatch:
    """The time of a start has come."""
    view = await driver.start("fork", {"x": 1}, business_key=key, delay="PT0.001S")
    ((token, seq),) = driver.rows("SELECT token_id, seq FROM timer WHERE instance_id = %s", number(view.id))
    timer = timer_command(number(view.id), (token, seq, START_TIMER))
    return LockedBatch(key, lambda: driver.engine.full_path.submit(timer))


async def start_batch(driver: Driver, key: str) -> LockedBatch:
    requests = [StartRequest(definition_id=name, variables=b'{"x":1}', business_key=key) for name in ("linear", "fork")]
    return LockedBatch(key, lambda: driver.engine.instances.start_batch(requests))


async def poll(driver: Driver, key: str) -> LockedBatch:
    await driver.start("linear", business_key=key)
    return LockedBatch(key, lambda: driver.poll("work", worker="cancelled"))


async def poll_with_nothing_to_do(driver: Driver, key: str) -> LockedBatch:
    return LockedBatch(key, lambda: driver.poll("work", worker="cancelled"))


async def poll_in_vain(driver: Driver, key: str) -> LockedBatch:
    return LockedBatch(key, lambda: driver.poll("work", worker="cancelled", wait=0.02))


def parked_poll(begin: Callable[[Driver, str], Awaitable[Any]]) -> Prepare:
    """A poll that parks, then something that gives it a job."""

    async def prepare(driver: Driver, key: str) -> LockedBatch:
        async def operation() -> Any:
            parked: list[Any] = []

            async def other() -> None:
                with trio.CancelScope(shield=True):
                    await begin(driver, key)

            async def poll() -> None:
                parked.extend(await driver.poll("work", worker="cancelled", n=1, wait=5))

            # the scope that is cancelled is around both; the other task is shielded and goes on
            async with trio.open_nursery() as nursery:
                nursery.start_soon(poll)
                await trio.lowlevel.cancel_shielded_checkpoint()
                nursery.start_soon(other)
            return parked

        return LockedBatch(key, operation)

    return prepare


async def handed_over_by_a_start(driver: Driver, key: str) -> None:
    await driver.start("linear", business_key=key)


def completing(about: dict[str, Any], *, many: bool = False, parked: bool = False) -> Prepare:
    async def prepare(driver: Driver, key: str) -> LockedBatch:
        _, job = await begun(driver, key, about, x=1)
        request = completion(job, {"y": key})
        if many:
            return LockedBatch(key, lambda: driver.engine.jobs.complete_many([request]))
        if not parked:
            return LockedBatch(key, lambda: driver.engine.jobs.complete(request))

        async def with_a_parked_poll() -> Any:
            return await parked_poll(lambda _driver, _key: driver.engine.jobs.complete(request))(driver, key)

        return await with_a_parked_poll()

    return prepare


def failing(*, retryable: bool, many: bool = False) -> Prepare:
    async def prepare(driver: Driver, key: str) -> LockedBatch:
        _, job = await begun(driver, key, linear(1))
        request = Failure(job_id=job.id, worker_id=job.worker_id, retryable=retryable, error_message="boom")  # pyright: ignore[reportArgumentType] - a stand-in
        if many:
            return LockedBatch(key, lambda: driver.engine.jobs.fail_many([request]))
        return LockedBatch(key, lambda: driver.engine.jobs.fail(request))

    return prepare


def beating(*, many: bool = False) -> Prepare:
    async def prepare(driver: Driver, key: str) -> LockedBatch:
        _, job = await begun(driver, key, linear(1))
        request = Heartbeat(job_id=job.id, worker_id=job.worker_id, checkpoint=b"1")  # pyright: ignore[reportArgumentType] - a stand-in
        if many:
            return LockedBatch(key, lambda: driver.engine.jobs.heartbeat_many([request]))
        return LockedBatch(key, lambda: driver.engine.jobs.heartbeat(request))

    return prepare


async def release(driver: Driver, key: str) -> LockedBatch:
    _, job = await begun(driver, key, linear(1))
    return LockedBatch(key, lambda: driver.engine.jobs.release_many([JobRef(job_id=job.id, worker_id=job.worker_id)]))  # pyright: ignore[reportArgumentType] - a stand-in


async def park(driver: Driver, key: str) -> LockedBatch:
    _, job = await begun(driver, key, linear(1))
    request = Park(job_id=job.id, attempt=job.attempt, worker_id=job.worker_id or "", signal="paid")
    return LockedBatch(key, lambda: driver.engine.jobs.park(request))


async def signal_to_a_parked_job(driver: Driver, key: str) -> LockedBatch:
    instance, job = await begun(driver, key, linear(1))
    await driver.engine.jobs.park(
        Park(job_id=job.id, attempt=job.attempt, worker_id=job.worker_id or "", signal="paid")
    )
    return LockedBatch(key, lambda: driver.signal(instance, "paid", {"y": key}))


async def cancel(driver: Driver, key: str) -> LockedBatch:
    instance, _ = await begun(driver, key, linear(1))
    return LockedBatch(key, lambda: driver.cancel(instance, "enough"))


def undoing(how: str) -> Prepare:
    """An instance whose first step is done: it is cancelled, fails, or is undone already but for its end."""

    async def prepare(driver: Driver, key: str) -> LockedBatch:
        instance, job = await begun(driver, key, UNDONE)
        await driver.complete(job, {"y": key})
        if how == "a cancel":
            return LockedBatch(key, lambda: driver.cancel(instance, "enough", compensate=True))
        (second,) = await driver.poll("work", n=1)
        if how == "a failure":
            return LockedBatch(key, lambda: driver.fail(second, retryable=False))
        await driver.fail(second, retryable=False)
        (handler,) = await driver.poll("work", n=1)
        return LockedBatch(key, lambda: driver.complete(handler))

    return prepare


async def retry(driver: Driver, key: str) -> LockedBatch:
    instance, job = await begun(driver, key, linear(1))
    await driver.fail(job, retryable=False)
    return LockedBatch(key, lambda: driver.retry(instance))


def of_run(operation: Callable[[Driver, ClaimedRun], Awaitable[Any]], *, parked: bool = False) -> Prepare:
    """Something that is done with a durable run, which an executor holds, or which is parked."""

    async def prepare(driver: Driver, key: str) -> LockedBatch:
        run = await runs.begin(driver, id=key)
        if parked:
            assert await driver.engine.journal.park(run.run_lease, mail=0, due_at=0.0)
        return LockedBatch(key, lambda: operation(driver, run))

    return prepare


async def take_run(driver: Driver, key: str) -> LockedBatch:
    await runs.start(driver, id=key)
    return LockedBatch(key, lambda: runs.take(driver, "cancelled"))


async def retry_run(driver: Driver, key: str) -> LockedBatch:
    run = await runs.begin(driver, id=key)
    await runs.append(driver, run.run_lease, runs.done("/0"), NewRecord(runs.FAILED, "/1", "charge", "{}"))
    await driver.engine.journal.finish(run.run_lease, RunEnd(InstanceStatus.FAILED, failure="no"), mail=0)
    return LockedBatch(key, lambda: driver.engine.instances.retry_run(run.instance_id, None))


async def continue_run(driver: Driver, key: str) -> LockedBatch:
    run = await runs.begin(driver, id=key)
    await runs.append(driver, run.run_lease, runs.done("/0"))
    return LockedBatch(key, lambda: runs.continue_as_new(driver, run.run_lease))


async def fork_run(driver: Driver, key: str) -> LockedBatch:
    run = await runs.begin(driver, id=f"the origin of {key}")
    await runs.append(driver, run.run_lease, runs.done("/0"), runs.done("/1"))
    await runs.finish(driver, run.run_lease)
    return LockedBatch(key, lambda: driver.engine.forks.fork(run.instance_id, "/1", fork_id=key))


def calling(what: str) -> Prepare:
    """A durable run that waits for another one."""

    async def prepare(driver: Driver, key: str) -> LockedBatch:
        run, children = await runs.begin(driver, id=key), driver.engine.children
        if what == "starts":
            return LockedBatch(key, lambda: children.start(run.run_lease, "/0", AUDIT, b"{}", key))
        await children.start(run.run_lease, "/0", AUDIT, b"{}", key)
        if what == "cancels":
            return LockedBatch(key, lambda: children.cancel(run.run_lease, "/0"))
        [child] = await driver.engine.code.take("cancelled", [AUDIT], 1, wait_s=5)
        async with driver.engine.database.connection() as connection:  # as its group-commit queue does it
            end = Finish(child.run_lease, 0, InstanceStatus.COMPLETED, 1, b'{"result": 1}', None)
            await journal_store.finish(connection, [end], view=12, error=13)
        return LockedBatch(key, driver.engine.timers.fire_once)

    return prepare


async def send_to_run(driver: Driver, run: ClaimedRun) -> None:
    await driver.engine.runs.send(run.instance_id, "go", b"1", dedup="once")


async def rejected(driver: Driver, key: str) -> tuple[str, str]:
    """A run that has rejected a message, and the message's position."""
    run = await runs.begin(driver, id=key)
    await driver.engine.runs.send(run.instance_id, "go", b"1")
    [message] = (await runs.read(driver, run.run_lease)).records
    at = f"{message.pos:x}"
    wait = {"path": "/0", "kind": "receive", "name": "go", "as_of": at, "rejected": [{"pos": at}]}
    branches = msgspec.json.encode([wait])
    assert await driver.engine.journal.park(run.run_lease, mail=1, due_at=None, branches=branches)
    return run.instance_id, at


def resolving(payload: bytes | None) -> Prepare:
    async def prepare(driver: Driver, key: str) -> LockedBatch:
        instance, at = await rejected(driver, key)
        return LockedBatch(key, lambda: driver.engine.runs.resolve_message(instance, at, payload))

    return prepare


async def ask_run(driver: Driver, run: ClaimedRun) -> None:
    call = UpdateCall("set", msgspec.Raw(b"[1]"), "once")
    assert (await driver.engine.updates.ask(run.instance_id, call)).status == "PENDING"


def answering(*kinds: int) -> Prepare:
    """A run that has a call of an update, which is answered, or refused."""

    async def prepare(driver: Driver, key: str) -> LockedBatch:
        run = await runs.begin(driver, id=key)
        await ask_run(driver, run)
        [call] = (await runs.read(driver, run.run_lease)).records
        new = [NewRecord(kind, "once", str(call.pos), '{"value":1}', rules=3) for kind in kinds]
        return LockedBatch(key, lambda: runs.append(driver, run.run_lease, *new, after=call.pos, mail=1))

    return prepare


async def wake_run(driver: Driver, run: ClaimedRun) -> None:
    await driver.engine.timers.fire_once()


async def user_task(driver: Driver, key: str) -> LockedBatch:
    instance = (await driver.start("ask", business_key=key)).id
    return LockedBatch(key, lambda: driver.finish_task(instance, "ask", {"y": key}))


def claiming(*, release: bool = False) -> Prepare:
    async def prepare(driver: Driver, key: str) -> LockedBatch:
        instance = (await driver.start("ask", business_key=key)).id
        if not release:
            return LockedBatch(key, lambda: driver.engine.inbox.claim(instance, "ask", "ann"))
        await driver.engine.inbox.claim(instance, "ask", "ann")
        return LockedBatch(key, lambda: driver.engine.inbox.release(instance, "ask", "ann"))

    return prepare


async def edit(driver: Driver, key: str) -> LockedBatch:
    instance = (await driver.start("ask", {"x": 1}, business_key=key)).id
    changes = VariablesEdit(set=msgspec.Raw(b'{"y":2}'), remove=["x"])
    return LockedBatch(key, lambda: driver.engine.repair.edit_variables(instance, changes))


async def skip(driver: Driver, key: str) -> LockedBatch:
    instance, _ = await begun(driver, key, LINE)
    return LockedBatch(key, lambda: driver.engine.repair.skip(instance, StepSkip("task-1", msgspec.Raw(b'{"y":2}'))))


async def move(driver: Driver, key: str) -> LockedBatch:
    instance, _ = await begun(driver, key, LINE)
    return LockedBatch(key, lambda: driver.engine.repair.move(instance, TokenMove("task-1", "task-2")))


async def prioritize(driver: Driver, key: str) -> LockedBatch:
    instance, _ = await begun(driver, key, LINE)
    return LockedBatch(key, lambda: driver.engine.repair.set_priority(instance, 2))


async def retry_from(driver: Driver, key: str) -> LockedBatch:
    instance, job = await begun(driver, key, LINE)
    await driver.fail(job, retryable=False)
    return LockedBatch(key, lambda: driver.engine.repair.retry_from(instance, "task-2", None, None))


async def migrate(driver: Driver, key: str) -> LockedBatch:
    """From the first version of the definition, of two, to the second one, with a job under lease."""
    view = await driver.start("versions", business_key=key, definition_version=1)
    await driver.poll("work", n=1)
    return LockedBatch(key, lambda: driver.engine.migrations.migrate(view.id, MigrationRequest(steps={"a": "b"})))


async def forget_checkpoint(driver: Driver, key: str) -> LockedBatch:
    _, job = await begun(driver, key, linear(1))
    await driver.heartbeat(job, checkpoint=b"1")
    return LockedBatch(key, lambda: driver.engine.attempts.forget_checkpoint(job.id, "stuck"))


async def read_attempts(driver: Driver, key: str) -> LockedBatch:
    _, job = await begun(driver, key, linear(1))
    return LockedBatch(key, lambda: driver.engine.attempts.of(job.id))


async def kept_messages(driver: Driver, key: str) -> LockedBatch:
    await driver.start("told", {"key": key}, business_key=key)
    return LockedBatch(key, lambda: driver.engine.messages.listing(None, None, None, 10))


async def unlock(driver: Driver, key: str) -> LockedBatch:
    _, job = await begun(driver, key, linear(1))
    return LockedBatch(key, lambda: driver.engine.open_work.unlock(job.id, "stuck"))


async def watch(driver: Driver, key: str) -> LockedBatch:
    """Two calls, the first of which tells all at once."""
    instance = (await driver.start("ask", business_key=key)).id
    driver.engine.overview.forget()

    async def operation() -> None:
        reported = await driver.engine.watch.wait(None, [instance], instance, 0, "15m")
        assert reported is not None
        await driver.engine.watch.wait(reported.tag, [instance], instance, 0.01, "15m")

    return LockedBatch(key, operation)


async def view_locked(driver: Driver, key: str) -> LockedBatch:
    instance = (await driver.start("ask", business_key=key)).id
    return LockedBatch(key, lambda: driver.engine.diagnosis.state(instance))


async def try_expression(driver: Driver, key: str) -> LockedBatch:
    instance = (await driver.start("ask", {"x": 1}, business_key=key)).id
    asked = ExpressionCheck("x + 1", instance_id=instance)
    return LockedBatch(key, lambda: driver.engine.drafts.check_expression(asked))


async def validate(driver: Driver, key: str) -> LockedBatch:
    await driver.start("ask", business_key=key)
    body = msgspec.json.encode({**LINE, "name": key})
    return LockedBatch(key, lambda: driver.engine.drafts.validate(body))


async def list_variables(driver: Driver, key: str) -> LockedBatch:
    await driver.start("ask", {"x": 1}, business_key=key)
    return LockedBatch(key, lambda: driver.engine.definition_use.variables("ask"))


async def signal(driver: Driver, key: str) -> LockedBatch:
    instance = (await driver.start("wait", business_key=key)).id
    return LockedBatch(key, lambda: driver.signal(instance, "wait", {"y": key}, idempotency_key="once"))


async def signal_by_key(driver: Driver, key: str) -> LockedBatch:
    await driver.start("wait", business_key=key, instance_key=key, keep_instance_key=True)
    return LockedBatch(key, lambda: driver.signal_by_key("wait", key, "wait", {"y": key}, signal_id="once"))


async def early_signal_by_key(driver: Driver, key: str) -> LockedBatch:
    await driver.start("later", business_key=key, instance_key=key, keep_instance_key=True)
    return LockedBatch(key, lambda: driver.signal_by_key("later", key, "wait", {"y": key}, signal_id="once"))


async def publish(driver: Driver, key: str) -> LockedBatch:
    """To a wait that is open. What was published gets there also when nobody waits for the answer."""
    await driver.start("told", {"key": key}, business_key=key)
    return LockedBatch(key, lambda: driver.publish("told", key, {"y": key}, message_id=key))


async def publish_early(driver: Driver, key: str) -> LockedBatch:
    return LockedBatch(key, lambda: driver.publish("told", f"early {key}", {"y": key}, message_id=key))


async def start_with_a_message(driver: Driver, key: str) -> LockedBatch:
    await driver.publish("told", key, {"y": key})
    return LockedBatch(key, lambda: driver.start("told", {"key": key}, business_key=key))


async def receive(driver: Driver, key: str) -> LockedBatch:
    await driver.publish("told", key, {"y": key})
    instance = number((await driver.start("told", {"key": key}, business_key=key)).id)
    found = "SELECT token_id, seq, index::int FROM timer WHERE index = -8 AND instance_id = %s"
    ((token, seq, index),) = driver.rows(found, instance)
    return LockedBatch(key, lambda: driver.engine.full_path.submit(timer_command(instance, (token, seq, index))))


async def start_a_caller(driver: Driver, key: str) -> LockedBatch:
    return LockedBatch(key, lambda: driver.start("caller", {"x": 1}, business_key=key))


def reported(*, cancelled: bool = False) -> Prepare:
    """What one instance tells another: the child's end, or that the caller was cancelled."""

    async def prepare(driver: Driver, key: str) -> LockedBatch:
        caller = (await driver.start("caller", {"x": 1}, business_key=key)).id
        (job,) = await driver.poll("work", n=1)
        if cancelled:
            await driver.cancel(caller)
        else:
            await driver.complete(job, {"y": 1})
        ((instance, token, seq, index),) = driver.rows("SELECT instance_id, token_id, seq, index::int FROM timer")
        timer = timer_command(instance, (token, seq, index))
        return LockedBatch(key, lambda: driver.engine.full_path.submit(timer))

    return prepare


async def take_up(driver: Driver, key: str) -> LockedBatch:
    """What its worker's own transaction completed."""
    _, job = await begun(driver, key, linear(1))
    driver.rows("""INSERT INTO setting (name, value) VALUES ('schema_version_needed', '18')
        ON CONFLICT (name) DO UPDATE SET value = excluded.value RETURNING 1""")
    driver.rows("SELECT complete(%s, %s, %s, %s)", job.id, job.attempt, job.worker_id, '{"y": 1}')
    ((instance, token, seq, index),) = driver.rows("SELECT instance_id, token_id, seq, index::int FROM timer")
    timer = timer_command(instance, (token, seq, index))
    return LockedBatch(key, lambda: driver.engine.full_path.submit(timer))


def scheduled(*, triggered: bool) -> Prepare:
    """One of its own, which is due by a backfill, or triggered."""

    async def prepare(driver: Driver, key: str) -> LockedBatch:
        schedules = driver.engine.schedules
        given = msgspec.Raw(b'{"schedule":0}')  # what it would be has the time in it
        spec = ScheduleSpec("linear", every="P1D", business_key=key, variables=given, overlap="BUFFER_ONE")
        await schedules.put(key, spec)
        while await schedules.fire_once():
            pass
        if triggered:
            return LockedBatch(key, lambda: schedules.trigger(key, None))
        await schedules.backfill(key, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", None)
        return LockedBatch(key, schedules.fire_once)

    return prepare


async def of_a_batch(driver: Driver, key: str) -> LockedBatch:
    items = [StartRequest(definition_id="linear", variables=b'{"x":1}', business_key=key) for _ in range(2)]
    await driver.engine.batches.create(BatchStart(items))
    return LockedBatch(key, driver.engine.batches.step)


async def asked_in_sql(driver: Driver, key: str) -> LockedBatch:
    """What a program's own transaction asked for."""
    await driver.upload(linear(1))
    driver.rows("""INSERT INTO setting (name, value) VALUES ('schema_version_needed', '22')
        ON CONFLICT (name) DO UPDATE SET value = excluded.value RETURNING 1""")
    driver.rows("DELETE FROM sql_request RETURNING 1")  # what a cancelled round has left
    for _ in range(2):
        driver.rows("SELECT penstock_start('linear', '{\"x\": 1}', business_key => %s)", key)
    return LockedBatch(key, driver.engine.sql_requests.run_once)


async def last_item(driver: Driver, key: str) -> LockedBatch:
    """What was collected is gathered."""
    _, job = await begun(driver, key, EACH)
    await driver.complete(job, {"y": 1})
    (job,) = await driver.poll("work", n=1)
    return LockedBatch(key, lambda: driver.complete(job, {"y": key}))


async def acknowledge(driver: Driver, key: str) -> LockedBatch:
    return LockedBatch(key, lambda: driver.engine.overview.acknowledge(key, AcknowledgeBody(1)))


async def withdraw(driver: Driver, key: str) -> LockedBatch:
    await driver.engine.overview.acknowledge(key, AcknowledgeBody(1))
    return LockedBatch(key, lambda: driver.engine.overview.withdraw(key))


def deleting(kind: str) -> Prepare:
    """What no code has any more."""

    async def prepare(driver: Driver, key: str) -> LockedBatch:
        await runs.undeclared(driver, key)
        engine = driver.engine
        delete = {"definition": engine.code.delete, "queue": engine.queues.delete, "schedule": engine.schedules.delete}
        return LockedBatch(key, lambda: delete[kind](key))

    return prepare


async def list_what_code_has(driver: Driver, key: str) -> LockedBatch:
    await runs.undeclared(driver, key)
    return LockedBatch(key, lambda: driver.engine.declarations.list(None, 10))


async def what_needs_somebody(driver: Driver, key: str) -> LockedBatch:
    driver.engine.overview.forget()
    return LockedBatch(key, driver.engine.overview.attention)


async def list_audit(driver: Driver, key: str) -> LockedBatch:
    return LockedBatch(key, lambda: driver.engine.audit_trail.list(ListAuditRequest(contains="line", limit=10)))


async def list_of_a_bulk_operation(driver: Driver, key: str) -> LockedBatch:
    await begun(driver, key, LINE)
    made = await driver.engine.bulk.create(BulkRequest(action="cancel", filter=BulkFilter(business_key=key)))
    await driver.engine.bulk.step()
    wanted = InstanceFilter(bulk_id=made.id)
    return LockedBatch(key, lambda: driver.engine.instances.list(wanted, 1, 10))


async def list_by_change(driver: Driver, key: str) -> LockedBatch:
    await begun(driver, key, LINE)
    wanted = InstanceFilter(business_key=key, order="changed")
    return LockedBatch(key, lambda: driver.engine.instances.list_slice(wanted, None, 10))


def counted(prepare: Prepare) -> Prepare:
    """The same with jobs that a queue counts."""

    async def prepare_counted(driver: Driver, key: str) -> LockedBatch:
        await driver.engine.queues.put("counted", QueuePolicy(["work"], concurrency=1_000))
        return await prepare(driver, key)

    return prepare_counted


SCENARIOS: dict[str, Prepare] = {
    "a start of items": starting(EACH),
    "an item that another follows": completing(EACH),
    "a parked poll for the next item": completing(EACH, parked=True),
    "the last item": last_item,
    "a narrow start": starting(linear(1)),
    "a wide start": starting(fork(1, 1)),
    "a start with a key": starting(linear(1), keyed=True),
    "a start with a key that is kept": starting(linear(1), own=True),
    "a delayed start": starting(linear(1), delay="PT1H"),
    "a throttled start": starting(linear(1), throttle=Throttle("k", 1_000_000)),
    "a start that is put off": put_off,
    "the time of a start": begin,
    "a batch of starts": start_batch,
    "a poll": poll,
    "a poll that finds nothing": poll_with_nothing_to_do,
    "a poll in a queue": counted(poll),
    "a start in a queue": counted(starting(linear(1))),
    "a narrow completion in a queue": counted(completing(LINE)),
    "a wide completion in a queue": counted(completing(CHOICE)),
    "a batch of releases in a queue": counted(release),
    "another priority": prioritize,
    "another priority in a queue": counted(prioritize),
    "a poll that waits in vain": poll_in_vain,
    "a parked poll that a start hands a job to": parked_poll(handed_over_by_a_start),
    "a parked poll that a narrow completion hands a job to": completing(LINE, parked=True),
    "a parked poll that a wide completion hands a job to": completing(CHOICE, parked=True),
    "a narrow completion": completing(LINE),
    "a narrow completion that ends the instance": completing(linear(1)),
    "a wide completion": completing(CHOICE),
    "a batch of completions": completing(LINE, many=True),
    "a failure with retries left": failing(retryable=True),
    "a failure for good": failing(retryable=False),
    "a batch of failures": failing(retryable=True, many=True),
    "a job that its worker parks": park,
    "a signal to a parked job": signal_to_a_parked_job,
    "a job that its worker's own transaction completed": take_up,
    "a heartbeat": beating(),
    "a batch of heartbeats": beating(many=True),
    "a batch of releases": release,
    "a cancel": cancel,
    "a cancel that undoes": undoing("a cancel"),
    "a failure that is undone": undoing("a failure"),
    "a handler's end": undoing("an end"),
    "a start that calls": start_a_caller,
    "a child's end told to its caller": reported(),
    "a caller's end told to its child": reported(cancelled=True),
    "a schedule that is due": scheduled(triggered=False),
    "a schedule that is triggered": scheduled(triggered=True),
    "starts of a batch": of_a_batch,
    "requests of SQL functions": asked_in_sql,
    "a retry of an instance": retry,
    "a poll of an executor": take_run,
    "an append": of_run(lambda driver, run: runs.append(driver, run.run_lease, runs.done("/0"), runs.done("/1"))),
    "a park": of_run(lambda driver, run: driver.engine.journal.park(run.run_lease, mail=0, due_at=9e9)),
    "a wake-up": of_run(wake_run, parked=True),
    "a message to a run that is held": of_run(send_to_run),
    "a message to a run that is parked": of_run(send_to_run, parked=True),
    "a rejected message that is corrected": resolving(b"2"),
    "a rejected message that is dropped": resolving(None),
    "a call of an update": of_run(ask_run),
    "a call of an update of a run that is parked": of_run(ask_run, parked=True),
    "an answer of an update": answering(16, 17),
    "a refusal of an update": answering(18),
    "a cancel of a run": of_run(lambda driver, run: driver.cancel(run.instance_id)),
    "a run that is blocked": of_run(lambda driver, run: driver.engine.journal.block(run.run_lease, "no")),
    "a run that is given back": of_run(lambda driver, run: driver.engine.journal.release(run.run_lease)),
    "a retry of a run": retry_run,
    "a run that continues as new": continue_run,
    "a run that is forked": fork_run,
    "a child that a run starts": calling("starts"),
    "a child that a run cancels": calling("cancels"),
    "a child's end told to a run": calling("is told"),
    "a run's end": of_run(lambda driver, run: runs.finish(driver, run.run_lease, 1)),
    "a user task": user_task,
    "a claim of a user task": claiming(),
    "a claimed task given back": claiming(release=True),
    "an edit of variables": edit,
    "a step that is skipped": skip,
    "a token that is moved": move,
    "a retry from another step": retry_from,
    "a migration": migrate,
    "a lease that an operator ends": unlock,
    "a checkpoint that is taken away": forget_checkpoint,
    "attempts that are read": read_attempts,
    "messages that are listed": kept_messages,
    "a watch": watch,
    "a look at an instance": view_locked,
    "an expression that is tried": try_expression,
    "a definition that is checked": validate,
    "a list of variables in use": list_variables,
    "a signal": signal,
    "a message to who waits": publish,
    "a message that comes early": publish_early,
    "a start that a message waits for": start_with_a_message,
    "a message that is received": receive,
    "an acknowledgement": acknowledge,
    "an acknowledgement that is withdrawn": withdraw,
    "what needs somebody": what_needs_somebody,
    "a durable workflow that is deleted": deleting("definition"),
    "a queue that is deleted": deleting("queue"),
    "a schedule that is deleted": deleting("schedule"),
    "a list of what code has": list_what_code_has,
    "the audit list": list_audit,
    "a list of what a bulk operation did": list_of_a_bulk_operation,
    "a list by the last change": list_by_change,
    "the records of a run": of_run(lambda driver, run: driver.engine.runs.records(run.instance_id)),
    "a signal by key": signal_by_key,
    "an early signal by key": early_signal_by_key,
}

STATE = """
SELECT i.status, i.definition, t.state, t.step, t.failures, t.attempt,
  regexp_replace(n.checkpoint::text, '"(as_of|pos)": "[0-9a-f]+"', '', 'g'), r.seq IS NOT NULL,
  (SELECT array_agg((h.step, h.kind) ORDER BY h.seq, h.kind) FROM history h WHERE h.instance_id = i.id)::text,
  (SELECT count(*) FROM timer m WHERE m.instance_id = i.id), i.instance_key IS NULL,
  (SELECT count(*) FROM buffered_signal b WHERE b.instance_id = i.id),
  (SELECT array_agg(assignee ORDER BY seq) FROM open_task o WHERE o.instance_id = i.id),
  (i.vars - 'key')::text, (SELECT count(*) FROM variables_edit v WHERE v.instance_id = i.id),
  (SELECT count(*) FROM audit a WHERE a.instance_id = i.id
     AND a.kind ~ '^(TASK|VARIABLES|CHECKPOINT|(SKIPP|MOV|RETRI|MIGRAT)ED)'),
  (SELECT count(*) FROM signal_id s WHERE s.instance_id = i.id),
  (SELECT kept FROM instance_key k WHERE k.instance_id = i.id), t.mail,
  (SELECT count(*) FROM compensation c WHERE c.instance_id = i.id),
  (SELECT u.status FROM undoing u WHERE u.instance_id = i.id),
  (SELECT array_agg(coalesce(m.taken, false)) FROM subscription u LEFT JOIN message m ON m.id = u.message
   WHERE u.instance_id = i.id),
  (SELECT count(*) FROM journal j WHERE j.instance_id = i.id), t.migrated,
  (SELECT count(*) FROM instance_version v WHERE v.instance_id = i.id),
  (SELECT count(*) FROM parked p WHERE p.token_id = t.id)
FROM instance i LEFT JOIN token t ON t.instance_id = i.id LEFT JOIN ready r ON r.token_id = t.id
LEFT JOIN job_note n ON n.token_id = t.id WHERE i.business_key = %s ORDER BY i.id, t.id
"""


def state(driver: Driver, key: str) -> dict[int, list[Any]]:
    """All that matters of the instances with a business key, by definition."""
    found: dict[int, list[Any]] = {}
    for row in driver.rows(STATE, key):
        found.setdefault(row[1], []).append(row)
    return found


async def quiet(driver: Driver) -> None:
    """Wait until nothing is under way in the engine; what never ends is the failure."""

    async def idle() -> bool:
        statistics = driver.engine.database.pool.statistics()
        busy = any(not batcher.statistics().idle for batcher in driver.engine.batchers())
        return not busy and statistics.busy == 0 and statistics.waiting == 0

    await wait_until(idle)


def check_before_or_after(
    before: dict[int, list[Any]],
    found: dict[int, list[Any]],
    after: dict[int, list[Any]],
    attempt: CancelledAttempt[Any],
) -> None:
    if not attempt.cancelled:
        assert found == after
    for about in before.keys() | after.keys() | found.keys():  # of a batch each item stands for itself
        assert found.get(about) in (before.get(about), after.get(about))


def check_nothing_is_left(driver: Driver, attempt: CancelledAttempt[Any]) -> None:
    assert len(driver.engine.polls.waiters) == 0
    assert driver.engine.polls.waiters.types() == []
    watching = driver.engine.watch
    assert (watching._pending, len(watching._watched), len(watching._ranges)) == (0, 0, 0)
    held = {(t, s) for t, s in driver.rows("SELECT id, seq FROM token WHERE state = 1")}
    watched = {(t, s) for t, s in held if driver.engine.polls.leases.find(t, s) is not None}
    assert watched == held, "a lease that nobody watches"
    received = heard_of(attempt.results[0]) if attempt.results else set[str]()
    leased = driver.rows("SELECT instance_id, id, seq FROM token WHERE claimed_by = 'cancelled' AND state = 1")
    assert {f"{i:x}-{t:x}-{s:x}" for i, t, s in leased} <= received, "a job is leased to a poll that never heard of it"


def check_acknowledged(driver: Driver) -> None:
    """A row is acknowledged where that is in the audit trail, and nowhere else."""
    said = "SELECT detail FROM audit WHERE kind = "
    noted = driver.rows(f"{said}'ATTENTION_ACKNOWLEDGED' EXCEPT {said}'ATTENTION_WITHDRAWN'")
    assert sorted(driver.rows("SELECT key FROM acknowledged")) == sorted(noted)


def check_deleted(driver: Driver, key: str, attempt: CancelledAttempt[Any], name: str) -> None:
    """What was deleted is in the audit trail, and nothing else is gone; without a cancel it is deleted."""
    made = driver.rows("SELECT FROM definition WHERE id = %s", key)
    left = runs.left(driver, key)
    noted = driver.rows("SELECT kind FROM audit WHERE detail = %s AND kind ~ '^(DEFINITION|QUEUE|SCHEDULE)_DEL'", key)
    gone = sorted(f"{kind.upper()}_DELETED" for kind in KINDS if made and kind not in left)
    assert gone == sorted(kind for (kind,) in noted)
    if name.endswith(" is deleted") and not attempt.cancelled:
        assert len(gone) == 1


def heard_of(result: Any) -> set[str]:
    """The ids of the jobs, and of the runs' jobs, that a poll answered."""
    if not isinstance(result, list):
        return set()
    runs_claimed = [each.run_lease for each in result if isinstance(each, ClaimedRun)]
    jobs = {each.id for each in result if isinstance(each, Job)}
    return jobs | {f"{held.instance:x}-{held.instance:x}-{held.seq:x}" for held in runs_claimed}


async def finish(driver: Driver, key: str) -> None:
    """The next operations work: every instance of the scene is brought to its end."""
    for table in ("schedule", "batch"):  # else they would start in the next scene what they did not in this one
        driver.rows(f"DELETE FROM {table} RETURNING 1")
    while driver.rows("SELECT FROM timer WHERE fire_at <= penstock_now()"):
        await driver.due()
    for id, status in driver.rows("SELECT id, status FROM instance WHERE business_key = %s ORDER BY id DESC", key):
        if status == 0:
            await driver.engine.instances.cancel(f"{id:x}", None, force=True)
        assert await driver.status(f"{id:x}") in ("COMPLETED", "FAILED", "CANCELLED")
    while driver.rows("SELECT FROM timer WHERE fire_at <= penstock_now()"):
        await driver.due()
    assert driver.rows("SELECT count(*) FROM token") == [(0,)]
    assert driver.rows("SELECT count(*) FROM ready") == [(0,)]


@pytest.fixture
async def driver(make_driver: MakeDriver, nursery: trio.Nursery) -> Driver:
    driver = make_driver()

    async def probe() -> None:
        await driver.engine.polls.wait_probe()
        await driver.engine.polls.probe_once()

    nursery.start_soon(partial(forever, "probe", probe))
    for about in UPLOADS:
        await driver.upload(about)
    return driver


QUICK = ("a narrow start", "a poll", "a wide completion", "a failure for good", "a signal to a parked job", "a cancel")
CANCELS = "cancels an operation at every point"


@pytest.mark.parametrize("name", mostly_slow(SCENARIOS, quick=QUICK, reason=CANCELS))
async def test_cancelled_at_every_point(driver: Driver, name: str) -> None:
    prepare = SCENARIOS[name]
    scene = await prepare(driver, "undisturbed")
    await scene.operation()
    await quiet(driver)
    after = state(driver, "undisturbed")
    await finish(driver, "undisturbed")
    tasks = trio.lowlevel.current_statistics().tasks_living
    cancelled = 0
    for turn in range(ROUNDS):
        for point in range(1, STEPS_MAX):
            key = f"{turn}-{point}"
            scene = await prepare(driver, key)
            before = state(driver, key)
            attempt = await cancel_at_step(point, scene.operation)
            cancelled += attempt.cancelled
            await quiet(driver)
            if not name.startswith(("a poll", "a parked poll")):
                check_before_or_after(before, state(driver, key), after, attempt)
            check_nothing_is_left(driver, attempt)
            check_acknowledged(driver)
            check_deleted(driver, key, attempt, name)
            await finish(driver, key)
            assert trio.lowlevel.current_statistics().tasks_living == tasks
            if not attempt.fired:
                break
        else:
            raise AssertionError("no end")
    assert cancelled >= ROUNDS, "no point was cancelled: the test shows nothing"


async def crash_at_step(
    other: Driver, point: int, name: str, key: str
) -> tuple[dict[int, list[Any]], CancelledAttempt[Any]]:
    """Run a scenario in an engine of its own and cancel all of it, flushers too; the state before the operation."""
    database = Database(other.dsn, max_connections=4)
    driver = other.beside(Engine(database, Settings(), Metrics("test"), 500))
    attempt: CancelledAttempt[Any] = CancelledAttempt()
    async with trio.open_nursery() as nursery:
        for batcher in driver.engine.batchers():
            nursery.start_soon(batcher.run)
        scene = await SCENARIOS[name](driver, key)
        before = state(driver, key)
        instrument = CancelAtStep(nursery.cancel_scope, point)
        trio.lowlevel.add_instrument(instrument)
        try:
            attempt.results.append(await scene.operation())
        finally:
            trio.lowlevel.remove_instrument(instrument)
            attempt.fired = instrument.fired
            nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        assert database.pool.statistics().busy == 0
        await database.close(0)
    return before, attempt


@pytest.mark.parametrize(
    "name",
    mostly_slow(
        [name for name in SCENARIOS if not name.startswith(("a poll", "a parked poll"))],
        quick=["a wide completion"],
        reason=CANCELS,
    ),
)
async def test_a_cancelled_engine_leaves_the_state_before_or_after(driver: Driver, name: str) -> None:
    """As when one of its services crashes; another engine goes on."""
    scene = await SCENARIOS[name](driver, "undisturbed")
    await scene.operation()
    await quiet(driver)
    after = state(driver, "undisturbed")
    await finish(driver, "undisturbed")
    for point in range(1, STEPS_MAX):
        key = f"point-{point}"
        before, attempt = await crash_at_step(driver, point, name, key)
        if name == "a message to who waits":  # that engine can't bring it any more
            await driver.due(OWN_DELIVERY_S + 1)
        check_before_or_after(before, state(driver, key), after, attempt)
        check_acknowledged(driver)
        check_deleted(driver, key, attempt, name)
        await finish(driver, key)
        if not attempt.fired:
            return
    raise AssertionError("no end")
