"""Other systems beside Penstock: what a program of theirs did is counted, what can't be had is left out and told."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.peers.__main__ import Figures, OtherTurns, about, compare, keep, kept, middle, table, turn
from benchmarks.peers.systems import PROGRAMS, SYSTEMS, NotHad, Running, System, call
from penstock.testing.postgres import PostgresServer

WRITES_FIFTY = """
import json, signal, sys, psycopg
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    connection.execute("CREATE TABLE done (n int)")
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(50):
        connection.execute("INSERT INTO done VALUES (%s)", (n,))
    sum(range(3_000_000))
print(json.dumps({"steps": 50, "seconds": 2.0}), flush=True)
signal.pause()
"""
FEEDER_FAILS = f"""
import asyncio, sys
sys.path.append({str(PROGRAMS)!r})
from measured import Count, feed, measured
async def refused(size):
    if count.asked > 2:
        raise ValueError("the third was refused")
async def main():
    tasks = [asyncio.create_task(feed(count, refused, 1, 10))]
    count.done = 7
    await measured(count, 0.1, tasks)
count = Count()
asyncio.run(main())
"""


def system(program: str, *, in_postgres: bool = True) -> System:
    @contextmanager
    def run(folder: Path, dsn: str, settings: str, seconds: float) -> Generator[Running]:
        yield Running([sys.executable, "-c", program, dsn])

    return System("theirs", "jobs", lambda folder: None, run, in_postgres)


def test_a_turn_counts_what_a_program_did(postgres_server: PostgresServer, tmp_path: Path) -> None:
    with postgres_server.database() as dsn:
        found = turn(system(WRITES_FIFTY), tmp_path, dsn, "best", 1.0)
        assert (found.steps_per_s, found.own_cpu_us > 0) == (25.0, True)
        assert found.commits is not None
        assert found.wal_bytes is not None
        assert 1 <= found.commits < 2
        assert found.wal_bytes > 30
        with pytest.raises(NotHad, match="no such thing"):
            turn(system("raise SystemExit('no such thing')"), tmp_path, dsn, "best", 1.0)
        goes_on = "import sys; print('ready', flush=True); sys.stdin.readline(); "
        with pytest.raises(NotHad, match="ended before it told what it did: midway"):
            turn(system(goes_on + "raise SystemExit('midway')"), tmp_path, dsn, "best", 1.0)
        with pytest.raises(NotHad, match="did nothing"):
            turn(system(goes_on + 'print(\'{"steps": 0, "seconds": 1.0}\')'), tmp_path, dsn, "best", 1.0)
        with pytest.raises(NotHad, match="the third was refused"):
            turn(system(FEEDER_FAILS), tmp_path, dsn, "best", 1.0)


def test_a_run_keeps_each_turn_and_goes_on(
    postgres_server: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = Namespace(folder=tmp_path, seconds=1.0, calibration_seconds=0.01, rounds=1, minutes=0.0)
    options.json = tmp_path / "turns.json"
    (tmp_path / "theirs").mkdir()
    theirs, before = system(WRITES_FIFTY), Figures(1.0, 2.0, None, None, None)
    with postgres_server.database() as dsn:
        assert compare(options, [theirs], dsn) == {}
        assert "to be gone on with" in capsys.readouterr().out
        keep(options.json, {("theirs", "default"): [before]}, about(1.0))
        options.minutes = 10.0
        found = compare(options, [theirs], dsn)
        assert found["theirs", "default"] == [before]
        assert [each.steps_per_s for each in found["theirs", "best"]] == [25.0]
        assert kept(options.json, about(1.0)) == found
        assert compare(options, [theirs], dsn) == found


def test_turns_that_measured_something_else_are_not_gone_on_with(tmp_path: Path) -> None:
    file, figures = tmp_path / "turns.json", Figures(1.0, 2.0, None, None, None)
    keep(file, {("theirs", "best"): [figures]}, about(1.0))
    assert kept(file, about(1.0)) == {("theirs", "best"): [figures]}
    for other in (about(5.0), about(1.0) | {"penstock": "another"}, about(1.0) | {"programs": "others"}):
        with pytest.raises(OtherTurns, match=r"turns.json is not about"):
            kept(file, other)
    file.write_text("[]")  # as turns were kept before they said what they are about
    with pytest.raises(OtherTurns):
        kept(file, about(1.0))


def test_what_can_not_be_installed_says_why(tmp_path: Path) -> None:
    with pytest.raises(NotHad, match=r"false` says: no reason"):
        call(["/bin/sh", "-c", "echo no reason >&2; false"], tmp_path)
    with pytest.raises(NotHad, match="no-such-tool is not on this machine"):
        call(["no-such-tool"], tmp_path)


def test_the_table_compares_with_ours_of_the_same_kind() -> None:
    ours, other, elsewhere = SYSTEMS[0], SYSTEMS[1], SYSTEMS[-1]
    turns = [Figures(n, 10.0 * n, 4.0, 800.0, 0.5) for n in (100.0, 300.0, 200.0)]
    assert middle(turns) == Figures(200.0, 2000.0, 4.0, 800.0, 0.5)
    found = {(ours.name, "best"): middle(turns), (other.name, "best"): Figures(50.0, 1.0, 2.0, 3.0, 4.0)}
    found[elsewhere.name, "default"] = middle([Figures(70.0, 1.0, None, None, None)])
    lines = table(found, [ours, other, elsewhere]).splitlines()
    assert lines[2] == f"| {ours.name} (jobs) | best | 200 |  | 2,000, 4 | 800 B | 0.500 |"
    assert lines[3] == f"| {other.name} (jobs) | best | 50 | 4.0 × | 1, 2 | 3 B | 4.000 |"
    assert lines[4] == f"| {elsewhere.name} (steps) | default | 70 |  | 1, – | – | – |"
    assert {path.stem for path in PROGRAMS.glob("*_*.py")} >= {"pgqueuer_jobs", "absurd_steps", "restate_steps"}
