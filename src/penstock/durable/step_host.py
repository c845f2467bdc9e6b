"""Steps as Trio tasks: one attempt each, with its time limit; a plain function in a thread of its own.

A thread can't be cancelled: it is waited for, and what it gave in the end counts, unless its step says ``abandon``.
Threads of steps have a limiter of their own, so that they never wait for what else the process does in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any

import trio

from penstock.durable.errors import NonRetryable
from penstock.durable.step import StepCall, StepInfo, current_step, current_transaction, sending, starting
from penstock.kernel.errors import TooSlow
from penstock.kernel.operation import Outcome


class StepHost:
    """Runs attempts. ``max_tasks`` of them may await at a time and ``max_threads`` be plain functions; others wait.
    Those that await do so in ``loop``, another thread's, where there is one."""

    def __init__(self, max_threads: int, max_tasks: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._threads = trio.CapacityLimiter(max_threads)
        self._tasks = trio.CapacityLimiter(max_tasks)

    @property
    def threads(self) -> int:
        """How many plain functions run now."""
        return self._threads.borrowed_tokens

    async def attempt(self, call: StepCall, info: StepInfo) -> Outcome:
        """What the function gave or raised. Raises `trio.Cancelled` only when it was cancelled and has ended."""
        current_step.set(info)  # the task is this attempt's own
        if not call.step.is_async:
            return await self._attempt(call, info)
        try:
            self._tasks.acquire_nowait()  # `acquire` would let all other tasks run first
        except trio.WouldBlock:
            await self._tasks.acquire()
        try:
            return await self._attempt(call, info)
        finally:
            self._tasks.release()

    async def _attempt(self, call: StepCall, info: StepInfo) -> Outcome:
        if call.step.is_transaction:
            return await current_transaction.get()(call, info, self._threads)
        limit_s = call.options.timeout_s
        try:
            if limit_s is None:
                return await self._outcome(call)
            with trio.move_on_after(limit_s):
                return await self._outcome(call)
        except BaseExceptionGroup as group:  # what is left when the scope has taken out its `Cancelled`
            if has_cancelled(group):
                raise
            return Outcome(error=group)
        return Outcome(error=TooSlow(f"{call.name} took longer than {limit_s:g} s"))

    async def _outcome(self, call: StepCall) -> Outcome:
        try:
            args, kwargs = call.step.parameters.arguments(call.arguments)  # copies: the body keeps its own
        except ValueError as error:
            return Outcome(error=NonRetryable(f"{call.name} does not take its arguments: {error}"))
        try:
            if call.step.is_async and self._loop is not None and call.step not in (sending, starting):
                return Outcome(await in_asyncio(self._loop, partial(call.step.function, *args, **kwargs)))
            if call.step.is_async:
                return Outcome(await call.step.function(*args, **kwargs))
            function: partial[Any] = partial(call.step.function, *args, **kwargs)
            abandon = call.options.abandon
            return Outcome(await trio.to_thread.run_sync(function, abandon_on_cancel=abandon, limiter=self._threads))
        except KeyboardInterrupt:  # Ctrl-C is the program's, and nothing that the step gave
            raise
        except BaseException as error:  # SystemExit too: a step does not end the process
            if has_cancelled(error):
                raise
            return Outcome(error=error)


async def in_asyncio(loop: asyncio.AbstractEventLoop, function: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Awaits in a loop of another thread. Cancelled, it is cancelled there, too, and waited for: what it gives all the
    same counts."""
    token, context, ended = trio.lowlevel.current_trio_token(), copy_context(), trio.Event()
    tasks: list[asyncio.Task[Any]] = []

    def begin() -> None:
        tasks.append(loop.create_task(function(), context=context))
        tasks[0].add_done_callback(tell)

    def tell(task: asyncio.Task[Any]) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(ended.set)

    def cancel() -> None:
        tasks[0].cancel()  # it has begun: calls are made in order

    try:
        loop.call_soon_threadsafe(begin)
    except RuntimeError:  # closed: the program ends, and another one begins the step again
        await trio.sleep_forever()
    try:
        await ended.wait()
    except trio.Cancelled:
        loop.call_soon_threadsafe(cancel)
        with trio.CancelScope(shield=True):
            await ended.wait()
        if tasks[0].cancelled():
            raise
    return tasks[0].result()


def has_cancelled(error: BaseException) -> bool:
    """Whether a scope of Trio waits for it."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(trio.Cancelled) is not None  # pyright: ignore[reportUnknownMemberType] - of anything
    return isinstance(error, trio.Cancelled)
