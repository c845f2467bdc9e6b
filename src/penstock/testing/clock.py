"""Clocks that tests can set: that of one database.

Everything durable takes its time from the database's function ``penstock_now()``. Both classes replace it: with
`DatabaseClock` it goes on at its normal pace, can be moved and stopped, with `FrozenClock` it stands still until it is
set. Only for databases of tests: the function stays replaced. Must not be used on a database that anybody else works
with. Trio's own clock is another thing: what sleeps until a timer is due does not see the jump, so call `fire_once` and
its like yourself.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import psycopg

_INSTALL = """
CREATE TABLE IF NOT EXISTS test_clock (shift interval NOT NULL, stopped_at timestamptz);
INSERT INTO test_clock SELECT interval '0' WHERE NOT EXISTS (SELECT FROM test_clock);
GRANT SELECT ON test_clock TO PUBLIC;
CREATE OR REPLACE FUNCTION penstock_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
  AS $$ SELECT (SELECT coalesce(stopped_at, clock_timestamp()) + shift FROM test_clock) $$;
"""


class DatabaseClock:
    """The clock of the database at ``dsn``; it goes on at its normal pace. Every role may read it: engines need not run
    as the one of ``dsn``. Blocks for a millisecond or two."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(_INSTALL)

    def advance(self, seconds: float) -> None:
        """Go forward, or back with a negative number."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("UPDATE test_clock SET shift = shift + %s * interval '1 s'", (seconds,))

    def stop(self) -> None:
        """Stand still from now on, but for `advance`: how long a test takes is no longer seen."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("UPDATE test_clock SET stopped_at = coalesce(stopped_at, clock_timestamp())")

    def now(self) -> dt.datetime:
        """What the engines on this database take for the present time."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            row = connection.execute("SELECT penstock_now()").fetchone()
        assert row is not None
        found = row[0]
        assert isinstance(found, dt.datetime)
        return found


_INSTALL_FROZEN = """
CREATE TABLE test_clock (now timestamptz NOT NULL);
CREATE OR REPLACE FUNCTION penstock_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
  AS $$ SELECT now FROM test_clock $$;
"""


class FrozenClock:
    """The clock of the database behind ``connection`` (in autocommit mode); it stands still at ``start``."""

    def __init__(self, connection: psycopg.Connection[Any], start: dt.datetime) -> None:
        self._connection = connection
        self._now = start.astimezone(dt.UTC)
        connection.execute(_INSTALL_FROZEN)
        connection.execute("INSERT INTO test_clock VALUES (%s)", (self._now,))

    def set(self, now: dt.datetime) -> None:
        """Let it be ``now``. Raises ValueError for a time that has passed: history would run backwards."""
        if now < self._now:
            raise ValueError(f"the clock can't go back from {self._now.isoformat()} to {now.isoformat()}")
        self._now = now.astimezone(dt.UTC)
        self._connection.execute("UPDATE test_clock SET now = %s", (self._now,))

    def now(self) -> dt.datetime:
        """What the engines on this database take for the present time, in UTC."""
        return self._now
