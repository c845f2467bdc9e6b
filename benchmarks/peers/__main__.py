"""Others that do the same kind of work, each in its own environment, beside Penstock on one PostgreSQL, in turn.

    python -m benchmarks.peers FOLDER [--only NAME …] [--seconds 5] [--rounds 2] [--minutes 2.5] [--json FILE]

Jobs: one that does nothing, asked for and worked off; what asks stays a bounded number ahead of what is done. Steps: of
runs with ten that do nothing, one after the other. Each system twice, with its own defaults (jobs asked for singly)
and with the best settings that were found (`systems.py`, `programs/`). The server is an embedded PostgreSQL with its
defaults (fsync on) in FOLDER, a new database for each; figures are medians of the rounds. CPU is that of its processes
and of PostgreSQL's; WAL and commits (those that write) are the server's. Prints a table for the notebook of results.

Each turn is kept in ``--json`` as soon as it is over, and the same command goes on where that file ends: after
``--minutes`` it stops between two turns, so that a machine which others wait for can be had in pieces. A file of other
``--seconds``, another Penstock or other programs is refused.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import time
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import trio

from benchmarks.database import Database
from benchmarks.pair import side
from benchmarks.peers.dbos.side_by_side import calibrated, new_database
from benchmarks.peers.systems import PROGRAMS, SYSTEMS, NotHad, System
from benchmarks.processes import all_processes, read_process, tree_cpu_s
from benchmarks.result import median
from penstock.store.embedded.embedded import embedded

TOP = Path(__file__).parents[2]
SETTINGS = ("default", "best")
STEPS_OF_A_RUN = 10


class Figures(NamedTuple):
    """Of one turn, or the medians of several; per step but for the first."""

    steps_per_s: float
    own_cpu_us: float
    postgres_cpu_us: float | None
    wal_bytes: float | None
    commits: float | None


def turn(system: System, folder: Path, dsn: str, settings: str, seconds: float) -> Figures:
    """One measurement. Raises NotHad when its program fails, or does nothing."""
    with closing(Database(dsn)) as database:
        ((backend,),) = database.fetch("SELECT pg_backend_pid()")
        facts = read_process(backend)
        assert facts is not None, "the server is on another machine"
        with system.run(folder, dsn, settings, seconds) as running:
            log = folder / "program.log"
            with log.open("wb") as errors:
                process = subprocess.Popen(
                    list(map(str, running.command)),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
            with process:
                assert process.stdin is not None
                assert process.stdout is not None

                def fails(how: str) -> NotHad:
                    process.kill()
                    return NotHad(f"{system.name} {how}: {log.read_text(errors='replace')[-600:]}")

                if process.stdout.readline() != "ready\n":
                    raise fails("does not start")

                def used() -> tuple[float, float]:
                    processes = all_processes()
                    beside = 0.0 if running.beside is None else tree_cpu_s(processes, running.beside, facts.parent)
                    return tree_cpu_s(processes, process.pid) + beside, tree_cpu_s(processes, facts.parent)

                before, used_before = database.counters(), used()
                process.stdin.write("go\n")
                process.stdin.flush()
                line = process.stdout.readline()
                after, used_after = database.counters(), used()
                reported: dict[str, Any] = json.loads(line) if line else {}
                steps = reported.get("steps", 0) or reported.get("runs", 0) * STEPS_OF_A_RUN
                if not steps:
                    raise fails("did nothing" if reported else "ended before it told what it did")
                process.kill()  # it has told; some never end of themselves
    own, postgres = ((later - earlier) / steps * 1e6 for earlier, later in zip(used_before, used_after, strict=True))
    return Figures(
        steps / reported["seconds"],
        own,
        postgres if system.in_postgres else None,
        (after.wal_bytes - before.wal_bytes) / steps if system.in_postgres else None,
        (after.write_commits - before.write_commits) / steps if system.in_postgres else None,
    )


def middle(turns: list[Figures]) -> Figures:
    """Medians of each figure."""

    def of(name: str) -> float | None:
        known = [value for each in turns if (value := getattr(each, name)) is not None]
        return median(known) if known else None

    return Figures(
        of("steps_per_s") or 0.0, of("own_cpu_us") or 0.0, of("postgres_cpu_us"), of("wal_bytes"), of("commits")
    )


def row(system: System, settings: str, figures: Figures, ours: Figures | None) -> str:
    """One line of the table; with the ratio of ours to it."""
    ratio = "" if ours is None else f"{ours.steps_per_s / figures.steps_per_s:.1f} ×"
    postgres = "–" if figures.postgres_cpu_us is None else f"{figures.postgres_cpu_us:,.0f}"
    wal = "–" if figures.wal_bytes is None else f"{figures.wal_bytes:,.0f} B"
    commits = "–" if figures.commits is None else f"{figures.commits:.3f}"
    return (
        f"| {system.name} ({system.kind}) | {settings} | {figures.steps_per_s:,.0f} | {ratio} |"
        f" {figures.own_cpu_us:,.0f}, {postgres} | {wal} | {commits} |"
    )


def table(found: dict[tuple[str, str], Figures], systems: Iterable[System]) -> str:
    """As a page shows it; the ratio is Penstock's with the same settings to the system's."""
    lines = [
        "| | settings | steps/s | Penstock does | CPU µs a step: its own, PostgreSQL's | WAL a step | commits a step |",
        "|---|---|---|---|---|---|---|",
    ]
    of = {kind: next(each.name for each in SYSTEMS if each.kind == kind) for kind in ("jobs", "steps")}
    for system in systems:
        for settings in SETTINGS:
            figures, ours = found.get((system.name, settings)), found.get((of[system.kind], settings))
            if figures is None:
                continue
            lines.append(row(system, settings, figures, None if ours is figures else ours))
    return "\n".join(lines)


Turns = dict[tuple[str, str], list[Figures]]


class OtherTurns(Exception):
    """The file's turns measured something else."""


def about(seconds: float) -> dict[str, Any]:
    """What turns measure: those about something else have no common median with them."""
    programs = hashlib.sha256()
    for path in (
        PROGRAMS.parent / "systems.py",
        *sorted(each for each in PROGRAMS.rglob("*") if each.is_file() and each.suffix != ".pyc"),
    ):
        programs.update(path.read_bytes())
    return {"seconds": seconds, "penstock": side(TOP).commit, "programs": programs.hexdigest()[:10]}


def kept(file: Path | None, about: dict[str, Any]) -> Turns:
    """The turns of earlier runs. Raises OtherTurns."""
    if file is None or not file.exists():
        return {}
    read = json.loads(file.read_text())
    if not isinstance(read, dict) or read["about"] != about:
        raise OtherTurns(f"{file} is not about {about}: name another file")
    return {(each["system"], each["settings"]): [Figures(**turn) for turn in each["turns"]] for each in read["turns"]}


def keep(file: Path | None, turns: Turns, about: dict[str, Any]) -> None:
    """Write all turns so far: whole, or not at all."""
    if file is None:
        return
    new = file.with_suffix(".new")
    found = [
        {"system": name, "settings": settings, "turns": [each._asdict() for each in of]}
        for (name, settings), of in turns.items()
    ]
    new.write_text(json.dumps({"about": about, "turns": found}, indent=1))
    new.replace(file)


def compare(options: argparse.Namespace, systems: list[System], dsn: str) -> Turns:
    until = time.monotonic() + options.minutes * 60
    measured = about(options.seconds)
    turns = kept(options.json, measured)
    calibrated(dsn, options.calibration_seconds)
    failed: set[tuple[str, str]] = set()
    for number in range(options.rounds):
        for system in systems:
            for settings in SETTINGS:
                key = (system.name, settings)
                if key in failed or len(turns.get(key, ())) > number:
                    continue
                if time.monotonic() > until:
                    print("to be gone on with: the same command again", flush=True)
                    return turns
                folder = options.folder / system.name.replace(" ", "-").replace(",", "")
                try:
                    with_dsn = new_database(dsn, "peer")
                    figures = turn(system, folder, with_dsn, settings, options.seconds)
                except NotHad as error:
                    failed.add(key)
                    print(f"left out: {system.name}, {settings}: {error}", flush=True)
                    continue
                turns.setdefault(key, []).append(figures)
                keep(options.json, turns, measured)
                print(f"round {number + 1}: {row(system, settings, figures, None)}", flush=True)
    return turns


async def on_embedded(options: argparse.Namespace, systems: list[System]) -> Turns:
    settings = {"max_connections": "200"}
    async with embedded(options.folder / "postgres", settings=settings) as dsn:
        return await trio.to_thread.run_sync(partial(compare, options, systems, dsn))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="for the environments, kept, and the database")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="parts of names: river pgqueuer …")
    parser.add_argument("--install", action="store_true", help="install, and measure nothing")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--calibration-seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60.0, help="no turn begins after so many")
    parser.add_argument("--json", type=Path, help="where the figures of each turn are kept, and gone on with")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    systems: list[System] = []
    for system in SYSTEMS:
        if options.only and not any(part.lower() in system.name.lower() for part in options.only):
            continue
        folder = options.folder / system.name.replace(" ", "-").replace(",", "")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            system.install(folder)
        except NotHad as error:
            print(f"left out: {system.name}: {error}", flush=True)
        else:
            systems.append(system)
    if options.install:
        return
    try:
        kept(options.json, about(options.seconds))
    except OtherTurns as error:
        parser.error(str(error))
    turns = trio.run(on_embedded, options, systems)
    print("\n" + table({key: middle(each) for key, each in turns.items()}, systems))


if __name__ == "__main__":
    main()
