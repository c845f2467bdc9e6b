"""What a database's tables are, as its catalog tells it: for comparing two."""

from __future__ import annotations

from typing import Any, Final

import psycopg

Things = set[tuple[Any, ...]]

# Of the schema `public`, without the order of columns: a version adds them at the end. NOT NULLs are among the columns.
_FACTS: Final = {
    "columns": """
        SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, l.collname,
          pg_get_expr(d.adbin, d.adrelid)
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        LEFT JOIN pg_collation l ON l.oid = a.attcollation
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v')""",
    "tables": """
        SELECT relname, relkind, relispartition, ARRAY(SELECT unnest(reloptions) ORDER BY 1)::text,
          pg_get_expr(relpartbound, oid), pg_get_partkeydef(oid)
        FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'S', 'v')""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace AND contype <> 'n'""",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "views": "SELECT viewname, definition FROM pg_views WHERE schemaname = 'public'",
    "functions": """
        SELECT p.proname, p.prokind, pg_get_function_arguments(p.oid), p.prosrc, p.provolatile, p.proparallel,
          format_type(p.prorettype, NULL), g.aggtransfn, g.agginitval
        FROM pg_proc p LEFT JOIN pg_aggregate g ON g.aggfnoid = p.oid WHERE p.pronamespace = 'public'::regnamespace
          AND p.proname <> 'refuse_transition' -- the guard of test databases (penstock.testing.machine)""",
}


def catalog(dsn: str) -> dict[str, Things]:
    """By kind, one tuple for each thing there is."""
    with psycopg.connect(dsn) as connection:
        return {kind: set(connection.execute(query.encode()).fetchall()) for kind, query in _FACTS.items()}


def column_order(dsn: str, table: str) -> list[str]:
    """The columns of a table as they lie in its rows."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
            " ORDER BY attnum",
            (table,),
        ).fetchall()
    return [name for (name,) in rows]


def views(dsn: str) -> set[str]:
    """Those for people."""
    return {name for name, _ in catalog(dsn)["views"]}
