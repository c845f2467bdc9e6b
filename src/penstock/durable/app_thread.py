"""An `App` at work in a thread of its own, with a Trio loop that runs no step: one that blocks delays no heartbeat.

`blocking` has calls that block, for programs without a loop. Under asyncio and Trio calls of the `App` and its runs are
awaited: a `Portal` makes each in the app's loop, and the caller's loop goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

import trio
import trio.lowlevel

from penstock.durable.step_loop import Calls
from penstock.kernel.operation import Outcome

P = ParamSpec("P")
T = TypeVar("T")
NOT_SERVING = "this app does not serve any more"


class AppThread:
    """The thread. ``failed`` is what ended it early; ``on_end`` is called in it, last."""

    def __init__(
        self,
        opened: Callable[[], AbstractAsyncContextManager[None]],
        on_end: Callable[[BaseException | None], None] = lambda failed: None,
    ) -> None:
        """``opened``: the app at work for the block."""
        self._opened, self._on_end = opened, on_end
        self.opened: Future[trio.lowlevel.TrioToken] = Future()
        self._leave: Future[Callable[[], None]] = Future()
        self.failed: BaseException | None = None
        self.thread = threading.Thread(target=copy_context().run, args=(self._run,), name="penstock app", daemon=True)
        self.thread.start()

    def leave(self) -> None:
        """Steps may end, then the app is closed. Idempotent."""
        with suppress(trio.RunFinishedError):
            self._leave.result()()

    async def _serve(self) -> None:
        left = trio.Event()
        token = trio.lowlevel.current_trio_token()
        self._leave.set_result(lambda: token.run_sync_soon(left.set))
        async with self._opened():
            self.opened.set_result(token)
            await left.wait()

    def _run(self) -> None:
        try:
            trio.run(self._serve, strict_exception_groups=True)
        except BaseException as error:
            if self.opened.done():
                self.failed = error
            else:
                self.opened.set_exception(only_error(error))
        self._on_end(self.failed)


class Portal:
    """From callers' loops into the app's."""

    def __init__(self, token: trio.lowlevel.TrioToken, claim: Callable[[], None]) -> None:
        """``claim`` raises after a fork, where nobody would answer."""
        self._token, self._claim = token, claim
        self._there: WeakKeyDictionary[object, Calls] = WeakKeyDictionary()  # by the caller's loop
        self._back: WeakKeyDictionary[object, Calls] = WeakKeyDictionary()

    @property
    def is_here(self) -> bool:
        """Return whether the caller is in the app's loop."""
        return trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is self._token

    async def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Awaited there. Cancelled, it is cancelled there, too, and its end is waited for."""
        self._claim()
        scope, found = trio.CancelScope(), list[Outcome]()
        caller = _trio_caller() if trio.lowlevel.in_trio_run() else _asyncio_caller()
        there = self._there.get(caller.loop)
        if there is None:
            there = self._there[caller.loop] = Calls(self._token.run_sync_soon, caller.later)

        async def run() -> None:
            try:
                with scope:
                    found.append(Outcome(await function()))
            except trio.Cancelled:
                found.append(Outcome(error=RuntimeError(NOT_SERVING)))
                raise
            except BaseException as raised:
                found.append(Outcome(error=raised))
            finally:
                self._back_to(caller).put(caller.end)

        def lost() -> None:
            found.append(Outcome(error=RuntimeError(NOT_SERVING)))
            caller.end()

        there.put(partial(trio.lowlevel.spawn_system_task, run), lost)
        await caller.wait(partial(there.put, scope.cancel))
        assert found, "only the caller that waits here cancels it"
        if found[0].error is not None:
            raise found[0].error
        value: T = found[0].value
        return value

    def _back_to(self, caller: _Caller) -> Calls:
        """What makes calls in the caller's loop. Call it in the app's."""
        found = self._back.get(caller.loop)
        if found is None:
            found = self._back[caller.loop] = Calls(caller.wake)
        return found


class _Caller(NamedTuple):
    """Who waits in another loop. ``wake`` and ``later``: see `Calls`. ``wait`` waits until ``end`` is called there."""

    loop: object
    wake: Callable[[Callable[[], object]], object]
    later: Callable[[Callable[[], object]], object] | None
    end: Callable[[], object]
    wait: Callable[[Callable[[], None]], Awaitable[None]]


def _trio_caller() -> _Caller:
    ended, token = trio.Event(), trio.lowlevel.current_trio_token()
    return _Caller(token, token.run_sync_soon, None, ended.set, partial(event_set, ended))


def _asyncio_caller() -> _Caller:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    end: Callable[[], None] = lambda: None if ended.done() else ended.set_result(None)  # noqa: E731 - one line
    return _Caller(loop, loop.call_soon_threadsafe, loop.call_soon, end, partial(until_ended, ended))


async def event_set(ended: trio.Event, cancel: Callable[[], None]) -> None:
    """Wait for an event. Cancelled, it calls ``cancel`` and waits all the same."""
    try:
        await ended.wait()
    except trio.Cancelled:
        with suppress(trio.RunFinishedError):
            cancel()
        with trio.CancelScope(shield=True):
            await ended.wait()
        raise


async def until_ended(ended: asyncio.Future[T], cancel: Callable[[], None]) -> T:
    """What a future of this loop gives. Cancelled, it calls ``cancel`` and waits for the end all the same."""
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError as error:
            cancelled = error
            with suppress(trio.RunFinishedError):
                cancel()
    if cancelled is not None:
        if not ended.cancelled():
            ended.exception()  # asked for, as what it gave is nobody's any more
        raise cancelled
    return ended.result()


def only_error(error: BaseException) -> BaseException:
    """Return the error that came alone, without the groups around it; else the group."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    [first, *more] = cast("BaseExceptionGroup[BaseException]", error).exceptions
    return error if more else only_error(first)  # pyright: ignore[reportUnknownVariableType] - isinstance leaves it open


class HasPortal(Protocol):
    """An object whose coroutine methods are for the app's loop."""

    @property
    def portal(self) -> Portal | None:
        """None: the caller is there already."""
        ...


S = TypeVar("S", bound=HasPortal)


def in_its_loop(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """A method that can be awaited in any loop."""

    @wraps(method)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        portal = self.portal
        if portal is None or portal.is_here:
            return await method(self, *args, **kwargs)
        return await portal.call(lambda: method(self, *args, **kwargs))

    return call
