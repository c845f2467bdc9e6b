"""The full path's transaction: lock instances, read them, write what `core.advance` decided.

Two round trips: `lock_and_load` begins, locks and reads; `write` writes and commits. Everything between them is pure.
Lock order and promises stand in ``queries/full_path.sql`` and ``schema.sql``.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import msgspec
from psycopg import errors as pg_errors

from penstock.core.advance.effect import Effects
from penstock.core.advance.for_each import NO_ITEMS, KeptItems
from penstock.core.rules.search_attributes import SearchAttributes
from penstock.core.rules.state import JOB_STATES, HistoryKind, Instance, InstanceStatus, Token, TokenState
from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement
from penstock.store.db.vault import KeyMissing, Vault
from penstock.store.rows import calls, compensation, flow, for_each, schedules, search_attributes, signals
from penstock.store.rows.calls import CalledBy
from penstock.store.rows.jobs import ExecutionInfo, JobKey, execution_info
from penstock.store.rows.variables import UNFOLDED_MAX
from penstock.wire.error_code import failure_text


class LockedInstance(NamedTuple):
    """An instance under its lock.

    ``signals`` are the oldest kept ones by the index of their WAIT, all or more than one advance takes;
    ``kept_count`` and ``kept_bytes`` are of all.
    """

    instance: Instance
    definition: int
    instance_key: str | None
    business_key: str | None
    tokens: list[Token]
    signals: dict[int, list[tuple[int, bytes]]]
    snapshot: str | None  # of a failed instance: what `retry` reopens, JSON
    now: datetime  # the database's, after the locks
    kept_count: int = 0
    kept_bytes: int = 0
    unreadable: KeyMissing | None = None
    """Why kept signals can't be read."""
    ended_at: datetime | None = None
    kept: KeptItems = NO_ITEMS
    """Of its forEach steps."""
    called_seq: int | None = None
    """Of the call of another instance that waits for its end, or has waited last."""
    failed_step: str | None = None
    """Of a FAILED instance: the id of the step that failed it, where that is known."""


class LockedBatch(NamedTuple):
    """Everything that one batch of the full path decides upon. ``xid`` tells later whether it was committed."""

    now: datetime
    xid: str
    instances: dict[int, LockedInstance]
    known: list[ExecutionInfo]
    armed: set[tuple[int, int, int]]
    positions: deque[int]


async def lock_and_load(
    connection: TrioConnection,
    instances: Sequence[int],
    *,
    jobs: Sequence[JobKey] = (),
    workers: Sequence[str] = (),
    timers: Sequence[tuple[int, int, int]] = (),
    positions: int,
    begun: bool = False,
    locked: Collection[str] = (),
) -> LockedBatch:
    """Begin a transaction, unless one has ``begun``, lock ``instances`` and read them. `write` or the end
    of the pool's block ends it. ``jobs`` with their ``workers`` and ``timers`` (token, seq, index) are looked up, too.
    ``locked``: tables that somebody holds; they are read for instances that need them, and kept signals not at all
    (`read_signals`).
    """
    alone = not {"called", "scheduled"}.isdisjoint(locked)
    ids = arrays.ints(sorted(set(instances)))
    keys = list(zip(*jobs, strict=True)) or [(), (), ()]
    asked = list(zip(*timers, strict=True)) or [(), (), ()]
    results: Any = await _read_unless(
        connection,
        ("transaction_id" if begun else "begin", (), False),
        ("lock_roots", (ids,), False),
        ("lock_ended", (ids,), "abnormal_end" in locked),
        ("lock_branches", (ids,), False),
        ("read_instances_alone" if alone else "read_instances", (ids,), False),
        ("watched_roots", (ids,), not alone),
        ("read_tokens", (ids,), False),
        ("read_signals", (ids, signals.READ_COUNT), "buffered_signal" in locked),
        ("look_up", (*map(arrays.ints, keys), arrays.texts(workers)), False),
        ("armed", tuple(map(arrays.ints, asked)), not timers),
        ("positions", (positions,), False),
        ("transaction_id", (), False),
    )
    _, root_rows, ended_rows, _, found, watched, token_rows, signal_rows, info_rows, timer_rows, block, about = results
    xid, now = about[0]
    if locked:
        ended = sorted(set(instances) - {id for (id,) in root_rows})
        notified = [*ended, *(id for (id,) in watched)] if alone else []
        ended_rows, found = await _read_needed(
            connection, ended if "abnormal_end" in locked else [], notified, ended_rows, found
        )
    tokens: dict[int, list[Token]] = {}
    snapshots: dict[int, tuple[str | None, str | None]] = {id: (snapshot, step) for id, snapshot, step in ended_rows}
    for row in token_rows:
        tokens.setdefault(row[1], []).append(token_of(row))
    kept = await signals.kept(connection, signal_rows)
    roots = set(root_rows)
    if any(status == InstanceStatus.ACTIVE and (id,) not in roots for id, _, status, *_ in found):
        # reopened while we waited for the lock of its failure: its root came after our look
        raise pg_errors.SerializationFailure("an instance was reopened meanwhile")
    return LockedBatch(
        now,
        xid,
        {row[0]: _locked(row, tokens, kept, snapshots, now) for row in found},
        [execution_info(row) for row in info_rows],
        {(token, seq, index) for token, seq, index in timer_rows},
        deque(row[0] for row in block),
    )


def _locked(
    row: Any,
    tokens: Mapping[int, list[Token]],
    kept: defaultdict[int, signals.KeptSignals],
    snapshots: Mapping[int, tuple[str | None, str | None]],
    now: datetime,
) -> LockedInstance:
    """Of a row of `read_instances`."""
    id, definition, status, failure, instance_key, business_key, ended_at, called_seq, *about = row
    return LockedInstance(
        Instance(id, InstanceStatus(status), failure, None, None, *about),
        definition,
        instance_key,
        business_key,
        tokens.get(id, []),
        kept[id].signals,
        snapshots.get(id, (None, None))[0],
        now,
        kept[id].count,
        kept[id].bytes,
        kept[id].unreadable,
        ended_at,
        called_seq=called_seq,
        failed_step=snapshots.get(id, (None, None))[1],
    )


async def _read_unless(connection: TrioConnection, *reads: tuple[str, tuple[object, ...], bool]) -> list[Any]:
    """What statements (name, parameters, whether it is left out) give, in one round trip; nothing of those left out."""
    results: Any = await connection.roundtrip([(SQL[name], params) for name, params, out in reads if not out])
    given = iter(results)
    return [() if out else next(given) for _, _, out in reads]


async def _read_needed(
    connection: TrioConnection, ended: list[int], notified: list[int], ended_rows: Any, found: Any
) -> tuple[Any, Any]:
    """`lock_ended` of ``ended``, and ``found`` with what `read_instances` says of ``told``: they need what was left
    out."""
    if ended:
        ended_rows = await connection.fetch(SQL["lock_ended"], (arrays.ints(ended),))
    if notified:
        others: Any = {row[0]: row for row in await connection.fetch(SQL["read_instances"], (arrays.ints(notified),))}
        found = [others.get(row[0], row) for row in found]
    return ended_rows, found


async def read_signals(connection: TrioConnection, batch: LockedBatch, instances: Sequence[int]) -> None:
    """Add the kept signals of the instances to a batch that was read without."""
    rows = await connection.fetch(SQL["read_signals"], (arrays.ints(instances), signals.READ_COUNT))
    for id, about in (await signals.kept(connection, rows)).items():
        batch.instances[id] = batch.instances[id]._replace(
            signals=about.signals, kept_count=about.count, kept_bytes=about.bytes, unreadable=about.unreadable
        )


def spared(
    writes: Sequence[Statement], locked: Collection[str], *, keyed: bool, waiting: bool
) -> tuple[list[Statement], list[Statement]]:
    """The writes without those to tables that somebody holds (``locked``) which find nothing there, and those of them
    that are to be written later. ``keyed``: an instance has a key; ``waiting``: one may have kept signals."""
    left = {
        SQL["forget_keys"]: "instance_key" in locked and not keyed,
        SQL["forget_signals"]: "buffered_signal" in locked and not waiting,
        SQL["forget_notes"]: "job_note" in locked,
    }
    later = [write for write in writes if write[0] == SQL["forget_notes"] and "job_note" in locked]
    return [write for write in writes if not left.get(write[0])], later


async def instances_locked_elsewhere(connection: TrioConnection, instances: Sequence[int]) -> set[int]:
    """Return those of the instances of which other transactions hold a token now."""
    ids = arrays.ints(sorted(set(instances)))
    roots, branches, there = cast(
        Any,
        await connection.roundtrip(
            [(SQL["free_tokens"], (ids,)), (SQL["free_branches"], (ids,)), (SQL["tokens_there"], (ids, ids))]
        ),
    )
    free = {id for (id,) in (*roots, *branches)}
    return {instance for id, instance in there if id not in free}


async def more_positions(connection: TrioConnection, count: int) -> deque[int]:
    """Return a further block of ascending positions."""
    return deque(cast(int, row[0]) for row in await connection.fetch(SQL["positions"], (count,)))


def token_of(row: Sequence[Any]) -> Token:
    """Return a row of `read_tokens`."""
    (id, instance_id, seq, step, state, entered_at, parent_id, side, attempt, failures, expiries, pending, arrived,
     unfolded, claimed_by, claimed_at, lease_until, timeout_s, priority, queued, entry, waits_for, item,
     held, flow_key, run_queue, backoff_s, backoff_max_s) = row  # fmt: skip
    return Token(
        id=id,
        instance_id=instance_id,
        seq=seq,
        step=step,
        state=TokenState(state),
        entered_at=entered_at,
        parent_id=parent_id,
        side=side,
        attempt=attempt,
        failures=failures,
        expiries=expiries,
        pending=pending,
        arrived=arrived,
        unfolded=unfolded,
        claimed_by=claimed_by,
        claimed_at=claimed_at,
        lease_until=lease_until,
        timeout_s=timeout_s,
        priority=priority,
        queued=queued,
        entry=entry,
        waits_for=waits_for,
        item=item,
        held=held,
        flow_key=flow_key,
        run_queue=run_queue,
        backoff_s=backoff_s,
        backoff_max_s=backoff_max_s,
    )


class NewInstance(NamedTuple):
    """An instance that this transaction creates."""

    id: int
    definition: int
    variables: bytes
    business_key: str | None = None
    instance_key: str | None = None
    parent_id: int | None = None
    started_by: str | None = None
    called_by: CalledBy | None = None


class StoredDefinition(Protocol):
    """What is written of an instance's definition. ``code``: its instances are durable runs, whose jobs wait in the
    queue in every dispatch mode."""

    key: int
    code: bool
    search_attributes: SearchAttributes | None
    maps: bool
    """Whether it has steps with forEach."""

    def job_type_of(self, step: int) -> int | None:
        """Return the id of a step's job type; None for steps that make no job."""
        ...

    def step_id_of(self, step: int) -> str:
        """Return the id of a step."""
        ...

    def task_type_of(self, step: int) -> int:
        """Return the id of a user task's job type."""
        ...


class Change(NamedTuple):
    """One instance's outcome."""

    effects: Effects
    definition: StoredDefinition
    created: NewInstance | None = None
    recalled: Sequence[tuple[int, int]] = ()
    """Instances that failed and are to go on, as a `retry` came back to their call, and its seq."""


async def begin(connection: TrioConnection, positions: int) -> tuple[datetime, str, deque[int]]:
    """Begin a transaction that creates instances: the time, the transaction's id, a block of positions."""
    _, block, about = await connection.roundtrip(
        [(SQL["begin"], ()), (SQL["positions"], (positions,)), (SQL["transaction_id"], ())]
    )
    xid, now = cast(Any, about[0])
    return now, xid, deque(cast(int, row[0]) for row in block)


def statements(
    changes: Sequence[Change],
    now: datetime,
    *,
    audit: bool,
    to_outbox: bool = False,
    extra: Iterable[Statement] = (),
    vault: Vault | None = None,
) -> list[Statement]:
    """The writes of a batch, empty ones left out, in lock order (tokens, ready, timers, history, instances, slots).

    ``to_outbox``: jobs wait for the relay, not in the queue.
    """
    writes: list[Statement] = []

    def add(name: str, rows: Sequence[Sequence[Any]], *kinds: Callable[[Any], str]) -> None:
        if rows:
            columns = zip(*rows, strict=True)
            writes.append((SQL[name], tuple(kind(column) for kind, column in zip(kinds, columns, strict=True))))

    _tokens(changes, add)
    _queue_and_timers(changes, add, to_outbox=to_outbox)
    _history(changes, now, add, audit=audit, vault=vault)
    compensation.write([change.effects for change in changes], add, vault)
    _instances(changes, now, add, vault)
    for_each.write([(change.effects, change.definition.maps) for change in changes], add, vault)
    return [*writes, *_search_attributes(changes), *_calls(changes), *extra, *_slots(changes)]


Add = Callable[..., None]


def _search_attributes(changes: Sequence[Change]) -> list[Statement]:
    """What instances that begin have of them, and what their steps wrote."""
    changed: list[tuple[int, SearchAttributes, list[bytes]]] = []
    for change in changes:
        declared = change.definition.search_attributes
        if declared is not None:
            written = [] if change.created is None else [change.created.variables]
            written += [row.output for row in change.effects.history if row.output is not None]
            changed.append((change.effects.instance.id, declared, written))
    return search_attributes.of_changes(changed)


def _calls(changes: Sequence[Change]) -> list[Statement]:
    created = [change.created for change in changes if change.created is not None]
    watched = [c.effects.instance.id for c in changes if c.effects.ended and c.effects.instance.watched]
    notified = [schedules.notification(watched)] if watched else []
    return notified + calls.notifications(
        [(new.id, new.called_by) for new in created if new.called_by is not None],
        [recalled for change in changes for recalled in change.recalled],
        [c.effects.instance.id for c in changes if c.effects.ended and c.effects.instance.depth],
        [execution for change in changes for execution in change.effects.abandoned],
        [c.effects.instance.id for c in changes if c.effects.ended and c.definition.code],
    )


def _slots(changes: Sequence[Change]) -> list[Statement]:
    return flow.give_back([slots for change in changes for slots in change.effects.released])


def _job_type(change: Change, token: Token) -> int | None:
    """Only tokens with an open job have one."""
    return change.definition.job_type_of(token.step) if token.state in JOB_STATES else None


def _is_watched(instance: Instance) -> bool:
    return instance.depth > 0 or instance.watched


def _bounded(deltas: int) -> int:
    return min(deltas, UNFOLDED_MAX)


def _tokens(changes: Sequence[Change], add: Add) -> None:
    ints, texts, times = arrays.ints, arrays.texts, arrays.times
    updated = [
        (t.id, t.seq, t.step, t.state, _job_type(change, t), t.entered_at, t.parent_id, t.attempt, t.failures,
         t.expiries, t.pending, t.arrived, _bounded(t.unfolded), t.claimed_by, t.claimed_at,
         t.lease_until, t.timeout_s, t.queued, t.entry, t.waits_for, t.item,
         t.held, t.priority, t.flow_key, t.backoff_s, t.backoff_max_s)
        for change in changes for t in change.effects.updated
    ]  # fmt: skip
    add("update_tokens", sorted(updated), ints, ints, ints, ints, ints, times, ints, ints, ints, ints, ints, ints, ints,
        texts, times, times, arrays.floats, ints, ints, texts, ints,
        ints, ints, texts, arrays.floats, arrays.floats)  # fmt: skip
    inserted = [
        (t.id, t.instance_id, t.seq, t.step, t.state, _job_type(change, t), t.entered_at, t.parent_id, t.side,
         t.attempt, t.pending, t.arrived, _bounded(t.unfolded), t.claimed_by, t.claimed_at,
         t.lease_until, t.timeout_s, t.entry, t.is_root and _is_watched(change.effects.instance), t.item,
         t.priority, t.flow_key, t.backoff_s, t.backoff_max_s)
        for change in changes for t in change.effects.inserted
    ]  # fmt: skip
    add("insert_tokens", inserted, ints, ints, ints, ints, ints, ints, times, ints, arrays.bools, ints, ints, ints,
        ints, texts, times, times, arrays.floats, ints, arrays.bools, ints,
        ints, texts, arrays.floats, arrays.floats)  # fmt: skip
    add("delete_tokens", [(id,) for change in changes for id in change.effects.deleted], ints)


def _queue_and_timers(changes: Sequence[Change], add: Add, *, to_outbox: bool) -> None:
    ints = arrays.ints
    gone: list[tuple[int, int, str | None, int]] = []
    queued: list[tuple[int, int, str | None, int, int]] = []
    outgoing: list[tuple[int, int, int, int, int]] = []
    for change in changes:
        out = change.effects
        steps = {(row.token_id, row.seq): row.step for row in out.history}
        for job in out.dequeued:
            job_type = change.definition.job_type_of(steps[job.token_id, job.seq])
            assert job_type is not None
            gone.append((job_type, job.priority, job.flow_key, job.place))
        placed = {token.id: token for token in (*out.inserted, *out.updated)}
        for job in out.queued:
            token = placed[job.token_id]
            job_type = change.definition.job_type_of(token.step)
            assert job_type is not None
            if to_outbox and not change.definition.code and job.flow_key is None:
                outgoing.append((token.instance_id, token.id, token.seq, token.attempt + 1, job_type))
            else:
                queued.append((job_type, job.priority, job.flow_key, job.place, job.token_id))
    plain = [(job_type, priority, place) for job_type, priority, key, place in gone if key is None]
    add("delete_ready", sorted(plain), ints, ints, ints)
    add("insert_ready", [(*row[:2], *row[3:]) for row in queued if row[2] is None], ints, ints, ints, ints)
    keyed = [row for row in gone if row[2] is not None]
    add("delete_ready_flow", keyed, ints, ints, arrays.texts, ints)
    add("insert_ready_flow", [row for row in queued if row[2] is not None], ints, ints, arrays.texts, ints, ints)
    add("insert_outbox", outgoing, ints, ints, ints, ints, ints)
    parked = [(change.effects.instance.id, id) for change in changes for id in change.effects.parked]
    add("insert_parked", parked, ints, ints)
    unparked = [(change.effects.instance.id, id) for change in changes for id in change.effects.unparked]
    add("delete_parked", unparked, ints, ints)
    add("delete_timers", [pair for change in changes for pair in change.effects.disarmed], ints, ints)
    fired = [(t.token_id, t.seq, t.index) for change in changes for t in change.effects.fired]
    add("delete_fired", fired, ints, ints, ints)
    armed = [
        (t.fire_at, t.token_id, t.seq, change.effects.instance.id, t.index)
        for change in changes for t in change.effects.armed
    ]  # fmt: skip
    add("insert_timers", armed, arrays.times, ints, ints, ints, ints)
    _inbox(changes, add)


def _inbox(changes: Sequence[Change], add: Add) -> None:
    ints = arrays.ints
    closed = [(c.definition.task_type_of(task.step), task.seq) for c in changes for task in c.effects.closed]
    add("close_tasks", sorted(closed), ints, ints)
    opened = [
        (c.definition.task_type_of(task.step), task.seq, task.token_id, c.effects.instance.id, c.definition.key,
         task.step, task.entered_at)
        for c in changes for task in c.effects.opened
    ]  # fmt: skip
    add("open_tasks", opened, ints, ints, ints, ints, ints, ints, arrays.times)


def _history(changes: Sequence[Change], now: datetime, add: Add, *, audit: bool, vault: Vault | None) -> None:
    ints, texts, times = arrays.ints, arrays.texts, arrays.times
    rows = [
        (change.effects.instance.id, h.position, h.token_id, h.seq, h.started_at, h.ended_at, h.claimed_at, h.attempt,
         h.step, h.kind, h.worker, h.reason, h.output, h.code, h.item, h.items)
        for change in changes for h in change.effects.history
    ]  # fmt: skip
    add("insert_history", rows, ints, ints, ints, ints, times, times, times, ints, ints, ints, texts, texts,
        partial(arrays.sealed, vault=vault), texts, ints, arrays.documents)  # fmt: skip
    if audit:
        records = [
            (now, change.effects.instance.id, a.token_id, a.step, a.kind, a.actor, a.detail)
            for change in changes for a in change.effects.audit
        ]  # fmt: skip
        add("insert_audit", records, times, ints, ints, ints, texts, texts, texts)


def _instances(changes: Sequence[Change], now: datetime, add: Add, vault: Vault | None) -> None:
    ints, texts = arrays.ints, arrays.texts
    created = [
        (n.id, now, n.definition, n.variables, n.business_key, n.instance_key, n.parent_id, n.started_by,
         c.effects.instance.priority, c.effects.instance.flow_key)
        for c in changes if (n := c.created) is not None
    ]  # fmt: skip
    variables = partial(arrays.sealed, vault=vault)
    add("insert_instances", created, ints, arrays.times, ints, variables, texts, texts, ints, texts, ints, texts)
    turned = [c.effects.instance for c in changes if c.effects.turned and c.created is None]
    add("set_turns", [(i.id, i.priority, i.flow_key) for i in turned], ints, ints, texts)
    consumed = [(id,) for change in changes for id in change.effects.consumed_signals]
    add("delete_signals", consumed, ints)
    reopened = [(c.effects.instance.id,) for c in changes if c.effects.reopened]
    add("delete_abnormal_ends", reopened, ints)
    add("reopen_instances", reopened, ints)
    ended = [change.effects for change in changes if change.effects.ended]
    add(
        "end_instances",
        [(i.id, i.status, i.failure, now, i.failure_code, i.result) for i in (out.instance for out in ended)],
        ints,
        ints,
        texts,
        arrays.times,
        texts,
        variables,
    )
    abnormal = [
        (o.instance.status, o.instance.id, _failed_job_type(change),
         None if o.snapshot is None else msgspec.json.encode(o.snapshot), *_failure(change))
        for change in changes if (o := change.effects).ended and o.instance.status is not InstanceStatus.COMPLETED
    ]  # fmt: skip
    add("insert_abnormal_ends", abnormal, ints, ints, ints, arrays.documents, ints, texts, texts)
    add("forget_keys", [(o.instance.id,) for o in ended], ints)
    # a failed instance may be retried: its signals wait with it
    forgotten = [(o.instance.id,) for o in ended if o.instance.status is not InstanceStatus.FAILED]
    add("forget_signals", forgotten, ints)
    add("forget_notes", [(id,) for change in changes for id in change.effects.deleted], ints)
    add("forget_blocked", [(c.effects.instance.id,) for c in changes if c.effects.ended and c.definition.code], ints)


def _failure(change: Change) -> tuple[int | None, str | None, str | None]:
    """By what a failure is found: definition, step, reason."""
    instance = change.effects.instance
    if instance.status is not InstanceStatus.FAILED:
        return None, None, None
    undone = change.effects.ended_as
    failed = [row.step for row in change.effects.history if row.kind is HistoryKind.FAILED]
    failed += [token.step for token in change.effects.snapshot or () if token.leaving]
    if undone is not None and undone.step is not None:
        failed = [undone.step]
    step = change.definition.step_id_of(failed[-1]) if failed else None
    return change.definition.key, step, failure_text(instance.failure, instance.failure_code)


def _failed_job_type(change: Change) -> int | None:
    """The type of the job that failed the instance, if one did."""
    undone = change.effects.ended_as
    if undone is not None:
        return change.definition.job_type_of(undone.step) if undone.job and undone.step is not None else None
    failed = [row for row in change.effects.history if row.kind is HistoryKind.FAILED]
    return change.definition.job_type_of(failed[-1].step) if failed and failed[-1].attempt > 0 else None
