"""DBOS beside Penstock on one PostgreSQL: an interpreter that has it, and a database for each."""

from __future__ import annotations

import argparse
import json
import subprocess
import venv
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
import trio
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.calibration import calibrate, print_line
from benchmarks.deployment import work_directory
from penstock.store.embedded.embedded import embedded

VERSION = "3.4.0"
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


def calibrated(dsn: str, seconds: float) -> float:
    """Bare commits of that server, told; their median in milliseconds."""
    calibration = calibrate(dsn, seconds)
    rates = ", ".join(f"{rate.connections} at once {rate.commits_per_s:,.0f}/s" for rate in calibration.rates)
    print_line()
    print(f"bare commits: p50 {calibration.commit_p50_ms:.2f} ms, {rates}", flush=True)
    return calibration.commit_p50_ms


def start(command: Sequence[str]) -> subprocess.Popen[str]:
    """One of the two, when it has said that it is ready."""
    process = subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise SystemExit(f"{' '.join(command)} ended with {process.wait()}")
    return process


def go(process: subprocess.Popen[str]) -> Any:
    """Let it measure; what it told. It waits then for the end of its input."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options of every comparison."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--dsn", help="of a server to use; databases penstock_bench and dbos_bench are made anew there")
    made.add_argument("--venv", type=Path, default=Path.home() / ".cache" / "penstock" / f"dbos-{VERSION}")
    made.add_argument("--work-dir", type=Path, default=Path("/var/tmp"))
    made.add_argument("--calibration-seconds", type=float, default=2.0)
    made.add_argument("--json", type=Path, help="where to keep the figures")
    return made


def run(compare: Callable[[str, argparse.Namespace], dict[str, Any]], options: argparse.Namespace) -> None:
    """Compare on the server of ``--dsn``, or an embedded one; keep what was found."""

    async def on_embedded() -> dict[str, Any]:
        with work_directory(options.work_dir) as directory:
            async with embedded(directory / "postgres", settings={"max_connections": "400"}) as dsn:
                return await trio.to_thread.run_sync(partial(compare, dsn, options))

    result = compare(options.dsn, options) if options.dsn else trio.run(on_embedded)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1))
