"""A million jobs behind flow keys that are full: what a claim takes, and how soon a job of a key with room is found.

With hints: a job of a key that this engine freed, or that came to be here. Without: of one that nobody told of, as when
another engine freed it and its wake-up was lost. Jobs are copied by SQL; full keys are rows of `slot`.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from benchmarks import scrape
from benchmarks.bench import Bench, ScenarioFailed
from benchmarks.load.counts import percentile
from benchmarks.result import Bound, Run
from benchmarks.scenarios.copies import copy_keyed
from benchmarks.scenarios.queues import put_queue
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import Workflow, linear

JOBS = 1_000_000
KEYS, OPEN_KEYS = 10_000, 10
PER_KEY = 5
NOTIFIED, UNHEARD = 100, 10
PARKED_AFTER_S = 0.3
"""Then a poll has come and its own look is over."""
WAIT_S = 30
ROW = f"queues: {JOBS:,} jobs wait, {OPEN_KEYS} of {KEYS:,} keys have room"

_FILL = """
INSERT INTO slot (queue, flow_key, running)
SELECT q.id, 'k' || lpad(n::text, 6, '0'), %s FROM queue q, generate_series(0, %s) n
WHERE q.name = %s AND n %% %s <> 17"""
_FREE = """
UPDATE slot s SET running = s.running - 1 FROM queue q
WHERE s.queue = q.id AND q.name = %s AND s.flow_key = 'k' || lpad(%s::text, 6, '0')"""
Job = dict[str, Any]


class Line:
    """One connection to the engine, and the calls of a worker on it."""

    def __init__(self, bench: Bench, workflow: Workflow) -> None:
        self._workflow = workflow
        self._connection = http.client.HTTPConnection(bench.deployment.host, bench.deployment.port, timeout=WAIT_S + 30)

    def call(self, path: str, body: object) -> Any:
        """The answer to a POST. Raises ScenarioFailed."""
        self._connection.request("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise ScenarioFailed(f"{path} was answered {answer.status}: {text[:300].decode()}")
        return json.loads(text) if text else None

    def poll(self, number: int) -> tuple[float, list[Job]]:
        """When it was answered, and the jobs."""
        (job_type,) = self._workflow.job_types
        body = {"workerId": "w", "jobTypes": [job_type], "maxJobs": number, "waitSeconds": WAIT_S, "leaseSeconds": 3600}
        jobs = self.call("/v1/jobs/poll", body)["jobs"]
        if not jobs:
            raise ScenarioFailed(f"no job was found within {WAIT_S} s")
        return time.perf_counter(), jobs

    def start(self, flow_key: str) -> str:
        """The id of an instance."""
        body = {"definitionId": self._workflow.id, "variables": {"n": 1}, "flowKey": flow_key}
        return self.call("/v1/instances", body)["id"]

    def complete(self, job: Job) -> None:
        self.call(
            f"/v1/jobs/{job['id']}/complete", {"workerId": "w", "attempt": job["attempt"], "variables": {"done": True}}
        )

    def close(self) -> None:
        self._connection.close()


def run(bench: Bench) -> Run:
    began = time.monotonic()
    jobs, keys = bench.size(JOBS, 20_000), bench.size(KEYS, 1_000)
    database = bench.need_database()
    workflow = linear(bench.new_tag(), 1)
    bench.upload(workflow)
    put_queue(bench, workflow, concurrencyPerKey=PER_KEY)
    worker, other = Line(bench, workflow), Line(bench, workflow)
    try:
        model = other.start("model")
        bench.progress(0.1, f"making {jobs:,} jobs that wait")
        copy_keyed(database, int(model, 16), jobs, keys)
        database.execute(_FILL, (PER_KEY, keys - 1, workflow.id, keys // OPEN_KEYS))
        bench.progress(0.5, "vacuum")
        database.vacuum()
        database.checkpoint()
        held: list[Job] = []
        while len(held) < OPEN_KEYS * PER_KEY + 1:
            held += worker.poll(32)[1]
        for job in held:
            if job["instanceId"] == model:
                other.complete(job)
        held = [job for job in held if job["instanceId"] != model]
        figures = _measure(bench, workflow, keys, worker, other, held)
    finally:
        worker.close()
        other.close()
    return bench.run_of(figures, began)


def _measure(
    bench: Bench, workflow: Workflow, keys: int, worker: Line, other: Line, held: list[Job]
) -> dict[str, float]:
    """``held``: the jobs under way, as many of each key that had room as may be."""
    freed_s, come_s, unheard_s = list[float](), list[float](), list[float]()
    with ThreadPoolExecutor(1) as pool:

        def find(end_idle: Callable[[], object]) -> tuple[float, Job]:
            answer = pool.submit(worker.poll, 1)
            time.sleep(PARKED_AFTER_S)
            at = time.perf_counter()
            end_idle()
            answered_at, (job,) = answer.result()
            return answered_at - at, job

        for number in range(NOTIFIED):
            bench.progress(0.6 + 0.2 * number / NOTIFIED, "keys that are heard of")
            took_s, job = find(partial(other.complete, held.pop(0)))
            held.append(job)
            freed_s.append(took_s)
            took_s, job = find(partial(other.start, f"new-{number}"))
            other.complete(job)
            come_s.append(took_s)
        before = _claims(bench)
        for number in range(UNHEARD):
            bench.progress(0.8 + 0.2 * number / UNHEARD, "keys that nobody tells of")
            key = (number * 7919 + 4) % keys
            took_s, _ = find(partial(bench.need_database().execute, _FREE, (workflow.id, key)))
            unheard_s.append(took_s)
        after = _claims(bench)
    figures = {"unheard_max_s": max(unheard_s)}
    if after[1] > before[1]:
        figures["flow_claim_ms"] = (after[0] - before[0]) / (after[1] - before[1]) * 1e3
    for name, found in (("freed_key", freed_s), ("new_key", come_s), ("unheard_key", unheard_s)):
        ordered = sorted(found)
        figures[f"{name}_p50_ms"] = (percentile(ordered, 0.5) or 0) * 1e3
        figures[f"{name}_p99_ms"] = (percentile(ordered, 0.99) or 0) * 1e3
    return figures


def _claims(bench: Bench) -> tuple[float, float]:
    where = bench.deployment.metrics
    return (0.0, 0.0) if where is None else scrape.flow_claims(scrape.read_page(*where))


SCENARIOS = [
    Scenario(
        "flow-blocked",
        f"{JOBS:,} jobs wait behind {KEYS:,} flow keys, of which {OPEN_KEYS} have room",
        run,
        (
            Bound(figure="flow_claim_ms", row=ROW, at_most=10),
            Bound(figure="freed_key_p50_ms", row=ROW, at_most=20),
            Bound(figure="new_key_p50_ms", row=ROW, at_most=20),
            Bound(figure="unheard_max_s", row=ROW, at_most=3),
        ),
        {"jobs": JOBS, "flow keys": KEYS, "with room": OPEN_KEYS},
        long=True,
    ),
]
