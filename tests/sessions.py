"""Server processes of PostgreSQL that are stopped for a while: they take what is sent to them and answer nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager

import psycopg

FIND = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"


@contextmanager
def stopped_sessions(dsn: str, name: str) -> Generator[None]:
    """SIGSTOP of those that have this application_name, until the block ends."""
    with psycopg.connect(dsn) as connection:
        pids = [pid for (pid,) in connection.execute(FIND, (name,)).fetchall()]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
