"""What a branch can wait for. Each operation says how it is entered, and what a cancel does to it."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.kernel.errors import Cancelled

if TYPE_CHECKING:
    from penstock.kernel.branch import Branch
    from penstock.kernel.drive import Kernel
    from penstock.kernel.nursery import Nursery
    from penstock.kernel.record import Record


class Outcome(msgspec.Struct, frozen=True):
    """How something ended: with a value, or with an error."""

    value: Any = None
    error: BaseException | None = None


NOTHING = Outcome()
TAKEN_IN_TURN = 1
"""The rules by which a message, an item of a channel or a permit is taken when the turn of its branch comes. Before, it
was handed over when it came, and lost where the branch was cancelled until its turn."""


class Call(Protocol):
    """What a step operation asks for. The kernel looks at name and digest only; the rest is the executor's."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> int | None: ...
    def digest_by(self, rules: int) -> int | None:
        """Of its arguments, by the version of a record's rules."""
        ...

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

    def turn(self, branch: Branch, kernel: Kernel) -> Outcome | None:
        """The turn of a branch has come that was due with this operation in place of a value: what it gets. None: it is
        not its turn yet."""
        raise AssertionError("an operation that is looked at says what comes of it")


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
            kernel.look(branch, CHECKPOINT)
            return
        branch.operation = self
        self.due = kernel.now + self.seconds
        kernel.wake_at(self.due, branch, self)

    def abort(self, branch: Branch, kernel: Kernel) -> bool:
        return True

    def turn(self, branch: Branch, kernel: Kernel) -> Outcome:
        return Outcome(error=Cancelled()) if branch.scope.effective else NOTHING


class Checkpoint(Operation):
    """Yields to the others, then looks whether the scope is cancelled, as Trio's."""

    __slots__ = ()
    shielded = True

    def enter(self, branch: Branch, kernel: Kernel) -> None:
        kernel.look(branch, self)

    def turn(self, branch: Branch, kernel: Kernel) -> Outcome | None:
        if branch.scope.effective:
            kernel.answer(branch, Outcome(error=Cancelled()))
            return None
        return NOTHING


CHECKPOINT = Checkpoint()


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


class Supply:
    """What branches take one at a time, first come, first served: messages of a name, items of a channel, permits.

    A branch that waits is woken when there is one for it, and takes it when its turn comes: by then it may have been
    cancelled, and what it was woken for is there for the next one.
    """

    __slots__ = ("due", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[Branch, Take] = {}
        self.due = 0  # branches that were woken, and had no turn since

    def has_free(self) -> bool:
        """Whether there is one that nobody was woken for."""
        raise AssertionError("a supply says whether there is one")

    def hold(self) -> None:
        """One is there for a branch that is woken now."""

    def take(self, take: Take) -> Outcome:
        """What the branch gets whose turn it is; there is one for it."""
        raise AssertionError("a supply says what is taken")

    def offer(self) -> None:
        """Wake who waits, as far as there is something for them."""
        while self.waiters and self.has_free():
            branch = next(iter(self.waiters))
            self.wake(branch, self.waiters.pop(branch))

    def wake(self, branch: Branch, take: Take) -> None:
        """The branch takes one when its turn comes."""
        self.due += 1
        self.hold()
        branch.operation = None
        branch.kernel.look(branch, take)


class Take(Operation):
    """One of a supply, as soon as there is one."""

    __slots__ = ("supply",)

    def __init__(self, supply: Supply) -> None:
        self.supply = supply

    def enter(self, branch: Branch, kernel: Kernel) -> None:
        supply = self.supply
        if supply.has_free():
            supply.wake(branch, self)
        else:
            branch.operation = self
            supply.waiters[branch] = self

    def abort(self, branch: Branch, kernel: Kernel) -> bool:
        self.supply.waiters.pop(branch, None)
        return True

    def turn(self, branch: Branch, kernel: Kernel) -> Outcome | None:
        supply = self.supply
        supply.due -= 1
        outcome = CHECKPOINT.turn(branch, kernel)
        if outcome is not None:
            outcome = supply.take(self)
        supply.offer()
        return outcome


class Mailbox(Supply):
    """The messages of a name that nobody has received."""

    __slots__ = ("records",)

    def __init__(self) -> None:
        super().__init__()
        self.records: deque[Record] = deque()

    def has_free(self) -> bool:
        return len(self.records) > self.due

    def take(self, take: Take) -> Outcome:
        assert isinstance(take, Receive)
        return take.outcome(self.records.popleft())

    def put(self, record: Record, kernel: Kernel) -> None:
        """A message has come."""
        if kernel.rules < TAKEN_IN_TURN and self.waiters:
            branch = next(iter(self.waiters))
            receive = self.waiters.pop(branch)
            assert isinstance(receive, Receive)
            branch.operation = None
            kernel.answer(branch, receive.outcome(record))
        else:
            self.records.append(record)
            self.offer()


class Receive(Take):
    """The next message of a name; one that came earlier was kept."""

    __slots__ = ("name", "outcome", "path")
    supply: Mailbox

    def __init__(self, name: str, outcome: Callable[[Record], Outcome]) -> None:
        self.name, self.outcome = name, outcome
        self.path = ""

    def enter(self, branch: Branch, kernel: Kernel) -> None:
        self.path = branch.next_path()
        self.supply = kernel.mailbox(self.name)
        if kernel.rules < TAKEN_IN_TURN and self.supply.records:
            kernel.answer(branch, self.outcome(self.supply.records.popleft()))
        else:
            super().enter(branch, kernel)
