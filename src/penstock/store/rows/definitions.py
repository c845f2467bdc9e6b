"""Definition versions and job types."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

import msgspec

from penstock.errors import Conflict
from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL
from penstock.store.rows import audit as audit_store
from penstock.store.rows.engines import require_version

ACTIVE_VERSION: Final = 21
"""Of the schema: older engines use the newest version, whatever is active."""


class DefinitionRow(NamedTuple):
    """A stored version. ``key`` is what instances refer to. ``code``: generated for a durable workflow."""

    key: int
    id: str
    version: int
    name: str
    description: str | None
    content: str
    uploaded_at: datetime
    code: bool = False


class Saved(NamedTuple):
    """What an upload has stored, or found. ``active``: new starts use it."""

    row: DefinitionRow
    new: bool
    active: bool


class OtherKind(Exception):
    """The id is that of definitions of the other kind: of graphs, or of code."""


class ListedDefinition(NamedTuple):
    """What a list shows of the active version."""

    id: str
    version: int
    name: str
    uploaded_at: datetime
    description: str | None


async def save(
    connection: TrioConnection,
    *,
    id: str,
    name: str,
    description: str | None,
    content: str,
    audit: bool,
    actor: str | None = None,
    code: bool = False,
) -> Saved:
    """Store a definition unless some version of its id has the same content, and let new starts use it; also, whether
    it is new, and whether they do: not of durable workflows, whose executors say which version they start, nor
    an older version while an engine lives that would not know. Raises OtherKind.

    Safe under concurrent uploads of the same id: they are served one after the other. Begins a transaction of its own.
    """
    async with connection.transaction():
        await connection.roundtrip([(SQL["patient_locks"], ()), (SQL["lock_definition"], (id,))])
        same = await connection.fetch(SQL["same_definition"], (id, content))
        found = await connection.fetch(SQL["newest_definition"], (id,))
        newest = DefinitionRow(*cast(Any, found[0])) if found else None
        deleted = await is_deleted(connection, id)
        if newest is not None and newest.code is not code and not deleted:
            raise OtherKind
        if same:
            known = DefinitionRow(*cast(Any, same[0]))
            if deleted:
                await connection.fetch(SQL["restore_definition"], (id,))
            active = not code and await _activate_if_known(connection, known, actor, audit=audit)
            return Saved(known, False, active)
        version = 1 if newest is None else newest.version + 1
        row = (await connection.fetch(SQL["insert_definition"], (id, version, name, description, content, code)))[0]
        key, uploaded_at = cast(Any, row)
        await connection.fetch(SQL["activate"], (id, key))
        if audit:
            await connection.fetch(SQL["audit_definition"], ("DEFINITION_UPLOADED", f"{id} version {version}", actor))
        return Saved(DefinitionRow(key, id, version, name, description, content, uploaded_at, code), True, not code)


async def is_deleted(connection: TrioConnection, id: str) -> bool:
    """Return whether an id was deleted, and not uploaded since."""
    return bool((await connection.fetch(SQL["is_deleted"], (id,)))[0][0])


async def delete(connection: TrioConnection, id: str, actor: str | None, *, audit: bool) -> bool | None:
    """Let no id find a durable workflow any more, until it is registered again; instances that have ended stay.
    False: one of its runs is open; None: there is none. Safe under concurrent registrations. Raises OtherKind for
    another definition, and Conflict while an engine lives that would not know."""
    async with connection.transaction():
        await connection.roundtrip([(SQL["patient_locks"], ()), (SQL["lock_definition"], (id,))])
        found = await connection.fetch(SQL["newest_definition"], (id,))
        if not found or await is_deleted(connection, id):
            return None
        newest = DefinitionRow(*cast(Any, found[0]))
        if not newest.code:
            raise OtherKind
        await require_version(connection, ACTIVE_VERSION)
        if await has_open_instances(connection, id):
            return False
        await connection.fetch(SQL["delete_definition"], (id,))
        if audit:
            await connection.fetch(SQL["audit_definition"], ("DEFINITION_DELETED", id, actor))
    return True


async def has_open_instances(connection: TrioConnection, id: str, version: int | None = None) -> bool:
    """Return whether an instance of an id has not ended, of any version or of one."""
    return bool((await connection.fetch(SQL["has_open_instances"], (id, version)))[0][0])


async def activate(
    connection: TrioConnection, id: str, version: int, actor: str | None, *, audit: bool
) -> DefinitionRow | None:
    """Let new starts of an id use this version; None when there is no such version. Safe under concurrent uploads.
    Raises OtherKind for a durable workflow, and Conflict while an engine lives that would not know."""
    async with connection.transaction():
        await connection.roundtrip([(SQL["patient_locks"], ()), (SQL["lock_definition"], (id,))])
        row = await find(connection, id, version)
        if row is None:
            return None
        if row.code:
            raise OtherKind
        await _activate(connection, row, actor, audit=audit)
    return row


async def _activate_if_known(connection: TrioConnection, row: DefinitionRow, actor: str | None, *, audit: bool) -> bool:
    try:
        await _activate(connection, row, actor, audit=audit)
    except Conflict:
        return False
    return True


async def _activate(connection: TrioConnection, row: DefinitionRow, actor: str | None, *, audit: bool) -> None:
    """Under the lock of the id."""
    active = await find(connection, row.id, 0)
    if active is not None and active.key == row.key:
        return
    await require_version(connection, ACTIVE_VERSION)
    await connection.fetch(SQL["activate"], (row.id, row.key))
    if audit:
        about = f"{row.id} version {row.version}"
        old = None if active is None else f"version {active.version}"
        await connection.fetch(*audit_store.add(None, None, "DEFINITION_ACTIVATED", actor, about, old))


async def find(connection: TrioConnection, id: str, version: int) -> DefinitionRow | None:
    """Return a version, 0 for the active one."""
    if version:
        rows = await connection.fetch(SQL["definition_version"], (id, version))
    else:
        rows = await connection.fetch(SQL["active_definition"], (id,))
    return DefinitionRow(*cast(Any, rows[0])) if rows else None


async def newest(connection: TrioConnection, id: str) -> int | None:
    """The newest version of an id, whether or not it is the active one."""
    rows = await connection.fetch(SQL["newest_definition"], (id,))
    return DefinitionRow(*cast(Any, rows[0])).version if rows else None


async def same(connection: TrioConnection, id: str, content: str) -> int | None:
    """The newest version of a durable workflow that has this content, unless it was deleted."""
    rows = await connection.fetch(SQL["live_version"], (id, content))
    return cast(int, rows[0][0]) if rows else None


async def count_code(connection: TrioConnection, app: str, most: int) -> int:
    """Return how many versions of durable workflows an App has, counted so far."""
    return cast(int, (await connection.fetch(SQL["count_code"], (app, most)))[0][0])


async def by_key(connection: TrioConnection, key: int) -> DefinitionRow:
    """Return the version that an instance refers to; it exists."""
    rows = await connection.fetch(SQL["definition_by_key"], (key,))
    return DefinitionRow(*cast(Any, rows[0]))


async def any_code(connection: TrioConnection) -> bool:
    """Return whether there is a durable workflow."""
    return bool((await connection.fetch(SQL["any_code"]))[0][0])


async def keys_of(connection: TrioConnection, id: str, version: int | None = None) -> list[int]:
    """Return the keys of all versions of an id, or of one of them."""
    return [cast(int, row[0]) for row in await connection.fetch(SQL["keys_of_definition"], (id, version))]


async def keys_of_code(connection: TrioConnection) -> list[int]:
    """Return the keys of all versions of durable workflows."""
    return [cast(int, row[0]) for row in await connection.fetch(SQL["keys_of_code"])]


async def steps_of(connection: TrioConnection, id: str, version: int | None, step: str) -> dict[int, int]:
    """The number that a step has in the versions that have it, by their keys; of all versions of an id or of one."""
    return dict(cast(Any, await connection.fetch(SQL["steps_of_definition"], (id, version, step))))


async def page(
    connection: TrioConnection, keyword: str | None, limit: int, offset: int = 0, after: str = ""
) -> tuple[list[ListedDefinition], int]:
    """A page of active versions with ids beyond ``after`` in order of id, and how many there are in all. ``keyword``
    matches id or name, any case."""
    pattern = None if not keyword else "%" + keyword.translate(_LIKE) + "%"
    rows, count = await connection.roundtrip(
        [(SQL["list_definitions"], (pattern, limit, offset, after)), (SQL["count_definitions"], (pattern,))]
    )
    return [ListedDefinition(*cast(Any, row[:5])) for row in rows], cast(int, count[0][0])


_LIKE = str.maketrans({"\\": "\\\\", "%": "\\%", "_": "\\_"})


async def job_type_ids(connection: TrioConnection, names: Sequence[str]) -> dict[str, int]:
    """Return the ids of job types that exist."""
    rows = cast(Any, await connection.fetch(SQL["job_types"], (arrays.texts(names),)))
    return dict(rows)


async def ensure_job_types(connection: TrioConnection, names: Sequence[str]) -> dict[str, int]:
    """The ids of job types, made where they are new. Reads first: the insert would burn ids."""
    wanted = sorted(set(names))
    known = await job_type_ids(connection, wanted)
    missing = [name for name in wanted if name not in known]
    if missing:
        await connection.fetch(SQL["add_job_types"], (arrays.texts(missing),))
        known = await job_type_ids(connection, wanted)
    return known


async def is_mentioned(connection: TrioConnection, id: str) -> bool:
    """Return whether a definition that is not code may call this one; some that don't are taken for such."""
    return bool((await connection.fetch(SQL["is_mentioned"], (msgspec.json.encode(id).decode(),)))[0][0])


async def active_keys(connection: TrioConnection, ids: Sequence[str]) -> dict[str, int]:
    """Return the key of the version of each id that new starts use; unknown ids are left out."""
    rows = cast(Any, await connection.fetch(SQL["active_keys"], (arrays.texts(ids),)))
    return dict(rows)
