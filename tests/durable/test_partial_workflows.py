"""Arguments of a workflow in a `functools.partial`: by keyword beside options, and those named as an option."""

from __future__ import annotations

from functools import partial

import pytest

from penstock.durable import App, child, start, step, workflow
from penstock.testing import explore, run_workflow

BOUND_S = 60.0


@workflow
async def names(first: str, id: str = "none", *, delay: str = "none") -> str:
    return f"{first} {id} {delay}"


@workflow
async def calls() -> list[str]:
    reported = await child(partial(names, "a", id="b", delay="c"), id="child-1")
    begun = await start(partial(names, "a", delay="c"), id="start-1")
    return [reported, begun]


@step
async def act(first: str) -> str:
    return first


def test_an_app_starts_a_partial_once(database_dsn: str):
    app = App(names, calls, at=database_dsn)
    with app.in_thread() as shop:
        run = shop.start(partial(names, "a", id="b", delay="c"), id="n-1")
        assert (run.id, run.result(BOUND_S)) == ("n-1", "a b c")
        assert shop.start(names, "a", "b", id="n-2").result(BOUND_S) == "a b none"
        reported, begun = shop.start(calls).result(BOUND_S)
        assert reported == "a b c"
        assert shop.get(begun, names).result(BOUND_S) == "a none c"
        assert {"n-1", "n-2", "child-1", "start-1"} == {run.id for run in shop.find(names)}
    assert App(names, at=database_dsn).run(partial(names, "a", id="b", delay="c"), id="n-1") == "a b c"


def test_in_memory_a_partial_is_the_same():
    assert run_workflow(partial(names, "a", id="b"), seed="s").result() == "a b none"
    assert run_workflow(partial(names, "a"), "b").result() == "a b none"
    assert run_workflow(partial(partial(names, "a"), delay="c"), seed="s").result() == "a none c"
    assert run_workflow(calls).started[0].arguments == {"first": "a", "delay": "c"}
    assert explore(partial(names, "a", id="b"), seed="s").records == 0


@pytest.mark.parametrize("given", [act, partial(act, "a"), partial(str, "a"), "names", None])
def test_what_is_no_workflow_is_refused(given: object):
    with pytest.raises(TypeError, match="pass the @workflow function itself"):
        run_workflow(given)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType] - so


def test_arguments_that_a_partial_has_already_are_refused():
    with pytest.raises(TypeError, match="multiple values for argument 'first'"):
        run_workflow(partial(names, first="a"), "b")
