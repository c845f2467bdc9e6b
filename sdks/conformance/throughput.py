"""How many jobs a second each language's worker does whose handlers do nothing.

``python -m sdks.conformance.throughput``: one PostgreSQL (fsync off) for all, one worker at a time, concurrency
64, 10,000 jobs that wait. Counted from the 1,000th completed instance to the last one, so that no start of a program
is in it. Prints a table for docs.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from penstock.client import StartRequest, SyncClient
from penstock.testing.postgres import PostgresServer, run_directory, shared_server
from sdks.conformance.programs import LANGUAGES, Language, Program, take_interrupts
from tests.runtime.engine_process import call
from tests.sdk.running_engine import RunningEngine, running_engine

JOBS = 10_000
WARM = 1_000
POLL_INTERVAL_S = 0.05
END_S = 120


def measured(engine: RunningEngine, language: Language, wire: str, directory: Path) -> float:
    """Jobs a second."""
    name = f"{language.name}-{wire}"
    work = {"id": "work", "name": "w", "type": "SERVICE_TASK", "jobType": name, "nextStep": "end"}
    options: dict[str, object] = {
        "workerId": name,
        "concurrency": 64,
        "leaseSeconds": 30,
        "waitSeconds": 5,
        "drainGraceSeconds": 5,
    }
    options["jobTypes"] = [{"type": name, "handler": "nothing"}]
    environment = {
        "CONFORMANCE_OPTIONS": json.dumps(options),
        "PENSTOCK_URL": engine.grpc_url if wire == "grpc" else engine.url,
    }
    with SyncClient(engine.url) as client:
        end = {"id": "end", "name": "e", "type": "END"}
        client.upload_definition({"id": name, "name": name, "steps": [work, end]})
        client.start_instances([StartRequest(definition_id=name) for _ in range(JOBS)])
        take_interrupts()
        program = Program(language, "worker", directory / f"{name}.log", environment)
        try:
            begun = waited(engine, name, WARM, program)
            ended = waited(engine, name, JOBS, program)
        finally:
            program.close()
    return (ended[1] - begun[1]) / (ended[0] - begun[0])


def waited(engine: RunningEngine, name: str, wanted: int, program: Program) -> tuple[float, int]:
    """When at least so many instances had completed, and how many those were."""
    deadline = time.monotonic() + END_S
    port = urlsplit(engine.url).port or 0
    while True:
        done = call(port, "GET", f"/v1/instances/count?definitionId={name}&status=COMPLETED")[1]["count"]
        now = time.monotonic()
        if done >= wanted:
            return now, done
        if now > deadline or program.process.poll() is not None:
            raise AssertionError(f"{done} of {wanted} done:\n{program.log.read_text()[-3000:]}")
        time.sleep(POLL_INTERVAL_S)


def run(server: PostgresServer, directory: Path) -> None:
    """Print the table."""
    print("| worker | long polls, jobs/s | Work stream, jobs/s |\n|---|---|---|")
    for language in LANGUAGES.values():
        if language.missing:
            print(f"| {language.name} | NOT RUN: no {' and no '.join(language.missing)} | |")
            continue
        language.build()
        with running_engine(server, Path(tempfile.mkdtemp(dir=directory))) as engine:
            rest, grpc = (measured(engine, language, wire, directory) for wire in ("rest", "grpc"))
        print(f"| {language.name} | {rest:,.0f} | {grpc:,.0f} |", flush=True)


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as scratch,
        shared_server(run_directory(durable=False), durable=False) as made,
    ):
        run(made, Path(scratch))
    sys.exit(0)
