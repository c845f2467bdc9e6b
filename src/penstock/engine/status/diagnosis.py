"""Where one instance stands, why, and what it did last: for people who look at it.

The sentence is made here, so that every interface says the same. What is read is bounded, however long an instance
runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple, assert_never

import msgspec

from penstock.api.instances import AT_START
from penstock.core.graph.definition import Step, StepType
from penstock.core.rules.state import RECORDED_TIMER, RETRY_TIMER, WAIT_TIMER, WAKE_TIMER, TokenState
from penstock.engine.definitions.definitions import Definitions
from penstock.engine.definitions.taken_path import taken_path
from penstock.engine.definitions.versions import Versions, versions_of
from penstock.engine.instances.views import history_items, summarize_instances
from penstock.engine.queues.queues import KeptBack, Queues, kept_back
from penstock.engine.requests import ids
from penstock.engine.requests.answers import COPIES, current_reservation
from penstock.engine.requests.read_pool import ReadPool
from penstock.errors import BadRequest, Conflict, NotFound
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import activity as activity_store
from penstock.store.rows import diagnosis as store
from penstock.store.rows import instances as instance_store
from penstock.store.rows import variables as variables_store
from penstock.store.rows.diagnosis import ArmedTimer, OpenExecution, Passage, WrittenOutput
from penstock.store.rows.instances import HistoryEntry
from penstock.wire.error_code import NOT_RETRYABLE, OWN_PREFIX, RETRIES_EXHAUSTED
from penstock.wire.model import Instance, StepExecution
from penstock.wire.page import Page
from penstock.wire.standing import InstanceState, OpenStep, OpenTimer, ShownExecution, VariablesAsOf
from penstock.wire.why import Why

SLICE_MAX: Final = 500
PATH_MAX: Final = 500
CHILDREN_MAX: Final = 200
OUTPUT_SLICE_MAX: Final = 50
OUTPUT_MAX_BYTES: Final = 65_536
FIRST_READ_BYTES: Final = 16_384
"""Variables that are read without asking for their size: nearly all of them."""
FINAL: Final = {RETRIES_EXHAUSTED: " (no retries left)", NOT_RETRYABLE: " (not retryable)"}
"""Why a job was not tried again, by the code of its failure. A code of its worker does not say it."""
NOBODY_POLLS_S: Final = 15.0
"""So long a job waits before it is said that nobody polls: engines tell each other every ten seconds."""
_EXECUTION_BYTES: Final = 4_096
_WAITS: Final[Mapping[StepType, tuple[str, str]]] = {
    StepType.USER_TASK: ("waits-for-person", "waits for a person"),
    StepType.WAIT: ("waits-for-signal", "waits for a signal"),
    StepType.SERVICE_TASK: ("waits-for-signal", "was parked by its worker until a signal comes"),
    StepType.CALL_ACTIVITY: ("waits-for-instance", "waits for the instance that it called"),
}


class _Place(NamedTuple):
    """An open execution and all that is said of it."""

    token: OpenExecution
    step: Step
    code: str
    text: str
    next: datetime | None


class Diagnosis:
    """Looks at one instance."""

    def __init__(self, read_pool: ReadPool, definitions: Definitions, queues: Queues, *, polled: bool) -> None:
        """``polled``: jobs go out to workers that poll."""
        self._read_pool = read_pool
        self._queues = queues
        self._polled = polled
        self._definitions = definitions

    async def state(self, id: str) -> InstanceState:
        """Raises NotFound, and Unavailable when the database is too busy."""
        number = ids.read_instance(id)
        async with self._read_pool.connection() as connection, store.brief_read(connection):
            found = await summarize_instances(connection, self._definitions, [number])
            if not found:
                raise NotFound(f"instance '{id}' is unknown")
            versions = await self._versions(connection, number)
            loaded = versions.current
            tokens = await store.tokens(connection, number)
            timers = await store.timers(connection, tokens) if tokens else []
            workers = None if loaded.code else await self._workers(connection, tokens)
            waiting = [token.token for token in tokens if token.state == TokenState.READY]
            kept = await kept_back(connection, waiting) if waiting and self._queues.keyed else {}
            is_over = not tokens and not loaded.code and await store.is_dead_end(connection, number)
            failure = await store.failure(connection, number) if found[0].status == "FAILED" else None
            signals = await store.signals(connection, number)
            children = await store.children(connection, number, CHILDREN_MAX)
            passages, whole = await store.passages(connection, number, PATH_MAX)
            version = await variables_store.version(connection, number)
            now = await activity_store.read_clock(connection)
        steps = loaded.definition.steps
        retries = {timer.token: timer.fire_at for timer in timers if timer.timer == RETRY_TIMER}
        places = [_place(token, steps[token.step], timers, workers, kept, now, code=loaded.code) for token in tokens]
        return InstanceState(
            found[0],
            _why(found[0], places, failure, versions, is_over=is_over),
            [_shown(number, place, retries.get(place.token.token)) for place in places],
            _timers(timers, {place.token.token: place.step for place in places}, steps),
            signals,
            [ids.show_instance(child) for child in children],
            [] if loaded.code else taken_path(steps, _as_now(passages, versions), number, whole=whole),
            str(version),
        )

    async def history(self, id: str, cursor: str | None, limit: int, *, output: bool) -> Page[ShownExecution]:
        """Return a slice of the history, newest first. Raises NotFound, BadRequest, and Unavailable when the database
        is too busy."""
        number = ids.read_instance(id)
        before = store.BEYOND_ALL if cursor is None else _read_cursor(cursor)
        most = OUTPUT_SLICE_MAX if output else SLICE_MAX
        limit = most if limit <= 0 else min(limit, most)
        await current_reservation().reserve_soon(limit * (_EXECUTION_BYTES + (OUTPUT_MAX_BYTES if output else 0)))
        async with self._read_pool.connection() as connection, store.brief_read(connection):
            versions = await self._versions(connection, number)
            opened = await store.open_history(connection, number) if cursor is None else []
            closed = await store.history_slice(
                connection, number, before=before, most=limit, output_max_bytes=OUTPUT_MAX_BYTES if output else None
            )
        return _slice(number, versions, opened, closed, limit)

    async def variables_after(self, id: str, after: str) -> VariablesAsOf:
        """Return the variables as an execution left them, or those that the instance started with. Raises NotFound,
        Conflict for one that is open, Overloaded, and Unavailable when the database is too busy."""
        number, size_bytes = ids.read_instance(id), FIRST_READ_BYTES
        key = None if after == AT_START else ids.read_job(after)
        if key is not None and key.instance != number:
            raise NotFound(f"instance '{id}' has no execution '{after}'")
        while True:
            await current_reservation().reserve_soon(COPIES * size_bytes)
            async with self._read_pool.connection() as connection, store.brief_read(connection):
                versions = await self._versions(connection, number)
                closed = (store.BEFORE_ALL, None) if key is None else await store.closed_at(connection, key)
                if closed is None:
                    raise Conflict(f"execution '{after}' has not ended: what it wrote is not known yet")
                position, step = closed
                text, size_bytes, changed = await store.variables_as_of(connection, number, position, size_bytes)
            if text is not None:
                by = "" if step is None else versions.step(step, position).id
                return VariablesAsOf(msgspec.Raw(text.encode()), changed, by)
            current_reservation().keep(0)

    async def _versions(self, connection: TrioConnection, number: int) -> Versions:
        found = await instance_store.definition_of(connection, number)
        if found is None:
            raise NotFound(f"instance '{ids.show_instance(number)}' is unknown")
        return await versions_of(connection, self._definitions, found)

    async def _workers(self, connection: TrioConnection, tokens: Sequence[OpenExecution]) -> Mapping[str, int] | None:
        """Those that poll for each job type, where a job waits for one of them."""
        waits = self._polled and any(token.state == TokenState.READY for token in tokens)
        return await activity_store.read_worker_counts(connection) if waits else None


def _place(
    token: OpenExecution,
    step: Step,
    timers: Sequence[ArmedTimer],
    workers: Mapping[str, int] | None,
    kept: Mapping[int, KeptBack],
    now: datetime,
    *,
    code: bool,
) -> _Place:
    """In words what an open execution does. They follow the step's name. ``kept``: what queues keep back, by token.
    ``code``: of a run of a durable workflow."""
    own = [timer for timer in timers if timer.token == token.token]
    first = own[0].fire_at if own else None
    state = TokenState(token.state)
    match state:
        case TokenState.READY:
            return _waiting(token, step, workers, kept.get(token.token), now, first)
        case TokenState.LOCKED:
            return _Place(token, step, "runs", f"runs at {token.worker}", token.lease_until)
        case TokenState.DISPATCHED:
            return _Place(token, step, "runs", "was handed to Kafka", token.lease_until)
        case TokenState.BACKOFF:
            retry = next((timer.fire_at for timer in own if timer.timer == RETRY_TIMER), None)
            reason = f": {token.reason}" if token.reason else ""
            return _Place(token, step, "retries", f"will be tried again{reason}", retry)
        case TokenState.DELAYED:
            return _Place(token, step, "waits-for-time", "has not begun: the start waits for its time", first)
        case TokenState.PARKED | TokenState.FORKED | TokenState.ENDED | TokenState.CALLED:
            why, text = _WAITS.get(step.type, ("waits", "waits"))
            if step.message is not None:
                why, text = "waits-for-message", f"waits for the message '{step.message.name}' '{token.message_key}'"
            elif code:
                why, text = "waits-for-message", "was parked by its worker until a message comes"
            if any(timer.timer == RECORDED_TIMER for timer in own):
                return _Place(token, step, "runs", "was completed by its worker's own transaction", None)
            due = next((timer.fire_at for timer in own if timer.timer in (WAIT_TIMER, WAKE_TIMER)), None)
            if due is not None and step.type is StepType.SERVICE_TASK:
                comes = "a message" if code else "a signal"
                why, text = "waits-for-time", f"was parked by its worker until its time or {comes} comes"
            elif due is not None:
                why, text = "waits-for-time", f"{text} or its time"
            return _Place(token, step, why, text, due or first)
        case _:
            assert_never(state)


def _waiting(
    token: OpenExecution,
    step: Step,
    workers: Mapping[str, int] | None,
    kept: KeptBack | None,
    now: datetime,
    due: datetime | None,
) -> _Place:
    """Of one whose job has yet to begin. ``due``: its first timer."""
    waited_s = (now - token.entered_at).total_seconds()
    alone = workers is not None and waited_s >= NOBODY_POLLS_S and not workers.get(step.job_type or "")
    polls = f"; nobody polls for {step.job_type}" if alone else ""
    if kept is not None:
        begins = None if kept.until_s is None else now + timedelta(seconds=kept.until_s)
        return _Place(token, step, kept.code, f"waits: {kept.text}{polls}", begins or due)
    return _Place(token, step, "no-worker" if alone else "waits-for-worker", f"waits for a worker{polls}", due)


def _as_now(passages: Sequence[Passage], versions: Versions) -> list[Passage]:
    """With the numbers that their steps have now; those of steps that are gone are left out."""
    known = [(each, versions.became(each.step, each.closed_at)) for each in passages]
    return [each._replace(step=step) for each, step in known if step is not None]


def _why(
    instance: Instance,
    places: Sequence[_Place],
    failure: store.LastFailure | None,
    versions: Versions,
    *,
    is_over: bool,
) -> Why:
    """``is_over``: all its branches have ended."""
    if instance.status == "FAILED":
        reason = instance.failure_reason or (failure.reason if failure is not None else None) or "no reason was given"
        if failure is None:
            return Why("failed", f"Failed: {reason}", since=instance.completed_at)
        attempts = f" after {failure.attempt} attempts" if failure.attempt > 1 else ""
        own = instance.failure_code is None or instance.failure_code.startswith(OWN_PREFIX)
        code = "" if own else f" with {instance.failure_code}"
        step = versions.step(failure.step, failure.position)
        end = FINAL.get(instance.failure_code or "", "")
        text = f"{_name(step)} failed{attempts}{code}{end}: {reason}"
        return Why("failed", text, step.id, failure.at)
    if instance.status == "CANCELLED":
        reason = f": {instance.failure_reason}" if instance.failure_reason else ""
        return Why("cancelled", f"It was cancelled{reason}", since=instance.completed_at)
    if instance.status == "COMPLETED":
        return Why("completed", "It has completed", since=instance.completed_at)
    if not places:
        if is_over:
            return Why("dead-end", "Its last branch has ended without an END: nothing goes on by itself; cancel it")
        return Why("runs", "It goes on")
    said = "; ".join(f"{_name(place.step)} {place.text}" for place in places[:3])
    more = f"; and {len(places) - 3} more" if len(places) > 3 else ""
    first = places[0]
    nexts = [place.next for place in places if place.next is not None]
    return Why(first.code, said + more, first.step.id, first.token.entered_at, min(nexts, default=None))


def _name(step: Step) -> str:
    return step.name or step.id


def _shown(instance: int, place: _Place, retry_at: datetime | None) -> OpenStep:
    token = place.token
    held = token.state in (TokenState.LOCKED, TokenState.DISPATCHED)
    return OpenStep(
        ids.show_job(instance, token.token, token.seq),
        place.step.id,
        TokenState(token.state).name,
        token.entered_at,
        place.text,
        token.attempt,
        token.failures,
        token.worker if held else None,
        token.lease_until if held else None,
        retry_at,
        None if token.progress is None else msgspec.Raw(token.progress.encode()),
    )


def _timers(timers: Sequence[ArmedTimer], of: Mapping[int, Step], steps: Sequence[Step]) -> list[OpenTimer]:
    kinds = {RETRY_TIMER: "retry", WAIT_TIMER: "wait", WAKE_TIMER: "wake"}
    found: list[OpenTimer] = []
    for timer in timers:
        step, target = of[timer.token], None
        if 0 <= timer.timer < len(step.boundaries):
            target = steps[step.boundaries[timer.timer].target].id
        kind = "boundary" if timer.timer >= 0 else kinds.get(timer.timer, "engine")
        found.append(OpenTimer(step.id, kind, timer.fire_at, target))
    return found


def _slice(
    instance: int,
    versions: Versions,
    opened: Sequence[HistoryEntry],
    closed: Sequence[tuple[HistoryEntry, WrittenOutput]],
    limit: int,
) -> Page[ShownExecution]:
    """Return those that closed last first; an END after the step that led to it, so before it here."""
    rows = sorted([*opened, *(row for row, _ in closed)], key=lambda row: (row.seq, row.position or math.inf))
    wrote = {
        ids.show_job(instance, row.token, row.seq): written for row, written in closed if written.bytes is not None
    }
    ends = {
        ids.show_job(instance, row.token, row.seq): (row.position, row.seq)
        for row, _ in closed
        if row.kind is not None and row.kind < 10 and row.position is not None
    }
    items = [
        ShownExecution(
            **{name: getattr(item, name) for name in StepExecution.__struct_fields__ if name != "attempt_number"},
            output=None if (text := _output(wrote.get(item.id))) is None else msgspec.Raw(text.encode()),
            output_bytes=wrote[item.id].bytes if item.id in wrote else None,
        )
        for item in history_items(instance, versions, rows)
    ]
    items.sort(key=lambda item: ends.get(item.id, (math.inf, ids.read_job(item.id).seq)), reverse=True)
    positions = [row.position for row, _ in closed if row.kind is not None and row.kind < 10]
    count = len(set(positions))
    last = min((position for position in positions if position is not None), default=None)
    return Page(items=items, next=str(last) if count == limit and last is not None else None)


def _output(written: WrittenOutput | None) -> str | None:
    return None if written is None else written.output


def _read_cursor(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        raise BadRequest("cursor: is not a `next` of this history")
    return int(cursor)
