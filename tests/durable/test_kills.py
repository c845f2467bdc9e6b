"""The example order, and a family of runs, on PostgreSQL, in a process that dies at a record; another one goes on."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path

import msgspec
import psycopg
import pytest
import trio
import trio.testing

from chaos.families_process import EACH, GRAPH, MAKE_DEEDS, ROUNDS, expected, family, leaf
from examples.durable_order import Approval, Line, Order, Payment, order
from penstock.core.parsing.parsing import parse_definition
from penstock.durable import App, Run, UpdateRefused
from penstock.engine.engine import Engine
from penstock.kernel.record import JournalKind
from penstock.settings import Settings
from penstock.store.db.database import Database
from penstock.telemetry.metrics import Metrics
from penstock.testing.invariants import assert_invariants
from tests.durable.called import tally
from tests.house.sources import TOP

LARGE = Order("A-1", [Line("desk", 1, Decimal(900)), Line("pen", 2, Decimal(3))])
UNDISTURBED = sorted(
    [
        (JournalKind.DONE, "reserve"),
        (JournalKind.DONE, "ask_for_approval"),
        (JournalKind.MESSAGE, "approval"),
        (JournalKind.MESSAGE, "payment"),
    ]
    + [(JournalKind.DONE, name) for name in ("pack", "pack", "charge", "ship")]
)  # and what it showed last, which comes with its end
BOUND_S = 100.0
FEW = [("before", 0), ("after", 3), ("delivered", 6)]
ALL = [(kind, count) for kind in ("before", "after", "delivered") for count in range(len(UNDISTURBED))]

LEAVES = 1 + 1 + EACH + ROUNDS + 1 + 1
"""Of a family: its own, the graph's, those at once, one of each round, and the one beside."""
APPENDS = 8
"""Records that executors append for it are so many or more: sleeps, transactions write their own."""
FAMILY_FEW = [("before", 2), ("after", 5)]
FAMILY_ALL = [(kind, count) for kind in ("before", "after", "delivered") for count in range(APPENDS)]


@contextmanager
def executor(dsn: str, world: Path, kind: str, count: int, *words: str) -> Generator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.durable.dying_executor", dsn, str(world), kind, str(count), *words]
    environment = {**os.environ, "PYTHONPATH": f"{TOP / 'src'}:{TOP}"}
    with (world.parent / f"{kind}-{count}.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=TOP, env=environment, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(BOUND_S)


def dies_and_is_gone_on_with(dsn: str, world: Path, kind: str, count: int) -> None:
    with App(at=dsn).in_thread() as client:
        run = client.start(order, LARGE, id="A-1")
        run.send("approval", Approval("ann", granted=True), dedup="a")
        run.send("payment", Payment("visa"), dedup="p")
        with executor(dsn, world, kind, count) as first:
            deadline = time.monotonic() + BOUND_S
            while first.poll() is None and run.status() != "COMPLETED" and time.monotonic() < deadline:
                time.sleep(0.05)
        died = first.returncode == 9
        with executor(dsn, world, "lives", -1):
            shipped = run.result(BOUND_S)
    assert died
    assert shipped.amount == LARGE.total
    with closing(sqlite3.connect(world)) as file:
        deeds = sorted(what for (what,) in file.execute("SELECT what FROM deed"))
    assert deeds == ["ask", "charge", "pack", "pack", "reserve", "ship"]
    with psycopg.connect(dsn) as connection:
        records = connection.execute("SELECT kind::int, name FROM journal").fetchall()
    # A RETRY is of an attempt that the death has cut off: the undisturbed order has none.
    found = [(JournalKind(kind), name) for kind, name in records if kind != JournalKind.RETRY]
    found.remove((JournalKind.VIEW, None))
    assert sorted(found) == UNDISTURBED
    assert_invariants(dsn)


@pytest.mark.slow(reason="kills programs at many points")
@pytest.mark.parametrize(("kind", "count"), FEW)
def test_an_order_whose_executor_dies_is_shipped_once(database_dsn, tmp_path, kind, count):
    dies_and_is_gone_on_with(database_dsn, tmp_path / "world.sqlite3", kind, count)


@pytest.mark.chaos
@pytest.mark.parametrize(("kind", "count"), [each for each in ALL if each not in FEW])
def test_an_order_ships_once_whichever_record_its_executor_dies_at(database_dsn, tmp_path, kind, count):
    dies_and_is_gone_on_with(database_dsn, tmp_path / "world.sqlite3", kind, count)


async def have_graph(dsn: str) -> None:
    """The definition that the family calls, and which calls code."""
    database = Database(dsn, max_connections=2)
    try:
        engine = Engine(database, Settings(), Metrics("test"), 1_000)
        await engine.definitions.upload(parse_definition(msgspec.json.encode(GRAPH)))
    finally:
        await database.close(5.0)


def family_dies_and_is_gone_on_with(dsn: str, world: Path, kind: str, count: int) -> None:
    """Code that calls code, a graph that calls code, children at once, one that continues, one beside."""
    with psycopg.connect(dsn) as connection:
        connection.execute(MAKE_DEEDS.encode())
    trio.run(have_graph, dsn)
    with App(at=dsn).in_thread() as client:
        run = client.start(family, 1, id="family-1")
        with executor(dsn, world, kind, count, "families") as first:
            first.wait(BOUND_S)
        assert first.returncode == 9
        with executor(dsn, world, "lives", -1, "families"):
            assert run.result(BOUND_S) == expected(1)
            assert client.get("beside-1", leaf).result(BOUND_S) == 2
    with psycopg.connect(dsn) as connection:
        statuses = connection.execute("SELECT DISTINCT status FROM instance").fetchall()
        leaves = connection.execute(
            "SELECT count(*) FROM instance i JOIN definition d ON d.key = i.definition WHERE d.id = 'leaf'"
        ).fetchall()
        deeds = connection.execute("SELECT what, count(*) FROM deed GROUP BY 1 ORDER BY 1").fetchall()
    assert (statuses, leaves) == ([(1,)], [(LEAVES,)])
    assert deeds == [("begun", LEAVES), ("done", LEAVES)]
    assert_invariants(dsn)


@pytest.mark.slow(reason="kills programs at many points")
@pytest.mark.parametrize(("kind", "count"), FAMILY_FEW)
def test_a_family_whose_executor_dies_ends_as_an_undisturbed_one(database_dsn, tmp_path, kind, count):
    family_dies_and_is_gone_on_with(database_dsn, tmp_path / "world.sqlite3", kind, count)


CALLS = [3, -1, 4, 5, -2]
CALLS_FEW = [("before", 7), ("after", 9), ("delivered", 11)]
CALLS_ALL = [(kind, count) for kind in ("before", "after", "delivered") for count in range(4, 14)]


def run_is_called_while_its_executor_dies(dsn: str, world: Path, kind: str, count: int) -> None:
    """Each call is answered once. Those that are refused leave no record, whoever refused them."""
    answers: dict[int, int | str] = {}

    async def ask(run: Run[list[int]], value: int) -> None:
        try:
            answers[value] = await run.ask("add", value, id=str(value))
        except UpdateRefused as error:
            answers[value] = error.reason

    async def ask_all() -> list[int]:
        async with App(at=dsn) as client:
            run = await client.start(tally, id="tally-1")
            with executor(dsn, world, kind, count, "calls") as first:
                async with trio.open_nursery() as nursery:
                    for value in CALLS:
                        nursery.start_soon(ask, run, value)
                    await trio.to_thread.run_sync(first.wait, BOUND_S)
                    with executor(dsn, world, "lives", -1, "calls"):
                        with trio.fail_after(BOUND_S):
                            while len(answers) < len(CALLS):
                                await trio.testing.wait_all_tasks_blocked(0.05)
                        await run.send("end", value=True)
                        return await run.result(BOUND_S)
        raise AssertionError("the block returns")

    seen = trio.run(ask_all)
    assert sorted(seen) == [3, 4, 5]
    assert answers == {value: seen.index(value) + 1 if value > 0 else "it is negative" for value in CALLS}
    with psycopg.connect(dsn) as connection:
        records = connection.execute("SELECT kind::int, path FROM journal ORDER BY pos").fetchall()
        refused = connection.execute("SELECT count(*) FROM signal_id WHERE answer LIKE '%%negative%%'").fetchall()
    for kind_of_call in (JournalKind.ASKED, JournalKind.ACCEPTED, JournalKind.ANSWERED):
        assert sorted(path for found, path in records if found == kind_of_call) == ["3", "4", "5"]
    assert refused == [(2,)]
    assert_invariants(dsn)


@pytest.mark.slow(reason="kills programs at many points")
@pytest.mark.parametrize(("kind", "count"), CALLS_FEW)
def test_calls_of_a_run_whose_executor_dies_are_answered_once(database_dsn, tmp_path, kind, count):
    run_is_called_while_its_executor_dies(database_dsn, tmp_path / "world.sqlite3", kind, count)


@pytest.mark.chaos
@pytest.mark.parametrize(("kind", "count"), [each for each in CALLS_ALL if each not in CALLS_FEW])
def test_calls_are_answered_once_whichever_record_the_executor_dies_at(database_dsn, tmp_path, kind, count):
    run_is_called_while_its_executor_dies(database_dsn, tmp_path / "world.sqlite3", kind, count)


@pytest.mark.chaos
@pytest.mark.parametrize(("kind", "count"), [each for each in FAMILY_ALL if each not in FAMILY_FEW])
def test_a_family_ends_well_whichever_record_its_executor_dies_at(database_dsn, tmp_path, kind, count):
    family_dies_and_is_gone_on_with(database_dsn, tmp_path / "world.sqlite3", kind, count)
