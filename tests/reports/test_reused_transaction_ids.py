"""A server that crashed gives transaction ids again: "committed" may then be true of somebody else's transaction.

Found by `python -m chaos kill-postgres`: a worker was told that its completion was taken, and it was lost. And by
`kill-backend`: the id was still in the future, the look-up failed, and the completion was refused as a bad value.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.store.rows import in_doubt
from penstock.testing.definitions import definition, end, fork, linear, service, step
from tests.engine.conftest import make_driver, proxy
from tests.engine.driver import Driver
from tests.engine.test_lost_commit import MARK, chosen, cut_driver, losing
from tests.shares import mostly_slow
from tests.store.proxy import Proxy

__all__ = ["cut_driver", "make_driver", "proxy"]

REUSED = b"SELECT 'committed' WHERE $1::text IS NOT NULL"
"""What pg_xact_status says once another transaction with that id was committed."""
AHEAD = b"SELECT pg_xact_status((pg_snapshot_xmax(pg_current_snapshot())::text::bigint + length($1) + 99)::text::xid8)"
"""What it says before: an error."""


@pytest.fixture(params=[REUSED, AHEAD], ids=["reused", "ahead"], autouse=True)
def crashed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a crash that lost the transaction under way."""
    monkeypatch.setattr(in_doubt, "SQL", {**in_doubt.SQL, "transaction_status": request.param})


Case = Callable[[Driver], Awaitable[tuple[Callable[[], Awaitable[Any]], Callable[[], Awaitable[object]], object]]]


async def completion(driver: Driver) -> Any:
    instance = await driver.run(chosen(), {"x": 1})
    job = await driver.one("work")
    return lambda: driver.complete(job, {"y": MARK}), lambda: driver.status(instance), "COMPLETED"


async def failure(driver: Driver) -> Any:
    instance = await driver.run(linear(1))
    job = await driver.one("work")
    return lambda: driver.fail(job, MARK, retryable=False), lambda: driver.status(instance), "FAILED"


async def cancel(driver: Driver) -> Any:
    instance = await driver.run(linear(1))
    return lambda: driver.cancel(instance, MARK), lambda: driver.status(instance), "CANCELLED"


async def user_task(driver: Driver) -> Any:
    instance = await driver.run(definition(step("ask", "USER_TASK", nextStep="end"), end()))
    return lambda: driver.finish_task(instance, "ask", {"x": MARK}), lambda: driver.status(instance), "COMPLETED"


async def kept_signal(driver: Driver) -> Any:
    """It writes no history: the note of its commit is its proof."""
    body = definition(service("task", "wait"), step("wait", "WAIT", nextStep="end"), end())
    instance = await driver.run(body)

    async def kept() -> object:
        return [signal.step_id for signal in await driver.engine.tasks.buffered(instance)]

    return lambda: driver.signal(instance, "wait", {"x": MARK}, buffer=True), kept, ["wait"]


async def wide_start(driver: Driver) -> Any:
    await driver.upload(fork(1, 1))

    async def count() -> object:
        return driver.rows("SELECT count(*), min(status) FROM instance")

    return lambda: driver.start("fork", {"x": MARK}), count, [(1, 0)]


async def keyed_start(driver: Driver) -> Any:
    await driver.upload(linear(1))

    async def count() -> object:
        return driver.rows("SELECT count(*), min(status) FROM instance")

    return lambda: driver.start("linear", {"x": MARK}, idempotency_key="key"), count, [(1, 0)]


CASES = {each.__name__: each for each in (completion, failure, cancel, user_task, kept_signal, wide_start, keyed_start)}


SOME_LOST = mostly_slow(CASES, quick=[*CASES][::3], reason="an outage for each operation")
SOME_COMMITTED = mostly_slow(CASES, quick=[*CASES][1::3], reason="an outage for each operation")


@pytest.mark.parametrize("name", SOME_LOST)
async def test_what_was_lost_in_a_crash_is_done_again(cut_driver: Driver, proxy: Proxy, name: str) -> None:
    operation, probe, expected = await CASES[name](cut_driver)
    await losing(proxy, False, operation)
    assert await probe() == expected


@pytest.mark.parametrize("name", SOME_COMMITTED)
async def test_what_was_committed_is_not_done_again(
    cut_driver: Driver, proxy: Proxy, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    operation, probe, expected = await CASES[name](cut_driver)
    await losing(proxy, True, operation)
    assert await probe() == expected
