"""Bodies of workflows in memory, on a virtual clock: `run_workflow`. No database; a month takes milliseconds.

Each run is replayed from its own journal, and must come out the same.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, Generic, ParamSpec, TypeVar, cast

import msgspec
import trio
import trio.testing

from penstock.durable.codec import encode, encode_error
from penstock.durable.duration import Duration, seconds_of
from penstock.durable.errors import NonRetryable
from penstock.durable.step import Step, StepCall, StepInfo, current_step
from penstock.durable.verbs import RunInfo
from penstock.durable.workflow import Workflow
from penstock.kernel.drive import Kernel, Limits
from penstock.kernel.errors import TooSlow
from penstock.kernel.operation import Start
from penstock.kernel.record import Kind, Record
from penstock.kernel.replay import replay

P = ParamSpec("P")
R = TypeVar("R")
STARTED_AT = datetime(2030, 1, 1, tzinfo=UTC)
MAX_RECORDS = 100_000


class StuckWorkflow(AssertionError):
    """Nothing is due and nothing will come: the run would wait for ever."""


class NotDeterministic(AssertionError):
    """Replayed from its own journal the run came out differently."""


class Message(msgspec.Struct, frozen=True):
    """Sent to the run that long after its start."""

    name: str
    value: Any = None
    after: Duration = 0.0


class Takes(msgspec.Struct, frozen=True):
    """A stand-in for a step that takes its time: ``function`` is called when it is over, never if cancelled before."""

    duration: Duration
    function: Callable[..., Any] | None = None


class Called(msgspec.Struct, frozen=True):
    """An attempt at a step that ended."""

    step: str
    path: str
    attempt: int
    after: timedelta


class WorkflowRun(msgspec.Struct, Generic[R]):
    """What became of a run. ``journal`` is what an engine would have stored."""

    value: R | None
    error: BaseException | None
    took: timedelta
    journal: list[Record]
    calls: list[Called]
    stopped: list[str]  # paths of steps that were cancelled while they ran
    view: str | None  # JSON

    def result(self) -> R:
        """What the body gave; raises what it raised."""
        if self.error is not None:
            raise self.error
        return cast("R", self.value)


def run_workflow(
    workflow: Workflow[P, R],
    *args: Any,
    steps: Mapping[Step[..., Any], Callable[..., Any] | Takes] | None = None,
    messages: Sequence[Message] = (),
    cancel_after: Duration | None = None,
    seed: str | int = "test",
    started_at: datetime = STARTED_AT,
    limits: Limits | None = None,
    **kwargs: Any,
) -> WorkflowRun[R]:
    """Runs a body to its end and gives what became of it.

    ``steps`` stand in for the workflow's own, which are called otherwise; they take no time on the virtual clock unless
    wrapped in `Takes`. Retries, time limits and pauses are kept to. ``seed`` is the run's id, which `rng` and `uuid4`
    follow from. Raises `StuckWorkflow`, `NotDeterministic`, and `Blocked` for what an engine would block.
    """
    memory = _Memory(workflow, args, kwargs, steps or {}, str(seed), started_at, limits)
    for message in messages:
        text = encode(message.value, f"message {message.name!r}")
        memory.plan(seconds_of(message.after), Record(at=0, kind=Kind.MESSAGE, name=message.name, payload=text))
    if cancel_after is not None:
        memory.plan(seconds_of(cancel_after), Record(at=0, kind=Kind.CANCEL))
    memory.run()
    outcome = memory.kernel.result
    assert outcome is not None
    memory.check_replay()
    return WorkflowRun(
        value=outcome.value,
        error=outcome.error,
        took=timedelta(seconds=memory.kernel.now - memory.began),
        journal=memory.journal,
        calls=memory.calls,
        stopped=memory.stopped,
        view=memory.info.view,
    )


class _Attempt(msgspec.Struct):
    """One try at a step, as planned. ``begun`` is when its first one began."""

    start: Start
    number: int
    begun: float


class _Memory:
    """An executor on a virtual clock: a heap of what will come."""

    def __init__(
        self,
        workflow: Workflow[Any, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        fakes: Mapping[Step[..., Any], Callable[..., Any] | Takes],
        run_id: str,
        started_at: datetime,
        limits: Limits | None,
    ) -> None:
        self.workflow, self.limits = workflow, limits
        self.fakes = {step.name: fake for step, fake in fakes.items()}
        self.arguments = workflow.encode_arguments(args, kwargs)
        self.began = started_at.timestamp()
        self.run_id, self.started_at = run_id, started_at
        self.info = self._info()
        self.kernel = Kernel(self.began, self.info, limits)
        self.journal: list[Record] = []
        self.calls: list[Called] = []
        self.stopped: list[str] = []
        self.running: dict[str, _Attempt] = {}
        self._coming: list[tuple[float, int, Record | _Attempt]] = []
        self._planned = 0
        self._at = self.began  # retries move the time, too, but are no records here

    def _info(self) -> RunInfo:
        return RunInfo(self.run_id, self.workflow.name, self.workflow.version, self.started_at)

    def plan(self, after_s: float, what: Record | _Attempt) -> None:
        """Comes that many seconds after the time of now."""
        self._planned += 1
        heapq.heappush(self._coming, (max(self._at, self.kernel.now) + after_s, self._planned, what))

    def run(self) -> None:
        self.kernel.start(self.workflow.body(self.arguments))
        self._obey()
        while self.kernel.result is None:
            if len(self.journal) >= MAX_RECORDS:
                raise StuckWorkflow(f"{MAX_RECORDS:,} records and no end")
            due = self.kernel.next_due()
            coming = self._coming[0][0] if self._coming else inf
            if min(due, coming) == inf:
                self._stuck()
            if due <= coming:
                self._deliver(Record(at=due, kind=Kind.CLOCK))
                continue
            at, _, what = heapq.heappop(self._coming)
            self._at = at
            if isinstance(what, Record):
                self._deliver(msgspec.structs.replace(what, at=at))
            elif self.running.get(what.start.path) is what:
                self._end(what, at)

    def check_replay(self) -> None:
        """The same body, the same records: the same result, view and calls."""
        info = self._info()
        kernel = Kernel(self.began, info, self.limits)
        replay(kernel, self.workflow.body(self.arguments), self.journal)
        if kernel.result is None:
            kernel.discard()
            raise NotDeterministic("replayed from its journal the run did not end")
        first, second = self.kernel.result, kernel.result
        assert first is not None
        if (repr(first.value), repr(first.error), self.info.view) != (
            repr(second.value),
            repr(second.error),
            info.view,
        ):
            raise NotDeterministic(f"first {first}, replayed from its journal {second}")

    def _deliver(self, record: Record) -> None:
        record = msgspec.structs.replace(record, pos=len(self.journal) + 1)
        self.journal.append(record)
        self.kernel.deliver(record)
        self._obey()

    def _obey(self) -> None:
        for command in self.kernel.take_commands():
            if isinstance(command, Start):
                self._begin(_Attempt(command, 1, self.kernel.now))
            else:
                attempt = self.running.pop(command.path)
                self.stopped.append(command.path)
                self.plan(0.0, Record(at=0, kind=Kind.STOPPED, path=command.path, name=attempt.start.call.name))

    def _begin(self, attempt: _Attempt, pause_s: float = 0.0) -> None:
        call = _step_call(attempt.start)
        fake = self.fakes.get(call.step.name)
        takes = seconds_of(fake.duration) if isinstance(fake, Takes) else 0.0
        if call.options.timeout_s is not None:
            takes = min(takes, call.options.timeout_s)
        self.running[attempt.start.path] = attempt
        self.plan(pause_s + takes, attempt)

    def _end(self, attempt: _Attempt, at: float) -> None:
        call, path = _step_call(attempt.start), attempt.start.path
        options, fake = call.options, self.fakes.get(call.step.name)
        self.calls.append(Called(call.name, path, attempt.number, timedelta(seconds=at - self.began)))
        try:
            takes = seconds_of(fake.duration) if isinstance(fake, Takes) else 0.0
            if options.timeout_s is not None and takes > options.timeout_s:
                raise TooSlow(f"{call.name} took longer than {options.timeout_s:g} s")
            function = fake.function if isinstance(fake, Takes) else fake
            value = self._call(
                function or call.step.function, call, StepInfo(f"{self.run_id}{path}", attempt.number, self.run_id)
            )
            payload = encode(value, f"{call.name} at {path} returned a value that")
            record = Record(at, Kind.DONE, path, call.name, payload, call.digest, attempt.number)
        except Exception as error:
            pause = options.pause_s(attempt.number)
            final = attempt.number > options.retries or isinstance(error, (NonRetryable, *options.raises))
            if not final and (options.within_s is None or at + pause - attempt.begun <= options.within_s):
                self._begin(_Attempt(attempt.start, attempt.number + 1, attempt.begun), pause)
                return
            record = Record(at, Kind.FAILED, path, call.name, encode_error(error), call.digest, attempt.number)
        del self.running[path]
        self._deliver(record)

    @staticmethod
    def _call(function: Callable[..., Any], call: StepCall, info: StepInfo) -> Any:
        args, kwargs = call.step.parameters.arguments(call.arguments)
        token = current_step.set(info)
        try:
            value = function(*args, **kwargs)
            return _waited(value) if inspect.iscoroutine(value) else value
        finally:
            current_step.reset(token)

    def _stuck(self) -> None:
        waiting = [
            f"{branch.path or 'the body'} at {branch.where()}"
            for branch in self.kernel.open_branches()
            if branch.operation is not None
        ]
        self.kernel.discard()
        raise StuckWorkflow("nothing is due and nothing will come; waiting: " + ", ".join(waiting))


def _step_call(start: Start) -> StepCall:
    assert isinstance(start.call, StepCall)
    return start.call


def _waited(coroutine: Awaitable[Any]) -> Any:
    """Runs an asynchronous step on a virtual clock of its own; in a thread when a loop runs in this one."""

    async def run() -> Any:
        return await coroutine

    def alone() -> Any:
        return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))

    if not trio.lowlevel.in_trio_run() and not _asyncio_runs():
        return alone()
    ended: list[Any] = []
    failed: list[BaseException] = []

    def in_thread() -> None:
        try:
            ended.append(alone())
        except BaseException as error:  # raised again by who waits for the thread
            failed.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(in_thread,), name="penstock step")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return ended[0]


def _asyncio_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
