"""A run that no executor ever had is cancelled at once: in a paused queue, behind a full one, served by nobody.

It waited for its first executor before, to be told there that it was cancelled: for ever, where none came.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import psycopg
import pytest
import trio

from penstock.client import Client
from penstock.durable import App, ChildFailed, RunCancelled, child, move_on_after, sleep, step, workflow
from penstock.durable.run import Run
from penstock.testing.invariants import assert_invariants
from penstock.wire.queue import QueuePolicy
from tests.shares import mostly_slow
from tests.waiting import wait_until

BOUND_S = 60.0
"""Before, all of this lasted for ever."""
begun: list[str] = []


@step
async def note(name: str) -> str:
    begun.append(name)
    return name


@workflow(queue="q")
async def queued(name: str) -> str:
    return await note(name)


@workflow
async def unserved(name: str) -> str:
    return await note(name)


@workflow
async def parent(kind: str) -> str:
    target = queued if kind == "queued" else unserved
    with move_on_after("0.2 s") as scope:
        return await child(target, kind)
    assert scope.cancelled_caught
    return "moved on"


@workflow
async def patient(kind: str) -> str:
    try:
        return await child(unserved, kind, id="the-child")
    except ChildFailed as error:
        return f"{error.status}: {error.reason}"


@pytest.fixture
async def client(database_dsn: str) -> AsyncGenerator[Client]:
    begun.clear()
    async with App(at=database_dsn, rest_port=0, migrate=True) as app:
        assert app.rest_url is not None
        async with Client(app.rest_url) as client:
            await client.put_queue("q", QueuePolicy([], paused=True))
            yield client


def left(dsn: str) -> dict[str, int]:
    """Rows of what waits or counts; the queue's own policy is none of them."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT (SELECT count(*) FROM token), (SELECT count(*) FROM ready),"
            " (SELECT count(*) FROM ready_flow), (SELECT count(*) FROM parked),"
            " (SELECT count(*) FROM timer),"
            " (SELECT coalesce(sum(running + open_runs), 0) FROM slot)"
        ).fetchone()
    assert found is not None
    return dict(zip(("token", "ready", "ready_flow", "parked", "timer", "slot"), map(int, found), strict=True))


async def check_nothing_is_left(dsn: str) -> None:
    async def is_empty() -> bool:
        return not any(left(dsn).values())

    await wait_until(is_empty)  # what was told of an end goes by its timer
    await trio.to_thread.run_sync(assert_invariants, dsn)
    assert begun == []


@pytest.mark.parametrize("kind", ["queued", "unserved"])
async def test_a_parent_moves_on_from_a_child_that_never_began(at: str, database_dsn: str, client: Client, kind: str):
    served = (parent, queued) if kind == "queued" else (parent,)
    async with App(*served, at=at) as app:
        run = await app.start(parent, kind)
        assert await run.result(BOUND_S) == "moved on"
        children = await app.find(queued if kind == "queued" else unserved)
        assert [await each.status() for each in children] == ["CANCELLED"]
        await check_nothing_is_left(database_dsn)


@pytest.mark.parametrize(
    "how", mostly_slow(["run", "rest", "deadline", "parent"], quick=["run", "parent"], reason="a program for each way")
)
async def test_a_run_that_never_began_is_cancelled_at_once(at: str, database_dsn: str, client: Client, how: str):
    async with App(parent, patient, queued, at=at) as app:
        run: Run[str] = await app.start(queued, "x", id="waits")
        if how == "run":
            await run.cancel("enough")
        elif how == "rest":
            await client.cancel_instance(run.instance_id, reason="enough")
        else:
            await run.cancel("enough")
            caller = await app.start(patient, "y", deadline="0.3 s" if how == "deadline" else None)

            async def is_there() -> bool:
                return bool(await app.find(unserved))

            await wait_until(is_there)
            if how == "parent":
                await caller.cancel("so be it")
            with pytest.raises(Exception, match="so be it" if how == "parent" else "deadline"):
                await caller.result(BOUND_S)
            assert await (await app.get("the-child", unserved)).status() == "CANCELLED"
        with pytest.raises(RunCancelled, match="enough"):
            await run.result(BOUND_S)
        await check_nothing_is_left(database_dsn)
        again = await app.start(queued, "x", id="waits")
        assert await again.status() == "CANCELLED", "the id stays that of the run"


async def test_a_run_that_has_begun_cleans_up(at: str, client: Client):
    """The other way round: an executor had this one, so that its code decides."""

    @workflow
    async def careful() -> None:
        await note("begun")
        try:
            await sleep("1 h")
        finally:
            with move_on_after("1 min", shield=True):
                await note("cleaned")

    async with App(careful, at=at) as app:
        run = await app.start(careful)

        async def waits() -> bool:
            return begun == ["begun"] and (await run.tree()).get("waitsFor") is not None

        await wait_until(waits)
        await run.cancel("enough")
        with pytest.raises(RunCancelled, match="enough"):
            await run.result(BOUND_S)
    assert begun == ["begun", "cleaned"]
