"""asyncio or Trio in a workflow function blocks the run at the user's line, whatever the user catches."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress

import anyio
import httpx
import pytest
import trio

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


async def puts_into_a_queue() -> None:
    queue = asyncio.Queue[int](1)
    await queue.put(1)
    await queue.put(2)


class Ours(asyncio.PriorityQueue[int]):
    pass


async def takes_of_a_queue_of_its_own() -> None:
    await Ours().get()


async def locks() -> None:
    lock = asyncio.Lock()
    async with lock, lock:
        pass


async def takes_a_permit() -> None:
    await asyncio.Semaphore(0).acquire()


async def waits_for_a_condition() -> None:
    condition = asyncio.Condition()
    async with condition:
        await condition.wait_for(lambda: False)


async def awaits_a_future() -> None:
    await asyncio.Future()


async def makes_a_loop() -> None:
    asyncio.new_event_loop()


async def uses_an_executor() -> None:
    await asyncio.get_event_loop().run_in_executor(None, print)


async def connects() -> None:
    await asyncio.open_connection("127.0.0.1", 9)


async def reads_a_stream() -> None:
    await asyncio.StreamReader().read()


async def begins_a_process() -> None:
    await asyncio.create_subprocess_exec("true")


async def asks_over_http() -> None:
    async with httpx.AsyncClient() as client:
        await client.get("http://127.0.0.1:9")


async def waits_with_anyio() -> None:
    await anyio.Event().wait()


async def limits_with_anyio() -> None:
    with anyio.fail_after(1):
        await sleep(1)


async def goes_to_a_thread_with_anyio() -> None:
    await anyio.to_thread.run_sync(print)


async def runs_trio() -> None:
    trio.run(trio.sleep, 0)


async def is_a_guest_of_another_loop() -> None:
    trio.lowlevel.start_guest_run(trio.sleep, 0, run_sync_soon_threadsafe=print, done_callback=print)


async def calls_from_a_thread_of_trio() -> None:
    trio.from_thread.run(trio.sleep, 0)


async def looks_for_a_cancel_of_trio() -> None:
    trio.from_thread.check_cancelled()


class Yields:
    def __await__(self) -> Generator[int]:
        yield 5


async def awaits_what_yields() -> None:
    await Yields()


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
    limits: "asyncio.* in a workflow function",
    takes_of_a_queue: r"asyncio\.Queue\.get .*penstock.durable.open_memory_channel",
    puts_into_a_queue: r"asyncio\.Queue\.put .*penstock.durable.open_memory_channel",
    takes_of_a_queue_of_its_own: r"asyncio\.PriorityQueue\.get .*function\. Move it into a step",
    waits_for_an_event: r"asyncio\.Event\.wait .*penstock.durable.Event",
    locks: r"asyncio\.Lock in .*penstock.durable.Semaphore",
    takes_a_permit: r"asyncio\.Semaphore\.acquire .*penstock.durable.Semaphore",
    waits_for_a_condition: r"asyncio\.Condition\.wait_for in a workflow function\. Move it into a step",
    awaits_a_future: "asyncio's event loop in a workflow function. Move it into a step",
    makes_a_loop: r"asyncio\.new_event_loop in a workflow function",
    uses_an_executor: r"asyncio\.get_event_loop in a workflow function",
    connects: r"asyncio\.open_connection in a workflow function",
    reads_a_stream: r"asyncio\.StreamReader in a workflow function",
    begins_a_process: r"asyncio\.create_subprocess_exec in a workflow function",
    asks_over_http: r"os\.environ \(httpx\.AsyncClient\) in a workflow function",
    waits_with_anyio: r"anyio\.Event in a workflow function",
    limits_with_anyio: r"anyio\.fail_after in a workflow function",
    goes_to_a_thread_with_anyio: r"anyio\.to_thread\.run_sync in a workflow function",
    awaits_what_yields: "something that yields int in a workflow function",
    runs: r"asyncio\.run in a workflow function",
    asks: r"asyncio\.get_running_loop in a workflow function",
    sleeps_on_anyio: "anyio.*Move it into a step",
    runs_trio: r"trio\.run in a workflow function\. Move it into a step",
    is_a_guest_of_another_loop: r"trio.*start_guest_run in a workflow function",
    calls_from_a_thread_of_trio: r"trio.*from_thread_run in a workflow function",
    looks_for_a_cancel_of_trio: r"trio.*check_cancelled in a workflow function",
}
SWALLOWED = [
    case
    for case in CASES
    if "anyio" not in case.__name__ and case not in (sleeps_not_at_all, awaits_what_yields, looks_for_a_cancel_of_trio)
]


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
