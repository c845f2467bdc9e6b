"""Where looks into the queue begin: dead rows at its head cost nothing, and no job is missed for long."""

from __future__ import annotations

import psycopg
import pytest

from penstock.engine.queues import low_water_marks
from penstock.engine.queues.low_water_marks import LOW_WATER_MARGIN_IDS, SCAN_INTERVAL_S, SCAN_SHARE, LowWaterMarks
from penstock.store.db.statements import SQL
from penstock.store.rows import jobs as store
from penstock.store.rows.jobs import ClaimedJob, LowWaterMark
from penstock.testing.definitions import linear
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number
from tests.store.test_plans import BLOCKS, NO_JOB

FAR = 10 * LOW_WATER_MARGIN_IDS


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def taken(job_type: int, *places: int, priority: int = 5) -> list[ClaimedJob]:
    """In any order, as a claim answers."""
    rows = [
        NO_JOB._replace(job_type=job_type, ordinal=ordinal, priority=priority, place=place)
        for ordinal, place in enumerate(places, start=1)
    ]
    return rows[::-1]


def test_a_floor_lies_below_the_last_row_that_was_taken() -> None:
    floors = LowWaterMarks(Clock())
    floors.mark_taken(0, taken(1, FAR, FAR + 5) + taken(2, FAR + 1, priority=3))
    assert floors.current()[0] == {
        1: LowWaterMark(5, FAR + 5 - LOW_WATER_MARGIN_IDS),
        2: LowWaterMark(3, FAR + 1 - LOW_WATER_MARGIN_IDS),
    }


def test_floors_expire_and_later_when_whole_looks_are_dear() -> None:
    clock = Clock()
    floors = LowWaterMarks(clock)
    assert not floors.drop_if_due()
    floors.mark_taken(0, taken(1, FAR))
    assert not floors.drop_if_due()
    clock.now += SCAN_INTERVAL_S
    assert floors.drop_if_due()
    assert floors.current() == ({}, 1)
    floors.remember_whole_scan(0.5)
    floors.mark_taken(1, taken(1, FAR))
    clock.now += 0.5 * SCAN_SHARE - 0.1
    assert not floors.drop_if_due()
    clock.now += 0.2
    assert floors.drop_if_due()


def test_an_older_claim_hides_nothing_that_a_look_found() -> None:
    clock = Clock()
    floors = LowWaterMarks(clock)
    floors.mark_taken(0, taken(1, FAR))
    clock.now += SCAN_INTERVAL_S
    assert floors.drop_if_due()
    floors.mark_taken(0, taken(1, FAR))
    assert floors.current()[0] == {}


async def blocks_of_a_claim(driver: Driver, floors: dict[int, LowWaterMark]) -> int:
    """What the claim of one job fetches, rolled back."""
    [(job_type,)] = driver.rows("SELECT id FROM job_type WHERE name = 'work'")
    async with driver.engine.database.connection() as connection:
        await connection.fetch(SQL["begin"])
        [(before,)] = await connection.fetch(BLOCKS)
        assert len(await store.claim(connection, [store.ClaimSlot(job_type, 1, "w", 30)], floors)) == 1
        [(after,)] = await connection.fetch(BLOCKS)
        await connection.fetch("ROLLBACK")
    assert isinstance(before, int)
    assert isinstance(after, int)
    return after - before


async def test_dead_rows_of_a_held_snapshot_are_skipped(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_water_marks, "LOW_WATER_MARGIN_IDS", 0)
    await driver.upload(linear(1))
    with psycopg.connect(driver.dsn) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT FROM token")
        driver.rows(
            "INSERT INTO ready (job_type, seq, token_id) SELECT id, nextval('step_seq'), n FROM job_type,"
            " generate_series(1, 20000) n WHERE name = 'work' RETURNING 1"
        )
        driver.rows("DELETE FROM ready RETURNING 1")
        for _ in range(2):
            await driver.start("linear")
        await driver.one("work")
        floors, _ = driver.engine.polls.claims.low_water_marks.current()
        assert await blocks_of_a_claim(driver, {}) > 200
        assert await blocks_of_a_claim(driver, dict(floors)) < 50


async def test_the_next_whole_look_finds_jobs_below_the_floor(make_driver: MakeDriver) -> None:
    """Its transaction drew an id and committed long after others had."""
    driver = make_driver(services=True)
    await driver.upload(linear(1))
    driver.rows("SELECT setval('step_seq', %s)", FAR)
    late = (await driver.start("linear")).id
    driver.rows("UPDATE token SET queued = 7 WHERE id = %s RETURNING 1", number(late))
    driver.rows("UPDATE ready SET seq = 7 RETURNING 1")
    driver.engine.polls.claims.low_water_marks.mark_taken(0, taken(driver.rows("SELECT id FROM job_type")[0][0], FAR))
    assert await driver.poll("work") == []
    assert (await driver.one("work", wait=10)).instance_id == late
