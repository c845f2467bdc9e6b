"""Instances that go on in another version: what is read of them, and what is written. `core.advance.migration`
decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from penstock.core.advance.effect import Timer
from penstock.core.rules.state import InstanceStatus, Token
from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement
from penstock.store.rows.full_path import token_of
from penstock.store.rows.instances import one_snapshot


class MigrationSnapshot(NamedTuple):
    """An instance as it stands, or as its failure left it. Without a lock."""

    id: int
    status: InstanceStatus
    definition: int
    flow_key: str | None
    tokens: Sequence[Token] | None
    """None: its failure left none."""
    timers: Sequence[Timer]
    signals: Sequence[int]


class MovedToken(NamedTuple):
    """A token and what its step is in the new version."""

    token: Token
    step: int
    job_type: int | None
    timeout_s: float | None


async def read_snapshots(connection: TrioConnection, instances: Sequence[int]) -> list[MigrationSnapshot]:
    """What `core.advance.migration` is to decide on; instances that are not there are left out."""
    ids = arrays.ints(instances)
    async with one_snapshot(connection):
        found, token_rows, failures, signals = cast(
            Any,
            await connection.roundtrip(
                [
                    (SQL["read_instances"], (ids,)),
                    (SQL["read_tokens"], (ids,)),
                    (SQL["failures_of"], (ids,)),
                    (SQL["signal_steps"], (ids,)),
                ]
            ),
        )
        tokens: dict[int, list[Token]] = {}
        for token in map(token_of, token_rows):
            tokens.setdefault(token.instance_id, []).append(token)
        timers = await timers_of(connection, [token for each in tokens.values() for token in each])
    failed = {id: None if snapshot is None else _tokens(snapshot) for id, snapshot, _ in failures}
    kept: dict[int, list[int]] = {}
    for id, step in signals:
        kept.setdefault(id, []).append(step)
    return [
        MigrationSnapshot(
            id,
            InstanceStatus(status),
            definition,
            flow_key,
            failed.get(id) if status == InstanceStatus.FAILED else tokens.get(id, []),
            timers,
            kept.get(id, []),
        )
        for id, definition, status, *_, flow_key in found
    ]


async def flow_key_of(connection: TrioConnection, instance: int) -> str | None:
    """Among which key the jobs of an instance wait."""
    rows = await connection.fetch(SQL["flow_key_of"], (instance,))
    return cast("str | None", rows[0][0]) if rows else None


async def timers_of(connection: TrioConnection, tokens: Iterable[Token]) -> list[Timer]:
    """Return the boundary timers of tokens."""
    ids = arrays.ints(token.id for token in tokens)
    return [Timer(*cast(Any, row)) for row in await connection.fetch(SQL["boundary_timers"], (ids,))]


async def signal_steps(connection: TrioConnection, instance: int) -> list[int]:
    """For which steps of an instance signals are kept."""
    rows = await connection.fetch(SQL["signal_steps"], (arrays.ints([instance]),))
    return [cast(int, row[1]) for row in rows]


def _tokens(snapshot: str) -> list[Token]:
    return msgspec.json.decode(snapshot, type=list[Token])


def move_tokens(moved: Sequence[MovedToken]) -> list[Statement]:
    """Return the steps of all tokens of an open instance."""
    ints = arrays.ints
    columns = (
        ints(each.token.id for each in moved),
        ints(each.step for each in moved),
        ints(each.job_type for each in moved),
        arrays.floats([each.timeout_s for each in moved]),
    )
    return [(SQL["migrate_tokens"], columns)]


class WaitingJob(NamedTuple):
    """A job that waits: the type under which it does, the one that it has now, and where it waits then."""

    token: Token
    old_type: int
    job_type: int
    flow_key: str | None
    retyped: bool


def requeue(waiting: Sequence[WaitingJob], *, to_outbox: bool) -> list[Statement]:
    """Jobs that wait get places of their own in their queues; in the outbox those that have another type now."""
    ints, texts = arrays.ints, arrays.texts
    writes: list[Statement] = []
    plain = sorted((w.old_type, w.token.priority, w.token.place) for w in waiting if w.token.flow_key is None)
    if plain and not to_outbox:
        writes.append((SQL["delete_ready"], tuple(ints(column) for column in zip(*plain, strict=True))))
    keyed = [w for w in waiting if w.token.flow_key is not None]
    if keyed:
        types, priorities = ints(w.old_type for w in keyed), ints(w.token.priority for w in keyed)
        places = texts([w.token.flow_key for w in keyed]), ints(w.token.place for w in keyed)
        writes.append((SQL["delete_ready_flow"], (types, priorities, *places)))
    void = [w.token.id for w in waiting if to_outbox and w.retyped and w.token.flow_key is None]
    if void:
        writes.append((SQL["outdate_dispatch"], (ints(void),)))
    outgoing = [
        (w.token.instance_id, w.token.id, w.token.seq, w.token.attempt + 1 + (w.token.id in void), w.job_type)
        for w in waiting if to_outbox and w.retyped and w.flow_key is None
    ]  # fmt: skip
    if outgoing:
        writes.append((SQL["insert_outbox"], tuple(ints(column) for column in zip(*outgoing, strict=True))))
    queued = [w for w in waiting if w.flow_key is not None or not to_outbox]
    if queued:
        columns = ints(w.token.id for w in queued), arrays.bools([w.retyped for w in queued])
        writes.append((SQL["requeue_migrated"], (*columns, texts([w.flow_key for w in queued]))))
    return writes


def replace_timers(instance: int, tokens: Iterable[Token], timers: Sequence[Timer]) -> list[Statement]:
    """Return all boundary timers of the tokens."""
    ints = arrays.ints
    writes: list[Statement] = [(SQL["delete_boundary_timers"], (ints(token.id for token in tokens),))]
    if timers:
        keys = [(timer.token_id, timer.seq, instance, timer.index) for timer in timers]
        columns = (ints(column) for column in zip(*keys, strict=True))
        writes.append((SQL["insert_timers"], (arrays.times([timer.fire_at for timer in timers]), *columns)))
    return writes


def move_tasks(tasks: Sequence[tuple[int, int, int, int]], definition: int) -> list[Statement]:
    """User tasks in the inbox: for whom it was, seq, for whom it is, step."""
    if not tasks:
        return []
    columns = tuple(arrays.ints(column) for column in zip(*tasks, strict=True))
    return [(SQL["migrate_tasks"], (*columns, definition))]


def move_failure(instance: int, definition: int, step: str | None, tokens: Sequence[Token]) -> Statement:
    """What a failure closed."""
    return SQL["migrate_failure"], (instance, definition, step, msgspec.json.encode(list(tokens)).decode())


def note(
    instance: int, before: int, definition: int, numbers: Sequence[int], signals: Mapping[int, int]
) -> list[Statement]:
    """Which version it has, and had; ``numbers`` of its steps, by those of before; and for which its kept ``signals``
    are."""
    steps = arrays.ints(numbers)
    writes: list[Statement] = [
        (SQL["migrate_instance"], (instance, definition)),
        (SQL["note_first_version"], (instance, before)),
        (SQL["renumber_versions"], (instance, steps)),
        (SQL["note_version"], (instance, definition)),
        (SQL["migrate_undoing"], (instance, steps)),
    ]
    if signals:
        writes.append((SQL["migrate_signals"], (instance, arrays.ints(signals), arrays.ints(signals.values()))))
    return writes


async def completed_steps(connection: TrioConnection, instance: int, steps: Sequence[int]) -> list[int]:
    """Which of the steps an instance has completed."""
    rows = await connection.fetch(SQL["completed_steps"], (instance, arrays.ints(steps))) if steps else []
    return [cast(int, row[0]) for row in rows]
