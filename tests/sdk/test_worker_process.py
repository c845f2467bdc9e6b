"""A worker as a program of its own: it polls over HTTP, and ends on a signal with nothing left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from tests.sdk.scripted_engine import Answer, Hang, Request, ScriptedEngine
from tests.shares import mostly_slow

PROGRAM = """
import sys
import anyio
from penstock.worker import JobContext, Worker
from tests.shares import mostly_slow

worker = Worker(sys.argv[1], worker_id="w", lease_s=5, wait_s=7, drain_grace_s=float(sys.argv[2]))

@worker.handler("t")
async def handle(context: JobContext):
    await context.report(progress="started")
    await anyio.sleep(float(context.variables["seconds"]))
    return {"done": context.id}

worker.main(backend=sys.argv[3])
"""

SOURCE = Path(__file__).parents[2] / "src"


def offered(**seconds_by_id: float) -> Answer:
    jobs = [
        {"id": name, "jobType": "t", "instanceId": "i", "stepId": "s", "attempt": 1, "variables": {"seconds": seconds}}
        for name, seconds in seconds_by_id.items()
    ]
    return Answer(200, {"jobs": jobs})


def ok(request: Request) -> Answer:
    items = request.body.get("results") or request.body["jobs"]
    return Answer(200, {"results": [{"jobId": item["jobId"], "outcome": "ok"} for item in items]})


@contextmanager
def running(scripted: ScriptedEngine, backend: str, grace_s: float) -> Generator[subprocess.Popen[str]]:
    for path in ("complete", "fail", "release"):
        scripted.on("POST", f"/v1/jobs/{path}", ok)
    for name in ("a", "b"):
        scripted.on("POST", f"/v1/jobs/{name}/heartbeat", Answer(200, {"lockExpiresAt": "2026-01-02T03:04:05Z"}))
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, scripted.url, str(grace_s), backend],
        env={"PYTHONPATH": str(SOURCE)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


ENDS = [*product(["asyncio", "trio"], [signal.SIGTERM, signal.SIGINT])]


@pytest.mark.parametrize(
    ("backend", "number"), mostly_slow(ENDS, quick=[("trio", signal.SIGTERM)], reason="a worker in a process")
)
def test_a_signal_drains_the_worker_and_releases_unfinished_jobs(
    scripted: ScriptedEngine, backend: str, number: signal.Signals
) -> None:
    scripted.on("POST", "/v1/jobs/poll", offered(a=0.5, b=600), Hang())
    with running(scripted, backend, grace_s=1) as process:
        scripted.wait_seen("/v1/jobs/a/heartbeat")
        scripted.wait_seen("/v1/jobs/b/heartbeat")
        scripted.wait_seen("/v1/jobs/poll", 2)
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    (completed,) = scripted.seen("/v1/jobs/complete")
    (released,) = scripted.seen("/v1/jobs/release")
    assert completed.body == {
        "workerId": "w",
        "results": [{"jobId": "a", "attempt": 1, "variables": {"done": "a"}}],
    }
    assert released.body == {"workerId": "w", "jobs": [{"jobId": "b", "attempt": 1}]}
    assert scripted.seen("/v1/jobs/fail") == []
    assert len(scripted.seen("/v1/jobs/poll")) == 2
    assert scripted.seen("/v1/jobs/poll")[0].body == {
        "workerId": "w",
        "jobTypes": ["t"],
        "maxJobs": 16,
        "leaseSeconds": 5,
        "waitSeconds": 7,
    }


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_second_signal_ends_the_grace(scripted: ScriptedEngine, backend: str) -> None:
    scripted.on("POST", "/v1/jobs/poll", offered(a=600), Hang())
    with running(scripted, backend, grace_s=600) as process:
        scripted.wait_seen("/v1/jobs/a/heartbeat")
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        for line in process.stderr:
            if "draining" in line:
                break
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert [request.body["jobs"] for request in scripted.seen("/v1/jobs/release")] == [[{"jobId": "a", "attempt": 1}]]
