"""What a branch can wait for. Each operation says how it is entered, and what a cancel does to it."""

from __future__ import annotations

import types
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from penstock.kernel.branch import Branch
    from penstock.kernel.drive import Kernel
    from penstock.kernel.nursery import Nursery
    from penstock.kernel.record import Record


class Outcome(msgspec.Struct, frozen=True):
    """How something ended: with a value, or with an error."""

    value: Any = None
    error: BaseException | None = None


class Call(Protocol):
    """What a step operation asks for. The kernel looks at name and digest only; the rest is the executor's."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> int | None: ...
    def outcome(self, record: Record) -> Outcome:
        """What the body gets for that record. Raises `Undecodable`."""
        ...


class Start(msgspec.Struct, frozen=True):
    """A command: begin this call. Its outcome is a record with this path."""

    path: str
    call: Call


class Stop(msgspec.Struct, frozen=True):
    """A command: this call is cancelled; what becomes of it in the end is still a record."""

    path: str


class Operation:
    """Awaited by `block`. ``shielded``: entered in a cancelled scope it does not raise at once."""

    __slots__ = ()
    shielded = False

    def enter(self, branch: Branch, kernel: Kernel) -> None:
        """The branch waits for this from now on, or is due again at once."""
        raise AssertionError("an operation says how it is entered")

    def abort(self, branch: Branch, kernel: Kernel) -> bool:
        """The branch was cancelled while it waits. True: it gets `Cancelled` now; False: it waits for the real end."""
        return False


@types.coroutine
def block(operation: Operation) -> Generator[Operation, Any, Any]:
    """Hands the operation to the kernel; gives its result."""
    return (yield operation)


class CallOperation(Operation):
    """A step, or a child: begun outside, answered by a record."""

    __slots__ = ("call", "path", "stopping")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.path = ""
        self.stopping = False

    def enter(self, branch: Branch, kernel: Kernel) -> None:
        self.path = branch.next_path()
        branch.operation = self
        kernel.pending[self.path] = branch
        kernel.commands.append(Start(self.path, self.call))

    def outcome(self, record: Record) -> Outcome:
        """What the body gets for that record. Raises `Undecodable`."""
        return self.call.outcome(record)

    def abort(self, branch: Branch, kernel: Kernel) -> bool:
        if self.stopping:
            return False
        self.stopping = True
        if kernel.withdraw(self.path):  # asked for in this very activation: it never starts, and there is no record
            return True
        kernel.commands.append(Stop(self.path))
        return False


class Sleep(Operation):
    """Until so many seconds have passed. Its end is no outcome: a cancel in the same instant wins."""

    __slots__ = ("due", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.due = 0.0

    @property
    def shielded(self) -> bool:  # type: ignore[override]  # an attribute there: only sleep(0) differs
        """A sleep of nothing is a checkpoint: yields first, then looks."""
        return self.seconds <= 0

    def enter(self, branch: Branch, kernel: Kernel) -> None:
        branch.next_path()
        if self.seconds <= 0:
            kernel.checkpoint(branch)
            return
        branch.operation = self
        self.due = kernel.now + self.seconds
        kernel.wake_at(self.due, branch, self)

    def abort(self, branch: Branch, kernel: Kernel) -> bool:
        return True


class Checkpoint(Operation):
    """Yields to the others, then looks whether the scope is cancelled, as Trio's."""

    __slots__ = ()
    shielded = True

    def enter(self, branch: Branch, kernel: Kernel) -> None:
        kernel.checkpoint(branch)


class ShieldedYield(Operation):
    """Yields to the others and is not cancelled: the schedule point after something that has happened."""

    __slots__ = ()
    shielded = True

    def enter(self, branch: Branch, kernel: Kernel) -> None:
        kernel.resume(branch)


class Join(Operation):
    """The end of a nursery's block: not cancelled itself, it waits for all children."""

    __slots__ = ("nursery",)
    shielded = True

    def __init__(self, nursery: Nursery) -> None:
        self.nursery = nursery

    def enter(self, branch: Branch, kernel: Kernel) -> None:
        if self.nursery.joined(branch):
            kernel.resume(branch)
        else:
            branch.operation = self


class Park(Operation):
    """Among ``waiters``, beside ``value``, until somebody takes the branch out and resumes it."""

    __slots__ = ("value", "waiters")

    def __init__(self, waiters: dict[Branch, Any], value: object = None) -> None:
        self.waiters, self.value = waiters, value

    def enter(self, branch: Branch, kernel: Kernel) -> None:
        branch.operation = self
        self.waiters[branch] = self.value

    def abort(self, branch: Branch, kernel: Kernel) -> bool:
        self.waiters.pop(branch, None)
        return True


class Receive(Operation):
    """The next message of a name; one that came earlier was kept."""

    __slots__ = ("name", "outcome", "path")

    def __init__(self, name: str, outcome: Callable[[Record], Outcome]) -> None:
        self.name, self.outcome = name, outcome
        self.path = ""

    def enter(self, branch: Branch, kernel: Kernel) -> None:
        self.path = branch.next_path()
        kept = kernel.mail.get(self.name)
        if kept:
            kernel.answer(branch, self.outcome(kept.popleft()))
            return
        branch.operation = self
        kernel.receivers.setdefault(self.name, {})[branch] = self

    def abort(self, branch: Branch, kernel: Kernel) -> bool:
        kernel.receivers[self.name].pop(branch, None)
        return True
