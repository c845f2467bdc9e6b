"""One run that an executor has leased, and its run loop: the one task that talks to the backend for it.

A run has no task while it waits. Whatever happens to it (a step has ended, somebody wrote to it, a deadline is due)
leaves a note here and sees to it that the run loop is at work, until there is nothing left to do. So appends of a run
are one at a time, each with all that has come together meanwhile, and what is delivered stands in the journal.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from functools import partial
from math import inf
from typing import Any, Protocol, TypeVar

import msgspec
import trio

from penstock.durable.activation import MAX_LOST, Activation, OpenCall
from penstock.durable.backend import (
    COMMITTED,
    Away,
    Backend,
    Ending,
    JournalFull,
    LeasedRun,
    Refused,
    RunLeaseLost,
    Shown,
    Stored,
)
from penstock.durable.child import ChildCall
from penstock.durable.codec import PAYLOAD_MAX_BYTES
from penstock.durable.endings import ending_of, with_mark
from penstock.durable.errors import PayloadTooLarge, StartRefused, Unencodable
from penstock.durable.failure import describe, traceback_of
from penstock.durable.given import check_flag, check_int, check_kind, wrong
from penstock.durable.step import (
    StepCall,
    StepInfo,
    current_sender,
    current_starter,
    current_step,
    current_transaction,
)
from penstock.durable.step_host import StepHost
from penstock.durable.step_loop import LoopCall, StepLoopEnded, WrongLibrary, has_cancelled
from penstock.durable.workflow import Workflow
from penstock.kernel.drive import RunLimits
from penstock.kernel.errors import Blocked, NotAwaited
from penstock.kernel.operation import Outcome
from penstock.kernel.record import FROM_OTHERS, JournalKind, Record
from penstock.kernel.replay import marks_of
from penstock.log.masking import mask_text
from penstock.loop.taskless import TasklessCall, need_task
from penstock.loop.waking import TasklessQueue
from penstock.user_text import text_of

T = TypeVar("T")

APPEND_MAX_RECORDS = 500
APPEND_MAX_BYTES = 1024 * 1024  # of several: one message to an engine, as that is written as a whole or not at all
REPLAY_SLICE_RECORDS = 200
ABANDONED = Outcome(value=object())
"""Of a step whose loop has ended: the run is given back."""
SHORTER = "Let another run do the rest, or raise journal_max_records"
RETRY_FIRST_S, RETRY_MAX_S = 0.05, 2.0
WATCHED_S = 5.0
"""So long what a run shows is written down at once, after somebody said that they wait for it."""

log = logging.getLogger("penstock.durable")


COUNTS = (
    "max_in_memory", "step_threads", "step_tasks", "journal_warn_records", "journal_max_records", "payload_max_bytes"
)  # fmt: skip
"""Of `ExecutorLimits`: integers of 1 or more."""


class ExecutorLimits(msgspec.Struct, frozen=True):
    """Bounds of one executor. ``park_after_s``: how long a run that only waits stays in memory. ``step_threads`` and
    ``step_tasks``: how many plain and asynchronous steps run at a time. ``strict_args`` and ``max_lost``: as
    an App's."""

    max_in_memory: int = 10_000
    step_threads: int = 40
    step_tasks: int = 1_000
    park_after_s: float = 2.0
    cancel_grace_s: float = 30.0
    journal_warn_records: int = 10_000
    journal_max_records: int = 100_000
    payload_max_bytes: int = PAYLOAD_MAX_BYTES
    strict_args: bool = False
    max_lost: int = MAX_LOST
    run: RunLimits = RunLimits()

    def check(self) -> None:
        """Raise TypeError or ValueError for a count or a length of time that can't be one."""
        check_flag("limits: strict_args", self.strict_args)
        check_kind("limits: run", self.run, RunLimits, "a Limits")
        for name in ("park_after_s", "cancel_grace_s"):
            given = getattr(self, name)
            if type(given) not in (int, float) or not given >= 0:
                raise ValueError(wrong(f"limits: {name}", given, "seconds, 0 or more"))
        check_int("limits: max_lost", self.max_lost, 0)
        for name in COUNTS:
            check_int(f"limits: {name}", getattr(self, name), 1)


class Keeper(Protocol):
    """The executor, as its runs see it."""

    backend: Backend
    limits: ExecutorLimits
    steps: StepHost
    nursery: trio.Nursery
    context: Context
    """That of the program when the app was opened: each attempt at a step has a copy of it."""
    loops: TasklessQueue
    """Lets the run loops of runs begin, and go on when their batch has been applied."""
    loop_context: Context
    """That of run loops without a task, which marks it as its own while it is driven. Tasks begin in ``context``."""
    on_result: Callable[[LeasedRun, str], None]
    """Hears what a run has completed with, as JSON: that is durable."""

    def now(self) -> float:
        """The journal's clock, as far as is known: never later than it is."""
        ...

    def sample(self, at: float, asked_at: float = -inf) -> None:
        """A time that the journal's clock has just shown, and has not passed before ``asked_at``."""
        ...

    def spawn(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task of the executor. It sees the program's variables, not those of the run loop that asks for it."""
        ...

    def arm(self, run: LoadedRun) -> None:
        """See to it that the run is looked at when its time comes."""
        ...

    def watch_child(self, run: LoadedRun, target: Workflow[..., Any]) -> None:
        """The run waits for a child of that workflow."""
        ...

    async def show(self, run: LoadedRun) -> None:
        """Write down what the run shows."""
        ...

    def abandon(self, run: LoadedRun) -> None:
        """Give the run back for others: this program stops."""
        ...

    def left(self, run: LoadedRun, event: str, detail: str) -> None:
        """The run is not leased any more: ended, parked, blocked or lost."""
        ...


class LoadedRun:
    """One run under lease. Times are Trio's. It is its activation's host."""

    __slots__ = (
        "activation", "alarm_at", "commits", "has_written", "is_again", "is_appending", "is_gone", "is_looping",
        "is_showing", "is_started", "keeper", "lease_ends",
        "leased", "lost", "mail", "marks_kept", "must_read", "outbox",
        "overflow", "page", "pos", "quiet_since", "records", "replaying",
        "run_loop", "scopes", "shown_before",
        "step_context", "unconfirmed",
        "wants_park", "watched_until",
    )  # fmt: skip

    def __init__(self, keeper: Keeper, leased: LeasedRun, workflow: Workflow[..., Any], lease_ends: float) -> None:
        self.page = None if leased.fresh else leased.page  # a fresh run reads nothing now, and later this page is old
        leased = leased if leased.page is None else msgspec.structs.replace(leased, page=None)
        self.keeper, self.leased, self.lease_ends = keeper, leased, lease_ends
        self.activation = self._activate(workflow)
        self.step_context = keeper.context.copy()
        self.step_context.run(self._equip)
        self.pos = self.mail = self.records = 0
        self.outbox: deque[Record] = deque()
        self.unconfirmed: list[Record] = []  # of an append of which only the journal says whether it was written
        self.overflow: str | None = None  # why the journal takes no more
        self.scopes: dict[str, trio.CancelScope | LoopCall] = {}
        self.lost = leased.expiries  # leases that have ended with steps that are open
        self.must_read = self.replaying = not leased.fresh
        self.is_again = leased.attempt > 1  # what its journal has happened in a former life
        self.is_started = self.is_looping = self.is_gone = self.wants_park = self.has_written = False
        self.run_loop: TasklessCall | None = None  # the one at work
        self.commits: trio.Semaphore | None = None  # appends and commits of steps: one at a time
        self.is_appending = False  # without it
        self.marks_kept: trio.Event | None = None  # set when the journal holds all that the body was told for good
        self.quiet_since: float | None = None
        self.alarm_at = inf
        self.shown_before: tuple[str | int | None, ...] = (None, None)
        self.watched_until = 0.0  # somebody waits for what it shows
        self.is_showing = False

    def _activate(self, workflow: Workflow[..., Any]) -> Activation:
        leased, limits = self.leased, self.keeper.limits
        return Activation(
            workflow, leased.id, leased.arguments, leased.started_at, self, limits.run, self._warn,
            epoch=leased.attempt, payload_max_bytes=limits.payload_max_bytes, strict_args=limits.strict_args,
            max_lost=limits.max_lost,
            rules=leased.rules,
        )  # fmt: skip

    def _warn(self, text: str | NotAwaited) -> None:
        log.log(logging.ERROR if isinstance(text, NotAwaited) else logging.WARNING, "run %s: %s", self.leased, text)

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing happens unless somebody else, or the clock, does something."""
        return not (self.is_looping or self.outbox or self.must_read or self.activation.is_busy)

    @property
    def seen(self) -> tuple[str | int | None, ...]:
        """What the body and its steps said for others to see, and what is said of the body; while messages are
        rejected, up to which record."""
        said = (call.progress for call in self.activation.calls.values() if call.progress is not None)
        forgotten = () if self.replaying else self.activation.not_awaited
        return (self.activation.info.view, self.pos if self.activation.rejects else None, *forgotten, *said)

    @property
    def is_unshown(self) -> bool:
        """Return whether some of that is not written down."""
        return self.seen != self.shown_before

    @property
    def shown(self) -> Shown:
        """What others see of it while it is open."""
        branches = None if self.replaying else msgspec.json.encode(self.activation.published()).decode()
        return Shown(self.activation.info.view, branches)

    # -- notes

    def wake_loop(self) -> None:
        """Let the run loop do what there is to do."""
        if not (self.is_looping or self.is_gone):
            self.is_looping = True
            self.keeper.loops.add(self._begin_loop)

    def poll_again(self) -> None:
        """Others have written into the journal."""
        self.must_read, self.page = True, None
        self.wake_loop()

    def watch(self) -> None:
        """Somebody waits for what it shows: for a while that is written down at once."""
        self.watched_until = trio.current_time() + WATCHED_S
        self.show_soon()

    @property
    def is_watched(self) -> bool:
        """Return whether somebody said lately that they wait for what it shows."""
        return self.watched_until > trio.current_time()

    def show_soon(self) -> None:
        """Let the executor write down what it shows, if somebody waits for that."""
        if self.is_watched and self.is_unshown and not (self.is_showing or self.is_gone):
            self.is_showing = True
            self.keeper.spawn(self.keeper.show, self)

    def park_soon(self) -> None:
        """Let the run loop give the run up if it only waits; it is not `is_looping` any more when that was tried."""
        if self.is_quiet and self.is_started and not self.is_gone:
            self.wants_park = True
            self.wake_loop()

    def drop(self) -> None:
        """This copy counts no more. Its steps are cancelled and leave no record."""
        if not self.is_gone:
            self.is_gone = True
            for scope in self.scopes.values():
                scope.cancel()
            self.activation.discard()
            self.step_context = self.keeper.context  # its own one leads back here: garbage that needs the collector

    # -- the run loop

    def _begin_loop(self) -> None:
        """Without a task: most of it is appends, which wait for nothing but their batch."""
        keeper = self.keeper
        self.run_loop = TasklessCall(
            self._run_loop(), keeper.loop_context, keeper.loops, self._loop_ended, self._loop_in_task
        )
        self.run_loop.step()

    def _loop_in_task(self) -> None:
        assert self.run_loop is not None
        self.keeper.spawn(self._finish_loop, self.run_loop)

    async def _finish_loop(self, run_loop: TasklessCall) -> None:
        await run_loop.finish()
        if self.run_loop is run_loop:
            self.run_loop = None

    def _loop_ended(self, error: Exception | None) -> None:
        self.run_loop = None
        if error is not None:
            self.keeper.spawn(_raise, error)

    def stop_loop(self) -> None:
        """The executor ends. Call it in no run loop."""
        if self.run_loop is not None:
            self.run_loop.abandon()

    async def _run_loop(self) -> None:
        self.quiet_since = None
        try:
            while not self.is_gone:
                if self.is_started and self.outbox and self.overflow is None and not self.must_read:
                    await self._append()
                elif not await self._iterate():
                    break
        except RunLeaseLost:
            self._leave("lost")
        except Blocked as error:
            self._leave("blocked", str(error))
        except Exception as error:  # of ours, or of the backend: other runs go on
            self._give_up(error)
        finally:
            self.is_looping = False
        self.keeper.arm(self)
        if self.watched_until:
            self.show_soon()

    async def _iterate(self) -> bool:
        """One thing other than an append; False when there is none."""
        if not self.is_started:
            await self._start()
        elif self.must_read:
            await self._read()
        elif self.overflow is not None:
            await self._finish(Ending(failure=f"JournalTooLong: {self.overflow}"))
        elif self.activation.kernel.unwritten and self._must_keep_marks():
            self.outbox.extend(self.activation.marked())
        elif self.marks_kept is not None:
            self.marks_kept.set()
            self.marks_kept = None
        elif self.activation.result is not None:
            await self._end()
        elif self.wants_park:
            await self._park()
        else:
            return False
        return True

    async def _start(self) -> None:
        backend, page = self.keeper.backend, self.page
        if self.must_read:
            await self._need_task()
        if self.must_read and (page is None or (page.more and not page.records)):  # its first record is large
            page = self.page = await self._ask(lambda: backend.read(self.leased, 0))
        records: Sequence[Record] = () if page is None else page.records
        more = page is not None and page.more
        others = await self._ask(lambda: backend.marks(self.leased)) if more else ()
        marks = frozenset((*marks_of(records), *others))
        self.is_started = True
        self.activation.start(replaying=self.is_again, records=records, more=more, marks=marks)
        if not self.replaying:
            self.activation.issue_commands()

    async def _read(self) -> None:
        await self._need_task()
        self.must_read = False
        page, self.page = self.page, None
        if page is None:
            page = await self._ask(lambda: self.keeper.backend.read(self.leased, self.pos))
        is_again = self.replaying and self.is_again
        for count, record in enumerate(page.records, 1):
            is_last = count == len(page.records) and not page.more
            woke_it = is_last and record.kind in FROM_OTHERS  # no executor wrote after it: it is new
            self._apply_records(record, replaying=is_again and not woke_it, behind=is_again and not is_last)
            if count % REPLAY_SLICE_RECORDS == 0:
                await trio.lowlevel.checkpoint()
                if self.is_gone:
                    return
        self.mail = page.mail
        if self.unconfirmed and any(_is_same(record, self.unconfirmed[0]) for record in page.records):
            self.unconfirmed = []  # all of them stand there, or none
        if page.more:
            self.must_read = True
            return
        if self.unconfirmed:
            log.warning(
                "run %s: %d records are appended again: they were not written", self.leased, len(self.unconfirmed)
            )
            self.outbox.extendleft(reversed(self.unconfirmed))
            self.unconfirmed = []
        self.replaying = False
        lost, self.lost = self.lost, 0
        self.activation.issue_commands(lost)

    def _must_keep_marks(self) -> bool:
        """Return whether no record of this executor would bring the marks that none has yet, or one that comes too
        late."""
        result = self.activation.result
        return self.wants_park or self.marks_kept is not None or (result is not None and result.error is not None)

    async def _keep_marks(self) -> None:
        """Return when all marks of the body are in the journal. What begins next is answered by a record that somebody
        else writes: a replay has to find the marks before that."""
        if self.activation.has_unkept_marks:
            if self.marks_kept is None:
                self.marks_kept = trio.Event()
            kept = self.marks_kept
            self.wake_loop()
            await kept.wait()

    async def _append(self) -> None:
        if self.commits is None:
            self.is_appending = True
            batch, asked_at = self._next_batch(), trio.current_time()
            try:  # not `_ask`: many runs wait here at a time, and objects bring collections of garbage closer
                stored = await self.keeper.backend.append(self.leased, batch, self.pos, self.mail)
            except Away as error:
                await self._append_again(batch, error)
            except JournalFull as error:
                self.overflow = str(error)
            else:
                if self.is_gone:
                    raise RunLeaseLost
                self._appended(batch, stored, asked_at)
            self.is_appending = False
            self._let_commit()
            return
        await self._need_task()
        async with self.commits:
            if not self.must_read:  # a step has written meanwhile: that comes first
                await self._append_now()

    def _let_commit(self) -> None:
        """An append was on its way when the first transaction of a step began."""
        if self.commits is not None:
            self.commits.release()

    async def _append_now(self) -> None:
        await self._append_again(self._next_batch())

    def _next_batch(self) -> list[Record]:
        """Take the next records out of the outbox."""
        batch, size = list[Record](), 0
        while self.outbox and len(batch) < APPEND_MAX_RECORDS:
            if (size := size + len((self.outbox[0].payload or "").encode())) > APPEND_MAX_BYTES and batch:
                break
            if batch and (batch[-1].kind is JournalKind.REFUSED) != (self.outbox[0].kind is JournalKind.REFUSED):
                break
            batch.append(self.outbox.popleft())
        if batch[0].kind is not JournalKind.REFUSED:  # these are not stored: they would lose a mark
            batch = self.activation.marked(batch)
        return batch

    async def _append_again(self, batch: list[Record], away: Away | None = None) -> None:
        """Ask as `_ask` does."""
        asked_at = trio.current_time()
        try:
            stored = await self._ask(lambda: self.keeper.backend.append(self.leased, batch, self.pos, self.mail), away)
        except JournalFull as error:
            self.overflow = str(error)
            return
        self._appended(batch, stored, asked_at)

    def _appended(self, batch: list[Record], stored: Sequence[Stored] | None, asked_at: float) -> None:
        """Go on with what the backend has answered: where they stand; None: the journal says what became of them."""
        self.has_written = True
        if stored is None:
            self.unconfirmed, self.must_read, self.page = batch, True, None
            return
        self.keeper.sample(stored[-1].at, asked_at)
        for record, place in zip(batch, stored, strict=True):
            self._apply_records(msgspec.structs.replace(record, pos=place.pos, at=place.at))
        self.activation.issue_commands()

    def _apply_records(self, record: Record, *, replaying: bool = False, behind: bool = False) -> None:
        self.pos = record.pos
        self.records += -1 if record.kind is JournalKind.REFUSED else 1
        limits = self.keeper.limits
        if self.records > limits.journal_max_records:
            self.overflow = f"{self.records:,} records; {limits.journal_max_records:,} at most. {SHORTER}"
        if self.records == limits.journal_warn_records:
            log.warning("run %s has %d records in its journal", self.leased, self.records)
        self.activation.apply_record(record, replaying=replaying, behind=behind)

    async def _end(self) -> None:
        try:
            begun = self.activation.continuation()
        except (TypeError, Unencodable, PayloadTooLarge) as error:
            await self._finish(Ending(failure=f"continue_as_new: {describe(error)}"))
            return
        if begun is None:
            await self._finish(ending_of(self.activation))
            return
        kept, backend = self.activation.unread(), self.keeper.backend
        await self._need_task()
        try:
            done = await self._ask(lambda: backend.continue_as_new(self.leased, self.mail, begun, kept))
        except Refused as error:
            await self._finish(Ending(failure=f"continue_as_new: {error}"))
            return
        if done:
            self.activation = self._activate(self.activation.workflow)
            self.pos = self.records = 0
            self.is_again = self.is_started = False
            self.replaying, self.page = True, None
        self.must_read = True

    async def _finish(self, ending: Ending) -> None:
        ending = with_mark(self.activation, msgspec.structs.replace(ending, view=self.activation.info.view))
        try:
            ended = await self._ask(lambda: self.keeper.backend.finish(self.leased, self.mail, ending))
        except Refused as error:
            ending = Ending(failure=f"the result of {self.leased.workflow} can't be kept: {error}")
            ended = await self._ask(lambda: self.keeper.backend.finish(self.leased, self.mail, ending))
        if ended:
            if ending.result is not None:
                self.keeper.on_result(self.leased, ending.result)
            if ending.failure is not None and not ending.cancelled:
                trace = f"\n{ending.traceback}" if ending.traceback else ""
                log.error("run %s failed: %s%s", self.leased, mask_text(ending.failure), trace)
            self._leave("ended", ending.failure or "")
        else:
            self.must_read = True

    async def _park(self) -> None:
        self.wants_park = False
        if self.activation.is_busy:
            return
        due = self.activation.next_due()
        until = None if due == inf else due
        waits = self.activation.waits_in_words()
        if await self._ask(lambda: self.keeper.backend.park(self.leased, self.mail, until, self.shown)):
            self._leave("parked", waits)
        else:
            self.must_read = True

    def _give_up(self, error: Exception) -> None:
        log.error("run %s can't go on", self.leased, exc_info=error)
        self._leave("blocked", f"{type(error).__name__}: {text_of(error)}")

    def _leave(self, event: str, detail: str = "") -> None:
        if not self.is_gone:
            self.drop()
            self.keeper.left(self, event, detail)

    async def _need_task(self) -> None:
        """As `need_task`. Raises RunLeaseLost when the run was dropped meanwhile: its body can do nothing then."""
        await need_task()
        if self.is_gone:
            raise RunLeaseLost

    async def _ask(self, call: Callable[[], Awaitable[T]], away: Away | None = None) -> T:
        """Ask again while the backend is away, as long as the lease may hold. ``away``: so it has answered already."""
        pause_s = RETRY_FIRST_S
        while True:
            try:
                if away is not None:
                    error, away = away, None
                    raise error
                answer = await call()
            except Away as error:
                if trio.current_time() + pause_s >= self.lease_ends:
                    raise RunLeaseLost from error
                log.debug("the journals can't be reached: %s", error)
            else:
                if self.is_gone:
                    raise RunLeaseLost
                return answer
            await need_task()
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    # -- for the activation

    def now(self) -> float:
        """Return the journal's clock."""
        return self.keeper.now()

    def write(self, run: Activation, record: Record) -> None:
        """To be appended by the run loop."""
        self.outbox.append(record)
        self.wake_loop()

    def step_failed(self, run: Activation, call: OpenCall, error: BaseException) -> None:
        """Tell it, with the user's traceback."""
        log.error(
            "run %s: step %r at %s failed and is not retried, attempt %d of %d: %s\n%s", self.leased, call.step.name,
            call.path, call.attempt, call.step.options.retries + 1, mask_text(describe(error)), traceback_of(error),
        )  # fmt: skip

    def begin(self, run: Activation, call: OpenCall) -> None:
        """Start the attempt."""
        step = call.step
        if isinstance(step, ChildCall):
            self._soon(call, partial(self._attend, child=step, begins=True))
            return
        context = self.step_context.copy()
        context.run(current_step.set, run.step_info(call))
        begun = self.keeper.steps.begin(step, context, self, call)
        if begun is None:
            self._soon(call, partial(self._attempt, step=step), context)
        else:
            self.scopes[call.path] = begun

    def _soon(self, call: OpenCall, function: Callable[..., Awaitable[None]], context: Context | None = None) -> None:
        """``context``: that of the task, else the keeper's."""
        scope = self.scopes[call.path] = trio.CancelScope()
        context = self.keeper.context if context is None else context
        context.run(self.keeper.nursery.start_soon, partial(function, call, scope=scope))

    def stop(self, run: Activation, call: OpenCall) -> None:
        """Cancel the attempt; say so when it does not end. A child that begins just now is cancelled when it has."""
        if isinstance(call.step, ChildCall):
            if not call.is_running:
                call.is_running = True
                self._soon(call, partial(self._attend, child=call.step, begins=False))
            return
        scope = self.scopes.get(call.path)
        if scope is not None and not scope.cancel_called:
            scope.cancel()
            self.keeper.spawn(self._watch_stop, call, scope)

    def _equip(self) -> None:
        """Set what all attempts may ask for, in their context."""
        current_sender.set(self.keeper.backend.send)
        current_starter.set(self.keeper.backend.start)
        current_transaction.set(self._transact)

    async def _attempt(self, call: OpenCall, step: StepCall, scope: trio.CancelScope) -> None:
        outcome: Outcome | None = None
        began = time.monotonic()
        try:
            with scope:
                outcome = await self.keeper.steps.attempt(step, current_step.get())
        except BaseExceptionGroup as group:  # cancelled, and something failed on the way out
            if has_cancelled(group):
                raise
            outcome = Outcome(error=group)
        except (RunLeaseLost, StepLoopEnded, WrongLibrary) as error:
            outcome = self._attempt_broke(error)
        self._attempt_ended(call, outcome, began)

    def loop_call_ended(self, ended: LoopCall, about: OpenCall, began: float) -> None:
        """Hear that an attempt has ended which was begun without a task."""
        call = about
        outcome: Outcome | None = None
        try:
            outcome = self.keeper.steps.outcome_of(ended, call.step.name)
        except (StepLoopEnded, WrongLibrary) as error:
            outcome = self._attempt_broke(error)
        except BaseException as error:  # KeyboardInterrupt: the program's
            self.keeper.spawn(_raise, error)
            return
        self._attempt_ended(call, outcome, began)

    def _attempt_broke(self, error: Exception) -> Outcome:
        """No outcome: of the lease, of the program, or of the code."""
        if isinstance(error, RunLeaseLost):
            self._leave("lost")
        elif isinstance(error, StepLoopEnded):
            self.keeper.abandon(self)
        else:
            self._leave("blocked", str(error))
        return ABANDONED

    def _attempt_ended(self, call: OpenCall, outcome: Outcome | None, began: float) -> None:
        """``outcome`` None: it was cancelled."""
        if self.is_gone or outcome is ABANDONED:
            return
        self.scopes.pop(call.path, None)
        if outcome is COMMITTED:
            call.is_running, call.is_written = False, True  # until it is read
            return
        try:
            if outcome is None:
                self.activation.attempt_stopped(call, abandoned=call.step.options.abandon)
            else:
                self.activation.attempt_ended(call, outcome, round((time.monotonic() - began) * 1000))
        except Exception as error:  # of ours, or of what the step gave: other runs go on
            self._give_up(error)
        self.keeper.arm(self)

    async def _attend(self, call: OpenCall, *, child: ChildCall, scope: trio.CancelScope, begins: bool) -> None:
        """Begin a child, or cancel it; one that is cancelled while it begins is cancelled then."""
        backend, key, begun = self.keeper.backend, self.activation.step_info(call).key, True
        refused: StartRefused | None = None
        try:
            with scope:
                if begins:
                    await self._keep_marks()
                    await self._ask(lambda: backend.start_child(self.leased, call.path, child, key))
                if call.stopping:
                    begun = await self._ask(lambda: backend.cancel_child(self.leased, call.path))
        except StartRefused as error:
            refused = error
        except RunLeaseLost:
            self._leave("lost")
        except Exception as error:  # of ours, or of the backend: other runs go on
            self._give_up(error)
        if self.is_gone:
            return
        self.scopes.pop(call.path, None)
        if refused is not None:
            self.activation.attempt_ended(call, Outcome(error=refused))
        elif begun:
            call.is_running, call.is_awaited = False, True
            if isinstance(child.target, Workflow):
                self.keeper.watch_child(self, child.target)
        else:
            self.activation.attempt_stopped(call)
        self.keeper.arm(self)

    async def _transact(self, call: StepCall, info: StepInfo, limiter: trio.CapacityLimiter) -> Outcome:
        if self.commits is None:
            self.commits = trio.Semaphore(0 if self.is_appending else 1)
        await self._keep_marks()
        return await self.keeper.backend.transact(self.leased, call, info, self.pos, _CommitPermit(self), limiter)

    async def _watch_stop(self, call: OpenCall, scope: trio.CancelScope | LoopCall) -> None:
        grace_s = self.keeper.limits.cancel_grace_s
        await trio.sleep(grace_s)
        if not self.is_gone and self.scopes.get(call.path) is scope:
            log.error(
                "stuck step: %r at %s of run %s was cancelled %.0f s ago and still runs; the run waits for its end",
                call.step.name, call.path, self.leased, grace_s,
            )  # fmt: skip


async def _raise(error: BaseException) -> None:
    raise error


def _is_same(stored: Record, sent: Record) -> bool:
    return (stored.kind, stored.path, stored.attempt) == (sent.kind, sent.path, sent.attempt)


class _CommitPermit:
    """The appends of a run, for a transaction that is about to write into its journal."""

    def __init__(self, run: LoadedRun) -> None:
        self._run = run

    async def begin(self) -> None:
        assert self._run.commits is not None
        await self._run.commits.acquire()

    def end(self, *, committed: bool) -> None:
        assert self._run.commits is not None
        self._run.commits.release()
        if committed:
            self._run.poll_again()
