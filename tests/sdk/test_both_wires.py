"""What client and worker do against a real engine, over REST and gRPC, under asyncio and Trio: one suite."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import msgspec
import pytest
import trio
from msgspec.structs import replace

from penstock.client import (
    BadRequest,
    BulkFilter,
    BulkRequest,
    Client,
    Completion,
    Conflict,
    Debounce,
    Dedupe,
    DefinitionSummary,
    Failure,
    IdempotencyConflict,
    Instance,
    Job,
    JobRef,
    LeaseLost,
    NotFound,
    NotOverGrpc,
    StartRequest,
    SyncClient,
    Throttle,
    Throttled,
)
from penstock.client.builder import WorkflowBuilder, on_error
from penstock.testing.faulty_network import FaultyProxy, tcp
from penstock.wire.queue import QueuePolicy, Rate
from penstock.wire.schedule import ScheduleSpec
from penstock.worker import JobContext, Later, NonRetryable, Retry, StepError, StopReason, WaitFor, Worker
from tests import postgres
from tests.sdk.loops import Run
from tests.sdk.running_engine import RunningEngine


class Wire(NamedTuple):
    """How a test reaches the engine that all of this file share: names have to be its own."""

    url: str
    rest_url: str
    is_exact: bool
    """Whole numbers beyond 2^53 come back as they are when an instance is read."""

    def one_task(self, **options: Any) -> tuple[dict[str, Any], str]:
        """A definition with one job, and the job's type (also the definition's id)."""
        name = f"one-{uuid.uuid4().hex[:8]}"
        return WorkflowBuilder(name).service_task("work", name, retries=2, **options).end().document(), name


@pytest.fixture(scope="module")
def shared_engine(postgres_server: postgres.PostgresServer, tmp_path_factory: Any) -> Iterator[RunningEngine]:
    with postgres_server.database(postgres.apply_schema) as dsn:
        running = RunningEngine(dsn, tmp_path_factory.mktemp("engine") / "engine.log")
        try:
            running.start()
            yield running
        finally:
            running.close()


@pytest.fixture(params=["rest", "grpc"])
def wire(request: pytest.FixtureRequest, shared_engine: RunningEngine) -> Wire:
    over_rest = request.param == "rest"
    return Wire(shared_engine.url if over_rest else shared_engine.grpc_url, shared_engine.url, over_rest)


AGAIN = pytest.mark.slow(reason="both wires once more, on the other loop")
crossed = pytest.mark.parametrize(
    ("run", "wire"),
    [
        ("asyncio", "rest"),
        ("trio", "grpc"),
        pytest.param("asyncio", "grpc", marks=AGAIN),
        pytest.param("trio", "rest", marks=AGAIN),
    ],
    indirect=True,
)


async def run_to_the_end(client: Client, definition_id: str, variables: dict[str, Any]) -> Instance:
    started = await client.start_instance(definition_id, variables)
    return await client.wait_until_ended(started.id, timeout_s=120)


def ref_of(job: Job) -> JobRef:
    return JobRef(job_id=job.id, attempt=job.attempt)


@crossed
def test_definitions_are_uploaded_once_and_read_back_as_they_were(run: Run, wire: Wire) -> None:
    name = f"three-{uuid.uuid4().hex[:8]}"
    builder = WorkflowBuilder(name).service_task("a", "a").service_task("b", "b", boundary=[], retries=1)
    document = builder.decision("large", {"n > 1": "c", "true": "end"}).service_task("c", "c").end().document()
    document |= {"metadata": {"forms": {"a": 1}}}

    async def main() -> None:
        async with Client(wire.url) as client:
            assert await client.is_ready()
            first = await client.upload_definition(document)
            again = await client.upload_definition(document)
            changed = await client.upload_definition(document | {"name": "Three"})
            assert (first.version, again.version, changed.version) == (1, 1, 2)
            assert (changed.id, changed.name) == (name, "Three")
            assert await client.get_definition(name, 1) == document | {"version": 1}
            assert (await client.get_definition(name))["name"] == "Three"
            page = await client.list_definitions(keyword=name.upper())
            assert [(found.id, found.version, found.name) for found in page.items] == [(name, 2, "Three")]
            assert page.total == 1
            with pytest.raises(NotFound):
                await client.get_definition(name, 3)

    run(main)


@crossed
def test_starts_say_when_they_begin_and_what_becomes_of_others(run: Run, wire: Wire) -> None:
    document, name = wire.one_task()
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).replace(microsecond=0)

    async def main() -> None:
        async with Client(wire.url) as client:
            await client.upload_definition(document)
            later = await client.start_instance(name, start_at=tomorrow)
            assert (later.start_at, later.current_step_ids) == (tomorrow, [])
            delayed = await client.start_instance(name, delay="P1D")
            assert delayed.start_at is not None
            await client.cancel_instance(delayed.id)
            first, again = [await client.start_instance(name, dedupe=Dedupe("k", "PT1H")) for _ in range(2)]
            assert (again.id, bool(again.deduplicated), bool(first.deduplicated)) == (first.id, True, False)
            rule = Debounce("k", "P1D", keep="MERGE")
            for variables in ({"a": 1}, {"b": 2}):
                put_off = await client.start_instance(name, variables, debounce=rule)
            assert (put_off.variables, bool(put_off.deduplicated)) == ({"a": 1, "b": 2}, True)
            await client.start_instance(name, throttle=Throttle("k", 1, "P1D"))
            with pytest.raises(Throttled, match="throttle: too many starts with the key"):
                await client.start_instance(name, throttle=Throttle("k", 1, "P1D"))
            spread = await client.start_instance(name, throttle=Throttle("k", 1, "P1D", on_excess="DELAY"))
            assert spread.start_at is not None
            many = await client.start_instances([StartRequest(name, throttle=Throttle("k", 1, "P1D"))])
            assert [result.error for result in many] == ["throttled"]
            ended: list[Instance] = []
            async with anyio.create_task_group() as tasks:

                async def start() -> None:
                    ended.append(await client.start_instance(name, {"n": 1}, wait_s=60))

                tasks.start_soon(start)
                with anyio.fail_after(60):
                    while not ended:
                        for job in await client.poll_jobs("w", [name], wait_s=1):
                            await client.complete_job(job.id, "w", {"done": True}, attempt=job.attempt)
            assert [(view.status, view.variables) for view in ended] == [("COMPLETED", {"n": 1, "done": True})]
            assert (await client.get_instance(ended[0].id, wait_s=60)).status == "COMPLETED"

    run(main)


@crossed
def test_whole_numbers_of_any_size_reach_workers_and_come_back(run: Run, wire: Wire) -> None:
    variables = {"big": 10**40 + 7, "small": -(2**70), "list": [2**53 + 1], "null": None, "text": "ä€𝄞"}
    document, name = wire.one_task()

    async def main() -> None:
        async with Client(wire.url) as client:
            await client.upload_definition(document)
            started = await client.start_instance(name, variables, business_key=name)
            assert started.variables == variables
            worker = Worker(client)

            @worker.handler(name)
            async def work(seen: dict[str, Any]) -> dict[str, Any]:
                assert seen == variables
                return {"doubled": seen["big"] * 2}

            async with worker:
                ended = await client.wait_until_ended(started.id, timeout_s=120)
            exact = variables | {"doubled": (10**40 + 7) * 2}
            rounded = exact | {"big": 1e40, "list": [2.0**53], "doubled": 2e40}  # by a Struct of workflow.v1
            assert ended.variables == (exact if wire.is_exact else rounded)
            found = await client.list_instances(business_key=name, definition_id=name, status="COMPLETED")
            assert [each.id for each in found.items] == [started.id]
            assert [each.id async for each in client.iterate_instances(definition_id=name)] == [started.id]
            assert (await client.list_instances(definition_id=name, status="FAILED")).items == []

    run(main)


@crossed
def test_a_failure_is_retried_until_success_or_the_last_retry(run: Run, wire: Wire) -> None:
    document, name = wire.one_task()

    async def main() -> None:
        tries: Counter[str] = Counter()
        async with Client(wire.url) as client:
            await client.upload_definition(document)
            worker = Worker(client)

            @worker.handler(name)
            async def work(context: JobContext, variables: dict[str, Any]) -> None:
                tries[context.instance_id] += 1
                assert context.attempt == tries[context.instance_id]
                if tries[context.instance_id] < variables["succeeds_at"]:
                    raise Retry("not yet", after=0.01)

            async with worker:
                lucky = await run_to_the_end(client, name, {"succeeds_at": 3})
                unlucky = await run_to_the_end(client, name, {"succeeds_at": 4})
                broken = await run_to_the_end(client, name, {"succeeds_at": "never"})
        assert (lucky.status, tries[lucky.id]) == ("COMPLETED", 3)
        assert (unlucky.status, unlucky.failure_reason, tries[unlucky.id]) == ("FAILED", "not yet", 3)
        assert broken.status == "FAILED"
        assert broken.failure_reason is not None
        assert broken.failure_reason.startswith("TypeError")

    run(main)


@crossed
def test_a_handler_that_refuses_ends_the_instance(run: Run, wire: Wire) -> None:
    document, name = wire.one_task()

    async def main() -> None:
        async with Client(wire.url) as client:
            await client.upload_definition(document)
            worker = Worker(wire.url)

            @worker.handler(name)
            async def work() -> None:
                raise NonRetryable("never")

            async with worker:
                ended = await run_to_the_end(client, name, {})
            assert (ended.status, ended.failure_reason) == ("FAILED", "never")

    run(main)


@crossed
def test_a_handler_keeps_its_key_through_retries_of_the_instance(run: Run, wire: Wire) -> None:
    document, name = wire.one_task()
    seen: list[tuple[str, str, int | None]] = []

    async def main() -> None:
        async with Client(wire.url) as client:
            await client.upload_definition(document)
            worker = Worker(client)

            @worker.handler(name)
            async def work(job: JobContext) -> None:
                seen.append((job.idempotency_key, job.id, job.attempt))
                if len(seen) == 1:
                    raise Retry("the answer of the payment service was lost", after=0)
                if len(seen) == 2:
                    raise NonRetryable("an operator looks at it")

            async with worker:
                failed = await run_to_the_end(client, name, {})
                assert failed.status == "FAILED"
                async with Client(wire.rest_url) as operator:
                    await operator.retry_instance(failed.id)
                assert (await client.wait_until_ended(failed.id, timeout_s=120)).status == "COMPLETED"

    run(main)
    keys, ids, attempts = zip(*seen, strict=True)
    assert len(set(keys)) == 1
    assert ids[0] == ids[1] == keys[0] != ids[2]
    assert attempts == (1, 2, 1)


@crossed
def test_a_handler_knows_whose_job_it_does(run: Run, wire: Wire) -> None:
    document, name = wire.one_task()
    seen: list[tuple[str, str, int, str | None]] = []

    async def main() -> None:
        async with Client(wire.url) as client:
            await client.upload_definition(document)
            worker = Worker(client)

            @worker.handler(name)
            async def work(job: JobContext) -> None:
                seen.append((job.instance_id, job.definition_id, job.definition_version, job.business_key))

            started = [await client.start_instance(name, {}, business_key=key) for key in ("order-7", None)]
            async with worker:
                for instance in started:
                    await client.wait_until_ended(instance.id, timeout_s=120)
            assert sorted(seen, key=str) == sorted(
                [(started[0].id, name, 1, "order-7"), (started[1].id, name, 1, None)], key=str
            )

    run(main)


@crossed
def test_a_start_is_done_once_per_key(run: Run, wire: Wire) -> None:
    document, name = wire.one_task()

    async def main() -> None:
        async with Client(wire.url) as client:
            await client.upload_definition(document)
            first = await client.start_instance(name, {"n": 1}, idempotency_key=f"{name}-1")
            assert (await client.start_instance(name, {"n": 1}, idempotency_key=f"{name}-1")).id == first.id
            named = await client.start_instance(name, {"n": 1}, idempotency_key=f"{name}-Müller-☃")
            assert (await client.start_instance(name, {"n": 1}, idempotency_key=f"{name}-Müller-☃")).id == named.id
            with pytest.raises(IdempotencyConflict):
                await client.start_instance(name, {"n": 2}, idempotency_key=f"{name}-1")
            keyed = await client.start_instance(name, instance_key="k")
            assert (await client.start_instance(name, instance_key="k")).id == keyed.id
            good, bad = await client.start_instances(
                [StartRequest(definition_id=name, definition_version=1), StartRequest(definition_id=f"{name}-x")]
            )
            assert good.unwrap().definition_version == 1
            with pytest.raises(NotFound):
                bad.unwrap()
            with pytest.raises(NotFound):
                await client.start_instance(name, version=9)

    run(main)


@crossed
def test_a_stale_attempt_changes_nothing(run: Run, wire: Wire) -> None:
    document, name = wire.one_task()

    async def main() -> None:
        async with Client(wire.url) as client:
            await client.upload_definition(document)
            started = await client.start_instance(name)
            (first,) = await client.poll_jobs("w1", [name], wait_s=20)
            (released,) = await client.release_jobs("w1", [ref_of(first)])
            assert released.outcome == "ok"
            (second,) = await client.poll_jobs("w2", [name], wait_s=20)
            assert (second.id, second.attempt) == (first.id, (first.attempt or 0) + 1)
            assert second.retries_remaining == first.retries_remaining
            with pytest.raises(LeaseLost):
                await client.complete_job(first.id, "w1", {"by": "w1"}, attempt=first.attempt)
            with pytest.raises(LeaseLost):
                await client.fail_job(first.id, "w1", "too late", attempt=first.attempt)
            await client.fail_job(first.id, "w1", "too late")  # not fenced: refused, and no error
            with pytest.raises(LeaseLost):
                await client.heartbeat_job(first.id, "w1", attempt=first.attempt)
            lease = await client.heartbeat_job(second.id, "w2", attempt=second.attempt, lease_s=90)
            assert second.lock_expires_at is not None
            assert lease.lock_expires_at > second.lock_expires_at
            (stale,) = await client.complete_jobs("w1", [Completion(job_id=first.id, attempt=first.attempt)])
            assert stale.outcome == "lease-lost"
            failure = Failure(job_id=first.id, attempt=first.attempt, retryable=True, error_message="x")
            (stale,) = await client.fail_jobs("w1", [failure])
            assert stale.outcome == "lease-lost"
            await client.complete_job(second.id, "w2", {"by": "w2"}, attempt=second.attempt)
            await client.complete_job(second.id, "w2", {"by": "w2 again"}, attempt=second.attempt)
            ended = await client.get_instance(started.id)
            assert (ended.status, ended.variables) == ("COMPLETED", {"by": "w2"})
            with pytest.raises(NotFound):
                await client.complete_job("1-1-1", "w2")

    run(main)


@crossed
def test_an_instance_that_is_cancelled_stops_its_handler(run: Run, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEARTBEATS_PER_LEASE", "POLLS_PER_LEASE"):  # told soon, under a lease that outlasts the test
        monkeypatch.setattr(f"penstock.worker.leases.{name}", 120)
    document, name = wire.one_task()

    async def main() -> None:
        running = anyio.Event()
        reasons: list[object] = []
        stopped = anyio.Event()
        async with Client(wire.url) as client:
            await client.upload_definition(document)
            worker = Worker(client, lease_s=120)

            @worker.handler(name)
            async def work(context: JobContext) -> None:
                running.set()
                try:
                    await anyio.sleep_forever()
                finally:
                    reasons.append(context.stop_reason)
                    stopped.set()

            async with worker:
                started = await client.start_instance(name)
                await running.wait()
                cancelled = await client.cancel_instance(started.id, reason="changed my mind")
                assert (cancelled.status, cancelled.failure_reason) == ("CANCELLED", "changed my mind")
                with pytest.raises(Conflict):
                    await client.cancel_instance(started.id)
                await stopped.wait()
        assert reasons == [StopReason.CANCELLED]

    run(main)


@crossed
def test_a_stopping_workers_jobs_go_to_another_at_once(run: Run, wire: Wire) -> None:
    document, name = wire.one_task()

    async def main() -> None:
        taken = anyio.Event()
        async with Client(wire.url) as client:
            await client.upload_definition(document)
            slow = Worker(client, lease_s=3600, drain_grace_s=0)

            @slow.handler(name)
            async def hang() -> None:
                taken.set()
                await anyio.sleep_forever()

            quick = Worker(client)

            @quick.handler(name)
            async def finish(context: JobContext) -> dict[str, Any]:
                return {"retries": context.retries_remaining}

            async with slow:
                started = await client.start_instance(name)
                await taken.wait()
            async with quick:
                ended = await client.wait_until_ended(started.id, timeout_s=120)
            assert (ended.status, ended.variables) == ("COMPLETED", {"retries": 2})

    run(main)


@crossed
def test_people_and_signals_move_an_instance_on(run: Run, wire: Wire) -> None:
    name = f"approval-{uuid.uuid4().hex[:8]}"
    flow = WorkflowBuilder(name).wait("papers").user_task("approve").wait("late").end().document()

    async def main() -> None:
        async with Client(wire.url) as client, Client(wire.rest_url) as rest:
            await client.upload_definition(flow)
            started = await client.start_instance(name)
            assert (started.status, started.current_step_ids) == ("WAITING", ["papers"])
            with pytest.raises(NotFound):
                await client.complete_user_task(started.id, "approve")
            await client.signal(started.id, "late", {"seal": True}, buffer=True)
            kept = [(kept.step_id, kept.variables) for kept in await rest.list_signals(started.id)]
            assert kept == [("late", {"seal": True})]
            await client.signal(started.id, "papers", {"papers": 2}, idempotency_key=f"{name}-1")
            await client.signal(started.id, "papers", {"papers": 2}, idempotency_key=f"{name}-1")
            with pytest.raises(IdempotencyConflict):
                await client.signal(started.id, "papers", {"papers": 3}, idempotency_key=f"{name}-1")
            with pytest.raises(BadRequest):
                await client.complete_user_task(started.id, "papers")
            await client.complete_user_task(started.id, "approve", {"approved": True}, completed_by="ann")
            ended = await client.get_instance(started.id)
            assert (ended.status, ended.variables) == ("COMPLETED", {"papers": 2, "approved": True, "seal": True})
            kinds = [record.kind for record in await rest.get_audit(started.id)]
            assert len(kinds) > 3
            assert await rest.list_signals(started.id) == []
            with pytest.raises(Conflict):
                await client.complete_user_task(started.id, "approve")
            steps = [(step.step_id, step.step_type, step.status) for step in await client.get_history(started.id)]
            assert steps[:2] == [("papers", "WAIT", "COMPLETED"), ("approve", "USER_TASK", "COMPLETED")]

    run(main)


@crossed
def test_lists_take_every_filter_of_the_engine(run: Run, wire: Wire) -> None:
    name = f"filters-{uuid.uuid4().hex[:8]}"
    flow = WorkflowBuilder(name).service_task("pay", name).end().document()
    child = f"{name}-child"
    caller = WorkflowBuilder(f"{name}-caller").call("call", child).end().document()

    async def main() -> None:
        async with Client(wire.url) as client, Client(wire.rest_url) as rest:
            for document in (flow, WorkflowBuilder(child).user_task("ask").end().document(), caller):
                await rest.upload_definition(document)
            started = [await rest.start_instance(name, business_key=f"{name}-{n}") for n in range(2)]
            [job] = await rest.poll_jobs("w", [name], max_jobs=1, wait_s=20)
            error: Any = {"error_code": "DECLINED", "attempt": job.attempt}
            await rest.fail_job(job.id, "w", "no funds 17", retryable=False, **error)
            parent = await rest.start_instance(f"{name}-caller")

            async def found(**filters: Any) -> list[str]:
                return [one.id async for one in rest.iterate_instances(**filters)]

            assert await found(business_key_prefix=f"{name}-") == [started[1].id, started[0].id]
            assert await found(definition_id=name, definition_version=2) == []
            assert await found(definition_id=name, status="FAILED", step_id="pay") == [job.instance_id]
            assert job.instance_id in await found(status="FAILED", cause="DECLINED · no funds 4")
            (called,) = (await rest.list_instances(parent_instance_id=parent.id)).items
            assert called.definition_id == child
            assert parent.started_at is not None
            later = parent.started_at + timedelta(minutes=1)
            assert await found(definition_id=name, started_after=later) == []
            assert len(await found(definition_id=name, started_before=later)) == 2
            (failed,) = (await rest.list_failed_jobs(job_type=name)).items
            assert (failed.error_code, failed.reason) == ("DECLINED", "no funds 17")
            later_one = await client.start_instance(child, delay="PT1H")
            assert [one.id for one in (await client.list_instances(definition_id=child, delayed=True)).items] == [
                later_one.id
            ]
            assert (await client.list_instances(definition_id=name, delayed=True)).items == []
            open_one = next(one.id for one in started if one.id != job.instance_id)
            for order, ids in (("oldest", [started[0].id, started[1].id]), ("ended", [job.instance_id]),
                               ("changed", [job.instance_id, open_one])):  # fmt: skip
                page = await client.list_instances(definition_id=name, order=order, limit=5)
                assert [one.id for one in page.items] == ids
            standing = await client.list_instances(definition_id=name, current_step_id="pay", limit=5)
            assert [one.id for one in standing.items] == [open_one]
            with pytest.raises(BadRequest, match="currentStepId: needs a definitionId"):
                await client.list_instances(current_step_id="pay")
            with pytest.raises(BadRequest, match="order: must be one of"):
                await client.list_instances(order="size", limit=5)
            if wire.url != wire.rest_url:
                with pytest.raises(NotOverGrpc, match="parent_instance_id"):
                    await client.list_instances(parent_instance_id=parent.id)

    run(main)


@crossed
def test_what_needs_somebody_is_acknowledged(run: Run, wire: Wire) -> None:
    name = f"attention-{uuid.uuid4().hex[:8]}"

    async def main() -> None:
        async with Client(wire.url) as client:
            await client.upload_definition(WorkflowBuilder(name).service_task("pay", name).end().document())
            await client.start_instance(name)
            [job] = await client.poll_jobs("w", [name], max_jobs=1, wait_s=20)
            await client.fail_job(job.id, "w", f"no paper {name}", retryable=False, attempt=job.attempt)

            async def row() -> Any:
                with anyio.fail_after(60):
                    while True:  # an overview is kept for seconds
                        for one in await client.list_attention():
                            if one.query.get("definitionId") == name:
                                return one
                        await anyio.sleep(0.1)

            found = await row()
            await client.acknowledge(found.key, count=found.count, note="ordered")
            marked = await row()
            assert (marked.count, marked.exact, marked.acknowledged.note) == (1, True, "ordered")
            await client.withdraw_acknowledgement(found.key)
            assert (await row()).acknowledged is None
            with pytest.raises(NotFound):
                await client.withdraw_acknowledgement(found.key)

    run(main)


@crossed
def test_schedules_are_kept_and_acted_on(run: Run, wire: Wire) -> None:
    name = f"scheduled-{uuid.uuid4().hex[:8]}"
    spec = ScheduleSpec(
        name, variables={"n": 1}, cron=["0 2 29 2 *"], time_zone="Europe/Berlin", overlap="ALLOW", priority=2
    )

    async def main() -> None:
        async with Client(wire.url) as client:
            await client.upload_definition(WorkflowBuilder(name).end().document())
            made = await client.put_schedule(name, spec)
            assert (made.cron, made.time_zone, made.variables, made.priority) == (
                spec.cron,
                "Europe/Berlin",
                {"n": 1},
                2,
            )
            assert (await client.preview_schedule(spec, schedule_id=name, count=1))[0].at is not None
            fired = await client.trigger_schedule(name, overlap="SKIP")
            assert fired.instance_id is not None
            ended = await client.wait_until_ended(fired.instance_id, timeout_s=120)
            assert ended.variables["schedule"]["id"] == name
            assert (await client.pause_schedule(name, "holidays")).pause_note == "holidays"
            now = datetime.now(UTC)
            with pytest.raises(BadRequest, match="to: must be in the past"):
                await client.backfill_schedule(name, now, now + timedelta(days=2))
            assert not (await client.resume_schedule(name)).paused
            assert name in [each.id async for each in client.iterate_schedules()]
            assert [one.instance_id for one in (await client.get_schedule(name)).runs] == [fired.instance_id]
            await client.delete_schedule(name)
            with pytest.raises(NotFound):
                await client.get_schedule(name)
            given = (None, True, None, False, None)
            shown = [(await client.put_schedule(name, replace(spec, paused=paused))).paused for paused in given]
            assert shown == [False, True, True, False, False]

    run(main)


@crossed
def test_queues_are_put_and_looked_at(run: Run, wire: Wire) -> None:
    name = f"queue-{uuid.uuid4().hex[:8]}"
    rate = Rate(10, "PT1M", 2)
    policy = QueuePolicy([name], concurrency=5, rate_per_key=rate, weights={"gold": 4}, runs=7)

    async def main() -> None:
        async with Client(wire.url) as client:
            await client.upload_definition(WorkflowBuilder(name).service_task("work", name).end().document())
            assert (await client.put_queue(name, policy)).policy == policy
            await client.start_instance(name, flow_key="gold")
            found = await client.get_queue(name)
            assert (found.policy, found.running, found.waiting, found.open_runs) == (policy, 0, 1, 0)
            assert [(key.flow_key, key.waiting) for key in found.keys or ()] == [("gold", 1)]
            assert found.oldest_s is not None
            assert [each.policy for each in (await client.list_queues()).items if each.name == name] == [policy]
            paused = replace(policy, paused=True, concurrency=None, fair=False, rate_per_key=None, weights={})
            assert (await client.put_queue(name, paused)).policy == paused
            assert (await client.get_queue(name)).running is None
            per_key = QueuePolicy([name], concurrency_per_key=1)
            assert (await client.put_queue(name, per_key)).policy == replace(per_key, paused=True)
            assert (await client.put_queue(name, replace(per_key, paused=False))).policy == per_key
            assert (await client.get_queue(name)).running == 0
            for field, none in (
                ("concurrency", QueuePolicy([name], concurrency=0)),
                ("rate.burst", QueuePolicy([name], rate=Rate(1, burst=0))),
            ):
                with pytest.raises(BadRequest, match=f"{field}: must be 1 "):  # it is no word for "unlimited"
                    await client.put_queue(name, none)
            assert (await client.get_queue(name)).policy == per_key
            assert (await client.pause_queue(name)).policy == replace(per_key, paused=True)
            assert (await client.get_queue(name)).policy.paused
            assert (await client.resume_queue(name)).policy == per_key
            await client.delete_queue(name)
            for gone in (client.get_queue, client.pause_queue, client.resume_queue):
                with pytest.raises(NotFound):
                    await gone(name)

    run(main)


@crossed
def test_a_message_finds_who_waits_for_it(run: Run, wire: Wire) -> None:
    name = f"message-{uuid.uuid4().hex[:8]}"
    flow = WorkflowBuilder(name).wait("paid", message=(name, "${order}")).end().document()

    async def main() -> None:
        async with Client(wire.url) as client, Client(wire.rest_url) as rest:
            await rest.upload_definition(flow)
            early = await client.publish_message(name, "8", {"sum": 1}, message_id=name)
            assert (early.delivered, early.kept) == ([], True)
            (kept,) = (await rest.list_messages(name=name)).items
            assert (kept.correlation_key, kept.message_id, kept.taken) == ("8", name, False)
            with pytest.raises(IdempotencyConflict):
                await client.publish_message(name, "8", {"sum": 2}, message_id=name)
            with pytest.raises(BadRequest, match="ttl"):
                await client.publish_message(name, "9", ttl="tomorrow")
            started = [await client.start_instance(name, {"order": 7}) for _ in range(2)]
            paid = await client.publish_message(name, "7", {"sum": 10}, to_all=True)
            assert [(each.instance_id, each.step_id) for each in paid.delivered] == [(s.id, "paid") for s in started]
            ended = await client.get_instance(started[0].id)
            assert (ended.status, ended.variables) == ("COMPLETED", {"order": 7, "sum": 10})
            assert (await client.publish_message(name, "7", ttl="PT0S")).kept is False

    run(main)


@crossed
def test_a_checkpoint_reaches_the_next_attempt_and_progress_is_shown(run: Run, wire: Wire) -> None:
    document, name = wire.one_task()

    async def main() -> None:
        reported, go_on = anyio.Event(), anyio.Event()
        async with Client(wire.url) as client, Client(wire.rest_url) as rest:
            await client.upload_definition(document)
            worker = Worker(client)

            @worker.handler(name)
            async def work(context: JobContext) -> dict[str, Any]:
                if context.checkpoint is None:
                    await context.report(checkpoint={"page": 3}, progress="3 of 9")
                    reported.set()
                    await go_on.wait()
                    raise Retry("the connection broke")
                return {"went_on_from": context.checkpoint["page"]}

            async with worker:
                started = await client.start_instance(name)
                await reported.wait()
                assert (await rest.get_instance(started.id)).progress == {"work": "3 of 9"}
                go_on.set()
                ended = await client.wait_until_ended(started.id, timeout_s=120)
            assert ended.variables == {"went_on_from": 3}

    run(main)


@crossed
def test_a_newer_handler_that_takes_over_knows_the_format_of_a_checkpoint(
    run: Run, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEARTBEATS_PER_LEASE", "POLLS_PER_LEASE"):  # told soon, under a lease that outlasts the test
        monkeypatch.setattr(f"penstock.worker.leases.{name}", 120)
    document, name = wire.one_task()

    async def main() -> None:
        stored, converted, lost, old_ended = anyio.Event(), anyio.Event(), anyio.Event(), anyio.Event()
        seen: list[tuple[object, ...]] = []
        async with Client(wire.url) as client, Client(wire.rest_url) as rest:
            await client.upload_definition(document)
            old = Worker(client, concurrency=1, lease_s=120)
            new = Worker(client, concurrency=1, lease_s=120, drain_grace_s=0)
            held: list[JobRef] = []

            @old.handler(name, checkpoint_format=1)
            async def by_page(context: JobContext) -> None:
                await context.report(checkpoint={"page": 3})
                held.append(ref_of(context.job))
                stored.set()
                try:
                    await anyio.sleep_forever()
                finally:
                    seen.append((context.stop_reason,))
                    lost.set()

            @new.handler(name, checkpoint_format=2)
            async def by_offset(context: JobContext) -> dict[str, Any]:
                seen.append((context.checkpoint, context.checkpoint_of(1), context.checkpoint_of(None)))
                if context.checkpoint is None:
                    await context.report(checkpoint={"offset": 10 * context.checkpoint_of(1)["page"]})
                    converted.set()
                    await anyio.sleep_forever()
                return {"went_on_from": context.checkpoint}

            async def run_old() -> None:
                async with old:
                    await lost.wait()
                old_ended.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run_old)
                started = await client.start_instance(name)
                await stored.wait()
                async with new:  # the old one has no room for another job until it learns that this one is lost
                    await client.release_jobs(old.worker_id, held)
                    await converted.wait()
                    await old_ended.wait()
            (job,) = await rest.poll_jobs("w", [name], wait_s=20)
            assert job.checkpoint == {"format": 2, "value": {"offset": 30}}
            await rest.release_jobs("w", [ref_of(job)])
            async with new:
                ended = await client.wait_until_ended(started.id, timeout_s=120)
            assert ended.variables == {"went_on_from": {"offset": 30}}
            assert (StopReason.LEASE_LOST,) in seen
            assert [found for found in seen if len(found) == 3] == [
                (None, {"page": 3}, None),
                ({"offset": 30}, None, None),
            ]

    run(main)


@crossed
def test_a_failed_instance_is_found_and_retried(run: Run, wire: Wire) -> None:
    document, name = wire.one_task()

    async def main() -> None:
        async with Client(wire.url) as client, Client(wire.rest_url) as rest:
            await client.upload_definition(document)
            started = await client.start_instance(name)
            (job,) = await client.poll_jobs("w", [name], wait_s=20)
            (beat,) = await client.heartbeat_jobs("w", [ref_of(job)], lease_s=60)
            assert beat.outcome == "ok"
            await client.fail_job(job.id, "w", "broken", retryable=False, attempt=job.attempt)
            (beat,) = await client.heartbeat_jobs("w", [ref_of(job)])
            assert beat.outcome in ("cancelled", "lease-lost")
            page = await rest.list_failed_jobs(job_type=name)
            assert ([(found.id, found.reason) for found in page.items], page.total) == ([(job.id, "broken")], 1)
            assert (await rest.list_failed_jobs(job_type=f"not-{name}")).items == []
            assert (await rest.retry_instance(started.id)).status == "ACTIVE"
            (again,) = await client.poll_jobs("w", [name], wait_s=20)
            await client.complete_job(again.id, "w", attempt=again.attempt)
            assert (await client.get_instance(started.id)).status == "COMPLETED"
            with pytest.raises(Conflict):
                await rest.retry_instance(started.id)

    run(main)


@crossed
def test_many_are_started_followed_and_collected_as_one(run: Run, wire: Wire) -> None:
    name = f"line-{uuid.uuid4().hex[:8]}"
    line = WorkflowBuilder(name).service_task("one", name).end().document()

    async def main() -> None:
        async with Client(wire.url) as client, Client(wire.rest_url) as rest:
            await rest.upload_definition(line)
            items = [StartRequest(definition_id=name, variables={"n": n, "big": 2**60 + 1}) for n in range(3)]
            items.append(StartRequest(definition_id="nobody-" + name))
            made = await client.start_batch(items, on_complete=name, note="all", idempotency_key=name)
            assert (made.total, made.note, made.on_complete, made.ended_at) == (4, "all", name, None)
            assert (await rest.start_batch(items, on_complete=name, note="all", idempotency_key=name)).id == made.id
            done = 0
            while done < 3:
                for job in await client.poll_jobs("w", [name], max_jobs=9, wait_s=5):
                    await client.complete_job(job.id, "w", {"double": 2 * job.variables["n"]}, attempt=job.attempt)
                    done += 1
            ended = await client.wait_for_batch(made.id, timeout_s=120)
            assert (ended.state, ended.completed, ended.refused) == ("DONE", 3, 1)
            last = await rest.get_instance(ended.completion_id or "")
            assert last.variables["batch"]["completed"] == 3
            results = [one async for one in client.iterate_batch_results(made.id)]
            assert [one.instance and one.instance.variables for one in results] == [
                {"n": 0, "big": 2**60 + 1, "double": 0},
                {"n": 1, "big": 2**60 + 1, "double": 2},
                {"n": 2, "big": 2**60 + 1, "double": 4},
                None,
            ]
            assert (results[3].state, results[3].error) == ("REFUSED", "not-found")
            (refused,) = (await client.list_batch_results(made.id, state="REFUSED", limit=5)).items
            assert refused == results[3]
            (newest,) = (await client.list_batches(limit=1)).items
            assert (newest.id, newest.created_at) == (made.id, ended.created_at)
            assert made.id in [each.id async for each in client.iterate_batches()]
            other = await client.start_batch([StartRequest(definition_id=name, delay="PT1H")])
            assert (await client.cancel_batch(other.id, "no more")).reason == "no more"
            assert (await client.wait_for_batch(other.id, timeout_s=120)).state == "CANCELLED"
            with pytest.raises(Conflict):
                await client.cancel_batch(made.id)
            with pytest.raises(NotFound):
                await client.get_batch("999999")
            with pytest.raises(BadRequest, match=r"items\[0\]"):
                await client.start_batch([StartRequest(definition_id="")])
            await client.cancel_instance(last.id)

    run(main)


@crossed
def test_instances_are_mended_one_or_many_at_once(run: Run, wire: Wire) -> None:
    name = f"line-{uuid.uuid4().hex[:8]}"
    line = WorkflowBuilder(name).service_task("one", name).service_task("two", name).end().document()
    more = WorkflowBuilder(name).service_task("one", name).service_task("three", name).end().document()

    async def main() -> None:
        async with Client(wire.url) as client, Client(wire.rest_url) as rest:
            await rest.upload_definition(line)
            ids = [(await client.start_instance(name, {"big": 2**60, "n": n})).id for n in range(3)]
            skipped = await client.skip_step(ids[0], "one", {"a": 2**60 + 1}, note="by hand")
            assert (skipped.current_step_ids, skipped.variables) == (["two"], {"big": 2**60, "n": 0, "a": 2**60 + 1})
            assert (await client.set_priority(ids[0], 2)).id == ids[0]
            moved = await client.move_token(ids[0], "two", "one")
            assert moved.current_step_ids == ["one"]
            wanted = BulkRequest(
                action="skip", filter=BulkFilter(definition_id=name), besides=BulkFilter(status="FAILED"),
                step_id="one", variables={"b": 2**60 + 1}, per_second=1_000.5, note="all",
            )  # fmt: skip
            preview = await client.preview_bulk(wanted)
            assert (preview.count, preview.exact, preview.refusals) == (3, True, None)
            assert [(at.step_id, at.count) for at in preview.by_step] == [("one", 3)]
            begun = await client.start_bulk(wanted)
            ended = await client.wait_for_bulk(begun.id, timeout_s=120)
            assert (ended.state, ended.done, ended.per_second, ended.note) == ("DONE", 3, 1_000.5, "all")
            assert ended.filter == {"definitionId": name, "except": {"status": "FAILED"}}
            listed = msgspec.structs.replace(ended, outcome=None)  # counted only of one that is asked for
            assert (await client.list_bulk(limit=1)).items == [listed]
            assert msgspec.structs.replace(await client.stop_bulk(begun.id), outcome=None) == listed
            assert await rest.get_bulk(begun.id) == ended
            assert [(await rest.get_instance(id)).variables["b"] for id in ids] == [2**60 + 1] * 3
            impact = await client.get_impact(name, more)  # its counts may be those of a minute ago
            assert impact.refusals is not None
            assert (impact.refusals.refused, {check.instance_id for check in impact.refusals.instances}) == (3, {*ids})
            assert impact.steps is not None
            assert (impact.steps.added, impact.steps.removed) == (["three"], ["two"])
            await rest.upload_definition(more)
            assert (await client.get_impact(name, version=2)).refusals == impact.refusals
            check = await client.check_migration(ids[0], timers="FROM_NOW")
            assert check.timers_due == 0
            with pytest.raises(BadRequest):
                await client.check_migration(ids[0], timers="NOW")
            assert (check.possible, check.to_version, len(check.reasons)) == (False, 2, 1)
            migrated = await client.migrate_instance(
                ids[0], 2, steps={"two": "three"}, timers="KEEP_DEADLINE", note="other step"
            )
            assert (migrated.definition_version, migrated.current_step_ids) == (2, ["three"])
            (job,) = [job for job in await client.poll_jobs("w", [name], max_jobs=9) if job.instance_id == ids[0]]
            await client.fail_job(job.id, "w", "broken", retryable=False, attempt=job.attempt)
            edited = await client.edit_variables(ids[0], {"c": 1}, remove=["big"])
            assert edited.variables == {"n": 0, "a": 2**60 + 1, "b": 2**60 + 1, "c": 1}
            assert (await client.retry_instance(ids[0], from_step="one")).current_step_ids == ["one"]
            tree = await client.get_tree(ids[0])
            assert (tree.id, tree.workflow, tree.version, tree.branches) == (ids[0], name, 2, [])
            with pytest.raises(NotFound):
                await client.get_bulk("999999")
            with pytest.raises(BadRequest):
                await client.start_bulk(BulkRequest(action="retry"))

    run(main)


@crossed
def test_your_own_keys_start_and_signal_once(run: Run, wire: Wire) -> None:
    name = f"own-{uuid.uuid4().hex[:8]}"
    flow = WorkflowBuilder(name).user_task("approve").wait("paid").wait("papers", buffer=True).end().document()
    key = "P/7 ä%"

    async def main() -> None:
        async with Client(wire.url) as client:
            await client.upload_definition(flow)
            assert (await client.get_definition(name))["steps"][2]["buffer"] is True

            async def start() -> Instance:
                return await client.start_instance(name, {"n": 1}, instance_key=key, keep_instance_key=True)

            started = await start()
            assert started.instance_key == key
            with pytest.raises(NotFound):
                await client.signal_by_key(name, "other", "paid", signal_id="s")
            for _ in range(2):
                await client.signal_by_key(name, key, "paid", {"sum": 10}, signal_id="payment")
            with pytest.raises(IdempotencyConflict):
                await client.signal_by_key(name, key, "paid", {"sum": 11}, signal_id="payment")
            await client.signal(started.id, "papers", {"papers": 2})
            await client.complete_user_task(started.id, "approve")
            await client.signal(started.id, "paid", {"sum": 10}, signal_id="payment")
            for found in (await start(), await client.find_instance(name, key)):
                assert (found.id, found.status) == (started.id, "COMPLETED")
                assert found.variables == {"n": 1, "sum": 10, "papers": 2}
            (batched,) = await client.start_instances(
                [StartRequest(definition_id=name, instance_key=key, keep_instance_key=True)]
            )
            assert batched.unwrap().id == started.id
            with pytest.raises(NotFound):
                await client.find_instance(name, "other")
            with pytest.raises(Conflict):
                await client.signal_by_key(name, key, "paid", signal_id="another")

    run(main)


@pytest.mark.slow(reason="changes lists of thousands")
@crossed
def test_a_loop_that_changes_its_list_leaves_nothing_out(run: Run, wire: Wire) -> None:
    """Pages by number moved up by what the loop took out of the list: of 250 failed instances 50 were left."""
    document, name = wire.one_task()

    async def main() -> None:
        async with Client(wire.url) as client, Client(wire.rest_url) as rest:
            await client.upload_definition(document)
            started = await client.start_instances([StartRequest(definition_id=name) for _ in range(250)])
            jobs = await client.poll_jobs("w", [name], max_jobs=1000, wait_s=20)
            failures = [Failure(job_id=job.id, retryable=False, error_message="x", attempt=job.attempt) for job in jobs]
            assert {outcome.outcome for outcome in await client.fail_jobs("w", failures)} == {"ok"}
            ids = {result.unwrap().id for result in started}
            assert {job.instance_id async for job in rest.iterate_failed_jobs(job_type=name)} == ids
            retried = []
            async for failed in client.iterate_instances(definition_id=name, status="FAILED"):
                await rest.retry_instance(failed.id)
                retried.append(failed.id)
            assert (len(retried), set(retried)) == (250, ids)
            assert [left.id async for left in client.iterate_instances(definition_id=name, status="FAILED")] == []
            async for active in client.iterate_instances(definition_id=name, status="ACTIVE"):
                await client.cancel_instance(active.id)
            assert {gone.id async for gone in client.iterate_instances(definition_id=name, status="CANCELLED")} == ids
            versions = [item.id async for item in all_definitions(client)]
            assert versions == sorted(set(versions))
            assert name in versions

    async def all_definitions(client: Client) -> AsyncIterator[DefinitionSummary]:
        cursor: str | None = None
        while True:
            page = await client.list_definitions(cursor=cursor, limit=3)
            assert len(page.items) <= 3
            for item in page.items:
                yield item
            cursor = page.next
            if cursor is None:
                return

    run(main)


def test_a_script_needs_no_event_loop(wire: Wire) -> None:
    document, name = wire.one_task()
    with SyncClient(wire.url) as client:
        client.upload_definition(document)
        started = client.start_instance(name, {"n": 1})
        (job,) = client.poll_jobs("script", [name], wait_s=20)
        client.complete_job(job.id, "script", {"n": 2}, attempt=job.attempt)
        assert client.wait_until_ended(started.id, timeout_s=120).variables == {"n": 2}
        others = [client.start_instance(name).id for _ in range(2)]
        assert [each.id for each in client.iterate_instances(definition_id=name)] == [*reversed(others), started.id]


@pytest.mark.slow(reason="a bad network for seconds")
def test_a_worker_behind_a_bad_network_completes_every_job_once(wire: Wire) -> None:
    name = f"net-{uuid.uuid4().hex[:8]}"
    flow = WorkflowBuilder(name).service_task("a", f"{name}-a").service_task("b", f"{name}-b").end()
    url = urlsplit(wire.url)
    proxy = FaultyProxy(tcp("127.0.0.1", url.port or 0))

    async def faults() -> None:
        for fault in (proxy.cut, proxy.cut_mid_message, proxy.half_close, proxy.refuse, proxy.black_hole) * 2:
            while not proxy.open_links:
                await trio.sleep(0.01)
            fault()
            await trio.sleep(0.2)
            proxy.cut()
            proxy.heal()

    async def main() -> None:
        with trio.fail_after(150):  # about 8 on a machine of its own
            async with trio.open_nursery() as nursery, Client(wire.rest_url) as client:
                port = await nursery.start(proxy.serve)
                await client.upload_definition(flow)
                worker = Worker(f"{url.scheme}://127.0.0.1:{port}", concurrency=40, lease_s=5)

                @worker.handler(f"{name}-a")
                @worker.handler(f"{name}-b", concurrency=10)
                async def work(context: JobContext) -> dict[str, Any]:
                    await anyio.sleep(0.01)
                    return {context.step_id: context.attempt}

                async with worker:
                    nursery.start_soon(faults)
                    results = await client.start_instances([StartRequest(definition_id=name)] * 300)
                    for result in results:
                        ended = await client.wait_until_ended(result.unwrap().id)
                        history = await client.get_history(ended.id)
                        assert [(step.step_id, step.status) for step in history] == [
                            ("a", "COMPLETED"), ("b", "COMPLETED"), ("end", "COMPLETED")
                        ]  # fmt: skip
                        for step in history[:-1]:
                            done = [attempt for attempt in step.attempts if attempt.status == "COMPLETED"]
                            # One attempt counts, and what is merged is what that one returned.
                            assert [attempt.attempt for attempt in done] == [ended.variables[step.step_id]]
                proxy.heal()
                nursery.cancel_scope.cancel()

    trio.run(main)
    assert proxy.counts["connections cut"] >= 3
    assert proxy.counts["connections half closed"] >= 1


@crossed
def test_jobs_of_limited_and_unlimited_types_are_done_once(run: Run, wire: Wire) -> None:
    name = f"mixed-{uuid.uuid4().hex[:8]}"
    builder = WorkflowBuilder(name)
    for step in ("a", "b", "c"):
        builder.service_task(step, f"{name}-{step}")
    seen: Counter[str] = Counter()
    running = most = 0

    async def main() -> None:
        several = anyio.Event()
        async with Client(wire.url) as client:
            await client.upload_definition(builder.end().document())
            worker = Worker(client, concurrency=20)

            @worker.handler(f"{name}-a")
            @worker.handler(f"{name}-c")
            async def wide(context: JobContext) -> dict[str, Any]:
                seen[context.id] += 1
                return {context.step_id: context.id}

            @worker.handler(f"{name}-b", concurrency=3)
            async def narrow(context: JobContext) -> dict[str, Any]:
                nonlocal running, most
                seen[context.id] += 1
                running += 1
                most = max(most, running)
                if running > 1:
                    several.set()
                await several.wait()
                running -= 1
                return {context.step_id: context.id}

            started = [
                result.unwrap() for result in await client.start_instances([StartRequest(definition_id=name)] * 60)
            ]
            async with worker:
                for instance in started:
                    ended = await client.wait_until_ended(instance.id, timeout_s=120)
                    history = await client.get_history(instance.id)
                    assert ended.variables == {step.step_id: step.id for step in history[:-1]}
        assert (len(seen), set(seen.values())) == (180, {1})
        assert 1 < most <= 3
        assert worker.statistics().completed == 180

    run(main)


@crossed
def test_a_handler_gives_an_error_that_the_workflow_catches(run: Run, wire: Wire) -> None:
    name = f"charge-{uuid.uuid4().hex[:8]}"
    flow = WorkflowBuilder(name).service_task(
        "charge", name, retries=1, boundary=[on_error("declined", "CARD_DECLINED", variable="error")], then="paid"
    )
    flow.end("paid").end("declined", error_code="UNPAID")
    attempts: list[str] = []

    async def main() -> None:
        worker = Worker(wire.url)

        @worker.handler(name)
        async def charge(variables: dict[str, Any]) -> None:
            attempts.append(variables["card"])
            code = "CARD_DECLINED" if variables["card"] == "bad" else "TIMEOUT"
            raise StepError(code, "not this one", variables={"card": variables["card"]})

        async with Client(wire.url) as client, worker:
            async with Client(wire.rest_url) as rest:
                await rest.upload_definition(flow)
            declined = await run_to_the_end(client, name, {"card": "bad"})
            error = {"code": "CARD_DECLINED", "message": "not this one", "stepId": "charge", "data": {"card": "bad"}}
            assert (declined.status, declined.variables["error"]) == ("FAILED", error)
            slow = await run_to_the_end(client, name, {"card": "slow"})
            assert (slow.status, slow.failure_reason) == ("FAILED", "not this one")
            assert attempts == ["bad", "slow", "slow"]
            async with Client(wire.rest_url) as rest:
                assert (await rest.get_instance(declined.id)).failure_code == "UNPAID"
                assert (await rest.get_instance(slow.id)).failure_code == "TIMEOUT"
                history = await rest.get_history(declined.id)
                assert [(item.step_id, item.status, item.error_code) for item in history] == [
                    ("charge", "FAILED", "CARD_DECLINED"),
                    ("declined", "FAILED", "UNPAID"),
                ]
            with pytest.raises(BadRequest, match="errorCode"):
                await client.fail_job("1-1-1", "w", "boom", error_code="Penstock.Mine")

    run(main)


@crossed
def test_a_handler_waits_without_being_there(run: Run, wire: Wire) -> None:
    document, name = wire.one_task()
    parked = anyio.Event()
    seen: list[tuple[int | None, object]] = []

    async def main() -> None:
        nonlocal parked
        parked = anyio.Event()
        worker = Worker(wire.url)

        @worker.handler(name)
        async def pay(context: JobContext) -> dict[str, Any]:
            seen.append((context.attempt, context.checkpoint))
            if context.attempt == 1:
                await context.report(checkpoint="asked")
                raise Later(until=datetime.now(UTC) + timedelta(milliseconds=1))
            if "receipt" not in context.variables:
                parked.set()
                raise WaitFor("paid", until=datetime.now(UTC) + timedelta(days=1))
            return {"done": context.variables["receipt"]}

        async with Client(wire.url) as client, worker:
            await client.upload_definition(document)
            started = await client.start_instance(name)
            await parked.wait()
            with anyio.fail_after(60):
                while (await client.get_instance(started.id)).status != "WAITING":
                    await anyio.lowlevel.checkpoint()
            async with Client(wire.rest_url) as rest:
                await rest.signal(started.id, "paid", {"receipt": "R"})
            ended = await client.wait_until_ended(started.id, timeout_s=120)
            assert (ended.status, ended.variables["done"]) == ("COMPLETED", "R")
            assert seen == [(1, None), (2, "asked"), (3, "asked")]
            with anyio.fail_after(60):
                while worker.statistics().parked != 2 or worker.statistics().completed != 1:
                    await anyio.lowlevel.checkpoint()
            with pytest.raises(NotFound):
                await client.park_job("1-1-1", "w", attempt=1, signal="paid")

    run(main)
