"""Steps that are transactions: what they did and their record come to be together, once, whatever is killed."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import psycopg
import pytest
import trio
import trio.testing
from psycopg import sql

from penstock.durable import (
    App,
    NotInWorkflow,
    Run,
    RunFailed,
    open_nursery,
    receive,
    step,
    step_info,
    transaction,
    workflow,
)
from penstock.durable.loaded_run import ExecutorLimits
from penstock.durable.step import StepCall, StepInfo
from penstock.durable.transaction import STEP_TABLE
from penstock.kernel.operation import Outcome
from penstock.testing import run_workflow
from tests.postgres import PostgresServer, apply_schema

BOUND_S = 60.0
OTHER_DSN = ""


class TooPoor(Exception):
    """There is less than is to be moved."""


@step.transaction(raises=[TooPoor])
def move(tx: psycopg.Connection, source: str, target: str, amount: int) -> int:
    left = tx.execute("UPDATE account SET amount = amount - %s WHERE name = %s RETURNING amount", (amount, source))
    [found] = left.fetchone() or [0]
    tx.execute("UPDATE account SET amount = amount + %s WHERE name = %s", (amount, target))
    tx.execute("INSERT INTO moved (key) VALUES (%s)", (step_info().key,))
    if found < 0:
        raise TooPoor(source)
    return int(found)


@workflow
async def transfer(count: int) -> list[int]:
    return [await move("ann", "bob", 1) for _ in range(count)]


@workflow
async def crowd(count: int) -> int:
    async with open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(move, "ann", "bob", 1)
    return count


@pytest.fixture
def bank(database_dsn: str) -> str:
    make_bank(database_dsn)
    return database_dsn


def make_bank(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE account (name text PRIMARY KEY, amount int)")
        connection.execute("INSERT INTO account VALUES ('ann', 10000000), ('bob', 0)")
        connection.execute("CREATE TABLE moved (key text)")


def moved(dsn: str) -> int:
    """What bob has; no step's transaction was committed twice, and no money was made."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        [(total, bob)] = connection.execute(
            "SELECT sum(amount), sum(amount) FILTER (WHERE name = 'bob') FROM account"
        ).fetchall()
        keys = [key for (key,) in connection.execute("SELECT key FROM moved").fetchall()]
    assert total == 10_000_000
    assert len(keys) == len(set(keys)) == bob
    return int(bob)


async def test_a_transaction_is_a_step_like_others(bank: str):
    async with App(transfer, at=bank) as app:
        run = await app.start(transfer, 3)
        assert await run.result(BOUND_S) == [9_999_999, 9_999_998, 9_999_997]
        records = [record async for record in run.history()]
    assert [(record["kind"], record["path"], record["name"]) for record in records] == [
        ("done", f"/{n}", "move") for n in range(3)
    ]
    assert moved(bank) == 3


async def test_branches_commit_side_by_side_with_other_steps(bank: str):
    @step
    async def beside() -> str:
        return "ok"

    @workflow
    async def body() -> list[str]:
        found: list[str] = []

        async def both() -> None:
            found.append(await beside())
            await move("ann", "bob", 1)
            found.append(await beside())

        async with open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(both)
        return found

    async with App(body, at=bank) as app:
        assert await (await app.start(body)).result(BOUND_S) == ["ok"] * 20
    assert moved(bank) == 10


async def test_what_it_raises_undoes_it(bank: str):
    @workflow
    async def body() -> str:
        try:
            await move("ann", "bob", 100_000_000)
        except TooPoor as error:
            return f"too poor: {error}"
        return "moved"

    async with App(body, at=bank) as app:
        assert await (await app.start(body)).result(BOUND_S) == "too poor: ann"
    assert moved(bank) == 0


async def test_a_value_that_can_not_be_kept_undoes_it(bank: str):
    @step.transaction
    def vast(tx: psycopg.Connection) -> str:
        tx.execute("UPDATE account SET amount = 0")
        return "x" * 300_000

    @workflow
    async def body() -> str:
        return await vast()

    async with App(body, at=bank) as app:
        with pytest.raises(RunFailed, match="PayloadTooLarge: vast at /0 returned a value"):
            await (await app.start(body)).result(BOUND_S)
    assert moved(bank) == 0


async def test_one_that_lost_its_run_is_rolled_back(bank: str):
    entered, go_on = trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    @step.transaction
    def slow(tx: psycopg.Connection) -> int:
        tx.execute("UPDATE account SET amount = amount - 1 WHERE name = 'ann'")
        trio.from_thread.run_sync(entered.set, trio_token=token)
        trio.from_thread.run(go_on.wait, trio_token=token)
        return 1

    @workflow
    async def body() -> int:
        return await slow()

    async with App(body, at=bank) as app:
        run = await app.start(body)
        await entered.wait()
        with psycopg.connect(bank, autocommit=True) as connection:  # somebody else has it
            connection.execute("UPDATE token SET attempt = attempt + 1, claimed_by = 'e9.0123abcd/x-1'")
        go_on.set()
        with trio.fail_after(BOUND_S):
            while app._run_ends.leased:
                await trio.testing.wait_all_tasks_blocked()
        assert [record async for record in run.history()] == []
    with psycopg.connect(bank) as connection:
        assert connection.execute("SELECT amount FROM account WHERE name = 'ann'").fetchone() == (10_000_000,)


async def test_a_deadlock_is_tried_again(bank: str):
    tried: list[str] = []

    @step.transaction
    def unlucky(tx: psycopg.Connection) -> int:
        tried.append("once more")
        if len(tried) < 3:
            tx.execute("DO $$ BEGIN RAISE EXCEPTION 'others' USING ERRCODE = '40P01'; END $$")
        return len(tried)

    @workflow
    async def body() -> int:
        return await unlucky()

    async with App(body, at=bank) as app:
        assert await (await app.start(body)).result(BOUND_S) == 3


@contextmanager
def sessions_killed(dsn: str, seed: int, every_s: float) -> Generator[list[int]]:
    """Ends sessions of steps at random moments, of a thread of its own; how many it ended."""
    stop, killed, chance = threading.Event(), [0], random.Random(seed)

    def kill() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.wait(chance.random() * 2 * every_s):
                found = connection.execute(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                    " WHERE application_name = 'penstock step' AND random() < 0.5"
                ).fetchone()
                killed[0] += found[0] if found else 0

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


async def test_a_session_that_ends_in_its_commit_is_looked_up(bank: str):
    with psycopg.connect(bank, autocommit=True) as connection:  # the first COMMIT ends its own session, undone
        connection.execute("CREATE SEQUENCE commits")
        connection.execute(
            "CREATE FUNCTION ends() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF nextval('commits') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;"
            " RETURN NULL; END $$"
        )
        connection.execute(
            "CREATE CONSTRAINT TRIGGER ends AFTER INSERT ON moved DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION ends()"
        )
    async with App(transfer, at=bank) as app:
        assert await (await app.start(transfer, 2)).result(BOUND_S) == [9_999_999, 9_999_998]
    assert moved(bank) == 2


async def test_a_commit_whose_answer_is_lost_counts(bank: str, monkeypatch: pytest.MonkeyPatch):
    lost: list[psycopg.Connection] = []
    leave = psycopg.Transaction.__exit__

    def answer_lost(self: psycopg.Transaction, *error: Any) -> bool:
        done = leave(self, *error)
        if not lost:
            lost.append(self.connection)
            self.connection.close()
            raise psycopg.OperationalError("the server closed the connection unexpectedly")
        return done

    monkeypatch.setattr(psycopg.Transaction, "__exit__", answer_lost)
    async with App(transfer, at=bank) as app:
        assert await (await app.start(transfer, 2)).result(BOUND_S) == [9_999_999, 9_999_998]
    assert len(lost) == 1
    assert moved(bank) == 2


async def test_a_commit_under_way_is_ended_whatever_the_time_zone(bank: str, monkeypatch: pytest.MonkeyPatch):
    """Else the step would be done once more beside it."""
    with psycopg.connect(bank, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET timezone = 'Asia/Kolkata'").format(name))
        connection.execute("CREATE SEQUENCE commits")
        connection.execute(
            "CREATE FUNCTION lasts() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF nextval('commits') = 1 THEN PERFORM pg_sleep(2); END IF; RETURN NULL; END $$"
        )
        connection.execute(
            "CREATE CONSTRAINT TRIGGER lasts AFTER INSERT ON moved DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION lasts()"
        )
    left: list[psycopg.Connection] = []
    leave = psycopg.Transaction.__exit__

    def never_heard(self: psycopg.Transaction, *error: Any) -> bool:
        if left or error[0] is not None:
            return leave(self, *error)
        left.append(self.connection)
        self.connection.pgconn.send_query(b"COMMIT")
        self.connection.pgconn.flush()
        self.connection.close()
        raise psycopg.OperationalError("the server closed the connection unexpectedly")

    monkeypatch.setattr(psycopg.Transaction, "__exit__", never_heard)
    async with App(transfer, at=bank) as app:
        assert await (await app.start(transfer, 2)).result(BOUND_S) == [9_999_999, 9_999_998]
    assert len(left) == 1
    assert moved(bank) == 2


async def test_sessions_that_end_are_no_attempts_of_the_step(bank: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transaction, "LOST_PAUSE_MAX_S", 0.1)
    ended: list[int] = []

    @step.transaction(retries=0)
    def unlucky(tx: psycopg.Connection) -> int:
        tx.execute("INSERT INTO moved (key) VALUES ('unlucky')")
        if len(ended) < 12:
            ended.append(1)
            tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return len(ended)

    @workflow
    async def body() -> int:
        return await unlucky()

    async with App(body, at=bank) as app:
        assert await (await app.start(body)).result(BOUND_S) == 12
    with psycopg.connect(bank) as connection:
        assert connection.execute("SELECT count(*) FROM moved").fetchall() == [(1,)]


async def test_an_outage_in_between_is_not_the_steps_trouble(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
):
    """Sessions that end are the server's trouble for a minute, in which it could be reached."""
    monkeypatch.setattr(transaction, "PAUSE_S", 0.0)
    monkeypatch.setattr(transaction, "LOST_PAUSE_MAX_S", 0.0)
    lost = transaction._Lost(psycopg.OperationalError("the session ended"))
    fates: list[Exception | None] = [lost, transaction._Away(), lost, None]

    def attempt(*_: object) -> Outcome:
        trio.from_thread.run_sync(mock_clock.jump, 50)
        if (fate := fates.pop(0)) is not None:
            raise fate
        return Outcome("done")

    transactions = transaction.StepTransactions("", cast("Any", None))
    monkeypatch.setattr(transactions, "_attempt", attempt)
    unused, info = cast("Any", None), StepInfo("1/0", 1, "0")
    call = StepCall(move, move.name, move.options, "{}")
    found = await transactions.run(unused, unused, call, info, 0, unused, trio.CapacityLimiter(1), 1_000)
    assert (found.value, fates) == ("done", [])


KILLS = int(os.environ.get("KILLS", "50"))
"""`KILLS=10000 pytest tests/durable/test_transactions.py -m slow` for more."""


@pytest.mark.slow(reason="kills programs at many points")
@pytest.mark.timeout(180 + KILLS)
async def test_money_moves_once_though_sessions_are_killed(bank: str):
    runs = 0
    with sessions_killed(bank, 7, 0.02) as killed:
        async with App(transfer, crowd, at=bank, limits=ExecutorLimits(step_threads=8)) as app:
            while killed[0] < KILLS:
                started: list[Run[Any]] = [await app.start(transfer, 10) for _ in range(10)]
                started += [await app.start(crowd, 10) for _ in range(10)]
                with trio.fail_after(120):
                    for run in started:
                        await run.result()
                runs += len(started)
    assert moved(bank) == runs * 10


async def test_another_database_keeps_the_outcome_itself(bank: str, postgres_server: PostgresServer):
    with postgres_server.database(apply_schema) as other:
        make_bank(other)
        with psycopg.connect(other, autocommit=True) as connection:
            connection.execute(STEP_TABLE.encode())

        @step.transaction(at=other)
        def move_there(tx: psycopg.Connection, amount: int) -> int:
            [row] = tx.execute("UPDATE account SET amount = amount - %s WHERE name = 'ann' RETURNING amount", (amount,))
            tx.execute("UPDATE account SET amount = amount + %s WHERE name = 'bob'", (amount,))
            tx.execute("INSERT INTO moved (key) VALUES (%s)", (step_info().key,))
            return int(row[0])

        @workflow
        async def body(amount: int) -> list[int]:
            return [await move_there(amount), await move_there(amount)]

        async with App(body, at=bank) as app:
            run = await app.start(body, 1)
            with psycopg.connect(other, autocommit=True) as connection:  # a former process had come so far
                connection.execute(
                    "INSERT INTO penstock_step (run, path, outcome) VALUES (%s, '/1', '12345') ON CONFLICT DO NOTHING",
                    (run.instance_id,),
                )
            found = await run.result(BOUND_S)
        assert found[0] == 9_999_999
        with psycopg.connect(other) as connection:
            kept = connection.execute("SELECT path, outcome FROM penstock_step ORDER BY path").fetchall()
        assert kept == [("/0", "9999999"), ("/1", str(found[1]))]
        assert moved(other) == (1 if found[1] == 12_345 else 2)


def test_in_a_test_something_stands_in():
    with pytest.raises(TypeError, match="move is a transaction, and there is no database here"):
        run_workflow(transfer, 1)
    assert run_workflow(transfer, 2, steps={move: lambda source, target, amount: amount}).result() == [1, 1]
    with pytest.raises(NotInWorkflow, match=r"call move.function\(connection, …\)"):
        move("ann", "bob", 1)


def test_a_transaction_is_a_plain_function():
    with pytest.raises(TypeError, match="a transaction is a plain def"):

        @step.transaction
        async def wrong(tx: object) -> None: ...


async def test_a_body_waits_for_messages_between_transactions(bank: str):
    @workflow
    async def body() -> str:
        await move("ann", "bob", 1)
        said = await receive("go", str)
        await move("ann", "bob", 1)
        return said

    async with App(body, at=bank) as app:
        run = await app.start(body)
        await run.send("go", "on")
        assert await run.result(BOUND_S) == "on"
    assert moved(bank) == 2
