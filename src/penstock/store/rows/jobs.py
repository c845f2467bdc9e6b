"""Jobs: completions of the fast path, claims and leases. One function per statement of ``queries/jobs.sql``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, cast

import trio

from penstock.core.rules.fencing import ExecutionState
from penstock.core.rules.state import HistoryKind, InstanceStatus, TokenState
from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.outcome import InDoubt
from penstock.store.db.statements import SQL, Statement
from penstock.store.db.vault import CHECKPOINT, PROGRESS, Vault, offloaded, sealed
from penstock.store.rows.instances import BEYOND_ALL
from penstock.store.rows.variables import INLINE_VARIABLES_MAX_BYTES, opened


class FastItem(NamedTuple):
    """A completion that touches its own token only. ``next_type`` None: it ends the instance."""

    token: int
    seq: int
    attempt: int | None
    worker: str
    ends: bool
    next_step: int
    next_type: int | None
    direct_to: str | None
    lease_s: float | None
    output: bytes | None


class AppliedCompletion(NamedTuple):
    """An applied completion. ``new_seq`` None: the instance ended. ``came_back``: to the queue, before; so its
    variables may be others than at its entry."""

    token: int
    seq: int
    new_seq: int | None
    entered_at: datetime | None
    lease_until: datetime | None
    unfolded: int
    came_back: bool | None


class ClaimSlot(NamedTuple):
    """Room for one job of a type in a poll. ``ordinal`` counts the slots of that type from 1."""

    job_type: int
    ordinal: int
    worker: str
    lease_s: float


class LowWaterMark(NamedTuple):
    """From where on a look goes into the queue of a type."""

    priority: int
    place: int


BOTTOM = LowWaterMark(0, 0)
"""Below all rows."""
NO_LOW_WATER_MARKS: Mapping[int, LowWaterMark] = MappingProxyType({})


class ClaimedJob(NamedTuple):
    """A job that was leased to the slot (job_type, ordinal). ``variables`` None: there are many bytes of them,
    or they were not asked for.

    ``place`` is that of the row which it had in the queue.
    """

    job_type: int
    ordinal: int
    token: int
    instance: int
    seq: int
    step: int
    attempt: int
    failures: int
    entered_at: datetime
    claimed_at: datetime
    lease_until: datetime
    priority: int
    place: int
    entry: int
    definition: int
    business_key: str | None
    variables: str | None


class JobKey(NamedTuple):
    """One step execution: the three numbers of a job id."""

    instance: int
    token: int
    seq: int

    @property
    def lock_order(self) -> tuple[bool, int, int]:
        """In what order statements that take several tokens take them (schema.sql): roots, then branches."""
        return self.token != self.instance, self.instance, self.token


class Extension(NamedTuple):
    """One heartbeat."""

    token: int
    seq: int
    attempt: int | None
    worker: str
    lease_s: float
    checkpoint: bytes | None
    progress: bytes | None

    @property
    def tables(self) -> frozenset[str]:
        """Where it leaves something."""
        if self.progress is not None:
            return frozenset({"job_note", "attempt_note"})
        return frozenset() if self.checkpoint is None else frozenset({"job_note"})


class Extended(NamedTuple):
    """An applied heartbeat. ``left_s``: to the end of the lease, which may be another than was asked for. ``mail``: of
    a durable run, how much others have written into its journal."""

    token: int
    seq: int
    instance: int
    step: int
    attempt: int
    lease_until: datetime
    left_s: float
    mail: int
    took: int | None
    """The slots that it took back, as its lease had ended."""


class Lease(NamedTuple):
    """What names a lease: one attempt of one execution; ``claimed_at`` tells it from one that another engine granted
    to the same worker under the same attempt, where a claim is in doubt."""

    token: int
    seq: int
    attempt: int | None
    worker: str
    claimed_at: datetime | None = None


class Released(NamedTuple):
    """A job that was returned, and the attempt that ended with it."""

    job_type: int
    attempt: int
    flow_key: str | None


class Expired(NamedTuple):
    """A lease that ended. ``dead``: nothing was changed, the job is to be dead-lettered."""

    token: int
    seq: int
    attempt: int
    job_type: int
    instance: int
    dead: bool
    flow_key: str | None = None


class LiveLease(NamedTuple):
    """A lease, or the deadline of a dispatch, found by the scan; ``left_s`` until its end, negative when it is over."""

    token: int
    seq: int
    attempt: int
    instance: int
    left_s: float


class ExecutionInfo(NamedTuple):
    """The state of an execution, and where its token stands (None when the execution is closed)."""

    execution: ExecutionState
    step: int | None
    definition: int | None
    business_key: str | None
    lease_until: datetime | None


Rows = Sequence[Sequence[Any]]
R = TypeVar("R")


def _row_maker(kind: type[R]) -> Callable[[Iterable[Any]], R]:
    """What makes named tuples of their columns, in their order, without a step of Python: in 0.4 of the time a call
    by position takes, 0.25 of one by names (timeit, ten columns). For rows of statements, and short ones of a job."""
    return partial(cast(Any, tuple).__new__, kind)


slot: Callable[[tuple[int, int, str, float]], ClaimSlot] = _row_maker(ClaimSlot)
job_key: Callable[[tuple[int, int, int]], JobKey] = _row_maker(JobKey)
_moved = _row_maker(AppliedCompletion)
_claimed = _row_maker(ClaimedJob)


async def complete_fast(
    connection: TrioConnection, items: Sequence[FastItem], *, to_outbox: bool = False
) -> list[AppliedCompletion]:
    """Apply completions; those not in the answer were refused and changed nothing. One transaction of its own.

    ``to_outbox``: the next jobs wait for the relay, not in the queue.
    """
    if len(items) == 1 and not to_outbox:
        rows = await _complete_lone(connection, items[0])
        if rows:
            return list(map(_moved, rows))
    columns = fast_columns(connection, items)
    ends = sum(item.ends for item in items)
    if to_outbox or 0 < ends < len(items):
        rows = await connection.fetch(SQL["complete_fast"], (*columns, to_outbox))
    else:
        rows = await connection.fetch(SQL["complete_ends" if ends else "complete_moves"], columns)
    return list(map(_moved, rows))


LATE_PLACE: Final = 1 << 60
"""From this place in the queue on, durable runs wait that were taken over from a dead executor (`expire_runs`)."""
SPARED_BY_ENDS: Final = ("instance_key", "job_note")
"""Tables that `complete_spared` does without."""


async def complete_spared(
    connection: TrioConnection, items: Sequence[FastItem], *, to_outbox: bool = False
) -> list[AppliedCompletion]:
    """As `complete_fast`, of instances without a key, while somebody holds `SPARED_BY_ENDS`; notes stay."""
    rows = await connection.fetch(SQL["complete_spared"], (*fast_columns(connection, items), to_outbox))
    return list(map(_moved, rows))


async def keyed_instances(connection: TrioConnection, instances: Sequence[int]) -> set[int]:
    """Those of the instances that were started with an instance key."""
    found = await connection.fetch(SQL["keyed_instances"], (arrays.ints(instances),))
    return {cast(int, id) for (id,) in found}


def forget_notes(tokens: Sequence[int]) -> Statement:
    """Deletes what workers noted with the tokens, which are gone."""
    return SQL["forget_notes"], (arrays.ints(tokens),)


async def _complete_lone(connection: TrioConnection, item: FastItem) -> list[Any]:
    """Return one completion by the statement for its usual case. Without an answer it has changed nothing: the
    statements for any case may apply it yet."""
    about = item.token, item.seq, item.attempt, item.worker, item.next_step
    output = None if item.output is None else sealed(item.output, connection.vault)
    if item.ends:
        return await connection.fetch(SQL["complete_lone_end"], (*about, output))
    if item.direct_to is None:
        return []
    return await connection.fetch(
        SQL["complete_lone_move"], (*about, item.next_type, item.direct_to, item.lease_s, output)
    )


def fast_columns(connection: TrioConnection, items: Sequence[FastItem]) -> tuple[Any, ...]:
    """Completions as the statements take them."""
    columns = list(zip(*items, strict=True))
    return (
        arrays.numbers(columns[0]),
        arrays.numbers(columns[1]),
        arrays.numbers(columns[2]),
        arrays.texts(columns[3]),
        arrays.numbers(map(int, columns[4])),
        arrays.numbers(columns[5]),
        arrays.numbers(columns[6]),
        arrays.texts(columns[7]),
        arrays.numbers(columns[8]),
        arrays.sealed(columns[9], connection.vault),
    )


async def tokens_locked_elsewhere(connection: TrioConnection, tokens: Sequence[int]) -> set[int]:
    """Return those of the tokens that other transactions hold now. Only asking for the locks tells: they are in the
    rows."""
    ids = arrays.ints(sorted(tokens))
    free, there = cast(
        Any, await connection.roundtrip([(SQL["free_tokens"], (ids,)), (SQL["tokens_there"], (ids, "{}"))])
    )
    return {id for id, _ in there} - {id for (id,) in free}


class Ready(NamedTuple):
    """What waits of a type: ``waiting`` jobs that anybody may take, whether there are jobs with flow keys, and whether
    the type is ``keyed``, so that nobody may take the others."""

    job_type: int
    waiting: int
    flows: bool
    keyed: bool


async def probe_ready(
    connection: TrioConnection,
    job_types: Sequence[int],
    limit: int,
    low_water_marks: Mapping[int, LowWaterMark] = NO_LOW_WATER_MARKS,
    *,
    spared: bool = False,
) -> list[Ready]:
    """How many jobs wait per type, at most ``limit``; types with none are left out. ``spared``: without the tables of
    jobs that take turns, which somebody holds."""
    priorities, places = _from(low_water_marks, job_types)
    params = (arrays.ints(job_types), limit, priorities, places)
    found = [
        Ready(*cast(Any, row))
        for row in await connection.fetch(SQL["probe_spared" if spared else "probe_ready"], params)
    ]
    return [row for row in found if row.waiting or row.flows]


async def claim(
    connection: TrioConnection,
    slots: Sequence[ClaimSlot],
    low_water_marks: Mapping[int, LowWaterMark] = NO_LOW_WATER_MARKS,
    *,
    clear: bool = False,
    known: bool = False,
    spared: bool = False,
) -> list[ClaimedJob]:
    """Lease waiting jobs to slots. One transaction of its own; `doubtful` has what it did if that is in doubt.
    ``clear``: of types that have fewer jobs than slots, rows in the queue that are no job's any more go. ``known``:
    their variables are left out, unless it clears."""
    types, _, workers, leases = zip(*sorted(slots), strict=True)
    counts: dict[int, int] = {}  # in the order of the slots
    for job_type in types:
        counts[job_type] = counts.get(job_type, 0) + 1
    *first, _ = accumulate(counts.values(), initial=1)
    params = (
        arrays.numbers(counts),
        arrays.numbers(first),
        arrays.numbers(counts.values()),
        *_from(low_water_marks, counts),
        arrays.texts(workers),
        arrays.numbers(leases),
    )
    if spared:
        return list(map(_claimed, await connection.fetch(SQL["claim_spared"], params)))
    if known and not clear:
        return list(map(_claimed, await connection.fetch(SQL["claim_known"], params)))
    statement = SQL["claim_and_clear" if clear else "claim"]
    rows = await connection.fetch(statement, (*params, INLINE_VARIABLES_MAX_BYTES))
    return await readable(connection, list(map(_claimed, rows)))


async def readable(connection: TrioConnection, found: list[ClaimedJob]) -> list[ClaimedJob]:
    """What was claimed, its payloads as they were before they were encrypted."""
    vault = connection.vault
    if vault is not None:
        size_bytes = sum(len(row.variables or "") for row in found)
        with trio.CancelScope(shield=True):  # they are claimed
            found = await offloaded(size_bytes, partial(_opened, found, vault))
    return found


def doubtful(doubt: InDoubt) -> list[ClaimedJob]:
    """What a claim in doubt has leased, if it was committed; payloads as they are stored."""
    return [ClaimedJob(*cast(Any, row)) for row in doubt.rows]


def _opened(found: Sequence[ClaimedJob], vault: Vault) -> list[ClaimedJob]:
    return [
        row if row.variables is None else row._replace(variables=opened(vault, row.variables, row.instance))
        for row in found
    ]


def _from(low_water_marks: Mapping[int, LowWaterMark], job_types: Iterable[int]) -> tuple[str, str]:
    """Return the low-water mark of each type, as two columns."""
    found = [low_water_marks.get(job_type, BOTTOM) for job_type in job_types]
    return arrays.ints(floor.priority for floor in found), arrays.ints(floor.place for floor in found)


async def extend(connection: TrioConnection, items: Sequence[Extension]) -> list[Extended]:
    """Apply heartbeats; those not in the answer were refused."""
    columns = list(zip(*items, strict=True))
    params = (
        arrays.ints(columns[0]),
        arrays.ints(columns[1]),
        arrays.ints(columns[2]),
        arrays.texts(columns[3]),
        arrays.floats(columns[4]),
        arrays.sealed_values(columns[5], connection.vault, CHECKPOINT),
        arrays.sealed_values(columns[6], connection.vault, PROGRESS),
    )
    return [Extended(*cast(Any, row)) for row in await connection.fetch(SQL["extend"], params)]


TABLES_OF_EXTEND: Final = frozenset({"attempt_note", "job_note", "job_type", "queue", "ready", "ready_flow", "slot"})
"""Tables that `extend_leased` does without, but for notes."""


async def extend_leased(connection: TrioConnection, items: Sequence[Extension]) -> list[Extended]:
    """As `extend`, of jobs that are leased still, while somebody holds one of `TABLES_OF_EXTEND`."""
    tokens, seqs, attempts, workers, leases, *_ = zip(*items, strict=True)
    params = arrays.ints(tokens), arrays.ints(seqs), arrays.ints(attempts), arrays.texts(workers), arrays.floats(leases)
    noting = {(item.token, item.seq): item for item in items if item.tables}
    async with connection.transaction():
        rows = [Extended(*cast(Any, row)) for row in await connection.fetch(SQL["extend_leased"], params)]
        noted = [(row, noting[row.token, row.seq]) for row in rows if (row.token, row.seq) in noting]
        if noted:
            columns = (
                arrays.ints(row.token for row, _ in noted),
                arrays.ints(row.seq for row, _ in noted),
                arrays.ints(row.attempt for row, _ in noted),
                arrays.ints(row.instance for row, _ in noted),
                arrays.sealed_values((item.checkpoint for _, item in noted), connection.vault, CHECKPOINT),
                arrays.sealed_values((item.progress for _, item in noted), connection.vault, PROGRESS),
            )
            await connection.fetch(SQL["note_jobs"], columns)
            if any(item.progress is not None for _, item in noted):
                await connection.fetch(SQL["note_attempts"], columns)
    return rows


SPARED_BY_RETURNS: Final = frozenset({"job_type", "ready_flow", "slot", "timer"})
"""Tables that `release`, `expire` and `journal.expire` do without for what is plain: has no flow key, slot or pause."""


async def release(
    connection: TrioConnection, leases: Sequence[Lease], *, to_outbox: bool = False, plain: bool = False
) -> dict[tuple[int, int], Released]:
    """Return leased jobs to the queue, or to the outbox; those that were, by (token, seq). ``plain``: only those that
    need none of `SPARED_BY_RETURNS`."""
    columns = list(zip(*leases, strict=True))
    params = (
        arrays.ints(columns[0]),
        arrays.ints(columns[1]),
        arrays.ints(columns[2]),
        arrays.texts(columns[3]),
        to_outbox,
        arrays.times(columns[4]),
    )
    rows = cast(Any, await connection.fetch(SQL["release_plain" if plain else "release"], params))
    return {(token, seq): Released(*rest) for token, seq, *rest in rows}


async def expire(
    connection: TrioConnection,
    leases: Sequence[tuple[int, int, int]],
    expiry_limit: int,
    *,
    to_outbox: bool = False,
    plain_beside: Iterable[int] | None = None,
) -> list[Expired]:
    """Return jobs whose lease or dispatch ended to the queue, or to the outbox; (token, seq, attempt) each.
    ``plain_beside``: only those that need none of `SPARED_BY_RETURNS`, and are not of these job types."""
    columns = list(zip(*leases, strict=True))
    params = (arrays.ints(columns[0]), arrays.ints(columns[1]), arrays.ints(columns[2]), expiry_limit, to_outbox)
    if plain_beside is None:
        rows = await connection.fetch(SQL["expire"], params)
    else:
        rows = await connection.fetch(SQL["expire_plain"], (*params, arrays.ints(plain_beside)))
    return [Expired(*cast(Any, row)) for row in rows]


async def scan_leases(connection: TrioConnection, within_s: float) -> list[LiveLease]:
    """Return all leases that end within so many seconds. A sequential scan, which the session's settings would
    forbid."""
    *_, rows, _ = await connection.roundtrip(
        [
            (SQL["begin"], ()),
            (SQL["allow_sequential_scan"], ()),
            (SQL["scan_leases"], (within_s,)),
            (SQL["commit"], ()),
        ]
    )
    return [LiveLease(*cast(Any, row)) for row in rows]


async def look_up(connection: TrioConnection, keys: Sequence[JobKey], workers: Sequence[str]) -> list[ExecutionInfo]:
    """What is known of each execution, for `fencing.decide_fence`; in order. Reads only, locks nothing."""
    params = (
        arrays.ints(key.instance for key in keys),
        arrays.ints(key.token for key in keys),
        arrays.ints(key.seq for key in keys),
        arrays.texts(workers),
    )
    return [execution_info(row) for row in cast(Rows, await connection.fetch(SQL["look_up"], params))]


async def step_of_closed(connection: TrioConnection, job: JobKey) -> tuple[int, int] | None:
    """The definition's key and the step of an execution that is over; None where nothing is known of it."""
    rows = await connection.fetch(SQL["step_of_closed"], (job.instance, job.token, job.seq))
    return cast(Any, rows[0]) if rows else None


def execution_info(row: Sequence[Any]) -> ExecutionInfo:
    """Return one row of the statement ``look_up``."""
    status, kind, closed_attempt, state, holder, attempt, step, lease_until, definition, business_key, failed = row
    return ExecutionInfo(
        ExecutionState(
            instance=None if status is None else InstanceStatus(status),
            closed=None if kind is None else HistoryKind(kind),
            closed_attempt=closed_attempt or 0,
            state=None if state is None else TokenState(state),
            holder=holder,
            attempt=attempt or 0,
            failed_attempt=failed,
        ),
        step,
        definition,
        business_key,
        lease_until,
    )


async def checkpoints(connection: TrioConnection, tokens: Sequence[int]) -> dict[tuple[int, int], str]:
    """What heartbeats left for the next attempt, by (token, seq)."""
    rows = cast(Any, await connection.fetch(SQL["checkpoints"], (arrays.ints(tokens),)))
    vault = connection.vault
    if vault is None:
        return {(token, seq): checkpoint for token, seq, checkpoint in rows}
    clear = await offloaded(
        sum(len(row[2]) for row in rows),
        lambda: {(token, seq): opened(vault, checkpoint, token, CHECKPOINT) for token, seq, checkpoint in rows},
    )
    return {key: checkpoint for key, checkpoint in clear.items() if checkpoint is not None}


async def fresh_leases(
    connection: TrioConnection, completions: Sequence[tuple[int, int, str, int | None]]
) -> list[tuple[int, int, str, datetime, datetime]]:
    """(token, seq, worker, entered_at, lease_until) of tokens under the first lease after one of these completions:
    (token, seq, worker, attempt or None)."""
    tokens, seqs, workers, attempts = zip(*completions, strict=True)
    params = (arrays.ints(tokens), arrays.ints(seqs), arrays.texts(workers), arrays.ints(attempts))
    rows = await connection.fetch(SQL["fresh_leases"], params)
    return [cast(tuple[int, int, str, datetime, datetime], row) for row in rows]


class FailedJob(NamedTuple):
    """A job that failed for good."""

    instance: int
    token: int
    seq: int
    step: int
    failed_at: datetime
    reason: str | None
    worker: str | None
    definition: int
    code: str | None


async def failed_jobs(
    connection: TrioConnection,
    job_type: str | None,
    *,
    limit: int,
    count_max: int,
    offset: int = 0,
    before: int = BEYOND_ALL,
) -> tuple[list[FailedJob], int]:
    """Jobs that failed for good, of one type or of any, of instances below ``before``, newest instance first; and how
    many there are of all, up to ``count_max``."""
    *_, rows, count, _ = await connection.roundtrip(
        [
            (SQL["begin"], ()),
            (SQL["plan_for_values"], ()),
            (SQL["failed_jobs"], (job_type, limit, offset, before)),
            (SQL["count_failed_jobs"], (job_type, count_max)),
            (SQL["commit"], ()),
        ]
    )
    return [FailedJob(*cast(Any, row)) for row in rows], cast(int, count[0][0])


async def queue_depth(connection: TrioConnection) -> list[tuple[str, int, float | None]]:
    """Per job type: how many jobs wait, and the age in seconds of the oldest."""
    return [cast(tuple[str, int, float | None], row) for row in await connection.fetch(SQL["queue_depth"])]
