"""Whatever a handler ends with fails its job: it neither ends the worker nor sends the job round for ever."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from penstock.client import Failure
from penstock.worker import NonRetryable, Worker
from tests.sdk.conftest import run
from tests.sdk.loops import Run
from tests.sdk.scripted_transport import ScriptedTransport, job

__all__ = ["run"]


class Own(BaseException):
    """What a library may raise to get past `except Exception`."""


def good() -> None:
    """Nothing is wrong with it."""


ERRORS: list[tuple[Callable[[], BaseException], str]] = [
    (lambda: Own("mine"), "Own: mine"),
    (GeneratorExit, "GeneratorExit: "),
    (lambda: SystemExit(3), "SystemExit: 3"),
    (lambda: BaseExceptionGroup("g", [Own("a"), ValueError("b")]), "Own: a"),
    (lambda: BaseExceptionGroup("g", [BaseExceptionGroup("h", [SystemExit(1)])]), "SystemExit: 1"),
    (lambda: BaseExceptionGroup("g", [Own("a"), NonRetryable("never")]), "never"),
    (lambda: BaseExceptionGroup("g", [KeyboardInterrupt("k")]), "KeyboardInterrupt: k"),
]


def worked(run: Run, raise_: Callable[[], BaseException], *, in_thread: bool) -> tuple[list[Failure], list[str]]:
    """A worker whose handler of `bad` raises; then it gets a job of `good`. Failures, and what was completed."""

    async def bad() -> None:
        raise raise_()

    def bad_in_thread() -> None:
        raise raise_()

    async def main() -> tuple[list[Failure], list[str]]:
        transport = ScriptedTransport()
        worker = Worker(transport)
        worker.handler("bad")(bad_in_thread if in_thread else bad)
        worker.handler("good")(good)
        async with worker:
            transport.hand_out(job("1", "bad"))
            await transport.wait_until(lambda: transport.failed)
            transport.hand_out(job("2", "good"))
            await transport.wait_until(lambda: transport.completed)
        assert transport.released == []
        return transport.failed, [done.job_id for done in transport.completed]

    return run(main)


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
@pytest.mark.parametrize(("raise_", "message"), ERRORS, ids=[message for _, message in ERRORS])
def test_it_fails_the_job_and_the_worker_goes_on(
    run: Run, raise_: Callable[[], BaseException], message: str, in_thread: bool
) -> None:
    failed, completed = worked(run, raise_, in_thread=in_thread)
    assert [report.error_message for report in failed] == [message]
    assert failed[0].retryable is (message != "never")
    assert completed == ["2"]


@pytest.mark.parametrize("error", [asyncio.CancelledError(), StopIteration(1), KeyboardInterrupt()], ids=repr)
def test_what_loops_take_for_theirs_fails_a_job(run: Run, error: BaseException) -> None:
    def raise_() -> BaseException:
        return error

    failed, completed = worked(run, raise_, in_thread=True)
    assert len(failed) == 1
    assert completed == ["2"]


@pytest.mark.parametrize("error", [asyncio.CancelledError(), StopIteration(1), StopAsyncIteration()], ids=repr)
def test_what_loops_take_for_theirs_fails_the_job_of_an_async_handler(run: Run, error: BaseException) -> None:
    """Such as of a task that the handler has cancelled, and waits for: the worker has cancelled nothing."""

    def raise_() -> BaseException:
        return error

    failed, completed = worked(run, raise_, in_thread=False)
    assert [report.retryable for report in failed] == [True]
    assert completed == ["2"]


@pytest.mark.parametrize("raises", [False, True])
def test_a_handler_that_cancels_its_own_task_and_waits_for_nothing_ends_alone(run: Run, raises: bool) -> None:
    """Of asyncio: the cancel struck the worker where it awaited next, and it did no other job of that type."""

    async def cancels_itself() -> None:
        if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        if raises:
            raise Own("mine")

    async def main() -> tuple[list[str], list[str]]:
        transport = ScriptedTransport()
        worker = Worker(transport)
        worker.handler("t")(cancels_itself)
        worker.handler("good")(good)
        async with worker:
            transport.hand_out(job("1"))
            await transport.wait_until(lambda: transport.failed or transport.completed)
            transport.hand_out(job("2", "good"))
            with anyio.fail_after(60):
                await transport.wait_until(lambda: any(done.job_id == "2" for done in transport.completed))
        assert transport.released == []
        return [report.error_message for report in transport.failed], [done.job_id for done in transport.completed]

    assert run(main) == ((["Own: mine"], ["2"]) if raises else ([], ["1", "2"]))


def leaves_a_scope_open() -> None:
    anyio.CancelScope().__enter__()


def leaves_a_cancelled_scope_open() -> None:
    anyio.CancelScope().__enter__().cancel()


async def leaves_scopes_open_and_waits() -> None:
    anyio.fail_after(60).__enter__()
    anyio.CancelScope(shield=True).__enter__()
    await anyio.lowlevel.checkpoint()


async def leaves_a_task_group_open() -> None:
    group = await anyio.create_task_group().__aenter__()
    group.start_soon(anyio.sleep, 0.01)


async def leaves_a_scope_open_and_raises() -> None:
    anyio.CancelScope().__enter__()
    raise Own("mine")


@pytest.mark.parametrize(
    "leave",
    [
        leaves_a_scope_open,
        leaves_a_cancelled_scope_open,
        leaves_scopes_open_and_waits,
        leaves_a_task_group_open,
        leaves_a_scope_open_and_raises,
    ],
)
def test_a_handler_that_leaves_a_scope_open_fails_its_job_alone(run: Run, leave: Callable[[], Any]) -> None:
    """Its worker ended, and the next one: the job was given back uncounted."""

    async def leaves() -> None:
        if (waits := leave()) is not None:
            await waits

    async def main() -> tuple[list[str], list[str]]:
        transport = ScriptedTransport()
        worker = Worker(transport)
        worker.handler("t")(leaves)
        worker.handler("good")(good)
        async with worker:
            for number in ("1", "2"):
                transport.hand_out(job(number))
                with anyio.fail_after(60):
                    await transport.wait_until(lambda: len(transport.failed) == int(number))  # noqa: B023 - at once
            transport.hand_out(job("3", "good"))
            with anyio.fail_after(60):
                await transport.wait_until(lambda: transport.completed)
        assert transport.released == []
        return [report.error_message for report in transport.failed], [done.job_id for done in transport.completed]

    failed, completed = run(main)
    assert completed == ["3"]
    assert len(failed) == 2
    expected = "Own: mine" if leave is leaves_a_scope_open_and_raises else "open|corrupted"
    assert all(re.search(expected, message) for message in failed)


def test_errors_of_a_clean_up_do_not_end_the_worker(run: Run) -> None:
    """The handler is cancelled, as its time is over, and raises in a task of its own meanwhile."""

    async def slow() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail_when_cancelled)
            await anyio.sleep_forever()

    async def fail_when_cancelled() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise Own("the clean-up failed")

    async def main() -> list[Failure]:
        transport = ScriptedTransport()
        worker = Worker(transport)
        worker.handler("t", timeout_s=0.01)(slow)
        worker.handler("good")(good)
        async with worker:
            transport.hand_out(job())
            await transport.wait_until(lambda: transport.failed)
            transport.hand_out(job("2", "good"))
            await transport.wait_until(lambda: transport.completed)
        return transport.failed

    [failure] = run(main)
    assert "time limit" in failure.error_message


def test_a_keyboard_interrupt_ends_the_worker_and_counts_the_job(run: Run) -> None:
    """Where nobody handles signals it may be Ctrl-C."""
    transports: list[ScriptedTransport] = []

    async def interrupted() -> None:
        raise KeyboardInterrupt

    async def main() -> Any:
        transport = ScriptedTransport()
        transports.append(transport)
        worker = Worker(transport)
        worker.handler("t")(interrupted)
        transport.hand_out(job())
        await worker.run(handle_signals=False)

    with pytest.raises(BaseException) as ended:
        run(main)
    assert "KeyboardInterrupt" in repr(ended.value)
    [transport] = transports
    assert [report.error_message for report in transport.failed] == ["KeyboardInterrupt: "]
    assert transport.released == []
