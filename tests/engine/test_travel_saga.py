"""The travel saga of `examples/`, with an engine that is lost around each of its commits in turn.

Each call of a saga goes to an engine whose connection breaks at the COMMIT: ``committed`` after the server has it, and
before the engine hears of it; else before the server has got it. That engine is not heard of again: whoever called asks
another one, and the saga goes on there. In the end all is as if nothing had happened.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import product
from typing import Any, NamedTuple

import pytest
import trio

from penstock.errors import Conflict, Unavailable
from penstock.wire.model import Job
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number, variables_of
from tests.house.sources import TOP
from tests.shares import mostly_slow
from tests.store.proxy import Proxy

TRAVEL = json.loads((TOP / "examples" / "travel.json").read_text())
MARK = "mark-of-this-test"
"""In each statement that is lost."""


class Saga:
    """One journey, and the jobs that its workers hold."""

    def __init__(self) -> None:
        self.instance = ""
        self.jobs: dict[int, Job] = {}
        self.reported: list[Any] = []

    async def job(self, driver: Driver, place: int, job_type: str) -> Job:
        if place not in self.jobs:
            self.jobs[place] = await driver.one(job_type)
            if "compensating" in (seen := variables_of(self.jobs[place])):
                self.reported.append(seen["compensating"]["stepId"])
        return self.jobs[place]


Call = Callable[[Saga, Driver, int], Awaitable[None]]


async def start(saga: Saga, driver: Driver, place: int) -> None:
    about = {"traveller": "Ann", "price": 400, "mark": MARK}
    saga.instance = (await driver.start("travel", about, instance_key=f"journey {id(saga)}")).id


def done(job_type: str) -> Call:
    async def call(saga: Saga, driver: Driver, place: int) -> None:
        await driver.complete(await saga.job(driver, place, job_type), {job_type: MARK})

    return call


def failed(job_type: str, **about: Any) -> Call:
    async def call(saga: Saga, driver: Driver, place: int) -> None:
        await driver.fail(await saga.job(driver, place, job_type), f"out of order, {MARK}", retryable=False, **about)

    return call


async def cancel(saga: Saga, driver: Driver, place: int) -> None:
    with suppress(Conflict):  # the engine that was lost has done it
        await driver.cancel(saga.instance, MARK, compensate=True)


async def retry(saga: Saga, driver: Driver, place: int) -> None:
    with suppress(Conflict):
        await driver.engine.instances.retry(saga.instance, MARK)


def check_each_is_undone_once(driver: Driver, instance: str) -> None:
    undone = driver.rows(
        "SELECT c.pos, count(*) FILTER (WHERE h.kind = 6) FROM compensation c"
        " JOIN history h ON h.instance_id = c.instance_id AND h.token_id = c.token_id"
        " WHERE c.instance_id = %s GROUP BY 1",
        number(instance),
    )
    booked = driver.rows(
        "SELECT pos FROM history WHERE instance_id = %s AND kind = 1 AND step IN (0, 1, 2)", number(instance)
    )
    assert sorted(undone) == [(position, 1) for (position,) in sorted(booked)]


class Story(NamedTuple):
    calls: list[Call]
    undone: list[str]
    status: str
    reason: str | None


BOOKED = [start, done("book-flight"), done("book-hotel")]
STORIES = {
    "the card is declined": Story(
        [*BOOKED, failed("charge-card", error_code="CARD_DECLINED"), done("cancel-hotel"), done("cancel-flight"),
         done("ask-for-another-card")],
        ["hotel", "flight"], "COMPLETED", None,
    ),
    "the tickets can't be sent": Story(
        [*BOOKED, done("charge-card"), failed("send-tickets"), done("refund-card"), done("cancel-hotel"),
         done("cancel-flight")],
        ["card", "hotel", "flight"], "FAILED", f"out of order, {MARK}",
    ),
    "it is cancelled": Story(
        [*BOOKED, cancel, done("cancel-hotel"), done("cancel-flight")], ["hotel", "flight"], "CANCELLED", MARK
    ),
    "a handler fails": Story(
        [*BOOKED, failed("charge-card"), failed("cancel-hotel"), retry, done("cancel-hotel"), done("cancel-flight")],
        ["hotel", "hotel", "flight"], "FAILED", f"out of order, {MARK}",
    ),
}  # fmt: skip


LOST_AT = [*product(STORIES, [True, False])]


@pytest.mark.parametrize(
    ("name", "committed"),
    mostly_slow(LOST_AT, quick=[LOST_AT[0], LOST_AT[3]], reason="an engine is lost at each commit"),
    ids=[f"{name}-{'committed' if committed else 'not-committed'}" for name, committed in LOST_AT],
)
async def test_an_engine_is_lost_at_each_commit_of_a_saga(
    name: str, committed: bool, make_driver: MakeDriver, proxy: Proxy, database_dsn: str
) -> None:
    story = STORIES[name]
    lost, other = make_driver(dsn=proxy.dsn, outage_wait_seconds=0), make_driver()
    lost.dsn = database_dsn  # looks must not go through the proxy, which runs in this thread
    await other.upload(TRAVEL)
    for at in range(len(story.calls)):
        saga = Saga()
        for place, call in enumerate(story.calls):
            if place == at:
                cut = proxy.cut_at(MARK.encode(), committed=committed)
                with suppress(Unavailable), trio.fail_after(60):
                    await call(saga, lost, place)
                assert cut.done.is_set(), f"call {place} was not cut"
            await call(saga, lost if place < at else other, place)
        view = await other.view(saga.instance)
        assert (view.status, view.failure_reason) == (story.status, story.reason), f"call {at}"
        assert saga.reported == story.undone, f"call {at}"
        check_each_is_undone_once(other, saga.instance)
