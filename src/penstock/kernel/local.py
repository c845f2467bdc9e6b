"""Event, Semaphore and memory channel between branches of one run: derived from the journal, so they cost no record.

Semantics are Trio's, checkpoints included: what waits can be cancelled; what happens at once looks for a cancel
first and yields afterwards.
"""

from __future__ import annotations

from collections import deque
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.kernel.current import current_branch
from penstock.kernel.operation import (
    CHECKPOINT,
    NOTHING,
    TAKEN_IN_TURN,
    Outcome,
    ParkBranch,
    ShieldedYield,
    Supply,
    Take,
    block,
)

if TYPE_CHECKING:
    from penstock.kernel.branch import Branch

T = TypeVar("T")


class EndOfChannel(Exception):
    """All senders are closed and nothing is left to receive."""


class BrokenChannel(Exception):
    """All receivers are closed: nobody will take what is sent."""


class ClosedChannel(Exception):
    """This end of the channel was closed here."""


class WouldBlock(Exception):
    """A ``…_nowait`` call would have to wait."""


def _hands_over() -> bool:
    """Return whether what is delivered now follows the rules of before: see `TAKEN_IN_TURN`."""
    branch = current_branch()
    return branch is not None and branch.kernel.rules < TAKEN_IN_TURN


async def _check_cancel() -> None:
    branch = current_branch()
    assert branch is not None
    if branch.scope.effective:
        await block(CHECKPOINT)


def _resume_first(waiters: dict[Branch, Any], value: object = None) -> Any:
    """Takes out who has waited longest; gives what stood beside it."""
    branch = next(iter(waiters))
    beside = waiters.pop(branch)
    branch.kernel.resume(branch, value)
    return beside


def _answer_first(waiters: dict[Branch, Take], outcome: Outcome) -> None:
    """Hands it to who has waited longest."""
    branch = next(iter(waiters))
    del waiters[branch]
    branch.operation = None
    branch.kernel.answer(branch, outcome)


class Event:
    """Waited for by any number of branches; set once."""

    __slots__ = ("_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._waiters: dict[Branch, Any] = {}

    def is_set(self) -> bool:
        """Return whether `set` was called."""
        return self._set

    def set(self) -> None:
        """Let all branches that wait go on. A second call changes nothing."""
        self._set = True
        while self._waiters:
            _resume_first(self._waiters)

    async def wait(self) -> None:
        """Wait until it is set."""
        await block(CHECKPOINT if self._set else ParkBranch(self._waiters))


class Semaphore(Supply):
    """At most ``initial_value`` branches inside at once; first come, first served. A permit is taken when the branch
    runs again that waited for it: one that is cancelled by then leaves it to the next."""

    __slots__ = ("_max", "_value")

    def __init__(self, initial_value: int, *, max_value: int | None = None) -> None:
        counts: dict[str, object] = {"initial_value": initial_value, "max_value": 0 if max_value is None else max_value}
        for option, given in counts.items():
            if not isinstance(given, int):
                raise TypeError(f"{option} is {type(given).__name__}: give an integer")
        if initial_value < 0:
            raise ValueError(f"initial_value is {initial_value}: it must be >= 0")
        if max_value is not None and max_value < initial_value:
            raise ValueError("max_value must be >= initial_value")
        super().__init__()
        self._value, self._max = initial_value, max_value

    def has_free(self) -> bool:
        """Return whether somebody may come in at once."""
        return self._value > self.due

    def take(self, take: Take) -> Outcome:
        """Give a permit to the branch that waits for it."""
        self._value -= 1
        return NOTHING

    @property
    def value(self) -> int:
        """Return how many may still come in."""
        return self._value - self.due

    def acquire_nowait(self) -> None:
        """Take a permit, or raise `WouldBlock`."""
        if not self.has_free():
            raise WouldBlock
        self._value -= 1

    async def acquire(self) -> None:
        """Take a permit, and wait for one if there is none."""
        await _check_cancel()
        if _hands_over() and self._value > 0:
            self._value -= 1
            await block(ShieldedYield())
        else:
            await block(Take(self))

    def release(self) -> None:
        """Give a permit back. The branch that has waited longest gets it."""
        if self.waiters and _hands_over():
            _answer_first(self.waiters, NOTHING)
            return
        if not self.waiters and self._max is not None and self.value >= self._max:
            raise ValueError("semaphore released too many times")
        self._value += 1
        self.offer()

    async def __aenter__(self) -> Semaphore:
        await self.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class _Channel(Supply, Generic[T]):
    """What the two ends share."""

    __slots__ = ("items", "open_receivers", "open_senders", "room", "senders")

    def __init__(self, room: float) -> None:
        super().__init__()
        self.room = room
        self.items: deque[T] = deque()
        self.senders: dict[Branch, Any] = {}  # who waits to send, beside its value
        self.open_senders = self.open_receivers = 1

    def has_free(self) -> bool:
        return len(self.items) + len(self.senders) > self.due

    def hold(self) -> None:
        if len(self.items) < self.due:
            self.fill()

    def fill(self) -> None:
        """What somebody waits to send is in the channel."""
        self.items.append(_resume_first(self.senders)[0])

    def take(self, take: Take) -> Outcome:
        assert isinstance(take, _TakeItem)
        if take.end.is_closed:
            return Outcome(error=ClosedChannel())
        return Outcome(self.items.popleft()) if self.items else Outcome(error=EndOfChannel())

    def offer(self) -> None:
        super().offer()
        while self.waiters and not (self.items or self.senders or self.open_senders):
            _answer_first(self.waiters, Outcome(error=EndOfChannel()))


class _TakeItem(Take):
    """An item of a channel, at one of its ends."""

    __slots__ = ("end",)

    def __init__(self, supply: Supply, end: MemoryReceiveChannel[Any]) -> None:
        super().__init__(supply)
        self.end = end


class MemorySendChannel(Generic[T]):
    """The sending end of `open_memory_channel`."""

    __slots__ = ("_channel", "_closed")

    def __init__(self, channel: _Channel[T]) -> None:
        self._channel, self._closed = channel, False

    def send_nowait(self, value: T) -> None:
        """Send an item, or raise `WouldBlock` if there is no free place and nobody waits."""
        channel = self._channel
        if self._closed:
            raise ClosedChannel
        if not channel.open_receivers:
            raise BrokenChannel
        if channel.waiters and _hands_over():
            _answer_first(channel.waiters, Outcome(value))
        elif channel.waiters or (not channel.senders and len(channel.items) - channel.due < channel.room):
            channel.items.append(value)
            channel.offer()
        else:
            raise WouldBlock

    async def send(self, value: T) -> None:
        """Send an item, and wait for a free place. Raises `BrokenChannel` if no receiver is left."""
        await _check_cancel()
        try:
            self.send_nowait(value)
        except WouldBlock:
            if error := await block(ParkBranch(self._channel.senders, (value, self))):
                raise error from None
        else:
            await block(ShieldedYield())

    def clone(self) -> MemorySendChannel[T]:
        """Return another sending end. The channel ends when all are closed."""
        if self._closed:
            raise ClosedChannel
        self._channel.open_senders += 1
        return MemorySendChannel(self._channel)

    def close(self) -> None:
        """Close this end: it sends nothing more. A second call changes nothing."""
        if self._closed:
            return
        self._closed = True
        senders = self._channel.senders
        for branch in [branch for branch, (_, end) in senders.items() if end is self]:
            del senders[branch]
            branch.kernel.resume(branch, ClosedChannel())
        self._channel.open_senders -= 1
        self._channel.offer()

    def __enter__(self) -> MemorySendChannel[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> MemorySendChannel[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class MemoryReceiveChannel(Generic[T]):
    """The receiving end of `open_memory_channel`; an asynchronous iterator. An item is taken when the branch runs again
    that waited for it: one that is cancelled by then leaves it in the channel."""

    __slots__ = ("_channel", "is_closed")

    def __init__(self, channel: _Channel[T]) -> None:
        self._channel, self.is_closed = channel, False

    def receive_nowait(self) -> T:
        """Return the oldest item, or raise `WouldBlock`."""
        channel = self._channel
        if self.is_closed:
            raise ClosedChannel
        if channel.senders:
            channel.fill()
        if len(channel.items) > channel.due:
            value = channel.items[channel.due]
            del channel.items[channel.due]  # those before it are for branches that were woken
            return value
        if not channel.open_senders and not channel.items:
            raise EndOfChannel
        raise WouldBlock

    async def receive(self) -> T:
        """Return the oldest item, and wait for one. Raises `EndOfChannel` if nothing will come."""
        await _check_cancel()
        channel = self._channel
        if self.is_closed:
            raise ClosedChannel
        if not (channel.items or channel.senders or channel.open_senders):
            raise EndOfChannel
        if _hands_over() and channel.has_free():
            value = self.receive_nowait()
            await block(ShieldedYield())
            return value
        taken: T = await block(_TakeItem(channel, self))
        return taken

    def clone(self) -> MemoryReceiveChannel[T]:
        """Return another receiving end."""
        if self.is_closed:
            raise ClosedChannel
        self._channel.open_receivers += 1
        return MemoryReceiveChannel(self._channel)

    def close(self) -> None:
        """Close this end: it takes nothing more. A second call changes nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        waiters = self._channel.waiters
        for branch in [branch for branch, take in waiters.items() if isinstance(take, _TakeItem) and take.end is self]:
            del waiters[branch]
            branch.operation = None
            branch.kernel.answer(branch, Outcome(error=ClosedChannel()))
        self._channel.open_receivers -= 1
        if not self._channel.open_receivers:
            while self._channel.senders:
                _resume_first(self._channel.senders, BrokenChannel())
            self._channel.items.clear()

    def __aiter__(self) -> MemoryReceiveChannel[T]:
        return self

    async def __anext__(self) -> T:
        try:
            return await self.receive()
        except EndOfChannel:
            raise StopAsyncIteration from None

    def __enter__(self) -> MemoryReceiveChannel[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> MemoryReceiveChannel[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def open_channel(room: float) -> tuple[MemorySendChannel[Any], MemoryReceiveChannel[Any]]:
    """Both ends of a channel that keeps at most ``room`` values nobody has taken yet."""
    if not isinstance(room, int) and room != inf:
        raise TypeError(f"max_buffer_size is {type(room).__name__}: give an integer, or math.inf")
    if room < 0:
        raise ValueError(f"max_buffer_size is {room}: it must be >= 0")
    channel: _Channel[Any] = _Channel(room)
    return MemorySendChannel(channel), MemoryReceiveChannel(channel)
