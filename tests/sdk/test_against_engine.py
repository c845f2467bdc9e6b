"""Client and worker against a real engine: what they say to each other, and what is left in its history."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from penstock.client import (
    BadRequest,
    Client,
    Conflict,
    IdempotencyConflict,
    Instance,
    LeaseLost,
    NotFound,
    StartRequest,
    SyncClient,
)
from penstock.client.builder import WorkflowBuilder
from penstock.worker import JobContext, NonRetryable, Retry, Worker, WorkerObserver
from tests.sdk.loops import Run
from tests.sdk.running_engine import REPOSITORY, RunningEngine

ONE_TASK = WorkflowBuilder("one").service_task("work", "work", retries=2).end().document()
THREE_TASKS = (
    WorkflowBuilder("three").service_task("a", "a").service_task("b", "b").service_task("c", "c").end().document()
)


def module_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An example as a module, made anew for this test."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


async def run_to_the_end(client: Client, definition_id: str, variables: dict[str, Any]) -> Instance:
    started = await client.start_instance(definition_id, variables)
    return await client.wait_until_ended(started.id, timeout_s=20)


def test_definitions_are_uploaded_once_and_read_back_as_they_were(run: Run, engine: RunningEngine) -> None:
    async def main() -> None:
        async with Client(engine.url) as client:
            first = await client.upload_definition(THREE_TASKS)
            again = await client.upload_definition(THREE_TASKS)
            changed = await client.upload_definition(THREE_TASKS | {"name": "Three"})
            assert (first.version, again.version, changed.version) == (1, 1, 2)
            assert await client.get_definition("three", 1) == THREE_TASKS | {"version": 1}
            assert (await client.get_definition("three"))["name"] == "Three"
            page = await client.list_definitions(keyword="THR")
            assert [(found.id, found.version) for found in page.items] == [("three", 2)]
            with pytest.raises(NotFound):
                await client.get_definition("three", 3)
            with pytest.raises(BadRequest) as caught:
                await client.upload_definition({"id": "x y", "steps": []})
            assert len(caught.value.problems) >= 3

    run(main)


def test_whole_numbers_of_any_size_come_back_exactly(run: Run, engine: RunningEngine) -> None:
    variables = {"big": 10**40 + 7, "small": -(2**70), "list": [2**53 + 1], "null": None, "text": "ä€𝄞"}

    async def main() -> None:
        async with Client(engine.url) as client:
            await client.upload_definition(ONE_TASK)
            started = await client.start_instance("one", variables, business_key="b-1")
            worker = Worker(client)

            @worker.handler("work")
            async def work(seen: dict[str, Any]) -> dict[str, Any]:
                assert seen == variables
                return {"doubled": seen["big"] * 2}

            async with worker:
                ended = await client.wait_until_ended(started.id, timeout_s=20)
            assert ended.variables == variables | {"doubled": (10**40 + 7) * 2}
            found = await client.list_instances(business_key="b-1")
            assert [each.id for each in found.items] == [started.id]

    run(main)


def test_the_example_worker_fulfils_the_example_order(
    run: Run, engine: RunningEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = module_of(REPOSITORY / "examples" / "order_worker.py", monkeypatch)
    monkeypatch.setattr(example.worker, "_engine", engine.url)
    steps = ["validate-order", "reserve-stock", "charge-payment", "ship-parcel", "notify-customer", "done"]

    async def main() -> None:
        async with Client(engine.url) as client:
            await client.upload_definition(REPOSITORY / "examples" / "order-fulfilment.json")
            orders = [{"orderId": f"A-{number}", "amount": number, "items": ["book"]} for number in range(20)]
            requests = [StartRequest(definition_id="order-fulfilment", variables=order) for order in orders]
            async with example.worker:
                for result in await client.start_instances(requests):
                    ended = await client.wait_until_ended(result.unwrap().id, timeout_s=20)
                    assert ended.status == "COMPLETED", ended.failure_reason
                    assert ended.variables["trackingNumber"] == f"PS-{ended.variables['orderId']}"
                    history = await client.get_history(ended.id)
                    assert [step.step_id for step in history] == steps
                    assert {step.status for step in history} == {"COMPLETED"}
                failed = await run_to_the_end(client, "order-fulfilment", {"orderId": "A-x", "amount": -1})
                assert (failed.status, failed.failure_reason) == (
                    "FAILED",
                    "order A-x has a negative amount: -1",
                )

    run(main)


def test_the_example_for_processors_counts_in_another_process(
    run: Run, engine: RunningEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "examples")  # for the other process as well
    example = module_of(REPOSITORY / "examples" / "cpu_worker.py", monkeypatch)
    monkeypatch.setattr(example.worker, "_engine", engine.url)

    async def main() -> None:
        async with Client(engine.url) as client:
            await client.upload_definition(
                WorkflowBuilder("primes").service_task("count", "primes.count").end().document()
            )
            async with example.worker:
                ended = await run_to_the_end(client, "primes", {"upTo": 100_000})
            assert (ended.status, ended.variables["primes"]) == ("COMPLETED", 9592)

    run(main)


def test_the_example_web_application_does_its_step_of_the_order(
    engine: RunningEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", engine.url)
    example = module_of(REPOSITORY / "examples" / "web_app.py", monkeypatch)
    others = module_of(REPOSITORY / "examples" / "order_worker.py", monkeypatch).worker
    monkeypatch.setattr(others, "_engine", engine.url)
    del others._handlers["customer.notify"]

    async def main() -> None:
        async with Client(engine.url) as client, example.app.test_app() as app, others:
            await client.upload_definition(REPOSITORY / "examples" / "order-fulfilment.json")
            browser = app.test_client()
            first, again = [await browser.post("/orders", json={"orderId": "B-1", "amount": 3}) for _ in range(2)]
            assert first.status_code == again.status_code == 202
            placed = await first.get_json()
            assert placed == await again.get_json()
            await client.wait_until_ended(placed["id"], timeout_s=20)
            shown = await browser.get(f"/orders/{placed['id']}")
            assert await shown.get_json() == {"status": "COMPLETED", "steps": [], "notified": 1}
            assert (await browser.get("/orders/zz")).status_code == 404

    anyio.run(main)


def test_a_failure_is_retried_until_it_succeeds_or_no_retry_is_left(run: Run, engine: RunningEngine) -> None:
    async def main() -> None:
        tries: Counter[str] = Counter()
        async with Client(engine.url) as client:
            await client.upload_definition(ONE_TASK)
            worker = Worker(client)

            @worker.handler("work")
            async def work(context: JobContext, variables: dict[str, Any]) -> None:
                tries[context.instance_id] += 1
                assert context.attempt == tries[context.instance_id]
                if tries[context.instance_id] < variables["succeeds_at"]:
                    raise Retry("not yet")

            async with worker:
                lucky = await run_to_the_end(client, "one", {"succeeds_at": 3})
                unlucky = await run_to_the_end(client, "one", {"succeeds_at": 4})
                broken = await run_to_the_end(client, "one", {"succeeds_at": "never"})
        assert (lucky.status, tries[lucky.id]) == ("COMPLETED", 3)
        assert (unlucky.status, unlucky.failure_reason, tries[unlucky.id]) == ("FAILED", "not yet", 3)
        assert broken.status == "FAILED"
        assert broken.failure_reason is not None
        assert broken.failure_reason.startswith("TypeError")

    run(main)


def test_a_stale_attempt_changes_nothing(run: Run, engine: RunningEngine) -> None:
    async def main() -> None:
        async with Client(engine.url) as client:
            await client.upload_definition(ONE_TASK)
            started = await client.start_instance("one")
            (first,) = await client.poll_jobs("w1", ["work"], wait_s=5)
            (released,) = await client.release_jobs("w1", [ref_of(first)])
            assert released.outcome == "ok"
            (second,) = await client.poll_jobs("w2", ["work"], wait_s=5)
            assert (second.id, second.attempt) == (first.id, (first.attempt or 0) + 1)
            assert second.retries_remaining == first.retries_remaining
            with pytest.raises(LeaseLost):
                await client.complete_job(first.id, "w1", {"by": "w1"}, attempt=first.attempt)
            with pytest.raises(LeaseLost):
                await client.heartbeat_job(first.id, "w1", attempt=first.attempt)
            await client.complete_job(second.id, "w2", {"by": "w2"}, attempt=second.attempt)
            await client.complete_job(second.id, "w2", {"by": "w2 again"}, attempt=second.attempt)
            ended = await client.get_instance(started.id)
            assert (ended.status, ended.variables) == ("COMPLETED", {"by": "w2"})

    run(main)


def ref_of(job: Any) -> Any:
    from penstock.client import JobRef

    return JobRef(job_id=job.id, attempt=job.attempt)


def test_an_instance_that_is_cancelled_stops_its_handler(run: Run, engine: RunningEngine) -> None:
    async def main() -> None:
        running = anyio.Event()
        reasons: list[object] = []
        stopped = anyio.Event()
        async with Client(engine.url) as client:
            await client.upload_definition(ONE_TASK)
            worker = Worker(client, lease_s=5)

            @worker.handler("work")
            async def work(context: JobContext) -> None:
                running.set()
                try:
                    await anyio.sleep_forever()
                finally:
                    reasons.append(context.stop_reason)
                    stopped.set()

            async with worker:
                started = await client.start_instance("one")
                await running.wait()
                cancelled = await client.cancel_instance(started.id, reason="changed my mind")
                assert (cancelled.status, cancelled.failure_reason) == ("CANCELLED", "changed my mind")
                with pytest.raises(Conflict):
                    await client.cancel_instance(started.id)
                await stopped.wait()
        assert reasons == ["cancelled"]

    run(main)


def test_jobs_of_a_worker_that_stops_go_to_another_at_once(run: Run, engine: RunningEngine) -> None:
    async def main() -> None:
        taken = anyio.Event()
        async with Client(engine.url) as client:
            await client.upload_definition(ONE_TASK)
            slow = Worker(client, lease_s=3600, drain_grace_s=0)

            @slow.handler("work")
            async def hang() -> None:
                taken.set()
                await anyio.sleep_forever()

            quick = Worker(client)

            @quick.handler("work")
            async def finish(context: JobContext) -> dict[str, Any]:
                return {"retries": context.retries_remaining}

            async with slow:
                started = await client.start_instance("one")
                await taken.wait()
            async with quick:
                ended = await client.wait_until_ended(started.id, timeout_s=10)
            assert (ended.status, ended.variables) == ("COMPLETED", {"retries": 2})

    run(main)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_no_completion_is_lost_or_doubled_when_the_engine_restarts_under_a_thousand_jobs(
    run: Run, engine: RunningEngine, how: str
) -> None:
    class Watcher(WorkerObserver):
        def __init__(self) -> None:
            self.away = anyio.Event()

        def on_engine(self, reachable: bool) -> None:
            if not reachable:
                self.away.set()

    async def main() -> None:
        running: set[str] = set()
        many_run, go_on = anyio.Event(), anyio.Event()
        watcher = Watcher()
        async with Client(engine.url, timeout_s=60) as client:
            await client.upload_definition(THREE_TASKS)
            results = await client.start_instances([StartRequest(definition_id="three")] * 1000)
            instances = [result.unwrap().id for result in results]
            # Jobs in an answer that the crash cut off are leased to a worker that does not know: back after a lease.
            worker = Worker(client, concurrency=1100, lease_s=10, observer=watcher)

            @worker.handler("a")
            @worker.handler("c")
            async def quick(context: JobContext) -> dict[str, Any]:
                return {context.step_id: context.id}

            @worker.handler("b")
            async def held(context: JobContext) -> dict[str, Any]:
                running.add(context.id)
                if len(running) > 700:  # the other 300 are being started, completed and handed out
                    many_run.set()
                await go_on.wait()
                return {context.step_id: context.id}

            async with worker:
                await many_run.wait()
                await anyio.to_thread.run_sync(engine.kill if how == "kill" else engine.stop)
                await watcher.away.wait()
                go_on.set()  # 700 results have nowhere to go
                while worker.statistics().unreported < 700:
                    await anyio.lowlevel.checkpoint()
                await anyio.to_thread.run_sync(engine.start)
                for instance in instances:
                    ended = await client.wait_until_ended(instance, timeout_s=60)
                    assert ended.status == "COMPLETED"
                    history = await client.get_history(instance)
                    assert [step.step_id for step in history] == ["a", "b", "c", "end"]
                    # What is merged is what the execution that history shows has returned.
                    assert ended.variables == {step.step_id: step.id for step in history[:-1]}
            statistics = worker.statistics()
            assert (statistics.completed, statistics.failed) == (3000, 0)

    run(main)


def test_the_guides_snippet_runs(engine: RunningEngine) -> None:
    guide = (REPOSITORY / "docs" / "worker.md").read_text()
    snippet = re.search(r"```python\n(.*?)```", guide, re.DOTALL)
    assert snippet is not None
    names: dict[str, Any] = {"__name__": "guide"}
    program = snippet[1].replace("http://127.0.0.1:8080", engine.url)
    exec(compile(program, "docs/worker.md", "exec", dont_inherit=True), names)
    worker: Worker = names["worker"]
    flow = WorkflowBuilder("pay").service_task("charge", "payment.charge").end().document()

    async def main() -> None:
        async with Client(engine.url) as client, worker:
            await client.upload_definition(flow)
            good = await run_to_the_end(client, "pay", {"orderId": "7", "amount": 5})
            bad = await run_to_the_end(client, "pay", {"orderId": "7", "amount": 0})
            assert good.status == "COMPLETED"
            assert good.variables["paymentId"].startswith("p-")
            assert (bad.status, bad.failure_reason) == ("FAILED", "nothing to charge: 0")

    anyio.run(main)


def test_people_and_signals_move_an_instance_on(run: Run, engine: RunningEngine) -> None:
    flow = WorkflowBuilder("approval").wait("papers").user_task("approve").wait("late").end().document()

    async def main() -> None:
        async with Client(engine.url) as client:
            await client.upload_definition(flow)
            started = await client.start_instance("approval", instance_key="k-1")
            assert (await client.start_instance("approval", instance_key="k-1")).id == started.id
            assert (started.status, started.current_step_ids) == ("WAITING", ["papers"])
            with pytest.raises(NotFound):
                await client.complete_user_task(started.id, "approve")
            await client.signal(started.id, "late", {"seal": True}, buffer=True)
            assert [(kept.step_id, kept.variables) for kept in await client.list_signals(started.id)] == [
                ("late", {"seal": True})
            ]
            await client.signal(started.id, "papers", {"papers": 2}, idempotency_key="s-1")
            await client.signal(started.id, "papers", {"papers": 2}, idempotency_key="s-1")
            with pytest.raises(IdempotencyConflict):
                await client.signal(started.id, "papers", {"papers": 3}, idempotency_key="s-1")
            with pytest.raises(BadRequest):
                await client.complete_user_task(started.id, "papers")
            await client.complete_user_task(started.id, "approve", {"approved": True}, completed_by="ann")
            ended = await client.get_instance(started.id)
            assert (ended.status, ended.variables) == ("COMPLETED", {"papers": 2, "approved": True, "seal": True})
            kinds = [record.kind for record in await client.get_audit(started.id)]
            assert len(kinds) > 3
            assert await client.list_signals(started.id) == []
            with pytest.raises(Conflict):
                await client.complete_user_task(started.id, "approve")

    run(main)


def test_a_checkpoint_reaches_the_next_attempt_and_progress_is_shown(run: Run, engine: RunningEngine) -> None:
    async def main() -> None:
        reported, go_on = anyio.Event(), anyio.Event()
        async with Client(engine.url) as client:
            await client.upload_definition(ONE_TASK)
            worker = Worker(client)

            @worker.handler("work")
            async def work(context: JobContext) -> dict[str, Any]:
                if context.checkpoint is None:
                    await context.report(checkpoint={"page": 3}, progress="3 of 9")
                    reported.set()
                    await go_on.wait()
                    raise Retry("the connection broke")
                return {"went_on_from": context.checkpoint["page"]}

            async with worker:
                started = await client.start_instance("one")
                await reported.wait()
                assert (await client.get_instance(started.id)).progress == {"work": "3 of 9"}
                go_on.set()
                ended = await client.wait_until_ended(started.id, timeout_s=20)
            assert ended.variables == {"went_on_from": 3}

    run(main)


def test_a_failed_instance_is_found_and_retried(run: Run, engine: RunningEngine) -> None:
    async def main() -> None:
        async with Client(engine.url) as client:
            await client.upload_definition(ONE_TASK)
            started = await client.start_instance("one")
            (job,) = await client.poll_jobs("w", ["work"], wait_s=5)
            (beat,) = await client.heartbeat_jobs("w", [ref_of(job)], lease_s=60)
            assert beat.outcome == "ok"
            await client.fail_job(job.id, "w", "broken", retryable=False, attempt=job.attempt)
            (beat,) = await client.heartbeat_jobs("w", [ref_of(job)])
            assert beat.outcome in ("cancelled", "lease-lost")
            page = await client.list_failed_jobs(job_type="work")
            assert [(found.id, found.reason) for found in page.items] == [(job.id, "broken")]
            assert (await client.retry_instance(started.id)).status == "ACTIVE"
            (again,) = await client.poll_jobs("w", ["work"], wait_s=5)
            await client.complete_job(again.id, "w", attempt=again.attempt)
            assert (await client.get_instance(started.id)).status == "COMPLETED"
            with pytest.raises(Conflict):
                await client.retry_instance(started.id)

    run(main)


def test_a_script_needs_no_event_loop(engine: RunningEngine) -> None:
    with SyncClient(engine.url) as client:
        client.upload_definition(ONE_TASK)
        started = client.start_instance("one", {"n": 1})
        (job,) = client.poll_jobs("script", ["work"], wait_s=5)
        client.complete_job(job.id, "script", {"n": 2}, attempt=job.attempt)
        assert client.wait_until_ended(started.id, timeout_s=5).variables == {"n": 2}


def test_a_handler_that_refuses_ends_the_instance(run: Run, engine: RunningEngine) -> None:
    async def main() -> None:
        async with Client(engine.url) as client:
            await client.upload_definition(ONE_TASK)
            worker = Worker(client)

            @worker.handler("work")
            async def work() -> None:
                raise NonRetryable("never")

            async with worker:
                ended = await run_to_the_end(client, "one", {})
            assert (ended.status, ended.failure_reason) == ("FAILED", "never")

    run(main)
