"""What PostgreSQL says about itself: WAL, commits, buffers, settings; and the statements of scenarios that need SQL.

One connection of its own in autocommit mode; a snapshot is two statements. Relies on the DSN's role being allowed to
read the statistics (any role) and, for CHECKPOINT, to be a superuser or `pg_checkpoint`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from benchmarks.processes import is_postgres, read_process

SETTINGS_SHOWN = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "shared_buffers",
    "wal_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "max_connections",
    "commit_delay",
    "wal_sync_method",
    "autovacuum_naptime",
)


class DatabaseCounters(NamedTuple):
    """Counters that only grow. ``write_commits``: transactions that got an id, exact at any moment; the others come
    from statistics that a session reports once a second."""

    wal_bytes: int
    write_commits: int
    commits: int
    buffers: int
    buffers_read: int
    wal_full_pages: int
    wal_flushes: int | None


class Database:
    """Figures of one database."""

    def __init__(self, dsn: str) -> None:
        self.dsn = make_conninfo(dsn, options="-c search_path=penstock,public")  # where engines make their tables
        self._connection = psycopg.connect(self.dsn, autocommit=True, application_name="penstock benchmarks")
        self._has_flushes = self._connection.info.server_version >= 180_000

    def close(self) -> None:
        self._connection.close()

    def fetch(self, statement: LiteralString, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """All rows of a statement."""
        return self._connection.execute(statement, parameters or None).fetchall()

    def execute(self, statement: LiteralString, parameters: Sequence[object] = ()) -> int:
        """Run a statement; how many rows it touched."""
        return self._connection.execute(statement, parameters or None).rowcount

    def counters(self) -> DatabaseCounters:
        """A snapshot."""
        (row,) = self.fetch(
            "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint,"
            " pg_snapshot_xmax(pg_current_snapshot())::text::bigint,"
            " d.xact_commit, d.blks_hit + d.blks_read, d.blks_read, (SELECT wal_fpi FROM pg_stat_wal)"
            " FROM pg_stat_database d WHERE d.datname = current_database()"
        )
        flushes: int | None = None
        if self._has_flushes:
            ((flushes,),) = self.fetch("SELECT sum(fsyncs)::bigint FROM pg_stat_io WHERE object = 'wal'")
        return DatabaseCounters._make((*row, flushes))

    def settings(self) -> dict[str, str]:
        """The settings that the figures depend on."""
        rows = self.fetch(
            "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY(%s)", [[*SETTINGS_SHOWN]]
        )
        return dict(sorted(rows))

    def checkpoint(self) -> bool:
        """Write a checkpoint now, so that none comes soon; False when the role may not."""
        try:
            self.execute("CHECKPOINT")
        except psycopg.errors.InsufficientPrivilege:
            return False
        return True

    def vacuum(self) -> None:
        """Bring statistics and visibility up to date after rows were made in bulk."""
        self.execute("VACUUM (ANALYZE)")

    def table_health(self) -> dict[str, tuple[int, int]]:
        """Dead rows and size in bytes of the hot tables."""
        rows = self.fetch(
            "SELECT split_part(relname, '_', 1), sum(n_dead_tup)::bigint, sum(pg_total_relation_size(relid))::bigint"
            " FROM pg_stat_user_tables WHERE relname ~ '^(token|ready|timer|history(_.*)?|instance)$' GROUP BY 1"
        )
        return {name: (dead, size) for name, dead, size in rows}

    def server_pid(self) -> int | None:
        """The main process of the server, when it runs on this machine."""
        ((backend,),) = self.fetch("SELECT pg_backend_pid()")
        facts = read_process(backend)
        if facts is None or not is_postgres(backend) or not is_postgres(facts.parent):
            return None
        return facts.parent

    def set_logging(self, every_statement: bool) -> bool:
        """Have every statement written to the server's log, or not; False when the role may not."""
        return self._set_system("log_statement", "all" if every_statement else None)

    def set_page_images(self, written: bool) -> bool:
        """Have whole pages written to the WAL at their first change, as always, or not; False when the role may not."""
        return self._set_system("full_page_writes", None if written else "off")

    def _set_system(self, name: str, value: str | None) -> bool:
        """Give a setting of the server a value, or its own again."""
        command = (
            sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(name))
            if value is None
            else sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), value)
        )
        try:
            self._connection.execute(command)
            self.execute("SELECT pg_reload_conf()")
        except psycopg.errors.InsufficientPrivilege:
            return False
        return True
