"""grpcio as the client: the stubs that existing Python workers are made of."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
import trio
from google.protobuf.json_format import MessageToDict

from penstock.rpc.limits import RpcLimits
from tests.rpc.conftest import Google, Running, running
from tests.rpc.test_tls import server_context

T = TypeVar("T")
TIMEOUT_S = 90.0


@pytest.fixture
async def channel(run: Running) -> AsyncIterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{run.port}") as channel:
        yield channel


async def in_thread(work: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)


async def failure(work: Callable[[], Any]) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as raised:
        await in_thread(work)
    return raised.value


async def test_messages_arrive_as_they_were_sent_both_ways(google: Google, channel: grpc.Channel) -> None:
    stub = google.workflow_grpc.WorkflowEngineStub(channel)
    jobs = await in_thread(
        lambda: stub.PollJobs(
            google.workflow.PollJobsRequest(worker_id="w", job_types=["t"], max_jobs=3), timeout=TIMEOUT_S
        )
    )
    assert [MessageToDict(job.variables) for job in jobs.jobs] == [{"worker": "w", "n": 3}] * 3
    request = google.workflow.StartInstanceRequest(business_key="k")
    request.variables.update({"n": 3, "x": 2.5, "deep": {"list": [1, None, True, "é☃"]}})
    started = await in_thread(lambda: stub.StartInstance(request, timeout=TIMEOUT_S))
    assert started.instance.variables == request.variables


async def test_statuses_and_reasons_arrive(google: Google, channel: grpc.Channel) -> None:
    stub = google.workflow_grpc.WorkflowEngineStub(channel)
    error = await failure(
        lambda: stub.FailJob(google.workflow.FailJobRequest(error_message="LeaseLost:gehört w2"), timeout=TIMEOUT_S)
    )
    assert (error.code(), error.details()) == (grpc.StatusCode.ABORTED, "gehört w2")
    error = await failure(lambda: stub.GetInstance(google.workflow.GetInstanceRequest(id="1"), timeout=TIMEOUT_S))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_compressed_request_is_unimplemented(google: Google, run: Running) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{run.port}", compression=grpc.Compression.Gzip) as channel:
        stub = google.workflow_grpc.WorkflowEngineStub(channel)
        error = await failure(
            lambda: stub.CompleteJob(google.workflow.CompleteJobRequest(job_id="j" * 5_000), timeout=TIMEOUT_S)
        )
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_message_too_large_is_an_invalid_argument(google: Google, channel: grpc.Channel) -> None:
    stub = google.workflow_grpc.WorkflowEngineStub(channel)
    request = google.workflow.CompleteJobRequest(job_id="j" * (4 * 1024 * 1024))
    error = await failure(lambda: stub.CompleteJob(request, timeout=TIMEOUT_S))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_deadline_and_cancel_reach_the_handler(google: Google, run: Running, channel: grpc.Channel) -> None:
    stub = google.workflow_grpc.WorkflowEngineStub(channel)
    forever = google.workflow.CompleteJobRequest(job_id="forever")
    timeout_s = 0.1
    while not run.engine.started:  # on a busy machine the deadline may pass before the call has left
        error = await failure(partial(stub.CompleteJob, forever, timeout=timeout_s))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        timeout_s *= 2
    await run.until(lambda _: run.engine.running == 0)
    late = run.engine.cancelled
    assert late == run.engine.started
    future = await in_thread(lambda: stub.CompleteJob.future(forever))
    await run.until(lambda _: run.engine.running == 1)
    future.cancel()
    await run.until(lambda _: run.engine.cancelled == late + 1)


async def test_the_work_stream_goes_both_ways(google: Google, run: Running, channel: grpc.Channel) -> None:
    stub = google.penstock_grpc.WorkerStub(channel)
    outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def requests() -> Iterator[Any]:
        while (request := outgoing.get()) is not None:
            yield request

    p = google.penstock
    outgoing.put(p.WorkRequest(worker_id="w", credits=[p.Credit(job_type="t", jobs=2)]))
    stream = await in_thread(lambda: stub.Work(requests(), timeout=TIMEOUT_S))
    first = await in_thread(lambda: next(stream))
    assert [job.job_type for job in first.jobs] == ["t", "t"]
    outgoing.put(p.WorkRequest(completions=[p.Completion(job_id="a", attempt=1), p.Completion(job_id="b", attempt=4)]))
    second = await in_thread(lambda: next(stream))
    assert [(done.job_id, done.attempt, done.outcome) for done in second.outcomes] == [("a", 1, 1), ("b", 4, 1)]
    outgoing.put(None)
    assert await in_thread(lambda: list(stream)) == []
    assert stream.code() is grpc.StatusCode.OK
    await run.until(lambda now: now.calls_running == 0)


async def test_tls_with_the_clients_own_check_of_the_certificate(
    google: Google, certificate: tuple[Path, Path]
) -> None:
    credentials = grpc.ssl_channel_credentials(certificate[0].read_bytes())
    with trio.fail_after(60):
        async with running(ssl_context=server_context(certificate)) as run:
            with grpc.secure_channel(f"localhost:{run.port}", credentials) as channel:
                stub = google.workflow_grpc.WorkflowEngineStub(channel)
                await in_thread(lambda: stub.CompleteJob(google.workflow.CompleteJobRequest(), timeout=TIMEOUT_S))


async def test_a_client_that_pings_often_is_not_sent_away(google: Google, run: Running) -> None:
    options = [
        ("grpc.keepalive_time_ms", 1_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    with grpc.insecure_channel(f"127.0.0.1:{run.port}", options) as channel:
        stub = google.workflow_grpc.WorkflowEngineStub(channel)
        request = google.workflow.CompleteJobRequest(job_id="2500 ms")
        await in_thread(lambda: stub.CompleteJob(request, timeout=TIMEOUT_S))
    assert run.server.statistics().counts.floods == 0


@pytest.mark.slow(reason="many threads and thousands of calls")
async def test_calls_of_many_threads_survive_drains_or_get_unavailable(google: Google) -> None:
    """A client sees OK, or UNAVAILABLE for a connection that could not be made any more; never anything else."""
    with trio.fail_after(60):
        async with running(RpcLimits(linger_s=2.0)) as run:
            outcomes: list[tuple[grpc.StatusCode, str]] = []
            stop = threading.Event()

            def hammer(seed: int) -> None:
                rng = random.Random(seed)
                with grpc.insecure_channel(f"127.0.0.1:{run.port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
                    stub = google.workflow_grpc.WorkflowEngineStub(channel)
                    while not stop.is_set():
                        request = google.workflow.CompleteJobRequest(job_id=f"{rng.randrange(4)} ms")
                        try:
                            stub.CompleteJob(request, timeout=TIMEOUT_S)
                            outcomes.append((grpc.StatusCode.OK, ""))
                        except grpc.RpcError as error:
                            outcomes.append((error.code(), error.details() or ""))
                            stop.wait(0.01)

            async with trio.open_nursery() as nursery:
                for seed in range(8):
                    nursery.start_soon(in_thread, lambda seed=seed: hammer(seed))
                await run.until(lambda now: now.counts.calls > 500)
                await run.server.drain(10.0)
                stop.set()
    failed = {outcome for outcome in outcomes if outcome[0] is not grpc.StatusCode.OK}
    assert all(code is grpc.StatusCode.UNAVAILABLE and "connect" in text for code, text in failed), failed
    assert run.server.statistics().counts.broken == 0


@pytest.mark.slow(reason="many threads and thousands of calls")
async def test_two_thousand_random_cancels_leave_nothing_running(google: Google, run: Running) -> None:
    rng = random.Random(3)
    with grpc.insecure_channel(f"127.0.0.1:{run.port}") as channel:
        stub = google.workflow_grpc.WorkflowEngineStub(channel)

        def stress() -> None:
            futures = []
            for _ in range(2_000):
                job = rng.choice(["forever", "1 ms", "3 ms"])
                futures.append((stub.CompleteJob.future(google.workflow.CompleteJobRequest(job_id=job)), job))
                if len(futures) >= 50:
                    future, job = futures.pop(rng.randrange(50))
                    if job == "forever" or rng.random() < 0.5:
                        future.cancel()
            for future, _ in futures:
                future.cancel()

        await in_thread(stress)
        await run.until(lambda now: now.calls_running == 0)
        assert run.engine.running == 0
    await run.until_quiet()
