"""What is open, as people look at it: jobs that wait, that workers have, that back off; timers to come.

Reads only, but for one act: an operator ends a lease. Must not decide anything: what it says may be over already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec
import trio

from penstock.access.identity import actor
from penstock.core.graph.definition import StepType
from penstock.core.parsing.turns import shown_priority
from penstock.core.rules.state import CONTINUE_TIMER, RETRY_TIMER, WAIT_TIMER, WAKE_TIMER, TokenState
from penstock.engine.definitions.definitions import Definitions, LoadedDefinition
from penstock.engine.instances.instances import REASON_MAX_CHARS
from penstock.engine.jobs.jobs import Jobs
from penstock.engine.queues.losses import Loss
from penstock.engine.queues.polls import Polls
from penstock.engine.requests import ids
from penstock.engine.requests.paging import read_numbers, slice_limit
from penstock.engine.requests.payload import check_text
from penstock.engine.requests.read_pool import ReadPool
from penstock.errors import BadRequest, Conflict
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.rows import audit
from penstock.store.rows import open_work as store
from penstock.store.rows.flow import OPEN_RUN_LEAD
from penstock.store.rows.open_work import ComingTimer, OpenJob, TimerKey
from penstock.wire.model import JobRef
from penstock.wire.open_work import OpenJobView, TimerView
from penstock.wire.page import Page

KINDS: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {"boundary": (), "retry": (RETRY_TIMER,), "wait": (WAIT_TIMER, CONTINUE_TIMER), "wake": (WAKE_TIMER,)}
)
"""The indexes of timers by the name of their kind; those of boundary events are places in their list."""
_KIND_OF: Final = {index: name for name, indexes in KINDS.items() for index in indexes}
_FIRST: Final = TimerKey(datetime(1970, 1, 1, tzinfo=UTC), 0, 0, -32_768)
LEASED_KEPT_S: Final = 10.0
"""So old a list of leased jobs may be: it costs a walk over all tokens."""
LEASED_MAX: Final = 200


class _Kept(NamedTuple):
    until: float
    jobs: list[OpenJob]


class OpenWork:
    """Lists for people."""

    def __init__(
        self,
        database: Database,
        read_pool: ReadPool,
        definitions: Definitions,
        jobs: Jobs,
        polls: Polls,
        *,
        audit: bool,
    ) -> None:
        self._database = database
        self._read_pool = read_pool
        self._definitions = definitions
        self._jobs = jobs
        self._polls = polls
        self._audit = audit
        self._leased: dict[tuple[int | None, TokenState], _Kept] = {}
        self._walking = trio.Lock()

    async def jobs(self, status: str, job_type: str | None, cursor: str | None, limit: int) -> Page[OpenJobView]:
        """WAITING (of one job type by priority and flow key, of each those first that are taken first), LOCKED and
        DISPATCHED (those first that are longest under way, the first `LEASED_MAX`) or BACKOFF (those first whose time
        comes first). Raises BadRequest, Unavailable."""
        limit = slice_limit(limit)
        async with self._read_pool.connection() as connection:
            number = await self._job_type(connection, job_type)
            match status:
                case "WAITING":
                    return await self._waiting(connection, job_type, number, cursor, limit)
                case "LOCKED" | "DISPATCHED":
                    rows = await self._under_way(connection, job_type, number, TokenState[status])
                    return Page(items=[await self._view(connection, row) for row in rows[:limit]])
                case "BACKOFF":
                    return await self._backing_off(connection, job_type, number, cursor, limit)
                case _:
                    raise BadRequest("status: must be FAILED, WAITING, LOCKED, DISPATCHED or BACKOFF")

    async def _job_type(self, connection: TrioConnection, name: str | None) -> int | None:
        """None for none, and for one that there is not."""
        if name is None:
            return None
        await self._definitions.resolve_job_types(connection, [name])
        return self._definitions.job_type_ids.get(name)

    async def _waiting(
        self, connection: TrioConnection, job_type: str | None, number: int | None, cursor: str | None, limit: int
    ) -> Page[OpenJobView]:
        if job_type is None:
            raise BadRequest("jobType: is needed for jobs that wait")
        after = (
            _read_place(cursor) if cursor else store.QueuePlace(-OPEN_RUN_LEAD, -1, "")
        )  # from the least priority on
        if number is None:
            return Page(items=[])
        jobs, last = await store.waiting(connection, number, after, limit)
        items = [await self._view(connection, job) for job in jobs]
        return Page(items=items, next=None if last is None else _show_place(last))

    async def _under_way(
        self, connection: TrioConnection, job_type: str | None, number: int | None, state: TokenState
    ) -> list[OpenJob]:
        if job_type is not None and number is None:
            return []
        async with self._walking:  # the second one in line finds the first one's answer
            now = trio.current_time()
            self._leased = {key: kept for key, kept in self._leased.items() if kept.until > now}
            kept = self._leased.get((number, state))
            if kept is None:
                rows = await store.leased(connection, number, LEASED_MAX, state)
                kept = self._leased[number, state] = _Kept(now + LEASED_KEPT_S, rows)
            return kept.jobs

    async def _backing_off(
        self, connection: TrioConnection, job_type: str | None, number: int | None, cursor: str | None, limit: int
    ) -> Page[OpenJobView]:
        rows, following = await self._timers(connection, KINDS["retry"], cursor, limit, job_type, number)
        items: list[OpenJobView] = []
        for row in rows:
            if row.step is None or row.definition is None or row.since is None:
                continue
            job = OpenJob(row.priority or 0, 0, row.token, row.instance, row.seq, row.step, row.attempt or 0,
                          row.failures or 0, row.since, None, None, row.definition, None, row.flow_key)  # fmt: skip
            items.append(msgspec.structs.replace(await self._view(connection, job), retry_at=row.fire_at))
        return Page(items=items, next=following)

    async def timers(self, kind: str | None, cursor: str | None, limit: int) -> Page[TimerView]:
        """Return those that fire next, of one kind or any. Raises BadRequest, Unavailable."""
        if kind is not None and kind not in KINDS:
            raise BadRequest(f"kind: must be one of {', '.join(KINDS)}")
        indexes = tuple(_KIND_OF) if kind is None else KINDS[kind]
        async with self._read_pool.connection() as connection:
            rows, following = await self._timers(
                connection, indexes, cursor, slice_limit(limit), boundary=kind in (None, "boundary")
            )
            views = [await self._timer(connection, row) for row in rows]
        return Page(items=[view for view in views if view is not None], next=following)

    async def _timers(
        self,
        connection: TrioConnection,
        indexes: Sequence[int],
        cursor: str | None,
        limit: int,
        job_type: str | None = None,
        number: int | None = None,
        *,
        boundary: bool = False,
    ) -> tuple[list[ComingTimer], str | None]:
        after = _timer_key(cursor) if cursor else _FIRST
        most = limit + 1 if job_type is None else None  # which of them are of a type is seen afterwards
        found = await store.timers(connection, after, indexes, boundary=boundary, most=most)
        rows = [row for row in found if job_type is None or row.job_type == number]
        if len(rows) > limit:
            last = rows[limit - 1]
            return rows[:limit], _show(TimerKey(last.fire_at, last.token, last.seq, last.place))
        end = await store.end_of_scan(connection, after)
        return rows, None if end is None else _show(end)

    async def _timer(self, connection: TrioConnection, row: ComingTimer) -> TimerView | None:
        """None for one whose execution is closed."""
        if row.step is None or row.definition is None:
            return None
        loaded = await self._definitions.by_key(connection, row.definition)
        step = loaded.definition.steps[row.step]
        boundary = dict(step.timers).get(row.place)
        return TimerView(
            kind="boundary" if boundary is not None else _KIND_OF.get(row.place, "other"),
            fire_at=row.fire_at,
            instance_id=ids.show_instance(row.instance),
            step_id=step.id,
            definition_id=loaded.definition.id,
            version=loaded.version,
            target=None if boundary is None else loaded.definition.steps[boundary.target].id,
            interrupting=boundary is not None and boundary.interrupting,
        )

    async def _view(self, connection: TrioConnection, row: OpenJob) -> OpenJobView:
        loaded: LoadedDefinition = await self._definitions.by_key(connection, row.definition)
        step = loaded.definition.steps[row.step]
        priority = row.priority + OPEN_RUN_LEAD if row.priority < 0 else row.priority
        return OpenJobView(
            id=ids.show_job(row.instance, row.token, row.seq),
            job_type=step.job_type or "" if step.type is StepType.SERVICE_TASK else "",
            instance_id=ids.show_instance(row.instance),
            step_id=step.id,
            definition_id=loaded.definition.id,
            version=loaded.version,
            since=row.since,
            attempt=row.attempt,
            failures=row.failures,
            worker_id=row.worker,
            lease_until=row.lease_until,
            progress=None if row.progress is None else msgspec.Raw(row.progress.encode()),
            priority=shown_priority(priority),
            flow_key=row.flow_key,
        )

    def forget(self) -> None:
        """Read anew the next time."""
        self._leased.clear()

    async def unlock(self, job_id: str, note: str | None) -> None:
        """End a job's lease now: it goes back to the queue, no retry is spent, and its worker is told that it lost it.

        Raises NotFound, BadRequest, and Conflict when nobody has the job.
        """
        if note is not None:
            check_text(note, "note", REASON_MAX_CHARS)
        job = ids.read_job(job_id)
        async with self._database.connection() as connection:
            held = await store.holder(connection, job.token, job.seq)
        if held is None:
            raise Conflict("no worker has the job")
        worker, attempt = held
        (outcome,) = await self._jobs.release_many([JobRef(job_id=job_id, worker_id=worker, attempt=attempt)])
        if outcome.outcome != "ok":
            raise Conflict("the lease has ended meanwhile")
        self._polls.losses.notify(Loss(worker, job.instance, job.token, job.seq, attempt))
        if self._audit:
            async with self._database.connection() as connection:
                detail = f"of {worker}" + (f": {note}" if note else "")
                await connection.fetch(*audit.add(job.instance, None, "LEASE_ENDED", actor(), detail))


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC) - _EPOCH
_INDEX_BASE: Final = 32_768


def _show(key: TimerKey) -> str:
    return f"{(key.fire_at - _EPOCH) // _MICROSECOND}-{key.token}-{key.seq}-{key.place + _INDEX_BASE}"


def _show_place(last: store.QueuePlace) -> str:
    return f"{last.priority + OPEN_RUN_LEAD}-{last.place}-{last.flow_key}"


def _read_place(cursor: str) -> store.QueuePlace:
    numbers, key = cursor.split("-", 2)[:2], cursor.split("-", 2)[2:]  # a key may have dashes
    priority, place = read_numbers("-".join(numbers), digits=19, count=2)
    return store.QueuePlace(priority - OPEN_RUN_LEAD, place, "".join(key))


def _timer_key(cursor: str) -> TimerKey:
    micros, token, seq, index = read_numbers(cursor, digits=19, count=4)
    try:
        return TimerKey(_EPOCH + micros * _MICROSECOND, token, seq, index - _INDEX_BASE)
    except OverflowError:
        raise BadRequest("cursor: is not a `next` of this list") from None
