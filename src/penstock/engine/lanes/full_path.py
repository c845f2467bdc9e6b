"""The full path: everything that needs the whole instance. Lock, read, `core.advance`, write, commit.

Items say what they want (`Command.decide`), `advance` decides what it means, the store writes it. At most one item
per instance in a batch. A COMMIT whose answer was lost is looked up (`store.in_doubt`) before anyone is answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from penstock.core.effect import JobRef
from penstock.core.state import TAKEN_KINDS, InstanceStatus, Trigger, move
from penstock.core.work import LongWork
from penstock.engine.advancer import Advancer, Case, LongItem
from penstock.engine.definitions import Definitions, LoadedDefinition
from penstock.engine.deliveries import Delivery
from penstock.engine.ids import IdSource
from penstock.engine.lanes.command import Command, Settled, WritesOnly
from penstock.engine.lanes.failed import FailedInstances
from penstock.engine.lanes.lane import Lane
from penstock.engine.lanes.long_path import LongPath
from penstock.engine.lanes.post_commit import PostCommit
from penstock.engine.losses import Loss
from penstock.engine.polls import Polls
from penstock.engine.vocabulary import EMPTY_OBJECT
from penstock.errors import NotFound, PayloadTooLarge, PenstockError
from penstock.log import get_logger
from penstock.metrics import Metrics
from penstock.settings import Settings
from penstock.store import full_path as store
from penstock.store import variables as variable_store
from penstock.store.connection import TrioConnection
from penstock.store.database import Database, DatabaseError, RefusedWithin, TryAgain
from penstock.store.full_path import Change, NewInstance
from penstock.store.in_doubt import InDoubtCommit
from penstock.store.jobs import ExecutionInfo
from penstock.store.outcome import InDoubt
from penstock.store.statements import SQL, Statement
from penstock.store.vault import KeyMissing

POSITIONS_PER_ITEM = 12

log = get_logger(__name__)


class FullPath:
    """The queue of commands and what applies them."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        definitions: Definitions,
        polls: Polls,
        ids: IdSource,
        timer_armed: Callable[[datetime, datetime], None],
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._definitions = definitions
        self._polls = polls
        self._timer_armed = timer_armed
        self._in_doubt: dict[InDoubtCommit, PostCommit] = {}
        self._failed = FailedInstances()
        self.advancer = Advancer(database, settings, definitions, ids)
        self.lane: Lane[Command] = Lane(
            "full path",
            database,
            settings,
            metrics,
            self._batch,
            find_held=self._find_held,
            key=lambda item: item.instance,
            label="wide",
            finish=self.abandon,
        )
        self.long: LongPath[Command] = LongPath("long full path", settings, self.advancer, self.lane.apply_batch)

    async def submit(self, item: Command) -> Any:
        """Queue an item and wait for its answer; an outage of the database is waited out."""
        self.submit_nowait(item)
        return await item.wait_answer()

    def submit_nowait(self, item: Command) -> None:
        """Queue an item. Raises TooManyRequests."""
        self.lane.submit_nowait(item)

    async def _find_held(self, connection: TrioConnection, items: list[Command]) -> list[Command]:
        held = await store.held_instances(connection, [item.instance for item in items])
        return [item for item in items if item.instance in held]

    async def _batch(self, connection: TrioConnection, items: list[Command], again: bool) -> None:
        if again:
            await self.resolve_in_doubt(connection, items)
            items = [item for item in items if not item.settled]
            if not items:
                return
        with self._metrics.db_transaction_seconds["wide"].time():
            await self._transaction(connection, items, again)

    async def _transaction(self, connection: TrioConnection, items: list[Command], again: bool) -> None:
        items, scene, known, loaded = await self._open_defined(connection, items, again)
        if not items:
            return
        variables = await self._read(connection, loaded)
        post_commit = PostCommit()
        decided: list[Command] = []
        undecided: list[tuple[Command, Settled | PenstockError | LongWork]] = []
        failed = False
        try:
            for item in items:
                try:
                    await self._plan(connection, post_commit, scene, item, loaded, variables, known.get(id(item)))
                    decided.append(item)
                except (Settled, PenstockError, LongWork) as reason:
                    undecided.append((item, reason))
                    failed = failed or (item.prepares and not isinstance(reason, Settled))
            if failed or not decided:
                await connection.rollback()
                self._answer(undecided)
            if failed and decided:
                raise RefusedWithin  # what one wrote in `prepare` must not be committed with the others
            if decided:
                extra = [statement for item in decided for statement in item.statements()]
                folds = [*post_commit.long_runs(), *(item.instance for item in decided if item.folds)]
                await self.commit(connection, post_commit, scene.now, scene.xid, decided, extra, folds)
        except BaseException:
            self.undo(post_commit)
            raise
        for item in decided:  # first of all: what follows may fail, and must not let the item be decided again
            item.answer(item.planned)
        self._answer(undecided)
        await self.committed(connection, post_commit, scene.now)

    def _answer(self, undecided: list[tuple[Command, Settled | PenstockError | LongWork]]) -> None:
        """Not before the locks are gone: a claim that follows the answer passes locked jobs by."""
        for item, reason in undecided:
            if isinstance(reason, Settled):
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
            scene, known = await self._open(connection, items)
            found = {
                instance: own.get(locked.definition) or self._definitions.cached(locked.definition)
                for instance, locked in scene.instances.items()
            }
            loaded = {instance: definition for instance, definition in found.items() if definition is not None}
            if len(loaded) == len(found):
                return items, scene, known, loaded
            await connection.rollback()
            missing = found.keys() - loaded.keys()
            self.lane.set_aside(
                [item for item in items if item.instance in missing and not item.was_aside], in_doubt=again
            )
            items = [item for item in items if not item.aside]
            if not items:
                return items, scene, known, loaded
            for key in {scene.instances[item.instance].definition for item in items if item.instance in missing}:
                own[key] = await self._definitions.by_key(connection, key)

    async def _open(
        self, connection: TrioConnection, items: list[Command]
    ) -> tuple[store.LockedBatch, dict[int, ExecutionInfo]]:
        """The scene, and by the item's `id()` what is known of its job."""
        jobs = [item for item in items if item.job is not None]
        timers = [item.timer for item in items if item.timer is not None]
        with self._metrics.db_lock_wait_seconds["wide"].time():  # locking and reading: nearly all of it is waiting
            scene = await store.lock_and_load(
                connection,
                [item.instance for item in items],
                jobs=[item.job for item in jobs if item.job is not None],
                workers=[item.worker for item in jobs],
                timers=timers,
                positions=POSITIONS_PER_ITEM * len(items),
            )
        return scene, dict(zip((id(item) for item in jobs), scene.known, strict=True))

    async def _plan(
        self,
        connection: TrioConnection,
        post_commit: PostCommit,
        scene: store.LockedBatch,
        item: Command,
        loaded: dict[int, LoadedDefinition],
        variables: dict[int, str],
        known: ExecutionInfo | None,
    ) -> None:
        """Take what the item does into the transaction. Raises Settled, PenstockError, LongWork."""
        locked = scene.instances.get(item.instance)
        if locked is None:
            raise NotFound("the instance is unknown")
        about = loaded[item.instance]
        armed = item.timer is not None and item.timer in scene.armed
        try:
            await item.prepare(connection)
            event = item.decide(locked, about, known, armed)
        except WritesOnly:
            return
        values = variables.get(item.instance)
        if locked.unreadable is not None:
            raise locked.unreadable
        if values is None and about.needs_variables:
            raise KeyMissing("the instance's variables can't be read: this engine lacks a key (encryption_keys)")
        case = Case(about, locked.instance, locked.tokens, values, event, scene.now, locked.signals)
        change = await self.decide(connection, post_commit, item, case, scene.positions)
        item.planned = item.after(change.effects, about)

    async def _read(self, connection: TrioConnection, loaded: dict[int, LoadedDefinition]) -> dict[int, str]:
        """The variables of the instances whose definitions need them."""
        needing = [instance for instance, definition in loaded.items() if definition.needs_variables]
        return await variable_store.read(connection, needing) if needing else {}

    def _collect(self, post_commit: PostCommit, change: Change, loaded: LoadedDefinition, now: datetime) -> None:
        """Take an outcome into the transaction; jobs that somebody waits for are dispatched directly."""
        out = change.effects
        post_commit.changes.append((change, loaded))
        post_commit.armed.extend(timer.fire_at for timer in out.armed)
        placed = {token.id: token for token in (*out.inserted, *out.updated)}
        kept: list[JobRef] = []
        for job in out.queued:
            token = placed[job.token_id]
            waiter = self._polls.waiters.reserve(job.job_type)
            if waiter is None:
                kept.append(job)
                post_commit.queued.append(job.job_type)
                continue
            move(token, Trigger.CLAIM)
            token.attempt += 1
            token.claimed_by, token.claimed_at = waiter.worker, now
            until = now + timedelta(seconds=min(waiter.lease_s, token.timeout_s or waiter.lease_s))
            token.lease_until = until
            post_commit.deliveries.append(
                Delivery(
                    waiter,
                    loaded,
                    out.instance.id,
                    token.id,
                    token.seq,
                    token.entry_id,
                    token.step,
                    token.attempt,
                    token.failures,
                    token.entered_at,
                    now,
                    token.lease_until,
                )
            )
        out.queued = kept

    # -- also used by starts

    async def decide(
        self,
        connection: TrioConnection,
        post_commit: PostCommit,
        item: LongItem[Any],
        case: Case,
        positions: deque[int],
        created: NewInstance | None = None,
    ) -> Change:
        """Advance one instance, start what it chains into, and take all that into the transaction.

        Raises PenstockError for an advance that failed, LongWork for one that takes long; takes nothing then.
        """
        changes = await self.advancer.run(connection, item, case, positions, created)
        for change, loaded in changes:
            self._collect(post_commit, change, loaded, case.now)
        return changes[0][0]

    async def commit(
        self,
        connection: TrioConnection,
        post_commit: PostCommit,
        now: datetime,
        xid: str,
        items: list[Any],
        extra: list[Statement],
        folds: Sequence[int] = (),
    ) -> None:
        """Write, fold the deltas of the instances ``folds``, and commit.

        When the answer is lost, ``items`` and post_commit wait to be resolved by the next try.
        """
        changes = [change for change, _ in post_commit.changes]
        writes = store.statements(
            changes,
            now,
            audit=self._settings.audit_log_enabled,
            to_outbox=self._settings.through_kafka,
            extra=extra,
            vault=connection.vault,
        )
        sent = InDoubtCommit(xid, changes, items, repeatable=all(item.repeatable for item in items))
        for item in items:
            item.sent = sent
        self._in_doubt[sent] = post_commit
        try:
            if folds:
                fold = variable_store.fold(folds, self._settings.instance_variables_max_bytes)
                too_large = {row[0] for row in (await connection.roundtrip([*writes, fold]))[-1]}
                self._refuse_growth(items, too_large)
                writes = variable_store.note_folded(folds, too_large)
            await connection.roundtrip([*writes, *sent.writes, (SQL["commit"], ())])
        except DatabaseError as error:
            if not isinstance(error, InDoubt):  # surely rolled back
                del self._in_doubt[sent]
            raise
        del self._in_doubt[sent]

    def _refuse_growth(self, items: list[Any], too_large: set[int]) -> None:
        """Refuse items that bring variables to instances which have too many; the others are repeated without them."""
        grown = [item for item in items if item.instance in too_large and item.output not in (None, EMPTY_OBJECT)]
        for item in grown:
            limit = self._settings.instance_variables_max_bytes
            item.refuse(PayloadTooLarge(f"variables: the instance would have more than {limit} bytes of them"))
        if grown:
            raise RefusedWithin

    async def resolve_in_doubt(self, connection: TrioConnection, items: list[Any]) -> None:
        """Look what became of transactions whose COMMIT was not answered, and answer the items of committed ones."""
        # only their own: other lanes have theirs under way
        for sent in {item.sent for item in items if item.sent in self._in_doubt}:
            outcome = await sent.committed(connection)
            if outcome is None:
                raise TryAgain(f"transaction {sent.xid} has not ended yet")
            post_commit = self._in_doubt.pop(sent, None)
            if post_commit is None:
                continue  # another lane, with others of its items, has looked meanwhile
            if outcome:
                for item in sent.items:  # also those that stand aside meanwhile
                    item.answer(item.planned)
                await self.committed(connection, post_commit, None)
            else:
                self.forget(post_commit)

    def undo(self, post_commit: PostCommit) -> None:
        """The transaction failed: give up what it reserved, unless it is in doubt."""
        if not any(post_commit is each for each in self._in_doubt.values()):
            self.forget(post_commit)

    def abandon(self, items: list[Any]) -> None:
        """Nobody asks any more what became of the transactions of these items, unless others of theirs stand aside."""
        for sent in {item.sent for item in items if item.sent in self._in_doubt}:
            if all(item.settled for item in sent.items):
                self.forget(self._in_doubt.pop(sent))

    def forget(self, post_commit: PostCommit) -> None:
        """The transaction did not happen: give up what it reserved."""
        for over in post_commit.deliveries:
            self._polls.waiters.give_up(over.waiter)
        post_commit.deliveries.clear()

    async def committed(self, connection: TrioConnection, post_commit: PostCommit, now: datetime | None) -> None:
        """Carry a committed transaction into this engine's memory: leases, wake-ups, metrics, hand-deliveries.

        ``now`` is the database's time in it; None when it was committed some time ago.
        """
        for change, loaded in post_commit.changes:
            self._note(change, loaded)
        for job_type in set(post_commit.queued):
            self._polls.queued(job_type)
        if post_commit.armed:
            first = min(post_commit.armed)
            self._timer_armed(first, now or first)  # how long it has is not known then: that is looked up at once
        deliveries, post_commit.deliveries = post_commit.deliveries, []
        if deliveries:
            await self._polls.deliveries.deliver_all(connection, deliveries, {})

    def _note(self, change: Change, loaded: LoadedDefinition) -> None:
        out, metrics = change.effects, self._metrics
        steps = loaded.definition.steps
        for row in out.history:
            if row.kind < 10:
                self._polls.leases.forget(row.token_id, row.seq)
                if row.kind in TAKEN_KINDS and row.worker is not None:
                    loss = Loss(row.worker, out.instance.id, row.token_id, row.seq, row.attempt)
                    self._polls.losses.tell(loss)
                metrics.steps_executed[steps[row.step].type.value].inc()
            else:
                self._polls.leases.end(row.token_id, row.seq, row.attempt)
                metrics.job_retries.inc()
        if change.created is not None:
            metrics.instances_started.inc()
        if out.dead_end:
            metrics.dead_ends.inc()
            log.warning(
                "instance has no open step and did not reach END",
                instance=f"{out.instance.id:x}",
                definition=loaded.definition.id,
            )
        if out.instance.status is InstanceStatus.FAILED:
            self._failed.tell(out.instance.id, loaded.definition.id, out.instance.failure or "")
        if out.ended:
            metrics.note_end(loaded.definition.id, InstanceStatus(out.instance.status).name)
