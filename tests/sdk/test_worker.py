"""A worker's life: what it takes on, how it keeps and loses leases, delivers results, drains and stops."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.to_thread
import pytest

from penstock.client import (
    BadRequest,
    Completion,
    ConnectionFailed,
    DispatchModeConflict,
    InternalError,
    JobCancelled,
    JobOutcome,
    JobRef,
    LeaseLost,
    PayloadTooLarge,
    Unavailable,
)
from penstock.worker import JobContext, StopReason, Worker
from tests.sdk.loops import Run, until
from tests.sdk.scripted_transport import ScriptedTransport, job


class Gate:
    """Handlers that run until they are let go, and what became of them."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.most = 0
        self.stopped: dict[str, str] = {}
        self.open = anyio.Event()
        self._changed = anyio.Event()

    async def handle(self, context: JobContext) -> dict[str, Any]:
        self.running.add(context.id)
        self.most = max(self.most, len(self.running))
        self._notify()
        try:
            await self.open.wait()
        except BaseException:
            self.stopped[context.id] = str(context.stop_reason)
            raise
        finally:
            self.running.discard(context.id)
            self._notify()
        return {"id": context.id}

    async def wait_running(self, count: int) -> None:
        while len(self.running) != count:
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def gated(**settings: Any) -> tuple[ScriptedTransport, Gate, Worker]:
    """A worker on `t` whose handlers wait."""
    transport, gate = ScriptedTransport(), Gate()
    worker = Worker(transport, **settings)
    worker.handler("t")(gate.handle)
    return transport, gate, worker


def ids(items: Sequence[Any]) -> list[str]:
    return sorted(item.job_id for item in items)


def test_it_asks_for_no_more_jobs_than_it_can_run(run: Run) -> None:
    async def main() -> None:
        transport, gate, worker = gated(concurrency=3)
        async with worker:
            transport.hand_out(*(job(str(number)) for number in range(7)))
            await gate.wait_running(3)
            assert len(transport.waiting) == 4
            gate.open.set()
            await transport.wait_until(lambda: len(transport.completed) == 7)
        assert gate.most == 3
        assert max(room for _types, room in transport.subscriptions) == 3
        statistics = worker.statistics()
        assert (statistics.received, statistics.completed, statistics.held) == (7, 7, 0)

    run(main)


def test_a_limited_type_does_not_hold_up_the_others(run: Run) -> None:
    async def main() -> None:
        transport, narrow, wide = ScriptedTransport(), Gate(), Gate()
        worker = Worker(transport, concurrency=5)
        worker.handler("narrow", concurrency=1)(narrow.handle)
        worker.handler("wide")(wide.handle)
        async with worker:
            transport.hand_out(*(job(f"n{number}", "narrow") for number in range(3)))
            await narrow.wait_running(1)
            transport.hand_out(*(job(f"w{number}", "wide") for number in range(4)))
            await wide.wait_running(4)
            assert ids(transport.completed) == []
            narrow.open.set()
            wide.open.set()
            await transport.wait_until(lambda: len(transport.completed) == 7)
        assert narrow.most == 1
        assert {types for types, _room in transport.subscriptions} == {("narrow",), ("wide",)}

    run(main)


def test_jobs_beyond_the_limit_wait_with_their_leases_kept(run_at_once: Run) -> None:
    async def main() -> None:
        transport, gate = ScriptedTransport(), Gate()
        worker = Worker(transport, concurrency=1, lease_s=1)
        worker.handler("limited", concurrency=1)(gate.handle)
        worker.handler("t")(gate.handle)
        async with worker:
            await transport.wait_until(lambda: len(transport.subscriptions) == 2)
            transport.hand_out(job("a"), job("b", "limited"))
            await transport.wait_until(lambda: transport.beats["a"] and transport.beats["b"])
            assert len(gate.running) == 1
            gate.open.set()
            await transport.wait_until(lambda: len(transport.completed) == 2)
        assert gate.most == 1

    run_at_once(main)


def test_a_job_whose_turn_does_not_come_goes_back(run_at_once: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.worker.session.MAX_WAIT_S", 0.2)

    async def main() -> None:
        transport, gate = ScriptedTransport(), Gate()
        worker = Worker(transport, concurrency=1)
        worker.handler("limited", concurrency=1)(gate.handle)
        worker.handler("t")(gate.handle)
        async with worker:
            await transport.wait_until(lambda: len(transport.subscriptions) == 2)
            transport.hand_out(job("a"), job("b", "limited"))
            await gate.wait_running(1)
            (begun,) = gate.running
            await transport.wait_until(lambda: transport.released)
            gate.open.set()
            await transport.wait_until(lambda: transport.completed)
        assert ids(transport.completed) == [begun]
        assert ids(transport.released) == sorted({"a", "b"} - {begun})
        assert gate.stopped == {}

    run_at_once(main)


def test_synchronous_handlers_run_beside_each_other_in_bounded_threads(run: Run) -> None:
    both = threading.Barrier(2)

    def handle(context: JobContext) -> dict[str, Any]:
        both.wait(timeout=10)
        context.report_blocking(checkpoint=context.id)
        return {}

    async def main() -> None:
        transport = ScriptedTransport()
        worker = Worker(transport, concurrency=4, max_threads=2)
        worker.handler("t")(handle)
        async with worker:
            transport.hand_out(*(job(str(number)) for number in range(4)))
            await transport.wait_until(lambda: len(transport.completed) == 4)
        assert len(transport.checkpoints) == 4

    run(main)


def test_results_that_come_together_are_delivered_together(run: Run) -> None:
    async def main() -> None:
        transport, gate, worker = gated(concurrency=50)
        async with worker:
            transport.hand_out(*(job(str(number)) for number in range(50)))
            await gate.wait_running(50)
            gate.open.set()
            await transport.wait_until(lambda: len(transport.completed) == 50)
        assert len(transport.batches) <= 3

    run(main)


@pytest.mark.parametrize(
    ("error", "reason"), [(LeaseLost("too late"), "lease-lost"), (JobCancelled("ended"), "cancelled")]
)
def test_a_lost_job_stops_its_handler_and_reports_nothing(run: Run, error: Exception, reason: str) -> None:
    def extend(ref: JobRef) -> None:
        if ref.job_id == "lost":
            raise error

    async def main() -> None:
        transport, gate = ScriptedTransport(), Gate()
        transport.on_extend = extend
        worker = Worker(transport, lease_s=1)
        worker.handler("t")(gate.handle)
        async with worker:
            transport.hand_out(job("lost"), job("kept"))
            await gate.wait_running(2)
            await gate.wait_running(1)
            gate.open.set()
            await transport.wait_until(lambda: transport.completed)
        assert gate.stopped == {"lost": reason}
        assert ids(transport.completed) == ["kept"]
        assert (transport.failed, transport.released) == ([], [])
        assert (worker.statistics().lost, worker.statistics().completed) == (1, 1)

    run(main)


def test_reporting_progress_stops_a_lost_jobs_handler(run: Run) -> None:
    def extend(_ref: JobRef) -> None:
        raise LeaseLost("too late")

    async def main() -> None:
        transport = ScriptedTransport()
        transport.on_extend = extend
        worker = Worker(transport)

        @worker.handler("t")
        async def handle(context: JobContext) -> None:
            await context.report(progress=1)

        async with worker:
            transport.hand_out(job())
            await transport.wait_until(lambda: transport.beats["1"])
        assert (transport.completed, transport.failed, transport.released) == ([], [], [])

    run(main)


def test_a_synchronous_handler_can_learn_that_its_job_is_lost(run: Run) -> None:
    def extend(_ref: JobRef) -> None:
        raise LeaseLost("too late")

    ended = threading.Event()

    def handle(context: JobContext) -> None:
        pause = threading.Event()
        try:
            while not pause.wait(0.01):
                context.raise_if_stopped()
        finally:
            ended.set()

    async def main() -> None:
        transport = ScriptedTransport()
        transport.on_extend = extend
        worker = Worker(transport, lease_s=1)
        worker.handler("t")(handle)
        async with worker:
            transport.hand_out(job())
            assert await anyio.to_thread.run_sync(ended.wait, 10)
        assert (transport.completed, transport.failed, transport.released) == ([], [], [])

    run(main)


def test_a_heartbeat_that_fails_is_tried_again_within_the_lease(run_at_once: Run) -> None:
    failures = [ConnectionFailed("broke"), InternalError("oops")]

    def extend(_ref: JobRef) -> None:
        if failures:
            raise failures.pop()

    async def main() -> None:
        transport, gate = ScriptedTransport(), Gate()
        transport.on_extend = extend
        worker = Worker(transport, lease_s=1)
        worker.handler("t")(gate.handle)
        async with worker:
            transport.hand_out(job())
            await transport.wait_until(lambda: transport.beats["1"] == 1)
            began = anyio.current_time()
            await transport.wait_until(lambda: transport.beats["1"] == 3)
            assert anyio.current_time() - began < 0.5
            gate.open.set()
            await transport.wait_until(lambda: transport.completed)

    run_at_once(main)


def test_of_two_attempts_only_the_lost_one_is_stopped(run_at_once: Run) -> None:
    def extend(ref: JobRef) -> None:
        if ref.attempt == 1:
            raise LeaseLost("the job is held by another")

    async def main() -> None:
        transport = ScriptedTransport()
        transport.on_extend = extend
        worker = Worker(transport, lease_s=1, concurrency=2)
        done = anyio.Event()
        stopped: list[tuple[int | None, StopReason | None]] = []

        @worker.handler("t")
        async def handle(context: JobContext) -> None:
            try:
                await done.wait()
            finally:
                stopped.append((context.attempt, context.stop_reason))

        async with worker:
            transport.hand_out(job("1", attempt=1), job("1", attempt=2))
            await transport.wait_until(lambda: transport.let_go_of)
            done.set()
            await transport.wait_until(lambda: transport.completed)
        assert stopped == [(1, StopReason.LEASE_LOST), (2, None)]
        assert [result.attempt for result in transport.completed] == [2]

    run_at_once(main)


def test_results_and_leases_outlast_an_outage_and_arrive_once(run_at_once: Run) -> None:
    async def main() -> None:
        transport, gate = ScriptedTransport(), Gate()
        away = True

        def complete(_results: Sequence[Completion]) -> None:
            if away:
                raise ConnectionFailed("the engine restarts")

        transport.on_complete = complete
        worker = Worker(transport, lease_s=1, concurrency=5)
        worker.handler("t")(gate.handle)
        async with worker:
            gate.open.set()
            transport.hand_out(*(job(str(number)) for number in range(5)))
            await transport.wait_until(lambda: all(transport.beats[str(number)] for number in range(5)))
            assert worker.statistics().unreported == 5
            assert transport.completed == []
            away = False
            await transport.wait_until(lambda: len(transport.completed) == 5)
        assert ids(transport.completed) == ["0", "1", "2", "3", "4"]
        assert transport.released == []

    run_at_once(main)


def test_too_many_waiting_results_stop_new_jobs(run: Run) -> None:
    async def main() -> None:
        transport, gate = ScriptedTransport(), Gate()
        away = True
        tries = 0

        def complete(_results: Sequence[Completion]) -> None:
            nonlocal tries
            tries += 1
            if away:
                raise Unavailable("the database is away")

        transport.on_complete = complete
        worker = Worker(transport, concurrency=1, max_unreported=2)
        worker.handler("t")(gate.handle)
        gate.open.set()
        async with worker:
            transport.hand_out(*(job(str(number)) for number in range(5)))
            await transport.wait_until(lambda: len(transport.waiting) == 3)
            before = tries
            await until(lambda: tries >= before + 2)
            assert len(transport.waiting) == 3
            away = False
            await transport.wait_until(lambda: len(transport.completed) == 5)

    run(main)


def test_items_that_were_unavailable_are_sent_again_alone(run: Run) -> None:
    async def main() -> None:
        transport, gate = ScriptedTransport(), Gate()
        first = True

        def complete(results: Sequence[Completion]) -> list[JobOutcome]:
            nonlocal first
            outcomes = [
                JobOutcome(job_id=item.job_id, outcome="unavailable" if first and item.job_id == "1" else "ok")
                for item in results
            ]
            first = False
            return outcomes

        transport.on_complete = complete
        worker = Worker(transport)
        worker.handler("t")(gate.handle)
        async with worker:
            transport.hand_out(*(job(str(number)) for number in range(3)))
            await gate.wait_running(3)
            gate.open.set()
            await transport.wait_until(lambda: len(transport.completed) == 3)
        assert ids(transport.completed) == ["0", "1", "2"]
        assert worker.statistics().completed == 3

    run(main)


@pytest.mark.parametrize("error", [PayloadTooLarge("too large"), BadRequest("bad"), InternalError("oops")])
def test_one_bad_result_stops_no_other_and_fails_its_job(
    run: Run, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.worker.reporter.MAX_INTERNAL_ERRORS_PER_ITEM", 2)

    def complete(results: Sequence[Completion]) -> None:
        if any(item.job_id == "poison" for item in results):
            raise error

    async def main() -> None:
        transport, gate = ScriptedTransport(), Gate()
        transport.on_complete = complete
        worker = Worker(transport)
        worker.handler("t")(gate.handle)
        async with worker:
            transport.hand_out(*(job(name) for name in ("a", "b", "poison", "c", "d")))
            await gate.wait_running(5)
            gate.open.set()
            await transport.wait_until(lambda: len(transport.completed) == 4 and transport.failed)
        assert ids(transport.completed) == ["a", "b", "c", "d"]
        (failure,) = transport.failed
        assert (failure.job_id, failure.retryable) == ("poison", False)
        assert "the engine refused the result" in failure.error_message
        assert transport.released == []

    run(main)


def test_a_result_that_came_too_late_is_dropped_and_counted(run: Run) -> None:
    def complete(results: Sequence[Completion]) -> list[JobOutcome]:
        return [JobOutcome(job_id=item.job_id, outcome="lease-lost") for item in results]

    async def main() -> None:
        transport, gate = ScriptedTransport(), Gate()
        transport.on_complete = complete
        gate.open.set()
        worker = Worker(transport)
        worker.handler("t")(gate.handle)
        async with worker:
            transport.hand_out(job())
            await transport.wait_until(lambda: transport.batches)
        statistics = worker.statistics()
        assert (statistics.superseded, statistics.completed, statistics.held) == (1, 0, 0)

    run(main)


def test_it_polls_on_through_an_outage(run: Run) -> None:
    async def main() -> None:
        transport, gate = ScriptedTransport(), Gate()
        errors = [ConnectionFailed("refused"), Unavailable("starting"), InternalError("oops")]

        def receive() -> None:
            if errors:
                raise errors.pop()

        transport.on_receive = receive
        gate.open.set()
        worker = Worker(transport)
        worker.handler("t")(gate.handle)
        async with worker:
            transport.hand_out(job())
            await transport.wait_until(lambda: transport.completed)
        assert errors == []

    run(main)


def test_an_engine_dispatching_otherwise_ends_the_worker_with_its_reason(run: Run) -> None:
    async def main() -> None:
        transport, gate = ScriptedTransport(), Gate()

        def receive() -> None:
            raise DispatchModeConflict("this engine dispatches through Kafka")

        transport.on_receive = receive
        worker = Worker(transport)
        worker.handler("t")(gate.handle)
        with pytest.raises(DispatchModeConflict, match="Kafka"):
            await worker.run()
        with pytest.raises(DispatchModeConflict, match="Kafka"):
            async with worker:
                await anyio.sleep_forever()

    run(main)


def test_stopping_lets_running_handlers_finish_and_takes_nothing_new(run: Run) -> None:
    async def main() -> None:
        transport, gate, worker = gated()
        async with anyio.create_task_group() as tasks:
            await tasks.start(run_worker, worker)
            transport.hand_out(job("1"))
            await gate.wait_running(1)
            worker.stop()
            await anyio.wait_all_tasks_blocked()
            transport.hand_out(job("2"))
            await anyio.wait_all_tasks_blocked()
            assert len(transport.waiting) == 1
            gate.open.set()
        assert ids(transport.completed) == ["1"]
        assert transport.released == []

    run(main)


async def run_worker(worker: Worker, *, task_status: Any) -> None:
    await worker.run(task_status=task_status)


def test_waiting_jobs_are_released_as_soon_as_it_stops(run: Run) -> None:
    async def main() -> None:
        transport, gate = ScriptedTransport(), Gate()
        worker = Worker(transport, concurrency=1)
        worker.handler("limited", concurrency=1)(gate.handle)
        worker.handler("t")(gate.handle)
        begun = ""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            await transport.wait_until(lambda: len(transport.subscriptions) == 2)
            transport.hand_out(job("a"), job("b", "limited"))
            await until(lambda: worker.statistics().held == 2)
            await gate.wait_running(1)
            (begun,) = gate.running
            worker.stop()
            await transport.wait_until(lambda: transport.released)
            assert (gate.running, gate.stopped) == ({begun}, {})
            gate.open.set()
        assert ids(transport.completed) == [begun]
        assert ids(transport.released) == sorted({"a", "b"} - {begun})

    run(main)


def test_what_outlasts_the_grace_is_cancelled_and_released(run_at_once: Run) -> None:
    async def main() -> None:
        transport, gate, worker = gated(drain_grace_s=0.1)
        async with worker:
            transport.hand_out(job("1"), job("2"))
            await gate.wait_running(2)
        assert gate.stopped == {"1": "stopping", "2": "stopping"}
        assert transport.released == [JobRef(job_id="1", attempt=1), JobRef(job_id="2", attempt=1)]
        assert (transport.completed, transport.failed) == ([], [])
        assert worker.statistics().released == 2

    run_at_once(main)


def test_a_second_stop_ends_the_grace(run: Run) -> None:
    async def main() -> None:
        transport, gate, worker = gated(drain_grace_s=600)
        async with worker:
            transport.hand_out(job("1"))
            await gate.wait_running(1)
            worker.stop()
            worker.stop()
        assert ids(transport.released) == ["1"]

    run(main)


def test_a_foreign_error_leaves_unchanged_and_releases_the_jobs(run: Run) -> None:
    async def main() -> None:
        transport, gate, worker = gated(drain_grace_s=600)
        with pytest.raises(LookupError, match="beside"):
            async with worker:
                transport.hand_out(job("1"))
                await gate.wait_running(1)
                raise LookupError("beside")
        assert ids(transport.released) == ["1"]

    run(main)


def test_a_cancelled_block_gives_its_jobs_back(run: Run) -> None:
    async def main() -> None:
        transport, gate, worker = gated(drain_grace_s=600)
        with anyio.CancelScope() as scope:
            async with worker:
                transport.hand_out(job("1"))
                await gate.wait_running(1)
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert ids(transport.released) == ["1"]

    run(main)


def test_cancelling_the_worker_gives_its_jobs_back(run: Run) -> None:
    async def main() -> None:
        transport, gate, worker = gated()
        async with anyio.create_task_group() as tasks:
            await tasks.start(run_worker, worker)
            transport.hand_out(job("1"), job("2"))
            await gate.wait_running(2)
            tasks.cancel_scope.cancel()
        assert ids(transport.released) == ["1", "2"]
        assert set(gate.stopped) == {"1", "2"}

    run(main)


def test_an_absent_engine_does_not_hold_up_the_end(run_at_once: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.worker.session.LAST_CALLS_S", 0.1)

    def complete(_results: Sequence[Completion]) -> None:
        raise ConnectionFailed("refused")

    async def main() -> None:
        transport, gate = ScriptedTransport(), Gate()
        transport.on_complete = complete
        gate.open.set()
        worker = Worker(transport)
        worker.handler("t")(gate.handle)
        async with worker:
            transport.hand_out(job("1"))
            await until(lambda: worker.statistics().unreported)
        assert ids(transport.released) == ["1"]

    run_at_once(main)


def test_a_thread_outlasting_the_grace_releases_its_job_first(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.worker.session.CLEAN_UP_S", 0.05)
    started, go_on = threading.Event(), threading.Event()

    def handle() -> dict[str, Any]:
        started.set()
        go_on.wait(20)
        return {"late": True}

    async def main() -> None:
        transport = ScriptedTransport()
        worker = Worker(transport, drain_grace_s=0.05)
        worker.handler("t")(handle)
        async with anyio.create_task_group() as tasks:
            await tasks.start(run_worker, worker)
            transport.hand_out(job("1"))
            await anyio.to_thread.run_sync(started.wait, 10)
            worker.stop()
            await transport.wait_until(lambda: transport.released)
            go_on.set()
        assert transport.completed == []

    run(main)


def test_a_worker_runs_again_after_its_stop_but_not_twice(run: Run) -> None:
    async def main() -> None:
        transport, gate = ScriptedTransport(), Gate()
        gate.open.set()
        worker = Worker(transport)
        worker.handler("t")(gate.handle)
        for name in ("1", "2"):
            async with worker:
                with pytest.raises(RuntimeError, match="running already"):
                    await worker.run()
                transport.hand_out(job(name))
                await transport.wait_until(lambda name=name: name in ids(transport.completed))
        assert worker.statistics().completed == 2

    run(main)


def test_a_worker_without_handlers_says_so(run: Run) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="no handlers"):
            await Worker(ScriptedTransport()).run()

    run(main)


def test_a_late_signal_ends_the_program_without_a_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(anyio, "run", interrupted)
    with pytest.raises(SystemExit) as ended:
        Worker("http://127.0.0.1:9").main()
    assert (ended.value.code, ended.value.__suppress_context__) == (130, True)
