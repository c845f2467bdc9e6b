"""Minutes of everything at once: brokers and leaders killed and stopped, workers that come and go, under load.

PENSTOCK_CHAOS_SECONDS=600 .venv/bin/pytest -q -m chaos tests/kafka
"""

from __future__ import annotations

import os
import random
import signal
from contextlib import AsyncExitStack

import pytest
import trio

from tests.kafka.broker import KafkaBroker
from tests.kafka.fleet import Fleet
from tests.runtime.conftest import StartEngine, start_engine
from tests.runtime.engine_process import EngineProcess

__all__ = ["start_engine"]  # pytest finds the fixture here

DURATION_S = float(os.environ.get("PENSTOCK_CHAOS_SECONDS", "120"))
FEW_OPEN = "SELECT count(*) < 2000 FROM instance WHERE status = 0"
LEADER_METRIC = "workflow_engine_dispatch_relay_leader"

pytestmark = [pytest.mark.kafka, pytest.mark.chaos, pytest.mark.timeout(DURATION_S + 240)]


class Chaos:
    """Engines that are killed and stopped, and one that is not: clients and workers talk to that."""

    def __init__(self, fleet: Fleet, broker: KafkaBroker, seed: int) -> None:
        self.fleet = fleet
        self.broker = broker
        self.chance = random.Random(seed)
        self.victims: list[EngineProcess] = []
        self.stable: EngineProcess
        self.over = trio.Event()
        self.done: list[str] = []

    async def begin(self) -> None:
        for _ in range(2):
            self.victims.append(await self.fleet.engine(kafka_publish_timeout_seconds=3))
        self.stable = await self.fleet.engine(kafka_publish_timeout_seconds=3)
        await self.fleet.upload(self.stable)

    async def load(self) -> None:
        while not self.over.is_set():
            await self.fleet.start(self.stable, 50)
            await self.fleet.wait(lambda: self.fleet.query(FEW_OPEN) == [(True,)] or self.over.is_set(), 300)
            await trio.sleep(0.2)

    async def workers(self) -> None:
        async with self.fleet.worker(self.stable):
            while not self.over.is_set():
                async with AsyncExitStack() as more:
                    for _ in range(self.chance.randrange(3)):
                        await more.enter_async_context(self.fleet.worker(self.stable, drain_grace_s=1))
                    with trio.move_on_after(self.chance.uniform(2, 10)):
                        await self.over.wait()
            await self.fleet.wait_ended(180)

    async def break_things(self) -> None:
        events = (self.kill_broker, self.stop_broker, self.kill_engine, self.stop_engine)
        with trio.move_on_after(DURATION_S):
            while True:
                await trio.sleep(self.chance.uniform(1, 6))
                event = self.chance.choice(events)
                self.done.append(event.__name__)
                with trio.CancelScope(shield=True):
                    await event()
        self.over.set()

    async def kill_broker(self) -> None:
        await trio.to_thread.run_sync(self.broker.kill)
        await trio.sleep(self.chance.uniform(0, 4))
        await trio.to_thread.run_sync(self.broker.start)

    async def stop_broker(self) -> None:
        self.broker.pause()
        await trio.sleep(self.chance.uniform(0.5, 6))
        self.broker.resume()

    def leader(self) -> EngineProcess:
        leading = [each for each in self.victims if each.metric(LEADER_METRIC)]
        return leading[0] if leading else self.chance.choice(self.victims)

    async def kill_engine(self) -> None:
        victim = await trio.to_thread.run_sync(self.leader)
        self.victims.remove(victim)
        await trio.to_thread.run_sync(victim.kill)
        self.victims.append(await self.fleet.engine(kafka_publish_timeout_seconds=3))

    async def stop_engine(self) -> None:
        victim = await trio.to_thread.run_sync(self.leader)
        victim.process.send_signal(signal.SIGSTOP)
        await trio.sleep(self.chance.uniform(1, 12))
        victim.process.send_signal(signal.SIGCONT)
        # One that was away for too long ends itself, and is replaced.
        if victim.process.poll() is not None:
            self.victims.remove(victim)
            self.victims.append(await self.fleet.engine(kafka_publish_timeout_seconds=3))


@pytest.mark.parametrize("seed", [1, 2])
async def test_jobs_survive_minutes_of_chaos(
    database_dsn: str, own_broker: KafkaBroker, start_engine: StartEngine, seed: int
) -> None:
    fleet = Fleet(database_dsn, own_broker.bootstrap, start_engine)
    chaos = Chaos(fleet, own_broker, seed)
    await chaos.begin()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(chaos.load)
        nursery.start_soon(chaos.workers)
        nursery.start_soon(chaos.break_things)
    fleet.check()
    print(f"{len(fleet.started)} instances, {fleet.repeats} jobs worked on more than once, {chaos.done}")
