"""Deleting a workflow that nobody serves: cancelled at every point, its COMMIT lost, and beside its own program.

The state afterwards is the one before or the one after, what is said of it is so, and the audit trail tells as much.
"""

from __future__ import annotations

import pytest
import trio

from penstock.engine.runs.code import CodeWorkflow
from penstock.errors import Conflict, NotFound
from penstock.store.db.database import AWAY
from penstock.testing.cancellation import CancelledAttempt, Holdings, Operation, cancel_everywhere
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.engine.runs import ORDER, finish, start, take
from tests.store.proxy import Proxy

__all__ = ["make_driver"]

POOL = Holdings(tasks=4, threads=0, files=4)
"""Connections are kept."""


def is_there(driver: Driver) -> bool:
    return not driver.rows("SELECT FROM active_version WHERE id = 'order' AND key = 0")


def deletions(driver: Driver) -> int:
    return int(driver.rows("SELECT count(*) FROM audit WHERE kind = 'DEFINITION_DELETED'")[0][0])


async def test_cancelled_at_every_point(make_driver: MakeDriver) -> None:
    driver = make_driver()
    code, before = driver.engine.code, 0

    async def prepare() -> Operation[None]:
        nonlocal before
        await code.register(ORDER, anew=True)
        before = deletions(driver)
        return lambda: code.delete("order")

    async def check(attempt: CancelledAttempt[None]) -> None:
        gone = not is_there(driver)
        assert deletions(driver) == before + gone
        assert gone or attempt.cancelled
        if gone:
            with pytest.raises(NotFound):
                await code.delete("order")
        else:
            await code.delete("order")

    points = await cancel_everywhere(prepare, check, may_grow=POOL)
    assert points.cancelled > 5


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not-committed"])
async def test_its_commit_is_lost(proxy: Proxy, make_driver: MakeDriver, database_dsn: str, committed: bool) -> None:
    driver = make_driver(dsn=proxy.dsn)
    driver.dsn = database_dsn  # blocking looks must not go through the proxy, which runs in this thread
    await driver.engine.code.register(ORDER)
    cut = proxy.cut_at(b"COMMIT", committed=committed)
    with pytest.raises(AWAY):
        await driver.engine.code.delete("order")
    assert cut.done.is_set()
    assert is_there(driver) is not committed
    if committed:
        with pytest.raises(NotFound):
            await driver.engine.code.delete("order")
    else:
        await driver.engine.code.delete("order")
    assert (is_there(driver), deletions(driver)) == (False, 1)
    await driver.engine.code.register(ORDER)
    assert is_there(driver), "its program brings it back, though its engine did not hear of the end"


@pytest.mark.parametrize("turn", range(4))
async def test_beside_its_program_on_another_engine(make_driver: MakeDriver, turn: int) -> None:
    """Whoever is last decides; the version is the same, and a run of it is taken."""
    one, other = make_driver(0), make_driver(1)
    await one.engine.code.register(ORDER)
    versions, said = set[int](), list[str]()

    async def delete() -> None:
        try:
            await one.engine.code.delete("order")
        except NotFound:
            said.append("gone")

    async def register() -> None:
        versions.add(await other.engine.code.register(ORDER, anew=True))

    for _ in range(3):
        async with trio.open_nursery() as nursery:
            for operation in (delete, register, delete, register)[turn:] + (delete, register, delete, register)[:turn]:
                nursery.start_soon(operation)
    await register()
    assert (is_there(one), versions) == (True, {1})
    instance = await start(other)
    with pytest.raises(Conflict, match="are open"):
        await one.engine.code.delete("order")
    [run] = await take(other)
    assert run.instance_id == instance
    assert await finish(other, run.run_lease)


async def test_open_runs_are_found_among_others(make_driver: MakeDriver) -> None:
    """Of any version; neither before nor after those that have ended, nor after open ones of others."""
    driver = make_driver()
    code, other = driver.engine.code, CodeWorkflow("other")
    second = ORDER._replace(version=2)
    ended: list[str] = []
    for n in range(12):
        await code.start(other)
        ended.append((await code.start(second if n % 3 else ORDER)).id)
    await code.start(other)
    for left in range(len(ended), 0, -1):
        with pytest.raises(Conflict, match="are open"):
            await code.delete("order")
        await driver.cancel(ended.pop(5 * left % len(ended)))
    await code.delete("order")
    with pytest.raises(Conflict, match="are open"):
        await code.delete("other")
