"""The bookkeeping of one advance: the tokens it holds, and the rows that it writes about them.

`advance.py` decides where tokens go; this keeps what follows from it (positions, history rows, queue, timers) in one
`Effects`. `AdvanceState` is the state of one advance: the functions here and in the modules that import this one change
it, and nothing else is shared between them. Pure, like its only user.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType

import msgspec

from penstock.core.advance.completion import Answers, DoneExecution
from penstock.core.advance.effect import (
    Effects,
    HistoryRow,
    JobRef,
    MapEffects,
    MapState,
    MessageWait,
    ReleasedSlots,
    TaskRef,
    Timer,
)
from penstock.core.expression.work import Work
from penstock.core.graph.definition import Definition, Step, StepType
from penstock.core.rules.state import PRIORITY_DEFAULT, HistoryKind, Instance, Token, TokenState

DELTA_UNIT_BYTES = 131_072
"""A variable delta counts for one, and for one more with each such piece of it. As in `complete_fast`."""


SIGNALS_PER_ADVANCE_MAX = 500
"""Kept signals that one advance takes, however few steps each of them leads to."""
MAX_WORK_STEPS = 1_000_000
"""Of one advance, chained starts included: 75 to 260 ms (`core.expression.work`)."""


LARGE_BYTES = 65_536
"""A delta with more is decoded once, where the advance takes long enough for a thread."""


class PositionsExhausted(Exception):
    """The block of positions was too small: take a larger one and advance again."""


class ItemsNeeded(Exception):
    """The variables of items from this one on have to be read: then advance again."""

    def __init__(self, token: int, first: int) -> None:
        super().__init__()
        self.token = token
        self.first = first


class Inputs(msgspec.Struct):
    """What `advance` can't make itself. ``positions`` ascend; ``buffered`` maps a WAIT's index to its kept signals."""

    now: datetime
    new_id: Callable[[], int]
    positions: deque[int]
    jitter: float = 0.0  # in [0, 1)
    next_known: bool = True  # whether `nextWorkflowId` names an uploaded definition
    uncallable: Collection[tuple[str, int]] = ()  # (id, version) of definitions that calls name and that are not there
    next_problem: str | None = None  # why the next workflow does not take the variables that this one ends with
    unfit: Mapping[tuple[str, int, bytes], str] = MappingProxyType({})  # of calls by what they give: why that is wrong
    calls_max: int = 100  # instances that this advance may start; further calls go on in one of their own
    may_chain: bool = True  # False: as many workflows were chained in one transaction as may be
    max_automatic_steps: int = 1000
    max_written_bytes: int = 67_108_864  # of variables that transformations may write in one advance
    work: Work = msgspec.field(default_factory=lambda: Work(MAX_WORK_STEPS))
    completions: Answers = {}  # what `CompletionsNeeded` has asked for
    buffered: Mapping[int, Sequence[tuple[int, bytes]]] = {}  # of each WAIT all, or more than SIGNALS_PER_ADVANCE_MAX
    maps: Mapping[int, MapState] = {}  # of each token of a forEach
    items: Mapping[tuple[int, int], bytes] = {}  # by that token and index: variables of items that were read
    results: Mapping[int, Mapping[int, bytes]] = {}  # by that token: what was collected, where it was asked for
    raw: Mapping[int, bytes] = {}  # by position: raw results, where they were asked for
    keeps_raw: bool = True  # False: an engine may live that would forget a raw result


class AdvanceState:
    """One advance's view of an instance, and the outcome it fills."""

    def __init__(
        self,
        definition: Definition,
        instance: Instance,
        tokens: Sequence[Token],
        variables: Mapping[str, object] | None,
        inputs: Inputs,
    ) -> None:
        self.definition = definition
        self.instance = instance
        self.tokens = {token.id: token for token in tokens}
        parked = self.parked()
        self.parked_before = {token.id for token in parked}
        self.tasks_before = self.open_tasks(parked)
        self.awaiting_before = self.awaiting_messages(parked)
        self.subscriptions: dict[tuple[int, int], MessageWait] = {}  # of waits that were entered in this advance
        self.fresh: set[int] = set()
        self.changed: dict[int, Token] = {}
        self.removed: list[int] = []
        self.variables = None if variables is None else dict(variables)
        self.inputs = inputs
        self.work = inputs.work
        self.out = Effects(instance)
        self.entering: deque[tuple[Token, int]] = deque()
        self.reentering: dict[int, int | None] = {}  # by token: the entry that `retry` comes back to
        self.used_signals: set[int] = set()
        self.undoes: dict[int, DoneExecution] = {}  # by handler's token, of handlers that this advance has begun
        self.freed: list[int] = []  # tokens of handlers that it has given up: what they were to undo is nobody's
        self.returned: int | None = None  # the token of a call whose instance has ended
        self.steps_max = inputs.max_automatic_steps
        self.written_bytes: int = 0
        self.ended_maps: dict[int, MapState] = {}  # that this advance has ended, by token
        self.items_begun = 0  # of forEach steps, in this advance
        self.begins = self.checked = False  # nothing was entered yet, of an instance that `Started` tells of

    def is_map(self, token: Token) -> bool:
        """Return whether a forEach is under way on it. Its execution is open, though it is its items that people
        see."""
        return token.state is TokenState.FORKED and self.definition.steps[token.step].for_each is not None

    def whole(self, token: Token) -> Token:
        """Of an item the token of its forEach; any other token itself."""
        if token.item is None:
            return token
        assert token.parent_id is not None
        return self.tokens[token.parent_id]

    def maps(self) -> MapEffects:
        """Of its forEach steps, to be changed."""
        if self.out.maps is None:
            self.out.maps = MapEffects()
        return self.out.maps

    def position(self) -> int:
        if not self.inputs.positions:
            raise PositionsExhausted
        return self.inputs.positions.popleft()

    def parked(self) -> list[Token]:
        """Of hundreds, as a rule, few: looked for once before and once after."""
        return [token for token in self.tokens.values() if token.state is TokenState.PARKED]

    def open_tasks(self, parked: Sequence[Token]) -> dict[tuple[int, int], TaskRef]:
        steps = self.definition.steps
        return {
            (token.id, token.seq): TaskRef(token.id, token.seq, token.step, token.entered_at)
            for token in parked
            if steps[token.step].type is StepType.USER_TASK
        }

    def awaiting_messages(self, parked: Sequence[Token]) -> set[tuple[int, int]]:
        steps = self.definition.steps
        return {(token.id, token.seq) for token in parked if steps[token.step].message is not None}

    def scope(self) -> dict[str, object]:
        assert self.variables is not None, "the definition needs variables that were not read"
        return self.variables


def new_token(run: AdvanceState, step: int, *, parent_id: int | None = None, side: bool = False) -> Token:
    token = Token(
        id=run.inputs.new_id(),
        instance_id=run.instance.id,
        seq=0,
        step=step,
        state=TokenState.READY,
        entered_at=run.inputs.now,
        parent_id=parent_id,
        side=side,
    )
    add(run, token)
    return token


def add(run: AdvanceState, token: Token) -> None:
    run.tokens[token.id] = token
    run.fresh.add(token.id)
    run.changed[token.id] = token


def mark_changed(run: AdvanceState, token: Token) -> None:
    run.changed[token.id] = token


def remove(run: AdvanceState, token: Token) -> None:
    del run.tokens[token.id]
    run.changed.pop(token.id, None)
    if token.id not in run.fresh:
        run.removed.append(token.id)
    if token.run_queue is not None:
        run.out.released.append(
            ReleasedSlots(run.definition.steps[token.step].job_type or "", run_queue=token.run_queue)
        )
    heir = run.tokens.get(token.parent_id or token.instance_id)
    if heir is not None and token.unfolded:  # its deltas are still to be folded: somebody has to count them
        heir.unfolded += token.unfolded
        mark_changed(run, heir)


def begin_execution(run: AdvanceState, token: Token, step: Step) -> None:
    """Begin a new execution of ``step`` on ``token``."""
    is_job = step.type is StepType.SERVICE_TASK and step.for_each is None
    if run.begins and token.seq and is_job:  # it was delayed: what a run was told meanwhile came after its seq
        token.queued = run.position()  # behind what waits
    else:
        token.seq, token.queued = run.position(), None
    token.step = step.index
    token.entered_at = run.inputs.now
    token.attempt = token.failures = token.expiries = 0
    token.claimed_by = token.claimed_at = token.lease_until = None
    token.timeout_s = step.timeout_s if isinstance(step.timeout_s, float) else None  # else it is evaluated
    token.backoff_s = token.backoff_max_s = None
    token.waits_for = None
    token.flow_key = run.instance.flow_key
    token.priority = PRIORITY_DEFAULT if run.instance.priority is None else run.instance.priority
    token.entry = run.reentering.pop(token.id, None)
    mark_changed(run, token)


def free(run: AdvanceState, token: Token) -> None:
    """The token is given up: what it was to undo, if it is a handler's, is to be undone by others."""
    if run.definition.steps[token.step].compensates is not None:
        run.freed.append(token.id)


def close(
    run: AdvanceState,
    token: Token,
    kind: HistoryKind,
    *,
    worker: str | None = None,
    reason: str | None = None,
    output: bytes | None = None,
    code: str | None = None,
) -> None:
    """End the open execution of ``token``: its history row, its place in the queue, its timers."""
    record(run, token, kind, worker=worker, reason=reason, output=output, code=code)
    dequeue(run, token)
    if token.state is TokenState.CALLED and token.id != run.returned:
        run.out.abandoned.append((token.id, token.seq))
    if has_timers(run, token):
        run.out.disarmed.append((token.id, token.seq))


def merge(run: AdvanceState, token: Token, output: bytes | None) -> bytes | None:
    """Take a delta into the variables; None when it changes nothing."""
    if output is None:
        return None
    decode = partial(msgspec.json.decode, output, type=dict[str, object])
    delta = run.work.keep(decode) if len(output) > LARGE_BYTES else decode()
    if not delta:
        return None
    count_delta(run, token, output)
    if run.variables is not None:
        run.variables.update(delta)
    return output


def count_delta(run: AdvanceState, token: Token, output: bytes) -> None:
    token.unfolded += 1 + len(output) // DELTA_UNIT_BYTES
    mark_changed(run, token)


def has_timers(run: AdvanceState, token: Token) -> bool:
    step = run.definition.steps[token.step]
    return (
        (bool(step.timers) and token.item is None)
        or token.state in (TokenState.BACKOFF, TokenState.CALLED, TokenState.FORKED, TokenState.DELAYED)
        or (token.state is TokenState.PARKED and step.type is StepType.SERVICE_TASK)  # a job, or a durable run
        or step.duration is not None
        or step.until is not None
        or step.type is StepType.WAIT  # it may have to go on with kept signals
    )


def own_variables(run: AdvanceState, token: Token) -> bytes:
    """Of an item, a JSON object. Raises ItemsNeeded."""
    assert token.item is not None
    maps, key = run.maps(), (run.whole(token).id, token.item)
    if key in maps.variables:
        return maps.variables[key]
    if key[0] in maps.begun:
        return maps.begun[key[0]][token.item]
    if key not in run.inputs.items:
        raise ItemsNeeded(*key)
    return run.inputs.items[key]


def record(
    run: AdvanceState,
    token: Token,
    kind: HistoryKind,
    *,
    worker: str | None = None,
    reason: str | None = None,
    output: bytes | None = None,
    code: str | None = None,
) -> None:
    if token.held is not None:  # whatever is recorded ends the attempt
        job_type = run.definition.steps[token.step].job_type or ""
        run.out.released.append(ReleasedSlots(job_type, token.held, token.flow_key or ""))
        token.held = None
    row = HistoryRow(
        position=run.position(),
        token_id=token.id,
        seq=token.seq,
        step=token.step,
        kind=kind,
        started_at=token.entered_at,
        ended_at=run.inputs.now,
        attempt=token.attempt,
        claimed_at=token.claimed_at,
        worker=worker if worker is not None else token.claimed_by,
        reason=reason,
        output=output,
        code=code,
        item=token.item,
        items=items_counted(run, token),
    )
    run.out.history.append(row)


def items_counted(run: AdvanceState, token: Token) -> bytes | None:
    """Of the whole of a forEach: how many items there are, and became what."""
    if not run.is_map(token):
        return None
    maps = run.maps()
    state = run.ended_maps.get(token.id) or maps.states.get(token.id) or run.inputs.maps.get(token.id)
    if state is None:  # it had no list
        return None
    counts = {"total": state.total, "completed": state.done, "failed": state.failed, "running": 0}
    return msgspec.json.encode(counts)


def queue(run: AdvanceState, token: Token, step: Step) -> None:
    assert step.job_type is not None
    run.out.queued.append(_job(step.job_type, token))


def _job(job_type: str, token: Token) -> JobRef:
    return JobRef(job_type, token.id, token.seq, token.priority, token.place, token.flow_key)


def queue_again(run: AdvanceState, token: Token, step: Step) -> None:
    """Behind what waits."""
    token.queued = run.position()
    queue(run, token, step)


def dequeue(run: AdvanceState, token: Token) -> None:
    """Take the job out of the queue if it is there (a late result, or an end, finds it READY)."""
    if token.state is TokenState.READY:
        job_type = run.definition.steps[token.step].job_type
        if job_type is not None:
            run.out.dequeued.append(_job(job_type, token))


def arm_all(run: AdvanceState, token: Token, delays_s: Mapping[int, float]) -> None:
    """Boundary timers, by their indexes."""
    for index, delay_s in delays_s.items():
        arm(run, token, index, delay_s)


def arm(run: AdvanceState, token: Token, index: int, delay_s: float) -> None:
    fire_at = run.inputs.now + timedelta(seconds=delay_s)
    run.out.armed.append(Timer(fire_at, token.id, token.seq, index))


def finish(run: AdvanceState) -> Effects:
    out = run.out
    open_now = run.parked()
    awaiting = run.awaiting_messages(open_now)
    out.subscribed = [one for key, one in run.subscriptions.items() if key in awaiting]
    out.unsubscribed = sorted(run.awaiting_before - awaiting)
    tasks = run.open_tasks(open_now)
    out.opened = [task for key, task in tasks.items() if key not in run.tasks_before]
    out.closed = [task for key, task in run.tasks_before.items() if key not in tasks]
    parked = {token.id for token in open_now}
    out.parked, out.unparked = sorted(parked - run.parked_before), sorted(run.parked_before - parked)
    for token in run.changed.values():
        (out.inserted if token.id in run.fresh else out.updated).append(token)
    out.deleted, out.freed = run.removed, run.freed
    out.dead_end = not out.ended and all(token.state is TokenState.ENDED for token in run.tokens.values())
    return out
