"""What a start in a program's own transaction costs, beside a start over REST: latency, WAL and CPU.

``python -m benchmarks.sql_requests [--starts 2000]``: one engine process on a PostgreSQL with fsync, nothing else
running. In both ways a program inserts an order in a transaction; it starts the instance in that transaction by SQL, or
after it over REST. Prints how long after the COMMIT an idle engine has started the instance, and for each way seconds,
WAL and CPU of engine and PostgreSQL for each start.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import psycopg

from benchmarks.calibration import print_line
from benchmarks.processes import all_processes, tree_cpu_s
from penstock.client import ClientError, SyncClient
from penstock.client.sql import Requests
from penstock.http.listen import reserved_ports
from penstock.runtime.migrate import Roles
from penstock.runtime.migrate import run as migrate
from penstock.settings import Secret, Settings
from penstock.testing.definitions import linear
from penstock.testing.postgres import apply_schema, run_directory, shared_server

PROGRAMS: Final = 8
LATENCIES: Final = 200
PAUSE_S: Final = 0.05
"""Between two starts of an idle engine."""
STARTED: Final = "SELECT extract(epoch FROM started_at)::float8 FROM instance WHERE id = penstock_number(%s)"


@contextmanager
def engine(dsn: str, port: int) -> Generator[int]:
    """An engine process; its pid."""
    command = [sys.executable, "-m", "penstock", "serve", "--config", os.devnull, "--bind", "127.0.0.1"]
    command += ["--rest-port", str(port), "--grpc-port", "0", "--metrics-port", "0", "--log-level", "warning"]
    process = subprocess.Popen(command, env={**os.environ, "WE_POSTGRES_DSN": dsn})
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(60)


def latency(dsn: str) -> None:
    """Print how long after its COMMIT an idle engine has started an instance."""
    found: list[float] = []
    with psycopg.connect(dsn) as program:
        for number in range(LATENCIES):
            instance = Requests(program, schema="public").start("linear", {"n": number})
            program.commit()
            committed = time.time()
            while not (row := program.execute(STARTED, [instance]).fetchone()):
                program.commit()
            program.commit()
            found.append(float(row[0]) - committed)
            time.sleep(PAUSE_S)
    cuts = quantiles(found, n=100)
    print(f"an idle engine starts it after p50 {1e3 * cuts[49]:.1f} ms, p99 {1e3 * cuts[98]:.1f} ms")


def by_sql(dsn: str, _url: str, numbers: range) -> None:
    """Insert orders, and start their instances in the same transactions."""
    with psycopg.connect(dsn) as program:
        for number in numbers:
            instance = Requests(program, schema="public").start("linear", {"n": number})
            program.execute("INSERT INTO orders VALUES (%s, %s)", (number, instance))
            program.commit()


def by_rest(dsn: str, url: str, numbers: range) -> None:
    """Insert orders, and start their instances after that."""
    with psycopg.connect(dsn) as program, SyncClient(url) as client:
        for number in numbers:
            program.execute("INSERT INTO orders VALUES (%s, NULL)", (number,))
            program.commit()
            client.start_instance("linear", {"n": number})


def measure(name: str, starts: int, dsn: str, url: str, pid: int, work: Callable[[str, str, range], None]) -> None:
    """Print what the starts of one way cost."""
    with psycopg.connect(dsn, autocommit=True) as eyes:

        def one(question: str) -> Any:
            return eyes.execute(question.encode()).fetchall()[0][0]

        postmaster = int(Path(one("SHOW data_directory"), "postmaster.pid").read_text().split()[0])

        def cpu() -> tuple[float, float]:
            processes = all_processes()
            return tree_cpu_s(processes, pid), tree_cpu_s(processes, postmaster)

        eyes.execute("TRUNCATE orders")
        eyes.execute("CHECKPOINT")
        before, wal = one("SELECT count(*) FROM instance"), one("SELECT pg_current_wal_lsn()")
        since, began = cpu(), time.perf_counter()
        with ThreadPoolExecutor(PROGRAMS) as pool:
            each = starts // PROGRAMS
            list(pool.map(lambda at: work(dsn, url, range(at * each, (at + 1) * each)), range(PROGRAMS)))
        while one("SELECT count(*) FROM instance") - before < each * PROGRAMS:
            time.sleep(0.01)
        took_s, until = time.perf_counter() - began, cpu()
        wal_bytes = float(eyes.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), %s)", [wal]).fetchall()[0][0])
    count = each * PROGRAMS
    engine_us, postgres_us = (1e6 * (after - first) / count for first, after in zip(since, until, strict=True))
    print(
        f"{name:5} {count / took_s:7.0f}/s  {wal_bytes / count:7.0f} B of WAL  engine {engine_us:6.0f} us"
        f"  PostgreSQL {postgres_us:6.0f} us of CPU"
    )


def main(starts: int) -> None:
    """Print the figures."""
    directory = run_directory(durable=True)
    with (
        shared_server(directory, durable=True) as server,
        server.database(apply_schema) as dsn,
        reserved_ports(1) as (port,),
    ):
        print_line(dsn)
        with psycopg.connect(dsn, autocommit=True) as program:
            program.execute("CREATE TABLE orders (id int PRIMARY KEY, instance text)")
            assert migrate(Settings(postgres_dsn=Secret(dsn)), Roles(start=[program.info.user])) is not None
        url = f"http://127.0.0.1:{port}"
        with engine(dsn, port) as pid, SyncClient(url) as client:
            while True:
                try:
                    client.upload_definition(linear(1))
                    break
                except ClientError:
                    time.sleep(0.1)
            latency(dsn)
            for _ in range(2):
                measure("SQL", starts, dsn, url, pid, by_sql)
                measure("REST", starts, dsn, url, pid, by_rest)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=2_000)
    main(parser.parse_args().starts)
