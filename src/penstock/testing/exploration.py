"""A body that crashes at each record of its journal, and is cancelled at each: `explore`. In memory."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, ParamSpec, TypedDict, TypeVarTuple, Unpack, overload

import msgspec

from penstock.durable.activation import Activation, OpenCall
from penstock.durable.child import ChildCall
from penstock.durable.failure import describe
from penstock.durable.forbidden import calls_checked, watch_bodies
from penstock.durable.isolation import LoopWatch, cpu_clock
from penstock.durable.step_loop import Backend
from penstock.durable.workflow import Workflow, workflow_in
from penstock.kernel.record import FROM_OTHERS, JournalKind, Record
from penstock.kernel.unawaited import places_kept
from penstock.testing.durable import (
    STARTED_AT,
    Ask,
    Fakes,
    Memory,
    Message,
    StuckWorkflow,
    WorkflowRun,
    check_messages,
)
from penstock.testing.virtual_loops import checked_backend
from penstock.user_text import repr_of

P = ParamSpec("P")
Ts = TypeVarTuple("Ts")


class Explored(msgspec.Struct, frozen=True):
    """How much was tried. ``crashes`` and ``cancels``: runs that were disturbed so, each at one record."""

    records: int
    crashes: int
    cancels: int


class _Disturbed(Memory):
    """A run to which something happens at the record that comes after ``at`` others. A refusal of a call is one."""

    at, what = -1, ""

    def __init__(self, *args: Any) -> None:
        self.transactions: set[str] = set()
        self.delivered: list[Record] = []
        super().__init__(*args)

    def begin(self, run: Activation, call: OpenCall) -> None:
        """A step that is a transaction is remembered: its record is committed with what it did."""
        if not isinstance(call.step, ChildCall) and call.step.step.is_transaction:
            self.transactions.add(call.path)
        super().begin(run, call)

    def deliver(self, record: Record) -> None:
        """The record, and the disturbance before or after it."""
        self.delivered.append(record)
        if len(self.delivered) != self.at + 1:
            super().deliver(record)
            return
        if self.what == "lost" and record.path not in self.transactions:  # a step has worked, and nobody wrote it down
            if record.kind in FROM_OTHERS:
                self.journal.append(msgspec.structs.replace(record, at=self.now(), pos=len(self.journal) + 1))
                if record.kind is JournalKind.ASKED:
                    self.remember_call(record)
            self.crash()
        elif self.what != "cancel":
            super().deliver(record)
            self.crash()
        else:
            super().deliver(record)
            if self.activation.result is None:
                super().deliver(Record(at=0, kind=JournalKind.CANCEL))


class ExploreOptions(TypedDict, total=False):
    """The options of `explore`, which says what they mean."""

    steps: Callable[[], Fakes] | None
    messages: Sequence[Message | Ask]
    check: Callable[[WorkflowRun[Any]], None] | None
    outcome: Callable[[WorkflowRun[Any]], object] | None
    seed: str | int
    started_at: datetime
    backend: Backend | None


@overload
def explore(workflow: Workflow[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Explored: ...
@overload
def explore(
    workflow: Callable[[*Ts], Coroutine[Any, Any, object]], /, *args: *Ts, **options: Unpack[ExploreOptions]
) -> Explored: ...
def explore(  # type: ignore[misc]  # a parameter with the name of an option: the option gets what is given
    workflow: Any,
    /,
    *args: Any,
    steps: Callable[[], Fakes] | None = None,
    messages: Sequence[Message | Ask] = (),
    check: Callable[[WorkflowRun[Any]], None] | None = None,
    outcome: Callable[[WorkflowRun[Any]], object] | None = None,
    seed: str | int = "test",
    started_at: datetime = STARTED_AT,
    backend: Backend | None = None,
    **kwargs: Any,
) -> Explored:
    """Run a workflow function undisturbed, then once more for each record of its journal and each of three faults.

    The process dies before the record is written (the step has done its work, and is run again; not of a step that is a
    transaction, which is undone then), it dies after it, or the run is cancelled there. After a crash the run has to
    end as it did undisturbed, and its updates have to answer as they did. Cancelled it has to end.

    Args:
        workflow: the workflow.
        args: its arguments, as ``kwargs``. Beside options, give those by keyword in a `functools.partial`.
        steps: makes the stand-ins, as of `run_workflow`, anew for each run, so that what they did is of one run.
        messages: what is sent to the run, and calls of its updates (`Ask`), each so long after its start.
        check: is called with each run that has ended, whatever happened to it. It asserts what holds in all of them,
            such as that nothing is charged and not shipped.
        outcome: what has to be the same after a crash, from a run; by default its result or error, and its answers.
        seed: the run's id, which `rng` and `uuid4` follow from.
        started_at: the time of its start.
        backend: the loop of async steps, as of `run_workflow`.

    Raises:
        AssertionError: a run ended differently, or not at all, or ``check`` says so; it names the record.
    """
    __tracebackhide__ = True
    workflow, args, kwargs = workflow_in(workflow, args, kwargs)
    check_messages(messages)
    loop = checked_backend(backend)
    watch_bodies()
    arguments = workflow.encode_arguments(args, kwargs)
    compared = outcome or _outcome

    def run(at: int, what: str) -> tuple[WorkflowRun[Any], list[Record]]:
        fakes: Fakes = steps() if steps is not None else {}
        memory = _Disturbed(workflow, arguments, fakes, str(seed), started_at, None, loop)
        memory.at, memory.what = at, what
        memory.send(messages)
        with calls_checked(), places_kept(), LoopWatch(cpu_clock()):
            ended = memory.run()
            memory.check_replay(ended)
        seen = memory.seen(ended)
        if check is not None:
            check(seen)
        return seen, memory.delivered

    undisturbed, records = run(-1, "")
    wanted = compared(undisturbed)
    for number, record in enumerate(records):
        place = f"record {number + 1} of {len(records)} ({record.kind.name} {record.path} {record.name or ''})"
        for what in ("lost", "kept", "cancel"):
            try:
                found = compared(run(number, what)[0])
            except (AssertionError, StuckWorkflow) as error:
                raise AssertionError(f"{_WHAT[what]} {place}: {error}") from error
            if what != "cancel" and found != wanted:
                raise AssertionError(f"{_WHAT[what]} {place}: it ended with {found}, undisturbed with {wanted}")
    return Explored(records=len(records), crashes=2 * len(records), cancels=len(records))


_WHAT = {"lost": "crashed before", "kept": "crashed after", "cancel": "cancelled after"}


def _outcome(run: WorkflowRun[Any]) -> object:
    ended = repr_of(run.value) if run.error is None else describe(run.error)
    if not run.answers:
        return ended
    answers = {
        id: describe(answer) if isinstance(answer, Exception) else repr_of(answer) for id, answer in run.answers.items()
    }
    return f"{ended}, its updates with {answers}"
