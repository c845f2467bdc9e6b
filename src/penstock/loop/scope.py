"""Ends what a library leaves behind in an asyncio loop: its tasks and its connections. For aiokafka.

aiokafka's ``stop()`` waits for brokers; cut short, it leaves tasks that go on connecting, and sockets that nobody
closes. Here every task and every connection of a loop is noted, so that they can be ended without a look into the
library. A leaf of the standard library only: engine and Python worker both use it, in loops that are theirs alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakSet

END_TIMEOUT_S: Final = 0.5


class LoopScope:
    """Tasks and connections: all of a loop (made by ``install``), or those begun below a task that entered it."""

    def __init__(self) -> None:
        self.ended = False
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._transports: WeakSet[asyncio.BaseTransport] = WeakSet()

    @classmethod
    def install(cls) -> LoopScope:
        """Note everything in the running loop from now on; call it once per loop. The scope of the whole loop."""
        loop = asyncio.get_running_loop()
        root = cls()
        create_connection: Any = loop.create_connection

        def make_task(
            loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **more: Any
        ) -> asyncio.Task[Any]:
            task = asyncio.Task(work, loop=loop, **more)
            for scope in _scopes(root):
                scope._tasks.add(task)
            return task

        async def connect(*arguments: Any, **more: Any) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
            scopes = _scopes(root)
            transport, protocol = await create_connection(*arguments, **more)
            for scope in scopes:
                scope._transports.add(transport)
            if any(scope.ended for scope in scopes):
                transport.abort()
                raise ConnectionAbortedError("the client is being closed")
            return transport, protocol

        loop.set_task_factory(make_task)
        setattr(loop, "create_connection", connect)  # noqa: B010 - a loop of our own
        return root

    def enter(self) -> None:
        """What the calling task begins from now on belongs to this scope, and so does what that begins."""
        _current.set(self)

    async def end(self) -> None:
        """Cancel the tasks but the calling one, abort the connections, refuse new ones. Takes 0.5 s at most."""
        self.ended = True
        calling = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not calling and not task.done()]
        for task in tasks:
            task.cancel()
        for transport in list(self._transports):
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
        await asyncio.sleep(0)  # connections tell their owners
        if tasks:
            await asyncio.wait(tasks, timeout=END_TIMEOUT_S)


_current: ContextVar[LoopScope | None] = ContextVar("penstock_loop_scope", default=None)


def _scopes(root: LoopScope) -> tuple[LoopScope, ...]:
    current = _current.get()
    return (root,) if current is None else (root, current)
