"""How psycopg's generators are driven by Trio, and the lock around them.

psycopg keeps the protocol in generators: one yields what it waits for (readable, writable) and is sent what came
true. psycopg's own drivers are threads and asyncio; these two are Trio's. Relies on psycopg within the range of
`penstock.store` (the generators' signatures are private and changed within 3.3). Must not know what a statement is:
what becomes of an interrupted generator is for `connection.py` to decide.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Generic, TypeVar

import psycopg
import trio
from psycopg.waiting import Ready, Wait

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from psycopg.abc import PQGen, PQGenConn

    WaitFunction = Callable[[int], Awaitable[None]]

CLEANUP_TIMEOUT_S = 5.0
"""Bound of every shielded clean-up (cancel, ROLLBACK, CLOSE). Past it the connection is closed."""

RV = TypeVar("RV")


class Drive(Generic[RV]):
    """One generator on its way to its end, on a socket that does not change.

    Cancellation interrupts `run` but not the generator, which merely stays suspended: `run` again goes on where it
    was. `waits_for` is what the generator last asked for, None while it has not started and while it runs; so None
    after an interruption means that the generator itself was hit (KeyboardInterrupt) and is of no more use.
    `nothing_sent`: it has not asked for the socket yet, so what it raised is about its parameters. `was_woken`: its end
    is that somebody has said that the socket gets closed.
    """

    __slots__ = ("fd", "generator", "nothing_sent", "waits_for", "was_woken")

    def __init__(self, generator: PQGen[RV], fd: int) -> None:
        self.generator = generator
        self.fd = fd
        self.waits_for: Wait | None = None
        self.nothing_sent = True
        self.was_woken = False

    async def run(self) -> RV:
        """Return the generator's result. Raises what it raises; `psycopg.OperationalError` if the socket gets
        closed."""
        generator, fd = self.generator, self.fd
        waits_for = self.waits_for
        try:
            if waits_for is None:
                waits_for = next(generator)
                self.nothing_sent = False
            while True:
                self.waits_for = waits_for
                ready = await wait_ready(fd, waits_for)
                self.waits_for = None
                waits_for = generator.send(ready)
        except StopIteration as end:
            result: RV = end.value
            return result
        except trio.ClosedResourceError:
            self.was_woken = True
            raise psycopg.OperationalError("the connection was closed by another task") from None
        except OSError as error:
            raise psycopg.OperationalError(f"the connection's socket failed: {error}") from error


async def drive_connecting(generator: PQGenConn[RV]) -> RV:
    """Return the result of a generator that names its socket at every step (connecting, requesting a cancel).

    Interrupted, the generator is closed, and its socket with it.
    """
    try:
        fd, waits_for = next(generator)
        while True:
            fd, waits_for = generator.send(await wait_ready(fd, waits_for))
    except StopIteration as end:
        result: RV = end.value
        return result
    except OSError as error:
        raise psycopg.OperationalError(f"the connection's socket failed: {error}") from error
    finally:
        generator.close()


async def wait_ready(fd: int, waits_for: Wait) -> Ready:
    """Wait until ``fd`` is ready for (any of) what is asked. Always a checkpoint."""
    if waits_for == Wait.R:
        await trio.lowlevel.wait_readable(fd)
        return Ready.R
    # Nearly always writable at once: a poll(2) is 2 µs, epoll and back 25, a nursery of two waits 100.
    await trio.lowlevel.checkpoint()
    poll = select.poll()
    poll.register(fd, select.POLLOUT | (select.POLLIN if waits_for == Wait.RW else 0))
    if events := poll.poll(0):
        seen = events[0][1]
        ready = (Ready.R if seen & select.POLLIN else 0) | (Ready.W if seen & select.POLLOUT else 0)
        # POLLERR, POLLHUP alone: let libpq find out.
        return Ready(ready or waits_for)
    if waits_for == Wait.W:
        await trio.lowlevel.wait_writable(fd)
        return Ready.W
    return await _wait_readable_or_writable(fd)


async def _wait_readable_or_writable(fd: int) -> Ready:
    ready = 0
    closed = False

    async def wait_for(wait: WaitFunction, flag: int, scope: trio.CancelScope) -> None:
        nonlocal ready, closed
        try:
            await wait(fd)
            ready |= flag
        except trio.ClosedResourceError:  # both are told; of each one would come out of the nursery in a group
            closed = True
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for, trio.lowlevel.wait_readable, Ready.R, nursery.cancel_scope)
        nursery.start_soon(wait_for, trio.lowlevel.wait_writable, Ready.W, nursery.cancel_scope)
    if closed:
        raise trio.ClosedResourceError
    return Ready(ready)


class ConnectionLock:
    """For psycopg, which locks once per statement. Of one task at a time: it is free as a rule, and that costs nothing
    (`trio.Lock` takes two checkpoints even then, and enters its owner in a table)."""

    __slots__ = ("_held", "_lot")

    def __init__(self) -> None:
        self._held = False
        self._lot = trio.lowlevel.ParkingLot()

    def take_nowait(self) -> bool:
        """Have it if it is free; to be given back by `give_back`."""
        free = not self._held
        self._held = True
        return free

    async def take(self) -> None:
        """Wait for it. No checkpoint if it is free."""
        while not self.take_nowait():
            await self._lot.park()

    def release(self) -> None:
        """Whoever waits longest may have it now."""
        self._held = False
        if self._lot:
            self._lot.unpark()

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def locked(self) -> bool:
        return self._held
