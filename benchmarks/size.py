"""How large an installation has to be, from what was measured: `penstock bench size`.

Pure arithmetic on a result file. What the result does not have is said, never guessed; the sizes of rows are those of a
database of 2,000 instances of three jobs each (`python -m benchmarks.rows`; docs/sizing.md has the date).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import msgspec

from benchmarks.result import Result, UnreadableResult

DAY_S: Final = 86_400
UTILISATION: Final = 0.6
"""Of a core, at the peak: beyond it batches, and with them latencies, grow fast."""
START_SCENARIO: Final = "start-single"
INSTANCE_ROW_BYTES: Final = 294
"""On disk with its indexes, without variables; its pages are half full, for the update at the end."""
TOASTED_BYTES: Final = 2_000
"""Variables of more bytes lie elsewhere, once."""
JOB_ROW_BYTES: Final = 163
"""Of history, with its index, without output."""
CONNECTIONS_PER_PROCESS: Final = 10
"""DB_MAX_CONNS."""


class Load(NamedTuple):
    """What an installation has to bear, on average of a day; at its peak ``peak`` times as much."""

    instances_per_s: float
    jobs_per_instance: float
    variables_bytes: int
    output_bytes: int
    peak: float
    kept_days: float


class Sizing(msgspec.Struct, kw_only=True):
    """What it needs, and of which result that was made."""

    commit: str
    scenario: str
    jobs_per_s_average: float
    jobs_per_s_peak: float
    jobs_per_s_per_engine_core: float
    engine_cores: float
    engine_processes: int
    postgres_cores: float
    connections: int
    wal_bytes_per_day: float
    disk_bytes_per_day: float
    disk_bytes_kept: float
    left_out: list[str]


def sizing(measured: Result, scenario: str, load: Load) -> Sizing:
    """What the load needs on machines such as the one that was measured. Raises UnreadableResult when the result lacks
    the scenario, or CPU and WAL of it."""
    found = measured.scenario(scenario)
    if found is None:
        raise UnreadableResult(
            f"there is no scenario {scenario} in it: run `penstock bench {scenario} {START_SCENARIO}`"
        )
    try:
        job_engine, job_postgres, job_wal = (
            found.figures[name] for name in ("engine_cpu_s_per_1000", "postgres_cpu_s_per_1000", "wal_bytes_per_item")
        )
    except KeyError as error:
        raise UnreadableResult(
            f"{scenario} has no {error} there: with --url it needs --dsn and --metrics-url"
        ) from error
    start = measured.scenario(START_SCENARIO)
    left_out = [] if start is not None else [f"what starts cost: {START_SCENARIO} was not measured"]
    figures = {} if start is None else start.figures
    jobs_per_s = load.instances_per_s * load.jobs_per_instance

    def cores(per_job: float, name: str) -> float:
        cpu_s = jobs_per_s * per_job + load.instances_per_s * figures.get(name, 0.0)
        return load.peak * cpu_s / 1_000 / UTILISATION

    engine_cores = cores(job_engine, "engine_cpu_s_per_1000")
    processes = max(1, math.ceil(engine_cores))
    wal_bytes_per_s = jobs_per_s * (job_wal + load.output_bytes)
    wal_bytes_per_s += load.instances_per_s * (figures.get("wal_bytes_per_item", 0.0) + load.variables_bytes)
    variables = load.variables_bytes * (2 if load.variables_bytes <= TOASTED_BYTES else 1)
    rows_bytes = INSTANCE_ROW_BYTES + variables + load.jobs_per_instance * (JOB_ROW_BYTES + load.output_bytes)
    per_day = DAY_S * load.instances_per_s * rows_bytes
    return Sizing(
        commit=measured.commit,
        scenario=scenario,
        jobs_per_s_average=jobs_per_s,
        jobs_per_s_peak=jobs_per_s * load.peak,
        jobs_per_s_per_engine_core=1_000 * UTILISATION / job_engine,
        engine_cores=engine_cores,
        engine_processes=processes,
        postgres_cores=cores(job_postgres, "postgres_cpu_s_per_1000"),
        connections=processes * CONNECTIONS_PER_PROCESS,
        wal_bytes_per_day=DAY_S * wal_bytes_per_s,
        disk_bytes_per_day=per_day,
        disk_bytes_kept=per_day * load.kept_days,
        left_out=left_out,
    )


def lines(found: Sizing) -> list[tuple[str, str]]:
    """For people."""
    return [
        ("measured", f"{found.scenario} of commit {found.commit}"),
        ("jobs a second", f"{found.jobs_per_s_average:,.0f}, at the peak {found.jobs_per_s_peak:,.0f}"),
        ("a core of the engine does", f"{found.jobs_per_s_per_engine_core:,.0f} jobs/s at {UTILISATION:.0%}"),
        ("engine", f"{found.engine_cores:.1f} cores: --processes {found.engine_processes}, or as many engines"),
        ("PostgreSQL", f"{found.postgres_cores:.1f} cores, {found.connections} connections"),
        ("WAL", f"{_shown(found.wal_bytes_per_day)} a day, page images after checkpoints not counted"),
        ("disk", f"{_shown(found.disk_bytes_per_day)} a day, {_shown(found.disk_bytes_kept)} kept"),
        *(("left out", text) for text in found.left_out),
    ]


def _shown(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count / 1e3:,.0f} kB"
