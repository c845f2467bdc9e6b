"""SIGHUP to the parent of several processes restarts them one after the other; no call is refused meanwhile."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

import pytest

from penstock.testing.definitions import linear
from penstock.testing.invariants import assert_invariants
from tests.runtime.conftest import StartEngine
from tests.runtime.embedded_engine import children
from tests.runtime.engine_process import EngineProcess
from tests.runtime.waiting import wait_until

pytestmark = pytest.mark.slow(reason="restarts engines under load")
CALLERS = 3


class Callers:
    """Threads that start instances, each call on a connection of its own; what went wrong is in ``refused``."""

    def __init__(self, engine: EngineProcess) -> None:
        self._engine = engine
        self._stop = threading.Event()
        self.refused: list[object] = []
        self.started: set[str] = set()
        self._threads = [threading.Thread(target=self._run) for _ in range(CALLERS)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                status, answer = self._engine.call("POST", "/v1/instances", {"definitionId": "linear"})
            except (OSError, ValueError) as error:
                self.refused.append(error)
                continue
            if status == 201:
                self.started.add(answer["id"])
            else:
                self.refused.append((status, answer))

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)


def test_processes_are_restarted_one_by_one_without_a_refused_call(
    start_engine: StartEngine, database_dsn: str
) -> None:
    engine = start_engine("--processes", "2").wait_ready()
    assert engine.call("POST", "/v1/definitions", linear(1))[0] == 201
    before = set(children(engine.process.pid))
    callers = Callers(engine)
    try:
        wait_until(lambda: len(callers.started) > 10)
        engine.process.send_signal(signal.SIGHUP)
        engine.wait_said("engine processes restarted", timeout_s=120)
        seen = len(callers.started)
        wait_until(lambda: len(callers.started) > seen + 10)
    finally:
        callers.end()
    after = set(children(engine.process.pid))
    assert (len(after), after & before) == (2, set())
    assert callers.refused == []
    assert engine.said("an engine process died") is None
    assert engine.stop() == 0
    assert_invariants(database_dsn)


@pytest.mark.chaos
def test_one_that_dies_meanwhile_does_not_end_the_restart(start_engine: StartEngine) -> None:
    engine = start_engine("--processes", "2").wait_ready()
    before = children(engine.process.pid)
    engine.process.send_signal(signal.SIGHUP)
    for pid in before:
        with suppress(ProcessLookupError):  # one of them has ended already
            os.kill(pid, signal.SIGKILL)
    engine.wait_said("engine processes restarted", timeout_s=120)
    assert engine.call("GET", "/healthz")[0] == 200
    after = children(engine.process.pid)
    assert (len(after), {*after} & {*before}) == (2, set())
    assert engine.stop() == 0
