"""Queues: policies that limit the jobs of some types, and what this engine knows of them.

What it knows says only where a job waits that comes to be, and that it may not be handed out at birth; a claim reads
the policy itself, in the statement that leases (`store.rows.flow`). So a change counts from the next claim on, in all
engines. What is known is read again when somebody says that it has changed, and looked at every second.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Final, NamedTuple, TypeVar

import trio

from penstock.access.identity import actor
from penstock.api import queues as api
from penstock.core.parsing.turns import FLOW_KEY_MAX_CHARS, PRIORITY_MAX
from penstock.core.time.duration import DurationError, parse_duration
from penstock.engine.requests.bound import Binding, bind
from penstock.engine.requests.paging import NAME_MAX_CHARS, slice_limit
from penstock.engine.requests.payload import check_text
from penstock.errors import BadRequest, Conflict, NotFound
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.rows import engines as engine_store
from penstock.store.rows import queues as store
from penstock.store.rows.flow import WaitsInQueue
from penstock.wire.page import Page
from penstock.wire.queue import Queue, QueueKey, QueuePolicy, Rate

QUEUES_VERSION: Final = 18
"""Of the schema: engines from it on know queues and flow keys."""
LIST_DEFAULT: Final = 50
JOB_TYPES_MAX: Final = 1_000
LIMIT_MAX: Final = 1_000_000
WEIGHTS_MAX: Final = 1_000
WEIGHT_MAX: Final = 100
KEYS_SHOWN_MAX: Final = 20
JOINED_QUEUES_MAX: Final = 1_000
"""Of all queues, when a program that registers makes one more."""
POLL_INTERVAL_S: Final = 1.0
T = TypeVar("T")


class _Known(NamedTuple):
    waits: WaitsInQueue
    limited: bool
    mates: Sequence[str] = ()
    """The job types of its queue, itself among them."""
    queue: str | None = None
    paused: bool = False


_FREE: Final = _Known(WaitsInQueue.ANYWHERE, limited=False)


class Queues:
    """The operations on queues, and this engine's knowledge of them."""

    def __init__(self, database: Database, *, audit: bool) -> None:
        self._database = database
        self._audit = audit
        self._known: Mapping[str, _Known] = {}
        self.keyed: Set[str] = self._known.keys()
        """The job types whose jobs wait for turns."""
        self.limited: set[str] = set()
        """Those that something may keep back: none of their jobs is handed out before it is counted."""
        self._version: str | None = None
        self._changed = trio.Event()
        self._checked = False  # that all engines know queues
        self.on_change: Callable[[Collection[str]], None] = lambda job_types: None
        """Is told of job types whose jobs may begin where they could not before."""

    # -- what this engine knows

    def waits(self, job_type: str) -> WaitsInQueue:
        """Where jobs of a type wait."""
        return self._known.get(job_type, _FREE).waits

    def mates(self, job_type: str) -> Sequence[str]:
        """Return the job types that the limits of one count, too."""
        return self._known.get(job_type, _FREE).mates

    def queue_of(self, job_type: str) -> str | None:
        """The name of the queue that a type is in."""
        return self._known.get(job_type, _FREE).queue

    def paused(self, job_type: str) -> str | None:
        """The name of the queue that a type is in, if that lets nothing begin; by what this engine knows."""
        known = self._known.get(job_type, _FREE)
        return known.queue if known.paused else None

    def place_key(self, job_type: str, flow_key: str | None) -> str | None:
        """Under which key a job waits; None: in the queue of those without."""
        waits = self.waits(job_type)
        if waits is WaitsInQueue.UNFAIR:
            return ""
        return "" if flow_key is None and waits is WaitsInQueue.KEYED else flow_key

    def hint(self) -> None:
        """Somebody says that queues have changed."""
        self._changed.set()

    async def step(self) -> None:
        """Look once a second, and at every hint."""
        with trio.move_on_after(POLL_INTERVAL_S):
            await self._changed.wait()
        self._changed = trio.Event()
        await self.run_once()

    async def run_once(self) -> int:
        """Read what has changed; how many job types wait for turns."""
        async with self._database.connection(ahead=True) as connection:
            await self.refresh(connection)
        return len(self._known)

    async def refresh(self, connection: TrioConnection) -> None:
        """As `run_once`, on a connection of the caller's."""
        version = await store.version(connection)
        if version == self._version:
            return
        found = await store.keyed_types(connection)
        mates: dict[str, list[str]] = {}
        for row in found:
            if row.queue is not None:
                mates.setdefault(row.queue, []).append(row.name)
        before = self._known
        self._known = {row.name: _known(row, mates.get(row.queue or "", ())) for row in found}
        self.keyed = self._known.keys()
        self.limited.clear()
        self.limited.update(name for name, known in self._known.items() if known.limited)
        self._version = version
        self.on_change([*{*before, *self._known}])

    async def read_again(self, connection: TrioConnection) -> None:
        """As `refresh`, whatever was read before."""
        self._version = ""  # of none
        await self.refresh(connection)

    async def remember_keyed(self, connection: TrioConnection, types: Mapping[str, int]) -> None:
        """Jobs of these types (ids by name) come with flow keys: from now on they wait for turns."""
        new = [id for name, id in types.items() if name not in self._known]
        if new:
            await self._require(connection)
            await store.mark_keyed(connection, new)
            await self.refresh(connection)

    # -- the operations

    async def put(self, name: str, policy: QueuePolicy) -> Queue:
        """Make a queue, or change its policy; a pause stays where that says nothing of it. Raises BadRequest; Conflict
        where a job type is in another queue, or an older engine lives; then nothing was changed."""
        check_name(name)
        check_policy(policy)
        async with self._database.connection() as connection:
            await self._require(connection)
            try:
                await store.put(connection, name, policy, actor=actor(), audit=self._audit)
            except store.TypesTaken as error:
                raise Conflict(
                    "jobTypes: " + ", ".join(f"'{taken}' is in queue '{other}'" for taken, other in error.taken[:10])
                ) from None
            await self.refresh(connection)
            row = await store.find(connection, name)
        return Queue(name=name, policy=policy if row is None else row.policy)

    async def join(self, name: str, job_type: str) -> None:
        """Put the job type of a durable workflow into a queue, which is made without limits where it is not
        there; one that an operator has placed stays where it is. Raises BadRequest; Conflict while an older engine
        lives, and where there are too many queues."""
        check_name(name)
        async with self._database.connection() as connection:
            await self._require(connection)
            try:
                await store.join(connection, name, job_type, JOINED_QUEUES_MAX, actor=actor(), audit=self._audit)
            except store.TooManyQueues:
                raise Conflict(
                    f"queue: there are {JOINED_QUEUES_MAX:,} queues, and '{name}' would be one more: delete some, or "
                    "let an operator make it"
                ) from None
            await self.refresh(connection)

    async def get(self, name: str) -> Queue:
        """A queue, and how it stands. Raises NotFound."""
        check_name(name)
        async with self._database.connection() as connection:
            row = await store.find(connection, name)
            if row is None:
                raise _unknown(name)
            state = await store.state(connection, row)
            keys = await store.keys(connection, row, KEYS_SHOWN_MAX)
        return Queue(
            name=row.name,
            policy=row.policy,
            running=state.running,
            waiting=state.waiting,
            oldest_s=state.oldest_s,
            keys=[_key(row.policy, *key) for key in keys],
            open_runs=state.open_runs,
        )

    async def list(self, cursor: str | None, limit: int | None) -> Page[Queue]:
        """Queues in order of their names, after ``cursor``."""
        limit = slice_limit(LIST_DEFAULT if limit is None else limit)
        async with self._database.connection() as connection:
            rows = await store.page(connection, cursor or "", limit + 1)
        items = [Queue(name=row.name, policy=row.policy) for row in rows[:limit]]
        return Page(items=items, next=rows[limit - 1].name if len(rows) > limit else None)

    async def pause(self, name: str, *, paused: bool) -> Queue:
        """Let no job begin; what runs goes on. Or let them begin again. Raises NotFound."""
        check_name(name)
        async with self._database.connection() as connection:
            if not await store.pause(connection, name, paused, actor=actor(), audit=self._audit):
                raise _unknown(name)
            await self.refresh(connection)
            row = await store.find(connection, name)
        if row is None:
            raise _unknown(name)
        return Queue(name=name, policy=row.policy)

    async def delete(self, name: str) -> None:
        """Forget a queue; its jobs are free at once. Raises NotFound."""
        check_name(name)
        async with self._database.connection() as connection:
            if not await store.delete(connection, name, actor=actor(), audit=self._audit):
                raise _unknown(name)
            await self.refresh(connection)

    async def _require(self, connection: TrioConnection) -> None:
        if not self._checked:
            await engine_store.require_version(connection, QUEUES_VERSION)
            self._checked = True  # older ones can't join any more


def bindings(queues: Queues) -> tuple[Binding, ...]:
    """What serves the operations on queues."""
    return (
        bind(api.LIST_QUEUES, lambda ask: queues.list(ask.cursor, ask.limit)),
        bind(api.GET_QUEUE, lambda ask: queues.get(ask.name)),
        bind(api.PUT_QUEUE, lambda ask: queues.put(ask.name, ask.policy)),
        bind(api.DELETE_QUEUE, lambda ask: queues.delete(ask.name)),
        bind(api.PAUSE_QUEUE, lambda ask: queues.pause(ask.name, paused=True)),
        bind(api.RESUME_QUEUE, lambda ask: queues.pause(ask.name, paused=False)),
    )


def _known(row: store.KeyedType, mates: Sequence[str]) -> _Known:
    policy = row.policy
    if policy is None:
        return _Known(WaitsInQueue.KEYED, limited=False)
    limits = (policy.concurrency, policy.concurrency_per_key, policy.rate, policy.rate_per_key, policy.runs)
    paused = bool(policy.paused)
    limited = paused or any(limit is not None for limit in limits)
    return _Known(WaitsInQueue.KEYED if policy.fair else WaitsInQueue.UNFAIR, limited, mates, row.queue, paused)


class KeptBack(NamedTuple):
    """Why a queue lets a job wait: a code, a few words, and when it may begin where only time keeps it."""

    code: str
    text: str
    until_s: float | None = None


async def kept_back(connection: TrioConnection, tokens: Sequence[int]) -> dict[int, KeptBack]:
    """Return those of the tokens whose jobs wait because of their queue, and why."""
    found = {limits.token: _kept_back(limits) for limits in await store.limits(connection, tokens)}
    return {token: why for token, why in found.items() if why is not None}


async def first_kept_back(connection: TrioConnection, job_types: Sequence[str]) -> dict[str, KeptBack]:
    """Those of the job types whose first job in line waits because of its queue, and why."""
    if not job_types:
        return {}
    first = await store.first_in_line(connection, job_types)
    kept = await kept_back(connection, [*first.values()])
    return {name: kept[first[name]] for name in job_types if first.get(name) in kept}


def _kept_back(now: store.QueueLimits) -> KeptBack | None:
    policy, of_key = now.policy, f" of '{now.flow_key}'" if now.flow_key else ""
    queue = f"its queue '{now.queue}'"
    if policy.paused:
        return KeptBack("queue-paused", f"{queue} is paused")
    for limit, count, one, more in (
        (policy.concurrency, now.running, "job runs", "jobs run"),
        (policy.concurrency_per_key if of_key else None, now.running_of_key, f"job{of_key} runs", f"jobs{of_key} run"),
        (policy.runs if now.open_runs is not None else None, now.open_runs or 0, "run is open", "runs are open"),
    ):
        if limit is not None and count >= limit:
            what = one if count == 1 else more
            return KeptBack("queue-full", f"in {queue} {count} {what}, of {limit} at most")
    waits = [(now.rate_wait_s, "")] + [(now.key_rate_wait_s, of_key)] * bool(of_key)
    wait_s, whose = max(((wait_s or 0.0, whose) for wait_s, whose in waits), key=lambda each: each[0])
    if wait_s > 0:
        return KeptBack("queue-rate", f"{queue} lets the next{whose} begin in {wait_s:.1f} s", wait_s)
    return None


def _key(policy: QueuePolicy, flow_key: str, running: int, waiting: int) -> QueueKey:
    is_counted = policy.concurrency_per_key is not None or running > 0  # or was, when these began
    return QueueKey(flow_key, waiting, running if is_counted else None)


def _unknown(name: str) -> NotFound:
    return NotFound(f"queue '{name[:256]}' is unknown")


def check_name(name: str) -> None:
    """Raises BadRequest for what no queue can be called."""
    if not name:
        raise BadRequest("name: is required")
    check_text(name, "name", NAME_MAX_CHARS)


def check_policy(policy: QueuePolicy) -> None:
    """Raises BadRequest with the field that is no good, and why."""
    types = policy.job_types
    if len(types) > JOB_TYPES_MAX:
        raise BadRequest(f"jobTypes: more than {JOB_TYPES_MAX} job types")
    for name in types:
        check_text(name, "jobTypes", NAME_MAX_CHARS)
        if not name:
            raise BadRequest("jobTypes: a job type is empty")
    if len(set(types)) < len(types):
        raise BadRequest("jobTypes: a job type is named twice")
    _check_number(policy.concurrency, "concurrency")
    _check_number(policy.concurrency_per_key, "concurrencyPerKey")
    _check_number(policy.runs, "runs")
    _check_rate(policy.rate, "rate")
    _check_rate(policy.rate_per_key, "ratePerKey")
    if len(policy.weights) > WEIGHTS_MAX:
        raise BadRequest(f"weights: more than {WEIGHTS_MAX} keys")
    for key, weight in policy.weights.items():
        check_flow_key(key, "weights")
        _check_number(weight, "weights", WEIGHT_MAX)
    if not policy.fair and (
        policy.concurrency_per_key is not None or policy.rate_per_key is not None or policy.weights
    ):
        raise BadRequest("fair: limits per key and weights need a queue that tells keys apart")


def _check_number(value: int | None, field: str, maximum: int = LIMIT_MAX) -> None:
    if value is not None and not 1 <= value <= maximum:
        raise BadRequest(f"{field}: must be 1 to {maximum}")


def _check_rate(rate: Rate | None, field: str) -> None:
    if rate is None:
        return
    _check_number(rate.limit, f"{field}.limit")
    _check_number(rate.burst, f"{field}.burst", rate.limit if rate.window else LIMIT_MAX)
    try:
        parse_duration(rate.period)
    except DurationError as error:
        raise BadRequest(f"{field}.period: {error}") from None


def check_flow_key(key: str, field: str = "flowKey") -> None:
    """Raises BadRequest for what is no flow key."""
    if not key:
        raise BadRequest(f"{field}: is empty")
    check_text(key, field, FLOW_KEY_MAX_CHARS)


def check_priority(priority: int | None) -> None:
    """Raises BadRequest."""
    if priority is not None and not 0 <= priority <= PRIORITY_MAX:
        raise BadRequest(f"priority: must be 0 to {PRIORITY_MAX}, not {priority}; lower ones come first")


def freed(queues: Queues, job_types: Iterable[str]) -> set[str]:
    """The job types whose jobs may begin as attempts of these have ended."""
    return {mate for name in job_types for mate in queues.mates(name) or (name,)}
