"""What stands between an engine and its work: a pooler, or more processes. The same load on each, in turn, in one run.

    python -m benchmarks.machines pooler|processes [--scenario single-3] [--items 3000] [--rounds 6]

`pooler`: an engine that reaches PostgreSQL directly, and one that goes through PgBouncer in session mode, on the same
server (Unix sockets both). `processes`: 1, 2 and 4 engine processes, each with a PostgreSQL of its own. Prints jobs a
second, CPU seconds per 1,000 jobs of engine, PostgreSQL, generator and pooler, and each against the first by rounds
(95 %). All share this machine's cores: with two of them more processes can't win anything, they can only cost.
"""

from __future__ import annotations

import argparse
import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.bench import Bench, Options
from benchmarks.calibration import print_line
from benchmarks.database import Database
from benchmarks.deployment import Deployment, engine, work_directory
from benchmarks.pair import estimate
from benchmarks.processes import read_process
from benchmarks.scenarios import SCENARIOS

PROCESSES: Final = (1, 2, 4)
POOLER_PORT: Final = 6432
ANSWERS_WITHIN_S: Final = 30.0
FIGURES: Final = {
    "jobs/s": "jobs_per_s",
    "engine CPU": "engine_cpu_s_per_1000",
    "PostgreSQL CPU": "postgres_cpu_s_per_1000",
    "generator CPU": "generator_cpu_s_per_1000",
    "pooler CPU": "pooler_cpu_s_per_1000",
    "batch": "mean_batch",
}


class Variant(NamedTuple):
    """One way of running it. ``beside``: a process whose CPU counts, too."""

    name: str
    bench: Bench
    beside: int | None = None


Open = Callable[[ExitStack, Options], list[Variant]]


def pooler(stack: ExitStack, options: Options) -> list[Variant]:
    """Two databases of one server."""
    directory = stack.enter_context(work_directory(options.work_dir))
    direct = stack.enter_context(engine(directory, options.settings))
    assert direct.dsn is not None
    with psycopg.connect(direct.dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE pooled")
    past = make_conninfo(direct.dsn, dbname="pooled")
    migrate = [sys.executable, "-m", "penstock", "migrate", "--config", os.devnull]  # PgBouncer 1.18 refuses `options`
    subprocess.run(migrate, check=True, env=os.environ | {"WE_POSTGRES_DSN": past, "WE_DB_SCHEMA": "public"})
    beside, dsn = stack.enter_context(pgbouncer(direct.dsn, "pooled"))
    apart = stack.enter_context(work_directory(options.work_dir))
    pooled = stack.enter_context(engine(apart, options.settings, dsn=dsn))
    return [
        Variant("direct", _bench(stack, direct, options)),
        Variant("PgBouncer, session", _bench(stack, replace(pooled, dsn=past), options), beside),
    ]


def processes(stack: ExitStack, options: Options) -> list[Variant]:
    """As many engines, one idle while the others are measured."""
    found: list[Variant] = []
    for number in PROCESSES:
        directory = stack.enter_context(work_directory(options.work_dir))
        settings = {**options.settings, "processes": str(number)}
        deployment = stack.enter_context(engine(directory, settings))
        found.append(Variant(f"{number} processes", _bench(stack, deployment, options)))
    return found


OPEN: Final[dict[str, Open]] = {"pooler": pooler, "processes": processes}


def _bench(stack: ExitStack, deployment: Deployment, options: Options) -> Bench:
    assert deployment.dsn is not None
    database = Database(deployment.dsn)
    stack.callback(database.close)
    return Bench(deployment, database, options, lambda share, text: None)


@contextmanager
def pgbouncer(dsn: str, database: str) -> Generator[tuple[int, str]]:
    """PgBouncer in session mode before ``database`` of a server: its process, and the DSN that leads through it."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        sys.exit("pgbouncer is not installed")
    target = conninfo_to_dict(dsn)
    account = pwd.getpwnam("postgres") if os.geteuid() == 0 else None  # it refuses to run as root
    with work_directory(Path("/var/tmp")) as directory:
        ini = directory / "pgbouncer.ini"
        ini.write_text(
            f"[databases]\n{database} = host={target['host']} port={target['port']} user={target['user']}\n"
            f"[pgbouncer]\nlisten_port = {POOLER_PORT}\nunix_socket_dir = {directory}\nauth_type = any\n"
            "pool_mode = session\nmax_client_conn = 200\ndefault_pool_size = 50\n"
        )
        if account is not None:
            os.chown(directory, account.pw_uid, account.pw_gid)
        process = subprocess.Popen(
            [program, str(ini)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            user=None if account is None else account.pw_uid,
            group=None if account is None else account.pw_gid,
        )
        try:
            through = f"host={directory} port={POOLER_PORT} user={target['user']} dbname={database}"
            _wait_answers(through)
            yield process.pid, through
        finally:
            process.terminate()
            process.wait()


def _wait_answers(dsn: str) -> None:
    until = time.monotonic() + ANSWERS_WITHIN_S
    while time.monotonic() < until:
        with suppress(psycopg.OperationalError):
            psycopg.connect(dsn, connect_timeout=5).close()
            return
        time.sleep(0.05)
    sys.exit(f"PgBouncer does not answer within {ANSWERS_WITHIN_S:.0f} s")


def measure(variant: Variant, scenario: str) -> dict[str, float]:
    """One window's figures."""
    before = _cpu_s(variant.beside)
    run = SCENARIOS[scenario].run(variant.bench)
    if run.problems or run.figures.get("errors"):
        sys.exit(f"{variant.name}: {'; '.join(run.problems) or 'errors'}")
    figures = dict(run.figures)
    if variant.beside is not None:
        items = variant.bench.options.items or 1
        figures["pooler_cpu_s_per_1000"] = (_cpu_s(variant.beside) - before) / items * 1000
    return figures


def _cpu_s(pid: int | None) -> float:
    facts = None if pid is None else read_process(pid)
    return 0.0 if facts is None else facts.cpu_s


def print_figures(variants: list[Variant], rounds: list[dict[str, dict[str, float]]]) -> None:
    """Medians, and each against the first: the ratio of each round."""
    first = variants[0].name
    for variant in variants:
        parts: list[str] = []
        for title, figure in FIGURES.items():
            values = [each[variant.name][figure] for each in rounds if figure in each[variant.name]]
            if not values:
                continue
            text = f"{title} {median(values):,.3f}" if median(values) < 100 else f"{title} {median(values):,.0f}"
            both = [each for each in rounds if each[first].get(figure) and each[variant.name].get(figure)]
            found = estimate([each[variant.name][figure] / each[first][figure] for each in both])
            if found is not None and variant.name != first:
                text += f" ({found.ratio:.3f}, {found.low:.3f} to {found.high:.3f})"
            parts.append(text)
        print(f"{variant.name}: {'; '.join(parts)}")


def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    print_line()
    rounds: list[dict[str, dict[str, float]]] = []
    with ExitStack() as stack:
        variants = OPEN[options.what](stack, Options(work_dir=Path("/var/tmp"), items=options.items))
        for variant in variants:
            measure(variant, options.scenario)  # caches, plans, the first pages of the tables
        for number in range(options.rounds):
            turn = variants if number % 2 == 0 else variants[::-1]
            rounds.append({each.name: measure(each, options.scenario) for each in turn})
    print(f"{options.scenario}, {options.items} items, {options.rounds} rounds, {os.cpu_count()} cores for all")
    print_figures(variants, rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=OPEN)
    parser.add_argument("--scenario", default="single-3", choices=[*SCENARIOS])
    parser.add_argument("--items", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=6)
    main(parser.parse_args())
