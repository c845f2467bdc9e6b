"""A call without `await` did nothing, and nobody said so: the run completed with "mail was sent", and no mail.

On e75dc088: `run_workflow(order).result()` is "mail was sent", and the log of an App says nothing.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any

import pytest

from penstock.durable import (
    App,
    NotAwaited,
    child,
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
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 1
    assert re.search(r"test_a_forgotten_await.py:\d+\)? calls mail\(\) without await", told[0])
    assert "calls mail() without await" in str(mark)
