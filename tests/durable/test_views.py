"""What runs show: at once to whoever waits, by key, and after their end."""

from __future__ import annotations

import time

import pytest
import trio
import trio.testing

from penstock.durable import App, continue_as_new, receive, run_info, set_view, update, workflow
from penstock.durable.executor import Executor
from penstock.durable.loaded_run import LoadedRun
from penstock.engine.runs import subscriptions
from penstock.runtime import membership
from penstock.testing import Message, run_workflow
from penstock.wire.shown import parts
from tests.runtime.test_membership import listeners
from tests.waiting import wait_until

ENOUGH_S = 60


@workflow
async def shows() -> None:
    @update
    async def double(number: int) -> int:
        await receive("answer", bool)
        return 2 * number

    while (number := await receive("show", int)) >= 0:
        if number % 2:
            set_view(number, key=f"n{number}")
        else:
            set_view({"number": number})


@pytest.mark.slow(reason="an App and an engine")
async def test_who_waits_sees_a_value_at_once(at: str):
    with trio.fail_after(ENOUGH_S):
        async with App(shows, at=at) as app:
            run = await app.start(shows, id="v-1")
            assert await run.view() is None
            assert await run.view("n1", timeout_s=0.3) is None
            late_s: list[float] = []
            for number in (1, 3, 5, 7, 9):
                seen_at: list[float] = []

                async def wait(number: int = number, seen_at: list[float] = seen_at) -> None:
                    assert await run.view(f"n{number}", timeout_s=ENOUGH_S) == number
                    seen_at.append(time.monotonic())

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait)
                    await trio.testing.wait_all_tasks_blocked(0.05)
                    sent_at = time.monotonic()
                    await run.send("show", number)
                late_s.append(seen_at[0] - sent_at)
            assert sorted(late_s)[2] < 0.9, "half of them came before the next heartbeat"
            await run.send("show", 2)
            assert await run.view(timeout_s=ENOUGH_S) == {"number": 2}
            assert await run.view("n3") == 3
            assert (await run.tree())["views"] == {f"n{number}": number for number in (1, 3, 5, 7, 9)}
            await run.send("show", -1)
            await run.result()
            assert await run.view() == {"number": 2}
            assert await run.view("n9") == 9
            assert await run.view("never", timeout_s=ENOUGH_S) is None, "a run that has ended shows nothing more"


@pytest.mark.slow(reason="two Apps, with an engine each")
async def test_who_waits_at_another_engine_sees_it_too(database_dsn: str):
    with trio.fail_after(ENOUGH_S):
        async with App(shows, at=database_dsn) as app, App(at=database_dsn) as client:
            await app.start(shows, id="v-2")
            run = await client.get("v-2")

            async def send() -> None:
                await trio.testing.wait_all_tasks_blocked(0.05)
                await run.send("show", 1)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                assert await run.view("n1", timeout_s=ENOUGH_S) == 1


@pytest.mark.slow(reason="two Apps, with an engine each")
async def test_an_app_that_only_asks_hears_of_views_and_answers_in_place_of_polling(
    database_dsn: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(subscriptions, "POLL_FIRST_S", 3_600)
    monkeypatch.setattr(subscriptions, "POLL_MAX_S", 3_600)
    monkeypatch.setattr(membership, "POLL_INTERVAL_S", 3_600)  # so the one that has the run never sees the other one

    async def listening(count: int) -> None:
        async def are() -> bool:
            return len(await trio.to_thread.run_sync(listeners, database_dsn)) == count

        await wait_until(are)

    with trio.fail_after(ENOUGH_S):
        async with App(shows, at=database_dsn) as app:
            await app.start(shows, id="v-4")
            await app.start(shows, id="a-4")
            await listening(1)
            async with App(at=database_dsn) as client, trio.open_nursery() as nursery:
                run, asked = await client.get("v-4"), await client.get("a-4")
                assert await run.view() is None
                seen: list[object] = []

                async def wait() -> None:
                    seen.append(await run.view("n1", timeout_s=ENOUGH_S))

                async def is_seen() -> bool:
                    return bool(seen)

                nursery.start_soon(wait)
                await listening(2)
                await run.send("show", 1)
                await wait_until(is_seen)
                seen.clear()

                async def ask() -> None:
                    seen.append(await asked.ask("double", 4, id="double"))

                nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked(0.05)
                await asked.send("answer", True)
                with trio.fail_after(15):  # the client asks again after 20
                    await wait_until(is_seen)
            assert seen == [8]


@pytest.mark.slow(reason="an App and an engine")
async def test_nothing_more_is_written_while_nobody_waits(at: str, monkeypatch: pytest.MonkeyPatch):
    written: list[str] = []

    async def show(executor: Executor, run: LoadedRun) -> None:
        written.append(run.leased.key)
        await unchanged(executor, run)

    unchanged = Executor.show
    monkeypatch.setattr(Executor, "show", show)
    with trio.fail_after(ENOUGH_S):
        async with App(shows, at=at) as app:
            run = await app.start(shows, id="v-3")
            for number in range(20):
                await run.send("show", number)

            async def is_seen() -> bool:
                return await run.view("n19") is not None  # a look, which waits for nothing

            await wait_until(is_seen)
            assert written == [], "the heartbeat wrote it"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run.view, "n21", ENOUGH_S)
                await trio.testing.wait_all_tasks_blocked(0.05)
                await run.send("show", 21)
            assert written != []


@workflow
async def rounds(number: int = 0) -> None:
    if number == 0:
        set_view("first", key="a")
        set_view("whole")
        continue_as_new(1)
    set_view("second", key="b")


def test_a_run_that_continues_shows_what_it_has_shown():
    run = run_workflow(rounds)
    assert parts(run.view) == ('"whole"', {"a": '"first"', "b": '"second"'})


def test_values_by_key_are_bounded():
    @workflow
    async def many() -> str | None:
        for number in range(100):
            set_view(number, key=str(number))
        set_view(1, key="7")
        with pytest.raises(ValueError, match="the run shows values under 100 other names"):
            set_view(1, key="one more")
        return run_info().view

    assert len(parts(run_workflow(many, messages=[Message("x", 1)]).result())[1]) == 100


def test_a_run_without_keys_shows_its_value_as_it_is():
    @workflow
    async def plain() -> None:
        set_view({"a": 1})

    assert run_workflow(plain).view == '{"a":1}'
