"""User tasks that are open, as people look for them, and who has claimed them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL
from penstock.store.db.vault import offloaded
from penstock.store.rows.variables import opened

SCAN_ROWS = 1_000
"""Read at once of a list in which few match: some milliseconds."""


class TaskKey(NamedTuple):
    """What names an open execution of a user task."""

    job_type: int
    seq: int


class OpenTask(NamedTuple):
    """An open execution of a user task. ``timer_at``: its next boundary timer."""

    job_type: int
    seq: int
    token: int
    instance: int
    definition: int
    step: int
    entered_at: datetime
    assignee: str | None
    business_key: str | None
    timer_at: datetime | None


class TaskItem(NamedTuple):
    """The item of a forEach that a task is about. ``variables``: its own, where they were read."""

    item: int
    variables: str | None


class Unlisted(NamedTuple):
    """A token that waits. ``seq`` None: not any more. It may be listed, or be no user task's."""

    instance: int
    token: int
    seq: int | None
    definition: int
    step: int
    entered_at: datetime


class Listing(NamedTuple):
    """What a look found. ``looked`` rows were read, the last of them is ``last``."""

    read_count: int
    last: int
    found: list[TaskKey]


async def types(connection: TrioConnection) -> list[int]:
    """The job types that have open tasks; at most 1,000."""
    return [cast(int, row[0]) for row in await connection.fetch(SQL["task_types"])]


async def count(connection: TrioConnection, most: int) -> int:
    """Return how many there are, to ``most``."""
    return cast(int, (await connection.fetch(SQL["count_tasks"], (most,)))[0][0])


async def scan(
    connection: TrioConnection, job_types: Sequence[int], after: int, definitions: Sequence[int] | None, unclaimed: bool
) -> Listing:
    """The next `SCAN_ROWS` of these job types, oldest first, and those of them that are wanted."""
    wanted = None if definitions is None else arrays.ints(definitions)
    params = (arrays.ints(job_types), after, wanted, unclaimed, SCAN_ROWS)
    read_count, last, found = cast(Any, (await connection.fetch(SQL["list_tasks"], params))[0])
    return Listing(read_count, last or after, [TaskKey(*key) for key in found])


async def claimed(
    connection: TrioConnection,
    assignee: str,
    after: int,
    job_types: Sequence[int] | None,
    definitions: Sequence[int] | None,
    limit: int,
) -> list[TaskKey]:
    """Those that somebody has claimed, oldest first."""
    params = (
        assignee,
        after,
        None if job_types is None else arrays.ints(job_types),
        None if definitions is None else arrays.ints(definitions),
        limit,
    )
    return [TaskKey(*cast(Any, row)) for row in await connection.fetch(SQL["list_claimed_tasks"], params)]


async def read(connection: TrioConnection, keys: Sequence[TaskKey]) -> list[OpenTask]:
    """Those that are still open, oldest first."""
    params = (arrays.ints(key.job_type for key in keys), arrays.ints(key.seq for key in keys))
    return [OpenTask(*cast(Any, row)) for row in await connection.fetch(SQL["read_tasks"], params)]


async def items(connection: TrioConnection, tokens: Sequence[int], max_bytes: int) -> dict[int, TaskItem]:
    """Which items tokens are for, and their variables, as long as they have no more than ``max_bytes`` together."""
    rows = cast(Any, await connection.fetch(SQL["task_items"], (arrays.ints(tokens), max_bytes)))
    vault = connection.vault
    if vault is None:
        return {token: TaskItem(item, text) for token, _, item, text in rows}
    return await offloaded(
        sum(len(text or "") for *_, text in rows),
        lambda: {
            token: TaskItem(item, None if text is None else opened(vault, text, instance))
            for token, instance, item, text in rows
        },
    )


async def find(
    connection: TrioConnection, instance: int, step: int, execution: tuple[int, int] | None = None
) -> int | None:
    """Return the ``seq`` of the oldest open execution of a step; ``execution``: of that token and seq, if it is
    open."""
    token, seq = (None, None) if execution is None else execution
    rows = await connection.fetch(SQL["find_task"], (instance, step, token, seq))
    return cast(int, rows[0][0]) if rows else None


async def of_instance(
    connection: TrioConnection,
    instance: int,
    steps: Sequence[int],
    execution: tuple[int, int] | None,
    after: int,
    limit: int,
) -> list[tuple[int, int]]:
    """Step and ``seq`` of open executions of these steps, oldest first; ``execution``: of that token and seq alone."""
    token, seq = (None, None) if execution is None else execution
    params = (instance, arrays.ints(steps), after, token, seq, limit)
    return [cast("tuple[int, int]", tuple(row)) for row in await connection.fetch(SQL["tasks_of_instance"], params)]


async def claim(connection: TrioConnection, key: TaskKey, assignee: str) -> bool:
    """False when somebody else has it, or it is closed."""
    return bool(await connection.fetch(SQL["claim_task"], (*key, assignee)))


async def assignee(connection: TrioConnection, key: TaskKey) -> str | None:
    """Who has claimed a task."""
    rows = await connection.fetch(SQL["task_assignee"], key)
    return cast("str | None", rows[0][0]) if rows else None


async def release(connection: TrioConnection, key: TaskKey, assignee: str | None) -> bool:
    """``assignee`` None: whoever has it. False when somebody else has it, or it is closed."""
    return bool(await connection.fetch(SQL["release_task"], (*key, assignee)))


async def is_filled(connection: TrioConnection) -> tuple[bool, bool]:
    """Return whether all open tasks are listed; whether an engine lives that knows nothing of the list."""
    return cast("tuple[bool, bool]", (await connection.fetch(SQL["inbox_is_filled"]))[0])


async def unlisted(connection: TrioConnection, after: tuple[int, int], limit: int) -> list[Unlisted]:
    """Tokens that wait, in order of (instance, token)."""
    return [Unlisted(*cast(Any, row)) for row in await connection.fetch(SQL["parked_unlisted"], (*after, limit))]


async def fill(connection: TrioConnection, rows: Sequence[tuple[int, Unlisted]]) -> int:
    """List tasks, each with its job type, unless others hold their tokens just now; how many."""
    if not rows:
        return 0
    ints = arrays.ints
    params = (
        ints(job_type for job_type, _ in rows),
        ints(row.seq for _, row in rows),
        ints(row.token for _, row in rows),
        ints(row.instance for _, row in rows),
        ints(row.definition for _, row in rows),
        ints(row.step for _, row in rows),
        arrays.times(row.entered_at for _, row in rows),
    )
    return cast(int, (await connection.fetch(SQL["list_open"], params))[0][0])


async def record_filled(connection: TrioConnection) -> None:
    """All tasks are listed from now on."""
    await connection.fetch(SQL["note_inbox_filled"])
