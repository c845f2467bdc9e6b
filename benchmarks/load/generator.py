"""The generator's processes: started by the measuring process, told what to do, watched through shared counts.

Relies on `multiprocessing` with spawned processes: nothing is inherited, and CPU seconds are the generator's alone.
Must not outlive the block that runs it.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from ctypes import c_bool, c_longlong
from multiprocessing.connection import Connection as Pipe
from multiprocessing.context import SpawnProcess
from multiprocessing.sharedctypes import RawArray, RawValue
from typing import Any

from benchmarks.load.counts import Count, Samples, total
from benchmarks.load.loop import Loop
from benchmarks.load.scripts import Context, Plan

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0


class GeneratorFailed(Exception):
    """A generator process broke off; the text says why."""


class Generators:
    """Running generator processes."""

    def __init__(self, processes: list[SpawnProcess], pipes: list[Pipe], counts: list[Any], flag: Any) -> None:
        self._processes = processes
        self._pipes = pipes
        self._counts = counts
        self._flag = flag
        self.problems: list[str] = []

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    def counts(self) -> list[int]:
        """All counts so far, by `Count`."""
        return total(self._counts)

    def check(self) -> None:
        """Raises GeneratorFailed when a process has ended or told a failure."""
        for pipe in self._pipes:
            if pipe.poll():
                raise GeneratorFailed(f"the load generator broke off: {_described(pipe)}")

    def begin(self) -> None:
        """All connections stand: send the first requests."""
        for pipe in self._pipes:
            pipe.send("go")

    def wait_ready(self) -> None:
        for pipe in self._pipes:
            reported = _described(pipe) if pipe.poll(START_TIMEOUT_S) else f"no answer within {START_TIMEOUT_S:.0f} s"
            if reported != "ready":
                raise GeneratorFailed(f"the load generator could not connect: {reported}")

    def stop(self) -> Samples:
        """Hang up everywhere; what was timed."""
        self._flag.value = True
        samples = Samples()
        for pipe in self._pipes:
            if not pipe.poll(STOP_TIMEOUT_S):
                raise GeneratorFailed("the load generator does not stop")
            reported = _described(pipe)
            if isinstance(reported, str):
                raise GeneratorFailed(f"the load generator broke off: {reported}")
            taken, problems = reported
            samples.merge(taken)
            self.problems.extend(problems)
        for process in self._processes:
            process.join(STOP_TIMEOUT_S)
        return samples

    def kill(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join(STOP_TIMEOUT_S)


def _described(pipe: Pipe) -> Any:
    """What a process says; a process that has ended without a word is one that broke off."""
    try:
        return pipe.recv()
    except EOFError:
        return "its process has ended"


@contextmanager
def generators(host: str, port: int, plans: Sequence[Plan], processes: int = 1) -> Generator[Generators]:
    """Processes with all connections open; `begin` starts them. They are gone when the block ends."""
    context = multiprocessing.get_context("spawn")
    flag = RawValue(c_bool, False)
    made: list[SpawnProcess] = []
    pipes: list[Pipe] = []
    counts = [RawArray(c_longlong, len(Count)) for _ in range(processes)]
    running = Generators(made, pipes, counts, flag)
    try:
        for index in range(processes):
            mine, theirs = context.Pipe()
            shares = [plan.share(index, processes) for plan in plans]
            process = context.Process(target=_run, args=(host, port, shares, counts[index], flag, theirs), daemon=True)
            process.start()
            theirs.close()
            made.append(process)
            pipes.append(mine)
        running.wait_ready()
        yield running
    finally:
        running.kill()
        for pipe in pipes:
            pipe.close()


def _run(host: str, port: int, plans: list[Plan], counts: Any, flag: Any, pipe: Pipe) -> None:
    """One generator process."""
    loop = Loop(host, port)
    samples = Samples()
    context = Context(loop, f"{host}:{port}", counts, samples)
    try:
        for plan in plans:
            plan.open(context)
        pipe.send("ready")
        pipe.recv()
        loop.run(lambda: flag.value)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        while not flag.value:  # the counts stay readable until the measuring process has seen it
            time.sleep(0.05)
        return
    finally:
        loop.close()
    pipe.send((samples, context.problems))
