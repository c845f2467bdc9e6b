"""A client that gives up, by reset, deadline or a lost connection: its statement ends, its jobs go back."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import psycopg
import pytest
import trio
import trio.testing
from h2.errors import ErrorCodes

from penstock.testing.definitions import linear
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import encode_message
from penstock.wire.model import PollRequest
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.rpc.raw import framed
from tests.rpc.served import WORKFLOW, Served, served
from tests.waiting import wait_until

__all__ = ["make_driver"]  # pytest finds the fixture here


@pytest.fixture
async def driver(make_driver: MakeDriver) -> Driver:
    return make_driver()


@pytest.fixture
async def grpc(driver: Driver) -> AsyncGenerator[Served]:
    with trio.fail_after(60):
        async with served(driver.engine) as run:
            yield run


@pytest.mark.parametrize("how", ["reset", "deadline", "drop"])
@pytest.mark.parametrize("method", ["GetInstance", "GetInstanceHistory", "ListInstances"])
async def test_an_abandoned_read_is_cancelled_in_the_database(
    mock_clock: trio.testing.MockClock, driver: Driver, grpc: Served, method: str, how: str
) -> None:
    """On a clock that only the test moves: the deadline passes when the read waits, however long the way there was."""
    await driver.upload(linear(1))
    id = (await driver.start("linear")).id
    body = encode_message(m.ListInstancesRequest() if method == "ListInstances" else m.GetInstanceRequest(id))

    async def waiting(count: int) -> bool:
        return driver.waiting_for_locks() == count

    async def free() -> bool:
        return driver.engine.database.pool.statistics().busy == 0

    with psycopg.connect(driver.dsn) as blocker:
        blocker.execute("LOCK TABLE instance, token, history IN ACCESS EXCLUSIVE MODE")
        async with grpc.connect() as client:
            late = {"grpc_timeout": "5S"} if how == "deadline" else {}
            stream_id = await client.open(WORKFLOW + method, **late)  # pyright: ignore[reportArgumentType] - a stand-in
            await client.send(stream_id, framed(body), end=True)
            await wait_until(lambda: waiting(1))
            if how == "reset":
                await client.reset(stream_id, ErrorCodes.CANCEL)
            elif how == "deadline":
                mock_clock.jump(5.1)
                assert (await client.finished(stream_id)).status == 4
            else:
                await trio.aclose_forcefully(client.stream)
            await wait_until(lambda: waiting(0))  # while the lock is still held
            await wait_until(free)
    again = m.GetInstanceRequest(id)
    assert (await grpc.call("GetInstance", again, m.GetInstanceResponse)).instance is not None


@pytest.mark.parametrize("how", ["reset", "drop"])
async def test_jobs_of_an_answer_that_is_not_taken_go_back(driver: Driver, grpc: Served, how: str) -> None:
    """The client's window is closed: the answer waits to be sent when the client gives up."""
    await driver.upload(linear(1))
    for _ in range(3):
        await driver.start("linear", {"text": "x" * 5_000})
    async with grpc.connect(window=0) as client:
        stream_id = await client.open(WORKFLOW + "PollJobs")
        poll = PollRequest("gone", ["work"], 3, 3_600)
        await client.send(stream_id, framed(encode_message(poll)), end=True)

        async def leased() -> bool:
            return driver.rows("SELECT count(*) FROM token WHERE state = 1") == [(3,)]

        await wait_until(leased)
        if how == "reset":
            await client.reset(stream_id, ErrorCodes.CANCEL)
        else:
            await trio.aclose_forcefully(client.stream)

    async def back() -> bool:
        return driver.rows("SELECT count(*) FROM token WHERE state = 0 AND attempt = 1") == [(3,)]

    await wait_until(back)
