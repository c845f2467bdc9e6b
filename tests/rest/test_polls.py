"""Long polls: how long they are held, and what happens when nobody waits for the answer any more."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from penstock.errors import Unavailable
from penstock.rest.jobs import ENCODED_AT_ONCE_BYTES, MANY_TYPES, UNWATCHED_SECONDS
from penstock.wire.model import Job, LostJob, PollRequest
from tests.rest.scripted import Answer, Rest, ScriptedEngine, job


class Queue:
    """A scripted queue: a poll ends with its time or when ``put`` gives it jobs."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.cancelled = 0
        self._jobs: list[Job] = []
        self._changed = trio.Event()

    def put(self, *jobs: Job) -> None:
        self._jobs += jobs
        self._changed.set()

    async def poll(self, request: PollRequest) -> list[Job]:
        wait_s = request.wait_seconds or 0
        self.waits.append(wait_s)
        try:
            with trio.move_on_after(wait_s):
                await self._changed.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        jobs, self._jobs, self._changed = self._jobs, [], trio.Event()
        return jobs


@pytest.fixture
def queue(engine: ScriptedEngine) -> Queue:
    queue = Queue()
    engine.on("jobs.poll", queue.poll)
    return queue


def poll(rest: Rest, wait: Any) -> Awaitable[Answer]:
    return rest.post("/v1/jobs/poll", {"workerId": "w", "jobTypes": ["a"], "waitSeconds": wait})


@pytest.mark.parametrize(("wait", "seconds"), [(0, 0), (0.05, 0.05), (5, 5), (600, 60), (10**400, 60), (-1, 0)])
async def test_an_empty_poll_is_held_within_its_bounds(
    rest: Rest, queue: Queue, autojump_clock: trio.testing.MockClock, wait: Any, seconds: float
) -> None:
    started = trio.current_time()
    with trio.fail_after(100):
        answer = await _patient(poll, rest, wait)
    assert (answer.status, answer.json) == (200, {"jobs": []})
    assert trio.current_time() - started == pytest.approx(seconds)
    assert sum(queue.waits) == pytest.approx(seconds)


async def _patient(call: Callable[[Rest, Any], Awaitable[Answer]], rest: Rest, wait: Any) -> Answer:
    """The client of the tests gives up after 10 s; a poll may take 60."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trio, "fail_after", lambda _: trio.CancelScope())
        return await call(rest, wait)


async def test_a_held_poll_is_answered_when_a_job_comes(
    rest: Rest, queue: Queue, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:

        async def put_later() -> None:
            await trio.sleep(3)
            queue.put(job())

        nursery.start_soon(put_later)
        answer = await poll(rest, 9)
    assert [found["id"] for found in answer.json["jobs"]] == ["1f-1-0"]
    assert trio.current_time() == pytest.approx(3)


async def test_a_client_that_goes_away_ends_its_poll_at_once(
    rest: Rest, queue: Queue, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:

        async def leave() -> None:
            await trio.sleep(2)
            rest.gone.set()

        nursery.start_soon(leave)
        answer = await poll(rest, 9)
    assert trio.current_time() == pytest.approx(2)
    assert queue.cancelled == 1
    assert answer.json == {"jobs": []}  # for one who only closed the sending side


async def test_a_client_that_left_early_is_noticed(
    rest: Rest, queue: Queue, autojump_clock: trio.testing.MockClock
) -> None:
    rest.gone.set()
    await poll(rest, 9)
    assert trio.current_time() == pytest.approx(UNWATCHED_SECONDS)
    assert queue.cancelled == 1


async def test_jobs_that_came_while_the_client_left_are_released(rest: Rest, engine: ScriptedEngine) -> None:
    polls = 0

    async def answer(request: PollRequest) -> list[Job]:
        nonlocal polls
        polls += 1
        if polls == 1:
            return []
        with trio.CancelScope(shield=True):  # committed: the cancellation comes too late
            await trio.testing.wait_all_tasks_blocked()
        return [job("1f-1-0", attempt=4), job("1f-2-0")]

    engine.on("jobs.poll", answer)
    rest.gone.set()
    assert (await poll(rest, 9)).json == {"jobs": []}
    released = engine.one("jobs.release_many")
    assert [(item.job_id, item.worker_id, item.attempt) for item in released] == [
        ("1f-1-0", "w", 4),
        ("1f-2-0", "w", 1),
    ]


async def test_an_error_in_a_held_poll_is_answered_as_itself(rest: Rest, engine: ScriptedEngine) -> None:
    async def answer(request: PollRequest) -> list[Job]:
        if (request.wait_seconds or 0) > UNWATCHED_SECONDS:
            raise Unavailable("the database is away")
        return []

    engine.on("jobs.poll", answer)
    assert (await poll(rest, 9)).error == (503, "unavailable", "the database is away")


async def test_a_poll_with_jobs_at_once_needs_no_look_out(rest: Rest, queue: Queue) -> None:
    queue.put(job())
    answer = await poll(rest, 9)
    assert len(answer.json["jobs"]) == 1
    assert queue.waits == [UNWATCHED_SECONDS]


async def test_jobs_for_a_client_known_as_gone_are_released(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("jobs.poll", [job("1f-1-0", attempt=4)])
    rest.extensions["penstock.peer_gone"] = lambda: True
    answer = await poll(rest, 9)
    # a worker that only half closed its connection still reads: no job, which it would do without a lease, and no 500,
    # which is what the server says for an application that does not answer (found by `python -m chaos`)
    assert (answer.status, answer.json) == (200, {"jobs": []})
    (released,) = engine.one("jobs.release_many")
    assert (released.job_id, released.worker_id, released.attempt) == ("1f-1-0", "w", 4)


async def test_jobs_for_a_client_that_is_there_are_handed_out(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("jobs.poll", [job()])
    rest.extensions["penstock.peer_gone"] = lambda: False
    assert len((await poll(rest, 9)).json["jobs"]) == 1
    assert not engine.calls["jobs.release_many"]


async def test_a_watch_for_lost_jobs_ends_with_its_client(
    rest: Rest, engine: ScriptedEngine, autojump_clock: trio.testing.MockClock
) -> None:
    waits: list[float] = []

    async def wait_lost(worker: str, wait_s: float) -> list[LostJob]:
        waits.append(wait_s)
        await trio.sleep(wait_s)
        return [LostJob(job_id="1f-1-0", attempt=2, outcome="cancelled")] if worker == "w" else []

    engine.on("jobs.wait_lost", wait_lost)
    answer = await rest.post("/v1/jobs/lost", {"workerId": "w", "waitSeconds": 5})
    assert answer.json == {"lost": [{"jobId": "1f-1-0", "attempt": 2, "outcome": "cancelled"}]}
    assert (await rest.post("/v1/jobs/lost", {"workerId": "other"})).json == {"lost": []}
    assert (await rest.post("/v1/jobs/lost", {})).error == (400, "bad-request", "workerId: is required")
    assert (waits, trio.current_time()) == ([5, 0], pytest.approx(5))
    rest.gone.set()
    assert (await rest.post("/v1/jobs/lost", {"workerId": "w", "waitSeconds": 600})).json == {"lost": []}
    assert (waits[2:], trio.current_time()) == ([60], pytest.approx(5))


async def test_a_poll_for_many_types_looks_into_the_queue_once(
    rest: Rest, queue: Queue, autojump_clock: trio.testing.MockClock
) -> None:
    types = [f"type-{number}" for number in range(MANY_TYPES + 1)]
    for wait, waits in ((5, [5]), (0, [0])):
        queue.waits.clear()
        answer = await rest.post("/v1/jobs/poll", {"workerId": "w", "jobTypes": types, "waitSeconds": wait})
        assert (answer.json, queue.waits) == ({"jobs": []}, waits)


async def test_large_jobs_are_encoded_one_by_one_between_turns(rest: Rest, queue: Queue) -> None:
    variables = {"text": "x" * ENCODED_AT_ONCE_BYTES}
    queue.put(*[job(id=f"job-{number}", variables=msgspec.Raw(json.dumps(variables).encode())) for number in range(3)])
    answer = await poll(rest, 5)
    assert [(found["id"], found["variables"]) for found in answer.json["jobs"]] == [
        (f"job-{number}", variables) for number in range(3)
    ]
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert sum(size > ENCODED_AT_ONCE_BYTES for size in rest.pieces) == 3
