"""What an `App` gives of runs: found again, with their journal, view and id; and an `App` that is only a client."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import psycopg
import pytest
import trio

from penstock.client import BadRequest, Conflict, Debounce, Dedupe, NotFound, Throttle, Throttled
from penstock.durable import (
    App,
    BadDuration,
    Run,
    RunCancelled,
    RunFailed,
    SendRefused,
    receive,
    send,
    set_view,
    sleep,
    step,
    workflow,
)
from penstock.runtime.supervise import forever
from penstock.testing import run_workflow
from penstock.testing.durable import Sent
from tests.waiting import wait_until

BOUND_S = 60.0


@step
async def double(n: int) -> int:
    return n * 2


@workflow
async def orders(n: int) -> int:
    set_view({"stage": "begun"})
    twice = await double(n)
    if n > 10:
        await receive("go on", bool)
    set_view({"stage": "shipped"})
    return twice


@workflow
async def endless() -> None:
    while True:
        await double(1)


@asynccontextmanager
async def serving(dsn: str, name: str = "") -> AsyncGenerator[App]:
    with trio.fail_after(BOUND_S):
        async with App(orders, endless, at=dsn, name=name) as app:
            yield app


async def test_runs_are_found_newest_first_and_by_status(at: str):
    async with serving(at) as app:
        first = await app.start(orders, 1, id="o-1")
        await first.result()
        second = await app.start(orders, 11)
        third = await app.start(orders, 12, id="o-3")
        assert [run.id for run in await app.find(orders)] == ["o-3", second.id, "o-1"]
        assert [run.id for run in await app.find(orders, limit=2)] == ["o-3", second.id]
        [ended] = await app.find(orders, status="COMPLETED")
        assert await ended.result() == 2
        assert await app.find(endless) == []
        with pytest.raises(ValueError, match="limit is 0: give an integer from 1 to 1,000"):
            await app.find(orders, limit=0)
        for run in (second, third):
            await run.send("go on", True)
            await run.result()


async def test_a_run_begins_later_and_finds_what_it_was_told(at: str):
    async with serving(at) as app:
        run = await app.start(orders, 11, id="o-1", delay="0.5 s")
        await run.send("go on", True)
        assert await run.result() == 22
        later = await app.start(orders, 1, delay="1 day")
        await later.cancel("no more")
        assert await later.status() == "CANCELLED"
        with pytest.raises(RunCancelled):
            await later.result()


async def test_starts_of_runs_go_by_rules_as_any_start(at: str, database_dsn: str):
    async with serving(at) as app:
        first = await app.start(orders, 1, dedupe=Dedupe("order-1", "1 hour"), priority=2, flow_key="tenant")
        assert await first.result() == 2
        again = await app.start(orders, 5, dedupe=Dedupe("order-1", "PT1H"))
        assert (again.instance_id, await again.result()) == (first.instance_id, 2)
        assert [first.deduplicated, again.deduplicated] == [False, True]
        with psycopg.connect(database_dsn) as connection:
            rows = connection.execute("SELECT priority, flow_key FROM instance").fetchall()
        assert rows == [(2, "tenant")]

        daily = Throttle("tenant", 1, "1 day")
        counted = await app.start(orders, 3, throttle=daily, start_at=None)
        assert await counted.result() == 6
        with pytest.raises(Throttled, match="one may begin in"):
            await app.start(orders, 4, throttle=daily)
        delayed = await app.start(orders, 4, throttle=Throttle("tenant", 1, "P1D", on_excess="DELAY"))
        assert "has not begun" in (await delayed.tree())["waitsFor"]

        changed = await app.start(orders, 7, debounce=Debounce("customer", "1 day"))
        last = await app.start(orders, 8, debounce=Debounce("customer", "1 ms"))
        assert (last.instance_id, last.deduplicated) == (changed.instance_id, True)
        assert await last.result() == await changed.result() == 16

        past, future = datetime(2020, 1, 1, tzinfo=UTC), datetime.now(UTC) + timedelta(days=1)
        assert await (await app.start(orders, 2, start_at=past, id="then")).result() == 4
        later = await app.start(orders, 2, start_at=future, id="later")
        assert (await later.tree())["waitsFor"] == (await delayed.tree())["waitsFor"]


async def test_rules_that_no_start_can_have_are_refused(at: str):
    async with serving(at) as app:
        for given, error, reason in (
            ({"dedupe": Dedupe("k", "PT1H"), "id": "o-1"}, BadRequest, "dedupe: can't be combined with an id"),
            ({"debounce": Debounce("k", "1 s"), "id": "o-1"}, BadRequest, "debounce: can't be combined with an id"),
            ({"delay": "1 s", "start_at": "2030-01-01T00:00:00Z"}, BadRequest, "startAt: can't be combined with delay"),
            ({"start_at": "soon"}, BadRequest, "startAt: "),
            ({"dedupe": Dedupe("", "1 h")}, BadRequest, "dedupe.key: is required"),
            ({"throttle": Throttle("k", 1, "PT1X")}, BadRequest, "throttle.period: "),
            ({"dedupe": Dedupe("k", "an hour")}, BadDuration, "'an hour' is not a duration"),
            ({"priority": 10}, BadRequest, "priority: "),
            ({"flow_key": "x" * 257}, BadRequest, "flowKey: "),
        ):
            with pytest.raises(error, match=reason):
                await app.start(orders, 1, **cast(Any, given))
        assert await app.find(orders) == []


@workflow
async def shy(word: str) -> None:
    if await receive("show", bool):
        set_view({"word": word})
    await receive("end", bool)


async def test_a_view_is_waited_for_until_there_is_one(at: str, nursery: trio.Nursery):
    with trio.fail_after(BOUND_S):
        async with App(shy, at=at) as app:
            shown, mute = await app.start(shy, "hello"), await app.start(shy, "nothing")
            assert await shown.view() is None
            assert await shown.view(timeout_s=0.01) is None
            nursery.start_soon(shown.send, "show", True)
            assert await shown.view(timeout_s=BOUND_S) == {"word": "hello"}
            await mute.send("show", value=False)
            nursery.start_soon(mute.send, "end", True)
            assert await mute.view(timeout_s=BOUND_S) is None
            assert await mute.status() == "COMPLETED"


async def test_the_view_and_the_journal_are_there_after_the_end(at: str):
    async with serving(at) as app:
        run = await app.start(orders, 1)
        assert await run.result() == 2
        assert await run.view() == {"stage": "shipped"}
        records = [(record["kind"], record.get("name"), record.get("payload")) async for record in run.history()]
    assert records == [("done", "double", 2), ("view", None, {"stage": "shipped"})]


async def test_a_long_journal_is_read_in_slices(database_dsn: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.durable.local.PAGE_RECORDS", 3)
    monkeypatch.setenv("WE_JOURNAL_MAX_RECORDS", "100")
    async with serving(database_dsn) as app:
        run = await app.start(endless, id="e-1")
        with pytest.raises(RunFailed, match=r"run e-1 failed: JournalTooLong: the run has 100 records, of 100 at most"):
            await run.result()
        paths = [record["path"] async for record in run.history()]
    assert paths == [f"/{n}" for n in range(100)]


async def test_a_journal_is_counted_on_by_who_takes_over(database_dsn: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WE_JOURNAL_MAX_RECORDS", "100")

    @workflow(name="slow")
    async def slow(pauses: bool) -> None:
        for n in range(200):
            await double(n)
            if n == 60 and pauses:
                await receive("go on", bool)

    with trio.fail_after(BOUND_S):
        async with App(slow, at=database_dsn) as app:
            run = await app.start(slow, True, id="s-1")
            await wait_until(lambda: has_records(run, 61))
        async with App(slow, at=database_dsn) as app:
            run = await app.get("s-1", slow)
            await run.send("go on", True)
            with pytest.raises(RunFailed, match="JournalTooLong: the run has 100 records"):
                await run.result()


async def test_errors_name_the_run_as_its_caller_does(at: str):
    async with serving(at) as app:
        run = await app.start(orders, 1, id="o-1")
        await run.result()
        with pytest.raises(Conflict, match="run o-1: the run has ended: it is COMPLETED"):
            await run.send("go on", True)
        with pytest.raises(Conflict, match="run o-1: "):
            await run.cancel()
        with pytest.raises(NotFound, match="there is no run with the id 'o-2'"):
            await app.get("o-2")


async def test_the_log_names_the_run_as_its_caller_does(at: str, caplog: pytest.LogCaptureFixture):
    other = workflow(name="orders")(sleeps)

    async def is_reported() -> bool:
        return "run o-1 is blocked on code: the journal has /0 'double'" in caplog.text

    with caplog.at_level(logging.ERROR, "penstock.durable"):
        async with serving(at) as app:
            run = await app.start(orders, 11, id="o-1")
            await wait_until(lambda: has_records(run, 1))
        with trio.fail_after(BOUND_S):
            async with App(other, at=at) as app:
                await (await app.get("o-1")).send("go on", True)
                await wait_until(is_reported)


async def sleeps(n: int) -> None:
    await sleep("1 h")


@workflow
async def asks(whom: str) -> str:
    try:
        await send(whom, "go on", True)
    except SendRefused as error:
        return str(error)
    return "sent"


async def test_a_run_sends_to_another_one_once(at: str):
    with trio.fail_after(BOUND_S):
        async with App(orders, asks, at=at) as app:
            run = await app.start(orders, 11, id="o-1")
            assert await (await app.start(asks, "o-1")).result() == "sent"
            assert await run.result() == 22
            reported = [record["name"] async for record in run.history() if record["kind"] == "message"]
            assert reported == ["go on"]
            assert await (await app.start(asks, "o-1")).result() == "run o-1: the run has ended: it is COMPLETED"
            assert await (await app.start(asks, run.instance_id)).result() == (
                f"run {run.instance_id}: the run has ended: it is COMPLETED"
            )
            assert await (await app.start(asks, "o-2")).result() == "there is no run with the id 'o-2'"


def test_what_a_body_sends_is_seen_in_memory():
    run = run_workflow(asks, "o-1")
    assert run.result() == "sent"
    assert run.sent == [Sent("o-1", "go on", True)]


async def has_records(run: Run[Any], count: int) -> bool:
    return len([record async for record in run.history()]) >= count


def noting(names: list[str]) -> Callable[..., Awaitable[None]]:
    async def noted(name: str, *args: Any, task_status: trio.TaskStatus[None]) -> None:
        names.append(name)
        await forever(name, *args, task_status=task_status)

    return noted


def connections(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        [count] = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'penstock'"
        ).fetchall()
    return int(count[0])


async def test_a_client_starts_no_loops_and_has_two_connections(database_dsn: str):
    started: list[str] = []
    async with serving(database_dsn) as app:
        run = await app.start(orders, 11, id="o-1")
        before = connections(database_dsn)

        async def ask(client: App) -> None:
            found = await client.get("o-1", orders)
            assert await found.status() in ("ACTIVE", "WAITING")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("penstock.runtime.node.forever", noting(started))
            async with App(at=database_dsn) as client:
                async with trio.open_nursery() as nursery:
                    for _ in range(20):
                        nursery.start_soon(ask, client)
                assert connections(database_dsn) - before <= 2
        await run.send("go on", True)
        await run.result()
    assert sorted(started) == ["listener", "membership", "notifier"]
