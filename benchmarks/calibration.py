"""What the same PostgreSQL does at best right now: one durable commit's latency, and commits per second.

A row of about 100 bytes is inserted per transaction, with prepared statements over libpq's asynchronous interface, from
one thread: 20 µs of CPU per commit. Jobs per second of different runs or machines compare only beside these figures.
"""

from __future__ import annotations

import select
import time
from collections.abc import Generator
from contextlib import closing, contextmanager

import psycopg
from psycopg import pq

from benchmarks.figures import describe, show
from benchmarks.load.counts import percentile
from benchmarks.processes import own_cpu_s
from benchmarks.result import Calibration, CommitRate
from benchmarks.units import measure_units

TABLE = b"penstock_benchmark_calibration"
CONNECTIONS = (1, 8, 32)
STATEMENT = b"insert"
NOW_S = 0.3
"""Of each commit rate, where they are taken again and again."""


def calibrate(dsn: str, seconds: float) -> Calibration:
    """Commit rates with 1, 8 and 32 connections, each for some seconds; the latency is that of the lone connection."""
    rates: list[CommitRate] = []
    latency: list[float] = []
    with _table(dsn):
        for connections in CONNECTIONS:
            rate, latencies = _measure(dsn, connections, seconds)
            rates.append(rate)
            if connections == 1:
                latency = sorted(latencies)
    p50, p99 = percentile(latency, 0.5), percentile(latency, 0.99)
    assert p50 is not None
    assert p99 is not None
    return Calibration(commit_p50_ms=p50 * 1e3, commit_p99_ms=p99 * 1e3, rates=rates)


def calibration_of_now(dsn: str | None, seconds: float = NOW_S) -> dict[str, float]:
    """What goes with each figure: the CPU of fixed work (`units`) and, with a database, its bare commit rates."""
    found = measure_units()
    if dsn is not None:
        rates = calibrate(dsn, seconds).rates
        found |= {f"commits_per_s_{rate.connections}": rate.commits_per_s for rate in rates}
    return found


def print_line(dsn: str | None = None) -> None:
    """The same in a line, for programs that print their figures themselves."""
    values = [f"{describe(name).label} {show(name, value)}" for name, value in calibration_of_now(dsn).items()]
    print(f"calibration: {', '.join(values)}", flush=True)


def commit_p50_ms(dsn: str, seconds: float) -> float:
    """The median latency of one durable commit, now."""
    with _table(dsn):
        _, latencies = _measure(dsn, 1, seconds)
    p50 = percentile(sorted(latencies), 0.5)
    assert p50 is not None
    return p50 * 1e3


def commits_in_a_row_ms(dsn: str, seconds: float, count: int, pause_s: float = 0.0) -> tuple[float, float]:
    """Median and 99th percentile of ``count`` durable commits, one after the other, with a pause behind each row."""
    with _table(dsn):
        rows = sorted(_rows(dsn, seconds, count, pause_s))
    p50, p99 = percentile(rows, 0.5), percentile(rows, 0.99)
    assert p50 is not None
    assert p99 is not None
    return p50 * 1e3, p99 * 1e3


def _rows(dsn: str, seconds: float, count: int, pause_s: float) -> list[float]:
    taken: list[float] = []
    with select.epoll() as poller, closing(_Session(dsn)) as session:
        poller.register(session.connection.socket, select.EPOLLIN)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            latencies: list[float] = []
            began = time.perf_counter()
            while len(latencies) < count:
                session.send()
                poller.poll()
                while not session.receive(latencies):
                    poller.poll()
            taken.append(time.perf_counter() - began)
            time.sleep(pause_s)
    return taken


@contextmanager
def _table(dsn: str) -> Generator[None]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(b"DROP TABLE IF EXISTS " + TABLE)
        connection.execute(b"CREATE TABLE " + TABLE + b" (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)")
        try:
            yield
        finally:
            connection.execute(b"DROP TABLE " + TABLE)


def _measure(dsn: str, connections: int, seconds: float) -> tuple[CommitRate, list[float]]:
    latencies: list[float] = []
    sessions: dict[int, _Session] = {}
    poller = select.epoll()
    try:
        for _ in range(connections):
            session = _Session(dsn)
            sessions[session.connection.socket] = session
            poller.register(session.connection.socket, select.EPOLLIN)
        used_s, began = own_cpu_s(), time.perf_counter()
        until = began + seconds
        for session in sessions.values():
            session.send()
        busy = len(sessions)
        while busy:
            for fileno, _ in poller.poll():
                session = sessions[fileno]
                if session.receive(latencies):
                    if time.perf_counter() < until:
                        session.send()
                    else:
                        busy -= 1
        elapsed = time.perf_counter() - began
        used_s = own_cpu_s() - used_s
    finally:
        poller.close()
        for session in sessions.values():
            session.close()
    rate = CommitRate(
        connections=connections,
        commits_per_s=len(latencies) / elapsed,
        client_cpu_s_per_1000=used_s / len(latencies) * 1000,
    )
    return rate, latencies


class _Session:
    """One connection with one insert under way."""

    def __init__(self, dsn: str) -> None:
        connection = pq.PGconn.connect(dsn.encode())
        if connection.status != pq.ConnStatus.OK:
            raise psycopg.OperationalError(connection.error_message.decode(errors="replace"))
        connection.exec_(b"SET synchronous_commit = on")
        connection.prepare(STATEMENT, b"INSERT INTO " + TABLE + b" (v) VALUES ($1)")
        connection.nonblocking = 1
        self.connection = connection
        self._sent_at = 0.0

    def send(self) -> None:
        self._sent_at = time.perf_counter()
        self.connection.send_query_prepared(STATEMENT, [b"x" * 60])
        self.connection.flush()

    def receive(self, latencies: list[float]) -> bool:
        """True when the commit is confirmed."""
        self.connection.consume_input()
        if self.connection.is_busy():
            return False
        result = self.connection.get_result()
        while result is not None:
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise psycopg.OperationalError(result.error_message.decode(errors="replace"))
            result = self.connection.get_result()
        latencies.append(time.perf_counter() - self._sent_at)
        return True

    def close(self) -> None:
        self.connection.finish()
