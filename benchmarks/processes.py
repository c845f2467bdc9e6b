"""CPU seconds and memory of process trees, from /proc.

The CPU of a tree is what its living members used plus what their ended and waited-for children did, so that a backend
of PostgreSQL that came and went is counted. Linux only; elsewhere, and for other machines' processes, there is nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessFacts(NamedTuple):
    parent: int
    cpu_s: float
    resident_bytes: int


def all_processes() -> dict[int, ProcessFacts]:
    """Every process that can be seen."""
    found: dict[int, ProcessFacts] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and (facts := read_process(int(entry.name))) is not None:
            found[int(entry.name)] = facts
    return found


def read_process(pid: int) -> ProcessFacts | None:
    """One process; None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    # proc(5): fields[0] is the state; parent, then utime, stime, cutime, cstime from 11, rss in pages at 21
    return ProcessFacts(int(fields[1]), sum(map(int, fields[11:15])) / TICKS_PER_S, int(fields[21]) * PAGE_BYTES)


def tree(processes: dict[int, ProcessFacts], root: int, without: int | None = None) -> list[int]:
    """``root`` and its descendants; the subtree at ``without`` is left out."""
    children: dict[int, list[int]] = {}
    for pid, facts in processes.items():
        children.setdefault(facts.parent, []).append(pid)
    members: list[int] = []
    left = [root] if root in processes and root != without else []
    while left:
        pid = left.pop()
        members.append(pid)
        left.extend(child for child in children.get(pid, ()) if child != without)
    return members


def tree_cpu_s(processes: dict[int, ProcessFacts], root: int, without: int | None = None) -> float:
    """CPU seconds of a tree, its ended children included."""
    return sum(processes[pid].cpu_s for pid in tree(processes, root, without))


def tree_resident_bytes(processes: dict[int, ProcessFacts], root: int, without: int | None = None) -> int:
    """Resident memory of a tree; pages that its members share count for each."""
    return sum(processes[pid].resident_bytes for pid in tree(processes, root, without))


def own_cpu_s() -> float:
    """This process's CPU seconds."""
    times = os.times()
    return times.user + times.system


def is_postgres(pid: int) -> bool:
    """Whether the process is a PostgreSQL server process."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() in ("postgres", "postmaster")
    except OSError:
        return False


def disk_of(path: Path) -> str:
    """The type of the file system that ``path`` is on, as the kernel calls it; empty when unknown."""
    best, kind = "", ""
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return ""
    target = str(path.resolve())
    for line in lines:
        _, mount, name, *_ = line.split()
        below = mount == "/" or target == mount or target.startswith(mount + "/")
        if below and len(mount) >= len(best):
            best, kind = mount, name
    return kind
