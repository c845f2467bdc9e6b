"""One run in memory: its kernel, the calls that are open, and what is to be done about them. No I/O, no clock.

An *activation* follows each record: the body runs until all of its branches wait. `apply_record` takes one record,
`issue_commands` acts on what became of all that were fed: a start that a later record of the same group cancelled is
not begun. So a replay is one large group, and going on after a crash is the same as going on (`executor`, and
`penstock.testing` on a virtual clock, are its hosts).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from math import inf
from typing import Any, Protocol, cast

import msgspec

from penstock.durable.child import ChildCall
from penstock.durable.codec import PAYLOAD_MAX_BYTES, decode
from penstock.durable.errors import BadMessage, ContinueAsNew, NonRetryable, PayloadTooLarge, StepLost, Unencodable
from penstock.durable.failure import describe
from penstock.durable.forbidden import foreign_end
from penstock.durable.isolation import body_runs, close_left
from penstock.durable.step import StepCall, StepInfo
from penstock.durable.takes import schemas_of
from penstock.durable.updates import answer_of, refusal_of
from penstock.durable.verbs import RunInfo
from penstock.durable.workflow import Workflow, deadline_s
from penstock.kernel.branch import Branch
from penstock.kernel.current import current_branch
from penstock.kernel.drive import Kernel, RunLimits
from penstock.kernel.errors import Cancelled, Mismatch, NotAwaited, TooSlow, Undecodable
from penstock.kernel.operation import CallOperation, Outcome, Receive, Sleep, Start
from penstock.kernel.record import OUTCOMES, RULES, UPDATE_RULES, JournalKind, Record
from penstock.kernel.replay import marks_of
from penstock.kernel.scope import CancelScope
from penstock.kernel.updates import RunUpdates
from penstock.log.masking import mask_text

MAX_LOST = 3
MAX_SHOWN_BRANCHES = 1_000
MAX_SHOWN_REJECTED = 20
MAX_REASON_CHARS = 1_000
MAX_PUBLISHING_BRANCHES = 500
"""Of a run that publishes what it accepts: all that is written down of it fits an engine's limit."""
SCHEMAS_MAX_BYTES = 65_536
"""Of what one run accepts; names beyond it are published without."""
_GIVEN = re.compile(r", input_value=.*?(?=, input_type=\w+\])", re.DOTALL)
"""A value in pydantic's words: where its message is shown it may be hidden."""
MAX_NOT_AWAITED = 20
"""Places of a run that are told of."""


class OpenCall:
    """A step that was asked for and has no outcome. ``due``: it waits for its next attempt until then."""

    __slots__ = (
        "attempt", "begun_at", "due", "is_awaited", "is_begun", "is_running", "is_written", "lost", "path", "progress",
        "step", "stopping",
    )  # fmt: skip

    def __init__(self, start: Start, now: float) -> None:
        assert isinstance(start.call, StepCall)
        self.path, self.step = start.path, start.call
        self.attempt = 1
        self.begun_at = now
        self.due: float | None = None
        self.lost = 0  # attempts that were cut off: their lease ended
        self.is_begun = True  # as far as the journal tells: it waits for no next attempt
        self.is_running = self.stopping = False
        self.is_written = False  # its outcome is on the way
        self.is_awaited = False  # a child that has begun: whoever ends it writes the outcome
        self.progress: str | None = None  # JSON, as its heartbeats said


class RetryRecord(msgspec.Struct, frozen=True):
    """What the journal holds between two attempts: when the next one is due, when the step was asked for, the error,
    and how many attempts were lost so far. ``is_loss``: the attempt before was lost, and the next one has begun."""

    due: float
    begun_at: float
    error: msgspec.Raw = msgspec.Raw(b"null")
    lost: int = 0
    is_loss: bool = False


class CancelRequested(msgspec.Struct, frozen=True):
    """What the journal holds of a cancel from outside."""

    reason: str | None = None


class Draws(msgspec.Struct, frozen=True):
    """Of a run that was forked from others: up to the record at the position ``until`` its function draws as the run
    did that had this ``key``."""

    until: int
    key: str


class ContinuedRecord(msgspec.Struct, frozen=True):
    """What the journal of a run that has continued as a new one, or was forked from another one, begins with. ``view``
    is JSON, as text. ``forks``: oldest first. ``forked_from``: what the engine wrote of the fork, kept."""

    arguments: msgspec.Raw
    continuation: int
    view: str | None = None
    forks: list[Draws] = []
    forked_from: msgspec.Raw | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="forkedFrom")


class Rejected(msgspec.Struct, frozen=True):
    """A message that fits no `receive` that waits for its name: its position in hex, and where in it what is wrong."""

    name: str
    pos: str
    field: str
    reason: str


class Host(Protocol):
    """Who has the loop and the journal."""

    def now(self) -> float:
        """Return the time of the journal's clock, as far as is known here."""
        ...

    def begin(self, run: Activation, call: OpenCall) -> None:
        """Begin an attempt at the step; its end is told by `Activation.attempt_ended` or `attempt_stopped`."""
        ...

    def stop(self, run: Activation, call: OpenCall) -> None:
        """Cancel the attempt that runs; its end is told all the same."""
        ...

    def write(self, run: Activation, record: Record) -> None:
        """Append the record, then `apply_record` what was stored."""
        ...

    def step_failed(self, run: Activation, call: OpenCall, error: BaseException) -> None:
        """The last attempt at the step has failed: tell it."""
        ...


class Still:
    """The host of a replay: it begins nothing."""

    def now(self) -> float:
        """Never asked for what matters."""
        return 0.0

    def begin(self, run: Activation, call: OpenCall) -> None:
        """A step without a record."""

    def stop(self, run: Activation, call: OpenCall) -> None:
        """Never called: none has begun."""

    def write(self, run: Activation, record: Record) -> None:
        """Nothing is written by a replay."""

    def step_failed(self, run: Activation, call: OpenCall, error: BaseException) -> None:
        """Never called: none has begun."""


class Activation:
    """One run. Raises `Blocked` from `start` and `apply_record` when this code can't go on with its journal."""

    def __init__(
        self,
        workflow: Workflow[..., Any],
        run_id: str,
        arguments: str,
        started_at: float,
        host: Host,
        limits: RunLimits | None = None,
        warn: Callable[[str | NotAwaited], None] | None = None,
        *,
        epoch: int = 1,
        payload_max_bytes: int = PAYLOAD_MAX_BYTES,
        strict_args: bool = False,
        rules: int = RULES,
        max_lost: int = MAX_LOST,
    ) -> None:
        """``max_lost``: how often a step is executed again because its lease had ended."""
        self.workflow, self.run_id, self.host, self.epoch = workflow, run_id, host, epoch
        self._arguments, self.payload_max_bytes = arguments, payload_max_bytes
        started = datetime.fromtimestamp(started_at, UTC)
        self.info = RunInfo(run_id, workflow.name, workflow.version, started)
        deadline, self._unfit = inf, None
        try:
            if (limit_s := deadline_s(arguments)) != inf:
                deadline = started_at + limit_s
                self.info.deadline = datetime.fromtimestamp(deadline, UTC)
        except ValueError as error:
            self._unfit = error  # told when it starts, as of any other argument
        self._odd: list[str | NotAwaited] = []
        self.kernel = Kernel(
            started_at,
            self.info,
            limits,
            self._odd.append,
            deadline=deadline,
            strict_args=strict_args,
            rules=rules,
        )
        self.pos = 0  # of the last record
        self.cancel_reason: str | None = None  # what was said by who cancelled the run
        self.calls: dict[str, OpenCall] = {}
        self._warn = warn
        self.not_awaited: tuple[str, ...] = ()  # calls that the function dropped without an `await`, in words
        self._max_lost = max_lost
        self._forked_from: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
        self._draws: list[Draws] = []  # those of former runs that are still replayed, the next one to end first
        self._losses: dict[str, list[Record]] = {}  # by path, those that no append has yet
        self._unkept: set[str] = set()  # marks that were given to records which have not been fed yet
        self._touched: dict[str, None] = {}
        self._decided: set[str] = set()  # calls of updates whose acceptance or refusal is on the way
        self._answered: set[str] = set()  # likewise those whose answer is
        self._waiting: dict[str, OpenCall] = {}  # of these, those that have a next attempt

    @property
    def result(self) -> Outcome | None:
        """How the body ended; None while it is open."""
        return self.kernel.result

    @property
    def is_busy(self) -> bool:
        """Return whether a step runs, or its outcome is on the way."""
        return any(call.is_running or call.is_written for call in self.calls.values())

    # -- what goes in

    def start(
        self,
        *,
        replaying: bool = False,
        records: Sequence[Record] = (),
        more: bool = False,
        marks: Collection[str] = (),
    ) -> None:
        """The body's first activation. ``replaying``: it happened before, in a former life. ``records``: the first ones
        of its journal, to `apply_record` then, or ``more`` of them; all of their ``marks`` are these."""
        begun = records[0] if records and records[0].kind is JournalKind.BEGUN else None
        if begun is not None:
            self._begin_as(begun)
        self.info.replaying = replaying
        if records and (rules := records[0].rules) is not None:
            self.kernel.rules = rules
        self.kernel.marks = marks
        self.kernel.is_behind = replaying and (more or len(records) > (begun is not None))
        try:
            if self._unfit is not None:
                raise self._unfit
            body = self.workflow.body(self._arguments)
        except ValueError as error:
            raise Undecodable(f"{self.workflow.name} does not take the arguments of its start: {error}") from None
        with body_runs(self._left, muted=replaying):
            self.kernel.start(body)
        self._check_end()
        self._warn_odd()
        self._obey()

    def _begin_as(self, record: Record) -> None:
        """The run has continued as a new one with that record."""
        begun = decode(record.payload or "", ContinuedRecord)
        self._arguments = bytes(begun.arguments).decode()
        self.info.continuation, self.info.view = begun.continuation, begun.view
        self.kernel.now, self._forked_from = record.at, begun.forked_from
        self._draws = [each for each in begun.forks if each.until > 0]
        self._draw_on()

    def _draw_on(self) -> None:
        """Draw as the run that the next records are of."""
        while self._draws and self._draws[0].until < self.pos:
            del self._draws[0]
        self.info.draws_as = self._draws[0].key if self._draws else None

    def apply_record(self, record: Record, *, replaying: bool = False, behind: bool = False) -> None:
        """One record that is durable, and the activation that follows from it. ``replaying`` as in `start`;
        ``behind``: there are others behind it."""
        self.info.replaying, self.kernel.is_behind, self.pos = replaying, behind, record.pos
        if self._draws:
            self._draw_on()
        try:
            with body_runs(self._left, muted=replaying):
                self.kernel.deliver(record)
        except Mismatch as error:
            raise error if error.where else error.at(self.workflow.where) from None
        self._check_end()
        if self._odd:
            self._warn_odd()
        if record.mark is not None:
            self._unkept.discard(record.mark)
        if record.kind in OUTCOMES:
            self.calls.pop(record.path, None)
            self._waiting.pop(record.path, None)
            self._losses.pop(record.path, None)
        elif record.kind is JournalKind.RETRY and (call := self.calls.get(record.path)) is not None:
            self._read_retry(call, record.attempt, decode(record.payload or "", RetryRecord))
        elif record.kind is JournalKind.CANCEL and not record.path and record.payload is not None:
            self.cancel_reason = _cancel_reason(record.payload)
        self._obey()

    def _read_retry(self, call: OpenCall, attempt: int, retry: RetryRecord) -> None:
        if retry.is_loss and (call.is_running or call.is_written):  # of this attempt, which goes on
            return
        call.attempt, call.due, call.begun_at, call.lost = attempt + 1, retry.due, retry.begun_at, retry.lost
        call.is_written, call.is_begun = False, retry.is_loss
        self._waiting[call.path] = call
        self._touched[call.path] = None

    def replay(self, records: Sequence[Record]) -> None:
        """A whole journal, as far as it goes; nothing of it is acted on. Raises `Blocked`."""
        self.start(replaying=True, records=records, marks=marks_of(records))
        self.reapply_records(records)

    def reapply_records(self, records: Sequence[Record], *, more: bool = False) -> None:
        """Records that a former life of the run was fed; with ``more`` its journal has others behind them."""
        for left, record in zip(range(len(records) - 1, -1, -1), records, strict=True):
            self.apply_record(record, replaying=True, behind=more or left > 0)

    def marked(self, records: Sequence[Record] = ()) -> list[Record]:
        """Return those to be appended next, with what `patched` said yes to since the last ones; where these are too
        few, records of the clock carry the rest. Those that have a mark were to be appended before, and keep it."""
        kernel = self.kernel
        if self._losses and records:
            records, self._losses = [*chain.from_iterable(self._losses.values()), *records], {}
        if not kernel.unwritten:
            return list(records)
        marks, kernel.unwritten = deque(kernel.unwritten), []
        self._unkept.update(marks)
        marked = [
            msgspec.structs.replace(record, mark=marks.popleft()) if marks and record.mark is None else record
            for record in records
        ]
        return marked + [
            Record(at=kernel.now, kind=JournalKind.CLOCK, mark=mark, rules=kernel.newest) for mark in marks
        ]

    @property
    def has_unkept_marks(self) -> bool:
        """Return whether the body was told something for good that the journal does not hold yet."""
        return bool(self.kernel.unwritten or self._unkept)

    def issue_commands(self, lost: int = 0) -> None:
        """Acts on what the records since the last time asked for. ``lost``: so many leases of the run have ended
        since its last record, so the steps that are open were cut off as often."""
        self.info.replaying = False
        touched, self._touched = self._touched, {}
        for path in touched:
            call = self.calls.get(path)
            if call is None or call.is_written:
                continue
            if call.stopping:
                if call.is_running or isinstance(call.step, ChildCall):
                    self.host.stop(self, call)
                else:
                    self.attempt_stopped(call)
            elif not (call.is_running or call.is_awaited) and (call.due is None or call.due <= self.host.now()):
                if lost and not isinstance(call.step, ChildCall):
                    self._begin_lost(call, lost)
                else:
                    self._begin(call)
        if self.kernel.updates is not None:
            self._answer_updates(self.kernel.updates)

    def _answer_updates(self, updates: RunUpdates) -> None:
        """Checks the calls that nobody has checked, and writes down what handlers gave."""
        for asked in updates.callable():
            if asked.path in self._decided:
                continue
            self._decided.add(asked.path)
            with body_runs(self._left):
                problem = updates.problem_of(asked)
            if problem is None:
                record = Record(0, JournalKind.ACCEPTED, asked.path, asked.name, updates.as_of, rules=UPDATE_RULES)
            else:  # it takes the call at this position out of the journal
                text = refusal_of(problem[:MAX_REASON_CHARS])
                record = Record(0, JournalKind.REFUSED, asked.path, str(asked.pos), text, rules=UPDATE_RULES)
            self.host.write(self, record)
        for id, (name, outcome) in updates.answers.items():
            if id not in self._answered:
                self._answered.add(id)
                text = answer_of(name, outcome, self.payload_max_bytes)
                self.host.write(self, Record(0, JournalKind.ANSWERED, id, name, text, rules=UPDATE_RULES))

    def _begin_lost(self, call: OpenCall, lost: int) -> None:
        """Execute a step again whose attempts were cut off, or fail it. The next append tells the journal of each."""
        if not call.is_begun:  # at the first of these ends it waited, for all that is known
            lost -= 1
        ran_s = max(0.0, self.host.now() - call.begun_at)
        text = (
            f"the lease of run {self.run_id} ended while step {call.step.name!r} at {call.path} ran, {ran_s:.0f} s"
            " after it was asked for"
        )
        again = ""
        for number in range(call.lost + min(lost, 1), min(call.lost + lost, self._max_lost) + 1):
            again = f"{text}: executed again, {number} of {self._max_lost}"
            attempt = call.attempt + number - call.lost - 1
            self._losses.setdefault(call.path, []).append(self._loss(call, again, number, attempt))
        call.lost += lost
        call.attempt += lost
        if call.lost > self._max_lost:
            error = StepLost(
                f"{text}. It was executed again {self._max_lost} times, as App(max_lost=…) allows. A step must not end"
                " its process, nor keep it from running for longer than the lease (code that holds the GIL): move such"
                " work into a process of its own"
            )
            self._write(call, JournalKind.FAILED, call.step.encode_error(error, self.kernel.newest), None)
            return
        if self._warn is not None and lost:
            self._warn(again)
        self._begin(call)

    def _loss(self, call: OpenCall, text: str, number: int, attempt: int) -> Record:
        """An attempt that was cut off, the ``number``-th one of its step."""
        met = msgspec.Raw(call.step.encode_error(StepLost(text), self.kernel.newest).encode())
        retry = RetryRecord(self.host.now(), call.begun_at, met, number, is_loss=True)
        return self._record(call, JournalKind.RETRY, msgspec.json.encode(retry).decode(), None, attempt)

    def next_due(self) -> float:
        """When `wake` has something to do, `inf` for never."""
        due = self.kernel.next_due() if self.result is None else inf
        for call in self._waiting.values():
            due = min(due, call.due or due)
        return due

    def wake(self) -> None:
        """Begins attempts that are due. Asks for a record of the clock when a sleep or a deadline of the body is. Not
        to be called before that was fed, or was lost."""
        now = self.host.now()
        for call in list(self._waiting.values()):
            if call.due is None or call.due <= now:
                self._begin(call)
        due = self.kernel.next_due()
        if due <= now and self.result is None:
            self.host.write(self, Record(at=due, kind=JournalKind.CLOCK, rules=self.kernel.newest))

    def attempt_ended(self, call: OpenCall, outcome: Outcome, took_ms: int | None = None) -> None:
        """An attempt at a step has ended by itself: what it gave is written, or it is tried again."""
        call.is_running = False
        if outcome.error is None:
            try:
                text = call.step.encode_value(outcome.value, call.path, self.payload_max_bytes)
            except (Unencodable, PayloadTooLarge) as error:  # it would be so again
                self.host.step_failed(self, call, error)
                self._write(call, JournalKind.FAILED, call.step.encode_error(error, self.kernel.newest), took_ms)
            else:
                self._write(call, JournalKind.DONE, text, took_ms)
            return
        pause_s = None if call.stopping else self._pause_s(call, outcome.error)
        if pause_s is None:
            if not call.stopping:
                self.host.step_failed(self, call, outcome.error)
            self._write(call, JournalKind.FAILED, call.step.encode_error(outcome.error, self.kernel.newest), took_ms)
            return
        failed, most = call.attempt - call.lost, call.step.options.retries + 1
        if self._warn is not None:
            failed_text = f"{call.step.name!r} at {call.path} failed, attempt {failed} of {most}"
            self._warn(f"step {failed_text}: {mask_text(describe(outcome.error))}. It is tried again in {pause_s:g} s")
        met = msgspec.Raw(call.step.encode_error(outcome.error, self.kernel.newest).encode())
        retry = RetryRecord(self.host.now() + pause_s, call.begun_at, met, call.lost)
        self._write(call, JournalKind.RETRY, msgspec.json.encode(retry).decode(), took_ms)

    def attempt_stopped(self, call: OpenCall, *, abandoned: bool = False) -> None:
        """An attempt was cancelled and has really ended, or was never begun; or nobody waits for its thread."""
        call.is_running = False
        self._write(call, JournalKind.ABANDONED if abandoned else JournalKind.STOPPED, None, None)

    def discard(self) -> None:
        """Gives this copy of the run up: another executor has the run, or will."""
        with body_runs(self._left, muted=True, ending=True):
            self.kernel.discard()
        self.calls.clear()
        self._warn, self.host = None, Still()  # it leads back here: garbage that needs the collector

    # -- a body that goes on as a new one

    def continuation(self) -> Record | None:
        """Return the first record of its journal then; None where the body did not ask for it, or was cancelled. Raises
        TypeError, `Unencodable` and `PayloadTooLarge` for arguments that it can't have."""
        asked = None if self.result is None else _continues(self.result.error)
        if asked is None or self.kernel.root.cancel_called:
            return None
        arguments = self.workflow.encode_arguments(*asked.arguments, max_bytes=self.payload_max_bytes)
        number, view = self.info.continuation + 1, self.info.view
        begun = ContinuedRecord(msgspec.Raw(arguments.encode()), number, view, forked_from=self._forked_from)
        payload = msgspec.json.encode(begun).decode()
        return Record(0, JournalKind.BEGUN, name=str(begun.continuation), payload=payload)

    def unread(self) -> list[int]:
        """The positions of the messages that nobody has received, in their order: one that was sent in place of another
        stands where that did. Then those of the calls of updates that have not begun."""
        left = [letter for mailbox in self.kernel.mail.values() for letter in mailbox.free]
        asked = () if self.kernel.updates is None else self.kernel.updates.waiting.values()
        return [
            *(letter.record.pos for letter in sorted(left, key=lambda letter: letter.number)),
            *(record.pos for record in asked),
        ]

    def ending(self) -> Outcome:
        """How the body ended; of one that asked to go on, and was cancelled: so."""
        assert self.result is not None
        if _continues(self.result.error) is None or not self.kernel.root.cancel_called:
            return self.result
        over = self.kernel.root.expired
        return Outcome(error=TooSlow("the deadline of the run is over") if over else Cancelled())

    # -- what is shown

    def step_info(self, call: OpenCall) -> StepInfo:
        """For the step, of itself."""
        return StepInfo(f"{self.info.key}{call.path}", call.attempt, self.run_id, self.epoch, call)

    def waits(self) -> list[dict[str, Any]]:
        """What is open, as JSON values with a path: nurseries, branches, and what each waits for. No record says it.
        Nor which calls the function has dropped without an `await`: these come last."""
        shown: dict[str, dict[str, Any]] = {
            scope.path: {"kind": "scope", "due_at": scope.deadline} for scope in self._limited_scopes()
        }
        for branch in sorted(self.kernel.open_branches(), key=lambda branch: branch.ticket)[:MAX_SHOWN_BRANCHES]:
            if branch.nursery is not None:
                shown[branch.nursery.path] = {"kind": "nursery"}
                shown[branch.path] = {"kind": "branch"}
            if (found := self._wait_of(branch)) is not None:
                path, what = found
                shown[path] = {name: value for name, value in what.items() if value is not None}
        if self.kernel.updates is not None and self.kernel.updates.handlers:
            shown[self.kernel.updates.path] = {"kind": "nursery"}
            for name in list(self.kernel.updates.handlers)[:MAX_SHOWN_BRANCHES]:
                shown[f"{self.kernel.updates.path}/{name}"] = {"kind": "update", "name": name}
        for number, text in enumerate(self.not_awaited, 1):
            shown[f"!{number}"] = {"kind": "not awaited", "name": text}
        return [{"path": path, **what} for path, what in shown.items()]

    @property
    def rejects(self) -> bool:
        """Return whether there are messages that fit no receive that waits for their names."""
        return any(mailbox.rejected for mailbox in self.kernel.mail.values())

    def rejected(self) -> list[Rejected]:
        """Return the oldest of those, `MAX_SHOWN_REJECTED` at most."""
        found: list[Rejected] = []
        for name, mailbox in self.kernel.mail.items():
            receive = next(iter(mailbox.waiters.values()), None)
            if not isinstance(receive, Receive):
                continue
            for letter in islice(mailbox.free, MAX_SHOWN_REJECTED - len(found)):
                error = receive.outcome(letter.record).error
                reason, field = ("", "") if not isinstance(error, BadMessage) else (error.reason, error.field)
                reason = mask_text(_GIVEN.sub("", reason))
                found.append(Rejected(name, f"{letter.record.pos:x}", _plain(field), _plain(reason)))
        return found

    def published(self) -> list[dict[str, Any]]:
        """What others need to know of an open run: `waits`, and with the first `receive` of each name which messages
        are accepted (``accepts``, JSON schemas of which one must fit; absent where any may come) and which were
        rejected. ``as_of``: that was so behind the record at this position."""
        shown = self.waits()
        first = {wait["name"]: wait for wait in reversed(shown) if wait["kind"] == "receive"}
        room = SCHEMAS_MAX_BYTES if len(shown) <= MAX_PUBLISHING_BRANCHES else 0
        for name, wait in first.items():
            mailbox = self.kernel.mail[name]
            wait["as_of"] = f"{self.pos:x}"
            accepts = schemas_of(mailbox.waiters.values())
            if accepts is not None and (room := room - sum(map(len, accepts))) >= 0:
                wait["accepts"] = [msgspec.Raw(schema) for schema in accepts]
            if mailbox.rejected:
                wait["rejects"] = mailbox.rejected
        for each in self.rejected():
            if (wait := first.get(each.name)) is not None:
                about = {"pos": each.pos, "field": each.field, "reason": each.reason}
                wait.setdefault("rejected", []).append(about)
        return shown

    def _limited_scopes(self) -> list[CancelScope]:
        """The open scopes of the body that have a deadline."""
        found: list[CancelScope] = []
        scopes = list(self.kernel.root.scopes)
        while scopes and len(found) < MAX_SHOWN_BRANCHES:
            scope = scopes.pop()
            scopes.extend(scope.scopes)
            if scope.deadline != inf:
                found.append(scope)
        return found

    def _wait_of(self, branch: Branch) -> tuple[str, dict[str, Any]] | None:
        operation, where = branch.operation, branch.where()
        if isinstance(operation, CallOperation):
            call = self.calls.get(operation.path)
            kind = "child" if isinstance(operation.call, ChildCall) else "step"
            step: dict[str, Any] = {"kind": kind, "name": operation.call.name, "where": where}
            if call is not None:
                progress = None if call.progress is None else msgspec.Raw(call.progress.encode())
                step |= {"attempt": call.attempt, "due_at": call.due, "progress": progress}
            return operation.path, step
        if isinstance(operation, Receive):
            return operation.path, {"kind": "receive", "name": operation.name, "where": where}
        if isinstance(operation, Sleep):
            path = f"{branch.path}/{branch.entered - 1}"
            return path, {"kind": "sleep", "due_at": operation.due, "where": where}
        return None

    def waits_in_words(self) -> str:
        """What the run waits for, for a person."""
        words: list[str] = []
        for wait in self.waits():
            due = wait.get("due_at")
            at = f" until {datetime.fromtimestamp(due, UTC).astimezone():%Y-%m-%d %H:%M:%S}" if due else ""
            what = {
                "sleep": f"sleep{at}",
                "receive": f"message {wait.get('name')!r}",
                "step": f"{wait.get('name')}{at}",
                "child": f"child {wait.get('name')!r}",
            }
            if wait["kind"] in what:
                words.append(f"{what[wait['kind']]} ({wait.get('where')})")
        return ", ".join(words[:5]) + (f" and {len(words) - 5} more" if len(words) > 5 else "")

    # -- inside

    def _check_end(self) -> None:
        """Raises `ForeignAwait` where the body ended as an event loop of another kind is not there."""
        if self.result is not None and (foreign := foreign_end(self.result.error)) is not None:
            raise foreign

    def _warn_odd(self) -> None:
        """Only when the function waits: what is logged within is dropped at replay. Each call without an await is told
        once: a loop comes by often, and a former life of the run has told of what is replayed."""
        for found in self._odd:
            if isinstance(found, NotAwaited):
                if str(found) in self.not_awaited or len(self.not_awaited) >= MAX_NOT_AWAITED:
                    continue
                self.not_awaited = (*self.not_awaited, str(found))
                if self.info.replaying:
                    continue
            if self._warn is not None:
                self._warn(found)
        self._odd.clear()

    def _left(self, generator: Any) -> None:
        branch = current_branch()
        close_left(generator, is_mine=branch is not None and branch.kernel is self.kernel)

    def _obey(self) -> None:
        for command in self.kernel.take_commands():
            if isinstance(command, Start):
                self.calls[command.path] = OpenCall(command, self.kernel.now)
            elif (call := self.calls.get(command.path)) is not None:
                call.stopping = True
            self._touched[command.path] = None

    def _begin(self, call: OpenCall) -> None:
        call.is_running, call.due = True, None
        self._waiting.pop(call.path, None)
        self.host.begin(self, call)

    def _write(self, call: OpenCall, kind: JournalKind, payload: str | None, took_ms: int | None) -> None:
        call.is_written, call.due = True, None
        self._waiting.pop(call.path, None)
        self.host.write(self, self._record(call, kind, payload, took_ms, call.attempt))

    def _record(
        self, call: OpenCall, kind: JournalKind, payload: str | None, took_ms: int | None, attempt: int
    ) -> Record:
        step, rules = call.step, self.kernel.newest
        digest = step.digest_by(rules)
        return Record(0, kind, call.path, step.name, payload, digest, attempt, 0, took_ms, None, rules)

    def _pause_s(self, call: OpenCall, error: BaseException) -> float | None:
        """Until the next attempt; None when there is none."""
        options = call.step.options
        failed = call.attempt - call.lost
        if failed > options.retries or isinstance(error, (NonRetryable, *options.raises)):
            return None
        pause_s = options.pause_s(failed)
        if options.within_s is not None and self.host.now() + pause_s - call.begun_at > options.within_s:
            return None
        return pause_s


def _plain(text: str) -> str:
    """What is wrong with a message, as a database keeps it: a user's validator may have said it."""
    return text[:MAX_REASON_CHARS].replace("\0", "\ufffd").encode(errors="replace").decode()


def _continues(error: BaseException | None) -> ContinueAsNew | None:
    """What is asked for by an error that has gone through the body, and through nurseries."""
    while isinstance(error, BaseExceptionGroup):
        [error, *others] = cast("BaseExceptionGroup[BaseException]", error).exceptions
        if others:
            return None
    return error if isinstance(error, ContinueAsNew) else None


def _cancel_reason(payload: str) -> str | None:
    try:
        reason: str | None = decode(payload, CancelRequested).reason
    except ValueError:  # of another version: it is for people only
        return None
    return reason
