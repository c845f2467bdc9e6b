"""Users' programs as processes of their own, on an embedded PostgreSQL in a directory of theirs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path

import psycopg

from penstock.store.embedded.embedded import running_dsn
from tests.postgres import MEMORY
from tests.store.servers import postmaster_pid

JOURNAL = "SELECT kind::int, path, name FROM journal ORDER BY pos"
WAIT_S = 150.0


def own_directory() -> Generator[Path]:
    """Where the server's account can get to; pytest's own directories are closed to it if we are root."""
    path = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    path.chmod(0o755)
    yield path
    with suppress(OSError, ValueError):  # of a program that was killed
        os.kill(postmaster_pid(path / "data"), signal.SIGQUIT)
    shutil.rmtree(path, ignore_errors=True)


def until(condition: Callable[[], bool], *processes: subprocess.Popen[str]) -> None:
    """Poll, in bounded time; what the database refuses while it starts or stops is not yet true."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            if condition():
                return
        except psycopg.Error:
            pass
        ended = [process.returncode for process in processes if process.poll() is not None]
        assert not ended, f"a program has ended with {ended}"
        assert time.monotonic() < deadline, f"not within {WAIT_S} s"
        time.sleep(0.02)


def rows(directory: Path, sql: str) -> list[tuple[object, ...]]:
    """From the embedded PostgreSQL of that directory, while it runs."""
    dsn = running_dsn(directory / "data")
    if not dsn:
        return []
    with psycopg.connect(dsn, connect_timeout=10, options="-c search_path=penstock") as connection:
        return connection.execute(sql.encode()).fetchall()


class Program:
    """A script, started as often as a test likes."""

    def __init__(self, directory: Path, text: str, name: str = "program.py") -> None:
        self.directory, self.name = directory, name
        (directory / name).write_text(text)
        self.environment = {**os.environ, "WE_DATA_DIR": str(directory / "data"), "PYTHONUNBUFFERED": "1"}

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, self.name, *words],
            cwd=self.directory, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip

    def rows(self, sql: str = JOURNAL) -> list[tuple[object, ...]]:
        """From the embedded PostgreSQL while it runs."""
        return rows(self.directory, sql)


def ended(process: subprocess.Popen[str], timeout_s: float = WAIT_S) -> tuple[int, str, str]:
    """Its exit code, and what it said."""
    try:
        said, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        said, errors = process.communicate()
        raise AssertionError(f"it did not end; it said {said!r} {errors!r}") from None
    return process.returncode, said, errors
