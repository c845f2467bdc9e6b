"""A session is ended while its COMMIT is under way: the answer breaks off at each of its messages in turn.

The server has committed; the client hears so many messages of the answer, and then either that an administrator ended
the session (as `pg_ctl restart -m fast` and failovers do it) or nothing more. Nothing may be done twice, nothing may be
answered as refused that was done, and nobody may hold a job that nobody was given.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio

from penstock.runtime.supervise import forever
from penstock.testing.definitions import definition, end, fork, linear, service, step
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.store.proxy import Cut, Proxy, messages

MARK = "mark-of-this-test"

AGAIN = pytest.mark.slow(reason="ends a session at each message")
pytestmark = pytest.mark.parametrize(
    "fatal", [pytest.param(True, id="terminated"), pytest.param(False, id="reset", marks=AGAIN)]
)


@pytest.fixture
async def cut_driver(proxy: Proxy, make_driver: MakeDriver, database_dsn: str, nursery: trio.Nursery) -> Driver:
    driver = make_driver(dsn=proxy.dsn)
    driver.dsn = database_dsn

    async def probe() -> None:
        await driver.engine.polls.wait_probe()
        await driver.engine.polls.probe_once()

    nursery.start_soon(partial(forever, "probe", probe))
    return driver


async def at_every_message(
    proxy: Proxy, fatal: bool, operation: Callable[[int], Awaitable[Any]], *, pattern: bytes = MARK.encode()
) -> int:
    """Call ``operation`` once for each message of the answer to what carries ``pattern``; how often that was."""
    for received in itertools.count():
        cut: Cut = proxy.cut_at(pattern, committed=True, received=received, fatal=fatal)
        with trio.fail_after(60):
            await operation(received)
            await cut.done.wait()
        if received == len(messages(cut.answer)):
            return received + 1
    raise AssertionError


def instances(driver: Driver) -> int:
    return int(driver.rows("SELECT count(*) FROM instance")[0][0])


@pytest.mark.parametrize("keyed", [pytest.param(False, id="no-key"), pytest.param(True, id="key", marks=AGAIN)])
@pytest.mark.parametrize("body", [linear(1), fork(1, 1)], ids=["narrow", "wide"])
async def test_a_start(cut_driver: Driver, proxy: Proxy, fatal: bool, body: dict[str, Any], keyed: bool) -> None:
    await cut_driver.upload(body)
    views: list[str] = []

    async def start(number: int) -> None:
        key = f"key {number}" if keyed else None
        views.append((await cut_driver.start(body["id"], {"x": MARK}, idempotency_key=key)).id)

    times = await at_every_message(proxy, fatal, start)
    assert instances(cut_driver) == times == len(set(views))


@pytest.mark.parametrize("wide", [pytest.param(False, id="narrow"), pytest.param(True, id="wide", marks=AGAIN)])
async def test_a_completion(cut_driver: Driver, proxy: Proxy, fatal: bool, wide: bool) -> None:
    after = step("choose", "DECISION", conditionalNextSteps={"x == x": "next"}) if wide else None
    steps = [service("task", "choose" if wide else "next"), *([after] if after else []), service("next", "end"), end()]
    body = definition(*steps)
    await cut_driver.upload(body)

    async def complete(number: int) -> None:
        view = await cut_driver.start("test", {"x": 1})
        job = await cut_driver.one("work")
        await cut_driver.complete(job, {"y": MARK}, attempt=job.attempt)
        following = await cut_driver.one("work")
        assert (following.instance_id, following.step_id, following.attempt) == (view.id, "next", 1)
        await cut_driver.complete(following)

    times = await at_every_message(proxy, fatal, complete)
    assert cut_driver.rows("SELECT status, count(*) FROM instance GROUP BY status") == [(1, times)]


async def test_a_signal_in_a_loop(cut_driver: Driver, proxy: Proxy, fatal: bool) -> None:
    """Signals without a key: each takes the instance round once."""
    body = definition(
        step("wait", "WAIT", nextStep="choose"),
        step("choose", "DECISION", conditionalNextSteps={"number < 0": "end", "number >= 0": "wait"}),
        end(),
    )
    instance = await cut_driver.run(body)

    async def signal(number: int) -> None:
        await cut_driver.signal(instance, "wait", {"x": MARK, "number": number})

    times = await at_every_message(proxy, fatal, signal)
    assert cut_driver.rows("SELECT count(*) FROM history WHERE step = 0") == [(times,)]


@pytest.mark.slow(reason="ends a session at each message")
async def test_a_user_task(cut_driver: Driver, proxy: Proxy, fatal: bool) -> None:
    await cut_driver.upload(definition(step("ask", "USER_TASK", nextStep="end"), end()))

    async def finish(number: int) -> None:
        instance = (await cut_driver.start("test")).id
        await cut_driver.finish_task(instance, "ask", {"x": MARK})  # done twice it would be refused

    times = await at_every_message(proxy, fatal, finish)
    assert cut_driver.rows("SELECT status, count(*) FROM instance GROUP BY status") == [(1, times)]


async def test_an_upload(cut_driver: Driver, proxy: Proxy, fatal: bool) -> None:
    """The COMMIT of it is a packet of its own; the caller is told of the version that it made, and it alone."""
    reported: list[set[str]] = []
    cut_driver.engine.events.uploaded.listen(lambda job_types: reported.append(set(job_types)))

    async def upload(number: int) -> None:
        await cut_driver.upload(linear(1, job_type=f"work {number}"))
        assert reported[-1] == {f"work {number}"}

    times = await at_every_message(proxy, fatal, upload, pattern=b"COMMIT\0")
    versions = cut_driver.rows("SELECT version FROM definition ORDER BY version")
    assert versions == [(number + 1,) for number in range(times)]
    assert len(reported) == times


@pytest.mark.slow(reason="ends a session at each message")
async def test_a_claim_that_was_heard_is_given_back(cut_driver: Driver, proxy: Proxy, fatal: bool) -> None:
    """Its rows came, then the end of the session: the job is looked for and given back, not leased to nobody. One
    whose rows did not come is late."""
    await cut_driver.upload(linear(1))
    late: list[int] = []

    async def claim(number: int) -> None:
        view = await cut_driver.start("linear")
        jobs = await cut_driver.poll("work", worker=MARK, wait=3)
        if not jobs:
            late.append(number)
            await cut_driver.expire(31)
            jobs = [await cut_driver.one("work")]
        assert [job.instance_id for job in jobs] == [view.id]
        await cut_driver.complete(jobs[0])

    times = await at_every_message(proxy, fatal, claim)
    # the last messages are CommandComplete, which ends the rows, and ReadyForQuery
    assert late == list(range(times - 2 if fatal else times - 1))
