"""Starts that go through `core.advance`: those with a key, and those whose first step is no plain job.

Idempotency and instance keys are claimed in the transaction that creates the instance; of two at once the second waits
for the first one's commit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from penstock.core.event import Started
from penstock.core.state import Instance, InstanceStatus, TokenState
from penstock.core.work import LongWork
from penstock.engine import ids
from penstock.engine.advancer import Case
from penstock.engine.answers import COPIES, SMALL_BYTES
from penstock.engine.definitions import Definitions, LoadedDefinition
from penstock.engine.ids import IdSource
from penstock.engine.lanes.lane import Lane
from penstock.engine.lanes.start_item import StartItem
from penstock.engine.lanes.transaction import POSITIONS_PER_ITEM, Transaction, Transactions
from penstock.engine.views import view_instances
from penstock.errors import IdempotencyConflict, Overloaded, PenstockError
from penstock.offload import run_sized
from penstock.store import full_path as store
from penstock.store import idempotency, keys
from penstock.store.connection import TrioConnection
from penstock.store.database import RefusedWithin, TryAgain, wait_replicated
from penstock.store.full_path import Change, NewInstance
from penstock.store.statements import SQL, Statement
from penstock.store.vault import KeyMissing
from penstock.wire import model
from penstock.wire.model import StartRequest
from penstock.wire.noun import JsonText, raw

START_SCOPE: Final = "start"


class _KeptAnswer(model.Instance, frozen=True):
    """The first answer to a key, as it is read back: with the text of its variables."""

    variables: JsonText = None


def _kept_answer(text: bytes) -> model.Instance:
    return model.Instance(**msgspec.structs.asdict(msgspec.json.decode(text, type=_KeptAnswer)))


class FullStarts:
    """What applies them. ``take_over`` gets those whose advance takes long."""

    def __init__(
        self,
        definitions: Definitions,
        transactions: Transactions,
        id_source: IdSource,
        take_over: Callable[[StartItem], None],
    ) -> None:
        self._definitions = definitions
        self._transactions = transactions
        self._ids = id_source
        self._take_over = take_over

    async def apply(self, lane: Lane[StartItem], connection: TrioConnection, items: list[StartItem]) -> None:
        """Start them in one transaction of ``lane``. Their definitions are known."""
        now, xid, positions = await store.begin(connection, POSITIONS_PER_ITEM * len(items))
        transaction = self._transactions.begin(now, xid, positions)
        created: list[StartItem] = []
        extra: list[Statement] = []
        found: list[tuple[StartItem, model.Instance]] = []
        with lane.transaction(transaction):
            for item in sorted(items, key=lambda item: item.order):
                change = await self._begin(connection, transaction, item, found)
                if change is None:
                    continue
                loaded, request = item.loaded, item.request
                assert loaded is not None
                size_bytes = len(request.variables) + sum(len(row.output or b"") for row in change.effects.history)
                item.planned = await run_sized(size_bytes, partial(_planned_view, item, loaded, change, now))
                created.append(item)
                if request.idempotency_key is not None:
                    answer = msgspec.json.encode(item.planned)
                    extra.append(idempotency.keep_answer(connection, START_SCOPE, request.idempotency_key, answer))
            if created:
                await lane.commit(connection, transaction, await transaction.writes(connection, created, extra))
            elif found:
                await connection.rollback()
                await wait_replicated(connection)
        for item, kept in found:
            item.answer(kept)
        await transaction.carry_out(connection, now)

    async def _begin(
        self,
        connection: TrioConnection,
        transaction: Transaction,
        item: StartItem,
        found: list[tuple[StartItem, model.Instance]],
    ) -> Change | None:
        """Take a start into the transaction. None: ``found`` has its answer, it is refused, or takes long."""
        loaded, request = item.loaded, item.request
        assert loaded is not None
        id = self._ids.next()
        try:
            if await self._used_before(connection, item, loaded, id, found):
                return None
        except KeyMissing as error:  # what it wrote until then must not be committed with the others
            item.refuse(error)
            raise RefusedWithin from error
        variables = request.variables if loaded.needs_variables else None
        instance = Instance(id, priority=request.priority, flow_key=request.flow_key)
        case = Case(loaded, instance, [], variables, Started(), transaction.now, {}, id)
        new = NewInstance(
            id,
            loaded.key,
            request.variables,
            request.business_key,
            request.instance_key,
            started_by=item.actor,
        )
        try:
            return await transaction.advance(connection, item, case, new, business_key=request.business_key)
        except LongWork:
            self._take_over(item)
        except PenstockError as error:
            item.refuse(error)
        return None

    async def _used_before(
        self,
        connection: TrioConnection,
        item: StartItem,
        loaded: LoadedDefinition,
        id: int,
        found: list[tuple[StartItem, model.Instance]],
    ) -> bool:
        """Whether a key of the start was used before; then ``found`` gets its answer, or it is refused."""
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
                    found.append((item, _kept_answer(bytes(used[2]))))
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
                found.append((item, view))
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


def _digest(request: StartRequest) -> bytes:
    """What makes two requests with one key the same. Variables by value, whatever the order of their keys."""
    variables = msgspec.json.encode(msgspec.json.decode(request.variables), order="sorted")
    parts = [request.definition_id, request.definition_version or 0, request.business_key, request.instance_key]
    if request.keep_instance_key:
        parts.append("kept")
    if request.priority is not None or request.flow_key is not None:
        parts += [request.priority, request.flow_key]
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
    )
