"""One row that the database refuses ends no service: it is set aside and listed, and all the others are handled."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
import trio
from trio.testing import MockClock

from penstock.engine.advance import quarantine
from penstock.engine.advance.quarantine import Quarantine
from penstock.engine.engine import Engine
from penstock.runtime.dispatch_migration import DispatchMigration
from penstock.runtime.housekeeping import Housekeeping
from penstock.runtime.lease_sweeper import LeaseSweeper
from penstock.runtime.retention import Retention
from penstock.telemetry.metrics import Metrics
from penstock.telemetry.metrics.registry import MAX_QUARANTINED_ROWS
from penstock.testing.definitions import definition, end, linear, step
from tests.dispatch.conftest import MakeKafka
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number

BAD = """
CREATE FUNCTION bad() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN IF {row}.{column} IN ({ids}) THEN
   RAISE unique_violation USING MESSAGE = ''bad row''; END IF; RETURN {row}; END';
CREATE TRIGGER bad BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION bad()
"""
JOBS = 20


def break_rows(driver: Driver, event: str, table: str, column: str, *ids: int) -> Callable[[], None]:
    """Have the database refuse what happens to these rows; call the result to repair it."""
    row = "OLD" if event == "DELETE" else "NEW"
    text = BAD.format(event=event, table=table, column=column, row=row, ids=", ".join(map(str, ids)))
    with psycopg.connect(driver.dsn, autocommit=True) as connection:
        for statement in text.split(";\n"):
            connection.execute(statement.encode())

    def repair_by_hand() -> None:
        with psycopg.connect(driver.dsn, autocommit=True) as connection:
            connection.execute(f"DROP TRIGGER bad ON {table}".encode())

    return repair_by_hand


def listed(engine: Engine, service: str) -> list[str]:
    """What is shown of the rows of a service, the same in the listing and in the metrics."""
    rows = [about for about in engine.quarantine.listing() if about.service == service]
    shown = engine.metrics.registry.get_sample_value("penstock_quarantined_rows", {"service": service}) or 0
    assert shown == len(rows)
    for about in rows:
        labels = {"service": service, "row": about.row, "reason": about.reason}
        assert engine.metrics.registry.get_sample_value("penstock_quarantined_row", labels) == 1
        assert about.reason == "bad row"
    return [about.row for about in rows]


async def jobs(driver: Driver, count: int = JOBS) -> list[int]:
    """Instances with one job each; their tokens have the same numbers."""
    await driver.upload(linear(1))
    return [number((await driver.start("linear")).id) for _ in range(count)]


async def test_a_lease_that_can_not_be_ended(driver: Driver) -> None:
    tokens = await jobs(driver)
    leased = await driver.poll("work", n=JOBS)
    sweeper = LeaseSweeper(driver.engine)
    bad = tokens[7]
    repair_by_hand = break_rows(driver, "INSERT", "ready", "token_id", bad)
    driver.clock.advance(31)
    far = trio.current_time() + 1e6
    assert await sweeper.run_once(far) == JOBS - 1
    assert driver.rows("SELECT id FROM token WHERE state = 1") == [(bad,)]
    assert listed(driver.engine, "lease sweeper") == [f"job {leased[7].id}"]
    assert await sweeper.scan_once() == 1, "and the scan leaves it alone meanwhile"
    repair_by_hand()
    assert await sweeper.run_once(far + 2 * quarantine.PAUSE_MAX_S) == 1
    assert listed(driver.engine, "lease sweeper") == []
    assert driver.rows("SELECT count(*) FROM token WHERE state = 1") == [(0,)]


async def test_a_job_that_can_not_be_dead_lettered(make_driver: MakeDriver) -> None:
    driver = make_driver(lease_expiry_limit=1)
    tokens = await jobs(driver, 3)
    leased = await driver.poll("work", n=3)
    sweeper = LeaseSweeper(driver.engine)
    break_rows(driver, "UPDATE", "instance", "id", tokens[1])
    driver.clock.advance(31)
    await sweeper.run_once(trio.current_time() + 1e6)
    assert driver.rows("SELECT id FROM instance WHERE status = 0") == [(tokens[1],)]
    (about,) = driver.engine.quarantine.listing()
    assert (about.service, about.row) == ("lease sweeper", f"job {leased[1].id}")


async def test_a_timer_that_can_not_be_fired(driver: Driver) -> None:
    await driver.upload(definition(step("sleep", "WAIT", duration="PT1S", nextStep="end"), end()))
    instances = [number((await driver.start("test")).id) for _ in range(JOBS)]
    bad = instances[3]
    break_rows(driver, "UPDATE", "instance", "id", bad)
    assert await driver.due(2) == JOBS - 1
    assert driver.rows("SELECT instance_id FROM timer") == [(bad,)]
    (about,) = driver.engine.quarantine.listing()
    assert about.service == "timers"
    assert about.row.startswith(f"instance {bad:x}, ")


async def test_an_instance_that_can_not_be_removed(make_driver: MakeDriver) -> None:
    driver = make_driver(retention_days=10, partition_days=7)
    await Retention(driver.engine).run_once()
    instances = await jobs(driver)
    for job in await driver.poll("work", n=JOBS):
        await driver.complete(job)
    bad = instances[5]
    repair_by_hand = break_rows(driver, "DELETE", "instance", "id", bad)
    driver.clock.advance(40 * 86_400)
    retention = Retention(driver.engine)
    while await retention.run_once():
        pass
    assert driver.rows("SELECT id FROM instance") == [(bad,)]
    assert listed(driver.engine, "retention") == [f"instance {bad:x}"]
    repair_by_hand()
    driver.engine.quarantine.forget("retention", bad)  # its time has come
    while await retention.run_once():
        pass
    assert driver.rows("SELECT count(*) FROM instance") == [(0,)]


async def test_a_job_that_can_not_be_moved_to_the_queue(make_driver: MakeDriver, make_kafka: MakeKafka) -> None:
    kafka = make_kafka()
    tokens = await jobs(kafka)
    driver = make_driver()
    break_rows(driver, "INSERT", "ready", "token_id", tokens[0], tokens[11])
    migration = DispatchMigration(driver.engine)
    with trio.fail_after(20):
        while await migration.run_once():
            pass
    assert driver.rows("SELECT token_id FROM dispatch_outbox ORDER BY 1") == [(tokens[0],), (tokens[11],)]
    assert driver.rows("SELECT count(*) FROM ready") == [(JOBS - 2,)]
    assert listed(driver.engine, "dispatch migration") == [f"token {tokens[0]:x}", f"token {tokens[11]:x}"]


async def test_a_job_that_can_not_be_moved_to_the_outbox(make_driver: MakeDriver, make_kafka: MakeKafka) -> None:
    driver = make_driver()
    tokens = await jobs(driver)
    kafka = make_kafka()
    break_rows(kafka, "INSERT", "dispatch_outbox", "token_id", tokens[4])
    migration = DispatchMigration(kafka.engine)
    with trio.fail_after(20):
        while await migration.run_once():
            pass
    assert kafka.rows("SELECT token_id FROM ready") == [(tokens[4],)]
    assert listed(kafka.engine, "dispatch migration") == [f"token {tokens[4]:x}"]


async def test_a_row_of_the_outbox_that_can_not_be_taken(make_kafka: MakeKafka) -> None:
    kafka = make_kafka()
    tokens = await jobs(kafka)
    rows = dict(kafka.rows("SELECT token_id, id FROM dispatch_outbox"))
    bad = [tokens[0], tokens[9], tokens[10]]
    repair_by_hand = break_rows(kafka, "UPDATE", "token", "id", *bad)
    kafka.relay.wake()
    with trio.fail_after(20):
        while kafka.rows("SELECT count(*) FROM dispatch_outbox") != [(3,)]:
            await kafka.relay.run_once()
    assert len(kafka.producer.log) == JOBS - 3
    assert sorted(listed(kafka.engine, "relay")) == sorted(f"outbox row {rows[token]:x}" for token in bad)
    repair_by_hand()
    for token in bad:
        kafka.engine.quarantine.forget("relay", rows[token])  # their time has come
    await kafka.drain()
    assert len(kafka.producer.log) == JOBS


async def test_a_published_row_that_can_not_be_deleted(make_kafka: MakeKafka) -> None:
    kafka = make_kafka()
    tokens = await jobs(kafka, 5)
    break_rows(kafka, "DELETE", "dispatch_outbox", "token_id", tokens[2])
    kafka.relay.wake()
    with trio.fail_after(20):
        while kafka.rows("SELECT count(*) FROM dispatch_outbox") != [(1,)] or not kafka.engine.quarantine.listing():
            await kafka.relay.run_once()
    assert {event.instance_id for event in kafka.producer.log} == {f"{token:x}" for token in tokens}


# -- the list


async def test_pauses_grow_and_the_bounded_list_drops_what_is_gone(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "ROWS_MAX", 2 * MAX_QUARANTINED_ROWS)
    metrics = Metrics("test")
    rows = Quarantine(metrics)
    error = psycopg.IntegrityError("bad")
    pauses = [rows.quarantine_row("s", 1, "row 1", error) for _ in range(9)]
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert rows.waiting("s") == [1]
    assert rows.waiting("other") == []
    for key in range(3 * MAX_QUARANTINED_ROWS):
        rows.quarantine_row("s", key, f"row {key}", error)
    assert len(rows.listing()) == 2 * MAX_QUARANTINED_ROWS
    shown = [family for family in metrics.registry.collect() if family.name == "penstock_quarantined_row"]
    assert len(shown[0].samples) == MAX_QUARANTINED_ROWS
    mock_clock.jump(quarantine.PAUSE_MAX_S + 1)
    assert rows.waiting("s") == []
    assert rows.listing() != []
    mock_clock.jump(quarantine.FORGET_AFTER_S)
    assert rows.waiting("s") == rows.listing() == []


async def test_what_is_no_bad_data_is_raised(driver: Driver) -> None:
    async def handle(rows: object) -> list[int]:
        raise psycopg.OperationalError("away")

    with pytest.raises(psycopg.OperationalError):
        await driver.engine.quarantine.each([1, 2], handle, lambda row, error: None)
    assert driver.engine.quarantine.listing() == []
    await Housekeeping(driver.engine).run_once()
