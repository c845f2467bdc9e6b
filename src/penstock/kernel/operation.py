"""What a branch can wait for. Each operation says how it is entered, and what a cancel does to it."""

from __future__ import annotations

import hashlib
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
TOOK = "~took "
"""How a mark begins that tells which message a receive has taken. `patched` takes no such name."""
REJECTS = 2
"""The rules by which a receive leaves messages that do not fit it, and waits on. Before, it took the next one, and
raised an error where that did not fit."""


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


class Start(msgspec.Struct, frozen=True, gc=False):
    """A command: begin this call. Its outcome is a record with this path."""

    path: str
    call: Call


class Stop(msgspec.Struct, frozen=True, gc=False):
    """A command: this call is cancelled; what becomes of it in the end is still a record."""

    path: str


class BranchOperation:
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
def block(operation: BranchOperation) -> Generator[BranchOperation, Any, Any]:
    """Hands the operation to the kernel; gives its result."""
    return (yield operation)


class CallOperation(BranchOperation):
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
        kernel.commands[self.path] = Start(self.path, self.call)

    def outcome(self, record: Record) -> Outcome:
        """What the body gets for that record. Raises `Undecodable`."""
        return self.call.outcome(record)

    def abort(self, branch: Branch, kernel: Kernel) -> bool:
        if self.stopping:
            return False
        self.stopping = True
        if kernel.withdraw(self.path):  # asked for in this very activation: it never starts, and there is no record
            return True
        kernel.commands[self.path] = Stop(self.path)
        return False


class Sleep(BranchOperation):
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
            kernel.make_due(branch, CHECKPOINT)
            return
        branch.operation = self
        self.due = kernel.now + self.seconds
        kernel.wake_at(self.due, branch, self)

    def abort(self, branch: Branch, kernel: Kernel) -> bool:
        return True

    def turn(self, branch: Branch, kernel: Kernel) -> Outcome:
        return Outcome(error=Cancelled()) if branch.scope.effective else NOTHING


class Checkpoint(BranchOperation):
    """Yields to the others, then looks whether the scope is cancelled, as Trio's."""

    __slots__ = ()
    shielded = True

    def enter(self, branch: Branch, kernel: Kernel) -> None:
        kernel.make_due(branch, self)

    def turn(self, branch: Branch, kernel: Kernel) -> Outcome | None:
        if branch.scope.effective:
            kernel.answer(branch, Outcome(error=Cancelled()))
            return None
        return NOTHING


CHECKPOINT = Checkpoint()


class ShieldedYield(BranchOperation):
    """Yields to the others and is not cancelled: the schedule point after something that has happened."""

    __slots__ = ()
    shielded = True

    def enter(self, branch: Branch, kernel: Kernel) -> None:
        kernel.resume(branch)


class Join(BranchOperation):
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


class ParkBranch(BranchOperation):
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
        """Return whether there is one that nobody was woken for."""
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
        branch.kernel.make_due(branch, take)


class Take(BranchOperation):
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


class Letter(msgspec.Struct, frozen=True, eq=False):
    """A message that nobody has received. ``number``: its place among all of the run's; one that was sent in
    place of another has that one's."""

    number: int
    record: Record


class Chosen(msgspec.Struct, frozen=True, eq=False):
    """What a receive takes when its turn comes. ``by_fit``: by their order alone it would have been another one."""

    letter: Letter
    outcome: Outcome
    by_fit: bool = False


class Mailbox(Supply):
    """The messages of a name that nobody has received. A receive gets the oldest one that fits it.

    At rest each message in here fits no receive that waits. ``held``: who was woken and has had no turn since, in that
    order.
    """

    __slots__ = ("_taken", "free", "held")

    def __init__(self) -> None:
        super().__init__()
        self.free: deque[Letter] = deque()  # oldest first
        self.held: dict[Receive, Chosen] = {}
        self._taken: dict[str, str] | None = None  # what marks of former lives tell of receives, both ways: read once

    @property
    def rejected(self) -> int:
        """Return how many messages fit nobody who waits for this name."""
        return len(self.free) if self.waiters else 0

    def put(self, record: Record, kernel: Kernel) -> None:
        """A message has come."""
        if kernel.rules < TAKEN_IN_TURN and self.waiters:
            branch = next(iter(self.waiters))
            receive = self.waiters.pop(branch)
            assert isinstance(receive, Receive)
            branch.operation = None
            kernel.answer(branch, receive.outcome(record))
            return
        kernel.messages += 1
        self.deliver(Letter(kernel.messages, record), kernel)

    def replace(self, record: Record, kernel: Kernel) -> None:
        """The message at the position that is the record's path is dropped, unless a receive has taken it. If the
        record has a payload, that is a message in its place."""
        for index, letter in enumerate(self.free):
            if f"{letter.record.pos:x}" == record.path:
                del self.free[index]
                if record.payload is not None:
                    self.deliver(Letter(letter.number, record), kernel)
                return

    def deliver(self, letter: Letter, kernel: Kernel) -> None:
        """To who has waited longest of those that it fits. Else it is kept, at its place."""
        for index, (branch, receive) in enumerate(self.waiters.items()):
            assert isinstance(receive, Receive)
            if (outcome := receive.read(letter.record, kernel)) is not None:
                del self.waiters[branch]
                passes = bool(self.free) and self.free[0].number < letter.number
                self.wake_for(branch, receive, Chosen(letter, outcome, index > 0 or passes))
                return
        index = len(self.free)
        while index and self.free[index - 1].number > letter.number:
            index -= 1
        self.free.insert(index, letter)

    def find(self, receive: Receive, kernel: Kernel) -> Chosen | None:
        """The oldest one that is left and fits. It is nobody else's from now on."""
        for index, letter in enumerate(self.free):
            if (outcome := receive.read(letter.record, kernel)) is not None:
                del self.free[index]
                return Chosen(letter, outcome, index > 0)
        return None

    def wake_for(self, branch: Branch, receive: Receive, chosen: Chosen) -> None:
        """The branch takes that message when its turn comes."""
        self.held[receive] = chosen
        branch.operation = None
        branch.kernel.make_due(branch, receive)

    def give_back(self, letter: Letter, kernel: Kernel) -> None:
        """Its receive was cancelled. Who was woken later takes an older one that fits; the one left over is free."""
        by_fit = False
        for later, chosen in self.held.items():
            if letter.number < chosen.letter.number:
                if (outcome := later.read(letter.record, kernel)) is None:
                    by_fit = True
                    continue
                self.held[later] = Chosen(letter, outcome, by_fit or chosen.by_fit)
                letter = chosen.letter
        self.deliver(letter, kernel)

    def may_take(self, path: str, pos: int, kernel: Kernel) -> bool:
        """Return whether no mark tells that the receive at a path took another message, or that another one took
        this."""
        if self._taken is None:
            self._taken = {}
            for mark in kernel.marks:
                if mark.startswith(TOOK):
                    taken, _, receive = mark.removeprefix(TOOK).partition(" ")
                    self._taken[receive], self._taken[taken] = taken, receive
        receive, taken = _short(path), f"{pos:x}"
        return self._taken.get(receive, taken) == taken and self._taken.get(taken, receive) == receive


def _short(path: str) -> str:
    return hashlib.blake2b(path.encode(), digest_size=12).hexdigest()


class Receive(Take):
    """The next message of a name that fits; one that came earlier was kept.

    ``outcome`` tells what the body gets for a message. One for which that is an error does not fit, unless ``raises``.
    """

    __slots__ = ("name", "outcome", "path", "raises", "type_")
    supply: Mailbox

    def __init__(
        self, name: str, outcome: Callable[[Record], Outcome], *, raises: bool = False, type_: object = None
    ) -> None:
        """``type_`` is for who shows what the run waits for."""
        self.name, self.outcome, self.raises, self.type_ = name, outcome, raises, type_
        self.path = ""

    def enter(self, branch: Branch, kernel: Kernel) -> None:
        self.path = branch.next_path()
        supply = self.supply = kernel.mailbox(self.name)
        if kernel.rules < TAKEN_IN_TURN and supply.free:
            kernel.answer(branch, self.outcome(supply.free.popleft().record))
        elif (found := supply.find(self, kernel)) is not None:
            supply.wake_for(branch, self, found)
        else:
            branch.operation = self
            supply.waiters[branch] = self

    def read(self, record: Record, kernel: Kernel) -> Outcome | None:
        """What the body gets for that message; None: it does not fit, or this took another one in a former life."""
        if kernel.rules < REJECTS:
            return self.outcome(record)
        if kernel.marks and not self.supply.may_take(self.path, record.pos, kernel):
            return None
        outcome = self.outcome(record)
        return outcome if self.raises or outcome.error is None else None

    def turn(self, branch: Branch, kernel: Kernel) -> Outcome | None:
        chosen = self.supply.held.pop(self)
        if CHECKPOINT.turn(branch, kernel) is None:
            self.supply.give_back(chosen.letter, kernel)
            return None
        if chosen.by_fit and kernel.rules >= REJECTS:
            self._remember(chosen.letter.record.pos, kernel)
        return chosen.outcome

    def _remember(self, pos: int, kernel: Kernel) -> None:
        """An older message, or an earlier receive, did not fit. With other types they may: a mark says what it was."""
        mark = f"{TOOK}{pos:x} {_short(self.path)}"
        if mark not in kernel.marks:
            kernel.unwritten.append(mark)
