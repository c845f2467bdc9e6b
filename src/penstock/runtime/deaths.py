"""Which of the other engines are dead, so that what their executors hold may be given to others. Never a living one.

An engine is dead when its row is gone or its lease is over; or when its lock was seen, then missing in two looks a
second apart, while our own listening session lived through all of it: a restart of PostgreSQL, or one lost session,
takes the locks of living engines away. Where its process was on this machine, that says more: it is dead when that is
gone, and alive while it is there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.store.rows.engines import OtherEngine

MISSING_S: Final = 1.0
"""Between the two looks."""
KNOWN_MAX: Final = 10_000
"""Engines that are remembered; more than there can be numbers for, as each process has a tag of its own."""
_PROC: Final = Path("/proc")


class _Seen:
    def __init__(self, process: str | None) -> None:
        self.process = process
        self.locked_in: int | None = None  # our session in which its lock was seen
        self.missing_at: float | None = None
        self.reported = False


class Deaths:
    """What was seen of the other engines, by the tags of their executors."""

    def __init__(self) -> None:
        self._session = 0
        self._alive = False
        self._seen: dict[str, _Seen] = {}

    def begin_session(self) -> None:
        """Our listening session has begun."""
        self._session += 1
        self._alive = True

    def end_session(self) -> None:
        """It has ended: what is not seen may be there."""
        self._alive = False

    def find_dead(self, others: Sequence[OtherEngine], now: float) -> list[str]:
        """The tags of engines that are found dead now. ``others`` are those with a valid lease."""
        present = {other.holder[:8]: other for other in others}
        dead = [tag for tag, seen in self._seen.items() if tag not in present and not seen.reported]
        self._seen = {tag: seen for tag, seen in self._seen.items() if tag in present}
        for tag, other in present.items():
            if tag not in self._seen and len(self._seen) >= KNOWN_MAX:
                continue
            seen = self._seen.setdefault(tag, _Seen(other.process))
            if other.connected:
                seen.locked_in, seen.missing_at, seen.reported = self._session if self._alive else None, None, False
            elif not seen.reported and self._is_dead(seen, now):
                seen.reported = True
                dead.append(tag)
        return dead

    def _is_dead(self, seen: _Seen, now: float) -> bool:
        alive = None if seen.process is None else is_alive(seen.process)
        if alive is not None:
            return not alive
        if not self._alive or seen.locked_in != self._session:
            seen.missing_at = None
            return False
        if seen.missing_at is None:
            seen.missing_at = now
            return False
        return now - seen.missing_at >= MISSING_S


def this_process() -> str | None:
    """What tells this process from all others that were or will be, on any machine: boot, namespace of processes,
    number, start. None where the system has no such thing."""
    machine = _machine()
    started = _started(os.getpid())
    return None if machine is None or started is None else f"{machine} {os.getpid()} {started}"


def is_alive(process: str) -> bool | None:
    """Return whether a process (`this_process`) lives. None: it is of another machine, or container."""
    machine, _, rest = process.rpartition(" ")
    machine, _, number = machine.rpartition(" ")
    if machine != _machine() or not number.isdecimal():
        return None
    return _started(int(number)) == rest


def _machine() -> str | None:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return None


def _started(number: int) -> str | None:
    """In ticks since the boot; None when there is no such process, or it has ended and nobody took notice."""
    try:
        fields = (_PROC / str(number) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
