"""A completion that is being repeated through an outage must not take another one's effect for its own.

Found by `python -m chaos full-disk`: while an engine was cut off, the lease of its worker ended, another attempt
completed the step, and the next job went to a worker whose poll was parked at the first engine, too. That engine took
the lease for the hand-off of its own lost transaction, told its worker that attempt 1 had completed the step, and
handed the next job out a second time, with the variables of a completion that never was.
"""

from __future__ import annotations

import pytest
import trio

from penstock.errors import Conflict
from penstock.testing.definitions import linear
from penstock.wire.model import Job
from tests.engine.conftest import MakeDriver, make_driver, proxy
from tests.engine.driver import Driver
from tests.engine.test_lost_commit import MARK, cut_driver, parked_poll
from tests.store.proxy import Proxy
from tests.waiting import wait_until

__all__ = ["cut_driver", "make_driver", "proxy"]


@pytest.mark.parametrize("named", [True, False], ids=["with its attempt", "without"])
async def test_a_completion_overtaken_in_an_outage_says_so(
    cut_driver: Driver, make_driver: MakeDriver, proxy: Proxy, database_dsn: str, nursery: trio.Nursery, named: bool
) -> None:
    other = make_driver(dsn=database_dsn)
    instance = await cut_driver.run(linear(2))
    first = await cut_driver.one("work")
    jobs: list[Job] = await parked_poll(cut_driver, nursery, "work")
    cut = proxy.cut_at(MARK.encode(), committed=False)
    proxy.hold_new = True
    outcomes: list[str] = []

    async def complete() -> None:
        try:
            await cut_driver.complete(first, {"x": MARK}, attempt=first.attempt if named else None)
            outcomes.append("done")
        except Conflict as error:
            outcomes.append(error.code)

    nursery.start_soon(complete)
    await cut.done.wait()
    assert await other.expire(31) == 1
    second = await other.one("work", worker="other")
    assert (second.id, second.attempt) == (first.id, 2)
    await other.complete(second, {"x": "other"}, attempt=2)
    following = await other.one("work", worker="parked")
    proxy.hold_new = False
    for link in proxy.links:
        link.release()

    async def answered() -> bool:
        return bool(outcomes)

    await wait_until(answered)
    assert outcomes == (["lease-lost"] if named else ["done"])  # without an attempt: it is closed by a completion
    assert jobs == [], "a job that somebody has was handed out again"
    await other.complete(following)
    assert await other.status(instance) == "COMPLETED"
    assert await other.variables(instance) == {"x": "other"}
