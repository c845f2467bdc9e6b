"""The example agent on PostgreSQL, in a process that is killed; another one goes on and pays for no answer again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai", reason="no pydantic-ai in this environment: pip install -e '.[dev]'")

from examples.durable_agent import agent
from penstock.durable import App
from penstock.durable.blocking import BlockingRun
from penstock.testing.invariants import assert_invariants
from tests.house.sources import TOP
from tests.runtime.waiting import wait_until

pytestmark = pytest.mark.slow(reason="kills programs and starts them again")

BOUND_S = 100.0


@contextmanager
def executor(dsn: str, bill: Path, *stops_at: str) -> Generator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.examples.billed_agent", dsn, str(bill), *stops_at]
    environment = {**os.environ, "PYTHONPATH": f"{TOP / 'src'}:{TOP}"}
    process = subprocess.Popen(command, cwd=TOP, env=environment)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(BOUND_S)


def deeds(bill: Path) -> list[str]:
    """What began, without the keys of bookings."""
    return [line.split()[0] for line in bill.read_text().splitlines()] if bill.exists() else []


def asks_for_the_booking(run: BlockingRun[str]) -> None:
    assert "book" in run.view("asks", timeout_s=BOUND_S)


@pytest.mark.parametrize(
    ("stops_at", "paid"),
    [
        pytest.param(None, ["model-1", "find", "model-3", "book", "model-5"], id="while a person is asked"),
        pytest.param("find", ["model-1", "find", "find", "model-3", "book", "model-5"], id="in a tool"),
        pytest.param("book", ["model-1", "find", "model-3", "book", "book", "model-5"], id="in a booking"),
        pytest.param("model-3", ["model-1", "find", "model-3", "model-3", "book", "model-5"], id="in an answer"),
    ],
)
def test_an_agent_that_is_killed_pays_for_no_answer_twice(
    database_dsn: str, tmp_path: Path, stops_at: str | None, paid: list[str]
) -> None:
    """What had ended is not done again. What the kill cut off is, with the same key."""
    bill = tmp_path / "bill"
    with App(at=database_dsn).in_thread() as client:
        run = client.start(agent, "Book me a hotel in Lisbon, 2 nights", id="trip-1")
        with executor(database_dsn, bill, *([] if stops_at is None else [stops_at])) as first:
            if stops_at in (None, "book"):
                asks_for_the_booking(run)
            if stops_at == "book":
                run.ask("decide", "book", True, "ann")
            if stops_at is not None:
                wait_until(lambda: stops_at in deeds(bill))
            first.kill()
            first.wait(BOUND_S)
        assert deeds(bill) == paid[: paid.index(stops_at) + 1 if stops_at else 3]
        with executor(database_dsn, bill):
            if stops_at != "book":
                asks_for_the_booking(run)
                run.ask("decide", "book", True, "ann")
            assert run.result(BOUND_S) == "It is done: Lisbon Palace, 2 nights"
    assert deeds(bill) == paid
    assert len({line for line in bill.read_text().splitlines() if line.startswith("book")}) == 1
    assert_invariants(database_dsn)
