"""Starts that go through `core.advance`: those with a key, and those whose first step is no plain job.

Idempotency and instance keys are claimed in the transaction that creates the instance; of two at once the second waits
for the first one's commit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from penstock.core.advance.calls import DEPTH_MAX
from penstock.core.advance.event import InstanceStarted
from penstock.core.expression.work import LongWork
from penstock.core.parsing.turns import shown_priority
from penstock.core.rules.start_rules import StartRules
from penstock.core.rules.state import START_TIMER, Instance, InstanceStatus, TokenState
from penstock.engine.advance.advancer import Case
from penstock.engine.advance.transaction import POSITIONS_PER_ITEM, Transaction, Transactions
from penstock.engine.definitions.definitions import Definitions, LoadedDefinition
from penstock.engine.group_commit.queue import GroupCommitQueue
from penstock.engine.requests import ids
from penstock.engine.requests.answers import COPIES, SMALL_BYTES
from penstock.engine.requests.ids import IdSource
from penstock.engine.starts.forked_run import Forking, prepare_fork
from penstock.engine.starts.start_item import StartItem
from penstock.engine.starts.start_windows import StartWindows
from penstock.errors import BadRequest, IdempotencyConflict, LeaseLost, Overloaded, PenstockError
from penstock.loop.offload import run_sized
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import RefusedWithin, TryAgain, wait_replicated
from penstock.store.db.statements import SQL, Statement
from penstock.store.rows import batches, calls, idempotency, instances, keys
from penstock.store.rows import full_path as store
from penstock.store.rows.full_path import Change, NewInstance
from penstock.wire import model
from penstock.wire.noun import JsonText, raw

START_SCOPE: Final = "start"
LOST: Final = "another executor has the run that calls, or it has ended"


class Apart(Exception):
    """Of starts that were to come to be together: one can't, just so. Each is to be tried by itself."""


class NotDue(PenstockError):
    """Nothing is to be started."""


class _KeptAnswer(model.Instance, frozen=True):
    """The first answer to a key, as it is read back: with the text of its variables."""

    variables: JsonText = None


def _kept_answer(text: bytes) -> model.Instance:
    return model.Instance(**msgspec.structs.asdict(msgspec.json.decode(text, type=_KeptAnswer)))


class ViewsInstances(Protocol):
    """`views.view_instances`, which stands above starts."""

    async def __call__(
        self,
        connection: TrioConnection,
        definitions: Definitions,
        wanted: Sequence[int],
        variables_max_bytes: int,
        *,
        secrets: bool,
    ) -> tuple[list[model.Instance], int]: ...


class FullStarts:
    """What applies them. ``take_over`` gets those whose advance takes long, ``view`` shows who has a key."""

    def __init__(
        self,
        settings: Settings,
        definitions: Definitions,
        transactions: Transactions,
        id_source: IdSource,
        take_over: Callable[[StartItem], None],
        view: ViewsInstances,
    ) -> None:
        self._view = view
        self._definitions = definitions
        self._transactions = transactions
        self._ids = id_source
        self._take_over = take_over
        self._windows = StartWindows(settings, definitions)
        self._audit = settings.audit_log_enabled

    async def apply(
        self, commit_queue: GroupCommitQueue[StartItem], connection: TrioConnection, items: list[StartItem]
    ) -> None:
        """Start them in one transaction of ``commit_queue``. Their definitions are known. Raises `Apart` of items that
        are `together`."""
        now, xid, positions = await store.begin(connection, POSITIONS_PER_ITEM * len(items))
        transaction = self._transactions.begin(now, xid, positions)
        done: list[StartItem] = []
        extra: list[Statement] = []
        found: list[tuple[StartItem, model.Instance]] = []
        with commit_queue.transaction(transaction):
            left = await self._left_of_batches(connection, await not_started(connection, items))
            for item in left:
                item.planned = None
                change = await self._begin(connection, transaction, item, found, extra)
                loaded, request = item.loaded, item.request
                if change is not None:
                    assert loaded is not None
                    size_bytes = len(request.variables) + sum(len(row.output or b"") for row in change.effects.history)
                    item.planned = await run_sized(size_bytes, partial(_planned_view, item, loaded, change, now))
                    if self._transactions.traces is not None:
                        extra += self._transactions.traces.statements([(change.effects.instance.id, item.span)])
                if item.planned is None:
                    continue
                done.append(item)
                if item.place is not None:
                    extra.append(batches.place_items([(item.place, ids.read_instance(item.planned.id))]))
                if request.idempotency_key is not None:
                    answer = msgspec.json.encode(item.planned)
                    extra.append(idempotency.keep_answer(connection, START_SCOPE, request.idempotency_key, answer))
            if items[0].together and len(done) < len(items):
                raise Apart
            if done:
                await commit_queue.commit(connection, transaction, await transaction.writes(connection, done, extra))
            elif found:
                await connection.rollback()
                await wait_replicated(connection)
        for item, kept in found:
            item.found = True
            item.answer(kept)
        await transaction.carry_out(connection, now)

    async def _left_of_batches(self, connection: TrioConnection, items: list[StartItem]) -> list[StartItem]:
        """Those that are in no batch, or not started yet; of the others nothing becomes. Of several for one place the
        first: the group-commit queue tries the others again, who see then what became of it."""
        places = [item.place for item in items if item.place is not None]
        if not places:
            return items
        held = await batches.hold_items(connection, places)
        left: list[StartItem] = []
        taken: set[batches.BatchPlace] = set()
        for item in items:
            if item.place is None:
                left.append(item)
            elif item.place not in held:
                item.refuse(NotDue("the item was started, or the batch cancelled"))
            elif item.place not in taken:
                taken.add(item.place)
                left.append(item)
        return left

    async def _begin(
        self,
        connection: TrioConnection,
        transaction: Transaction,
        item: StartItem,
        found: list[tuple[StartItem, model.Instance]],
        extra: list[Statement],
    ) -> Change | None:
        """Take a start into the transaction. None: it has put another one off, which is its planned answer, ``found``
        has its answer, it is refused, or takes long."""
        loaded, request, rules = item.loaded, item.request, item.rules
        assert loaded is not None
        id, at = item.reserved or self._ids.next(), None
        try:
            called_by, priority, flow_key = await _caller(connection, item)
            forking = None if item.fork is None else await prepare_fork(connection, item.fork, request.variables)
        except PenstockError as error:  # nothing of it was written
            item.refuse(error)
            return None
        try:
            if await self._used_before(connection, item, loaded, id, found):
                return None
            if item.wrong is not None:
                raise item.wrong
            if rules is not None:
                if rules.debounce is not None and await self._put_off(connection, transaction, item, id, extra):
                    return None
                at = await self._begins_at(connection, loaded, rules, transaction.now)
                if at is not None and rules.throttle is not None:
                    extra.append(self._windows.stand_in_line(loaded, rules.throttle, id))
        except PenstockError as error:  # what it wrote until then must not be committed with the others
            item.refuse(error)
            raise RefusedWithin from error
        variables = request.variables if loaded.needs_variables else None
        depth, root = (0, id) if called_by is None else (called_by.depth, called_by.root)
        instance = Instance(id, priority=priority, flow_key=flow_key, depth=depth)
        case = Case(loaded, instance, [], variables, InstanceStarted(at, checked=True), transaction.now, {}, root)
        new = NewInstance(
            id,
            loaded.key,
            request.variables,
            request.business_key,
            request.instance_key,
            None if called_by is None else called_by.caller,
            started_by=item.actor,
            called_by=called_by,
        )
        try:
            change = await transaction.advance(connection, item, case, new, business_key=request.business_key)
        except LongWork:
            if item.together:  # two queues would have it: this batch tries each by itself yet
                raise Apart from None
            self._take_over(item)
        except PenstockError as error:
            item.refuse(error)
        else:
            extra += self._fork_writes(connection, change, forking, item.actor)
            return change
        return None

    def _fork_writes(
        self, connection: TrioConnection, change: Change, forking: Forking | None, by: str | None
    ) -> list[Statement]:
        """Return what writes the journal of a fork, and the audit record. Its time began as the other's; its executor
        is told of the journal."""
        if forking is None:
            return []
        [token] = change.effects.inserted
        token.entered_at, token.attempt = forking.began_at, 1
        new = change.effects.instance.id
        audited = [forking.audit(new, by)] if self._audit else []
        return [forking.copy(connection, new), *audited]

    async def _used_before(
        self,
        connection: TrioConnection,
        item: StartItem,
        loaded: LoadedDefinition,
        id: int,
        found: list[tuple[StartItem, model.Instance]],
    ) -> bool:
        """Return whether a key of the start was used before; then ``found`` gets its answer, or it is refused."""
        request = item.request
        key = request.idempotency_key
        if key is not None:
            digest = await run_sized(len(request.variables), lambda: _digest(item))
            if not await idempotency.claim(connection, START_SCOPE, key, digest, id):
                used = await idempotency.find(connection, START_SCOPE, key)
                if used is None:
                    raise TryAgain("an idempotency key expired while it was looked at")
                if bytes(used[0]) != digest:
                    item.refuse(IdempotencyConflict("the Idempotency-Key was used with another request"))
                elif used[2] is not None:
                    found.append((item, _kept_answer(bytes(used[2]))))
                return True
        return await self._held_by_other(connection, item, loaded, id, found)

    async def _held_by_other(
        self,
        connection: TrioConnection,
        item: StartItem,
        loaded: LoadedDefinition,
        id: int,
        found: list[tuple[StartItem, model.Instance]],
    ) -> bool:
        """As `_used_before`, of the instance key, or the key of `dedupe`."""
        request, key = item.request, item.request.idempotency_key
        holder, written = id, False
        dedupe = None if item.rules is None else item.rules.dedupe
        if dedupe is not None:
            holder = await self._windows.dedupe(connection, loaded, dedupe, id)
        elif request.instance_key is not None:
            holder, written = await keys.claim(
                connection, loaded.definition.id, request.instance_key, id, kept=request.keep_instance_key
            )
        if holder == id:
            return False
        if item.together:
            raise Apart
        view = await self._view_open(connection, item, holder)
        if view is None:
            return True
        view = msgspec.structs.replace(view, deduplicated=True)
        writes: list[Statement] = []
        if key is not None:  # the first answer of this key, too
            writes.append(idempotency.keep_answer(connection, START_SCOPE, key, msgspec.json.encode(view)))
        if item.place is not None:
            writes.append(batches.place_items([(item.place, holder)]))
        if writes or written:
            await connection.roundtrip([*writes, (SQL["commit"], ())])
        found.append((item, view))
        return True

    async def _put_off(
        self, connection: TrioConnection, transaction: Transaction, item: StartItem, id: int, extra: list[Statement]
    ) -> bool:
        """Return whether another start waits in whose place this one comes: that is the planned answer then."""
        loaded, rules = item.loaded, item.rules
        assert loaded is not None
        assert rules is not None
        assert rules.debounce is not None
        holder, at, writes = await self._windows.debounce(connection, loaded, rules.debounce, item, id)
        if at is None:
            return False
        view = await self._view_open(connection, item, holder)
        if view is None:
            raise RefusedWithin
        item.planned = msgspec.structs.replace(view, deduplicated=True)
        extra += writes
        transaction.on_armed(at)
        return True

    async def _begins_at(
        self, connection: TrioConnection, loaded: LoadedDefinition, rules: StartRules, now: datetime
    ) -> datetime | None:
        """When a start begins; None: at once. Raises BadRequest, Throttled."""
        if rules.throttle is not None:
            return await self._windows.throttle(connection, loaded, rules.throttle, now)
        if rules.debounce is not None:
            return now + timedelta(seconds=rules.debounce.wait_s)
        return rules.begins_at(now)

    async def _view_open(self, connection: TrioConnection, item: StartItem, instance: int) -> model.Instance | None:
        """The instance that holds the key. None when there is no room for its variables; the start is refused then:
        it changed nothing."""
        views, more = await self._view(connection, self._definitions, [instance], SMALL_BYTES, secrets=False)
        if more and item.reservation.memory.fits(COPIES * more):
            views, more = await self._view(connection, self._definitions, [instance], more, secrets=False)
        if not more and not views:
            raise TryAgain("the instance went meanwhile")
        if more:
            item.refuse(Overloaded(f"the open instance's variables have {more} bytes, for which there is no room now"))
            return None
        return views[0]


async def not_started(connection: TrioConnection, items: list[StartItem]) -> list[StartItem]:
    """The items without those that have a reserved id which an instance has: an earlier try started that."""
    reserved = [item.reserved for item in items if item.reserved]
    there = await instances.started(connection, reserved) if reserved else {}
    for item in items:
        if item.reserved in there:
            item.refuse(NotDue("the instance was started before"))
    return [item for item in items if not item.settled]


async def _caller(connection: TrioConnection, item: StartItem) -> tuple[calls.CalledBy | None, int | None, str | None]:
    """Return who calls what is started, its priority and its flow key. Raises LeaseLost, BadRequest."""
    if item.call is None:
        return None, item.request.priority, item.request.flow_key
    run = await calls.hold_caller(connection, item.call)
    if run is None:
        raise LeaseLost(LOST)
    if run.by.depth > DEPTH_MAX:
        raise BadRequest(f"path: the run would be call {DEPTH_MAX + 1} in a row")
    return run


def _digest(item: StartItem) -> bytes:
    """What makes two requests with one key the same. Variables by value, whatever the order of their keys."""
    request = item.request
    variables = msgspec.json.encode(msgspec.json.decode(request.variables), order="sorted")
    parts: list[Any] = [
        request.definition_id,
        request.definition_version or 0,
        request.business_key,
        request.instance_key,
    ]
    if request.keep_instance_key:
        parts.append("kept")
    if request.priority is not None or request.flow_key is not None:
        parts += [request.priority, request.flow_key]
    if item.asked is not None:
        parts.append(item.asked)
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
        failure_code=out.instance.failure_code,
        result=None if out.instance.result is None else raw(out.instance.result),
        business_key=item.request.business_key,
        instance_key=item.request.instance_key,
        priority=shown_priority(out.instance.priority),
        flow_key=out.instance.flow_key,
        start_at=next((timer.fire_at for timer in out.armed if timer.index == START_TIMER), None),
    )
