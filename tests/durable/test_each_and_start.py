"""`each` with bounded concurrency, and `start` for runs of their own."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio

from penstock.durable import App, StartRefused, child, each, receive, start, step, workflow
from penstock.testing import Takes, assert_replays, explore, run_workflow, save_journal

BOUND_S = 60.0


@step
async def label(n: int) -> int:
    return n * 2


def test_results_come_in_the_order_of_the_items():
    @workflow
    async def body(count: int) -> list[int]:
        return await each(label, range(count), limit=3)

    began: list[int] = []
    run = run_workflow(body, 7, steps={label: Takes(10, lambda n: began.append(n) or n * 2)})
    assert run.result() == [0, 2, 4, 6, 8, 10, 12]
    assert run.took.total_seconds() == 30, "three at a time"
    assert sorted(began) == list(range(7))
    assert run_workflow(body, 0).result() == []
    assert explore(body, 4).crashes == 8


@pytest.mark.slow(reason="ten thousand branches")
def test_ten_thousand_items_hold_few_branches():
    @workflow
    async def body() -> int:
        return sum(await each(label, range(10_000), limit=100))

    run = run_workflow(body, steps={label: lambda n: n * 2})
    assert run.result() == sum(range(10_000)) * 2
    assert len(run.journal) == 10_000


def test_a_key_names_the_branch(tmp_path):
    @workflow(name="body")
    async def there(names: list[str]) -> list[int]:
        return await each(lambda name: label(len(name)), names, key=lambda name: name)

    @workflow(name="body")
    async def back(names: list[str]) -> list[int]:
        return await each(lambda name: label(len(name)), sorted(names), key=lambda name: name)

    run = run_workflow(there, ["pen", "book"])
    assert sorted(record.path for record in run.journal) == ["/0.[book]/0", "/0.[pen]/0"]
    save_journal(run, tmp_path / "kept.json")
    assert assert_replays(back, tmp_path) == 1, "items may change places"


def test_an_error_of_one_cancels_the_others():
    @step
    async def fails(n: int) -> int:
        if n == 1:
            raise ValueError("one")
        return n

    @workflow
    async def body() -> list[int]:
        return await each(fails, range(4), limit=2)

    run = run_workflow(body, steps={fails: Takes(5, fails.function)})
    with pytest.raises(ExceptionGroup) as raised:
        run.result()
    assert "ValueError: one" in str(raised.value.exceptions)
    assert len(run.calls) <= 2


def test_no_place_at_all_is_refused():
    @workflow
    async def body() -> list[int]:
        return await each(label, [1], limit=0)

    with pytest.raises(ValueError, match="limit is 0: give an integer of 1 or more"):
        run_workflow(body).result()


@workflow
async def survey(order: str) -> str:
    return f"{order} {await receive('answer', str)}"


@workflow
async def order(name: str) -> list[str]:
    return [await start(survey, name, id=f"survey-{name}"), await start(survey, name, id=f"survey-{name}")]


async def test_a_name_is_no_workflow():
    wrong = cast(Any, "order")

    @workflow
    async def starts() -> str:
        return await start(wrong, "A-1")

    @workflow
    async def calls() -> str:
        return await child(cast(Any, len), "A-1")

    none = pytest.RaisesExc(TypeError, match="pass the @workflow function itself, not ")
    app = App(order)
    for refused in (app.start, app.find):
        with none:
            await refused(wrong)
    with none:
        await app.get("A-1", wrong)
    with none:
        App(wrong)
    for body in (starts, calls):
        with none:
            await trio.to_thread.run_sync(lambda body=body: run_workflow(body).result())
    with none:
        await trio.to_thread.run_sync(app.run, wrong)


def test_in_a_test_what_is_started_is_listed():
    run = run_workflow(order, "A-1")
    assert [(each.workflow, each.arguments, each.id) for each in run.started] == [
        ("survey", {"order": "A-1"}, "survey-A-1")
    ] * 2


async def test_a_started_run_is_one_of_its_own(at: str):
    @workflow
    async def nameless() -> str:
        return await start(survey, "B-1")

    @workflow
    async def clashes() -> str:
        try:
            return await start(survey, "other", id="survey-A-1")
        except StartRefused as error:
            return f"refused: {error}"

    async with App(order, survey, nameless, clashes, at=at) as app:
        first, second = await (await app.start(order, "A-1")).result(BOUND_S)
        assert first == second == (await app.get("survey-A-1", survey)).instance_id
        started = await app.get("survey-A-1", survey)
        await started.send("answer", "good")
        assert await started.result(BOUND_S) == "A-1 good"
        unnamed = await (await app.start(nameless)).result(BOUND_S)
        assert await (await app.get(unnamed)).status() in ("ACTIVE", "WAITING")
        with trio.fail_after(BOUND_S):
            said = await (await app.start(clashes)).result()
        assert said == (
            "refused: id: 'survey-A-1' is the id of a run that was started with other arguments: "
            'order is "other" and was "A-1". Give the same ones, or another id'
        )
