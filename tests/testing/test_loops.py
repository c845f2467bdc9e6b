"""`penstock.testing` without Trio: under asyncio, and in plain functions."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from penstock.client import SyncClient
from penstock.testing import Stuck, SyncTestEngine, TestEngine, raises, vanishes
from penstock.testing.definitions import definition, end, linear, service, step, timer
from penstock.worker import Worker

START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_handlers_run_in_the_event_loop_of_the_test(engine: TestEngine, backend: str) -> None:
    threads: set[threading.Thread] = set()

    async def handler() -> None:
        threads.add(threading.current_thread())
        await anyio.lowlevel.checkpoint()
        if backend == "asyncio":
            await asyncio.to_thread(lambda: None)

    async def test() -> None:
        await engine.deploy(linear(2))
        engine.stub("work", handler)
        run = await engine.start("linear")
        await run.finish()
        run.assert_completed()
        async with engine.serve() as url:
            assert url.startswith("http://127.0.0.1:")

    anyio.run(test, backend=backend)
    assert threads == {threading.current_thread()}


def test_a_call_cancelled_under_asyncio_is_cancelled_in_the_engine(engine: TestEngine) -> None:
    async def test() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await engine.client.poll_jobs("w", ["work"], wait_s=60)
        await engine.settle()
        await engine.deploy(linear(1))  # the engine's loop has been round since

    asyncio.run(test())
    assert len(engine.thread.engine.polls.waiters) == 0


@pytest.mark.penstock(now=START, settings={"lease_expiry_limit": 2})
def test_everything_without_await(penstock_sync: SyncTestEngine) -> None:
    penstock = penstock_sync
    penstock.deploy(
        definition(
            step("ask", "USER_TASK", nextStep="sign", boundaryEvents=[timer("remind", "P1D")]),
            service("remind", job_type="mail"),
            step("sign", "WAIT", nextStep="task"),
            service("task", "end", retryCount=1),
            end(),
        )
    )
    mail = penstock.stub("mail")
    penstock.stub("work", raises(OSError), {"done": True})
    run = penstock.start("test", {"x": 1}, business_key="k")
    with pytest.raises(Stuck, match="ask: a user task is open"):
        run.finish(within=dt.timedelta(hours=1))
    penstock.advance(days=2)
    assert (mail.count, penstock.now) == (1, START + dt.timedelta(days=2))
    run.complete_task("ask", {"answer": "yes"}, by="ann")
    run.settle().assert_at("sign")
    run.signal("sign", {"signature": "A"})
    penstock.settle()
    run.assert_completed()
    run.assert_variables(x=1, answer="yes", signature="A", done=True)
    assert penstock.client.list_instances(business_key="k").items[0].id == run.id
    penstock.stub("work", vanishes())
    other = penstock.start("test")
    other.cancel("enough")
    assert penstock.run(other.id).failure == "enough"


def test_a_server_beside_a_plain_test(penstock_sync: SyncTestEngine) -> None:
    first = linear(1, definition_id="first") | {"autoStartNextWorkflow": True, "nextWorkflowId": "linear"}
    penstock_sync.deploy(linear(1), first)
    worker = Worker("http://nowhere.invalid")
    worker.handler("work")(lambda: {"by": "worker"})
    penstock_sync.use(worker)
    with penstock_sync.serve() as url, SyncClient(url) as client:
        instance = client.start_instance("first")
        penstock_sync.settle()
        following = penstock_sync.run(instance.id).next
        assert following is not None
        assert following.settle().variables == {"by": "worker"}


@pytest.mark.penstock(backend="trio")
def test_handlers_of_a_plain_test_may_run_under_trio(penstock_sync: SyncTestEngine) -> None:
    import trio

    penstock_sync.deploy(linear(1))

    async def handler() -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"loop": "trio"}

    penstock_sync.stub("work", handler)
    run = penstock_sync.start("linear").finish()
    run.assert_variables(loop="trio")


def test_what_a_run_shows_may_be_asked_anywhere(penstock_sync: SyncTestEngine) -> None:
    penstock_sync.deploy(linear(1))
    run = penstock_sync.start("linear")
    seen: list[str] = []
    probes: list[Callable[[], None]] = [lambda: seen.append(run.status)]
    thread = threading.Thread(target=probes[0])
    thread.start()
    thread.join()
    assert seen == ["ACTIVE"]
