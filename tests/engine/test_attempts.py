"""What attempts of jobs were given, told last and gave; and a checkpoint that is taken away."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import psycopg
import pytest
import trio

from penstock.engine.requests import ids
from penstock.errors import NotFound
from penstock.settings.secret import Secret
from penstock.store.rows import attempts
from penstock.testing.definitions import Json, definition, end, service
from penstock.wire.model import Job, Park
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.engine.test_encryption import KEYS
from tests.waiting import wait_until


@pytest.fixture
def driver(make_driver: MakeDriver) -> Driver:
    return make_driver(attempt_record_max_bytes=1_000)


def job_of(**fields: Any) -> Json:
    return definition(service("work", "end", retryCount=3), end(), definition_id="one", **fields)


def value(raw: object) -> Any:
    return None if raw is None else msgspec.json.decode(cast(bytes, raw))


async def shown(driver: Driver, job: Job) -> list[tuple[object, ...]]:
    return [
        (one.attempt, one.status, value(one.parameters), value(one.result), value(one.progress))
        for one in await driver.engine.attempts.of(job.id)
    ]


async def test_each_attempt_shows_what_it_was_given_and_gave(driver: Driver) -> None:
    await driver.run(job_of(recordAttempts=True), {"n": 1})
    first = await driver.one("work")
    await driver.heartbeat(first, progress=b'{"done": 1}')
    await driver.heartbeat(first, progress=b'{"done": 2}')
    await driver.fail(first, "boom")
    second = await driver.one("work")
    assert await shown(driver, second) == [
        (1, "FAILED", {"n": 1}, None, {"done": 2}),
        (2, "RUNNING", {"n": 1}, None, None),
    ]
    await driver.complete(second, {"y": 2})
    assert await shown(driver, second) == [
        (1, "FAILED", {"n": 1}, None, {"done": 2}),
        (2, "COMPLETED", {"n": 1}, {"y": 2}, None),
    ]
    [failed, _] = await driver.engine.attempts.of(second.id)
    assert (failed.reason, failed.worker) == ("boom", "w1")


async def test_without_being_asked_for_only_what_was_told_is_kept(driver: Driver) -> None:
    await driver.run(job_of(), {"n": 1})
    job = await driver.one("work")
    await driver.heartbeat(job, progress=b"3")
    await driver.complete(job, {"y": 2})
    assert await shown(driver, job) == [(1, "COMPLETED", None, {"y": 2}, 3)]
    assert driver.rows("SELECT parameters FROM attempt_note") == [(None,)]


async def test_job_types_can_be_recorded_for_all_definitions(make_driver: MakeDriver) -> None:
    driver = make_driver(attempts_recorded_job_types=("work",))
    await driver.run(job_of(), {"n": 1})
    job = await driver.one("work")
    assert await shown(driver, job) == [(1, "RUNNING", {"n": 1}, None, None)]


async def test_what_is_too_large_is_reported_by_its_bytes(driver: Driver) -> None:
    await driver.run(job_of(recordAttempts=True), {"text": "x" * 2_000})
    job = await driver.one("work")
    await driver.complete(job, {"y": "x" * 2_000})
    [one] = await driver.engine.attempts.of(job.id)
    assert (one.parameters, one.result) == (None, None)
    assert 2_000 < (one.parameters_bytes or 0) < 2_100
    assert 2_000 < (one.result_bytes or 0) < 2_100


async def test_what_is_kept_of_attempts_is_sealed(make_driver: MakeDriver) -> None:
    driver = make_driver(encryption_keys=Secret(KEYS["k1"]))
    await driver.run(job_of(recordAttempts=True), {"card": "s3kr1t"})
    job = await driver.one("work")
    await driver.heartbeat(job, progress=b'"s3kr1t"')
    assert "s3kr1t" not in str(driver.rows("SELECT * FROM attempt_note"))
    assert await shown(driver, job) == [(1, "RUNNING", {"card": "s3kr1t"}, None, "s3kr1t")]


async def test_what_a_signal_brought_is_no_result(driver: Driver) -> None:
    instance = await driver.run(job_of())
    job = await driver.one("work")
    park = Park(job_id=job.id, attempt=job.attempt, worker_id=job.worker_id or "", signal="paid")
    await driver.engine.jobs.park(park)
    await driver.signal(instance, "paid", {"sum": 3})
    assert (await shown(driver, job))[0][3] is None


async def test_a_checkpoint_goes_also_while_progress_is_reported(driver: Driver) -> None:
    await driver.run(job_of())
    job = await driver.one("work")
    await driver.heartbeat(job, checkpoint=b'{"page": 3}')
    key = ids.read_job(job.id)
    async with driver.engine.database.connection() as connection:
        await connection.fetch(b"SET lock_timeout = 0")
        with psycopg.connect(driver.dsn) as worker:  # a heartbeat's row, not committed yet
            worker.execute("UPDATE job_note SET progress = '4'")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(attempts.forget_checkpoint, connection, key, [])

                async def is_waiting() -> bool:
                    return driver.waiting_for_locks() == 1

                await wait_until(is_waiting)
                worker.commit()
    assert driver.rows("SELECT checkpoint, progress FROM job_note") == [(None, 4)]


async def test_a_checkpoint_is_taken_away(driver: Driver) -> None:
    instance = await driver.run(job_of())
    job = await driver.one("work")
    await driver.heartbeat(job, checkpoint=b'{"page": 3}', progress=b"3")
    await driver.engine.attempts.forget_checkpoint(job.id, "the file was wrong")
    await driver.engine.attempts.forget_checkpoint(job.id, None)
    await driver.fail(job)
    again = await driver.one("work")
    assert again.checkpoint is None
    found = driver.rows("SELECT kind, detail FROM audit WHERE kind = 'CHECKPOINT_FORGOTTEN'")
    assert found == [("CHECKPOINT_FORGOTTEN", "the file was wrong")]
    await driver.complete(again)
    assert await driver.status(instance) == "COMPLETED"
    with pytest.raises(NotFound, match="not open"):
        await driver.engine.attempts.forget_checkpoint(job.id, None)
    with pytest.raises(NotFound):
        await driver.engine.attempts.of("1-2-3")
