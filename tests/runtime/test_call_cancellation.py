"""Every call of the client and a whole worker, cancelled at every point, against a real engine over real sockets.

The engine runs in the same event loop, so the points are also those of its connection and flusher tasks. After each
run nothing is left of the call on either side, its effect is there whole or not at all, and the same call works.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio

from penstock.client import Client, Completion, Job, JobRef, StartRequest
from penstock.client.operation import WaitLostJobs
from penstock.http import HttpLimits, HttpServer, listen
from penstock.rest.app import make_app
from penstock.testing.cancellation import CancelledAttempt, Holdings, Operation, cancel_everywhere
from penstock.testing.definitions import definition, end, linear, step
from penstock.testing.invariants import assert_invariants
from penstock.worker import Worker
from tests.runtime.conftest import StartLocal
from tests.runtime.local_engine import LocalEngine
from tests.waiting import wait_until

POOL = Holdings(tasks=0, threads=0, files=9)
"""The connections that the engine keeps to the database, and the test's own."""
ASK = definition(step("ask", "USER_TASK", nextStep="end"), end(), definition_id="ask")
WAIT = definition(step("wait", "WAIT", nextStep="end"), end(), definition_id="wait")

Call = Callable[[Client], Awaitable[Any]]


class Served:
    """An engine and its URL."""

    def __init__(self, engine: LocalEngine, url: str, client: Client) -> None:
        self.engine = engine
        self.url = url
        self.client = client
        """For calls that nobody disturbs."""
        self.number = 0

    async def started(self, about: str = "linear", **fields: Any) -> str:
        self.number += 1
        return (await self.engine.start(about, **fields)).id

    async def job(self) -> Job:
        """A job under lease, of an instance of its own."""
        await self.started()
        (job,) = await self.client.poll_jobs("w", ["work"], max_jobs=1)
        return job


@pytest.fixture
async def served(start_local: StartLocal, nursery: trio.Nursery) -> AsyncGenerator[Served]:
    engine = await start_local()
    server = HttpServer(HttpLimits())
    sockets = listen("127.0.0.1", 0)
    await nursery.start(server.serve, make_app(engine.engine), sockets)
    for about in (linear(1), ASK, WAIT):
        await engine.upload(about)
    url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    async with Client(url) as client:
        await client.is_ready()
        yield Served(engine, url, client)
    nursery.cancel_scope.cancel()
    for sock in sockets:
        sock.close()
    assert_invariants(engine.dsn)


# Each makes ready what it needs and gives the call.


async def upload(served: Served) -> Call:
    served.number += 1
    return lambda client: client.upload_definition(linear(1, definition_id=f"line-{served.number}"))


async def start(served: Served) -> Call:
    return lambda client: client.start_instance("linear", {"x": 1})


async def start_many(served: Served) -> Call:
    return lambda client: client.start_instances([StartRequest(definition_id="linear") for _ in range(3)])


async def read(served: Served) -> Call:
    instance = await served.started()
    return lambda client: client.get_instance(instance)


async def cancel(served: Served) -> Call:
    instance = await served.started()
    return lambda client: client.cancel_instance(instance, reason="enough")


async def signal(served: Served) -> Call:
    instance = await served.started("wait")
    return lambda client: client.signal(instance, "wait", {"y": 1}, idempotency_key=instance)


async def user_task(served: Served) -> Call:
    instance = await served.started("ask")
    return lambda client: client.complete_user_task(instance, "ask", {"y": 1})


async def poll(served: Served) -> Call:
    await served.started()
    return lambda client: client.poll_jobs("cancelled", ["work"], max_jobs=1)


async def complete(served: Served) -> Call:
    job = await served.job()
    return lambda client: client.complete_job(job.id, "w", {"y": 1}, attempt=job.attempt)


async def complete_many(served: Served) -> Call:
    jobs = [await served.job(), await served.job()]
    return lambda client: client.complete_jobs("w", [Completion(job_id=job.id, attempt=job.attempt) for job in jobs])


async def fail(served: Served) -> Call:
    job = await served.job()
    return lambda client: client.fail_job(job.id, "w", "boom", retryable=False, attempt=job.attempt)


async def heartbeat(served: Served) -> Call:
    job = await served.job()
    return lambda client: client.heartbeat_job(job.id, "w", attempt=job.attempt, checkpoint={"at": 1})


async def release(served: Served) -> Call:
    job = await served.job()
    return lambda client: client.release_jobs("w", [JobRef(job_id=job.id, attempt=job.attempt)])


async def lost(served: Served) -> Call:
    job = await served.job()
    await served.engine.cancel(job.instance_id)
    return lambda client: client.call(WaitLostJobs(worker_id="w", wait_s=0))


CALLS: dict[str, Callable[[Served], Awaitable[Call]]] = {
    name.__name__: name
    for name in (
        upload, start, start_many, read, cancel, signal, user_task, poll,
        complete, complete_many, fail, heartbeat, release, lost,
    )
}  # fmt: skip


async def finish_all(engine: LocalEngine) -> None:
    """Every instance is brought to its end: the engine goes on, and nothing is stuck."""
    await quiet_but_for_services(engine)
    for (id,) in engine.rows("SELECT to_hex(id) FROM instance WHERE status = 0"):
        await engine.cancel(id)
    assert engine.rows("SELECT count(*) FROM token") == [(0,)]
    assert engine.rows("SELECT count(*) FROM ready") == [(0,)]


async def quiet_but_for_services(engine: LocalEngine) -> None:
    with trio.fail_after(60):
        while any(not batcher.statistics().idle for batcher in engine.engine.batchers()):
            await trio.lowlevel.checkpoint()


@pytest.mark.slow(reason="cancels each call at every point")
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_cancelled_at_every_point(served: Served, name: str) -> None:
    engine = served.engine
    prepared: list[Call] = []

    async def prepare() -> Operation[Any]:
        prepared.append(await CALLS[name](served))
        return partial(call, prepared[-1])

    async def call(calling: Call) -> Any:
        async with Client(served.url) as client:
            return await calling(client)

    async def after(attempt: CancelledAttempt[Any]) -> None:
        assert len(engine.engine.polls.waiters) == 0 or attempt.cancelled
        if name not in ("cancel", "user_task", "fail"):  # a second one is refused
            with trio.fail_after(60):
                await prepared[-1](served.client)
        await finish_all(engine)

    points = await cancel_everywhere(prepare, after, own_task_only=True, may_grow=POOL)
    assert points.cancelled >= 5, points


async def test_a_worker_cancelled_while_it_starts_and_stops_leaves_nothing(served: Served) -> None:
    async def prepare() -> Operation[None]:
        return start_and_stop

    async def start_and_stop() -> None:
        worker = Worker(served.url, worker_id="short", wait_s=1, drain_grace_s=1)
        worker.handler("nothing-of-it")(lambda: None)
        async with worker:
            pass

    async def after(attempt: CancelledAttempt[None]) -> None:
        await quiet_but_for_services(served.engine)

    points = await cancel_everywhere(prepare, after, own_task_only=True, may_grow=POOL)
    assert points.cancelled >= 3, points


@pytest.mark.slow(reason="cancels each call at every point")
async def test_a_worker_cancelled_at_many_points_loses_no_job(served: Served) -> None:
    """Whatever it had taken is completed, given back, or comes back when its lease ends."""
    engine = served.engine
    assert engine.clock
    started: list[str] = []

    async def prepare() -> Operation[None]:
        started.append(await served.started())
        return work

    async def work() -> None:
        worker = Worker(served.url, worker_id="cancelled", concurrency=2, wait_s=1, drain_grace_s=1)

        @worker.handler("work")
        async def handle() -> dict[str, int]:
            await trio.lowlevel.checkpoint()
            return {"y": 1}

        async with worker:
            with trio.fail_after(60):
                while await engine.status(started[-1]) != "COMPLETED":
                    await trio.lowlevel.checkpoint()

    async def done() -> bool:
        """The server may still be busy with a poll of the worker that is gone: its lease ends, too."""
        if await engine.status(started[-1]) != "COMPLETED":
            engine.clock.advance(61)
            await engine.sweeper.run_once(trio.current_time() + 1e6)
            for job in await engine.poll("work", worker="next"):
                await engine.complete(job, {"y": 2})
        return await engine.status(started[-1]) == "COMPLETED"

    async def after(attempt: CancelledAttempt[None]) -> None:
        await quiet_but_for_services(engine)
        await wait_until(done)
        assert engine.rows("SELECT count(*) FROM token") == [(0,)]

    points = await cancel_everywhere(prepare, after, own_task_only=False, first=3, stride=17, may_grow=POOL)
    assert points.cancelled >= 5, points
