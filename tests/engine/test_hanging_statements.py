"""A statement that the database does not answer: callers are told in time, and what became of it is looked up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from penstock.errors import Unavailable
from penstock.store.db.database import AWAY
from penstock.testing.definitions import fork, linear
from penstock.wire.model import Job
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.engine.test_lost_commit import MARK
from tests.sessions import stopped_sessions
from tests.store.proxy import Proxy
from tests.waiting import wait_until

ANSWER_S = 6.0


async def complete(driver: Driver, job: Job) -> None:
    await driver.complete(job, {"x": MARK}, attempt=1)


async def start(driver: Driver, job: Job) -> None:
    await driver.start("linear", {"x": MARK}, idempotency_key="k")


async def probe(driver: Driver, job: Job) -> None:
    await driver.status(job.instance_id)


CALLS = [
    pytest.param(complete, linear(1), id="fast-completion"),
    pytest.param(complete, fork(1, 1), id="full-completion"),
    pytest.param(start, linear(1), id="keyed-start"),
]
Call = Callable[[Driver, Job], Awaitable[None]]


def ends(driver: Driver) -> tuple[int, int]:
    """Completed jobs, and instances."""
    (done,), (begun,) = driver.rows(
        "SELECT count(*) FROM history WHERE kind = 1 AND worker IS NOT NULL UNION ALL SELECT count(*) FROM instance"
    )
    return int(done), int(begun)


@pytest.mark.slow(reason="waits for statements that hang")
@pytest.mark.parametrize(("call", "body"), [*CALLS, pytest.param(probe, linear(1), id="read")])
async def test_callers_of_a_server_process_that_hangs_are_refused(
    make_driver: MakeDriver, database_dsn: str, call: Call, body: dict[str, object]
) -> None:
    hung = make_driver(
        dsn=f"{database_dsn} application_name=hung", outage_wait_seconds=ANSWER_S, db_answer_timeout_seconds=ANSWER_S
    )
    other = make_driver(outage_wait_seconds=60)
    hung.dsn = database_dsn
    await other.upload(linear(1))
    await hung.run(body)
    job = await hung.one("work")
    pool = hung.engine.database.pool

    async def one_is_unanswered() -> bool:
        return pool.statistics().unanswered >= 1

    with stopped_sessions(database_dsn, "hung"):
        with pytest.raises((Unavailable, *AWAY)), trio.fail_after(50):
            await call(hung, job)
        await wait_until(one_is_unanswered)  # the caller may be refused before the connection is given up
    if call is not probe:
        await call(other, job)
        assert ends(other) == ((1, 1) if call is complete else (0, 2))

    async def sessions_have_ended() -> bool:
        await hung.status(job.instance_id)  # its connection is given back: then it is looked
        return pool.statistics().unanswered == 0

    await wait_until(sessions_have_ended)
    assert ends(other) == ((1, 1) if call is complete else (0, 2) if call is start else (0, 1))


@pytest.mark.slow(reason="waits for statements that hang")
@pytest.mark.parametrize(("call", "body"), CALLS)
async def test_a_commit_that_is_never_answered_is_looked_up(
    make_driver: MakeDriver, proxy: Proxy, database_dsn: str, call: Call, body: dict[str, object]
) -> None:
    """The way to the server swallows what it answers from then on."""
    driver = make_driver(dsn=proxy.dsn, outage_wait_seconds=60, db_answer_timeout_seconds=ANSWER_S)
    driver.dsn = database_dsn
    await driver.upload(linear(1))
    await driver.run(body)
    job = await driver.one("work")
    for link in proxy.links:
        link.hold()
    with trio.fail_after(55):
        await call(driver, job)
    assert any(link.held.is_set() for link in proxy.links)
    assert ends(driver) == ((1, 1) if call is complete else (0, 2))


@pytest.mark.slow(reason="waits for statements that hang")
async def test_who_queues_behind_a_hanging_statement_is_refused_too(
    make_driver: MakeDriver, database_dsn: str, nursery: trio.Nursery
) -> None:
    """Long before the statement itself is given up; and readiness knows."""
    hung = make_driver(
        dsn=f"{database_dsn} application_name=hung",
        outage_wait_seconds=ANSWER_S,
        db_answer_timeout_seconds=45,
        batch_stuck_seconds=0.5,
    )
    hung.dsn = database_dsn
    await hung.run(linear(2))
    job = await hung.one("work")
    commit_queue = hung.engine.fast_path
    refused: list[Unavailable] = []

    async def refuse() -> None:
        with pytest.raises(Unavailable) as error:
            await hung.complete(job)
        refused.append(error.value)

    async def hangs() -> bool:
        return (commit_queue.statistics().batch_age_s or 0) > 0.5

    with stopped_sessions(database_dsn, "hung"):
        nursery.start_soon(refuse)
        await wait_until(hangs)
        nursery.start_soon(refuse)
        with pytest.raises(Unavailable, match="complete calls has been under way"):
            await hung.engine.ready()

        async def both_refused() -> bool:
            return len(refused) == 2

        await wait_until(both_refused)
        assert commit_queue.statistics().batch_age_s is not None
    await commit_queue.wait_flushed()
    await hung.complete(job)
    assert ends(hung) == (1, 1)
    await hung.engine.ready()
