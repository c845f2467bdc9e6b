"""Bodies of workflows in memory, on a virtual clock: `run_workflow`. No database; a month takes milliseconds.

Each run is replayed from its own journal, and must come out the same.
"""

from __future__ import annotations

import contextvars
import heapq
import re
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from types import CoroutineType
from typing import Any, Generic, NoReturn, ParamSpec, TypedDict, TypeVar, TypeVarTuple, Unpack, cast, overload

import msgspec

from penstock.durable.activation import Activation, OpenCall
from penstock.durable.check import SavedRun
from penstock.durable.child import ChildCall, ChildEnd
from penstock.durable.codec import decode, encode
from penstock.durable.duration import Duration, seconds_of
from penstock.durable.errors import PayloadTooLarge, Unencodable, UpdateFailed, UpdateRefused
from penstock.durable.failure import describe
from penstock.durable.forbidden import calls_checked, watch_bodies
from penstock.durable.given import check_int, check_kind, seconds_given, wrong
from penstock.durable.isolation import LoopWatch, cpu_clock, mute_replayed_logs
from penstock.durable.step import Step, StepCall, StepInfo, current_sender, current_starter, current_step
from penstock.durable.step_loop import Backend, WrongLibrary
from penstock.durable.updates import Answer
from penstock.durable.workflow import Workflow, workflow_in
from penstock.kernel.drive import RunLimits
from penstock.kernel.errors import Endless, NotAwaited, TooSlow
from penstock.kernel.operation import Outcome
from penstock.kernel.record import FROM_OTHERS, RULES, JournalKind, Record
from penstock.kernel.unawaited import places_kept
from penstock.testing.shadow import replay_elsewhere, seen
from penstock.testing.virtual_loops import checked_backend, run_step
from penstock.user_text import repr_of

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")
STARTED_AT = datetime(2030, 1, 1, tzinfo=UTC)
MAX_RECORDS = 20_000
"""Of a run of a test and those that it continues as, if it does not say another ``max_records``: some seconds."""
MAX_TICKS = 2_000
"""Times that the clock moved on, one after the other, and nothing else happened."""
LIMITS = RunLimits(max_resumes=50_000)
"""Of a run of a test: a loop that never waits, as of `sleep(0)`, ends within seconds."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""In the text of an object that has none of its own: another one in each life of a run."""
MAX_VIRTUAL_S = 100 * 366 * 86_400.0
MAX_NESTED = 30
"""Children one within the other."""
SHOWN_MAX = 10
"""Branches that an error names."""
NO_END = "a workflow function without an end? `cancel_after=` or `deadline=` ends it"


class StuckWorkflow(AssertionError):
    """The run would wait for ever, as nothing will come, or never end."""


class NotDeterministic(AssertionError):
    """Replayed from its own journal the run came out differently."""


class Message(msgspec.Struct, frozen=True):
    """Sent to the run that long after its start."""

    name: str
    value: Any = None
    after: Duration = 0.0


class Ask(msgspec.Struct, frozen=True):
    """A call of an update, that long after the start of the run. ``arguments``: a list by position, or a dictionary by
    name. ``id`` finds its answer in `WorkflowRun.answers`; by default it is the update's name."""

    name: str
    arguments: Any = ()
    after: Duration = 0.0
    id: str = ""


class Takes(msgspec.Struct, frozen=True):
    """A stand-in for a step that takes its time: ``function`` is called when it is over, never if cancelled before."""

    duration: Duration
    function: Callable[..., Any] | None = None


Fakes = Mapping[Step[..., Any] | Workflow[..., Any] | str, Callable[..., Any] | Takes]
"""What stands in for steps, workflows and definitions."""


class Called(msgspec.Struct, frozen=True):
    """An attempt at a step that ended."""

    step: str
    path: str
    attempt: int
    after: timedelta


class Sent(msgspec.Struct, frozen=True):
    """A message to another run."""

    run_id: str
    name: str
    value: Any


class Started(msgspec.Struct, frozen=True):
    """A run that the body has started, and does not wait for."""

    workflow: str
    version: int
    arguments: dict[str, Any]
    id: str


class WorkflowRun(msgspec.Struct, Generic[R]):
    """What became of a run. ``journal`` is what an engine would have stored."""

    value: R | None
    error: BaseException | None
    took: timedelta
    journal: list[Record]
    calls: list[Called]
    stopped: list[str]  # paths of steps that were cancelled while they ran
    view: str | None  # JSON
    sent: list[Sent]  # to other runs
    started: list[Started]
    answers: dict[str, Any]  # by the id of an `Ask`: what the handler gave, or an error. None of one without an answer
    former: list[Record]  # of the runs that continued as a new one
    saved: SavedRun  # what `save_journal` keeps

    def result(self) -> R:
        """Return what the workflow function gave, or raise what it raised."""
        if self.error is not None:
            raise self.error
        return cast("R", self.value)


class RunOptions(TypedDict, total=False):
    """The options of `run_workflow`, which says what they mean."""

    steps: Fakes | None
    messages: Sequence[Message | Ask]
    cancel_after: Duration | None
    deadline: Duration | None
    seed: str | int
    started_at: datetime
    limits: RunLimits | None
    shadow: bool
    backend: Backend | None
    max_records: int


@overload
def run_workflow(workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> WorkflowRun[R]: ...
@overload
def run_workflow(
    workflow: Callable[[*Ts], Coroutine[Any, Any, R]], /, *args: *Ts, **options: Unpack[RunOptions]
) -> WorkflowRun[R]: ...
def run_workflow(  # type: ignore[misc]  # a parameter with the name of an option: the option gets what is given
    workflow: Any,
    /,
    *args: Any,
    steps: Fakes | None = None,
    messages: Sequence[Message | Ask] = (),
    cancel_after: Duration | None = None,
    deadline: Duration | None = None,
    seed: str | int = "test",
    started_at: datetime = STARTED_AT,
    limits: RunLimits | None = None,
    shadow: bool = False,
    backend: Backend | None = None,
    max_records: int = MAX_RECORDS,
    **kwargs: Any,
) -> WorkflowRun[Any]:
    """Run a workflow function to its end and give what became of it.

    Steps take no time on the virtual clock of the run unless they are stood in for by `Takes`. Retries, time limits and
    pauses are kept to. An async step has a loop with a virtual clock of its own: it may sleep for an hour, which takes
    no time.

    Args:
        workflow: the workflow.
        args: its arguments, as ``kwargs``. Beside options, give those by keyword in a `functools.partial`.
        steps: stand-ins for steps, which are called otherwise; by workflow for children, which run in memory otherwise;
            by id for definitions, which have to be stood in for.
        messages: what is sent to the run, and calls of its updates (`Ask`), each so long after its start.
        cancel_after: a cancel from outside so long after the start.
        deadline: so long after its start the run is cancelled, as of `App.start`.
        seed: the run's id, which `rng` and `uuid4` follow from.
        started_at: the time of its start.
        limits: of the run; those of an App by default.
        shadow: the run is replayed in another process, too, where sets have another order. That takes half a second.
        backend: the loop of async steps, ``"asyncio"`` or ``"trio"``. By default that of an App: Trio in a test that
            runs in Trio, asyncio in any other.
        max_records: so many records of the run, and of those that it continues as, or attempts at its steps, are taken
            for no end; 20,000 by default. The engine's own limit is 100,000 (`journal_max_records`).

    Raises:
        StuckWorkflow: the run would wait for ever, or never end.
        NotAwaited: the workflow function called a step, or a verb such as `sleep`, without `await`.
        NotDeterministic: replayed from its journal it came out differently.
        Blocked: an engine would block the run; also for a workflow function that asks Python for the time or chance.
    """
    workflow, args, kwargs = workflow_in(workflow, args, kwargs)
    _check_options(steps, messages, started_at, limits, max_records)
    watch_bodies()
    mute_replayed_logs()  # the run is replayed when it has ended
    arguments = workflow.encode_arguments(args, kwargs, deadline=deadline)
    loop = checked_backend(backend)
    memory = Memory(workflow, arguments, steps or {}, str(seed), started_at, limits, loop, max_records=max_records)
    memory.send(messages)
    if cancel_after is not None:
        memory.plan(seconds_given("cancel_after", cancel_after), Record(at=0, kind=JournalKind.CANCEL))
    with calls_checked(), places_kept(), LoopWatch(cpu_clock()):
        outcome = memory.run()
        memory.check_replay(outcome)
    if shadow:
        memory.check_elsewhere(outcome)
    return memory.seen(outcome)


def _check_options(steps: object, messages: object, started_at: object, limits: object, max_records: object) -> None:
    check_kind("steps", steps, Mapping, "a dictionary, as {charge: fake_charge}")
    for key in cast("Mapping[object, object]", steps or {}):
        check_kind(
            "a key of steps", key, (Step, Workflow, str), "the @step or @workflow function, or a definition's id"
        )
    check_messages(messages)
    check_kind("started_at", started_at, datetime, "a datetime")
    check_kind("limits", limits, RunLimits, "a Limits")
    check_int("max_records", max_records, 1)


def check_messages(messages: object) -> None:
    """Raise TypeError for what is no list of messages and calls of updates."""
    check_kind("messages", messages, Sequence, 'a list, as [Message("approval", True)]')
    for message in cast("Sequence[object]", messages):
        if not isinstance(message, (Message, Ask)):
            raise TypeError(wrong("messages", messages, 'a list, as [Message("approval", True)]'))


def _record_of(message: Message | Ask) -> Record:
    name = message.name
    if isinstance(message, Message):
        return Record(at=0, kind=JournalKind.MESSAGE, name=name, payload=encode(message.value, f"message {name!r}"))
    text = encode(message.arguments, f"the arguments of update {name!r}")
    return Record(at=0, kind=JournalKind.ASKED, path=message.id or name, name=name, payload=text)


class Memory:
    """The host of one activation on a virtual clock: a heap of what will come."""

    def __init__(
        self,
        workflow: Workflow[Any, Any],
        arguments: str,
        fakes: Fakes,
        run_id: str,
        started_at: datetime,
        limits: RunLimits | None,
        backend: Backend = "asyncio",
        *,
        max_records: int = MAX_RECORDS,
        nested: int = 0,
    ) -> None:
        self._backend: Backend = backend
        self._max_records = max_records
        self.fakes = {each.name: fake for each, fake in fakes.items() if isinstance(each, Step)}
        self._children = {
            each if isinstance(each, str) else each.name: fake
            for each, fake in fakes.items()
            if not isinstance(each, Step)
        }
        self._nested = partial(
            Memory, fakes=fakes, limits=limits, backend=backend, max_records=max_records, nested=nested + 1
        )
        if nested > MAX_NESTED:
            raise StuckWorkflow(
                f"{MAX_NESTED} children, each called by the one before, and no end: {workflow.name} stands deepest"
            )
        self._begun: set[str] = set()  # paths of children
        self.began = self._at = started_at.timestamp()
        self._saved = partial(SavedRun, workflow.name, workflow.version, run_id, arguments, self.began, rules=RULES)
        self._activate: Callable[[], Activation] = partial(
            Activation, workflow, run_id, arguments, self.began, self, limits or LIMITS, strict_args=True
        )
        self.activation = self._activate()
        self.journal: list[Record] = []
        self.former: list[Record] = []
        self.attempts: list[Called] = []
        self.stopped: list[str] = []
        self.sent: list[Sent] = []
        self.started: list[Started] = []
        self.answers: dict[str, Any] = {}
        self._written: deque[Record] = deque()
        self._coming: list[tuple[float, int, Record | OpenCall]] = []
        self._running: dict[str, int] = {}  # by path the number of the planned end
        self._planned = self._ticks = 0

    def plan(self, after_s: float, what: Record | OpenCall) -> None:
        """Comes that many seconds after now."""
        self._planned += 1
        heapq.heappush(self._coming, (self._at + after_s, self._planned, what))

    def send(self, messages: Sequence[Message | Ask]) -> None:
        """Plan messages to the run, and calls of its updates."""
        for message in messages:
            self.plan(seconds_given(f"after of message {message.name!r}", message.after), _record_of(message))

    def run(self) -> Outcome:
        """To the end of the body, and of those that it continues as."""
        begun = False
        while True:
            try:
                if not begun:
                    begun = True
                    self.activation.start()
                    self.activation.issue_commands()
                self._run_one()
            except Endless as error:
                self.activation.discard()
                hint = (
                    "a workflow function without an end? A loop of `sleep(0)`, or without an await, lets no time pass"
                )
                raise Endless(f"{error}: {hint}") from None
            self._check_awaited()
            ended = _ended(self.activation)
            if isinstance(ended, Outcome):
                return ended
            self._continue(ended)
            self._check_records()

    def _check_awaited(self) -> None:
        forgotten, result = self.activation.not_awaited, self.activation.result
        if forgotten:
            self.activation.discard()
            raise NotAwaited("; ".join(forgotten)) from (None if result is None else result.error)

    def _continue(self, begun: Record) -> None:
        by_pos = {record.pos: record for record in self.journal}
        messages = [by_pos[pos] for pos in self.activation.unread()]
        self.former += self.journal
        self.journal = [
            msgspec.structs.replace(record, at=self._at, pos=pos) for pos, record in enumerate((begun, *messages), 1)
        ]
        self._begun.clear()
        self.activation = self._activate()
        self.activation.start(records=self.journal)
        for record in self.journal:
            self.activation.apply_record(record)
        self.activation.issue_commands()

    def _run_one(self) -> None:
        while True:
            self._run_on()
            answer = next((each for each in self._written if each.kind is JournalKind.ANSWERED), None)
            if answer is None:
                break
            self._written.remove(answer)  # of a handler that ended with the run
            self.deliver(answer)
        self._written.clear()

    def _run_on(self) -> None:
        while self.activation.result is None:  # another one after a crash
            self._check_awaited()
            self._check_records()
            if self._ticks > MAX_TICKS:
                self._stop(f"the clock moved on {MAX_TICKS:,} times and nothing else happened: {NO_END}")
            if self._at - self.began > MAX_VIRTUAL_S:
                self._stop(f"more than 100 years passed and no end: {NO_END}")
            if self._written:
                self.deliver(self._written.popleft())
                continue
            due = self.activation.next_due()
            coming = self._coming[0][0] if self._coming else inf
            if min(due, coming) == inf:
                self._stuck()
            self._at = max(self._at, min(due, coming))
            if due <= coming:
                self.activation.wake()
                continue
            _, number, what = heapq.heappop(self._coming)
            if isinstance(what, Record):
                if what.kind is not JournalKind.CHILD or what.path in self.activation.calls:
                    self.deliver(what)
            elif self._running.get(what.path) == number:
                del self._running[what.path]
                self._end(what)

    def _check_records(self) -> None:
        if max(len(self.former) + len(self.journal), len(self.attempts)) >= self._max_records:
            enough = "one that needs more gives `max_records=`"
            self._stop(f"{self._max_records:,} records, or attempts at steps, and no end: {NO_END}, {enough}")

    def deliver(self, record: Record) -> None:
        """Into the journal, and to the body."""
        self._ticks = self._ticks + 1 if record.kind is JournalKind.CLOCK else 0
        unmarked = record.kind in FROM_OTHERS or record.kind is JournalKind.REFUSED  # of others, or not stored
        for each in [record] if unmarked else self.activation.marked([record]):
            stored = msgspec.structs.replace(each, at=self._at, pos=(self.journal[-1].pos if self.journal else 0) + 1)
            if each.kind in (JournalKind.ASKED, JournalKind.ANSWERED, JournalKind.REFUSED):
                self.remember_call(each)
            if each.kind is not JournalKind.REFUSED:
                self.journal.append(stored)
            self.activation.apply_record(stored)
        self.activation.issue_commands()

    def remember_call(self, record: Record) -> None:
        """Keep what a test sees of a call. One that is refused leaves the journal."""
        if record.kind is JournalKind.ASKED:
            self.answers[record.path] = None
            return
        answer, name = decode(record.payload or "", Answer), record.name or ""
        if record.kind is JournalKind.REFUSED:  # its name is the position of the call
            asked = (JournalKind.ASKED, record.path)
            name = next((each.name or "" for each in self.journal if (each.kind, each.path) == asked), "")
            self.journal = [each for each in self.journal if (each.kind, each.path) != asked]
        if answer.refused is not None:
            self.answers[record.path] = UpdateRefused(name, answer.refused)
        elif answer.error is not None:
            self.answers[record.path] = UpdateFailed(name, answer.error.type_name, answer.error.message)
        else:
            self.answers[record.path] = msgspec.json.decode(answer.value)

    def seen(self, outcome: Outcome) -> WorkflowRun[Any]:
        """What a test sees of the run."""
        return WorkflowRun(
            value=outcome.value,
            error=outcome.error,
            took=timedelta(seconds=self.now() - self.began),
            journal=self.journal,
            calls=self.attempts,
            stopped=self.stopped,
            view=self.activation.info.view,
            sent=self.sent,
            started=self.started,
            answers=self.answers,
            former=self.former,
            saved=self._saved(self.journal),
        )

    def crash(self) -> None:
        """This copy of the run is gone; another one goes on from the journal, and begins what has no outcome again."""
        self.activation.discard()
        self._written.clear()
        self._running.clear()
        self._coming = [entry for entry in self._coming if isinstance(entry[2], Record)]
        heapq.heapify(self._coming)
        self.activation = self._activate()
        self.activation.replay(self.journal)
        self.activation.issue_commands()

    def check_replay(self, first: Outcome) -> None:
        """The same body, the same records: the same result and view."""
        if _filled_the_stack(first.error):  # a replay has fewer frames below it, so it gets one call further
            return
        again = self._activate()
        again.replay(self.journal)
        if again.result is None:
            again.discard()
            raise NotDeterministic("replayed from its journal the run did not end")
        second = _ended(again)
        assert isinstance(second, Outcome)
        if _seen(first, self.activation) != _seen(second, again):
            raise NotDeterministic(f"first {repr_of(first)}, replayed from its journal {repr_of(second)}")

    def check_elsewhere(self, first: Outcome) -> None:
        """The same in a process with another order of sets."""
        if _filled_the_stack(first.error):
            return
        _, _, run_id, arguments, began = self._saved.args
        saw = replay_elsewhere(self.activation.workflow, run_id, arguments, began, self.journal)
        if saw.blocked is not None or saw != seen(self.activation):
            raise NotDeterministic(f"replayed with another order of sets: {saw.blocked or saw}")

    # -- for the activation

    def now(self) -> float:
        """Of the virtual clock."""
        return self._at

    def write(self, run: Activation, record: Record) -> None:
        """Delivered before the clock moves on."""
        self._written.append(record)

    def step_failed(self, run: Activation, call: OpenCall, error: BaseException) -> None:
        """The test sees it in the outcome."""

    def begin(self, run: Activation, call: OpenCall) -> None:
        """Its end comes when the step's time is over."""
        if isinstance(call.step, ChildCall):
            call.is_running, call.is_awaited = False, True
            if call.path not in self._begun:  # by a former life
                self._begun.add(call.path)
                self._begin_child(call.path, call.step, run.step_info(call).key)
            return
        if call.step.step.is_transaction and call.step.step.name not in self.fakes:
            raise TypeError(f"{call.step.name} is a transaction, and there is no database here: steps={{…}} stands in")
        limit_s = call.step.options.timeout_s
        self.plan(min(self._takes_s(call), inf if limit_s is None else limit_s), call)
        self._running[call.path] = self._planned

    def stop(self, run: Activation, call: OpenCall) -> None:
        """It ends at once."""
        if isinstance(call.step, ChildCall):
            self._plan_end(0, call.path, ChildEnd(call.step.name, "CANCELLED"))
            self.stopped.append(call.path)
            return
        del self._running[call.path]
        self.stopped.append(call.path)
        run.attempt_stopped(call)

    def _begin_child(self, path: str, child: ChildCall, key: str) -> None:
        fake, after_s = self._children.get(child.name), 0.0
        function = fake.function if isinstance(fake, Takes) else fake
        if isinstance(fake, Takes):
            after_s = seconds_of(fake.duration)
        if function is not None:
            args, kwargs = _arguments(child)
            try:
                outcome = Outcome(function(*args, **kwargs))
            except Exception as error:
                outcome = Outcome(error=error)
        elif isinstance(child.target, str):
            raise TypeError(f"there is no definition {child.target!r} here: steps={{{child.target!r}: …}} stands in")
        else:
            run = self._nested(
                child.target, child.arguments, run_id=key, started_at=datetime.fromtimestamp(self._at, UTC)
            )
            outcome = run.run()
            after_s = run.now() - run.began
        result = b"null"
        if outcome.error is None:
            try:
                result = encode(outcome.value, f"the result of {child.name}").encode()
            except (Unencodable, PayloadTooLarge) as error:
                outcome = Outcome(error=error)
        if outcome.error is None:
            end = ChildEnd(key, "COMPLETED", msgspec.Raw(result))
        else:
            end = ChildEnd(key, "FAILED", reason=describe(outcome.error))
        self._plan_end(after_s, path, end)

    def _plan_end(self, after_s: float, path: str, end: ChildEnd) -> None:
        self.plan(after_s, Record(0, JournalKind.CHILD, path, payload=msgspec.json.encode(end).decode()))

    def _takes_s(self, call: OpenCall) -> float:
        fake = self.fakes.get(call.step.step.name)
        return seconds_of(fake.duration) if isinstance(fake, Takes) else 0.0

    def _end(self, call: OpenCall) -> None:
        step, fake = call.step, self.fakes.get(call.step.step.name)
        self.attempts.append(Called(step.name, call.path, call.attempt, timedelta(seconds=self._at - self.began)))
        limit_s = step.options.timeout_s
        if limit_s is not None and self._takes_s(call) > limit_s:
            outcome = Outcome(error=TooSlow(f"{step.name} took longer than {limit_s:g} s"))
        else:
            function = fake.function if isinstance(fake, Takes) else fake
            try:
                function = step.step.function if function is None else function
                info = self.activation.step_info(call)
                outcome = Outcome(contextvars.copy_context().run(self._call, function, step, info))
            except WrongLibrary:
                self.activation.discard()
                raise
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # SystemExit too, as for an App
                outcome = Outcome(error=error)
        self.activation.attempt_ended(call, outcome)

    def _call(self, function: Callable[..., Any], call: StepCall, info: StepInfo) -> Any:
        args, kwargs = call.step.parameters.arguments(call.arguments)
        token, sender = current_step.set(info), current_sender.set(self._send)
        starter = current_starter.set(self._start)
        try:
            value = function(*args, **kwargs)
            if type(value) is CoroutineType:  # the type is asked: a mock says that it is anything
                limit_s = call.options.timeout_s
                return run_step(cast("Awaitable[Any]", value), call.name, self._backend, limit_s)
            return value
        finally:
            current_step.reset(token)
            current_sender.reset(sender)
            current_starter.reset(starter)

    async def _send(self, run_id: str, name: str, payload: str, dedup: str, *, sender: str, force: bool) -> None:
        self.sent.append(Sent(run_id, name, msgspec.json.decode(payload)))

    async def _start(self, workflow: str, version: int, arguments: str, id: str) -> str:
        self.started.append(Started(workflow, version, msgspec.json.decode(arguments), id))
        return id

    def _stuck(self) -> NoReturn:
        self._stop("nothing is due and nothing will come")

    def _stop(self, reason: str) -> NoReturn:
        kernel = self.activation.kernel
        waiting = [
            f"{branch.path or 'the body'} at {branch.where()}"
            for branch in kernel.open_branches()
            if branch.operation is not None
        ]
        if len(waiting) > SHOWN_MAX:
            waiting[SHOWN_MAX:] = [f"{len(waiting) - SHOWN_MAX:,} more"]
        rejected = [
            f"{each.name!r} at {each.field or 'its whole'}: {each.reason}" for each in self.activation.rejected()
        ]
        self.activation.discard()
        rejected_text = f"; messages that do not fit their receive: {', '.join(rejected)}" if rejected else ""
        waits = f"; waiting: {', '.join(waiting)}" if waiting else ""
        raise StuckWorkflow(f"{reason}{waits}{rejected_text}")


def _arguments(child: ChildCall) -> tuple[Sequence[Any], dict[str, Any]]:
    if isinstance(child.target, str):
        return (), msgspec.json.decode(child.arguments)
    args, kwargs = child.target.parameters.arguments(child.arguments)
    return args, kwargs


def _ended(run: Activation) -> Outcome | Record:
    """How a body has ended, or what it continues with."""
    try:
        begun = run.continuation()
        ended = run.ending()
        if begun is None and ended.error is None:
            run.workflow.encode_result(ended.value)
    except (TypeError, Unencodable, PayloadTooLarge) as error:
        return Outcome(error=error)
    return ended if begun is None else begun


def _filled_the_stack(error: BaseException | None) -> bool:
    """Return whether the run ended as Python's stack was full, which depends on the frames below it."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return any(_filled_the_stack(each) for each in group.exceptions)
    return isinstance(error, RecursionError)


def _seen(outcome: Outcome, run: Activation) -> tuple[str, str, str | None]:
    return (
        _ADDRESS.sub(" at 0x…", repr_of(outcome.value)),
        _ADDRESS.sub(" at 0x…", repr_of(outcome.error)),
        run.info.view,
    )
