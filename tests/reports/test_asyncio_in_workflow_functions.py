"""asyncio in a workflow function blocks the run at the user's line, whatever the user catches."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress

import anyio
import pytest

from penstock.durable import ForeignAwait, sleep, workflow
from penstock.testing import run_workflow


async def sleeps() -> None:
    await asyncio.sleep(1)


async def sleeps_not_at_all() -> None:
    await asyncio.sleep(0)


async def gathers() -> None:
    await asyncio.gather(sleep(1), sleep(2))


async def waits_for() -> None:
    await asyncio.wait_for(sleep(1), 2)


async def groups() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(sleep(1))


async def in_a_thread() -> None:
    await asyncio.to_thread(print)


async def limits() -> None:
    async with asyncio.timeout(1):
        await sleep(1)


async def takes_of_a_queue() -> None:
    await asyncio.Queue[int]().get()


async def waits_for_an_event() -> None:
    await asyncio.Event().wait()


async def runs() -> None:
    asyncio.run(asyncio.sleep(0))


async def asks() -> None:
    asyncio.get_running_loop()


async def sleeps_on_anyio() -> None:
    await anyio.sleep(1)


pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited", "ignore:Exception ignored in")


@pytest.fixture(autouse=True)
def collect() -> Generator[None]:
    """What was never awaited is told of here, and in no other test."""
    yield
    gc.collect()


CASES: dict[Callable[[], Awaitable[None]], str] = {
    sleeps: r"asyncio.sleep .*penstock.durable.sleep",
    sleeps_not_at_all: "awaits ",
    gathers: "asyncio.*penstock.durable.open_nursery or each",
    waits_for: "asyncio.wait_for .*penstock.durable.fail_after",
    groups: "asyncio.TaskGroup .*penstock.durable.open_nursery",
    in_a_thread: "asyncio.to_thread .*Move it into a step",
    limits: "asyncio.* in a workflow body",
    takes_of_a_queue: "asyncio.* in a workflow body",
    waits_for_an_event: "asyncio.* in a workflow body",
    runs: "asyncio.* in a workflow body",
    asks: "asyncio in a workflow body",
    sleeps_on_anyio: "anyio.*Move it into a step",
}
SWALLOWED = [case for case in CASES if case not in (sleeps_on_anyio, sleeps_not_at_all)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_it_is_blocked_at_the_users_line(case: Callable[[], Awaitable[None]]) -> None:
    @workflow
    async def body() -> None:
        await case()

    with pytest.raises(ForeignAwait, match=rf"^test_asyncio_in_workflow_functions.py:\d+ .*{CASES[case]}"):
        run_workflow(body)


@pytest.mark.parametrize("case", SWALLOWED, ids=lambda case: case.__name__)
def test_what_the_user_catches_is_blocked_all_the_same(case: Callable[[], Awaitable[None]]) -> None:
    @workflow
    async def body() -> None:
        with suppress(Exception):
            await case()

    with pytest.raises(ForeignAwait, match=r"^test_asyncio_in_workflow_functions.py:\d+ "):
        run_workflow(body)


def test_a_log_line_asks_for_no_loop() -> None:
    @workflow
    async def body() -> int:
        logging.getLogger("shop").warning("hello")
        await sleep(1)
        return 1

    assert run_workflow(body).result() == 1


def test_programs_of_asyncio_are_as_they_were() -> None:
    async def main() -> list[int]:
        async def one(number: int) -> int:
            await asyncio.sleep(0)
            return number

        async with asyncio.timeout(5):
            return await asyncio.gather(one(1), one(2))

    assert asyncio.run(main()) == [1, 2]
