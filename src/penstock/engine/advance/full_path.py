"""The full path: everything that needs the whole instance. Lock, read, `core.advance`, write, commit.

Items say what they want (`Command.event`), `advance` decides what it means, the store writes it. Of the items of one
instance those are decided together, in their order, that concern executions which the ones before have not touched; the
others come in the next transaction. What is decided of the batch is one `Transaction`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from penstock.core.advance.completion import CompletionsNeeded
from penstock.core.advance.effect import Effects
from penstock.core.expression.work import LongWork
from penstock.core.graph.definition import StepType
from penstock.engine.advance.advancer import Case
from penstock.engine.advance.call_commands import read_notices
from penstock.engine.advance.command import AlreadyAnswered, Command, WritesOnly
from penstock.engine.advance.long_path import LongPath
from penstock.engine.advance.recorded import Recorded, RecordedCommand, with_recorded
from penstock.engine.advance.together import Together
from penstock.engine.advance.transaction import (
    POSITIONS_PER_FURTHER_ITEM,
    POSITIONS_PER_ITEM,
    Transaction,
    Transactions,
)
from penstock.engine.definitions.definitions import Definitions, LoadedDefinition
from penstock.engine.group_commit.queue import GroupCommitQueue
from penstock.engine.queues.left_notes import LeftNotes
from penstock.engine.requests.payload import EMPTY_OBJECT
from penstock.errors import NotFound, PayloadTooLarge, PenstockError
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database, RefusedWithin, wait_replicated
from penstock.store.db.statements import Statement
from penstock.store.db.vault import KeyMissing
from penstock.store.rows import bulk, calls, for_each, recorded
from penstock.store.rows import full_path as store
from penstock.store.rows import variables as variable_store
from penstock.store.rows.jobs import ExecutionInfo
from penstock.telemetry.metrics import Metrics

Spare = Callable[[Sequence[Statement]], tuple[list[Statement], list[Statement]]]
PER_INSTANCE_MAX: Final = 100
"""Items of one instance in a batch: each is an advance, 50 µs and more on the loop."""


class FullPath(GroupCommitQueue[Command]):
    """The group-commit queue of commands."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        definitions: Definitions,
        transactions: Transactions,
    ) -> None:
        super().__init__("full path", database, settings, metrics, per_key=PER_INSTANCE_MAX, label="full_path")
        self._variables_max_bytes = settings.instance_variables_max_bytes
        self._definitions = definitions
        self._transactions = transactions
        self._recorded = Recorded()
        self._notes = LeftNotes()
        self.long: LongPath[Command] = LongPath("long full path", settings, transactions.advancer, self.apply_batch)

    def key(self, item: Command) -> object:
        return item.instance

    async def find_locked_elsewhere(self, connection: TrioConnection, items: list[Command]) -> list[Command]:
        held = await store.instances_locked_elsewhere(connection, [item.instance for item in items])
        return [item for item in items if item.instance in held]

    async def apply(self, connection: TrioConnection, items: list[Command], again: bool) -> None:
        with self._metrics.db_transaction_seconds["wide"].time():
            await self._transact(connection, items, again)

    async def _transact(self, connection: TrioConnection, items: list[Command], again: bool) -> None:
        items, locked, known, loaded = await self._open_defined(connection, items, again)
        if not items:
            return
        asked, recording = items, with_recorded(locked.instances)
        if recording:
            code = [instance for instance, about in loaded.items() if about.code]
            items = self._recorded.first(items, locked.instances, code)
        variables = await self._read(connection, loaded)
        waiting = await self._read_spared(connection, locked, loaded)
        await self._read_items(connection, items, locked, loaded)
        await read_notices(connection, items, locked.instances, loaded)
        transaction = self._transactions.begin(locked.now, locked.xid, locked.positions)
        decided: list[Command] = []
        undecided: list[tuple[Command, AlreadyAnswered | PenstockError | LongWork]] = []
        failed = False
        together = Together(locked.instances, variables)
        with self.transaction(transaction):
            for item in items:
                if not together.may_join(item):
                    continue
                try:
                    first = together.is_first(item.instance)
                    effects = await self._plan(connection, transaction, locked, item, loaded, variables, known, first)
                    decided.append(item)
                    together.go_on(item, effects)
                except CompletionsNeeded:
                    together.put_off(item)
                except (AlreadyAnswered, PenstockError, LongWork) as reason:
                    if item.beside and isinstance(reason, LongWork):
                        together.put_off(item)
                        continue
                    undecided.append((item, reason))
                    failed = failed or (item.prepares and not isinstance(reason, AlreadyAnswered))
            if failed or not decided:
                await connection.rollback()
                if not all(isinstance(reason, LongWork) for _, reason in undecided):
                    await wait_replicated(connection)
                self._answer(undecided)
            if failed and decided:
                raise RefusedWithin  # what one wrote in `prepare` must not be committed with the others
            if decided:
                held = set(recording)
                behind = [item for item in asked if item.instance in held]
                await self._write(connection, transaction, decided, behind, self._spare(decided, locked, waiting))
        self._answer(undecided)
        await transaction.carry_out(connection, locked.now)

    def _answer(self, undecided: list[tuple[Command, AlreadyAnswered | PenstockError | LongWork]]) -> None:
        """Not before the locks are gone: a claim that follows the answer passes locked jobs by."""
        for item, reason in undecided:
            if isinstance(reason, AlreadyAnswered):
                item.answer(reason.answer)
            elif isinstance(reason, LongWork):
                self.long.take_over(item)
            else:
                item.refuse(reason)
        undecided.clear()

    async def _open_defined(
        self, connection: TrioConnection, items: list[Command], again: bool
    ) -> tuple[list[Command], store.LockedBatch, dict[int, ExecutionInfo], dict[int, LoadedDefinition]]:
        """As `_open`, for the items whose definitions are known; with the definition of each instance.

        A definition that is not in memory may take seconds to parse: not under locks, and not while the queue waits.
        Its items stand aside first; those that did wait for it here.
        """
        own: dict[int, LoadedDefinition] = {}
        while True:
            batch, known = await self._open(connection, items)
            found = {
                instance: own.get(locked.definition) or self._definitions.cached(locked.definition)
                for instance, locked in batch.instances.items()
            }
            loaded = {instance: definition for instance, definition in found.items() if definition is not None}
            if len(loaded) == len(found):
                return items, batch, known, loaded
            await connection.rollback()
            missing = found.keys() - loaded.keys()
            self.let_wait_for_locks(
                [item for item in items if item.instance in missing and not item.was_lock_waiting], in_doubt=again
            )
            items = [item for item in items if not item.lock_waiting]
            if not items:
                return items, batch, known, loaded
            for key in {batch.instances[item.instance].definition for item in items if item.instance in missing}:
                own[key] = await self._definitions.by_key(connection, key)

    async def _open(
        self, connection: TrioConnection, items: list[Command]
    ) -> tuple[store.LockedBatch, dict[int, ExecutionInfo]]:
        """The locked batch, and by the item's `id()` what is known of its job."""
        jobs = [item for item in items if item.job is not None]
        timers = [item.timer for item in items if item.timer is not None]
        instances = [item.instance for item in items]
        first = len(set(instances))
        with self._metrics.db_lock_wait_seconds["wide"].time():  # locking and reading: nearly all of it is waiting
            batch = await store.lock_and_load(
                connection,
                instances,
                jobs=[item.job for item in jobs if item.job is not None],
                workers=[item.worker for item in jobs],
                timers=timers,
                locked=self.locked,
                positions=POSITIONS_PER_ITEM * first + POSITIONS_PER_FURTHER_ITEM * (len(items) - first),
            )
        return batch, dict(zip((id(item) for item in jobs), batch.known, strict=True))

    async def _plan(
        self,
        connection: TrioConnection,
        transaction: Transaction,
        batch: store.LockedBatch,
        item: Command,
        loaded: dict[int, LoadedDefinition],
        variables: dict[int, str],
        known: dict[int, ExecutionInfo],
        first: bool,
    ) -> Effects | None:
        """Take what the item does into the transaction; None where that is no advance. Raises Settled, PenstockError,
        LongWork, CompletionsNeeded."""
        locked = batch.instances.get(item.instance)
        if locked is None:
            raise NotFound("the instance is unknown")
        about = loaded[item.instance]
        armed = item.timer is not None and item.timer in batch.armed
        try:
            await item.prepare(connection, locked, about)
            event = item.event(locked, about, known.get(id(item)), armed)
        except WritesOnly:
            return None
        values = variables.get(item.instance)
        if locked.unreadable is not None:
            raise locked.unreadable
        if values is None and about.needs_variables:
            raise KeyMissing("the instance's variables can't be read: this engine lacks a key (encryption_keys)")
        root = locked.instance.id
        if about.calls and locked.instance.depth:
            root = await calls.root_of(connection, root)
        case = Case(
            about, locked.instance, locked.tokens, values, event, batch.now, locked.signals, root, locked.kept, first
        )
        change = await transaction.advance(connection, item, case, business_key=locked.business_key)
        item.planned = item.after(change.effects, about)
        return change.effects

    async def _read(self, connection: TrioConnection, loaded: dict[int, LoadedDefinition]) -> dict[int, str]:
        """Return the variables of the instances whose definitions need them."""
        needing = [instance for instance, definition in loaded.items() if definition.needs_variables]
        return await variable_store.read(connection, needing) if needing else {}

    async def _read_spared(
        self, connection: TrioConnection, batch: store.LockedBatch, loaded: dict[int, LoadedDefinition]
    ) -> list[int]:
        """What was not read with the batch, as somebody held the table, and is needed; the instances that need it."""
        await self._notes.forget(connection, self.locked)
        waiting = _waiting(loaded) if self.locked else []
        if waiting and "buffered_signal" in self.locked:
            await store.read_signals(connection, batch, waiting)
        return waiting

    async def _read_items(
        self,
        connection: TrioConnection,
        items: list[Command],
        batch: store.LockedBatch,
        loaded: dict[int, LoadedDefinition],
    ) -> None:
        """What is kept of the forEach steps of instances, and the variables of the items that the batch is about."""
        mapping = [instance for instance, definition in loaded.items() if definition.maps]
        if not mapping:
            return
        about = {item.token for item in items}
        wanted = [
            (instance, token.parent_id, token.item)
            for instance in mapping
            for token in batch.instances[instance].tokens
            if token.id in about and token.item is not None and token.parent_id is not None
        ]
        for instance, kept in (await for_each.read(connection, mapping, wanted)).items():
            batch.instances[instance] = batch.instances[instance]._replace(kept=kept)

    def _spare(self, decided: list[Command], batch: store.LockedBatch, waiting: list[int]) -> Spare:
        """What is to be left out of the writes of these commands, as somebody holds tables that they don't need."""
        instances = {item.instance for item in decided}
        keyed = any(batch.instances[id].instance_key is not None for id in instances)
        return partial(store.spared, locked=self.locked, keyed=keyed, waiting=not instances.isdisjoint(waiting))

    async def _write(
        self,
        connection: TrioConnection,
        transaction: Transaction,
        decided: list[Command],
        behind: list[Command],
        spare: Spare,
    ) -> None:
        """Write, fold the variable deltas that are due, and commit. ``behind``: of instances where something stands
        recorded, which may be taken up for their sake."""
        extra = [statement for item in decided for statement in item.statements()]
        if any(item.arms for item in decided):
            transaction.on_armed(transaction.now)
        extra += bulk.counts((item.for_bulk, item.instance) for item in decided)
        if behind:
            extra.append(recorded.forget(sorted({item.instance for item in behind})))
        asking = [*(item for item in decided if not item.beside), *behind] if behind else decided
        writes = await transaction.writes(connection, decided, extra, asking)
        later: list[Statement] = []
        if self.locked:
            writes, later = spare(writes)
        folds = [*transaction.long_runs(), *(item.instance for item in decided if item.folds)]
        if folds:
            fold = variable_store.fold(folds, self._variables_max_bytes)
            too_large = {row[0] for row in (await connection.roundtrip([*writes, fold]))[-1]}
            self._refuse_growth(decided, too_large)
            writes = variable_store.record_folded(folds, too_large)
        await self.commit(connection, transaction, writes)
        self._notes.remember(later)

    def _refuse_growth(self, items: list[Command], too_large: set[int]) -> None:
        """Refuse items that bring variables to instances which have too many; the others are repeated without them.
        What stands recorded is refused first: by itself what another one brings may not be too much."""
        grown = [item for item in items if item.instance in too_large and item.output not in (None, EMPTY_OBJECT)]
        for item in [item for item in grown if isinstance(item, RecordedCommand)] or grown:
            limit = self._variables_max_bytes
            item.refuse(PayloadTooLarge(f"variables: the instance would have more than {limit} bytes of them"))
        if grown:
            raise RefusedWithin


def _waiting(loaded: dict[int, LoadedDefinition]) -> list[int]:
    """The instances whose definitions have a step that signals are kept for."""
    return [
        instance
        for instance, about in loaded.items()
        if any(step.type is StepType.WAIT for step in about.definition.steps)
    ]
