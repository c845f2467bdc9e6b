"""No interval stands in a job's way: the commit that wrote a row wakes the relay, in this engine and in others."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio

from penstock.kafka import relay
from penstock.kafka.relay import Relay
from penstock.settings import DispatchMode
from tests.dispatch.conftest import Leading
from tests.dispatch.fake_producer import FakeProducer
from tests.dispatch.test_relay import LINE, done, failed
from tests.engine.driver import Driver
from tests.runtime.conftest import StartLocal, start_local
from tests.runtime.local_engine import LocalEngine
from tests.waiting import wait_until

__all__ = ["start_local"]  # pytest finds the fixture here

LONG_S = 3_600.0


class Running:
    """An engine in Kafka mode with its loops, and a relay that runs in one of them."""

    def __init__(self, engine: LocalEngine) -> None:
        self.driver: Driver = engine
        self.producer = FakeProducer()
        self.relay = Relay(engine.engine, self.producer, cast("Any", Leading()))
        engine.engine.events.queued_elsewhere.listen(self.relay.wake)

    async def run(self) -> None:
        while True:
            await self.relay.step()


@pytest.fixture
async def leader(start_local: StartLocal, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> Running:
    """Looks at everything once, at its start, and then only when it is told to."""
    monkeypatch.setattr(relay, "SCAN_INTERVAL_S", LONG_S)
    engine = await start_local(dispatch_mode=DispatchMode.KAFKA_OUTBOX)
    running = Running(engine)
    engine.engine.events.queued.listen(running.relay.wake_for)
    nursery.start_soon(running.run)
    await wait_until(lambda: _scanned(running))
    return running


async def _scanned(running: Running) -> bool:
    return running.relay._scan > trio.current_time() + LONG_S / 2


async def published(running: Running, count: int) -> None:
    async def enough() -> bool:
        return len(running.producer.log) >= count

    await wait_until(enough)


async def test_whatever_writes_a_row_wakes_the_relay_of_its_engine(leader: Running) -> None:
    kafka = leader.driver
    await kafka.run(LINE)
    await published(leader, 1)
    await kafka.engine.jobs.complete(done(leader.producer.log[0]))
    await published(leader, 2)
    await kafka.engine.jobs.fail(failed(leader.producer.log[1]))
    await published(leader, 3)
    await kafka.engine.jobs.fail(failed(leader.producer.log[2], retry_after_s=0.01))
    await published(leader, 4)
    assert [event.attempt for event in leader.producer.log] == [1, 1, 2, 3]


async def test_a_row_that_another_engine_wrote_wakes_it_too(leader: Running, start_local: StartLocal) -> None:
    other = await start_local(dispatch_mode=DispatchMode.KAFKA_OUTBOX)

    async def seen() -> bool:
        return len(other.membership.others) == 1

    await wait_until(seen)
    await other.run(LINE)
    await published(leader, 1)
    await other.engine.jobs.complete(done(leader.producer.log[0]))
    await published(leader, 2)
