"""Published reports of code-first engines as small programs (LOG.md, "Code-first engines"), on a virtual clock.

`run_workflow` replays each run from its journal and `explore` breaks it off at each record, so that a replay which
differs fails the test by itself.
"""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest
import trio

from penstock.client.errors import Conflict
from penstock.durable import (
    App,
    StepFailed,
    TooSlow,
    continue_as_new,
    each,
    first,
    open_nursery,
    patched,
    receive,
    rng,
    sleep,
    step,
    step_info,
    uuid4,
    workflow,
)
from penstock.durable.check import replay_run
from penstock.durable.errors import Unencodable
from penstock.testing import Message, Takes, explore, run_workflow

# pyright: reportUntypedBaseClass=false, reportUnknownMemberType=false


class HttpError(Exception):
    def __init__(self, status_code: int, detail: str | None = None) -> None:
        self.status_code, self.detail = status_code, detail


@dataclass
class Receipt:
    number: int


class Signup(pydantic.BaseModel):
    name: str
    roles: list[str] = []


done: Counter[str] = Counter()


@step
async def act(what: str) -> str:
    done[what] += 1
    return what


@step(retries=2)
async def flaky(what: str) -> str:
    if step_info().attempt < 3:
        raise ConnectionError("reset")
    return what


def test_a_value_without_json_is_refused_not_kept_wrong():
    """DBOS Transact Python 111, Hatchet 2573."""

    @step
    async def gives(kind: str) -> Any:
        return object() if kind == "object" else "a\0b"

    @workflow
    async def takes(kind: str) -> str:
        await gives(kind)
        return "kept"

    for kind in ("object", "nul"):
        error = run_workflow(takes, kind).error
        assert isinstance(error, StepFailed)
        assert error.type_name == Unencodable.__name__


def test_a_message_that_meets_a_continuation_is_kept():
    """go-workflows 493, Inngest 1433."""

    @workflow
    async def account(total: int = 0, count: int = 0) -> int:
        total += await receive("payment", int)
        if count < 9:
            continue_as_new(total, count + 1)
        return total

    messages = [Message("payment", 2**number) for number in range(10)]
    assert run_workflow(account, messages=messages).result() == 2**10 - 1


def test_an_early_message_is_there_for_a_later_wait():
    """Inngest 1433, Restate TypeScript 123."""

    @workflow
    async def waits() -> str:
        await act("send the id")
        won = await first(answer=receive("answer", str), late=sleep("1 min"))
        return won.name

    explore(waits, messages=[Message("answer", "yes")])
    assert run_workflow(waits, messages=[Message("answer", "yes")]).result() == "answer"


def test_steps_of_a_race_are_executed_once():
    """Inngest 4897."""

    @workflow
    async def races() -> list[str]:
        won = await first(a=act("a"), b=act("b"))
        return [won.name, await act("after")]

    done.clear()
    assert run_workflow(races, steps={}).result()[1] == "after"
    assert done["after"] == 1
    assert max(done.values()) == 1
    explore(races)


def test_a_wait_that_lost_a_race_ends_with_it():
    """Inngest JS 1617, Temporal Python 1351."""

    @workflow
    async def races() -> str:
        won = await first(quick=sleep("3 s"), slow=receive("approval", bool), long=sleep("4 h"))
        async with open_nursery() as nursery:
            nursery.start_soon(sleep, "5 h")
            await sleep("1 s")
            nursery.cancel_scope.cancel()
        return won.name

    run = run_workflow(races)
    assert run.result() == "quick"
    assert run.took.total_seconds() == 4


def test_completed_steps_are_not_done_again_beside_retries():
    """Prefect 15750, DBOS Transact Python 260."""

    @workflow
    async def flow() -> list[str]:
        return [await act("one"), await flaky("two"), await act("three")]

    done.clear()
    run = run_workflow(flow)
    assert run.result() == ["one", "two", "three"]
    assert done == {"one": 1, "three": 1}
    assert [call.attempt for call in run.calls if call.step == "flaky"] == [1, 2, 3]
    explore(flow)


def test_a_late_attempt_does_not_run_beside_its_retry():
    """Hatchet 1022."""
    running: list[int] = []

    @step(timeout="5 s", retries=1)
    async def slow() -> str:
        return "slow"

    @workflow
    async def flow() -> str:
        try:
            return await slow()
        except TooSlow as error:
            return type(error).__name__

    def ends() -> str:
        running.append(1)
        return "ended"

    run = run_workflow(flow, steps={slow: Takes("6 s", ends)})
    assert run.result() == "TooSlow"
    assert running == []
    assert [call.attempt for call in run.calls] == [1, 2]


def test_a_thousand_branches_end():
    """Prefect 8770, Prefect 13874."""

    @workflow
    async def flow() -> int:
        found = await each(act, [f"item {number}" for number in range(1_000)], limit=100)
        return len(found)

    assert run_workflow(flow).result() == 1_000


def test_an_error_with_a_constructor_arrives_as_itself():
    """DBOS Transact Python 371 and 730."""

    @step
    async def asks() -> None:
        raise HttpError(status_code=500, detail="down")

    @step(raises=[KeyError])
    async def looks() -> None:
        raise KeyError("x")

    @workflow
    async def flow() -> list[Any]:
        found: list[Any] = []
        for call in (asks, looks):
            try:
                await call()
            except HttpError as error:
                found += [error.status_code, error.detail]
            except KeyError as error:
                found += error.args
        return found

    assert run_workflow(flow).result() == [500, "down", "x"]


def test_dataclasses_and_models_arrive_as_themselves():
    """Temporal Python 578 and 126."""

    @step
    async def pays(signup: Signup) -> Receipt:
        return Receipt(len(signup.roles))

    @workflow
    async def flow(signup: Signup) -> Receipt:
        receipt = await pays(signup)
        assert type(receipt) is Receipt
        return receipt

    assert run_workflow(flow, Signup(name="ann", roles=["a", "b"])).result() == Receipt(2)


def test_each_call_has_its_own_result():
    """Prefect 3476, Prefect 9012."""

    @workflow
    async def flow() -> list[str]:
        return [await act("a"), await act("b"), await act("a"), await flaky("c"), await flaky("d")]

    assert run_workflow(flow).result() == ["a", "b", "a", "c", "d"]


def test_messages_and_completions_replay_in_their_order():
    """Temporal Python 673 and 1578."""

    @workflow
    async def flow() -> list[str]:
        order: list[str] = []

        async def acts(name: str) -> None:
            order.append(await act(f"{name}0"))
            order.append(await act(f"{name}1"))

        async def listens() -> None:
            for _ in range(2):
                order.append(await receive("resume", str))
                order.append(await act("resumed"))

        async with open_nursery() as nursery:
            nursery.start_soon(acts, "a")
            nursery.start_soon(acts, "b")
            nursery.start_soon(listens)
        return order

    messages = [Message("resume", "first", after="1 s"), Message("resume", "second", after="2 s")]
    explore(flow, messages=messages)
    run_workflow(flow, messages=messages).result()


def test_one_more_random_number_changes_no_uuid():
    """Temporal Python 1109."""

    @workflow
    async def before() -> str:
        found = await act(str(uuid4()))
        await sleep("1 h")
        return found

    @workflow(name="before")
    async def after() -> str:
        if patched("jitter"):  # without it, the stream would take the draw of the uuid
            rng().randint(1, 10)
        found = await act(str(uuid4()))
        await sleep("1 h")
        return found

    saved = run_workflow(before).saved
    replayed = replay_run(after, saved)
    assert replayed.finding is None
    run = run_workflow(after)
    assert run.result() != run_workflow(before).result()


def test_the_text_of_an_error_is_the_same_at_replay():
    """Restate TypeScript 656."""

    @step
    async def runs() -> None:
        raise HttpError(503, "away")

    @workflow
    async def flow() -> str:
        try:
            await runs()
        except HttpError as error:
            return await act(f"{error!r} {error.detail} {traceback.format_exception_only(error)}")
        return "no error"

    run_workflow(flow).result()
    explore(flow)


@workflow
async def order(number: int) -> int:
    await act(f"order {number}")
    return number


async def test_a_finished_run_stays_finished_and_readable(database_dsn: str):
    """go-workflows 137, Prefect 12977."""
    async with App(order, at=database_dsn) as app:
        run = await app.start(order, 7, id="order-7")
        assert await run.result() == 7
        for _ in range(2):
            with pytest.raises(Conflict):
                await run.send("late", 1)
    async with App(order, at=database_dsn) as app:
        run = await app.get("order-7", order)
        assert await run.status() == "COMPLETED"
        assert await run.result() == 7


async def test_two_starts_of_one_id_are_one_run(database_dsn: str):
    """Prefect 8880."""
    done.clear()
    found: list[str] = []
    async with App(order, at=database_dsn) as app:

        async def start() -> None:
            run = await app.start(order, 8, id="order-8")
            await run.result()
            found.append(run.instance_id)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(start)
    assert len(set(found)) == 1
    assert done["order 8"] == 1
