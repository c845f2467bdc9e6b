"""The same workflows of ten no-op steps by Penstock in library mode and by DBOS Transact, in turn, on one PostgreSQL.

    python -m benchmarks.peers.dbos [--seconds 10] [--at-once 1,64,256] [--rounds 2] [--json FILE]

Installs DBOS with pip into a virtual environment of its own (`--venv`), which is kept. The server is an embedded
PostgreSQL with its defaults (fsync on) in a new directory on a real disk, or the one of `--dsn`; each system has a
database of its own there. Bare commits of that server are measured first. Per size and round: Penstock, DBOS with
asyncio, DBOS with threads; the ratio is to the better of DBOS's two.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
import trio
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.calibration import calibrate
from benchmarks.database import Database
from benchmarks.deployment import work_directory
from benchmarks.result import median
from penstock.store.embedded import embedded

VERSION = "3.4.0"
STEPS = 10
SETTLE_S = 1.2
"""PostgreSQL's sessions report their statistics once a second."""
HERE = Path(__file__).parent
CHECKOUT = HERE.parents[2]


def python_with_dbos(directory: Path) -> Path:
    """The interpreter of a virtual environment with DBOS; made when it is not there."""
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
    installed = subprocess.run([python, "-c", "import dbos"], capture_output=True, check=False)
    if installed.returncode:
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"dbos=={VERSION}"], check=True)
    return python


def new_database(dsn: str, name: str) -> str:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return make_conninfo(dsn, dbname=name)


def url_of(dsn: str) -> str:
    """The DSN as the kind of URL that SQLAlchemy takes."""
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    user, database = parts.pop("user", "postgres"), parts.pop("dbname", "postgres")
    password = parts.pop("password", "")
    who = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    return f"postgresql://{who}@/{quote(database, safe='')}?{urlencode(parts)}"


def measured(command: Sequence[str], database: Database) -> dict[str, float]:
    """One process's figures, with the server's between its "ready" and its end."""
    process = subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise SystemExit(f"{' '.join(command)} ended with {process.wait()}")
        time.sleep(SETTLE_S)
        before = database.counters()
        process.stdin.write("go\n")
        process.stdin.flush()
        told: dict[str, Any] = json.loads(process.stdout.readline())
        time.sleep(SETTLE_S)
        after = database.counters()
        process.stdin.close()
    steps = told["runs"] * STEPS
    return {
        "steps_per_s": steps / told["seconds"],
        "run_p50_ms": told["run_p50_ms"],
        "commits_per_step": (after.commits - before.commits) / steps,
        "wal_bytes_per_step": (after.wal_bytes - before.wal_bytes) / steps,
        "cpu_us_per_step": told["cpu_s"] / steps * 1e6,
    }


def compare(dsn: str, options: argparse.Namespace) -> dict[str, Any]:
    python = python_with_dbos(options.venv)
    calibration = calibrate(dsn, options.calibration_seconds)
    rates = ", ".join(f"{rate.connections} at once {rate.commits_per_s:,.0f}/s" for rate in calibration.rates)
    print(f"bare commits: p50 {calibration.commit_p50_ms:.2f} ms, {rates}", flush=True)
    ours, theirs = new_database(dsn, "penstock_bench"), new_database(dsn, "dbos_bench")
    environment = {**os.environ, "WE_POSTGRES_DSN": ours}
    subprocess.run([sys.executable, "-m", "penstock", "migrate", "--config", os.devnull], env=environment, check=True)
    result: dict[str, Any] = {"dbos": VERSION, "commit_p50_ms": calibration.commit_p50_ms, "rounds": []}
    for at_once in map(int, options.at_once.split(",")):
        ratios: list[float] = []
        for number in range(options.rounds):
            size, seconds = str(at_once), str(options.seconds)
            work = ["-m", "benchmarks.load.durable", ours, "steps", "--at-once", size, "--seconds", seconds]
            kinds = {"penstock": [sys.executable, *work]}
            for kind in ("async", "sync"):
                kinds[f"dbos {kind}"] = [str(python), str(HERE / "workload.py"), url_of(theirs), kind, size, seconds]
            figures: dict[str, dict[str, float]] = {}
            for kind, command in kinds.items():
                database = Database(ours if kind == "penstock" else theirs)
                figures[kind] = measured(command, database)
                database.close()
                print(f"{at_once:4} at once, round {number + 1}, {kind:10}: {_shown(figures[kind])}", flush=True)
            best = max(figures["dbos async"]["steps_per_s"], figures["dbos sync"]["steps_per_s"])
            ratios.append(figures["penstock"]["steps_per_s"] / best)
            result["rounds"].append({"at_once": at_once, "figures": figures, "ratio": ratios[-1]})
        shown = ", ".join(f"{ratio:.1f}" for ratio in ratios)
        print(f"{at_once:4} at once: {median(ratios):.1f} × DBOS ({shown})", flush=True)
    return result


def _shown(figures: dict[str, float]) -> str:
    return (
        f"{figures['steps_per_s']:9,.0f} steps/s, p50 {figures['run_p50_ms']:7.1f} ms a run,"
        f" {figures['commits_per_step']:.3f} commits, {figures['wal_bytes_per_step']:,.0f} B of WAL,"
        f" {figures['cpu_us_per_step']:,.0f} µs of CPU a step"
    )


async def on_embedded(options: argparse.Namespace) -> dict[str, Any]:
    with work_directory(options.work_dir) as directory:
        async with embedded(directory / "postgres", settings={"max_connections": "400"}) as dsn:
            return await trio.to_thread.run_sync(partial(compare, dsn, options))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsn", help="of a server to use; databases penstock_bench and dbos_bench are made anew there")
    parser.add_argument("--venv", type=Path, default=Path.home() / ".cache" / "penstock" / f"dbos-{VERSION}")
    parser.add_argument("--work-dir", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--at-once", default="1,64,256")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--calibration-seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where to keep the figures")
    options = parser.parse_args()
    result = compare(options.dsn, options) if options.dsn else trio.run(on_embedded, options)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
