"""A call that had no turn in time, though no statement failed, is not told that the database is away.

So it is where the process or the server is short of CPU. What was refused so may be written all the same: it is written
once, though the caller asks again.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest
import trio

from penstock.client import Unavailable as UnavailableToClients
from penstock.durable.local import with_client_errors
from penstock.engine.runs import journal_queues
from penstock.errors import Unavailable
from penstock.rest.problems import bug
from penstock.rpc.problems import status_of
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import AWAY_REASON, LATE_REASON, Database, away_reason
from penstock.store.db.pool_errors import PoolTimeout
from penstock.store.rows.journal import Append, Appended
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.engine.runs import append, begin, done, finish, paths, read

__all__ = ["make_driver"]

BOUND_S = 60.0


def late(driver: Driver) -> float:
    return sum(
        sample.value
        for family in driver.engine.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "penstock_calls_late_total"
    )


@pytest.mark.slow(reason="calls wait until they are late")
async def test_a_slow_statement_is_reported_as_such_and_written_once(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
):
    driver = make_driver(outage_wait_seconds=0)
    run = await begin(driver)
    write, go_on, begun = journal_queues.store.append, trio.Event(), trio.Event()

    async def slow(connection: TrioConnection, items: Sequence[Append], *, refusals_max: int) -> dict[int, Appended]:
        begun.set()
        await go_on.wait()
        return await write(connection, items, refusals_max=refusals_max)

    monkeypatch.setattr(journal_queues.store, "append", slow)
    with trio.fail_after(BOUND_S):
        with pytest.raises(Unavailable) as refused:
            await append(driver, run.run_lease, done("/0"))
        assert refused.value.reason == LATE_REASON
        assert late(driver) == 1
        go_on.set()
        await driver.engine.journal.commit_queues.append.wait_flushed()
        answer = await append(driver, run.run_lease, done("/0"))
    assert (answer.reread, answer.placed) == (True, []), "it has to look"
    assert await paths(driver, run.run_lease) == ["/0"], "and finds it written, once"
    last = (await read(driver, run.run_lease)).records[-1].pos
    answer = await append(driver, run.run_lease, done("/1"), after=last)
    assert not answer.reread
    assert await finish(driver, run.run_lease)


async def test_an_outage_is_reported_as_before(make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch):
    driver = make_driver(outage_wait_seconds=0)
    run = await begin(driver)

    async def away(connection: TrioConnection, items: Sequence[Append], *, refusals_max: int) -> dict[int, Appended]:
        raise psycopg.OperationalError("connection refused")

    with monkeypatch.context() as patched, trio.fail_after(BOUND_S):
        patched.setattr(journal_queues.store, "append", away)
        with pytest.raises(Unavailable) as refused:
            await append(driver, run.run_lease, done("/0"))
    assert refused.value.reason == AWAY_REASON
    assert late(driver) == 0
    await append(driver, run.run_lease, done("/0"))
    assert await finish(driver, run.run_lease)


async def test_no_free_connection_is_no_outage(database_dsn: str):
    database = Database(database_dsn, max_connections=1, acquire_timeout_s=2, answer_timeout_s=10)
    try:
        async with database.connection():
            with pytest.raises(PoolTimeout) as failed:
                async with database.connection():
                    pass
    finally:
        await database.close(1)
    assert away_reason(failed.value) == LATE_REASON
    assert away_reason(PoolTimeout("no connection")) == AWAY_REASON, "the server does not answer"
    answer = bug(failed.value, "GET", "/v1/instances")
    assert answer.status == 503
    assert (b"retry-after", b"1") in answer.headers
    assert LATE_REASON.encode() in answer.body
    status = status_of(failed.value)
    assert status is not None
    assert status.message == LATE_REASON

    async def call() -> None:
        raise failed.value

    with pytest.raises(UnavailableToClients, match="no statement has failed"):
        await with_client_errors(call())
