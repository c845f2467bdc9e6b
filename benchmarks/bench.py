"""What a scenario has in its hands: the engine, its database, the load generator, the meter, and some idioms.

Everything that scenarios have in common is here; what a figure means is in the scenario.
"""

from __future__ import annotations

import http.client
import json
import secrets
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.database import Database
from benchmarks.deployment import Deployment
from benchmarks.load.counts import Count, Samples
from benchmarks.load.generator import Generators, generators
from benchmarks.load.scripts import Plan, StartPlan, WorkPlan
from benchmarks.meter import Meter, Snapshot, latencies, per_item
from benchmarks.result import Run, Series
from benchmarks.workflows import Workflow

POLL_INTERVAL_S = 0.02
STUCK_AFTER_S = 60.0
"""Without any progress for so long a run is given up."""
SETTLE_S = 1.2
"""PostgreSQL's sessions report their statistics once a second."""

Progress = Callable[[float, str], None]


class ScenarioFailed(Exception):
    """The scenario can't go on; the text says why."""


class Unsuitable(Exception):
    """The deployment can't be measured this way (no database to look into, say); the text says what is missing."""


@dataclass
class Options:
    """What the user asked for."""

    quick: bool = False
    generator_processes: int = 1
    settings: dict[str, str] = field(default_factory=dict[str, str])
    work_dir: Path = Path("/var/tmp")
    calibration_s: float = 3.0
    items: int | None = None
    """The size of all scenarios, whatever they are made for."""


class Bench:
    """One deployment under measurement."""

    def __init__(self, deployment: Deployment, database: Database | None, options: Options, progress: Progress) -> None:
        self.deployment = deployment
        self.database = database
        self.options = options
        self.meter = Meter(deployment, database)
        self.progress = progress
        self.problems: list[str] = []
        self.series: list[Series] = []

    # -- sizes and preconditions

    def size(self, full: int, quick: int) -> int:
        """The size of a scenario, by whether it is to be quick."""
        return self.options.items or (quick if self.options.quick else full)

    def need_database(self) -> Database:
        """The database. Raises Unsuitable."""
        if self.database is None:
            raise Unsuitable("needs --dsn, to look into the engine's database")
        return self.database

    def need_grpc(self) -> tuple[str, int]:
        """Where gRPC is. Raises Unsuitable."""
        if self.deployment.grpc is None:
            raise Unsuitable("needs --grpc HOST:PORT")
        return self.deployment.grpc

    @staticmethod
    def new_tag() -> str:
        """Keeps the definitions and job types of each run apart."""
        return secrets.token_hex(3)

    # -- calls of the measuring process

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """One call, outside of what is measured: status and JSON."""
        connection = http.client.HTTPConnection(self.deployment.host, self.deployment.port, timeout=60)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            is_json = "json" in answer.getheader("Content-Type", "")
            return answer.status, json.loads(text) if text and is_json else text.decode(errors="replace") or None
        finally:
            connection.close()

    def upload(self, workflow: Workflow) -> None:
        """Upload the definition. Raises ScenarioFailed."""
        status, answer = self.call("POST", "/v1/definitions", workflow.definition)
        if status != 201:
            raise ScenarioFailed(f"the upload of {workflow.id} was answered {status}: {answer}")

    def takes_batches(self) -> bool:
        """Whether instances can be started in batches here, which is no part of the contract."""
        status, _ = self.call("POST", "/v1/instances/batch", {"items": []})
        return status not in (404, 405, 501)

    # -- load

    @contextmanager
    def load(self, *plans: Plan, processes: int | None = None) -> Generator[Generators]:
        """Generator processes with open connections; nothing is sent before `begin`. What they hold against the
        engine is kept in the run's problems."""
        number = processes or self.options.generator_processes
        with generators(self.deployment.host, self.deployment.port, plans, number) as running:
            try:
                yield running
            finally:
                self.problems.extend(running.problems)

    def wait_count(
        self,
        load: Generators,
        count: Count,
        until: int,
        *,
        show: tuple[str, int] | None = None,
        stuck_s: float = STUCK_AFTER_S,
    ) -> None:
        """Wait until the count is reached. ``show``: text and number for the progress. Raises ScenarioFailed."""
        reached, moved_at = -1, time.monotonic()
        while True:
            counts = load.counts()
            if show is not None:
                self.progress(min(1.0, counts[count] / show[1]), show[0])
            if counts[count] >= until:
                return
            load.check()
            if counts[count] > reached:
                reached, moved_at = counts[count], time.monotonic()
            elif time.monotonic() - moved_at > stuck_s:
                reported = ", ".join(f"{name.name.lower()} {counts[name]}" for name in Count)
                raise ScenarioFailed(
                    f"no progress for {stuck_s:.0f} s, waiting for {until} {count.name.lower()} ({reported})"
                )
            time.sleep(POLL_INTERVAL_S)

    def seed(self, workflow: Workflow, variables: bytes, instances: int, *, flow_keys: int = 0) -> dict[str, float]:
        """Start instances in batches, outside of what is measured by others; the figures of the start itself.

        A checkpoint before it keeps the full-page images of the first touch out of what follows.
        """
        if self.database is not None:
            self.database.checkpoint()
        batch = max(1, min(100, 2_000_000 // len(variables))) if self.takes_batches() else 0
        plan = StartPlan(
            connections=4 if batch else SINGLE_WORKERS,
            instances=instances,
            body=workflow.start_body(variables),
            batch=batch,
            flow_keys=flow_keys,
        )
        return self.window(plan, count=Count.STARTED, items=instances, commit_queue="start", text="starting instances")

    def window(
        self,
        *plans: Plan,
        count: Count,
        items: int,
        commit_queue: str,
        text: str,
        since: float = 0.0,
        until: float = 1.0,
        timed: Sequence[str] = (),
        processes: int | None = None,
    ) -> dict[str, float]:
        """Run ``plans`` until ``items`` are counted; the figures of the window between two shares of them."""
        with self.load(*plans, processes=processes) as load:
            load.begin()
            self.wait_count(load, count, int(items * since), show=(text, items))
            before = self.meter.snapshot(load)
            self.wait_count(load, count, int(items * until), show=(text, items))
            after = self.meter.snapshot(load)
            self.wait_count(load, count, items, show=(text, items))
            samples = load.stop()
        return self.figures(before, after, count, commit_queue, samples, timed)

    def figures(
        self, before: Snapshot, after: Snapshot, count: Count, commit_queue: str, samples: Samples, timed: Sequence[str]
    ) -> dict[str, float]:
        """Figures per item, latencies of the kinds in ``timed``, and errors."""
        figures = per_item(before, after, count, commit_queue)
        for kind in timed:
            figures |= latencies(samples, kind, before.at, after.at)
        figures["errors"] = float(after.counts[Count.ERRORS])
        return figures

    def run_of(self, figures: dict[str, float], began: float) -> Run:
        """The run, with what was noted on the way."""
        problems, series = self.problems, self.series
        self.problems, self.series = [], []
        return Run(figures=figures, seconds=time.monotonic() - began, series=series, problems=problems)


SINGLE_WORKERS = 32
CLIENT_JOBS = 10
"""What client libraries of the contract poll for."""
BATCH_WORKERS = 4
BATCH_JOBS = 32
"""4 × 32: the specification's 128 jobs in flight."""


def single_workers(workflow: Workflow, **changes: Any) -> WorkPlan:
    """32 workers, each: long poll for one job, one call to complete it."""
    given: dict[str, Any] = {"workers": SINGLE_WORKERS, **changes}
    return WorkPlan(job_types=workflow.job_types, outputs=workflow.outputs, **given)


def batch_workers(workflow: Workflow, **changes: Any) -> WorkPlan:
    """4 workers, each: long poll for up to 32 jobs, one call to complete them."""
    given: dict[str, Any] = {"workers": BATCH_WORKERS, "max_jobs": BATCH_JOBS, "batch": True, **changes}
    return WorkPlan(job_types=workflow.job_types, outputs=workflow.outputs, **given)
