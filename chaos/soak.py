"""A soak: mixed load with faults for a long time, and whether memory, latency and tables stay flat.

One engine is never killed, so that its memory can be followed; it lives through all that happens to the others, to
PostgreSQL and to the network. Flat means: the median of the last third is not above that of the first third by more
than `LIMITS` allows, after a warm-up that is left out; latencies are held against how fast the machine itself was then,
as others may use it, too. What is kept for good (instances, history) may grow, but not
per instance.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import psycopg
import trio

from chaos.load import Load
from chaos.rig import Rig
from chaos.runner import Attack, Report, run

SAMPLE_S = 5.0
SPIN_TURNS = 1_000_000
WARM_UP_SHARE = 0.1
RATE = 4.0
GAP_S = (4.0, 16.0)
"""Between two faults: time enough for latencies that are not those of the faults."""
TABLES = ("token", "ready", "timer", "job_note", "buffered_signal", "instance_key", "engine")
"""Those that hold what is open only."""
FAULTS = (
    "kill-engine", "stop-engine", "pause-engine", "kill-worker", "pause-worker", "terminate-backends", "kill-backend",
    "stop-postgres", "pause-postgres", "slow-postgres", "lock-tables", "read-only", "database-network",
    "engine-network",
)  # fmt: skip


class Sample(msgspec.Struct, frozen=True):
    """One look. Bytes and seconds; ``files``: open files of the engine that lives on."""

    at: float
    engine_bytes: int
    files: int
    table_bytes: int
    instances: int
    kept_bytes: int
    start_p50_s: float | None = None
    start_p99_s: float | None = None
    spin_s: float = 0.0
    """What a fixed piece of work took: how busy the machine is with others."""


class Limit(NamedTuple):
    """``last`` may be at most ``first`` times the factor, plus the allowance."""

    what: str
    value: Callable[[Sample], float | None]
    factor: float
    allowance: float
    scaled: bool = False
    """Whether ``last`` may be larger as the machine got slower."""


# What the lambdas take stands in `Limit`, which pyright does not carry through a NamedTuple:
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
LIMITS = (
    Limit("memory of the engine [MB]", lambda sample: sample.engine_bytes / 1e6, 1.10, 8),
    Limit("open files of the engine", lambda sample: sample.files, 1.0, 8),
    Limit("tables of what is open [MB]", lambda sample: sample.table_bytes / 1e6, 1.5, 2),
    Limit("kept per instance [kB]", lambda sample: sample.kept_bytes / max(1, sample.instances) / 1e3, 1.1, 1),
    Limit("start, median [ms]", lambda sample: _ms(sample.start_p50_s), 1.5, 20, scaled=True),
)


class Trend(msgspec.Struct, frozen=True):
    """One figure's medians in the first and in the last third."""

    what: str
    first: float
    last: float
    flat: bool


class SoakReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the runner found, the samples and what they show."""

    report: Report
    samples: list[Sample]
    trends: list[Trend]

    @property
    def good(self) -> bool:
        """Whether the guarantees held and everything was flat."""
        return not self.report.broken and all(trend.flat for trend in self.trends)


async def soak(directory: Path, seed: str, seconds: float, rate: float) -> SoakReport:
    """Run one in ``directory``; see `runner.run`."""
    samples: list[Sample] = []

    async def sample(rig: Rig, load: Load) -> None:
        start = trio.current_time()
        while True:
            await trio.sleep(SAMPLE_S)
            with suppress(psycopg.Error, OSError):
                samples.append(_sample(rig, load, trio.current_time() - start))

    report = await run(Attack("soak", FAULTS, seed, seconds, rate, GAP_S), directory, watch=sample, spare=1)
    return SoakReport(report=report, samples=samples, trends=trends(samples))


def trends(samples: list[Sample]) -> list[Trend]:
    """First third against last third of what comes after the warm-up; none when there is too little of it."""
    warm = samples[int(len(samples) * WARM_UP_SHARE) :]
    third = len(warm) // 3
    found: list[Trend] = []
    for limit in LIMITS:
        values = [
            [value for one in part if (value := limit.value(one)) is not None] for part in (warm[:third], warm[-third:])
        ]
        if third and all(values):
            first, last = (statistics.median(each) for each in values)
            slower = max(1.0, _spin(warm[-third:]) / _spin(warm[:third])) if limit.scaled else 1.0
            flat = last <= (first * limit.factor + limit.allowance) * slower
            found.append(Trend(limit.what, round(first, 2), round(last, 2), flat))
    return found


def _sample(rig: Rig, load: Load, at: float) -> Sample:
    with psycopg.connect(rig.dsn, connect_timeout=3) as connection:
        connection.execute("SET statement_timeout = '3s'")
        ((open_bytes, kept_bytes, instances),) = connection.execute(
            "SELECT sum(pg_total_relation_size(oid)) FILTER (WHERE relname = ANY(%s)),"
            " pg_database_size(current_database()),"
            " (SELECT count(*) FROM instance) FROM pg_class WHERE relkind = 'r'",
            (list(TABLES),),
        ).fetchall()
    latencies, load.latencies_s[:] = sorted(load.latencies_s), []
    engine = rig.engines[0]
    return Sample(
        at=round(at, 1),
        engine_bytes=engine.resident_bytes,
        files=len(os.listdir(f"/proc/{engine.pid}/fd")),
        table_bytes=int(open_bytes),
        instances=instances,
        kept_bytes=int(kept_bytes),
        start_p50_s=latencies[len(latencies) // 2] if latencies else None,
        start_p99_s=latencies[len(latencies) * 99 // 100] if latencies else None,
        spin_s=_spin_now(),
    )


def _spin_now() -> float:
    """How long a fixed piece of work takes here and now: some 20 ms on an idle core."""
    began = time.perf_counter()
    for _ in range(SPIN_TURNS):
        pass
    return time.perf_counter() - began


def _spin(samples: list[Sample]) -> float:
    return statistics.mean(sample.spin_s for sample in samples) or 1.0


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
