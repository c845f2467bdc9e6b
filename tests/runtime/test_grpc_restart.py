"""One of two engines is stopped under load, as in a rolling restart: grpcio clients that know both see no call fail."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import Any

import grpc
import psycopg
import pytest

from penstock.testing.definitions import linear
from penstock.testing.invariants import assert_invariants
from tests.rpc.conftest import Google, google
from tests.runtime.conftest import StartEngine
from tests.runtime.engine_process import EngineProcess
from tests.runtime.waiting import wait_until

__all__ = ["google"]  # pytest finds the fixture here
pytestmark = pytest.mark.slow(reason="restarts an engine under callers")
TIMEOUT_S = 30.0
STEPS = 3


@contextlib.contextmanager
def channel_to(*engines: EngineProcess) -> Generator[grpc.Channel]:
    """One channel that takes turns among the engines; it repeats what an engine told it was not begun, no more."""
    target = "ipv4:" + ",".join(f"127.0.0.1:{engine.grpc_port}" for engine in engines)
    options = [("grpc.lb_policy_name", "round_robin"), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(target, options) as channel:
        yield channel


def wait_connected(google: Google, channel: grpc.Channel, *engines: EngineProcess) -> None:
    """Until each of them has been called."""
    stub = google.workflow_grpc.WorkflowEngineStub(channel)

    def each() -> bool:
        stub.ListDefinitions(google.workflow.ListDefinitionsRequest(), timeout=TIMEOUT_S)
        return all(engine.metric("grpc_requests_duration_seconds_count") for engine in engines)

    wait_until(each)


@contextlib.contextmanager
def threads(count: int, work: Callable[[int], None], stop: threading.Event) -> Generator[None]:
    running = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in running:
            thread.join(120)
    assert not any(thread.is_alive() for thread in running)


def done_steps(dsn: str) -> Counter[tuple[str, int]]:
    """How often each step of each instance was done; attempts that were given back are not counted."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT instance_id, step FROM history WHERE kind < 10").fetchall()
    return Counter((f"{instance:x}", step) for instance, step in rows)


def test_callers_of_two_engines_see_no_failure_when_one_stops(
    start_engine: StartEngine, google: Google, database_dsn: str
) -> None:
    leaver, stayer = start_engine(), start_engine()
    for engine in (leaver, stayer):
        engine.wait_ready()
    assert leaver.call("POST", "/v1/definitions", linear(STEPS))[0] == 201
    m = google.workflow
    stop = threading.Event()
    started: list[str] = []
    completed: list[tuple[str, str]] = []
    failures: list[tuple[grpc.StatusCode, str | None]] = []

    with channel_to(leaver, stayer) as channel:
        wait_connected(google, channel, leaver, stayer)
        stub = google.workflow_grpc.WorkflowEngineStub(channel)

        def call_on(number: int) -> None:
            worker = f"w{number}"
            poll = m.PollJobsRequest(worker_id=worker, job_types=["work"], max_jobs=4)
            try:
                while not stop.is_set():
                    begun = stub.StartInstance(m.StartInstanceRequest(definition_id="linear"), timeout=TIMEOUT_S)
                    started.append(begun.instance.id)
                    stub.GetInstance(m.GetInstanceRequest(id=begun.instance.id), timeout=TIMEOUT_S)
                    for job in stub.PollJobs(poll, timeout=TIMEOUT_S).jobs:
                        stub.CompleteJob(m.CompleteJobRequest(job_id=job.id, worker_id=worker), timeout=TIMEOUT_S)
                        completed.append((job.instance_id, job.step_id))
            except grpc.RpcError as error:
                failures.append((error.code(), error.details()))
                stop.set()

        with threads(8, call_on, stop):
            wait_until(lambda: len(completed) > 200 or stop.is_set())
            assert leaver.stop() == 0
            after = len(completed)
            wait_until(lambda: len(completed) > after + 200 or stop.is_set())
    assert failures == []
    assert len(set(completed)) == len(completed)
    done = done_steps(database_dsn)
    assert set(done.values()) == {1}
    assert {(instance, int(step.removeprefix("task-")) - 1) for instance, step in completed} <= done.keys()
    with psycopg.connect(database_dsn) as connection:
        assert {f"{id:x}" for (id,) in connection.execute("SELECT id FROM instance")} == set(started)
    assert_invariants(database_dsn)
    assert stayer.stop() == 0


class Streams:
    """Workers with a Work stream each, opened again whenever it ends: every result that was sent must be answered."""

    def __init__(self, google: Google, channel: grpc.Channel) -> None:
        self._p = google.penstock
        self._stub = google.penstock_grpc.WorkerStub(channel)
        self.stop = threading.Event()
        self.outcomes: Counter[int] = Counter()
        self.unanswered: list[str] = []
        self.ends: Counter[grpc.StatusCode] = Counter()

    def work(self, number: int) -> None:
        while not self.stop.is_set():
            self.ends[self._one_stream(f"s{number}")] += 1

    def _one_stream(self, worker: str) -> grpc.StatusCode:
        p = self._p
        outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        outgoing.put(p.WorkRequest(worker_id=worker, credits=[p.Credit(job_type="work", jobs=20)]))
        waiting: set[str] = set()

        def requests() -> Iterator[Any]:
            while not self.stop.is_set():
                with contextlib.suppress(queue.Empty):
                    request = outgoing.get(timeout=0.1)
                    if request is None:
                        return
                    yield request

        answers = self._stub.Work(requests())
        with contextlib.suppress(grpc.RpcError):
            for answer in answers:
                for outcome in answer.outcomes:
                    self.outcomes[outcome.outcome] += 1
                    waiting.discard(outcome.job_id)
                done = [p.Completion(job_id=job.id, attempt=job.attempt) for job in answer.jobs]
                if done:
                    waiting |= {item.job_id for item in done}
                    outgoing.put(p.WorkRequest(completions=done, credits=[p.Credit(job_type="work", jobs=len(done))]))
        outgoing.put(None)
        self.unanswered += waiting
        code: grpc.StatusCode = answers.code()
        return code


def test_work_streams_report_all_and_continue_with_the_other_engine(
    start_engine: StartEngine, google: Google, database_dsn: str
) -> None:
    leaver, stayer = start_engine(), start_engine()
    for engine in (leaver, stayer):
        engine.wait_ready()
    assert leaver.call("POST", "/v1/definitions", linear(STEPS))[0] == 201
    instances = 0

    def start(engine: EngineProcess, count: int) -> None:
        nonlocal instances
        for _ in range(count // 500):
            items = [{"definitionId": "linear"}] * 500
            assert engine.call("POST", "/v1/instances/batch", {"items": items})[0] == 200
        instances += count

    start(leaver, 1_500)
    with channel_to(leaver, stayer) as channel:
        wait_connected(google, channel, leaver, stayer)
        streams = Streams(google, channel)
        with threads(4, streams.work, streams.stop):
            wait_until(lambda: streams.outcomes[1] > 500)
            assert streams.outcomes[1] < STEPS * instances  # it is stopped under load
            assert leaver.stop() == 0
            start(stayer, 500)  # what is done now is done by the other, however fast the first was emptied
            wait_until(lambda: streams.outcomes[1] >= STEPS * instances, timeout_s=120)
    assert streams.unanswered == []
    assert streams.outcomes == {1: STEPS * instances}
    assert set(streams.ends) == {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
    done = done_steps(database_dsn)
    assert set(done.values()) == {1}
    assert stayer.call("GET", "/v1/instances?status=COMPLETED")[1]["total"] == instances
    assert_invariants(database_dsn)
    assert stayer.stop() == 0
