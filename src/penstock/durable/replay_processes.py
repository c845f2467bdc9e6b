"""Replays of open runs in processes of their own: `penstock check` takes all processors for many runs.

A replay is Python alone, so threads would take turns. Each process loads the code anew (it is spawned, not forked: the
parent has threads and a connection), and is given whole runs as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, Final

import msgspec
import trio

from penstock.durable.check import CheckedRun, Replayed, replay_open
from penstock.durable.workflow import Workflow

ALONE_MAX_RUNS: Final = 2_000
"""So many are replayed by the asking process before others are begun: these take a second to load the code."""
Workflows = dict[tuple[str, int], Workflow[..., Any]]

_loaded: Workflows = {}
"""Of this process, when it is one that replays."""


class _Slice(msgspec.Struct):
    workflow: str
    version: int
    runs: list[CheckedRun]


class ReplayProcesses:
    """``count`` of them, begun after ``alone`` runs. ``load`` gives the workflows; it is called in each of them."""

    def __init__(self, load: Callable[[], Sequence[Workflow[..., Any]]], count: int, alone: int) -> None:
        self.count = count
        self._alone = alone
        self._pool = ProcessPoolExecutor(count, get_context("spawn"), _begin, (load,))

    async def replay(self, workflow: Workflow[..., Any], runs: list[CheckedRun]) -> list[Replayed] | None:
        """What became of runs whose whole journals are given; None: the caller is to do it. Raises ValueError."""
        if self._alone > 0:
            self._alone -= len(runs)
            return None
        text = msgspec.msgpack.encode(_Slice(workflow.name, workflow.version, runs))
        try:
            answer = await trio.to_thread.run_sync(lambda: self._pool.submit(_replay, text).result())
        except BrokenProcessPool:
            raise ValueError("a process that replays has ended, or could not load the code: --processes 1") from None
        return msgspec.msgpack.decode(answer, type=list[Replayed])

    def close(self) -> None:
        """End them."""
        self._pool.shutdown(cancel_futures=True)


@contextmanager
def replay_processes(
    load: Callable[[], Sequence[Workflow[..., Any]]], count: int, *, alone: int = ALONE_MAX_RUNS
) -> Generator[ReplayProcesses | None]:
    """None where one is enough."""
    if count == 1:
        yield None
        return
    processes = ReplayProcesses(load, count, alone)
    try:
        yield processes
    finally:
        processes.close()


def _begin(load: Callable[[], Sequence[Workflow[..., Any]]]) -> None:
    _loaded.update({(each.name, each.version): each for each in load()})


def _replay(text: bytes) -> bytes:
    given = msgspec.msgpack.decode(text, type=_Slice)
    workflow = _loaded[given.workflow, given.version]
    return msgspec.msgpack.encode([replay_open(workflow, run) for run in given.runs])
