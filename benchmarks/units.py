"""What this machine's CPU does at this minute, by fixed work: a loop of Python, and JSON back and forth over a socket.

A second of CPU is worth three times as much on one host as on another, and half as much an hour later on the same. CPU
per job in units of the echo compares further than seconds do; pairs (`pair.py`) compare best. Never change the work:
figures of before would mean something else.
"""

from __future__ import annotations

import json
import socket
import statistics
import time
from collections.abc import Callable

REPEATS = 5
LOOP_ROUNDS = 100_000
ECHO_ROUNDS = 500
JOB = {"id": "1f-1-2a", "jobType": "work", "attempt": 1, "variables": {"text": "x" * 40, "n": 7}}
DOCUMENT = {"jobs": [JOB, JOB, JOB]}


def measure_units() -> dict[str, float]:
    """The CPU of the loop, and of one echo; a quarter of a second."""
    return {
        "loop_cpu_ms": _cpu_s(_loop) * 1e3,
        "echo_cpu_us": _cpu_s(_echoes) / ECHO_ROUNDS * 1e6,
    }


def in_units(figures: dict[str, float], units: dict[str, float]) -> dict[str, float]:
    """CPU per item in echoes, for those who have CPU in ``figures``."""
    return {
        f"{who}_cpu_echoes": figures[f"{who}_cpu_s_per_1000"] * 1e3 / units["echo_cpu_us"]
        for who in ("engine", "postgres")
        if f"{who}_cpu_s_per_1000" in figures
    }


def _cpu_s(work: Callable[[], None]) -> float:
    used: list[float] = []
    for _ in range(REPEATS):
        before = time.thread_time()
        work()
        used.append(time.thread_time() - before)
    return statistics.median(used)


def _loop() -> None:
    found = 0
    for number in range(LOOP_ROUNDS):
        found = (found * 31 + number) & 0xFFFFFF


def _echoes() -> None:
    """A request and its answer, both ends here."""
    here, there = socket.socketpair()
    with here, there:
        for _ in range(ECHO_ROUNDS):
            here.send(json.dumps(DOCUMENT).encode())
            asked = json.loads(there.recv(4096))
            there.send(json.dumps(asked).encode())
            json.loads(here.recv(4096))
