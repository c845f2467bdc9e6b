"""Event, Semaphore and memory channel between branches of one run: derived from the journal, so they cost no record.

Semantics are Trio's, checkpoints included: what waits can be cancelled; what happens at once looks for a cancel
first and yields afterwards.
"""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.kernel.current import current_branch
from penstock.kernel.operation import Checkpoint, Park, ShieldedYield, block

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


async def _look_for_cancel() -> None:
    branch = current_branch()
    assert branch is not None
    if branch.scope.effective:
        await block(Checkpoint())


def _resume_first(waiters: dict[Branch, Any], value: object = None) -> Any:
    """Takes out who has waited longest; gives what stood beside it."""
    branch = next(iter(waiters))
    beside = waiters.pop(branch)
    branch.kernel.resume(branch, value)
    return beside


def _resume_own(waiters: dict[Branch, Any], end: object, value: object) -> None:
    """Lets those go on who wait at this end of a channel."""
    for branch in [branch for branch, beside in waiters.items() if beside[1] is end]:
        del waiters[branch]
        branch.kernel.resume(branch, value)


class Event:
    """Waited for by any number of branches; set once."""

    __slots__ = ("_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._waiters: dict[Branch, Any] = {}

    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._set

    def set(self) -> None:
        """Lets all who wait go on. Idempotent."""
        self._set = True
        while self._waiters:
            _resume_first(self._waiters)

    async def wait(self) -> None:
        """Until it is set."""
        await block(Checkpoint() if self._set else Park(self._waiters))


class Semaphore:
    """At most ``initial_value`` branches inside at once; first come, first served."""

    __slots__ = ("_max", "_value", "_waiters")

    def __init__(self, initial_value: int, *, max_value: int | None = None) -> None:
        if initial_value < 0:
            raise ValueError("initial value must be >= 0")
        if max_value is not None and max_value < initial_value:
            raise ValueError("max_value must be >= initial_value")
        self._value, self._max = initial_value, max_value
        self._waiters: dict[Branch, Any] = {}

    @property
    def value(self) -> int:
        """How many may still come in."""
        return self._value

    def acquire_nowait(self) -> None:
        """Takes a place or raises `WouldBlock`."""
        if self._value <= 0:
            raise WouldBlock
        self._value -= 1

    async def acquire(self) -> None:
        """Takes a place, waiting for one."""
        await _look_for_cancel()
        if self._value > 0:
            self._value -= 1
            await block(ShieldedYield())
        else:
            await block(Park(self._waiters))

    def release(self) -> None:
        """Gives a place back; who has waited longest gets it."""
        if self._waiters:
            _resume_first(self._waiters)
            return
        if self._max is not None and self._value >= self._max:
            raise ValueError("semaphore released too many times")
        self._value += 1

    async def __aenter__(self) -> Semaphore:
        await self.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class _Channel(Generic[T]):
    """What the two ends share."""

    __slots__ = ("items", "open_receivers", "open_senders", "receivers", "room", "senders")

    def __init__(self, room: float) -> None:
        self.room = room
        self.items: deque[T] = deque()
        self.senders: dict[Branch, Any] = {}  # who waits to send, beside its value
        self.receivers: dict[Branch, Any] = {}
        self.open_senders = self.open_receivers = 1


class MemorySendChannel(Generic[T]):
    """The sending end of `open_memory_channel`."""

    __slots__ = ("_channel", "_closed")

    def __init__(self, channel: _Channel[T]) -> None:
        self._channel, self._closed = channel, False

    def send_nowait(self, value: T) -> None:
        """Sends, or raises `WouldBlock` when there is no room and nobody waits."""
        if self._closed:
            raise ClosedChannel
        if not self._channel.open_receivers:
            raise BrokenChannel
        if self._channel.receivers:
            _resume_first(self._channel.receivers, (value, None))
        elif len(self._channel.items) < self._channel.room:
            self._channel.items.append(value)
        else:
            raise WouldBlock

    async def send(self, value: T) -> None:
        """Sends, waiting for room. Raises `BrokenChannel` when no receiver is left."""
        await _look_for_cancel()
        try:
            self.send_nowait(value)
        except WouldBlock:
            if error := await block(Park(self._channel.senders, (value, self))):
                raise error from None
        else:
            await block(ShieldedYield())

    def clone(self) -> MemorySendChannel[T]:
        """Another sending end: the channel ends when all are closed."""
        if self._closed:
            raise ClosedChannel
        self._channel.open_senders += 1
        return MemorySendChannel(self._channel)

    def close(self) -> None:
        """No more from this end. Idempotent."""
        if self._closed:
            return
        self._closed = True
        _resume_own(self._channel.senders, self, ClosedChannel())
        self._channel.open_senders -= 1
        while not self._channel.open_senders and self._channel.receivers:
            _resume_first(self._channel.receivers, (None, EndOfChannel()))

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
    """The receiving end of `open_memory_channel`; an asynchronous iterator."""

    __slots__ = ("_channel", "_closed")

    def __init__(self, channel: _Channel[T]) -> None:
        self._channel, self._closed = channel, False

    def receive_nowait(self) -> T:
        """What was sent first, or `WouldBlock`."""
        channel = self._channel
        if self._closed:
            raise ClosedChannel
        if channel.senders:
            channel.items.append(_resume_first(channel.senders)[0])
        if channel.items:
            return channel.items.popleft()
        if not channel.open_senders:
            raise EndOfChannel
        raise WouldBlock

    async def receive(self) -> T:
        """What was sent first, waiting for it. Raises `EndOfChannel` when nothing will come."""
        await _look_for_cancel()
        try:
            value = self.receive_nowait()
        except WouldBlock:
            got, error = await block(Park(self._channel.receivers, (None, self)))
            if error is not None:
                raise error from None
            taken: T = got
            return taken
        await block(ShieldedYield())
        return value

    def clone(self) -> MemoryReceiveChannel[T]:
        """Another receiving end."""
        if self._closed:
            raise ClosedChannel
        self._channel.open_receivers += 1
        return MemoryReceiveChannel(self._channel)

    def close(self) -> None:
        """Nothing more is taken here. Idempotent."""
        if self._closed:
            return
        self._closed = True
        _resume_own(self._channel.receivers, self, (None, ClosedChannel()))
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
    if room < 0:
        raise ValueError("max_buffer_size must be >= 0")
    channel: _Channel[Any] = _Channel(room)
    return MemorySendChannel(channel), MemoryReceiveChannel(channel)
