"""Attempts of steps, each with its time limit: async ones in the loop for steps, plain functions in threads.

A thread can't be cancelled: it is waited for, and what it gave in the end counts, unless its step says ``abandon``.
Threads of steps have a limiter of their own, so that they never wait for what else the process does in threads.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from types import CoroutineType
from typing import Any, Protocol

import trio

from penstock.durable.errors import NonRetryable
from penstock.durable.kept import class_of
from penstock.durable.step import StepCall, StepInfo, current_transaction, sending, starting
from penstock.durable.step_loop import LoopCall, StepLoop, StepLoopEnded, WrongLibrary, has_cancelled
from penstock.kernel.errors import TooSlow
from penstock.kernel.operation import Outcome


class AttemptOwner(Protocol):
    """Who hears of the end of an attempt in the loop for steps."""

    def loop_call_ended(self, ended: LoopCall, about: Any, began: float) -> None:
        """Hear that it has ended; when it began, by `time.monotonic`. Must not raise."""
        ...


class StepHost:
    """Runs attempts. ``max_tasks`` of them may await at a time and ``max_threads`` be plain functions; others wait.
    Async ones run in ``loop``; without one, as in tests, they run here."""

    def __init__(self, max_threads: int, max_tasks: int, loop: StepLoop | None = None) -> None:
        self._loop = loop
        self._threads = trio.CapacityLimiter(max_threads)
        self._tasks = trio.CapacityLimiter(max_tasks)
        self._on_end = self._ended

    @property
    def threads(self) -> int:
        """Return how many plain functions run now."""
        return self._threads.borrowed_tokens

    @property
    def is_loop_used(self) -> bool:
        """Return whether async steps run now."""
        return self._tasks.borrowed_tokens > 0

    def begin(self, call: StepCall, context: Context, owner: AttemptOwner, about: Any) -> LoopCall | None:
        """Begin an attempt in the loop for steps, in this context. ``owner`` hears here when it has ended, with what it
        is ``about``. None: nothing was begun, as this one needs a task here (`attempt`)."""
        loop = self._loop_of(call)
        if loop is None or not call.step.is_async or call.options.timeout_s is not None:
            return None
        if not self._tasks.available_tokens:
            return None
        try:
            args, kwargs = call.step.parameters.arguments(call.arguments)  # copies: the body keeps its own
        except ValueError:
            return None
        begun = loop.begin(call.step.function, args, kwargs, context, self._on_end)
        begun.about = (owner, about, time.monotonic())
        self._tasks.acquire_on_behalf_of_nowait(begun)
        return begun

    def _ended(self, call: LoopCall) -> None:
        self._tasks.release_on_behalf_of(call)
        owner, about, began = call.about
        owner.loop_call_ended(call, about, began)

    def outcome_of(self, ended: LoopCall, name: str) -> Outcome | None:
        """What the attempt at the step of this name gave or raised. None: it was cancelled. Raises `StepLoopEnded`,
        `WrongLibrary`."""
        return self._checked(ended.outcome(), name)

    def _loop_of(self, call: StepCall) -> StepLoop | None:
        """Return the loop in which it awaits; None: it awaits here."""
        return None if call.step in (sending, starting) else self._loop

    def _checked(self, outcome: Outcome | None, name: str) -> Outcome | None:
        if outcome is not None and outcome.error is not None and self._loop is not None:
            self._loop.check_library(outcome.error, name)
        return outcome

    async def attempt(self, call: StepCall, info: StepInfo) -> Outcome:
        """What the function gave or raised. Raises `trio.Cancelled` only when it was cancelled and has ended."""
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
            return await self._called(call, partial(call.step.function, *args, **kwargs))
        except (
            KeyboardInterrupt,
            StepLoopEnded,
            WrongLibrary,
        ):  # they are the program's, and nothing that the step gave
            raise
        except BaseException as error:  # SystemExit too: a step does not end the process
            if has_cancelled(error):
                raise
            return Outcome(error=error)

    async def _called(self, call: StepCall, function: Callable[[], Any]) -> Outcome:
        """In a thread, in the loop for steps, or in both: a decorator may hide that the function under it is async."""
        awaited: Callable[[], Awaitable[Any]] = function
        if not call.step.is_async:
            (value,) = await trio.to_thread.run_sync(
                lambda: (function(),), abandon_on_cancel=call.options.abandon, limiter=self._threads
            )  # Trio refuses a coroutine by itself
            if class_of(value) is not CoroutineType:
                return Outcome(value)
            awaited = partial(_itself, value)
        loop = self._loop_of(call)
        if loop is None:
            return Outcome(await awaited())
        outcome = await loop.call(awaited)
        self._checked(outcome, call.name)
        return outcome


def _itself(value: Awaitable[Any]) -> Awaitable[Any]:
    return value
