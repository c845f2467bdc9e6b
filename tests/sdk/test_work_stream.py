"""The worker on the Work stream against a server that a test scripts: credit, breaks, news, the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio

from penstock.client import Client, DispatchModeConflict
from penstock.client.grpc.credit import CreditBook
from penstock.wire import penstock_v1 as w
from penstock.wire.model import Completion, Failure, Heartbeat, HeartbeatOutcome, JobOutcome, JobRef
from penstock.worker import JobContext, Worker, WorkerObserver
from penstock.worker.intake import IntakeEvents, JobIntake, Subscription
from tests.sdk.loops import Run, until
from tests.sdk.scripted_grpc import ScriptedCall, ScriptedGrpc, refuse

WORK = "/penstock.v1.Worker/Work"
HEARTBEAT = "/penstock.v1.Worker/HeartbeatJobs"
COMPLETE = "/penstock.v1.Worker/CompleteJobs"
RELEASE = "/penstock.v1.Worker/ReleaseJobs"


def job(name: str, job_type: str = "t", attempt: int = 1) -> w.Job:
    return w.Job(
        id=name,
        job_type=job_type,
        instance_id=f"i{name}",
        step_id="s",
        attempt=attempt,
        retries_remaining=3,
        variables={"n": 1},
    )


def outcome_of(item: Completion | Failure | Heartbeat | JobRef, outcome: str) -> JobOutcome:
    return JobOutcome(job_id=item.job_id, attempt=item.attempt, outcome=outcome)


class Engine:
    """The other end of the Work streams: what it was told, and what it pushes."""

    def __init__(self, server: ScriptedGrpc) -> None:
        self.server = server
        self.streams: list[ScriptedCall] = []
        self.requests: list[w.WorkRequest] = []
        self.beats: list[w.Heartbeat] = []
        self.unary: list[w.Completion] = []
        self.answers = True
        server.on(WORK, self._on_work)
        server.on(HEARTBEAT, self._on_heartbeat)
        server.on(COMPLETE, self._on_complete)
        server.on(RELEASE, self._on_release)

    # -- what was said

    def credit(self, job_type: str = "t") -> int:
        return sum(item.jobs for request in self.requests for item in request.credits if item.job_type == job_type)

    def sent(self, what: str) -> list[Any]:
        return [item for request in self.requests for item in getattr(request, what)]

    async def wait(self, condition: Callable[[], object]) -> None:
        await anyio.to_thread.run_sync(self.server.wait, condition)

    # -- what it does

    def push(self, *jobs: w.Job) -> None:
        self.say(w.WorkResponse(jobs=list(jobs)))

    def say(self, message: w.WorkResponse) -> None:
        stream = self.streams[-1]
        stream.connection.act(lambda: stream.send(message))

    def _on_work(self, call: ScriptedCall) -> None:
        if call not in self.streams:
            self.streams.append(call)
        for request in call.messages(w.WorkRequest):
            self.requests.append(request)
            results = [*request.completions, *request.failures, *request.releases]
            if self.answers and results:
                call.send(w.WorkResponse(outcomes=[outcome_of(item, "ok") for item in results]))

    def _on_heartbeat(self, call: ScriptedCall) -> None:
        if call.ended:
            (request,) = call.messages(w.HeartbeatJobsRequest)
            self.beats += request.heartbeats
            outcomes = [HeartbeatOutcome(job_id=beat.job_id, outcome="ok") for beat in request.heartbeats]
            call.send(w.HeartbeatJobsResponse(outcomes))
            call.end()

    def _on_complete(self, call: ScriptedCall) -> None:
        if call.ended:
            (request,) = call.messages(w.CompleteJobsRequest)
            self.unary += request.completions
            call.send(w.CompleteJobsResponse([outcome_of(item, "ok") for item in self.unary]))
            call.end()

    def _on_release(self, call: ScriptedCall) -> None:
        if call.ended:
            (request,) = call.messages(w.ReleaseJobsRequest)
            call.send(w.ReleaseJobsResponse([outcome_of(item, "lease-lost") for item in request.releases]))
            call.end()


@pytest.fixture
def engine() -> Iterator[Engine]:
    with ScriptedGrpc() as server:
        yield Engine(server)


def test_a_stream_names_its_worker_and_grants_its_room(run: Run, engine: Engine) -> None:
    async def main() -> None:
        go_on = anyio.Event()
        worker = Worker(engine.server.url, worker_id="w-1", concurrency=5, lease_s=60)

        @worker.handler("t")
        async def handle() -> dict[str, int]:
            await go_on.wait()
            return {"a": 1}

        async with worker:
            await engine.wait(lambda: engine.credit() == 5)
            engine.push(job("1"), job("2"))
            await until(lambda: worker.statistics().running == 2)
            assert engine.credit() == 5  # two are in use
            go_on.set()
            await engine.wait(lambda: engine.credit() == 7)
            await engine.wait(lambda: len(engine.sent("completions")) == 2)
        first = engine.requests[0]
        assert (first.worker_id, first.lease_seconds) == ("w-1", 60)
        assert [item for item in engine.sent("completions") if item.job_id == "1"] == [w.Completion("1", 1, b'{"a":1}')]
        assert worker.statistics().completed == 2

    run(main)


def test_unanswered_results_are_sent_again_with_their_attempt(run: Run, engine: Engine) -> None:
    async def main() -> None:
        worker = Worker(engine.server.url, concurrency=5)

        @worker.handler("t")
        async def handle() -> None:
            return None

        @worker.handler("slow")
        async def slow() -> None:
            await anyio.sleep_forever()

        async with worker:
            await engine.wait(engine.credit)
            engine.answers = False
            engine.push(job("1", attempt=7), job("2", "slow"))
            await engine.wait(lambda: engine.sent("completions"))
            engine.answers = True
            engine.server.connections[0].drop()
            await engine.wait(lambda: len(engine.sent("completions")) == 2)
            await until(lambda: worker.statistics().completed == 1)
            # The job that still runs is asked for at once, and not only after a third of its lease.
            await engine.wait(lambda: [beat.job_id for beat in engine.beats if beat.job_id == "2"])
            worker.stop()
            worker.stop()
        assert engine.sent("completions") == [w.Completion("1", 7)] * 2
        assert len(engine.streams) == 2
        assert engine.streams[1].headers[":path"] == WORK

    run(main)


@pytest.mark.parametrize("reason", ["lease-lost", "cancelled"])
def test_a_lost_job_reaches_the_handlers_scope_with_its_reason(run: Run, engine: Engine, reason: str) -> None:
    async def main() -> None:
        seen: list[str] = []
        running, stopped = anyio.Event(), anyio.Event()
        worker = Worker(engine.server.url)

        @worker.handler("t")
        async def handle(context: JobContext) -> None:
            running.set()
            try:
                await anyio.sleep_forever()
            finally:
                seen.append(str(context.stop_reason))
                stopped.set()

        async with worker:
            await engine.wait(engine.credit)
            engine.push(job("1", attempt=2))
            await running.wait()
            engine.say(w.WorkResponse(lease_losses=[w.LeaseLoss("1", 1)]))  # of an older attempt: no news
            if reason == "lease-lost":
                engine.say(w.WorkResponse(lease_losses=[w.LeaseLoss("1", 2)]))
            else:
                engine.say(w.WorkResponse(cancellations=[w.Cancellation("1", 2, "its instance ended")]))
            await stopped.wait()
        assert seen == [reason]
        assert engine.sent("completions") == engine.sent("failures") == engine.sent("releases") == []

    run(main)


def test_a_stop_takes_credit_back_and_returns_late_jobs(run: Run, engine: Engine) -> None:
    async def main() -> None:
        running = anyio.Event()
        worker = Worker(engine.server.url, concurrency=3, drain_grace_s=30)

        @worker.handler("t")
        async def handle() -> None:
            running.set()
            await anyio.sleep_forever()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            await engine.wait(lambda: engine.credit() == 3)
            engine.push(job("1"))
            await running.wait()
            worker.stop()
            await engine.wait(lambda: engine.credit() == 1)
            engine.push(job("late"))
            await engine.wait(lambda: engine.sent("releases"))
            assert engine.sent("releases") == [w.JobRef("late", 1)]
            worker.stop()
        assert engine.sent("releases") == [w.JobRef("late", 1), w.JobRef("1", 1)]
        assert worker.statistics().received == 1

    run(main)


def test_a_result_too_large_for_the_stream_goes_by_itself(run: Run, engine: Engine) -> None:
    async def main() -> None:
        worker = Worker(engine.server.url)

        @worker.handler("t")
        async def handle() -> dict[str, str]:
            return {"text": "x" * 1_100_000}

        async with worker:
            await engine.wait(engine.credit)
            engine.push(job("1"))
            await until(lambda: worker.statistics().completed == 1)
        assert [(item.job_id, item.attempt, len(item.variables)) for item in engine.unary] == [("1", 1, 1_100_011)]
        assert engine.sent("completions") == []

    run(main)


def test_an_engine_that_refuses_streams_is_reported_once(
    run: Run, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        reachable: list[bool] = []

        class Observer(WorkerObserver):
            def on_engine(self, reached: bool) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - its own name
                reachable.append(reached)

        worker = Worker(engine.server.url, observer=Observer())
        worker.handler("t")(lambda: None)
        engine.server.turns_away_with = b""
        async with worker:
            await until(lambda: len(engine.server.connections) >= 3)
            assert set(reachable) == {False}
            reported = [record.getMessage() for record in caplog.records if "no jobs" in record.getMessage()]
            assert len(reported) == 1
            assert "does this port speak gRPC" in reported[0]
            engine.server.turns_away_with = None
            await engine.wait(engine.credit)
            engine.push(job("1"))  # this one sends no headers before the first message
            await until(lambda: "the stream to the engine is open again" in caplog.messages)

    caplog.set_level(logging.INFO, logger="penstock.worker")
    run(main)


def test_results_are_sent_in_messages_of_bounded_size(run: Run, engine: Engine) -> None:
    async def main() -> None:
        go_on = anyio.Event()
        worker = Worker(engine.server.url, concurrency=8)

        @worker.handler("t")
        async def handle() -> dict[str, str]:
            await go_on.wait()
            return {"text": "x" * 300_000}

        async with worker:
            await engine.wait(engine.credit)
            engine.push(*(job(str(number)) for number in range(8)))
            await until(lambda: worker.statistics().running == 8)
            go_on.set()
            await until(lambda: worker.statistics().completed == 8)
        sizes = [len(request.completions) for request in engine.requests if request.completions]
        assert sum(sizes) == 8
        assert max(sizes) <= 3

    run(main)


def test_an_engine_dispatching_otherwise_ends_the_worker_with_its_reason(run: Run, engine: Engine) -> None:
    def gone(call: ScriptedCall) -> None:
        if call.messages(w.WorkRequest):
            refuse(9, "jobs go through Kafka", penstock_error="gone")(_ended(call))

    def _ended(call: ScriptedCall) -> ScriptedCall:
        call.ended = True
        return call

    engine.server.on(WORK, gone)

    async def main() -> None:
        worker = Worker(engine.server.url)

        @worker.handler("t")
        async def handle() -> None:
            return None

        with pytest.raises(DispatchModeConflict, match="Kafka"):
            await worker.run(handle_signals=False)

    run(main)


def test_a_client_may_be_shared_by_workers_and_calls(run: Run, engine: Engine) -> None:
    async def main() -> None:
        async with Client(engine.server.url) as client:
            workers = [Worker(client, worker_id=f"w-{number}") for number in range(2)]
            for worker in workers:

                @worker.handler("t")
                async def handle() -> None:
                    return None

            async with workers[0], workers[1]:
                await engine.wait(lambda: engine.credit() == 32)
        assert len(engine.server.connections) == 1

    run(main)


# ------------------------------------------------------------------------------------------------ credit


def desk_with(concurrency: int, *groups: tuple[list[str], int]) -> JobIntake:
    calls = IntakeEvents(
        lambda _job, _demand: None,
        lambda _ref, _reason: None,
        lambda: None,
        lambda _reachable: None,
        lambda *_lag: None,
    )
    intake = JobIntake(concurrency, lambda: True, calls)
    intake.subscriptions = [Subscription(intake, types, limit) for types, limit in groups]
    return intake


def accept(intake: JobIntake, book: CreditBook, index: int, job_type: str, count: int = 1) -> None:
    for _ in range(count):
        book.used(job_type)
        intake.active += 1
        intake.subscriptions[index].acquire()


def take_back(book: CreditBook, changes: list[w.Credit]) -> None:
    """Answer as an engine does whose jobs are all of other types."""
    for change in changes:
        if change.jobs < 0:
            book.answered(w.Credit(change.job_type, book._granted[change.job_type] + change.jobs))


def granted(changes: list[w.Credit]) -> dict[str, int]:
    return {change.job_type: change.jobs for change in changes}


def test_credit_follows_the_limits_of_types_and_of_the_worker(run: Run) -> None:
    async def main() -> None:
        intake, book = desk_with(10, (["narrow"], 2), (["a", "b"], 10)), CreditBook()
        assert granted(book.changes(intake.subscriptions)) == {"narrow": 2, "a": 5, "b": 5}
        assert book.changes(intake.subscriptions) == []
        accept(intake, book, 0, "narrow", 2)
        assert (
            book.changes(intake.subscriptions) == []
        )  # "narrow" is full; the others have a little more than their part
        accept(intake, book, 1, "a", 5)
        # Three places are left: "a" gets its part anew, what "b" has is well over it and stays for now.
        assert granted(book.changes(intake.subscriptions)) == {"a": 2}
        accept(intake, book, 1, "a", 2)
        assert granted(book.changes(intake.subscriptions)) == {"a": 1, "b": -4}
        # Nothing changes for "b" until the engine has said what is left; a job may be on its way.
        assert book.changes(intake.subscriptions) == []
        accept(intake, book, 1, "b")
        book.answered(w.Credit("b", 0))
        assert book.changes(intake.subscriptions) == []

    run(main)


def test_the_only_type_with_jobs_soon_gets_all_room(run: Run) -> None:
    async def main() -> None:
        intake, book = desk_with(32, (["a", "b", "c"], 32)), CreditBook()
        steps = 0
        while intake.free_slots > 0:
            changes = book.changes(intake.subscriptions)
            take_back(book, changes)
            accept(intake, book, 0, "a", book._granted["a"])
            steps += 1
        take_back(book, book.changes(intake.subscriptions))
        assert steps < 12
        assert sum(book._granted.values()) <= 3  # at most one of each type comes beyond the room

    run(main)


def test_a_draining_worker_takes_all_credit_back(run: Run) -> None:
    async def main() -> None:
        intake, book = desk_with(1, (["a", "b"], 1)), CreditBook()
        assert granted(book.changes(intake.subscriptions)) == {"a": 1, "b": 1}
        accept(intake, book, 0, "a")
        assert book.changes(intake.subscriptions) == []
        intake.drain()
        assert granted(book.changes(intake.subscriptions)) == {"b": -1}
        assert book.changes(intake.subscriptions) == []

    run(main)


async def test_a_worker_cancelled_anywhere_leaves_no_job_behind(engine: Engine) -> None:
    class CancelAt(trio.abc.Instrument):
        def __init__(self, scope: trio.CancelScope, step: int) -> None:
            self._scope, self.left = scope, step

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            if task is test:  # how often it looks depends on the machine
                return
            if self.left == 0:
                self._scope.cancel()
            self.left -= 1

    test = trio.lowlevel.current_task()
    finished = False
    step = 0
    while not finished:
        worker = Worker(engine.server.url, worker_id=f"w-{step}", concurrency=3)

        @worker.handler("t")
        async def handle() -> dict[str, int]:
            await anyio.lowlevel.checkpoint()
            return {"a": 1}

        @worker.handler("slow")
        async def slow() -> None:
            await trio.sleep_forever()

        streams = len(engine.streams)
        with trio.CancelScope() as scope, trio.fail_after(20):
            at = CancelAt(scope, step)
            async with trio.open_nursery() as nursery:
                trio.lowlevel.add_instrument(at)
                try:
                    nursery.start_soon(worker.run)
                    while len(engine.streams) == streams:
                        await trio.sleep(0.001)
                    engine.push(job(f"{step}-a"), job(f"{step}-b", "slow"))
                    while worker.statistics().completed < 1:
                        await trio.sleep(0.001)
                    finished = True
                    nursery.cancel_scope.cancel()
                finally:
                    trio.lowlevel.remove_instrument(at)
        assert worker.statistics().held == 0
        step += 1
    assert step > 30
