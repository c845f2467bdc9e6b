"""`child`: a body waits for another workflow; results, errors and cancels cross over, and restarts don't matter."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.durable import (
    App,
    Cancelled,
    ChildFailed,
    RunCancelled,
    RunFailed,
    child,
    each,
    move_on_after,
    now,
    receive,
    sleep,
    step,
    workflow,
)
from penstock.testing import Message, Takes, explore, run_workflow
from tests.waiting import wait_until

BOUND_S = 60.0
undone: list[str] = []


@step
async def double(n: int) -> int:
    return n * 2


@step
async def undo(name: str) -> None:
    undone.append(name)


@workflow
async def audit(n: int, word: str = "") -> int:
    try:
        if word:
            await receive(word, str)
        if n < 0:
            raise ValueError("less than nothing")
        return await double(n)
    except Cancelled:
        with move_on_after("1h", shield=True):
            await undo(f"audit {n}")
        raise


@workflow
async def order(n: int, word: str = "") -> str:
    with move_on_after("1h") as scope:
        try:
            return f"{await child(audit, n, word=word, id=f'audit-{n}' if word else None)}"
        except ChildFailed as error:
            return f"{error.status}: {error.reason.partition(' (')[0]}"
    return f"late {scope.cancelled_caught} {now():%H:%M}"


@workflow
async def long_names() -> list[int]:
    return await each(lambda n: child(audit, n), [1, 2], key=lambda n: f"{'k' * 250}{n}")


@workflow
async def many(count: int) -> int:
    return sum(await each(lambda n: child(audit, n), range(count), limit=20))


def test_in_memory_a_child_runs_too():
    run = run_workflow(order, 4)
    assert run.result() == "8"
    assert [(record.kind.name, record.path) for record in run.journal] == [("CHILD", "/1")]
    assert run_workflow(order, -1).result() == "FAILED: ValueError: less than nothing"
    assert run_workflow(order, 4, steps={audit: lambda n, word: 40 + n}).result() == "44"
    slow = run_workflow(order, 4, steps={audit: Takes("2h", lambda n, word: 1)})
    assert (slow.result(), slow.stopped) == ("late True 01:00", ["/1"])
    assert run_workflow(many, 7).result() == 42
    assert explore(many, 3).records == 3

    @workflow
    async def graph() -> Any:
        return (await child("legacy", order=17))["paid"]

    assert run_workflow(graph, steps={"legacy": lambda order: {"paid": order}}).result() == 17
    with pytest.raises(TypeError, match="no definition 'legacy' here"):
        run_workflow(graph).result()


def test_a_child_may_take_its_time():
    @workflow
    async def slow() -> int:
        await sleep("3 days")
        return 3

    @workflow
    async def waits() -> int:
        return await child(slow)

    run = run_workflow(waits, messages=[Message("early", 1)])
    assert (run.result(), run.took.days) == (3, 3)


async def test_results_and_errors_come_back(at: str):
    async with App(order, audit, many, long_names, at=at) as app:
        assert await (await app.start(long_names)).result(BOUND_S) == [2, 4]
        assert await (await app.start(order, 4)).result(BOUND_S) == "8"
        assert await (await app.start(order, -1)).result(BOUND_S) == "FAILED: ValueError: less than nothing"
        assert await (await app.start(many, 50)).result(BOUND_S) == sum(range(50)) * 2
        runs = await app.find(audit, limit=100)
        assert len(runs) == 54
        assert {await run.status() for run in runs} == {"COMPLETED", "FAILED"}


async def test_a_restart_between_does_not_matter(at: str):
    async with App(order, audit, at=at) as app:
        run = await app.start(order, 5, word="go", id="o-1")
        tree: dict[str, Any] = {}

        async def waits() -> bool:
            nonlocal tree
            tree = await run.tree()
            return tree["status"] == "WAITING"

        await wait_until(waits)
        assert tree["waitsFor"].startswith("child 'audit'")
        assert [branch["kind"] for branch in tree["branches"]] == ["scope", "child"]
    async with App(order, audit, at=at) as app:
        waiting = await app.get("audit-5", audit)
        await waiting.send("go", "on")
        assert await (await app.get("o-1", order)).result(BOUND_S) == "10"


async def test_a_cancel_crosses_over_and_is_waited_for(at: str):
    undone.clear()
    async with App(order, audit, at=at) as app:
        run = await app.start(order, 6, word="go", id="o-2")

        async def is_there() -> bool:
            return bool(await app.find(audit))

        await wait_until(is_there)
        await run.cancel("enough")
        with pytest.raises(RunCancelled, match="enough"):
            await run.result(BOUND_S)
        assert undone == ["audit 6"], "before the caller has ended"
        ended = await app.get("audit-6", audit)
        assert await ended.status() == "CANCELLED"
        other = await app.start(order, 7, word="go", id="o-3")
        await wait_until(lambda: _found(app, "audit-7"))
        await (await app.get("audit-7", audit)).cancel("by somebody else")
        assert await other.result(BOUND_S) == "CANCELLED: by somebody else"
        clash = await app.start(order, 7, word="other", id="o-4")
        with pytest.raises(RunFailed, match="StartRefused"):
            await clash.result(BOUND_S)


async def _found(app: App, id: str) -> bool:
    return any(run.id == id for run in await app.find(audit))
