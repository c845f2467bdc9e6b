"""The memory of answers: what is read for them, made of them, and not yet taken by their clients. REST and gRPC alike.

An answer is counted from before it is read until it has left: a client that does not read holds what it was given.
Whatever may be refused reserves first (`MemoryReservation.reserve`): a read before it reads, a start before its batch,
a poll before its claim. What was committed is counted without being asked (`MemoryReservation.add`), and is answered.
So the bound may be exceeded by what one batch commits, and then nothing new is let in.

The adapter opens a `MemoryReservation` for each request (`AnswerMemory.open`) and closes it once the answer is gone;
operations find it as `current_reservation()`, which spares each of them a parameter.
"""

from __future__ import annotations

from collections import deque
from contextvars import ContextVar
from typing import Final, NamedTuple

import trio
from msgspec import Struct

from penstock.errors import Overloaded

COPIES: Final = 4
"""So often variables are in memory while an answer is made: as they come from the database, as text, as bytes, and in
the answer. Counted for as long as the answer lives."""
SMALL_BYTES: Final = 65_536
"""Answers up to here may use all of the memory, larger ones four fifths of it."""
WAIT_SECONDS: Final = 2.0
"""How long a read waits for memory before it is refused."""

_TOO_FULL: Final = "too many large answers are being sent; try again later"


class AnswerMemory:
    """The bytes of all answers of one engine, and the bound on them."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._large_max_bytes = max_bytes * 4 // 5
        self.waiting: deque[PendingReservation] = deque()

    def open(self) -> MemoryReservation:
        """Return a reservation of the request that the current task serves."""
        reservation = MemoryReservation(self)
        _current.set(reservation)
        return reservation

    @property
    def free_bytes(self) -> int:
        """What a large answer may still take."""
        return self._large_max_bytes - self.used_bytes

    def fits(self, size_bytes: int) -> bool:
        """Return whether so many more may be held. What is larger than half of the bound is let in at half of it:
        nothing may be too large for ever."""
        most = self.max_bytes if size_bytes <= SMALL_BYTES else self._large_max_bytes
        return self.used_bytes + min(size_bytes, self.max_bytes // 2) <= most

    def release(self, size_bytes: int) -> None:
        """So many are held no more."""
        self.used_bytes -= size_bytes
        if self.waiting:
            self.let_in()

    def let_in(self) -> None:
        """Let in as many of those who wait as there is room for."""
        while self.waiting and self.fits(self.waiting[0].size_bytes):
            first = self.waiting.popleft()
            first.reservation.add(first.size_bytes)
            first.let_in.set()


class MemoryReservation(Struct, eq=False):
    """What one request holds. Closed by whoever opened it; closing gives all of it back."""

    memory: AnswerMemory
    bytes: int = 0
    over: bool = False
    """Its request has ended: what a batch commits for it yet is nobody's answer, and would be held for ever."""

    def reserve(self, size_bytes: int) -> None:
        """Hold so many more. Raises Overloaded when there is no room."""
        if not self.memory.fits(size_bytes):
            raise Overloaded(_TOO_FULL)
        self.add(size_bytes)

    def add(self, size_bytes: int) -> None:
        """Hold so many more, room or not: of what was committed."""
        if self.over:
            return
        self.bytes += size_bytes
        self.memory.used_bytes += size_bytes

    async def wait(self, size_bytes: int) -> None:
        """Hold so many more as soon as there is room, in the order of coming. Hold nothing that others wait for."""
        memory = self.memory
        if not memory.waiting and memory.fits(size_bytes):
            self.add(size_bytes)
            return
        entry = PendingReservation(self, size_bytes, trio.Event())
        memory.waiting.append(entry)
        try:
            await entry.let_in.wait()
        finally:
            if not entry.let_in.is_set():
                memory.waiting.remove(entry)
                memory.let_in()

    async def reserve_soon(self, size_bytes: int) -> None:
        """`wait` for a moment. Raises Overloaded when there is still no room."""
        with trio.move_on_after(WAIT_SECONDS) as patience:
            await self.wait(size_bytes)
        if patience.cancelled_caught:
            raise Overloaded(_TOO_FULL)

    def keep(self, size_bytes: int) -> None:
        """Hold only so many from now on."""
        if size_bytes < self.bytes:
            self.memory.release(self.bytes - size_bytes)
            self.bytes = size_bytes

    def close(self) -> None:
        """Hold nothing any more. Idempotent."""
        if self.bytes:
            memory = self.memory
            memory.used_bytes -= self.bytes
            self.bytes = 0
            if memory.waiting:
                memory.let_in()

    def end(self) -> None:
        """`close`, of a request that has ended."""
        self.over = True
        self.close()


class PendingReservation(NamedTuple):
    """A reservation that waits for free memory."""

    reservation: MemoryReservation
    size_bytes: int
    let_in: trio.Event


_unbounded: Final = MemoryReservation(AnswerMemory(1 << 62))
_current: ContextVar[MemoryReservation] = ContextVar("answer_reservation", default=_unbounded)


def current_reservation() -> MemoryReservation:
    """Return the reservation of the request that the current task serves; outside of any an unbounded one."""
    return _current.get()
