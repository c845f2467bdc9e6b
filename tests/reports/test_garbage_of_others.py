"""What finalizers, the garbage collector and the unraisable hook do while a workflow function runs is not its doing."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, contextmanager
from pathlib import Path

import pytest

from penstock.durable import ForeignAwait, sleep, step, workflow
from penstock.testing import run_workflow

SELF = Path(__file__)


class Cycle:
    """In a cycle, so that only the collector ends it."""

    def __init__(self, holds: object) -> None:
        self.holds, self.me = holds, self


class Reads:
    def __del__(self) -> None:
        SELF.read_bytes()


class Fails:
    def __del__(self) -> None:
        raise ValueError("from a finalizer")


left: list[object] = []


@step
def litter() -> int:
    """What a step leaves behind for others to sweep up."""
    for _ in range(20):
        Cycle(tempfile.TemporaryDirectory(prefix="penstock-litter"))
        Cycle(Reads())
        Cycle(Fails())
    left.extend([Reads(), Fails(), tempfile.TemporaryDirectory(prefix="penstock-litter")])
    return 1


@workflow
async def healthy() -> int:
    total = 0
    for _ in range(10):
        total += await litter()
        garbage = [Cycle([]) for _ in range(100)]
        del garbage
        left.clear()  # the last reference goes here, and the finalizer runs
        await sleep("1 ms")
    return total


@workflow
async def opens_a_file() -> str:
    garbage = [Cycle([]) for _ in range(10)]
    del garbage
    with SELF.open() as file:  # noqa: ASYNC230 - refused
        return file.readline()


@contextmanager
def eager_collector() -> Generator[None]:
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@pytest.mark.filterwarnings("ignore")
def test_a_healthy_run_goes_on_while_others_garbage_is_collected() -> None:
    with eager_collector():
        assert run_workflow(healthy).result() == 10
    assert run_workflow(healthy).result() == 10


def test_a_function_that_opens_a_file_is_still_found() -> None:
    with eager_collector(), pytest.raises(ForeignAwait, match=r"test_garbage_of_others.py:\d+ uses open"):
        run_workflow(opens_a_file)


async def lines() -> AsyncGenerator[int]:
    try:
        for number in range(3):
            yield number
    finally:
        await sleep("1 s")


@workflow
async def leaves_it() -> int:
    async for number in lines():
        if number == 1:
            break
    return 1


@workflow
async def closes_it() -> int:
    async with aclosing(lines()) as numbers:
        async for number in numbers:
            if number == 1:
                break
    return 2


async def quiet() -> AsyncGenerator[int]:
    try:
        yield 1
    finally:
        left.append("closed")


@workflow
async def leaves_a_quiet_one() -> list[int]:
    left.clear()
    async for _ in quiet():
        break
    return [len(left)]


def test_a_generator_that_awaits_in_its_clean_up_needs_aclosing() -> None:
    with pytest.raises(
        ForeignAwait, match=r"test_garbage_of_others.py:\d+ awaits in the clean-up of lines\(\).*aclosing"
    ):
        run_workflow(leaves_it)
    assert run_workflow(closes_it).result() == 2


def test_a_generator_that_does_not_await_is_closed_at_once() -> None:
    assert run_workflow(leaves_a_quiet_one).result() == [1]
