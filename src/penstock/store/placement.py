"""In which schema of a database Penstock's tables are. It goes into the conninfo, so that every connection has it.

An installation that is there goes on where it is: wherever the connection's own ``search_path`` finds it, else in
`NEW_SCHEMA`. Whoever names a schema, or is given the new one, also has advisory locks of its own, so that two
installations in one database don't take each other's engines for theirs. Hints (NOTIFY) reach both, and do no harm.
"""

from __future__ import annotations

import zlib
from typing import Final, cast

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.store.connection import TrioConnection
from penstock.store.database import with_defaults
from penstock.store.statements import SQL

NEW_SCHEMA: Final = "penstock"
"""Of a program's tables in a database that has none: `instance` and `token` may be names of its own tables."""
PLAIN_SCHEMA: Final = "public"
_LOCK_CLASS: Final = 1_885_697_139  # 'pens', of all installations that no schema was named for


async def placed(dsn: str, schema: str | None, new: str | None) -> str:
    """The conninfo for the schema that is named, or for the one where the tables are; for ``new`` where there are none.

    Without either it stays as it is. Raises DatabaseError.
    """
    if schema is None:
        connection = await TrioConnection.connect(with_defaults(dsn))
        try:
            found, is_ours = cast("tuple[bool, bool]", (await connection.fetch(SQL["find_schema"]))[0])
        finally:
            connection.close_nowait()
        if found:
            return dsn
        schema = NEW_SCHEMA if is_ours else new
    return dsn if schema is None else in_schema(dsn, schema)


def in_schema(dsn: str, schema: str) -> str:
    """The conninfo whose connections work in that schema."""
    given = str(conninfo_to_dict(dsn).get("options") or "")
    lock_class = _LOCK_CLASS if schema == PLAIN_SCHEMA else _LOCK_CLASS + 1 + zlib.crc32(schema.encode()) % (1 << 24)
    ours = f"-c search_path={schema} -c penstock.lock_class={lock_class}"
    return make_conninfo(dsn, options=f"{given} {ours}".strip())
