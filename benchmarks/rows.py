"""What an instance and a job take on disk: the figures that `benchmarks.size` counts with.

``python -m benchmarks.rows [--instances 2000]``: runs so many instances of three jobs through an engine in this process
on a PostgreSQL of its own, and divides what its tables and indexes have become.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

import msgspec
import psycopg
import trio

from benchmarks.calibration import print_line
from penstock.core.parsing.parsing import parse_definition
from penstock.engine.engine import Engine
from penstock.settings import Settings
from penstock.store.db.database import Database
from penstock.telemetry.metrics import Metrics
from penstock.testing.definitions import linear
from penstock.testing.postgres import apply_schema, run_directory, shared_server
from penstock.wire.model import Completion, PollRequest, StartRequest

JOBS: Final = 3
VARIABLES: Final = {"customer": "c" * 181}
"""195 bytes as JSON."""
OUTPUT: Final = {"result": "r" * 26}
"""40 bytes."""
PIECE: Final = 500
SIZE: Final = """SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c
    WHERE c.relkind = 'r' AND c.relname ~ %s"""


async def work(dsn: str, instances: int) -> None:
    """Start all, and do their jobs."""
    database = Database(dsn, max_connections=8)
    async with trio.open_nursery() as nursery:
        engine = Engine(database, Settings(), Metrics("rows"), 0)
        for batcher in engine.batchers():
            nursery.start_soon(batcher.run)
        await engine.definitions.upload(parse_definition(msgspec.json.encode(linear(JOBS))))
        request = StartRequest(definition_id="linear", variables=msgspec.json.encode(VARIABLES))
        for first in range(0, instances, PIECE):
            await engine.instances.start_batch([request] * min(PIECE, instances - first))
        output = msgspec.json.encode(OUTPUT)
        left = instances * JOBS
        while left:
            jobs = await engine.jobs.poll(PollRequest("rows", ["work"], PIECE, 60))
            results = [
                Completion(job_id=job.id, attempt=job.attempt, variables=output, worker_id="rows") for job in jobs
            ]
            await engine.jobs.complete_many(results)
            left -= len(jobs)
        nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        await database.close(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=2_000)
    instances: int = parser.parse_args().instances
    with shared_server(run_directory(durable=True), durable=True) as server, server.database(apply_schema) as dsn:
        print_line(dsn)
        trio.run(work, dsn, instances)
        with psycopg.connect(dsn, autocommit=True) as connection:

            def size(tables: str) -> Any:
                return connection.execute(SIZE.encode(), (tables,)).fetchall()[0][0]

            connection.execute("VACUUM")
            print(
                f"an instance: {size('^instance$') / instances:.0f} bytes, with {len(msgspec.json.encode(VARIABLES))}"
            )
            print(f"a job: {size('^history') / (JOBS * instances):.0f} bytes, with {len(msgspec.json.encode(OUTPUT))}")


if __name__ == "__main__":
    main()
