"""SIGUSR1 sets the log anew, in all processes, by what the configuration file says then."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.runtime.conftest import StartEngine
from tests.runtime.engine_process import EngineProcess
from tests.runtime.waiting import wait_until

pytestmark = pytest.mark.slow(reason="an engine process for each way to set the level")
SET = "the log level was changed"


def set_anew(engine: EngineProcess, level: str) -> int:
    return sum(line.get("message") == SET and line.get("log_level") == level for line in engine.lines)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_signal_sets_the_log_of_all_processes(start_engine: StartEngine, tmp_path: Path, processes: int) -> None:
    config = tmp_path / "engine.yaml"
    config.write_text("log_level: info\n")
    engine = start_engine("--config", str(config), "--processes", str(processes)).wait_ready()
    config.write_text("log_level: debug\nrest_port: none\n")
    engine.process.send_signal(signal.SIGUSR1)
    reported = engine.wait_said("the settings can't be reloaded: nothing changes")
    assert [problem.partition(":")[0] for problem in reported["problems"]] == [str(config)]
    assert set_anew(engine, "debug") == 0

    config.write_text("log_level: debug\n")
    started = [line["pid"] for line in engine.lines if line.get("message") == "engine process started"]
    assert len(started) == (0 if processes == 1 else processes)
    for pid in started:  # as `systemctl kill` tells all of a unit
        os.kill(pid, signal.SIGUSR1)
    engine.process.send_signal(signal.SIGUSR1)
    everybody = 1 if processes == 1 else processes + 1
    wait_until(lambda: set_anew(engine, "debug") == everybody, timeout_s=120)
    now = [line["pid"] for line in engine.lines if line.get("message") == "engine process started"]
    assert now == started, "none of them ended"
    assert engine.stop() == 0
