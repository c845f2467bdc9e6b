"""Starting instances: plain ones in one statement, the others through `advance` in one transaction per batch.

A start is plain (the fast path) when its first step is a plain job and it carries no key. Idempotency and instance
keys are claimed in the transaction that creates the instance; of two at once the second waits for the first one's
commit.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import msgspec

from penstock.access.identity import actor
from penstock.core.event import Started
from penstock.core.state import Instance, InstanceStatus, TokenState
from penstock.core.work import LongWork
from penstock.engine import ids
from penstock.engine.advancer import Case, LongItem
from penstock.engine.answers import COPIES, SMALL_BYTES, current_hold
from penstock.engine.definitions import Definitions, LoadedDefinition
from penstock.engine.deliveries import Delivery
from penstock.engine.ids import IdSource
from penstock.engine.lanes.full_path import POSITIONS_PER_ITEM, FullPath
from penstock.engine.lanes.lane import Lane
from penstock.engine.lanes.long_path import LongPath
from penstock.engine.lanes.post_commit import PostCommit
from penstock.engine.polls import Polls
from penstock.engine.views import view_instances
from penstock.engine.vocabulary import StartRequest, raw
from penstock.engine.waiters import Waiter
from penstock.errors import IdempotencyConflict, Overloaded, PenstockError
from penstock.metrics import Metrics
from penstock.offload import run_sized
from penstock.settings import Settings
from penstock.store import full_path as wide_store
from penstock.store import idempotency, keys
from penstock.store import instances as store
from penstock.store.connection import TrioConnection
from penstock.store.database import AWAY, LOCKED, Database, IdTaken, RefusedWithin, TryAgain
from penstock.store.definitions import latest_keys
from penstock.store.full_path import Change, NewInstance
from penstock.store.in_doubt import InDoubtCommit
from penstock.store.instances import FastStart
from penstock.store.statements import SQL, Statement
from penstock.store.vault import KeyMissing
from penstock.wire import model
from penstock.wire.noun import JsonText, text_bytes

START_SCOPE = "start"


class _KeptAnswer(model.Instance, frozen=True):
    """The first answer to a key, as it is read back: with the text of its variables."""

    variables: JsonText = None


def _kept_answer(text: bytes) -> model.Instance:
    return model.Instance(**msgspec.structs.asdict(msgspec.json.decode(text, type=_KeptAnswer)))


class StartItem(LongItem[model.Instance]):
    """One start. ``planned`` is its answer on the full path, until its transaction is known to be committed."""

    __slots__ = ("actor", "hold", "id", "loaded", "planned", "request", "sent", "waiter")

    repeatable = False

    def __init__(self, request: StartRequest) -> None:
        super().__init__()
        self.request = request
        self.hold = current_hold()
        self.actor = actor()
        self.id = 0
        self.loaded: LoadedDefinition | None = None
        self.waiter: Waiter | None = None
        self.planned: model.Instance | None = None
        self.sent: InDoubtCommit | None = None

    def answer(self, answer: model.Instance) -> None:
        """With room for its own variables reserved before: what there is beyond them is counted too."""
        more_bytes = text_bytes(answer.variables) - len(self.request.variables)
        if more_bytes > 0 and not self.settled:
            self.hold.add(COPIES * more_bytes)
        super().answer(answer)

    @property
    def key(self) -> tuple[str | None, str | None]:
        """What another start may wait for: its idempotency key, else definition and instance key."""
        request = self.request
        if request.idempotency_key is not None:
            return request.idempotency_key, None
        return request.definition_id, request.instance_key

    @property
    def keyed(self) -> bool:
        return self.request.idempotency_key is not None or self.request.instance_key is not None


class Starts:
    """The queue of starts and what applies them."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        definitions: Definitions,
        polls: Polls,
        id_source: IdSource,
        full_path: FullPath,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._definitions = definitions
        self._polls = polls
        self._ids = id_source
        self._full_path = full_path
        self.lane: Lane[StartItem] = Lane(
            "start", database, settings, metrics, self._batch, label="start", finish=self._batch_over
        )
        self.long: LongPath[StartItem] = LongPath("long start", settings, full_path.advancer, self._apply_long)
        self.keyed: Lane[StartItem] = Lane(
            "keyed start",
            database,
            settings,
            metrics,
            self._batch_keyed,
            key=lambda item: item.key,
            finish=full_path.abandon,
        )

    async def submit(self, request: StartRequest) -> model.Instance:
        """Start one instance. An outage is waited out; what became of a COMMIT in doubt is looked up."""
        return await self.submit_nowait(request).wait_answer()

    def submit_nowait(self, request: StartRequest) -> StartItem:
        """Queue a start."""
        item = StartItem(request)
        (self.keyed if item.keyed else self.lane).submit_nowait(item)
        return item

    def _batch_over(self, items: list[StartItem]) -> None:
        self._give_up([item for item in items if item.batch is items])  # not those that stand aside, or did
        self._full_path.abandon(items)

    async def _batch(self, connection: TrioConnection, items: list[StartItem], again: bool) -> None:
        if again:
            await self._find_lost(connection, items)
            await self._full_path.resolve_in_doubt(connection, items)
        fresh = [item for item in items if not item.settled and item.loaded is None]
        await self._load(connection, fresh)
        pending = [item for item in items if not item.settled]
        plain = [item for item in pending if item.loaded is not None and self._is_narrow(item.loaded)]
        others = [item for item in pending if item.loaded is not None and not self._is_narrow(item.loaded)]
        if plain:
            await self._start_fast(connection, plain, again)
        if others:
            await self._start_full(connection, others)

    def _is_narrow(self, loaded: LoadedDefinition) -> bool:
        """All narrow starts of a batch wait in one place; runs of code wait in the queue, also in Kafka mode."""
        return bool(loaded.fast_start) and not (loaded.code and self._settings.through_kafka)

    async def _load(self, connection: TrioConnection, items: list[StartItem]) -> None:
        """Find the definitions; refuses items whose definition is unknown. The latest version is asked for once."""
        latest = sorted({item.request.definition_id for item in items if not item.request.definition_version})
        keys = await latest_keys(connection, latest) if latest else {}
        for item in items:
            request = item.request
            if request.definition_version:
                item.loaded = await self._definitions.find(
                    connection, request.definition_id, request.definition_version
                )
            elif request.definition_id in keys:
                item.loaded = await self._definitions.by_key(connection, keys[request.definition_id])
            if item.loaded is None:
                item.refuse(self._definitions.unknown(request.definition_id, request.definition_version))

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
        try:
            with self._metrics.db_transaction_seconds["start"].time():
                begun = await store.start_fast(connection, rows, to_outbox=self._settings.through_kafka)
        except IdTaken:
            # After an outage the id may have been taken by our own earlier try, committed only now: that one is looked
            # for under its id at the next try.
            for item in untried if again else items:
                item.id = self._ids.next()
            raise
        except LOCKED:
            if not again:
                self._give_up(items)
            raise
        except AWAY:
            raise
        except BaseException:
            self._give_up(items)
            raise
        found = {row.id: row for row in begun}
        deliveries: list[Delivery] = []
        for item in items:
            self._begun(item, found[item.id], deliveries)
        await self._deliver(connection, items, deliveries)

    async def _deliver(self, connection: TrioConnection, items: list[StartItem], deliveries: list[Delivery]) -> None:
        if deliveries:
            await self._polls.deliveries.deliver_all(
                connection, deliveries, {item.id: item.request.variables for item in items}
            )

    def _begun(self, item: StartItem, row: store.Begun, deliveries: list[Delivery]) -> None:
        loaded, request = item.loaded, item.request
        assert loaded is not None
        first = loaded.definition.steps[0]
        waiter, item.waiter = item.waiter, None
        self._metrics.instances_started.inc()
        if waiter is not None:
            assert row.lease_until is not None
            deliveries.append(
                Delivery(
                    waiter,
                    loaded,
                    row.id,
                    row.id,
                    row.seq,
                    row.seq,
                    0,
                    1,
                    0,
                    row.entered_at,
                    row.entered_at,
                    row.lease_until,
                )
            )
        else:
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
            )
        )

    async def _find_lost(self, connection: TrioConnection, items: list[StartItem]) -> None:
        """Starts of an earlier try that may have been committed: the ids were ours, so they are found by them."""
        tried = {item.id: item for item in items if item.id and not item.settled and item.loaded is not None}
        if not tried:
            return
        found = await store.started(connection, list(tried))
        deliveries: list[Delivery] = []
        for id, (row, holder) in found.items():
            item = tried[id]
            if item.waiter is not None and (row.lease_until is None or holder != item.waiter.worker):
                self._polls.waiters.give_up(item.waiter)
                item.waiter = None
            self._begun(item, row, deliveries)
        await self._deliver(connection, items, deliveries)

    def _give_up(self, items: list[StartItem]) -> None:
        for item in items:
            waiter, item.waiter = item.waiter, None
            if waiter is not None:
                self._polls.waiters.give_up(waiter)

    # -- on the full path

    async def _start_full(self, connection: TrioConnection, items: list[StartItem]) -> None:
        now, xid, positions = await wide_store.begin(connection, POSITIONS_PER_ITEM * len(items))
        post_commit = PostCommit()
        created: list[StartItem] = []
        extra: list[Statement] = []
        try:
            for item in sorted(items, key=_key_order):
                loaded, request = item.loaded, item.request
                assert loaded is not None
                id = self._ids.next()
                try:
                    if await self._used_before(connection, item, loaded, id):
                        continue
                except KeyMissing as error:  # what it wrote until then must not be committed with the others
                    item.refuse(error)
                    raise RefusedWithin from error
                variables = request.variables if loaded.needs_variables else None
                case = Case(loaded, Instance(id), [], variables, Started(), now, {})
                new = NewInstance(
                    id,
                    loaded.key,
                    request.variables,
                    request.business_key,
                    request.instance_key,
                    started_by=item.actor,
                )
                try:
                    change = await self._full_path.decide(connection, post_commit, item, case, positions, new)
                except LongWork:
                    self.long.take_over(item)
                    continue
                except PenstockError as error:
                    item.refuse(error)
                    continue
                size_bytes = len(request.variables) + sum(len(row.output or b"") for row in change.effects.history)
                item.planned = await run_sized(size_bytes, partial(_planned_view, item, loaded, change, now))
                created.append(item)
                if request.idempotency_key is not None:
                    answer = msgspec.json.encode(item.planned)
                    extra.append(idempotency.keep_answer(connection, START_SCOPE, request.idempotency_key, answer))
            if created:
                await self._full_path.commit(connection, post_commit, now, xid, created, extra)
        except BaseException:
            self._full_path.undo(post_commit)
            raise
        for item in created:  # first of all: what follows may fail, and must not start the instance again
            assert item.planned is not None
            item.answer(item.planned)
        await self._full_path.committed(connection, post_commit, now)

    async def _used_before(
        self, connection: TrioConnection, item: StartItem, loaded: LoadedDefinition, id: int
    ) -> bool:
        """Whether a key of the start was used before; then the item has its answer."""
        request = item.request
        key = request.idempotency_key
        if key is not None:
            digest = await run_sized(len(request.variables), lambda: _digest(request))
            if not await idempotency.claim(connection, START_SCOPE, key, digest, id):
                used = await idempotency.find(connection, START_SCOPE, key)
                if used is None:
                    raise TryAgain("an idempotency key expired while it was looked at")
                if bytes(used[0]) != digest:
                    item.refuse(IdempotencyConflict("the Idempotency-Key was used with another request"))
                elif used[2] is not None:
                    item.answer(_kept_answer(bytes(used[2])))
                return True
        if request.instance_key is not None:
            holder, written = await keys.claim(
                connection, loaded.definition.id, request.instance_key, id, kept=request.keep_instance_key
            )
            if holder != id:
                view = await self._view_open(connection, item, holder)
                if view is None:
                    return True
                writes: list[Statement] = []
                if key is not None:  # the first answer of this key, too
                    writes.append(idempotency.keep_answer(connection, START_SCOPE, key, msgspec.json.encode(view)))
                if writes or written:
                    await connection.roundtrip([*writes, (SQL["commit"], ())])
                item.answer(view)
                return True
        return False

    async def _view_open(self, connection: TrioConnection, item: StartItem, instance: int) -> model.Instance | None:
        """The instance that holds the key. None when there is no room for its variables; the start is refused then:
        it changed nothing."""
        views, more = await view_instances(connection, self._definitions, [instance], SMALL_BYTES)
        if more and item.hold.memory.fits(COPIES * more):
            views, more = await view_instances(connection, self._definitions, [instance], more)
        if more:
            item.refuse(Overloaded(f"the open instance's variables have {more} bytes, for which there is no room now"))
            return None
        return views[0]

    async def _apply_long(self, items: list[StartItem]) -> None:
        for item in items:
            await (self.keyed if item.keyed else self.lane).apply_batch([item])

    async def _batch_keyed(self, connection: TrioConnection, items: list[StartItem], again: bool) -> None:
        if again:
            await self._full_path.resolve_in_doubt(connection, items)
        pending = [item for item in items if not item.settled]
        await self._load(connection, [item for item in pending if item.loaded is None])
        # one transaction each: the answer of one may depend on another one's commit, also within the batch
        for item in sorted(pending, key=_key_order):
            if not item.settled:
                try:
                    await self._start_full(connection, [item])
                except LOCKED:
                    await connection.rollback()
                    await self.keyed.find_locked_table(connection)
                    self.keyed.stand_aside([item], again)
                if connection.pgconn.transaction_status != 0:
                    await connection.rollback()


def _key_order(item: StartItem) -> tuple[str, str]:
    return item.request.idempotency_key or "", item.request.instance_key or ""


def _digest(request: StartRequest) -> bytes:
    """What makes two requests with one key the same. Variables by value, whatever the order of their keys."""
    variables = msgspec.json.encode(msgspec.json.decode(request.variables), order="sorted")
    parts = [request.definition_id, request.definition_version, request.business_key, request.instance_key]
    if request.keep_instance_key:
        parts.append("kept")
    return hashlib.sha256(msgspec.json.encode(parts) + variables).digest()


def _planned_view(item: StartItem, loaded: LoadedDefinition, change: Change, now: Any) -> model.Instance:
    """The answer to a start, from what its transaction is about to write."""
    out = change.effects
    steps = loaded.definition.steps
    tokens = sorted(out.inserted, key=lambda token: token.seq)
    waiting = any(token.state is TokenState.PARKED for token in tokens)
    status = InstanceStatus(out.instance.status).name
    variables: dict[str, Any] = msgspec.json.decode(item.request.variables)
    for row in out.history:
        if row.output is not None:
            variables.update(msgspec.json.decode(row.output))
    return model.Instance(
        id=ids.show_instance(out.instance.id),
        definition_id=loaded.definition.id,
        definition_version=loaded.version,
        status="WAITING" if waiting and not out.ended else status,
        current_step_ids=list(dict.fromkeys(steps[token.step].id for token in tokens if token.is_open)),
        variables=raw(msgspec.json.encode(variables)),
        started_at=now,
        completed_at=now if out.ended else None,
        failure_reason=out.instance.failure,
        business_key=item.request.business_key,
        instance_key=item.request.instance_key,
    )
