"""A process of workers of three makes, each with its own way to report.

`python -m chaos.worker_process URL DIRECTORY NAME SEED` is how the rig starts it.
One reports job by job and repeats itself, lets strangers try, forgets jobs; one reports in batches and gives jobs
back; one is the SDK's. What they see and do goes into a journal of their own before it is reported to anybody. They
run until they are killed or get SIGTERM. They know the load's workflows only by what is handed to them.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
from collections.abc import Awaitable
from pathlib import Path

import trio

from chaos.journal import Journal
from chaos.workflows import WORKFLOWS
from penstock.client import Client
from penstock.client.errors import ClientError, JobCancelled, LeaseLost, Unavailable
from penstock.wire.model import Completion, Failure, Job, JobOutcome, JobRef
from penstock.worker import Worker
from penstock.worker.context import JobContext

LEASE_S = 2
WAIT_S = 2
CALL_TIMEOUT_S = 20.0
EXCHANGE_TIMEOUT_S = 6.0
PAUSE_S = 0.1
STEADY_TASKS = 4
BATCH_TASKS = 2
STRANGER = "stranger"
STEPS = frozenset(step for workflow in WORKFLOWS.values() for step in workflow.always | set(workflow.before))
DOOMED, DOOMED_SHARE = "doomed", 0.6
"""This step fails for good, and its instance with it, until somebody retries that often enough."""
DECLINED, DECLINED_SHARE = "card", 0.5
"""This one likewise, and what was done before is undone."""


def outcome_of(error: ClientError | None) -> str:
    """The word for what a call came to; ``unknown`` when nobody told."""
    match error:
        case None:
            return "ok"
        case LeaseLost() | JobCancelled():
            return error.code
        case Unavailable():
            return "unknown"
        case _:
            return f"refused {error.code}: {error.reason}"


class Workers:
    """All of one process."""

    def __init__(self, url: str, journal: Journal, name: str, seed: str) -> None:
        self._url = url
        self._journal = journal
        self._name = name
        self._seed = seed

    async def run(self) -> None:
        """Until SIGTERM; the jobs held then come back with the end of their leases, but for the SDK's."""
        async with (
            Client(self._url, timeout_s=CALL_TIMEOUT_S, exchange_timeout_s=EXCHANGE_TIMEOUT_S) as client,
            trio.open_nursery() as nursery,
        ):
            for number in range(STEADY_TASKS):
                nursery.start_soon(self._steady, client, f"{self._name}-steady-{number}")
            for number in range(BATCH_TASKS):
                nursery.start_soon(self._batch, client, f"{self._name}-batch-{number}")
            nursery.start_soon(self._sdk, f"{self._name}-sdk")
            with trio.open_signal_receiver(signal.SIGTERM) as signals:
                async for _ in signals:
                    nursery.cancel_scope.cancel()

    async def _poll(self, client: Client, worker: str, job_type: str, most: int) -> list[Job]:
        sent = trio.current_time()
        try:
            jobs = await client.poll_jobs(worker, [job_type], max_jobs=most, lease_s=LEASE_S, wait_s=WAIT_S)
        except ClientError as error:
            if not isinstance(error, Unavailable):
                self._journal.note("surprise", worker=worker, call="poll", outcome=outcome_of(error))
            await trio.sleep(PAUSE_S)
            return []
        waited_s = trio.current_time() - sent
        for job in jobs:
            self._take(worker, job, waited_s)
        return jobs

    def _take(self, worker: str, job: Job, waited_s: float | None) -> None:
        """Note the job and that its work was done. ``waited_s``: how long ago it was asked for, if known."""
        seen = {name: value for name, value in job.variables.items() if name in STEPS}
        self._journal.note(
            "effect", worker=worker, job=job.id, instance=job.instance_id, step=job.step_id, attempt=job.attempt,
            seen=seen, waited_s=waited_s,
        )  # fmt: skip

    def _answer(self, worker: str, call: str, job: Job, outcome: str) -> None:
        self._journal.note("answer", worker=worker, call=call, job=job.id, attempt=job.attempt, outcome=outcome)

    def _chance(self, job: Job) -> random.Random:
        """The same job and attempt meet the same fate in every run."""
        return random.Random(f"{self._seed} {job.step_id} {job.id} {job.attempt}")

    # -- one by one

    async def _steady(self, client: Client, worker: str) -> None:
        while True:
            for job in await self._poll(client, worker, "steady", 3):
                await self._do(client, worker, job)

    async def _do(self, client: Client, worker: str, job: Job) -> None:
        rng = self._chance(job).random()
        if rng < {DOOMED: DOOMED_SHARE, DECLINED: DECLINED_SHARE}.get(job.step_id, 0):
            await self._fail(client, worker, job, retryable=False)
        elif rng < 0.08 and job.retries_remaining:
            await self._fail(client, worker, job, retryable=True)
        elif rng < 0.10:
            return  # forgotten: its lease will end
        else:
            if rng < 0.2:
                await self._heartbeat(client, worker, job)
            if rng < 0.3:
                await self._complete(client, f"{STRANGER}-{worker}", job, attempt=None)
            await self._complete(client, worker, job, attempt=job.attempt)
            if rng > 0.8:
                await self._complete(client, worker, job, attempt=job.attempt)

    async def _complete(self, client: Client, worker: str, job: Job, attempt: int | None) -> None:
        error: ClientError | None = None
        variables = {job.step_id: f"{worker}:{job.attempt}"}
        try:
            await client.complete_job(job.id, worker, variables, attempt=attempt)
        except ClientError as caught:
            error = caught
        self._answer(worker, "complete", job, outcome_of(error))

    async def _fail(self, client: Client, worker: str, job: Job, *, retryable: bool) -> None:
        error: ClientError | None = None
        try:
            await client.fail_job(job.id, worker, "meant to fail", retryable=retryable, attempt=job.attempt)
        except ClientError as caught:
            error = caught
        self._answer(worker, "fail", job, outcome_of(error))

    async def _heartbeat(self, client: Client, worker: str, job: Job) -> None:
        error: ClientError | None = None
        try:
            await client.heartbeat_job(job.id, worker, attempt=job.attempt, checkpoint=job.attempt, lease_s=LEASE_S)
        except ClientError as caught:
            error = caught
        self._answer(worker, "heartbeat", job, outcome_of(error))

    # -- in batches

    async def _batch(self, client: Client, worker: str) -> None:
        while True:
            jobs = await self._poll(client, worker, "batch", 10)
            done: list[Job] = []
            failed: list[Job] = []
            back: list[Job] = []
            for job in jobs:
                rng = self._chance(job).random()
                if rng < 0.08 and job.retries_remaining:
                    failed.append(job)
                else:
                    (back if rng > 0.95 else done).append(job)
            if done:
                results = [
                    Completion(job_id=job.id, attempt=job.attempt, variables={job.step_id: f"{worker}:{job.attempt}"})
                    for job in done
                ]
                await self._report(worker, "complete", done, client.complete_jobs(worker, results))
            if failed:
                failures = [
                    Failure(job_id=job.id, retryable=True, error_message="meant to fail", attempt=job.attempt)
                    for job in failed
                ]
                await self._report(worker, "fail", failed, client.fail_jobs(worker, failures))
            if back:
                refs = [JobRef(job_id=job.id, attempt=job.attempt) for job in back]
                await self._report(worker, "release", back, client.release_jobs(worker, refs))

    async def _report(self, worker: str, call: str, jobs: list[Job], calling: Awaitable[list[JobOutcome]]) -> None:
        try:
            outcomes = [outcome.outcome for outcome in await calling]
        except ClientError as error:
            outcomes = [outcome_of(error)] * len(jobs)
        for job, outcome in zip(jobs, outcomes, strict=True):
            self._answer(worker, call, job, "unknown" if outcome == "unavailable" else outcome)

    # -- the SDK's

    async def _sdk(self, name: str) -> None:
        worker = Worker(self._url, worker_id=name, concurrency=4, lease_s=LEASE_S, wait_s=WAIT_S, drain_grace_s=1)

        @worker.handler("sdk")
        async def work(context: JobContext) -> dict[str, str]:
            self._take(name, context.job, None)
            rng = self._chance(context.job).random()
            if rng < 0.05 and context.retries_remaining:
                raise ConnectionError("meant to fail")
            if rng > 0.97:
                await context.report(progress=rng)
            return {context.step_id: f"{name}:{context.attempt}"}

        await worker.run(handle_signals=False)


def main() -> None:
    url, directory, name, seed = sys.argv[1:5]
    logging.basicConfig(filename=Path(directory, f"{name}.log"), level=logging.WARNING)
    journal = Journal(Path(directory, f"{name}-{os.getpid()}.jsonl"))
    trio.run(Workers(url, journal, name, seed).run)


if __name__ == "__main__":
    main()
