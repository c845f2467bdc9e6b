"""What an `App` against an engine does otherwise: connections that end, tokens, transactions elsewhere."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
import trio

from penstock.access.tokens import make_token
from penstock.client.errors import Forbidden, TimedOut, Unauthenticated
from penstock.durable import App, RunFailed, receive, set_view, start, step, update, workflow
from penstock.durable import run as durable_run
from penstock.durable.transaction import STEP_TABLE
from penstock.http import reserved_ports
from tests.durable.served import serving
from tests.postgres import PostgresServer
from tests.waiting import wait_until

BOUND_S = 60.0
begun: list[int] = []


@step
async def double(n: int) -> int:
    begun.append(n)
    return n * 2


@step
async def stands_still(n: int) -> int:
    begun.append(n)
    if begun.count(n) == 1:
        await trio.sleep_forever()  # cancelled when the run is lost
    return n * 2


@workflow
async def still(n: int) -> int:
    return await double(1) + await stands_still(n)


@workflow
async def waits(n: int) -> int:
    return await receive("go", int) + await double(n)


@workflow
async def starts(n: int) -> str:
    await start(waits, n, id=f"w-{n}")
    return "started"


@pytest.fixture(autouse=True)
def begin_anew() -> None:
    begun.clear()


AWAY_AND_BACK = ("the engine is away", "the engine is back")


async def test_steps_of_a_lost_run_are_cancelled_and_begin_again(database_dsn: str, caplog: pytest.LogCaptureFixture):
    """And who was told that the engine is away hears that it is back."""
    with trio.fail_after(BOUND_S), reserved_ports(1) as [port]:
        at = f"grpc://127.0.0.1:{port}"
        async with trio.open_nursery() as nursery:
            stop, ended = trio.Event(), trio.Event()

            async def serve(stopped: trio.Event, task_status: trio.TaskStatus[None]) -> None:
                async with serving(database_dsn, port=port):
                    task_status.started()
                    await stopped.wait()
                ended.set()

            await nursery.start(serve, stop)
            async with App(still, waits, at=at) as app:
                run, other = await app.start(still, 7, id="s-7"), await app.start(waits, 3)
                await wait_until(lambda: _is(begun == [1, 7]))
                stop.set()
                await ended.wait()
                again = trio.Event()
                await nursery.start(serve, again)
                assert await run.result(BOUND_S) == 16
                assert begun == [1, 7, 7], "what was recorded is not done again"
                told = [each for each in caplog.messages if each.startswith("the engine is ")]
                assert (told[0].split(":")[0], told[-1].split(" after ")[0]) == AWAY_AND_BACK
                assert sum(each.startswith("the engine is back") for each in told) == 1
                await other.send("go", 1)
                assert await other.result(BOUND_S) == 7
            again.set()


async def _is(value: bool) -> bool:
    return value


async def test_a_transaction_needs_a_database_of_its_own(database_dsn: str, postgres_server: PostgresServer):
    with postgres_server.database() as ledger:
        with psycopg.connect(ledger) as connection:
            connection.execute("CREATE TABLE booked (n int)")
            connection.execute(STEP_TABLE.encode())

        @step.transaction(at=ledger)
        def books(tx: psycopg.Connection[Any], n: int) -> int:
            tx.execute("INSERT INTO booked VALUES (%s)", (n,))
            return n

        @step.transaction
        def here(tx: psycopg.Connection[Any]) -> int:
            return 1

        @workflow
        async def books_there(n: int) -> int:
            return await books(n)

        @workflow
        async def books_here() -> int:
            return await here()

        async with serving(database_dsn) as served, App(books_there, books_here, at=served.at) as app:
            assert await (await app.start(books_there, 4)).result(BOUND_S) == 4
            with pytest.raises(RunFailed, match="needs an App on that database"):
                await (await app.start(books_here)).result(BOUND_S)
        with psycopg.connect(ledger) as connection:
            assert connection.execute("SELECT n FROM booked").fetchall() == [(4,)]


async def test_each_call_needs_its_role(database_dsn: str, monkeypatch: pytest.MonkeyPatch):
    tokens = {role: make_token() for role in ("executor", "worker", "operator")}
    known = tuple(f"{role}={role}=sha256:{made.digest.hex()}" for role, made in tokens.items())
    monkeypatch.setenv("PENSTOCK_TOKEN", tokens["executor"].text)
    async with serving(database_dsn, authentication=True, api_tokens=known) as served:
        with trio.fail_after(BOUND_S):
            for refused in (tokens["worker"].text, tokens["operator"].text):
                with pytest.raises(Forbidden, match="needs the role executor"):
                    async with App(waits, at=served.at, token=refused):
                        pass
            with pytest.raises(Unauthenticated):
                async with App(waits, at=served.at, token="nobody's"):
                    pass
            async with (
                App(waits, starts, at=served.at) as app,
                App(at=served.at, token=tokens["operator"].text) as client,
            ):
                begins = await app.start(starts, 5)
                with pytest.raises(Forbidden, match="needs the role viewer"):
                    await begins.status()
                assert await (await client.get(begins.id, starts)).result() == "started"
                run = await client.get("w-5", waits)
                await run.send("go", 1)
                assert await run.result() == 11
                with pytest.raises(Forbidden, match="needs the role operator"):
                    await begins.cancel()
            with pytest.raises(Forbidden, match=r"run w-6 was started, but .* needs the role viewer"):
                await trio.to_thread.run_sync(lambda: App(waits, at=served.at).run(waits, 6, id="w-6"))


async def test_a_step_asks_another_run_with_the_token_of_its_executor(
    database_dsn: str, monkeypatch: pytest.MonkeyPatch
):
    apps: list[App] = []

    @workflow
    async def account(limit: int) -> int:
        @update
        async def set_limit(value: int) -> int:
            nonlocal limit
            set_view(value, key="limit")
            limit, before = value, limit
            return before

        @update
        async def told() -> str:
            return await receive("word", str)

        await receive("close", bool)
        return limit

    @step
    async def raises_limit(id: str) -> list[Any]:
        run = await apps[0].get(id)
        before = await run.ask("set_limit", 15, id="raise-1")
        with pytest.raises(TimedOut):
            await run.ask("told", id="late", timeout_s=0.01)
        await run.send("word", "yes")
        return [before, await run.view("limit", timeout_s=BOUND_S), await run.ask("told", id="late")]

    @workflow
    async def raises(id: str) -> list[Any]:
        return await raises_limit(id)

    monkeypatch.setattr(durable_run, "ASK_WAIT_S", 0)  # each wait for an answer is a look
    tokens = {grant: make_token() for grant in ("executor(shop)", "executor(bank)", "operator")}
    known = tuple(f"{n}={grant}=sha256:{made.digest.hex()}" for n, (grant, made) in enumerate(tokens.items()))
    async with serving(database_dsn, authentication=True, api_tokens=known) as served:
        with trio.fail_after(BOUND_S):
            shop = App(account, raises, name="shop", at=served.at, token=tokens["executor(shop)"].text)
            bank = App(account, name="bank", at=served.at, token=tokens["executor(bank)"].text)
            client = App(name="shop", at=served.at, token=tokens["operator"].text)
            async with shop, bank, client:
                apps.append(shop)
                await shop.start(account, 10, id="a-1")
                asking = await shop.start(raises, "a-1")
                assert await (await client.get(asking.id, raises)).result() == [10, 15, "yes"]
                other = await bank.start(account, 10)
                with pytest.raises(Forbidden, match="needs the role executor for App 'bank'"):
                    await shop.get(other.id)


def test_what_is_for_an_engine_inside_is_refused(monkeypatch: pytest.MonkeyPatch):
    at = "grpc://127.0.0.1:1"
    for wrong in (App(at=at, migrate=True), App(at=at, rest_port=0)):
        with pytest.raises(ValueError, match="for an engine inside"), wrong.in_thread():
            pass
    with pytest.raises(ValueError, match="are for an engine at grpc"), App(at="postgresql:///x", token="t").in_thread():
        pass
    with pytest.raises(ValueError, match=r"an engine grpc://host:port"), App(at="http://localhost").in_thread():
        pass
