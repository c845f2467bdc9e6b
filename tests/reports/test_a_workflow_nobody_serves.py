"""A run of a workflow that nobody serves: it is refused where its caller serves others, else told of."""

from __future__ import annotations

import pytest
import trio

from penstock.durable import App, child, move_on_after, workflow
from penstock.durable.run_ends import Unserved
from tests.waiting import wait_until

BOUND_S = 60.0


@workflow
async def served() -> str:
    return "served"


@workflow
async def other() -> str:
    return "other"


@workflow(name="other", version=2)
async def newer() -> str:
    return "newer"


@workflow
async def parent() -> str:
    with move_on_after("1 h"):
        return await child(other)
    return "moved on"


def reported(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "none is connected" in record.getMessage()]


def test_run_refuses_what_its_app_does_not_serve():
    """At once, before anything is opened: no database is asked."""
    app = App(served, other, at="postgresql://127.0.0.1:1/nowhere", name="shop")
    with pytest.raises(ValueError, match=r"this App serves served@1, other@1, not parent@1: it would wait for ever"):
        app.run(parent)
    with pytest.raises(ValueError, match=r"not other@2.*App\(other, …\)"):
        app.run(newer)


async def test_a_client_hears_that_nobody_serves_its_run(at: str, database_dsn: str, caplog: pytest.LogCaptureFixture):
    async with App(at=database_dsn, migrate=True):
        pass
    async with App(at=at) as client, trio.open_nursery() as nursery:
        run = await client.start(other, id="17")
        results: list[str] = []

        async def wait() -> None:
            results.append(await run.result(BOUND_S))

        nursery.start_soon(wait)

        async def is_reported() -> bool:
            return bool(reported(caplog))

        async def has_ended() -> bool:
            return bool(results)

        await wait_until(is_reported)
        assert results == []
        async with App(other, at=at):
            await wait_until(has_ended)
    assert results == ["other"], "it waits for one that serves it"
    assert reported(caplog) == ["run 17 waits for an App with other@1: none is connected"]


async def test_a_parent_tells_of_a_child_that_nobody_serves(
    at: str, database_dsn: str, caplog: pytest.LogCaptureFixture
):
    async with App(at=database_dsn, migrate=True):
        pass
    async with App(parent, at=at) as app:
        run = await app.start(parent, id="17")

        async def is_reported() -> bool:
            return bool(reported(caplog))

        await wait_until(is_reported)
        assert reported(caplog)[0] == "run 17: child 'other' waits for an App with other@1: none is connected"
        async with App(other, at=at):
            assert await run.result(BOUND_S) == "other"


async def test_of_a_crowd_that_waits_one_asks(autojump_clock, caplog: pytest.LogCaptureFixture):
    asked: list[int] = []
    unserved = Unserved()

    async def find() -> str | None:
        asked.append(1)
        return "an App with other@1: none is connected"

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(unserved.notify, f"run {number}", "other", find)
    assert len(asked) == len(reported(caplog)) == 1
    await trio.sleep(31)
    await unserved.notify("run 7", "other", find)
    assert reported(caplog)[1] == "run 7 waits for an App with other@1: none is connected"

    async def hangs() -> str | None:
        await trio.sleep_forever()
        return None

    with trio.fail_after(10):
        await unserved.notify("run 8", "served", hangs)
