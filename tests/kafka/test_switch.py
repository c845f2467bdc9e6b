"""From polling to Kafka and back with the real things, each time by a restart with the other mode and nothing else."""

from __future__ import annotations

import pytest

from penstock.worker import JobContext, Worker
from tests.kafka.broker import KafkaBroker
from tests.kafka.fleet import Fleet
from tests.runtime.conftest import StartEngine, start_engine
from tests.runtime.engine_process import EngineProcess

__all__ = ["start_engine"]  # pytest finds the fixture here

pytestmark = [pytest.mark.kafka, pytest.mark.slow(reason="a real broker of Kafka")]
DEADLINE_S = 5
"""Of what was dispatched and not begun when the mode is switched back."""


async def polling_engine(fleet: Fleet) -> EngineProcess:
    return await fleet.engine(dispatch_mode="polling", lease_scan_interval_seconds=0.5)


async def work_by_polling(fleet: Fleet, engine: EngineProcess) -> None:
    """Until nothing is open."""
    async with fleet.client(engine) as client:
        worker = Worker(client, concurrency=50)

        @worker.handler(fleet.job_type)
        async def handle(context: JobContext) -> None:
            fleet.handled[context.instance_id, context.step_id] += 1

        async with worker:
            await fleet.wait_ended()


async def test_a_restart_in_the_other_mode_switches(
    database_dsn: str, broker: KafkaBroker, start_engine: StartEngine
) -> None:
    fleet = Fleet(database_dsn, broker.bootstrap, start_engine)
    engine = await polling_engine(fleet)
    await fleet.upload(engine)
    queued = await fleet.start(engine, 50)
    assert engine.stop() == 0

    engine = await fleet.engine(dispatch_timeout_seconds=DEADLINE_S)
    async with fleet.worker(engine):
        await fleet.wait_ended()
    assert {id for id, _ in fleet.handled} == queued
    await fleet.start(engine, 50)
    assert engine.stop() == 0  # some of them published, some not

    engine = await polling_engine(fleet)
    await work_by_polling(fleet, engine)
    assert engine.stop() == 0
    fleet.check()
