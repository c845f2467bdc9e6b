"""`penstock demo`: shows a whole run, tells what went wrong, and leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from rich.console import Console

from penstock.cli.demo import engine, run
from penstock.cli.demo.engine import EngineFailed, engine_process
from penstock.cli.demo.view import DemoView, failures, history_table
from penstock.client import Attempt, Instance, StepExecution
from tests.house.sources import SRC
from tests.waiting import wait_until

START = datetime(2026, 1, 1, tzinfo=UTC)

SERVES_UNTIL_STOPPED = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("arguments", *sys.argv[1:], flush=True)
print("settings", [name for name in os.environ if name.startswith(("WE_", "DB_"))], flush=True)
signal.pause()
"""


IGNORES_SIGTERM = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """Replaces the engine by a script."""

    def install(script: str) -> Path:
        path = tmp_path / "stand_in.py"
        path.write_text(script)
        monkeypatch.setattr(engine, "_penstock", lambda: [sys.executable, str(path)])
        return tmp_path / "engine.log"

    return install


async def wait_for_text(path: Path, text: str) -> None:
    async def is_there() -> bool:
        return await trio.Path(path).exists() and text in await trio.Path(path).read_text()

    await wait_until(is_there)


def processes_about(path: Path) -> list[str]:
    """Command lines that name the path."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(process.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if str(path) in line]


async def test_an_engine_that_dies_ends_the_demo_with_its_log(stand_in, tmp_path):
    log = stand_in("print('line 1'); print('the disk is full'); raise SystemExit(3)")
    with pytest.RaisesGroup(pytest.RaisesExc(EngineFailed, match=r"ended with exit code 3:\nline 1\nthe disk is full")):
        async with engine_process(tmp_path, log):
            await trio.sleep_forever()


async def test_the_engine_is_stopped_when_the_demo_fails(stand_in, tmp_path):
    log = stand_in(SERVES_UNTIL_STOPPED)
    with pytest.RaisesGroup(LookupError):
        async with engine_process(tmp_path, log):
            await wait_for_text(log, "settings")
            assert processes_about(tmp_path / "stand_in.py") != []
            raise LookupError
    assert processes_about(tmp_path / "stand_in.py") == []


async def test_the_demo_ignores_the_settings_of_this_machines_engine(stand_in, tmp_path, monkeypatch):
    monkeypatch.setenv("WE_POSTGRES_DSN", "postgresql://production/x")
    monkeypatch.setenv("DB_MAX_CONNS", "3")
    log = stand_in(SERVES_UNTIL_STOPPED)
    async with engine_process(tmp_path / "data", log) as url:
        await wait_for_text(log, "]")  # the whole line
        said = await trio.Path(log).read_text()
    assert "settings []" in said
    assert f"arguments serve --config {os.devnull} --data-dir {tmp_path}/data --bind 127.0.0.1 --rest-port" in said
    assert f"--rest-port {url.rpartition(':')[2]} " in said


async def test_an_engine_that_does_not_stop_is_killed_and_reported(stand_in, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "STOP_TIMEOUT_SECONDS", 0.2)
    log = stand_in(IGNORES_SIGTERM)
    with pytest.raises(EngineFailed, match=r"did not stop within 0\.2 s:\nup"):
        async with engine_process(tmp_path, log):
            await wait_for_text(log, "up")
    assert processes_about(tmp_path / "stand_in.py") == []


async def test_an_engine_that_never_gets_ready_is_reported(stand_in, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "READY_TIMEOUT_SECONDS", 0.5)
    log = stand_in(SERVES_UNTIL_STOPPED)
    said = r"not ready within 0\.5 s; at the last look: no connection to http"
    with pytest.RaisesGroup(pytest.RaisesExc(EngineFailed, match=said)):
        await run._demo(Console(file=io.StringIO()), 1, tmp_path, log, None)
    assert processes_about(tmp_path / "stand_in.py") == []


def test_without_a_terminal_progress_is_a_table_of_ten_lines():
    out = io.StringIO()
    with DemoView(Console(file=out, width=10), {"a": "First", "b": "Second"}, 50) as view:
        for step in ("a", "b"):
            for _ in range(50):
                view.done(step)
    lines = out.getvalue().splitlines()
    assert lines[:2] == ["         First  Second", "   10 %     10       0"]
    assert lines[-1] == "  100 %     50      50"
    assert len(lines) == 11


def test_on_a_terminal_progress_is_a_bar_for_each_step():
    out = io.StringIO()
    with DemoView(Console(file=out, width=100, force_terminal=True), {"a": "First", "b": "Second"}, 2) as view:
        view.done("a")
    assert "1/2" in out.getvalue()
    assert "Second" in out.getvalue()


def test_the_history_shows_every_attempt():
    def at(ms: int) -> datetime:
        return START + timedelta(milliseconds=ms)

    history = [
        StepExecution(
            id="1",
            instance_id="i",
            step_id="pay",
            step_type="SERVICE_TASK",
            attempt_number=1,
            status="COMPLETED",
            started_at=at(10),
            ended_at=at(60),
            attempts=[
                Attempt(attempt=1, worker="w", status="FAILED", reason="no answer"),
                Attempt(attempt=2, worker="w"),
            ],
        ),
        StepExecution(
            id="2",
            instance_id="i",
            step_id="end",
            step_type="END",
            attempt_number=1,
            status="COMPLETED",
            started_at=at(60),
        ),
    ]
    instance = Instance(
        id="i", definition_id="d", definition_version=1, status="COMPLETED", started_at=at(0), business_key="7"
    )
    out = io.StringIO()
    Console(file=out, width=110).print(history_table(instance, history, {"pay": "Charge the payment"}))
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in out.getvalue().splitlines() if line.startswith("│")
    ]
    assert "order 7" in out.getvalue()
    assert rows == [
        ["Charge the payment", "SERVICE_TASK", "FAILED: no answer", "1", "w", "10 ms", ""],
        ["", "", "COMPLETED", "2", "w", "", "50 ms"],
        ["end", "END", "COMPLETED", "", "", "60 ms", ""],
    ]


def test_instances_that_did_not_complete_are_named():
    good = Instance(id="1", definition_id="d", definition_version=1, status="COMPLETED")
    bad = Instance(id="2", definition_id="d", definition_version=1, status="FAILED", failure_reason="no stock")
    assert failures([good, bad]) == ["instance 2 is FAILED: no stock"]


def start_demo(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "penstock", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC), "TMPDIR": str(tmp_path), "HOME": str(tmp_path)},
    )


@pytest.fixture
def open_directory():
    """PostgreSQL may run as another user, who must get here; a pytest that starts closes its directories to others."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


def left_behind(tmp_path: Path) -> list[str]:
    return [*processes_about(tmp_path), *(str(path) for path in tmp_path.glob("penstock-demo-*"))]


@pytest.mark.slow(reason="the whole demo")
def test_the_demo_runs_to_its_end_and_leaves_nothing_behind(open_directory):
    demo = start_demo(open_directory, "--instances", "25")
    out, _ = demo.communicate(timeout=120)
    assert demo.returncode == 0, out
    assert "25 instances completed, 125 jobs" in out
    assert "History of instance" in out
    assert "FAILED: the payment provider did not answer" in out
    assert '"parcel":"P00000001"' in out
    assert "WARNING" not in out.upper()
    assert left_behind(open_directory) == []


@pytest.mark.slow(reason="the whole demo")
def test_an_open_demo_serves_the_console_until_it_is_interrupted(open_directory):
    demo = start_demo(open_directory, "--instances", "5", "--open")
    assert demo.stdout is not None
    url = next(line for line in demo.stdout if "in the console" in line).split()[-1]
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert b'<div id="root">' in answer.read()
    with urllib.request.urlopen(f"{url.removesuffix('console/')}v1/instances?status=COMPLETED", timeout=30) as answer:
        assert json.loads(answer.read())["total"] == 5
    demo.send_signal(signal.SIGINT)
    out, _ = demo.communicate(timeout=120)
    assert demo.returncode == 0, out
    assert "Stopped. Next:" in out
    assert left_behind(open_directory) == []


@pytest.mark.slow(reason="the whole demo")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_interrupted_stops_its_engine(open_directory, how):
    demo = start_demo(open_directory, "--instances", "20000")
    assert demo.stdout is not None
    for line in demo.stdout:
        if "instances and a worker" in line:
            break
    demo.send_signal(how)
    out, _ = demo.communicate(timeout=120)
    assert demo.returncode == 130, out
    assert "Interrupted; the engine was stopped." in out
    assert left_behind(open_directory) == []
