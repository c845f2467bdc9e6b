"""The group-commit queues of starts: plain ones in one statement, the others through `core.advance` (`full_starts`).

A start is plain (the fast path) when its first step is a plain job and it carries no key. Those with a key have a
group-commit queue of their own, as one may wait for another one's commit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

import msgspec

from penstock.core.expression.work import Work
from penstock.core.parsing.start_of_definition import knowing
from penstock.core.parsing.turns import shown_priority
from penstock.core.rules.start_rules import StartOfDefinition, StartRules, together
from penstock.engine.advance.long_path import LongPath
from penstock.engine.advance.transaction import Transactions
from penstock.engine.definitions.definitions import Definitions, LoadedDefinition
from penstock.engine.group_commit.queue import GroupCommitQueue
from penstock.engine.queues.deliveries import Delivery
from penstock.engine.queues.polls import Polls
from penstock.engine.requests import ids
from penstock.engine.requests.ids import IdSource
from penstock.engine.starts.full_starts import Apart, FullStarts, ViewsInstances, not_started
from penstock.engine.starts.start_item import StartItem
from penstock.errors import BadRequest, Conflict, TooManyRequests
from penstock.loop.offload import run_long
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import LOCKED, Database, IdTaken, Outdated
from penstock.store.rows import flow as flow_store
from penstock.store.rows import instances as store
from penstock.store.rows.definitions import active_keys
from penstock.store.rows.engines import require_version
from penstock.store.rows.instances import FastStart
from penstock.store.rows.journal import RunLease
from penstock.telemetry.metrics import Metrics
from penstock.wire import model
from penstock.wire.noun import raw

RULES_VERSION: Final = 18
"""Of the schema: engines that know an older one would not let begin what is delayed."""
STARTS_PER_KEY: Final = 100
"""Of one batch: one after the other, in the order in which they came."""
LATEST_MAX_COUNT: Final = 10_000
"""Ids of definitions whose latest version is remembered."""
NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
TOGETHER_MAX: Final = 50
"""Starts in one transaction, which holds the lock of their caller's token, or of their keys: a millisecond each."""


class Starts:
    """The group-commit queues of starts and what applies them."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        definitions: Definitions,
        polls: Polls,
        id_source: IdSource,
        transactions: Transactions,
        view: ViewsInstances,
    ) -> None:
        self._to_outbox = settings.through_kafka
        self._work_steps = settings.advance_max_work_steps
        self._metrics = metrics
        self._definitions = definitions
        self._traces = transactions.traces
        self._polls = polls
        self._ids = id_source
        self._latest: dict[str, int] = {}  # keys of the latest versions as last heard of, by id of the definition
        self.commit_queue: GroupCommitQueue[StartItem] = _PlainStarts(self, database, settings, metrics)
        self.keyed: GroupCommitQueue[StartItem] = _KeyedStarts(self, database, settings, metrics)
        self.long: LongPath[StartItem] = LongPath("long start", settings, transactions.advancer, self._apply_long)
        self._full = FullStarts(settings, definitions, transactions, id_source, self.long.take_over, view)

    async def apply_plain(self, connection: TrioConnection, items: list[StartItem], again: bool) -> None:
        """For the group-commit queue of starts without a key."""
        fresh = [item for item in items if not item.settled and item.loaded is None]
        await self._load(connection, fresh, self._remembered(fresh))
        plain: list[StartItem] = []
        others: list[StartItem] = []
        for item in items:
            if item.settled or item.loaded is None:
                continue
            if item.wrong is not None and not item.keyed:
                item.refuse(item.wrong)
            elif item.keyed:
                self._pass_on(item)
            elif item.is_plain and self._is_fast(item.loaded):
                plain.append(item)
            else:
                others.append(item)
        if plain:
            await self._start_fast(connection, plain, again)
        if others:
            await self._full.apply(self.commit_queue, connection, others)

    def _pass_on(self, item: StartItem) -> None:
        """What shares a key with others, as its definition has it, is the other group-commit queue's."""
        item.batch = None
        try:
            self.keyed.submit_nowait(item)
        except TooManyRequests as error:
            item.refuse(error)

    def _is_fast(self, loaded: LoadedDefinition) -> bool:
        """All fast starts of a batch wait in one place; durable runs wait in the queue, also in Kafka mode."""
        return bool(loaded.fast_start) and not (loaded.code and self._to_outbox)

    def _remembered(self, items: Sequence[StartItem]) -> dict[str, int]:
        """Return the keys of latest versions that need not be asked for: those of plain starts, whose statement looks
        whether they still are."""
        if self._polls.queues.keyed or any(item.has_flow for item in items):
            return {}  # a batch with one job that waits for its turn has another statement
        others = {item.request.definition_id for item in items if item.keyed or not item.is_plain}
        found: dict[str, int] = {}
        for id in {item.request.definition_id for item in items if not item.request.definition_version} - others:
            loaded = self._definitions.cached(self._latest.get(id, 0))
            if loaded is not None and self._is_fast(loaded):
                about = loaded.definition
                if about.start is None and not about.has_flow_keys:
                    found[id] = loaded.key
        return found

    async def _load(
        self, connection: TrioConnection, items: list[StartItem], remembered: Mapping[str, int] = NOTHING
    ) -> None:
        """Find the definitions; refuses items whose definition is unknown. The latest version is asked for once."""
        latest = {item.request.definition_id for item in items if not item.request.definition_version}
        asked = sorted(latest - remembered.keys())
        keys = {**remembered, **(await active_keys(connection, asked) if asked else {})}
        if len(self._latest) > LATEST_MAX_COUNT:
            self._latest.clear()
        self._latest.update(keys)
        for item in items:
            request = item.request
            item.assumed = not request.definition_version and request.definition_id in remembered
            loaded: LoadedDefinition | None = None
            if request.definition_version:
                loaded = await self._definitions.find(connection, request.definition_id, request.definition_version)
            elif request.definition_id in keys:
                loaded = await self._definitions.by_key(connection, keys[request.definition_id])
            if loaded is None:
                item.refuse(self._definitions.unknown(request.definition_id, request.definition_version or 0))
            else:
                try:
                    if request.flow_key is not None or loaded.definition.has_flow_keys:
                        await self._polls.queues.remember_keyed(connection, loaded.types_of_jobs)
                    if loaded.definition.start is not None and item.call is None:
                        item.rules = await run_long(_rules, loaded.definition.start, item, self._work_steps)
                    if item.rules is not None:
                        await require_version(connection, RULES_VERSION)
                    item.wrong = await self._definitions.signatures.problem_of(
                        connection, loaded.code_type, request.variables
                    )
                except (Conflict, BadRequest) as error:  # an older engine lives, or an expression fails
                    item.refuse(error)
            item.loaded = loaded  # last: a try that failed before has to ask again

    async def _start_fast(self, connection: TrioConnection, items: list[StartItem], again: bool) -> None:
        rows: list[FastStart] = []
        untried = [item for item in items if not item.id]
        for item in items:
            loaded = item.loaded
            assert loaded is not None
            first = loaded.definition.steps[0]
            item.id = item.id or self._ids.next()
            if item.waiter is None:
                item.waiter = self._polls.waiters.reserve(first.job_type or "")
            job_type = loaded.job_types[0]
            assert job_type is not None
            waiter = item.waiter
            rows.append(
                FastStart(
                    item.id,
                    loaded.key,
                    item.request.variables,
                    item.request.business_key,
                    job_type,
                    None if waiter is None else waiter.worker,
                    None if waiter is None else waiter.lease_s,
                    item.actor,
                )
            )
        if self._traces is not None:
            await self._traces.keep(connection, [(item.id, item.span) for item in items])
        try:
            with self._metrics.db_transaction_seconds["start"].time():
                begun = await self._begin_fast(connection, items, rows)
        except IdTaken:
            # After an outage the id may have been taken by our own earlier try, committed only now: that one is looked
            # for under its id at the next try.
            for item in untried if again else items:
                item.id = item.reserved or self._ids.next()
            await not_started(connection, items)
            raise
        except Outdated:
            tried = [item for item in items if again and item not in untried]
            self._forget_latest([item for item in items if item not in tried])
            await self._renew(connection, [item for item in tried if item.assumed])
            for item in items:
                item.assumed = False
            raise
        found = {row.id: row for row in begun}
        deliveries: list[Delivery] = []
        for item in items:
            self._begun(item, found[item.id], deliveries, fresh=True)
        await self._deliver(connection, items, deliveries)

    async def _begin_fast(
        self, connection: TrioConnection, items: Sequence[StartItem], rows: Sequence[FastStart]
    ) -> list[store.Begun]:
        queues = self._polls.queues
        keyed = queues.keyed
        if not any(item.has_flow or (keyed and _first_type(item) in keyed) for item in items):
            each = zip(items, rows, strict=True)
            latest = {(item.request.definition_id, row.definition) for item, row in each if item.assumed}
            begun = await store.start_fast(connection, rows, to_outbox=self._to_outbox, latest=latest)
            if not begun:
                raise Outdated("another version is the latest by now")
            return begun
        if any(item.assumed for item in items):
            raise Outdated("this statement does not look which version is the latest")
        waits = [queues.waits(_first_type(item)) for item in items]
        starts = [
            flow_store.FlowStart(row, item.request.priority, item.request.flow_key, where)
            for row, item, where in zip(rows, items, waits, strict=True)
        ]
        return await flow_store.start(connection, starts, to_outbox=self._to_outbox)

    def _forget_latest(self, items: list[StartItem]) -> None:
        """Let the next try ask for the latest versions."""
        self.give_up(items)
        for item in items:
            self._latest.pop(item.request.definition_id, None)
            if item.assumed:
                item.loaded = None

    async def _renew(self, connection: TrioConnection, items: list[StartItem]) -> None:
        """The latest version for items whose earlier try may be committed yet: their ids keep them from being started
        twice, so it stays the version that was tried where the latest one goes another way, under other ids."""
        asked = sorted({item.request.definition_id for item in items})
        keys = await active_keys(connection, asked) if asked else {}
        for item in items:
            key = keys.get(item.request.definition_id)
            loaded = None if key is None else await self._definitions.by_key(connection, key)
            if loaded is None or not self._is_fast(loaded):
                continue
            if loaded.definition.start is None and not loaded.definition.has_flow_keys:
                self.give_up([item])  # it waits for a job of the first step
                item.loaded = loaded

    async def _deliver(self, connection: TrioConnection, items: list[StartItem], deliveries: list[Delivery]) -> None:
        if deliveries:
            await self._polls.deliveries.deliver_all(
                connection, deliveries, {item.id: item.request.variables for item in items}
            )

    def _begun(self, item: StartItem, row: store.Begun, deliveries: list[Delivery], *, fresh: bool) -> None:
        """``fresh``: its first execution is there as it was made; one that was found may be at a later one."""
        loaded, request = item.loaded, item.request
        assert loaded is not None
        first = loaded.definition.steps[0]
        waiter, item.waiter = item.waiter, None
        self._metrics.instances_started.inc()
        if waiter is not None:
            assert row.lease_until is not None
            deliveries.append(
                Delivery(
                    waiter=waiter,
                    loaded=loaded,
                    instance=row.id,
                    token=row.id,
                    seq=row.seq,
                    entry=row.seq,
                    step=0,
                    attempt=1,
                    failures=0,
                    entered_at=row.entered_at,
                    claimed_at=row.entered_at,
                    lease_until=row.lease_until,
                    business_key=request.business_key,
                )
            )
        else:
            if fresh and loaded.definition.single_token and not self._to_outbox:  # from there nobody claims
                self._polls.cache.put(row.id, row.seq, bytes(request.variables))
            self._polls.hint_key(first.job_type or "", request.flow_key)
            self._polls.queued(first.job_type or "")
        item.answer(
            model.Instance(
                id=ids.show_instance(row.id),
                definition_id=loaded.definition.id,
                definition_version=loaded.version,
                status="ACTIVE",
                current_step_ids=[first.id],
                variables=raw(request.variables),
                started_at=row.started_at,
                business_key=request.business_key,
                priority=shown_priority(request.priority),
                flow_key=request.flow_key,
            )
        )

    async def find_lost(self, connection: TrioConnection, items: list[StartItem]) -> None:
        """Starts of an earlier try that may have been committed: the ids were ours, so they are found by them."""
        tried = {item.id: item for item in items if item.id and not item.settled and item.loaded is not None}
        if not tried:
            return
        found = await store.started(connection, list(tried))
        deliveries: list[Delivery] = []
        for id, (row, holder, definition) in found.items():
            item = tried[id]
            item.loaded = await self._definitions.by_key(connection, definition)  # of the try that was committed
            waiter = item.waiter
            if waiter is not None and (
                row.lease_until is None or holder != waiter.worker or _first_type(item) not in waiter.types
            ):
                self.give_up([item])
            self._begun(item, row, deliveries, fresh=False)
        await self._deliver(connection, items, deliveries)

    def give_up(self, items: list[StartItem]) -> None:
        """Their jobs are for the polls no more that these were reserved of."""
        for item in items:
            waiter, item.waiter = item.waiter, None
            if waiter is not None:
                self._polls.waiters.give_up(waiter)

    async def _apply_long(self, items: list[StartItem]) -> None:
        for item in items:
            await (self.keyed if item.keyed else self.commit_queue).apply_batch([item])

    async def apply_keyed(self, connection: TrioConnection, items: list[StartItem], again: bool) -> None:
        """For the group-commit queue of those with one."""
        await self._load(connection, [item for item in items if item.loaded is None])
        for several in (*_of_one_caller(items), *_of_own_keys(items)):
            await self._start_together(connection, several)
        # the others in one transaction each: the answer of one may depend on another one's commit, also of the batch
        held: set[object] = set()  # those may be under way beside the group-commit queue already
        for at, item in enumerate(items):
            if not (item.settled or item.moved) and item.key not in held:
                try:
                    await self._full.apply(self.keyed, connection, [item])
                except LOCKED:
                    await connection.rollback()
                    await self.keyed.find_locked_table(connection)
                    held.add(item.key)
                    self.keyed.wait_for_locks([other for other in items[at:] if other.key == item.key], again)
                if connection.pgconn.transaction_status != 0:
                    await connection.rollback()

    async def _start_together(self, connection: TrioConnection, items: list[StartItem]) -> None:
        """In one transaction, or not at all: what one durable run calls, under one lock of its token, or what is like
        no other start."""
        for item in items:
            item.together = True
        try:
            await self._full.apply(self.keyed, connection, items)
        except (Apart, LOCKED):
            await connection.rollback()
        finally:
            for item in items:
                item.together = False


def _of_one_caller(items: list[StartItem]) -> list[list[StartItem]]:
    """Calls of durable runs by the run that calls, where there are several: each with a key of its own in the batch."""
    keys = Counter(item.key for item in items)
    found: defaultdict[RunLease, list[StartItem]] = defaultdict(list)
    for item in items:
        if item.call is not None and not item.settled and item.rules is None and keys[item.key] == 1:
            found[item.call.run_lease].append(item)
    return [part for each in found.values() for part in _parts(each)]


def _of_own_keys(items: list[StartItem]) -> list[list[StartItem]]:
    """Starts whose only key is an idempotency key that no other one of the batch has, as clients make them."""
    keys = Counter(item.key for item in items)
    return _parts([item for item in items if not item.settled and item.has_own_key and keys[item.key] == 1])


def _parts(items: list[StartItem]) -> list[list[StartItem]]:
    parts = [items[at : at + TOGETHER_MAX] for at in range(0, len(items), TOGETHER_MAX)]
    return [part for part in parts if len(part) > 1]


def _rules(start: StartOfDefinition, item: StartItem, work_steps: int) -> StartRules:
    """What the definition asks for, and the start itself. Raises BadRequest."""
    request = item.request
    variables = msgspec.json.decode(request.variables, type=dict[str, object]) if start.expressions else {}
    evaluate = knowing(variables, datetime.now(UTC), Work(work_steps))
    return together(start.rules(evaluate), item.asked, has_instance_key=request.instance_key is not None)


def _first_type(item: StartItem) -> str:
    assert item.loaded is not None
    return item.loaded.definition.steps[0].job_type or ""


class _PlainStarts(GroupCommitQueue[StartItem]):
    """The group-commit queue of starts without a key."""

    def __init__(self, starts: Starts, database: Database, settings: Settings, metrics: Metrics) -> None:
        super().__init__("start", database, settings, metrics, label="start")
        self._starts = starts

    async def apply(self, connection: TrioConnection, items: list[StartItem], again: bool) -> None:
        await self._starts.apply_plain(connection, items, again)

    async def find_earlier(self, connection: TrioConnection, items: list[StartItem]) -> None:
        await self._starts.find_lost(connection, items)

    def roll_back(self, items: list[StartItem]) -> None:
        self._starts.give_up(items)

    def finish(self, items: list[StartItem]) -> None:
        self._starts.give_up([item for item in items if item.batch is items])  # not those that stand aside, or did


class _KeyedStarts(GroupCommitQueue[StartItem]):
    """The group-commit queue of those with one: who shares a key has to see who came before."""

    def __init__(self, starts: Starts, database: Database, settings: Settings, metrics: Metrics) -> None:
        super().__init__("keyed start", database, settings, metrics, per_key=STARTS_PER_KEY)
        self._starts = starts

    def key(self, item: StartItem) -> object:
        return item.key

    async def apply(self, connection: TrioConnection, items: list[StartItem], again: bool) -> None:
        await self._starts.apply_keyed(connection, items, again)
