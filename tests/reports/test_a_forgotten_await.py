"""A call without `await` did nothing, and nobody said so: the run completed with "mail was sent", and no mail.

On e75dc088: `run_workflow(order).result()` is "mail was sent", and the log of an App says nothing.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app as cli
from penstock.durable import (
    App,
    NotAwaited,
    RunCancelled,
    RunFailed,
    Unencodable,
    child,
    continue_as_new,
    each,
    first,
    move_on_after,
    open_nursery,
    receive,
    send,
    sleep,
    start,
    step,
    workflow,
)
from penstock.testing import Message, explore, run_workflow
from tests.runtime.waiting import wait_until

BOUND_S = 60.0


@step
async def mail(to: str) -> str:
    return to


@step
def plain(to: str) -> str:
    return to


@workflow
async def audit(to: str) -> str:
    return await mail(to)


CALLS: dict[str, Callable[[], Any]] = {
    "mail": lambda: mail("ann"),
    "plain": lambda: plain("ann"),
    "late mail": lambda: mail.using(name="late mail")("ann"),
    "child": lambda: child(audit, "ann"),
    "sleep": lambda: sleep(1),
    "receive": lambda: receive("n", str),
    "send": lambda: send("r", "n"),
    "start": lambda: start(audit, "ann"),
    "each": lambda: each(mail, ["ann"]),
    "first": lambda: first(late=sleep(1)),
}


@workflow
async def forgets(which: str) -> str:
    CALLS[which]()
    await sleep(1)
    return "mail was sent"


@pytest.mark.parametrize("which", CALLS)
def test_a_test_says_the_line(which: str):
    line = rf"test_a_forgotten_await.py:\d+ calls {which}\(\) without await"
    with pytest.raises(NotAwaited, match=line):
        run_workflow(forgets, which)
    with pytest.raises(NotAwaited, match=line):
        explore(forgets, which)


@workflow
async def at_the_end() -> str:
    mail("ann")  # pyright: ignore[reportUnusedCoroutine] - the fault
    return "mail was sent"


@workflow
async def kept() -> str:
    sent = mail("ann")
    await sleep(1)
    return f"mail was sent: {bool(sent)}"


@workflow
async def asked() -> str:
    return mail("ann").to  # pyright: ignore[reportAttributeAccessIssue] - the fault


@workflow
async def in_a_branch() -> None:
    async def branch() -> None:
        sleep(1)  # pyright: ignore[reportUnusedCoroutine] - the fault

    async with open_nursery() as nursery:
        nursery.start_soon(branch)


@workflow
async def in_a_child() -> str:
    return await child(at_the_end)


@pytest.mark.parametrize("body", [at_the_end, kept, asked, in_a_branch, in_a_child])
def test_wherever_it_is(body: Any):
    with pytest.raises(NotAwaited, match=r"test_a_forgotten_await.py:\d+ calls (mail|sleep)\(\) without await"):
        run_workflow(body)


@workflow
async def returned() -> Any:
    return mail("ann")


@workflow
async def passed() -> str:
    return await mail(mail("ann"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - the fault


@pytest.mark.parametrize("body", [returned, passed])
def test_a_call_that_is_taken_for_its_value_says_the_line(body: Any):
    with pytest.raises((NotAwaited, Unencodable), match=r"test_a_forgotten_await.py:\d+ calls mail\(\) without await"):
        run_workflow(body).result()


@workflow
async def awaits_all(to: str) -> list[str]:
    later = mail(to)
    await sleep(1)
    found = [await later]
    won = await first(a=receive("n", str), b=sleep("1h"))
    found.append(won.name)
    with move_on_after(1):
        never = mail(to)
        await sleep(2)
        found.append(await never)
    async with open_nursery() as nursery:
        nursery.start_soon(mail, to)
        nursery.start_soon(sleep, 1)
    await each(mail, [to, to])
    found.append(await child(audit, to))
    return found


def test_what_is_awaited_later_or_cancelled_before_is_none():
    messages = [Message("n", "x", after="5 s")]
    assert run_workflow(awaits_all, "ann", messages=messages).result() == ["ann", "a", "ann"]
    explore(awaits_all, "ann", messages=messages)
    gc.collect()


@pytest.mark.parametrize(("body", "args"), [(forgets, ("mail",)), (kept, ())])
def test_in_production_the_run_goes_on_and_is_marked(
    database_dsn: str, caplog: pytest.LogCaptureFixture, body: Any, args: Any
):
    with App(body, at=database_dsn).in_thread() as app:
        run = app.start(body, *args, id="f-1")
        assert str(run.result(BOUND_S)).startswith("mail was sent")
        [mark] = [record for record in run.history() if record["kind"] == "error"]
    reported = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(reported) == 1
    assert re.search(r"test_a_forgotten_await.py:\d+\)? calls mail\(\) without await", reported[0])
    assert "calls mail() without await" in str(mark)


class Declined(Exception):
    """Of a card."""


@workflow
async def waits_after(name: str) -> str:
    CALLS[name]()
    return await receive("go on", str)


@workflow
async def fails_after(name: str) -> None:
    CALLS[name]()
    await sleep(0.01)
    raise Declined("no money")


@workflow
async def gives_what_can_not_be_kept(name: str) -> Any:
    CALLS[name]()
    await sleep(0.01)
    return object()


@workflow
async def goes_on_for_ever(name: str) -> None:
    CALLS[name]()
    await sleep(0.01)
    continue_as_new(lambda: name)


def _marks(run: Any) -> list[str]:
    """What the run's page says of calls without an await."""
    return [str(branch["name"]) for branch in run.tree()["branches"] if branch.get("kind") == "not awaited"]


def _shown(dsn: str, id: str) -> str:
    return CliRunner().invoke(cli, ["runs", "show", id, "--at", dsn]).output


def test_an_open_run_is_marked_too_and_when_another_program_has_it(database_dsn: str):
    text = re.compile(r"test_a_forgotten_await.py:\d+ calls mail\(\) without await")
    with App(waits_after, at=database_dsn).in_thread() as app:
        run = app.start(waits_after, "mail", id="f-2")
        wait_until(lambda: _marks(run))
    assert text.search(_shown(database_dsn, "f-2"))
    with App(waits_after, at=database_dsn).in_thread() as app:
        run = app.get("f-2")
        wait_until(lambda: _marks(run))
        assert len(_marks(run)) == 1
        run.send("go on", "well")
        assert run.result(BOUND_S) == "well"
        [mark] = _marks(run)
    assert text.search(mark)
    assert text.search(_shown(database_dsn, "f-2"))


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        (fails_after, "Declined: no money"),
        (gives_what_can_not_be_kept, "no JSON form"),
        (goes_on_for_ever, "continue_as_new"),
    ],
)
def test_a_run_that_fails_is_marked_beside_its_error(database_dsn: str, body: Any, failure: str):
    with App(body, at=database_dsn).in_thread() as app:
        run = app.start(body, "late mail", id="f-3")
        with pytest.raises(RunFailed, match=failure):
            run.result(BOUND_S)
        [mark] = _marks(run)
    assert re.search(r"test_a_forgotten_await.py:\d+ calls late mail\(\) without await", mark)
    shown = _shown(database_dsn, "f-3")
    assert shown.count("without await") == 1
    assert failure in shown
    assert "NotAwaited" not in shown


def test_a_run_that_is_cancelled_is_marked(database_dsn: str):
    with App(waits_after, at=database_dsn).in_thread() as app:
        run = app.start(waits_after, "child", id="f-4")
        wait_until(lambda: _marks(run))
        run.cancel("enough")
        with pytest.raises(RunCancelled):
            run.result(BOUND_S)
        assert len(_marks(run)) == 1


@workflow
async def forgets_nothing() -> None:
    await mail("ann")


def test_a_run_that_forgets_nothing_has_no_mark(database_dsn: str):
    with App(forgets_nothing, at=database_dsn).in_thread() as app:
        run = app.start(forgets_nothing, id="f-5")
        run.result(BOUND_S)
        assert _marks(run) == []
