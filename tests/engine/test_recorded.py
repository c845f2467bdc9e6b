"""Jobs that their workers complete in transactions of their own, by the SQL function `complete`."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql

from penstock.engine.advance import recorded as taking
from penstock.errors import Conflict, JobCancelled, LeaseLost
from penstock.settings import Secret
from penstock.store.rows import recorded
from penstock.testing.definitions import Json, definition, end, fork, service, step, timer
from penstock.wire.edits import StepSkip, VariablesEdit
from penstock.wire.model import Job
from penstock.wire.queue import QueuePolicy
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver

KEYS = Secret("k1=" + "A" * 43 + "=")

PAYING: Json = definition(
    service("pay", "ship", job_type="pay", boundaryEvents=[timer("late", "PT1H", interrupting=True)]),
    service("ship", "end", job_type="ship"),
    step("late", "END"),
    end(),
    definition_id="paying",
)


@pytest.fixture
def bank(database_dsn: str) -> Generator[psycopg.Connection[Any]]:
    """A user's connection, with a table of its own."""
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE payment (job text)")
        connection.execute("INSERT INTO setting (name, value) VALUES ('schema_version_needed', '18')")
        yield connection


def complete(bank: psycopg.Connection[Any], held: Job, variables: Json | None = None, **call: Any) -> None:
    """What a handler's transaction does."""
    fields: dict[str, Any] = {"job": held.id, "attempt": held.attempt, "worker": held.worker_id, **call}
    body = None if variables is None else msgspec.json.encode(variables).decode()
    with bank.transaction():
        bank.execute("INSERT INTO payment VALUES (%s)", (held.id,))
        bank.execute("SELECT complete(%(job)s, %(attempt)s, %(worker)s, %(body)s)", {**fields, "body": body})


def paid(bank: psycopg.Connection[Any]) -> int:
    row = bank.execute("SELECT count(*) FROM payment").fetchone()
    assert row is not None
    return int(row[0])


async def begun(driver: Driver, **polled: Any) -> tuple[str, Job]:
    await driver.upload(PAYING)
    instance = (await driver.start("paying", {"amount": 3})).id
    return instance, await driver.one("pay", **polled)


async def test_a_transaction_completes_its_job(driver: Driver, bank: psycopg.Connection[Any]) -> None:
    instance, job = await begun(driver)
    other, lost = await begun(driver)
    bank.execute("LISTEN penstock")
    with pytest.raises(ZeroDivisionError), bank.transaction():
        complete(bank, lost, {"never": 1})
        assert bank.execute("SHOW idle_in_transaction_session_timeout").fetchall() == [("5s",)]
        raise ZeroDivisionError
    complete(bank, job, {"receipt": "R"})
    assert [notice.payload for notice in bank.notifies(timeout=30, stop_after=1)] == ["sql t 0"]
    assert paid(bank) == 1
    assert await driver.open_steps(instance) == ["pay"]
    assert (
        await driver.engine.diagnosis.state(instance)
    ).why.text == "pay was completed by its worker's own transaction"
    assert await driver.due() == 1
    assert await driver.path(instance) == [("pay", "COMPLETED"), ("ship", "RUNNING")]
    done, _ = await driver.history(instance)
    assert [(attempt.attempt, attempt.status) for attempt in done.attempts] == [(1, "COMPLETED")]
    assert driver.rows("SELECT kind, attempt, worker FROM history") == [(1, 1, "w1")]
    assert await driver.variables(instance) == {"amount": 3, "receipt": "R"}
    assert await driver.due() == 0
    shipped = await driver.one("ship")
    complete(bank, shipped)
    assert await driver.due() == 1
    assert await driver.status(instance) == "COMPLETED"
    await driver.complete(lost)
    assert await driver.variables(other) == {"amount": 3}
    assert driver.rows("SELECT count(*) FROM recorded_output") == [(0,)]


async def test_who_holds_the_job_no_more_is_rolled_back(driver: Driver, bank: psycopg.Connection[Any]) -> None:
    instance, job = await begun(driver, lease=10)
    before = driver.snapshot()
    wrong: list[dict[str, Any]] = [{"attempt": 2}, {"worker": "thief"}, {"job": "1-1-1"}, {"job": f"{job.id}0"}]
    for changes in wrong:
        with pytest.raises(psycopg.Error, match="not held by worker") as refused:
            complete(bank, job, **changes)
        assert refused.value.sqlstate == "PK001"
    assert driver.snapshot() == before
    await driver.expire(11)
    again = await driver.one("pay", worker="w2")
    with pytest.raises(psycopg.Error, match="not held by worker w1 in attempt 1"):
        complete(bank, job)
    complete(bank, again)
    with pytest.raises(psycopg.Error, match="not held"):
        complete(bank, again)
    await driver.due()
    with pytest.raises(psycopg.Error, match="not held"):
        complete(bank, again)
    assert paid(bank) == 1
    assert await driver.open_steps(instance) == ["ship"]


async def test_nobody_else_ends_what_stands_recorded(driver: Driver, bank: psycopg.Connection[Any]) -> None:
    instance, job = await begun(driver, lease=10)
    complete(bank, job, {"receipt": "R"})
    with pytest.raises(LeaseLost):
        await driver.heartbeat(job)
    assert await driver.expire(60) == 0
    assert await driver.poll("pay", "ship") == []
    assert await driver.open_steps(instance) == ["pay"]
    with pytest.raises(LeaseLost):
        await driver.complete(job, attempt=2)
    await driver.fail(job, attempt=1)  # each takes it up first, and finds it completed
    await driver.complete(job, {"another": 1})  # what the worker library says at the end of the handler
    assert await driver.path(instance) == [("pay", "COMPLETED"), ("ship", "RUNNING")]
    assert await driver.variables(instance) == {"amount": 3, "receipt": "R"}


async def test_a_job_from_kafka_is_completed_by_its_attempt(driver: Driver, bank: psycopg.Connection[Any]) -> None:
    instance, job = await begun(driver)
    driver.rows("UPDATE token SET state = 0 RETURNING 1")
    driver.rows("UPDATE token SET state = 5, claimed_by = NULL RETURNING 1")  # as the relay hands it over
    with pytest.raises(psycopg.Error, match="in attempt 2 any more"):
        complete(bank, job, attempt=2, worker="consumer")
    complete(bank, job, worker="consumer")
    await driver.due()
    assert driver.rows("SELECT kind, worker FROM history") == [(1, "consumer")]
    assert await driver.open_steps(instance) == ["ship"]


async def test_its_slot_is_free_once_it_is_taken_up(driver: Driver, bank: psycopg.Connection[Any]) -> None:
    await driver.engine.queues.put("limits", QueuePolicy(["pay"], concurrency=1))
    _, job = await begun(driver)
    await driver.start("paying", {"amount": 4})
    complete(bank, job)
    assert await driver.poll("pay") == []
    await driver.due()
    assert (await driver.one("pay")).id != job.id


@pytest.mark.parametrize("act", ["cancel", "skip", "edit", "boundary"])
async def test_what_comes_after_it_comes_after_it(driver: Driver, bank: psycopg.Connection[Any], act: str) -> None:
    """Though nobody has taken it up."""
    instance, job = await begun(driver)
    complete(bank, job, {"receipt": "R"})
    match act:
        case "cancel":
            await driver.cancel(instance)
            assert await driver.status(instance) == "CANCELLED"
            assert await driver.path(instance) == [("pay", "COMPLETED"), ("ship", "SKIPPED")]
        case "skip":
            with pytest.raises(Conflict):
                await driver.engine.repair.skip(instance, StepSkip(step_id="pay", note="by hand"))
            assert await driver.open_steps(instance) == ["ship"]
        case "edit":
            edit = VariablesEdit(set=msgspec.Raw(b'{"receipt": "S"}'), note="by hand")
            with pytest.raises(Conflict, match="is ACTIVE"):  # it goes on
                await driver.engine.repair.edit_variables(instance, edit)
            assert await driver.variables(instance) == {"amount": 3, "receipt": "R"}
        case _:
            driver.rows("UPDATE timer SET fire_at = fire_at + interval '1 d' WHERE index = -9 RETURNING 1")
            assert await driver.due(3600) == 0  # its step was left
            assert await driver.open_steps(instance) == ["ship"]
    assert (await driver.history(instance))[0].status == "COMPLETED"
    assert driver.rows("SELECT count(*) FROM recorded_output") == [(0,)]


@pytest.mark.parametrize(
    ("changes", "variables", "reason"),
    [
        ({"job": "pay"}, None, "needs the id, the attempt and the worker"),
        ({"attempt": None}, None, "needs the id, the attempt and the worker"),
        ({"worker": None}, None, "needs the id, the attempt and the worker"),
        ({}, [1], "variables: must be a JSON object, not array"),
        ({}, {"a": "x" * 1_048_576}, "variables: has 1048585 bytes, more than 1048576"),
        ({}, {"a": msgspec.Raw(b"[" * 100 + b"]" * 100)}, "variables: nested more than 100 levels deep"),
        ({}, {"a": {"b": [msgspec.Raw(b"-1e400")]}}, "variables: has a number that is outside"),
    ],
)
async def test_a_bad_argument_is_named(
    driver: Driver, bank: psycopg.Connection[Any], changes: dict[str, Any], variables: Any, reason: str
) -> None:
    _, job = await begun(driver)
    before = driver.snapshot()
    with pytest.raises(psycopg.Error, match=reason) as refused:
        complete(bank, job, variables, **changes)
    assert refused.value.sqlstate == "PK003"
    assert paid(bank) == 0
    assert driver.snapshot() == before


async def test_what_is_odd_and_good_is_taken(driver: Driver, bank: psycopg.Connection[Any]) -> None:
    instance, job = await begun(driver)
    complete(bank, job, {"deep": msgspec.Raw(b"[" * 99 + b"]" * 99), "large": 10**300, "text": "9" * 2000})
    await driver.due()
    assert (await driver.variables(instance))["large"] == 10**300
    for nothing in ("{}", "null", None):
        _, job = await begun(driver)
        bank.execute("SELECT complete(%s, 1, 'w1', %s)", (job.id, nothing))
    assert driver.rows("SELECT count(*) FROM recorded_output") == [(0,)]
    assert await driver.due() == 3


async def test_engines_of_versions_before_do_not_meet_it(driver: Driver, bank: psycopg.Connection[Any]) -> None:
    bank.execute("DELETE FROM setting WHERE name = 'schema_version_needed'")
    _, job = await begun(driver)
    with pytest.raises(psycopg.Error, match="not enabled here") as refused:
        complete(bank, job)
    assert refused.value.sqlstate == "PK002"
    async with driver.engine.database.connection() as connection:
        with pytest.raises(psycopg.errors.UndefinedObject):
            await recorded.allow(connection, "no such role")
    assert driver.rows("SELECT FROM setting WHERE name = 'schema_version_needed'") == [], "they may still join"
    bank.execute(
        "INSERT INTO engine (number, holder, leased_until, dispatch_mode, description, schema_version)"
        " VALUES (900, gen_random_uuid(), penstock_now() + interval '1 h', 'polling', 'old', 17)"
    )
    with pytest.raises(Conflict, match="upgrade all engines first"):
        async with driver.engine.database.connection() as connection:
            await recorded.allow(connection, "nobody")


async def test_a_role_may_complete_and_nothing_else(driver: Driver, bank: psycopg.Connection[Any]) -> None:
    bank.execute("DELETE FROM setting WHERE name = 'schema_version_needed'")
    instance, job = await begun(driver)
    role = sql.Identifier(name := f'o\'Hara "{secrets.token_hex(4)}"')
    bank.execute(sql.SQL("CREATE ROLE {}").format(role))
    try:
        bank.execute(sql.SQL("GRANT ALL ON payment TO {}").format(role))
        bank.execute(sql.SQL("SET ROLE {}").format(role))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            complete(bank, job)
        async with driver.engine.database.connection() as connection:
            await recorded.allow(connection, name)
        # what it makes itself stands in no way of the function
        bank.execute("CREATE TEMP TABLE token (id int)")
        bank.execute("CREATE TEMP TABLE setting (name text, value text)")
        complete(bank, job, {"receipt": "R"})
        bank.execute("DROP TABLE token, setting")
        for statement in (
            "SELECT * FROM public.token", "SELECT * FROM recorded_output", "DELETE FROM timer", "SELECT * FROM journal",
            "SELECT penstock_append(1, 1, 1, '', '', '', '', 1, 1)", "SELECT move_kept_history('history_other')",
            "SELECT nextval('step_seq')", "CREATE TABLE mine (id int)",
        ):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                bank.execute(statement.encode())
    finally:
        bank.execute("RESET ROLE")
        bank.execute(sql.SQL("DROP OWNED BY {}").format(role))
        bank.execute(sql.SQL("DROP ROLE {}").format(role))
    await driver.due()
    assert await driver.open_steps(instance) == ["ship"]


async def test_where_variables_are_encrypted_none_are_taken(
    make_driver: MakeDriver, bank: psycopg.Connection[Any]
) -> None:
    driver = make_driver(encryption_keys=KEYS)
    async with driver.engine.database.connection() as connection:
        await recorded.record_encryption(connection)
    instance, job = await begun(driver)
    with pytest.raises(psycopg.Error, match="variables: the engines here encrypt them"):
        complete(bank, job, {"receipt": "R"})
    complete(bank, job)
    assert await driver.due() == 1
    assert await driver.open_steps(instance) == ["ship"]


async def test_a_refused_one_is_tried_again_and_holds_up_nobody(
    make_driver: MakeDriver, bank: psycopg.Connection[Any]
) -> None:
    """An instance may not have so many variables: its bound is looked at when they are folded."""
    driver = make_driver(instance_variables_max_bytes=1_024)
    instance, job = await begun(driver)
    bank.execute("UPDATE token SET unfolded = 64")
    complete(bank, job, {"large": "x" * 2_000})
    assert await driver.due() == 0
    for _ in range(2):
        await driver.engine.repair.edit_variables(instance, VariablesEdit(set=msgspec.Raw(b'{"a": 1}'), note="by hand"))
    assert (await driver.open_steps(instance), await driver.variables(instance)) == (["pay"], {"amount": 3, "a": 1})
    other = make_driver()
    await other.due()
    assert await driver.open_steps(instance) == ["ship"]


async def test_one_that_is_too_large_leaves_its_neighbour_alone(
    make_driver: MakeDriver, bank: psycopg.Connection[Any]
) -> None:
    """Both are decided in one transaction, and only together with the large one the other brings too much."""
    driver = make_driver(instance_variables_max_bytes=1_024)
    instance = await driver.run(fork(1, 1, 1))
    large, small, _ = await driver.poll("work")
    bank.execute("UPDATE token SET unfolded = 64")
    complete(bank, large, {"large": "x" * 2_000})
    await driver.complete(small, {"small": 1})
    assert await driver.variables(instance) == {"small": 1}
    assert sorted(await driver.open_steps(instance)) == ["branch-1-task-1", "branch-3-task-1"]


async def test_no_transaction_takes_up_too_many(
    driver: Driver, bank: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what comes behind them waits for all of them."""
    monkeypatch.setattr(taking, "BESIDE_MAX", 2)
    instance = await driver.run(fork(1, 1, 1, 1, 1, 1))
    *jobs, _ = await driver.poll("work")
    for job in jobs:
        complete(bank, job)
    await driver.cancel(instance)
    together = "SELECT count(*) FROM history WHERE kind = 1 AND worker = 'w1' GROUP BY xmin::text ORDER BY 1"
    assert driver.rows(together) == [(1,), (2,), (2,)]
    assert await driver.status(instance) == "CANCELLED"


async def test_a_cancel_ends_a_refused_one(make_driver: MakeDriver, bank: psycopg.Connection[Any]) -> None:
    driver = make_driver(instance_variables_max_bytes=1_024)
    instance, job = await begun(driver)
    bank.execute("UPDATE token SET unfolded = 64")
    complete(bank, job, {"large": "x" * 2_000})
    await driver.cancel(instance)
    assert await driver.path(instance) == [("pay", "SKIPPED")]
    with pytest.raises(JobCancelled):
        await driver.complete(job, attempt=1)
    assert driver.rows("SELECT count(*) FROM recorded_output") == [(0,)]
