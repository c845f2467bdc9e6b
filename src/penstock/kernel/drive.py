"""The kernel: drives the branches of one run. Records go in by `deliver`, commands come out by `take_commands`.

After `start` and after each record it runs every branch that is due until all wait: an *activation*. Time stands still
within one. The order in which branches run is first due, first served, so that it follows from the records alone.
"""

from __future__ import annotations

import heapq
import inspect
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextvars import Context, copy_context
from math import inf
from typing import Any

import msgspec

from penstock.kernel.branch import Branch
from penstock.kernel.current import running
from penstock.kernel.errors import (
    FIT,
    Cancelled,
    CancelSwallowed,
    Discarded,
    Endless,
    ForeignAwait,
    Mismatch,
    NotAwaited,
    OtherArguments,
    Overrun,
    TooManyBranches,
    TooSlow,
    Undecodable,
)
from penstock.kernel.nursery import Nursery
from penstock.kernel.operation import BranchOperation, CallOperation, Mailbox, Outcome, Sleep, Start, Stop
from penstock.kernel.record import OUTCOMES, RULES, UPDATES, JournalKind, Record
from penstock.kernel.scope import CancelScope, Deadlines
from penstock.kernel.unawaited import Unawaited
from penstock.kernel.updates import RunUpdates


class RunLimits(msgspec.Struct, frozen=True):
    """Of one run. All are counts, so that a verdict does not depend on the machine."""

    max_branches: int = 10_000
    max_depth: int = 100
    max_swallowed: int = 1_000
    max_resumes: int = 10_000_000  # of all branches in one activation


_LIMITS = RunLimits()


class Kernel:
    """One run of one body. ``now`` is the time of the last record, in seconds since 1970; it never goes back."""

    __slots__ = (
        "_activation",
        "_answered",
        "_deadlines",
        "_open",
        "_ready",
        "_sleepers",
        "_ticket",
        "answers",
        "commands",
        "discarded",
        "info",
        "is_behind",
        "limits",
        "mail",
        "marks",
        "messages",
        "newest",
        "now",
        "pending",
        "result",
        "root",
        "rules",
        "strict_args",
        "unwritten",
        "updates",
        "warn",
    )  # fmt: skip

    def __init__(
        self,
        now: float = 0.0,
        info: Any = None,
        limits: RunLimits | None = None,
        warn: Callable[[str | NotAwaited], None] | None = None,
        *,
        deadline: float = inf,
        strict_args: bool = False,
        rules: int = RULES,
    ) -> None:
        self.newest = self.rules = rules  # of records that have none of their own; of that which is delivered now
        self.now, self.limits = now, limits or _LIMITS
        self.info = info  # what verbs want to know of the run; the kernel does not look at it
        self.strict_args = strict_args  # other arguments than the recorded ones block the run
        self.warn = warn  # told of what is odd and no mismatch: other arguments than recorded, a call without an await
        self.root = CancelScope(self)
        self.root.is_open = True
        self.root.deadline = deadline  # of the whole run, as if a scope were around the body
        self.result: Outcome | None = None  # None while the run is open
        self.discarded = False
        self.commands: dict[str, Start | Stop] = {}  # by path: what was not taken yet has one of the two
        self.pending: dict[str, Branch] = {}  # calls that have no outcome yet, by path
        self.mail: dict[str, Mailbox] = {}  # by name
        self.messages = 0  # that have come, of all names
        self.updates: RunUpdates | None = None  # from the first call, or handler, on
        self.marks: Collection[str] = ()  # of its journal's records; set before it starts
        self.is_behind = False  # the journal goes on behind what is delivered
        self.answers: dict[str, bool] | None = None  # what `patched` said; most runs ask nothing
        self.unwritten: list[str] = []  # marks that no record has yet
        self._answered: set[str] = set()
        self._ready: list[tuple[Branch, Any, BaseException | None]] = []  # a deque has 760 bytes when it is empty
        self._deadlines = Deadlines()
        if deadline != inf:
            self._deadlines.add(self.root)
        self._sleepers: list[tuple[float, int, Branch, Sleep]] = []
        self._ticket = self._activation = self._open = 0

    # -- what goes in

    def start(self, body: Coroutine[Any, Any, Any]) -> None:
        """The first activation. Called once, before any record."""
        self.spawn(body, "", None)
        self._deadlines.expire(self.now)
        self._run()

    def deliver(self, record: Record) -> None:
        """One record, and the activation that follows from it.

        Raises `Blocked` (`Mismatch`, `Undecodable`, `Endless`) when this code can't go on; the kernel is
        of no more use then.
        """
        if record.rules is None:  # others wrote it, and nobody has delivered it before
            record = msgspec.structs.replace(record, rules=self.newest)
        self.rules = record.rules or 0
        if record.kind in OUTCOMES:
            self._deliver_outcome(record)
        elif record.kind is JournalKind.MESSAGE:
            self.advance(record.at)  # the deadline wins against a message, and the message is kept
            self.mailbox(record.name or "").put(record, self)
        elif record.kind is JournalKind.DROPPED:
            if record.payload is not None:  # a mere drop is nothing to the body: it ends no wait, by the clock neither
                self.advance(record.at)
            self.mailbox(record.name or "").replace(record, self)
        elif record.kind is JournalKind.CANCEL:
            self.advance(record.at)
            scope = self.root.find(record.path)
            if scope is not None:
                scope.cancel()
        elif record.kind in UPDATES:
            self.need_updates().deliver(record)
        else:
            self.advance(record.at)
        self._run()
        if self.updates is not None:
            self.updates.delivered(record)

    def _deliver_outcome(self, record: Record) -> None:
        branch = self.pending.pop(record.path, None)
        if branch is None:
            if record.path in self._answered:  # the smallest position counts, live and at replay
                return
            raise Mismatch(record.path, record.name, None, self._where_of(record.path))
        operation = branch.operation
        assert isinstance(operation, CallOperation)
        call = operation.call
        if record.name is not None and record.name != call.name:
            raise Mismatch(record.path, record.name, call.name, branch.where())
        digest = call.digest_by(self.rules)
        if record.digest != digest and None not in (record.digest, digest):
            text = f"{call.name} at {record.path} was called with other arguments before ({branch.where()})"
            if self.strict_args and self.rules:  # before, the order of a set made another digest
                raise OtherArguments(text)
            if self.warn is not None:
                self.warn(text)
        try:
            outcome = operation.outcome(record)
        except Undecodable as error:
            raise Undecodable(f"{error} ({branch.where()}). {FIT}") from None
        self._answered.add(record.path)
        if record.kind is JournalKind.CHILD:  # a deadline wins against a child's end, as against a message
            self.advance(record.at)
            branch.operation = None
        else:
            branch.operation = None  # first: what is durable is delivered, whatever is due by now
            self.advance(record.at)
        self.answer(branch, outcome)

    def _where_of(self, path: str) -> str | None:
        """File and line of the innermost open branch that an operation with this path would be of."""
        found = [branch for branch in self.open_branches() if path.startswith(f"{branch.path}/")]
        return max(found, key=lambda branch: len(branch.path)).where() if found else None

    @property
    def records(self) -> int:
        """Return how many records came, without calls and refusals of updates: these may be gone at replay."""
        return self._activation - 1 - (0 if self.updates is None else self.updates.passing)

    def next_due(self) -> float:
        """When a deadline or a sleep is due, `inf` when none is: a CLOCK record then brings it."""
        sleepers = self._sleepers
        while sleepers and sleepers[0][2].operation is not sleepers[0][3]:
            heapq.heappop(sleepers)
        return min(self._deadlines.next(), sleepers[0][0] if sleepers else inf)

    # -- what comes out

    def take_commands(self) -> list[Start | Stop]:
        """What is to be done since the last time, in order."""
        commands, self.commands = self.commands, {}
        return list(commands.values())

    def discard(self) -> None:
        """Gives this copy of the run up: its coroutines end, and nothing they do counts."""
        branches = sorted(self.open_branches(), key=lambda branch: -branch.ticket)
        self.discarded = True
        self.pending.clear()
        self._ready.clear()
        for branch in branches:
            before, running.branch = running.branch, branch
            try:
                branch.discard()
            finally:
                running.branch = before
        self.commands.clear()

    def open_branches(self) -> list[Branch]:
        """All that have not ended, in no order."""
        found: list[Branch] = []
        scopes = [self.root]
        while scopes:
            scope = scopes.pop()
            found.extend(scope.branches())
            scopes.extend(scope.scopes)
        return found

    # -- for operations, scopes and nurseries

    def running_branch(self) -> Branch:
        """The branch of this run whose code is running."""
        branch = running.branch
        if branch is None or branch.kernel is not self:
            raise RuntimeError("this belongs to another run")
        return branch

    def patched(self, name: str) -> bool:
        """Return whether the run comes here with this code, and was not past this place before; the same answer
        whenever it is asked. What is new goes into `unwritten`: a record has to carry it."""
        if self.answers is None:
            self.answers = {}
        answer = self.answers.get(name)
        if answer is None:
            answer = self.answers[name] = name in self.marks or not self.is_behind
            if answer and name not in self.marks:
                self.unwritten.append(name)
        return answer

    def spawn(self, body: Awaitable[Any], path: str, nursery: Nursery | None) -> Branch:
        """Return a new branch; it runs when those that are due already have run."""
        if isinstance(body, Unawaited):
            body = body.taken()
        coroutine: Coroutine[Any, Any, Any] = body if inspect.iscoroutine(body) else _awaiting(body)
        if self.discarded:  # a handler of the branch that is ending spawns: nobody would ever run it
            coroutine.close()
            raise Discarded
        if self._open > self.limits.max_branches:  # the body is one more
            coroutine.close()
            raise TooManyBranches(
                f"a run has {self.limits.max_branches:,} open branches at most: start fewer at a time"
            )
        self._ticket += 1
        scope = self.root if nursery is None else nursery.cancel_scope
        context = Context() if nursery is None else copy_context()
        branch = Branch(self, coroutine, path, nursery, scope, self._ticket, context)
        self._open += 1
        scope.add(branch)
        self._ready.append((branch, None, None))
        return branch

    def resume(self, branch: Branch, value: object = None) -> None:
        """The branch is due, with this value; nothing can take it back."""
        branch.operation = None
        self._ready.append((branch, value, None))

    def answer(self, branch: Branch, outcome: Outcome) -> None:
        """The branch is due, with this outcome of what it waited for."""
        self._ready.append((branch, outcome.value, outcome.error))

    def make_due(self, branch: Branch, operation: BranchOperation) -> None:
        """The branch is due; what it gets is looked at when its turn comes (`BranchOperation.turn`)."""
        self._ready.append((branch, operation, None))

    def mailbox(self, name: str) -> Mailbox:
        """Return the messages of that name."""
        found = self.mail.get(name)
        if found is None:
            found = self.mail[name] = Mailbox()
        return found

    def need_updates(self) -> RunUpdates:
        """Return the calls of updates, and their handlers."""
        if self.updates is None:
            self.updates = RunUpdates(self)
        return self.updates

    def wake_at(self, due: float, branch: Branch, operation: Sleep) -> None:
        """The branch sleeps until then."""
        self._ticket += 1
        heapq.heappush(self._sleepers, (due, self._ticket, branch, operation))

    def watch_deadline(self, scope: CancelScope) -> None:
        """The scope has a deadline and is open."""
        self._deadlines.add(scope)

    def withdraw(self, path: str) -> bool:
        """Takes a start back that nobody has seen yet."""
        if type(self.commands.get(path)) is not Start:
            return False
        del self.commands[path], self.pending[path]
        return True

    def interrupt(self, branch: Branch) -> None:
        """The branch's scope has been cancelled. Who is due to run is not touched: its next operation raises."""
        operation = branch.operation
        if operation is None or operation.shielded or not operation.abort(branch, self):
            return
        branch.operation = None
        self._ready.append((branch, None, Cancelled()))

    # -- the drive

    def advance(self, at: float) -> None:
        """Moves the time: deadlines that are due first, in their order, then sleeps."""
        self.now = max(self.now, at)
        self._deadlines.expire(self.now)
        sleepers = self._sleepers
        while sleepers and sleepers[0][0] <= self.now:
            _, _, branch, operation = heapq.heappop(sleepers)
            if branch.operation is operation:
                branch.operation = None
                self._ready.append((branch, operation, None))

    def _run(self) -> None:
        before = running.branch
        self._activation += 1
        resumes = 0
        try:
            while self._ready:  # those that come to be due by it follow
                due, self._ready = self._ready, []
                resumes += len(due)
                if resumes > self.limits.max_resumes:
                    most = self.limits.max_resumes
                    raise Endless(f"one activation resumed its branches more than {most:,} times: let them wait")
                for branch, value, error in due:
                    self._resume(branch, value, error)
        finally:
            running.branch = before

    def _resume(self, branch: Branch, value: Any, error: BaseException | None) -> None:
        if isinstance(value, BranchOperation):
            outcome = value.turn(branch, self)
            if outcome is None:
                return
            value, error = outcome.value, outcome.error
        if error is not None and type(error) is Cancelled and self._swallows(branch):
            return
        running.branch = branch
        try:
            if error is None:
                operation = branch.context.run(branch.coroutine.send, value)
            else:
                operation = branch.context.run(branch.coroutine.throw, error)
        except StopIteration as stop:
            self._ended(branch, Outcome(stop.value))
        except (KeyboardInterrupt, Overrun):  # the person at the terminal, or the executor, not the body
            raise
        except BaseException as raised:
            self._ended(branch, Outcome(error=raised))
        else:
            self._enter(branch, operation)

    def _enter(self, branch: Branch, operation: Any) -> None:
        if not isinstance(operation, BranchOperation):
            place, awaited = branch.where(), branch.awaits(operation)
            hint = "Use what penstock.durable has for it, or move it into a step."
            raise ForeignAwait(f"{place} awaits {awaited} in a workflow function. {hint}")
        if branch.scope.effective and not operation.shielded:  # level-triggered: every operation in there raises
            self._ready.append((branch, None, Cancelled()))
        else:
            operation.enter(branch, self)

    def _swallows(self, branch: Branch) -> bool:
        """Return whether the branch was cancelled too often without anything new; it is ended then."""
        if branch.activation != self._activation:
            branch.activation, branch.cancels = self._activation, 0
        branch.cancels += 1
        if branch.cancels <= self.limits.max_swallowed:
            return False
        place = branch.where()
        running.branch = branch
        branch.discard()
        text = (
            f"Cancelled was caught {self.limits.max_swallowed:,} times at {place}; let it pass, or shield the clean-up"
        )
        self._ended(branch, Outcome(error=CancelSwallowed(text)))
        return True

    def _ended(self, branch: Branch, outcome: Outcome) -> None:
        self._open -= 1
        if branch.nursery is None:
            self.root.remove(branch)
            if self.updates is None or self.updates.body_ended(outcome):
                self.end(outcome)
        else:
            branch.nursery.cancel_scope.remove(branch)
            branch.nursery.child_ended(outcome.error)

    def end(self, outcome: Outcome) -> None:
        """End the run: the body has ended, and so have the handlers of updates."""
        if outcome.error is not None:
            ended = TooSlow("the deadline of the run is over") if self.root.expired else Cancelled()
            outcome = Outcome(error=self.root.absorb(outcome.error) or ended)
        self.result = outcome


async def _awaiting(awaitable: Awaitable[Any]) -> Any:
    """For a function that gives an awaitable which is no coroutine, such as a step."""
    return await awaitable
