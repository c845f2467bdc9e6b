"""How long `penstock check` takes: open runs with journals of 20 records, replayed against their code.

    PYTHONPATH=src python -m benchmarks.check [RUNS, default 100,000]

Fills a database by SQL, replays all runs on all processors, as the command does, and prints seconds and records per
second. Nothing may differ. Exit code 1 when something does, or when 100,000 runs would take longer than a minute.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import trio

from benchmarks.calibration import print_line
from benchmarks.replay import PAYLOAD, chain
from penstock.durable import Workflow, workflow
from penstock.durable.check import Report, check
from penstock.durable.codec import digest_of, encode
from penstock.durable.local import LocalRuns
from penstock.durable.replay_processes import replay_processes
from penstock.engine.engine import Engine
from penstock.engine.requests import ids
from penstock.engine.runs.code import CodeWorkflow
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.db.schema import ensure_schema
from penstock.store.embedded.embedded import embedded
from penstock.telemetry.metrics import Metrics

RECORDS: Final = 20
BOUND_S: Final = 60.0
"""Of 100,000 runs."""
BASE: Final = ids.first_instance(datetime.now(UTC) - timedelta(hours=23))
FILL: Final = (
    """INSERT INTO instance (id, started_at, definition, vars)
    SELECT {base} + n, now(), {key}, '{{}}' FROM generate_series(1, {n}) n""",
    """INSERT INTO token (id, instance_id, step, job_type, seq, entered_at, state, attempt)
    SELECT {base} + n, {base} + n, 0, {type}, n, now(), 2, 1 FROM generate_series(1, {n}) n""",
    """INSERT INTO journal (instance_id, pos, at, kind, attempt, digest, took_ms, path, name, payload)
    SELECT {base} + n, {n} + n::bigint * 30 + k, now(), 1, 1, (ARRAY[{digests}])[k + 1], 3, '/' || k, 'charge',
      '{payload}'
    FROM generate_series(1, {n}) n, generate_series(0, {records} - 1) k""",
    "ANALYZE",
)


@workflow
async def order() -> None:
    await chain(RECORDS + 1)


def _workflows() -> list[Workflow[..., Any]]:
    return [order]


async def fill(own: TrioConnection, engine: Engine, count: int) -> None:
    """Runs that wait for their last step."""
    code = CodeWorkflow(order.name)
    await engine.code.register(code)
    key = (await engine.definitions.versions_of(code.definition_id))[0].key
    digests = [digest_of(encode({"number": number}, "arguments")) for number in range(RECORDS)]
    signed = ", ".join(str(each - (1 << 32) if each >= 1 << 31 else each) for each in digests)
    for statement in FILL:
        text = statement.format(
            base=BASE, n=count, key=key, type=engine.definitions.job_type_ids[code.job_type], digests=signed,
            payload=PAYLOAD, records=RECORDS,
        )  # fmt: skip
        await own.fetch(text.encode())


async def measure(dsn: str, count: int) -> tuple[list[Report], float]:
    """What was found, and the seconds that it took."""
    database = Database(dsn, max_connections=2)
    try:
        async with database.connection() as connection:
            await ensure_schema(connection)
        engine = Engine(database, Settings(), Metrics("bench"), 1)
        async with trio.open_nursery() as nursery:
            for batcher in engine.batchers():
                nursery.start_soon(batcher.run)
            async with await TrioConnection.connect(dsn) as own:
                await fill(own, engine, count)
            began = time.perf_counter()
            with replay_processes(_workflows, os.cpu_count() or 1) as elsewhere:
                reports = await check(LocalRuns(engine, ""), [order], elsewhere)
            took_s = time.perf_counter() - began
            nursery.cancel_scope.cancel()
        return reports, took_s
    finally:
        with trio.CancelScope(shield=True):
            await database.close(5.0)


async def main(count: int) -> int:
    """The exit code."""
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    directory.chmod(0o755)
    try:
        async with embedded(directory) as dsn:
            print_line(dsn)
            [report], took_s = await measure(dsn, count)
    finally:
        shutil.rmtree(directory)
    if (report.runs, report.records, report.found) != (count, count * RECORDS, []):
        print(f"{report.runs:,} runs, {report.records:,} records: {report.found}")
        return 1
    rate = report.records / took_s
    print(f"{report.runs:,} runs, {report.records:,} records: {took_s:.1f} s, {rate:,.0f} records/s")
    return int(took_s / count * 100_000 > BOUND_S)


if __name__ == "__main__":
    sys.exit(trio.run(main, int(sys.argv[1]) if sys.argv[1:] else 100_000))
