"""Journals: what workers and the load saw with their own eyes, one JSON line per event, whatever happens to them.

A line is one write(2) to a file opened for appending, so that a process that is killed loses at most what it had not
done yet. Times are of the machine's monotonic clock, the same in all processes. The database is never asked here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec


class Journal:
    """One process's file. ``note`` blocks for microseconds; no fsync, as it is processes that are killed here."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, event: str, /, **fields: Any) -> None:
        """Write one event."""
        line = msgspec.json.encode({"event": event, "at": time.monotonic(), **fields}) + b"\n"
        os.write(self._fd, line)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_journals(directory: Path) -> list[dict[str, Any]]:
    """All events of all files, in the order of their times. A last line that was cut is no event."""
    return sorted(_events(directory), key=lambda event: float(event["at"]))


def _events(directory: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield msgspec.json.decode(line)
