"""What the clients of a storm ask (tests/rpc/stress.py): valid requests of every unary method, drawn at random.

Remembers what the answers gave: instances, and jobs with the name of the worker that each was given to. A job is
completed, failed or given back once at most, with a value of its own, so that the value of an acknowledged completion
must be the one that is found at the end.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.wire import penstock_v1 as w
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import decode_message
from penstock.wire.model import Completion, Failure, JobOutcome, PollRequest, Signal, StartRequest, UserTaskCompletion
from tests.rpc.served import WORKER, WORKFLOW

POLL_LEASE_S = 1
"""A poll whose answer was on its way when the client left can't be taken back: its leases have to end by themselves."""

Learn = Callable[[bytes], None]
"""What to do with the answer."""
Place = tuple[str, str]
"""An instance and a step of it."""


def ignore(_: bytes) -> None:
    """Nothing to remember."""


class Held(msgspec.Struct):
    """A job that some client was given, with the name it was given to."""

    job: str
    worker: str
    attempt: int
    instance: str
    step: str


class Requests:
    """Draws requests; `acknowledged` is the value by place of every completion that was answered with OK."""

    def __init__(self) -> None:
        self.values = itertools.count()
        self.instances: list[str] = []
        self.tasks: list[str] = []
        self.acknowledged: dict[Place, int] = {}
        self._held: list[Held] = []

    def draw(self, method: str, rng: random.Random) -> tuple[str, msgspec.Struct, Learn]:
        """The path, a request, and what to do with its answer."""
        prefix, make = METHODS[method]
        return (prefix + method, *make(self, rng))

    def acknowledge(self, place: Place, value: int) -> None:
        assert place not in self.acknowledged, f"{place} was done twice: {self.acknowledged[place]} and {value}"
        self.acknowledged[place] = value

    def settle(self, sent: dict[str, tuple[Place, int]], outcomes: list[JobOutcome]) -> None:
        """The outcomes of completions that were sent, by job."""
        for outcome in outcomes:
            if outcome.outcome == "ok" and outcome.job_id in sent:
                self.acknowledge(*sent.pop(outcome.job_id))

    def _take(self, rng: random.Random, count: int) -> list[Held]:
        """Jobs that are completed, failed or given back once at most."""
        return [self._held.pop(rng.randrange(len(self._held))) for _ in range(min(count, len(self._held)))]

    def _one(self, rng: random.Random) -> Held:
        return (self._take(rng, 1) or [Held("1-2-3", "w", 1, "", "")])[0]

    def _same_worker(self, rng: random.Random) -> tuple[str, list[Held]]:
        first = self._one(rng)
        more = [item for item in self._held if item.worker == first.worker]
        self._held = [item for item in self._held if item.worker != first.worker]
        return first.worker, [first, *more]

    def _poll(self, rng: random.Random) -> tuple[Any, Learn]:
        worker = f"poll-{next(self.values)}"

        def learn(data: bytes) -> None:
            jobs = decode_message(data, m.PollJobsResponse).jobs
            self._held += [Held(job.id, worker, job.attempt, job.instance_id, job.step_id) for job in jobs]  # pyright: ignore[reportArgumentType] - a stand-in

        return PollRequest(worker, ["other", "work"], rng.randint(1, 10), POLL_LEASE_S), learn

    def _complete(self, rng: random.Random) -> tuple[Any, Learn]:
        held, value = self._one(rng), next(self.values)
        request = Completion(held.job, worker_id=held.worker, variables=json.dumps({held.step: value}).encode())
        return request, lambda _: self.acknowledge((held.instance, held.step), value)

    def _complete_many(self, rng: random.Random) -> tuple[Any, Learn]:
        worker, items = self._same_worker(rng)
        sent = {item.job: ((item.instance, item.step), next(self.values)) for item in items}
        done = [
            w.Completion(item.job, item.attempt, json.dumps({item.step: sent[item.job][1]}).encode()) for item in items
        ]

        def learn(data: bytes) -> None:
            self.settle(sent, decode_message(data, w.CompleteJobsResponse).results)

        return w.CompleteJobsRequest(worker, done), learn

    def _fail(self, rng: random.Random) -> tuple[Any, Learn]:
        held = self._one(rng)
        return Failure(held.job, worker_id=held.worker, retryable=True, error_message="storm"), ignore

    def _fail_many(self, rng: random.Random) -> tuple[Any, Learn]:
        worker, items = self._same_worker(rng)
        return w.FailJobsRequest(worker, [w.Failure(item.job, item.attempt, True, "storm") for item in items]), ignore

    def _release(self, rng: random.Random) -> tuple[Any, Learn]:
        worker, items = self._same_worker(rng)
        return w.ReleaseJobsRequest(worker, [w.JobRef(item.job, item.attempt) for item in items]), ignore

    def _beat(self, rng: random.Random) -> tuple[Any, Learn]:
        beats = [w.Heartbeat(item.job, item.attempt, POLL_LEASE_S, b'{"at":1}') for item in self._held[-20:]]
        return w.HeartbeatJobsRequest(self._held[-1].worker if self._held else "w", beats), ignore

    def _start(self, rng: random.Random) -> tuple[Any, Learn]:
        def learn(data: bytes) -> None:
            instance = decode_message(data, m.StartInstanceResponse).instance
            assert instance is not None
            self.instances.append(instance.id)

        text = "x" * rng.choice([0, 10, 5_000])
        return StartRequest("storm", variables=json.dumps({"text": text}).encode()), learn

    def _start_many(self, rng: random.Random) -> tuple[Any, Learn]:
        items = [StartRequest("storm", idempotency_key=f"k-{rng.randrange(100)}") for _ in range(rng.randint(1, 3))]
        return w.StartInstancesRequest(items), ignore

    def _any(self, rng: random.Random) -> str:
        return rng.choice(self.instances)

    def _cancel(self, rng: random.Random) -> tuple[Any, Learn]:
        return m.CancelInstanceRequest(self._any(rng) if rng.random() < 0.2 else "1f", "storm"), ignore

    def _user_task(self, rng: random.Random) -> tuple[Any, Learn]:
        id, value = rng.choice(self.tasks), next(self.values)
        request = UserTaskCompletion(
            completed_by="me", variables=json.dumps({"ask": value}).encode(), instance_id=id, step_id="ask"
        )
        return request, lambda _: self.acknowledge((id, "ask"), value)

    def _signal(self, rng: random.Random) -> tuple[Any, Learn]:
        id, value = rng.choice(self.tasks), next(self.values)
        request = Signal(id, "hold", json.dumps({"hold": value}).encode())
        return request, lambda _: self.acknowledge((id, "hold"), value)

    def _upload_again(self, _: random.Random) -> tuple[Any, Learn]:
        steps = [m.WorkflowStep(id="end", name="end", type=m.StepType.END)]
        return m.UploadDefinitionRequest(m.WorkflowDefinition(id="again", name="again", steps=steps)), ignore


METHODS: dict[str, tuple[str, Callable[[Requests, random.Random], tuple[Any, Learn]]]] = {
    "UploadDefinition": (WORKFLOW, Requests._upload_again),
    "GetDefinition": (WORKFLOW, lambda *_: (m.GetDefinitionRequest("storm"), ignore)),
    "ListDefinitions": (WORKFLOW, lambda *_: (m.ListDefinitionsRequest(), ignore)),
    "StartInstance": (WORKFLOW, Requests._start),
    "GetInstance": (WORKFLOW, lambda self, rng: (m.GetInstanceRequest(self._any(rng)), ignore)),
    "GetInstanceHistory": (WORKFLOW, lambda self, rng: (m.GetInstanceHistoryRequest(self._any(rng)), ignore)),
    "CancelInstance": (WORKFLOW, Requests._cancel),
    "ListInstances": (WORKFLOW, lambda _, rng: (m.ListInstancesRequest("storm", page_size=rng.randint(1, 50)), ignore)),
    "PollJobs": (WORKFLOW, Requests._poll),
    "CompleteJob": (WORKFLOW, Requests._complete),
    "FailJob": (WORKFLOW, Requests._fail),
    "CompleteUserTask": (WORKFLOW, Requests._user_task),
    "SignalWait": (WORKFLOW, Requests._signal),
    "StartInstances": (WORKER, Requests._start_many),
    "CompleteJobs": (WORKER, Requests._complete_many),
    "FailJobs": (WORKER, Requests._fail_many),
    "ReleaseJobs": (WORKER, Requests._release),
    "HeartbeatJobs": (WORKER, Requests._beat),
}
