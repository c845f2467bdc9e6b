"""Definition versions and job types."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

import msgspec

from penstock.store import arrays
from penstock.store.connection import TrioConnection
from penstock.store.statements import SQL


class DefinitionRow(NamedTuple):
    """A stored version. ``key`` is what instances refer to. ``code``: generated for a workflow written as code."""

    key: int
    id: str
    version: int
    name: str
    description: str | None
    content: str
    uploaded_at: datetime
    code: bool = False


class OtherKind(Exception):
    """The id is that of definitions of the other kind: of graphs, or of code."""


class ListedDefinition(NamedTuple):
    """What a list shows of the latest version."""

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
) -> tuple[DefinitionRow, bool]:
    """Store a definition unless some version of its id has the same content; also, whether it is new. Raises OtherKind.

    Safe under concurrent uploads of the same id: they are served one after the other. Begins a transaction of its own.
    """
    async with connection.transaction():
        await connection.roundtrip([(SQL["patient_locks"], ()), (SQL["lock_definition"], (id,))])
        same = await connection.fetch(SQL["same_definition"], (id, content))
        found = same or await connection.fetch(SQL["latest_definition"], (id,))
        newest = DefinitionRow(*cast(Any, found[0])) if found else None
        if newest is not None and newest.code is not code:
            raise OtherKind
        if same and newest is not None:
            return newest, False
        version = 1 if newest is None else newest.version + 1
        row = (await connection.fetch(SQL["insert_definition"], (id, version, name, description, content, code)))[0]
        key, uploaded_at = cast(Any, row)
        if audit:
            await connection.fetch(SQL["audit_upload"], (f"{id} version {version}", actor))
        return DefinitionRow(key, id, version, name, description, content, uploaded_at, code), True


async def find(connection: TrioConnection, id: str, version: int) -> DefinitionRow | None:
    """A version, 0 for the latest."""
    if version:
        rows = await connection.fetch(SQL["definition_version"], (id, version))
    else:
        rows = await connection.fetch(SQL["latest_definition"], (id,))
    return DefinitionRow(*cast(Any, rows[0])) if rows else None


async def same(connection: TrioConnection, id: str, content: str) -> int | None:
    """The newest version of an id that has this content."""
    rows = await connection.fetch(SQL["same_definition"], (id, content))
    return DefinitionRow(*cast(Any, rows[0])).version if rows else None


async def by_key(connection: TrioConnection, key: int) -> DefinitionRow:
    """The version that an instance refers to; it exists."""
    rows = await connection.fetch(SQL["definition_by_key"], (key,))
    return DefinitionRow(*cast(Any, rows[0]))


async def any_code(connection: TrioConnection) -> bool:
    """Whether there is a workflow written as code."""
    return bool((await connection.fetch(SQL["any_code"]))[0][0])


async def keys_of(connection: TrioConnection, id: str, version: int | None = None) -> list[int]:
    """The keys of all versions of an id, or of one of them."""
    return [cast(int, row[0]) for row in await connection.fetch(SQL["keys_of_definition"], (id, version))]


async def page(
    connection: TrioConnection, keyword: str | None, limit: int, offset: int = 0, after: str = ""
) -> tuple[list[ListedDefinition], int]:
    """A page of latest versions with ids beyond ``after`` in order of id, and how many there are in all. ``keyword``
    matches id or name, any case."""
    pattern = None if not keyword else "%" + keyword.translate(_LIKE) + "%"
    rows, count = await connection.roundtrip(
        [(SQL["list_definitions"], (pattern, limit, offset, after)), (SQL["count_definitions"], (pattern,))]
    )
    return [ListedDefinition(*cast(Any, row[:5])) for row in rows], cast(int, count[0][0])


_LIKE = str.maketrans({"\\": "\\\\", "%": "\\%", "_": "\\_"})


async def job_type_ids(connection: TrioConnection, names: Sequence[str]) -> dict[str, int]:
    """The ids of job types that exist."""
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
    """Whether a definition that is not code may call this one; some that don't are taken for such."""
    return bool((await connection.fetch(SQL["is_mentioned"], (msgspec.json.encode(id).decode(),)))[0][0])


async def latest_keys(connection: TrioConnection, ids: Sequence[str]) -> dict[str, int]:
    """The key of the latest version of each id; unknown ids are left out."""
    rows = cast(Any, await connection.fetch(SQL["latest_keys"], (arrays.texts(ids),)))
    return dict(rows)
