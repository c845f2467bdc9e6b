"""A new run goes on from any point of another run's journal, which stays as it is."""

from __future__ import annotations

import base64
import json
from functools import partial
from typing import Any

import psycopg
import pytest
import trio
from typer.testing import CliRunner

from penstock.access.tokens import make_token
from penstock.cli.app import app as commands
from penstock.client import BadRequest, Forbidden, IdempotencyConflict
from penstock.durable import (
    App,
    ChildFailed,
    Run,
    RunFailed,
    StartRefused,
    child,
    continue_as_new,
    patched,
    receive,
    run_info,
    sleep,
    step,
    step_info,
    update,
    uuid4,
    workflow,
)
from penstock.durable.check import check, save_run
from penstock.durable.debug import find_place
from penstock.durable.local import LocalRuns
from penstock.durable.own_engine import open_engine
from penstock.durable.transaction import STEP_TABLE
from penstock.settings import Secret
from penstock.wire.queue import QueuePolicy
from penstock.wire.repair_v1 import ListAuditRequest
from penstock.wire.schedule import ScheduleSpec
from tests.durable.served import serving
from tests.postgres import PostgresServer
from tests.waiting import wait_until

BOUND_S = 60.0
calls: list[str] = []
keys: dict[str, list[str]] = {}


def did(name: str) -> None:
    calls.append(name)
    keys.setdefault(name, []).append(step_info().key)


@step
async def reserve(sku: str) -> str:
    did("reserve")
    return sku.upper()


@step
async def charge(stock: str, number: str) -> str:
    did("charge")
    if stock == "BAD":
        raise OSError("no route to the bank")
    return f"paid {stock}"


@workflow
async def order(sku: str) -> list[Any]:
    number = str(uuid4())
    stock = await reserve(sku)
    word = await receive("word", str)
    paid = await charge(stock, number)
    later = str(uuid4())
    return [paid, word, number, later, run_info().started_at.isoformat()]


@pytest.fixture(autouse=True)
def begin_anew() -> None:
    calls.clear()
    keys.clear()


async def waits_for(run: Run[Any], what: str) -> None:
    async def waits() -> bool:
        return what in str((await run.tree()).get("waitsFor"))

    await wait_until(waits)


async def test_a_completed_run_is_done_again_from_an_operation(at: str):
    """With steps, children and values of its own from there on, and those of before as they were."""
    async with App(order, at=at) as app:
        run = await app.start(order, "pen", id="o-1")
        await run.send("word", "thanks")
        first = await run.result(BOUND_S)
        before = [record async for record in run.history()]
        fork = await run.fork("/2", id="o-2")
        second = await fork.result(BOUND_S)
        assert calls == ["reserve", "charge", "charge"], "what came before is not done again"
        assert second[:3] == first[:3]
        assert second[4] == first[4], "its time began as the other's"
        assert second[3] != first[3], "what is drawn behind the place is its own"
        assert keys["charge"] == [f"{run.instance_id}/2", f"{fork.instance_id}/2"]
        assert [record async for record in run.history()] == before, "the run stays as it is"
        assert (await fork.tree())["forkedFrom"] == {"id": run.instance_id, "path": "/2"}
        assert (await run.tree()).get("forkedFrom") is None
        again = await run.fork("/2", id="o-2")
        assert (again.instance_id, again.deduplicated) == (fork.instance_id, True)
        assert len(calls) == 3


async def test_a_failed_run_is_forked_and_fails_alone(at: str):
    async with App(order, at=at) as app:
        run = await app.start(order, "bad", id="o-1")
        await run.send("word", "thanks")
        with pytest.raises(RunFailed, match="no route"):
            await run.result(BOUND_S)
        fork = await run.fork("/2")
        with pytest.raises(RunFailed, match="no route"):
            await fork.result(BOUND_S)
        assert calls == ["reserve", "charge", "charge"]
        assert fork.id == fork.instance_id


async def test_messages_come_along_up_to_the_place_and_later_ones_by_choice(at: str):
    async with App(order, at=at) as app:
        run = await app.start(order, "pen", id="o-1")
        await waits_for(run, "word")
        await run.send("word", "first")
        first = await run.result(BOUND_S)
        alone = await run.fork("/0", id="alone")  # the message came after its outcome
        await waits_for(alone, "word")
        await alone.send("word", "second")
        assert (await alone.result(BOUND_S))[:2] == ["paid PEN", "second"]
        along = await run.fork("/0", id="along", later_messages=True)
        assert (await along.result(BOUND_S))[:2] == ["paid PEN", "first"]
        assert calls.count("reserve") == 3
        whole = await run.fork("start", id="whole")
        await whole.send("word", "third")
        third = await whole.result(BOUND_S)
        assert (third[1], calls.count("reserve")) == ("third", 4)
        assert third[2] != first[2], "from the beginning nothing is drawn as the other did"


async def test_an_open_run_is_forked_where_its_journal_ends(at: str):
    async with App(order, at=at) as app:
        run = await app.start(order, "pen", id="o-1")
        await waits_for(run, "word")
        fork = await run.fork("end", id="o-2")
        await fork.send("word", "to the fork")
        assert (await fork.result(BOUND_S))[1] == "to the fork"
        assert calls == ["reserve", "charge"]
        assert await run.status() in ("ACTIVE", "WAITING")
        await run.send("word", "to the run")
        assert (await run.result(BOUND_S))[1] == "to the run"


async def test_a_fork_of_a_fork_draws_as_each_of_them_did(at: str):
    async with App(order, at=at) as app:
        run = await app.start(order, "pen", id="o-1")
        await run.send("word", "thanks")
        first = await run.result(BOUND_S)
        second = await (fork := await run.fork("/2", id="o-2")).result(BOUND_S)
        third = await (await fork.fork("end", id="o-3")).result(BOUND_S)
        assert [each[2] for each in (first, second, third)] == [first[2]] * 3
        assert third[3] == second[3], "which the second one drew before its journal ended"
        assert await (await fork.fork("/0", id="o-4", later_messages=True)).result(BOUND_S) != first


async def test_what_can_not_be_forked_is_said(at: str):
    async with App(order, at=at) as app:
        run = await app.start(order, "pen", id="o-1")
        await run.send("word", "thanks")
        await run.result(BOUND_S)
        with pytest.raises(BadRequest, match=r"run o-1: path: nothing with the path '/9' is in the journal"):
            await run.fork("/9")
        other = await app.start(order, "pen", id="o-2")
        with pytest.raises(IdempotencyConflict, match="'o-2' is the id of another run"):
            await run.fork("/2", id="o-2")
        with pytest.raises(ValueError, match="path"):
            await run.fork("")
        await other.cancel()


@workflow
async def asks(n: int) -> str:
    try:
        return await child(answers, n)
    except ChildFailed as error:
        return f"failed: {error.status}"


@workflow
async def answers(n: int) -> str:
    word = await receive("answer", str)
    return f"{word} {n}"


@workflow
async def asks_by_id(n: int) -> str:
    try:
        return await child(answers, n, id="one")
    except StartRefused as error:
        return f"refused: {error}"


async def test_open_children_stay_with_the_run_and_the_fork_has_its_own(at: str):
    async with App(asks, asks_by_id, answers, at=at) as app:
        run = await app.start(asks, 1, id="a-1")
        await waits_for(run, "child")
        fork = await run.fork("end", id="a-2")
        await waits_for(fork, "child")
        [first], [second] = [(await each.tree())["branches"] for each in (run, fork)]
        assert first["kind"] == second["kind"] == "child"
        found = await app.find(answers)
        assert len(found) == 2
        await fork.cancel()

        async def ended() -> bool:
            return [await each.status() for each in await app.find(answers)].count("CANCELLED") == 1

        await wait_until(ended)
        left = [each for each in await app.find(answers) if await each.status() != "CANCELLED"]
        await left[0].send("answer", "yes")
        assert await run.result(BOUND_S) == "yes 1"
        named = await app.start(asks_by_id, 2, id="a-3")
        await waits_for(named, "child")
        refused = await named.fork("end", id="a-4")
        assert "refused: id: 'one' is of an instance that this run did not call here" in await refused.result(BOUND_S)
        await named.cancel()


@workflow
async def limited(limit: int = 1) -> list[Any]:
    @update
    async def set_limit(value: int) -> int:
        nonlocal limit
        limit, before = value, limit
        return before

    await receive("close", bool)
    return [limit, await reserve("x")]


async def test_calls_of_updates_come_along_with_their_answers(at: str):
    async with App(limited, at=at) as app:
        run = await app.start(limited, id="l-1")
        assert await run.ask("set_limit", 5, id="first") == 1
        await run.send("close", value=True)
        assert await run.result(BOUND_S) == [5, "X"]
        fork = await run.fork("/1", id="l-2")
        assert await fork.ask("set_limit", 5, id="first") == 1, "the call is known, and not made again"
        assert await fork.result(BOUND_S) == [5, "X"]
        whole = await run.fork("start", id="l-3")
        assert await whole.ask("set_limit", 7, id="first") == 1, "which it never had"
        await whole.cancel()


@workflow
async def priced(result: int, factor: int = 2) -> int:
    return result * factor


async def test_a_parameter_with_the_name_of_the_result_comes_along(at: str):
    async with App(priced, at=at) as app:
        run = await app.start(priced, 21, id="p-1")
        assert await run.result(BOUND_S) == 42
        for path in ("start", "end"):
            assert await (await run.fork(path)).result(BOUND_S) == 42


@pytest.mark.parametrize(
    ("path", "later", "differs"),
    [
        ("/2", True, "laterMessages is true and was false"),
        ("/0", False, "path is '/0' and was '/2'"),
        ("end", True, "path is 'end' and was '/2'"),
    ],
)
async def test_the_id_of_a_fork_is_that_of_one_call(at: str, path: str, later: bool, differs: str):
    async with App(order, at=at) as app:
        run = await app.start(order, "pen", id="o-1")
        await run.send("word", "thanks")
        await run.result(BOUND_S)
        fork = await run.fork("/2", id="o-2")
        with pytest.raises(IdempotencyConflict, match=f"'o-2' is the id of a run that was forked otherwise: {differs}"):
            await run.fork(path, id="o-2", later_messages=later)
        assert await fork.result(BOUND_S) != await run.result(BOUND_S)
        with pytest.raises(IdempotencyConflict, match="'o-2' is the id of another run"):
            await fork.fork("/2", id="o-2")


@workflow
async def account(total: int = 0) -> list[Any]:
    total += await receive("payment", int)
    drawn = str(uuid4())
    await sleep("1 ms")
    if total < 100:
        continue_as_new(total)
    return [total, run_info().continuation, drawn, await reserve("x")]


async def test_a_run_that_continued_is_forked_as_it_is_now(at: str):
    async with App(account, at=at) as app:
        run = await app.start(account, id="acc")
        await run.send("payment", 1)
        await run.send("payment", 200)
        first = await run.result(BOUND_S)
        assert first[:2] == [201, 1]
        fork = await run.fork("/2", id="acc-2")
        assert await fork.result(BOUND_S) == first
        assert keys["reserve"] == [f"{run.instance_id}~1/2", f"{fork.instance_id}~1/2"]


async def test_a_fork_that_continues_is_still_that_fork(at: str):
    async with App(account, at=at) as app:
        run = await app.start(account, id="acc")
        await waits_for(run, "payment")
        fork = await run.fork("start", id="acc-2", later_messages=True)
        for amount in (1, 2, 97):
            await fork.send("payment", amount)
        assert (await fork.result(BOUND_S))[:2] == [100, 2]
        again = await run.fork("start", id="acc-2", later_messages=True)
        assert (again.instance_id, again.deduplicated) == (fork.instance_id, True)
        assert (await again.tree())["forkedFrom"] == {"id": run.instance_id, "path": "start"}
        with pytest.raises(IdempotencyConflict, match="laterMessages is false and was true"):
            await run.fork("start", id="acc-2")
        await run.cancel()


async def test_a_round_before_is_not_there_to_fork(at: str):
    async with App(account, at=at) as app:
        run = await app.start(account, id="acc")
        await run.send("payment", 1)
        await run.send("payment", 200)
        first = await run.result(BOUND_S)
        second = await (await run.fork("end", id="acc-2")).result(BOUND_S)
        third = await (await (await app.get("acc-2", account)).fork("/2", id="acc-3")).result(BOUND_S)
        assert first == second == third, "the round is 1, and what was drawn in it is drawn again"
        with pytest.raises(BadRequest, match="nothing with the path '/3'"):
            await run.fork("/3")


@workflow
async def approved(limit: int = 1) -> list[Any]:
    @update
    async def raise_to(value: int) -> str:
        nonlocal limit
        stock = await reserve(str(value))
        by = await receive("approval", str)
        limit = value
        return f"{stock} by {by}"

    await receive("close", bool)
    return [limit]


async def test_a_dedup_applies_to_one_run(at: str):
    async with App(limited, at=at) as app:
        run = await app.start(limited, id="l-1")
        await run.send("later", 1, dedup="d")
        fork = await run.fork("end", id="l-2")
        with pytest.raises(IdempotencyConflict):
            await run.send("later", 2, dedup="d")
        await fork.send("later", 2, dedup="d")
        sent = [each["payload"] async for each in fork.history() if each["kind"] == "message"]
        assert sent == [1, 2]
        for each in (run, fork):
            await each.send("close", value=True)
            assert await each.result(BOUND_S) == [1, "X"]


async def test_an_open_update_is_answered_by_each_run_alone(at: str):
    """Its caller asks under the same id, and the fork goes on where the handler stood."""
    async with App(approved, at=at) as app:
        run = await app.start(approved, id="l-1")
        answers: dict[str, Any] = {}

        async def ask(which: str, of: Run[Any]) -> None:
            answers[which] = await of.ask("raise_to", 5, id="first")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "run", run)
            await waits_for(run, "approval")
            fork = await run.fork("end", id="l-2")
            again = await run.fork("end", id="l-3")
            nursery.start_soon(ask, "fork", fork)
            await waits_for(fork, "approval")
            await fork.send("approval", "ann")
            await run.send("approval", "bob")
        assert answers == {"run": "5 by bob", "fork": "5 by ann"}
        assert calls == ["reserve"]
        await again.cancel()
        inside = next(each["path"] for each in [r async for r in run.history()] if each.get("name") == "reserve")
        redone = await run.fork(inside, id="l-4", later_messages=True)
        assert await redone.ask("raise_to", 5, id="first") == "5 by bob", "the handler's step, and what came of it"
        assert calls == ["reserve", "reserve"]
        for each in (run, fork, redone):
            await each.send("close", value=True)
            assert await each.result(BOUND_S) == [5]


@pytest.mark.parametrize(
    "path", ["/", "//2", "/2/", "2", "END", "Start", "/0 ", "/0%", "/[x]/0", "~cancel", "/" + "9" * 900]
)
async def test_a_path_that_is_none_starts_nothing(database_dsn: str, path: str):
    async with App(order, at=database_dsn) as app:
        run = await app.start(order, "pen", id="o-1")
        await waits_for(run, "word")
        with pytest.raises(BadRequest, match="path"):
            await run.fork(path, id="o-2")
        assert len(await app.find(order)) == 1
        with psycopg.connect(database_dsn) as connection:
            assert connection.execute("SELECT count(*) FROM audit WHERE kind = 'FORKED'").fetchall() == [(0,)]
        assert await (await run.fork("end", id="o-2")).status() in ("ACTIVE", "WAITING"), "its id is free"
        await run.cancel()


async def test_many_fork_at_once_while_the_run_goes_on(at: str):
    """Under one id there is one fork, without ids there are as many as calls; the run loses nothing."""
    async with App(order, account, at=at) as app:
        run = await app.start(account, id="acc")
        await waits_for(run, "payment")
        named: set[str] = set()
        others: list[Run[Any]] = []

        async def fork(id: str | None) -> None:
            forked = await run.fork("start", id=id)
            named.add(forked.instance_id) if id else others.append(forked)

        async with trio.open_nursery() as nursery:
            for n in range(8):
                nursery.start_soon(fork, "acc-2" if n % 2 else None)
            for amount in (1, 2, 97):
                await run.send("payment", amount)
        assert (await run.result(BOUND_S))[:2] == [100, 2]
        assert (len(named), len({each.instance_id for each in others})) == (1, 4)
        for each in [await app.get("acc-2", account), *others]:
            await each.send("payment", 100)
            assert (await each.result(BOUND_S))[0] in (100, 101, 103), "with what the run began its round with"


async def test_a_step_under_way_is_done_by_both(at: str):
    began: list[str] = []
    let_go = trio.Event()

    @step
    async def slow(n: int) -> int:
        began.append(step_info().key)
        await let_go.wait()
        return n

    @workflow
    async def slowly(n: int) -> int:
        return await slow(n)

    async def has_begun(times: int) -> bool:
        return len(began) == times

    async with App(slowly, at=at, backend="trio") as app:
        run = await app.start(slowly, 1)
        await wait_until(partial(has_begun, 1))
        fork = await run.fork("end")
        await wait_until(partial(has_begun, 2))
        let_go.set()
        assert await run.result(BOUND_S) == await fork.result(BOUND_S) == 1
        assert began == [f"{run.instance_id}/0", f"{fork.instance_id}/0"]


async def test_a_fork_of_a_child_has_no_caller(at: str):
    async with App(asks, answers, at=at) as app:
        run = await app.start(asks, 1, id="a-1")
        await waits_for(run, "child")
        [called] = await app.find(answers)
        await waits_for(called, "answer")
        fork = await called.fork("end", id="again")
        await fork.send("answer", "forked")
        assert await fork.result(BOUND_S) == "forked 1"
        assert "child" in str((await run.tree()).get("waitsFor"))
        await called.send("answer", "own")
        assert await run.result(BOUND_S) == "own 1"


async def test_a_fork_reads_and_seals_an_encrypted_journal(database_dsn: str):
    keys = Secret(f"k1={base64.b64encode(bytes(32)).decode()}")
    async with serving(database_dsn, encryption_keys=keys) as served, App(approved, order, at=served.at) as app:
        run = await app.start(order, "topsecret", id="o-1")
        await run.send("word", "clandestine")
        first = await run.result(BOUND_S)
        second = await (await run.fork("/2", id="o-2")).result(BOUND_S)
        assert second[:3] == first[:3] == ["paid TOPSECRET", "clandestine", first[2]]
        limit = await app.start(approved, id="l-1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(limit.ask, "raise_to", 77_077, id="first"))
            await limit.send("approval", "clandestine")
        fork = await limit.fork("end", id="l-2")
        assert await fork.ask("raise_to", 77_077, id="first") == "77077 by clandestine"
        for each in (limit, fork):
            await each.send("close", value=True)
            assert await each.result(BOUND_S) == [77_077]
        saved = await save_run(LocalRuns(served.engine, ""), fork.instance_id)
        assert json.loads(saved.arguments).get("limit", 1) == 1
    with psycopg.connect(database_dsn) as connection:
        for table in ("journal", "instance", "history", "signal_id", "audit"):
            text = str(connection.execute(f"SELECT x::text FROM {table} x".encode()).fetchall())
            assert not [word for word in ("topsecret", "TOPSECRET", "clandestine", "77077") if word in text], table


async def test_forks_are_in_the_audit_trail_and_need_an_operator(database_dsn: str):
    """By REST and gRPC; one that was there before, or is refused, leaves no record."""
    import httpx

    tokens = {role: make_token() for role in ("viewer", "clerk", "worker", "executor", "operator")}
    known = tuple(f"{role}={role}=sha256:{made.digest.hex()}" for role, made in tokens.items())
    async with App(order, name="shop", at=database_dsn) as app:
        run = await app.start(order, "pen", id="o-1")
        await run.send("word", "thanks")
        await run.result(BOUND_S)
    async with serving(database_dsn, authentication=True, api_tokens=known) as served:
        path = f"http://{served.rest}/v1/instances/{run.instance_id}/fork"
        async with httpx.AsyncClient() as http:

            async def post(role: str, **body: object) -> httpx.Response:
                return await http.post(path, json=body, headers={"authorization": f"Bearer {tokens[role].text}"})

            for role in tokens.keys() - {"operator"}:
                assert (await post(role, path="/2")).status_code == 403, role
            answers = [await post("operator", path="/2", forkId="o-2", laterMessages=True) for _ in range(2)]
            assert [each.status_code for each in answers] == [201, 201]
            assert (await post("operator", path="/9", forkId="o-3")).status_code == 400
            id = answers[0].json()["id"]
        async with App(order, name="shop", at=served.at, token=tokens["executor"].text) as app:
            with pytest.raises(Forbidden):
                await (await app.get("o-1", order)).fork("/2", id="o-4")
        records = (await served.engine.instances.audit(run.instance_id)).items
        assert [(each.kind, each.actor, each.detail) for each in records][-1] == (
            "FORKED", "token:operator", f"at /2 as {id}, with later messages",
        )  # fmt: skip
        assert [each.kind for each in records].count("FORKED") == 1
        started = (await served.engine.instances.audit(id)).items[0]
        assert (started.kind, started.actor) == ("STARTED", "token:operator")
        listed = (await served.engine.audit_trail.list(ListAuditRequest(kind="FORKED"))).items
        assert [(each.actor, each.instance_id) for each in listed] == [("token:operator", run.instance_id)]


async def test_transactions_elsewhere_are_not_taken_for_done(postgres_server: PostgresServer, database_dsn: str):
    """The rows of the old run are of the old run."""
    with postgres_server.database() as ledger:
        with psycopg.connect(ledger, autocommit=True) as connection:
            connection.execute("CREATE TABLE booked (n int)")
            connection.execute(STEP_TABLE.encode())

        @step.transaction(at=ledger)
        def books(tx: psycopg.Connection[Any], n: int) -> int:
            tx.execute("INSERT INTO booked VALUES (%s)", (n,))
            return n

        @workflow
        async def books_there(n: int) -> int:
            await reserve("x")
            return await books(n)

        async with App(books_there, at=database_dsn) as app:
            run = await app.start(books_there, 4)
            assert await run.result(BOUND_S) == 4
            assert await (await run.fork("/1")).result(BOUND_S) == 4
            assert await (await run.fork("end")).result(BOUND_S) == 4
        with psycopg.connect(ledger) as connection:
            assert connection.execute("SELECT n FROM booked").fetchall() == [(4,), (4,)]
            assert len(connection.execute("SELECT DISTINCT run FROM penstock_step").fetchall()) == 2


async def test_changed_code_is_blocked_or_patched_as_in_a_deploy(at: str):
    async with App(order, at=at) as app:
        run = await app.start(order, "pen", id="o-1")
        await run.send("word", "thanks")
        await run.result(BOUND_S)

    @workflow(name="order")
    async def patched_order(sku: str) -> str:
        stock = await reserve(sku)
        word = await receive("word", str)
        return f"{word} {stock} {patched('new')}"

    async with App(patched_order, at=at) as app:
        fork = await (await app.get("o-1", patched_order)).fork("/2")
        assert await fork.result(BOUND_S) == "thanks PEN True"

    @workflow(name="order")
    async def other_order(sku: str) -> str:
        return await charge(sku, "x")

    async with App(other_order, at=at) as app:
        fork = await (await app.get("o-1", other_order)).fork("/2")
        await waits_for(fork, "other code: at /0 the journal has 'reserve', the code asks for 'charge'")


@workflow(queue="jobs")
async def queued(n: int) -> list[Any]:
    stock = await reserve(str(n))
    return [stock, await receive("word", str)]


async def test_a_fork_waits_for_its_turn_and_takes_a_slot_of_its_own(database_dsn: str):
    async with serving(database_dsn) as served, App(queued, at=served.at) as app:
        await served.engine.queues.put("jobs", QueuePolicy(job_types=[], runs=1))
        run = await app.start(queued, 1, id="q-1", flow_key="k", priority=2)
        await waits_for(run, "word")
        fork = await run.fork("/0", id="q-2")
        await waits_for(fork, "its turn")
        view = await served.engine.instances.get(fork.instance_id)
        assert (view.flow_key, view.priority) == ("k", 2)
        assert calls == ["reserve"]
        await run.send("word", "go")
        assert await run.result(BOUND_S) == ["1", "go"]
        await waits_for(fork, "word")
        third = await app.start(queued, 3, id="q-3")
        await waits_for(third, "its turn")
        await fork.send("word", "on")
        assert await fork.result(BOUND_S) == ["1", "on"]
        await third.send("word", "last")
        assert await third.result(BOUND_S) == ["3", "last"]


async def test_a_fork_of_a_scheduled_run_is_no_run_of_the_schedule(database_dsn: str):
    async with serving(database_dsn) as served, App(order, at=served.at) as app:
        schedules = served.engine.schedules
        await schedules.put("nightly", ScheduleSpec("order", variables=b'{"sku":"pen"}', cron=["0 3 * * *"]))
        started = (await schedules.trigger("nightly", None)).instance_id
        assert started is not None
        run = await app.get(started, order)
        await waits_for(run, "word")
        await run.send("word", "thanks")
        await run.result(BOUND_S)
        fork = await run.fork("/0")
        await waits_for(fork, "word")
        views = [await served.engine.instances.get(each) for each in (started, fork.instance_id)]
        assert [view.schedule_id for view in views] == ["nightly", None]
        assert [each.instance_id for each in (await schedules.get("nightly")).runs] == [started]
        again = (await schedules.trigger("nightly", None)).instance_id  # SKIP is its rule, and the fork is open
        assert again is not None
        await (await app.get(again, order)).cancel()
        await fork.cancel()


async def test_a_fork_is_replayed_checked_and_debugged_as_any_run(database_dsn: str):
    async with App(order, at=database_dsn) as app:
        run = await app.start(order, "pen", id="o-1")
        await run.send("word", "thanks")
        await run.result(BOUND_S)
        fork = await run.fork("/2", id="o-2")
        await fork.result(BOUND_S)
        async with open_engine(database_dsn, serves=False, migrate=False) as (engine, _, _):
            runs = LocalRuns(engine, "")
            saved = await save_run(runs, fork.instance_id)
            reports = await check(runs, [order])
        assert saved.records[0].kind.name == "BEGUN"
        assert find_place(order, saved).how == "completed"
        assert [report.breaks for report in reports] == [False]


async def test_rest_forks_a_run(database_dsn: str):
    import httpx

    async with App(order, at=database_dsn, rest_port=0) as app:
        run = await app.start(order, "pen", id="o-1")
        await run.send("word", "thanks")
        await run.result(BOUND_S)
        async with httpx.AsyncClient(base_url=app.rest_url or "") as http:
            path = f"/v1/instances/{run.instance_id}/fork"
            answer = await http.post(path, json={"path": "/2", "forkId": "o-2"})
            assert answer.status_code == 201, answer.text
            assert answer.json()["businessKey"] == "o-2"
            wrong = await http.post(path, json={"path": "/9"})
            assert (wrong.status_code, wrong.json()["reason"].split(":")[0]) == (400, "path")
            assert (await http.post(path, json={})).status_code == 400
        assert (await (await app.get("o-2", order)).result(BOUND_S))[1] == "thanks"


async def test_a_terminal_forks_and_tells_the_origin(at: str):
    async with App(order, at=at) as app:
        run = await app.start(order, "pen", id="o-1")
        await run.send("word", "thanks")
        await run.result(BOUND_S)

        def invoke(*words: str) -> str:
            done = CliRunner().invoke(commands, ["runs", *words, "--at", at])
            assert done.exit_code == 0, done.output
            return done.output

        assert await trio.to_thread.run_sync(invoke, "fork", "o-1", "/2", "--id", "o-2") == "forked o-1 as o-2\n"
        assert (await (await app.get("o-2", order)).result(BOUND_S))[1] == "thanks"
        shown = await trio.to_thread.run_sync(invoke, "show", "o-2")
        assert f"forked from {run.instance_id} at /2" in shown
