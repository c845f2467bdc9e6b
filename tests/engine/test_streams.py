"""What a job stream remembers of the jobs that its worker holds; how it travels is shown in tests/rpc."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pytest
import trio

from penstock.engine.jobs.streams import JobStream
from penstock.errors import Unavailable
from penstock.store.rows import jobs as store
from penstock.testing.definitions import linear
from penstock.wire.model import Job
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.waiting import wait_until


@pytest.fixture
async def driver(make_driver: MakeDriver) -> Driver:
    return make_driver(services=True)


class Worker:
    """A stream, and waiting for its next job."""

    def __init__(self, driver: Driver) -> None:
        self._changed = trio.Event()
        self.stream = JobStream(driver.engine, "w1", 3_600, self._on_change)

    def _on_change(self) -> None:
        self._changed.set()

    async def one(self) -> Job:
        with trio.fail_after(60):
            while not (jobs := self.stream.take_nowait(1, 1_000_000)):
                await self._changed.wait()
                self._changed = trio.Event()
        return jobs[0]


async def in_queue(driver: Driver, attempt: int) -> None:
    """The one job is free, after so many attempts."""

    async def found() -> bool:
        return driver.rows("SELECT state, attempt FROM token") == [(0, attempt)]

    await wait_until(found)


async def retried(driver: Driver, worker: Worker) -> tuple[Job, Job]:
    """A job that failed on the stream and came back on it: its first and second attempt."""
    await driver.upload(linear(1, retry_count=5))
    worker.stream.grant("work", 2)
    await driver.start("linear")
    first = await worker.one()
    assert worker.stream.on_reported(first.id, 1) == 1
    await driver.fail(first)
    second = await worker.one()
    assert (second.id, second.attempt) == (first.id, 2)
    return first, second


async def test_a_late_result_leaves_the_running_attempt_known(driver: Driver) -> None:
    worker = Worker(driver)
    first, _ = await retried(driver, worker)
    worker.stream.on_settled(first.id, 1, final=True)
    assert worker.stream.on_reported(first.id, 1) is None
    assert worker.stream.on_reported(first.id, -1) is None
    worker.stream.close()
    await in_queue(driver, 2)


async def test_a_late_settled_result_leaves_the_next_attempt_known(driver: Driver) -> None:
    """A message's results are settled together: a job that one of them retries can be back before that."""
    worker = Worker(driver)
    first, second = await retried(driver, worker)
    assert worker.stream.on_reported(second.id, 0) == 2
    worker.stream.on_settled(first.id, 1, final=True)
    assert worker.stream.has_unsettled
    worker.stream.close()
    await in_queue(driver, 2)


async def test_a_result_without_effect_leaves_the_worker_its_job(driver: Driver) -> None:
    worker = Worker(driver)
    first, second = await retried(driver, worker)
    worker.stream.on_settled(first.id, 1, final=False)  # the newer attempt is the one that is held
    assert worker.stream.on_reported(second.id, 2) == 2
    worker.stream.on_settled(second.id, 2, final=False)
    assert worker.stream.has_unsettled
    worker.stream.close()
    await in_queue(driver, 2)


async def test_a_look_for_lost_jobs_that_breaks_off_forgets_none(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver(batch_max_items=1)  # a statement for each job
    worker = Worker(driver)
    await driver.upload(linear(1))
    worker.stream.grant("work", 2)
    instances = [(await driver.start("linear")).id for _ in range(2)]
    jobs = {(await worker.one()).id for _ in range(2)}
    for instance in instances:
        await driver.cancel(instance)
    probes: list[object] = []

    async def facts(*args: Any) -> list[store.ExecutionInfo]:
        probes.append(args)
        if len(probes) == 2:
            raise psycopg.OperationalError
        return await known_facts(*args)

    known_facts = store.look_up
    monkeypatch.setattr(store, "look_up", facts)
    with pytest.raises(Unavailable):
        await worker.stream.find_lost()
    assert {lost.job_id for lost in await worker.stream.find_lost()} == jobs
    assert not worker.stream.has_unsettled


async def test_many_types_together_stay_within_the_buffer_and_none_starves(make_driver: MakeDriver) -> None:
    driver = make_driver(services=True, poll_max_jobs=4)
    worker = Worker(driver)
    types = ["one", "two", "three"]
    for name in types:
        await driver.upload(linear(1, definition_id=name, job_type=name))
        for _ in range(4):
            await driver.start(name)
    for name in types:
        worker.stream.grant(name, 4)
    await driver.engine.polls.claims.wait_flushed()
    taken: list[str] = []
    while len(taken) < 12:
        ((leased,),) = driver.rows("SELECT count(*) FROM token WHERE state = 1")
        assert leased - len(taken) <= 4
        taken.append((await worker.one()).job_type)
    assert Counter(taken) == dict.fromkeys(types, 4)
