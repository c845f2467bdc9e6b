"""In which schema of a database Penstock's tables are. It goes into the conninfo, so that every connection has it.

An installation that is there goes on where it is: wherever the connection's own ``search_path`` finds it, else in
`NEW_SCHEMA`, where new ones are made. Each but the one in ``public`` has advisory locks and a channel for hints
(NOTIFY) of its own, so that two in one database neither take each other's engines for theirs nor wake them.
"""

from __future__ import annotations

import re
import zlib
from typing import Final, cast

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.log.log import get_logger
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import with_defaults
from penstock.store.db.statements import SQL

NEW_SCHEMA: Final = "penstock"
"""Of the tables in a database that has none: `instance` and `token` may be names of a program's own."""
PLAIN_SCHEMA: Final = "public"
_LOCK_CLASS: Final = 1_885_697_139  # 'pens', of the installation in `public`
_PLAIN_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")

log = get_logger("penstock.store.placement")


async def placed(dsn: str, schema: str | None) -> str:
    """The conninfo for the schema that is named, or for the one where the tables are, or are to be.

    Raises DatabaseError.
    """
    if schema is not None:
        return in_schema(dsn, schema)
    connection = await TrioConnection.connect(with_defaults(dsn))
    try:
        found, is_new = cast("tuple[str | None, bool]", (await connection.fetch(SQL["find_schema"]))[0])
    finally:
        connection.close_nowait()
    if found not in (None, NEW_SCHEMA) and is_new:
        log.warning("two schemas have Penstock's tables: `db_schema` chooses one", used=found, other=NEW_SCHEMA)
    return dsn if found == PLAIN_SCHEMA else in_schema(dsn, found or NEW_SCHEMA)


def in_schema(dsn: str, schema: str) -> str:
    """Return the conninfo whose connections work in that schema."""
    given = str(conninfo_to_dict(with_defaults(dsn)).get("options") or "")
    ours = f"-c search_path={_quoted(schema)}"
    if schema != PLAIN_SCHEMA:
        ours += f" -c penstock.lock_class={_LOCK_CLASS + 1 + zlib.crc32(schema.encode()) % (1 << 24)}"
    return make_conninfo(with_defaults(dsn), options=f"{given} {ours}".strip())


def _quoted(schema: str) -> str:
    """As an identifier among the options of a conninfo."""
    if _PLAIN_NAME.fullmatch(schema) is None:
        schema = '"' + schema.replace('"', '""') + '"'
    return re.sub(r"([\\ ])", r"\\\1", schema)
