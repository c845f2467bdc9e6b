"""Random games as in `tests/model`, with jobs that go through the outbox, the queue, and from one to the other.

Two engines in Kafka mode and one in polling mode work on one database at once, which no deployment may do: each meets
at any moment what the other mode left. The broker forgets acks, answers UNKNOWN for what it has and for what it has
not; every drain is done by a new relay, as after a change of the leader; deadlines pass, rows are moved both ways.
"""

from __future__ import annotations

import random

import pytest
import trio

from penstock.kafka.record import KafkaRecord, Result
from penstock.kafka.relay import Relay
from penstock.store.rows import jobs as job_store
from penstock.store.rows import outbox as outbox_store
from penstock.wire.model import Job
from penstock.wire.noun import raw
from penstock.wire.workflow_v1 import JobDispatchEvent
from tests.dispatch.conftest import Leading, MakeKafka
from tests.dispatch.fake_producer import ACKED, TOO_LARGE, UNKNOWN, FakeProducer, event_of
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number
from tests.model.conftest import whole_scans
from tests.model.moves import MAX_AUTOMATIC, MAX_WORK, Move
from tests.model.test_games_in_database import Played

__all__ = ["whole_scans"]  # pytest finds the fixture here

GAMES_AT_ONCE = 6
ROUNDS_MAX = 200
ROUNDS_LIMITED = 6
"""After so many in vain it is taken for kept back by a limit."""
READY, LOCKED, DISPATCHED = 0, 1, 5


class Broker:
    """What consumers see of a broker that loses acks, and relays that publish to it, one after the other."""

    def __init__(self, engines: list[Driver], seed: int) -> None:
        self._engines = engines
        self._source = random.Random(seed)
        self._turn = trio.Lock()
        self.moving = trio.Lock()
        self._seen: dict[tuple[str, int], JobDispatchEvent] = {}
        self._dedup_ids: dict[str, tuple[str, int]] = {}

    def event(self, job_id: str, attempt: int) -> JobDispatchEvent | None:
        return self._seen.get((job_id, attempt))

    async def drain(self) -> None:
        async with self._turn:
            producer = FakeProducer()
            producer.answer = self._answer
            relay = Relay(self._source.choice(self._engines).engine, producer, Leading())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a stand-in
            while await relay.run_once():
                pass

    def _answer(self, record: KafkaRecord) -> Result:
        luck = self._source.random()
        if luck < 0.1:
            return UNKNOWN if luck < 0.05 else TOO_LARGE
        event = event_of(record)
        self._seen[event.job_id, event.attempt] = event
        # a dedup id is one job and one attempt for ever: workers drop the second
        named = (event.job_id, event.attempt)
        assert self._dedup_ids.setdefault(event.dedup_id, named) == named
        return UNKNOWN if luck < 0.2 else ACKED


class PlayedThroughKafka(Played):
    broker: Broker
    polling: Driver

    async def make(self, move: Move) -> None:
        async with self.broker.moving:  # a row that is queued meanwhile would rightly cost its worker the lease
            await super().make(move)

    async def job(self, token: int, seq: int) -> Job:
        return await self.find(number(self.instance), token, seq)

    async def child_job(self, child: int) -> Job:
        ((token, seq),) = self.engines[0].rows("SELECT id, seq FROM token WHERE instance_id = %s", child)
        return await self.find(child, token, seq)

    async def find(self, instance: int, token: int, seq: int) -> Job:
        id = f"{instance:x}-{token:x}-{seq:x}"
        for lap in range(ROUNDS_MAX):
            if lap == ROUNDS_LIMITED:
                await self.fairness_order.lift()
            ((state, attempt, holder),) = self.engines[0].rows(
                "SELECT state, attempt, claimed_by FROM token WHERE id = %s", token
            )
            event = self.broker.event(id, attempt)
            if state == DISPATCHED and event is not None:
                return as_job(event, self.source.choice(["x", "y"]))
            if state == LOCKED:
                return self.jobs[id] if self.jobs[id].worker_id == holder else as_job(event, holder)
            if self.source.random() < 0.5:
                await self.broker.drain()
            else:
                for job in await self.polling.poll(*self.types, f"child-{self.seed}", worker=f"w{self.seed}", n=100):
                    self.jobs[job.id] = job
        raise AssertionError(f"nobody got job {id}, it is lost")

    async def disturb(self) -> None:
        match self.source.randrange(4):
            case 0:
                await self.broker.drain()
            case 1:
                async with self.broker.moving, self.engine.engine.database.connection() as connection:
                    await outbox_store.migrate_dispatch(connection, 50, (), to_outbox=self.source.random() < 0.5)
            case 2:
                await self.pass_deadlines()
            case _:
                await super().disturb()

    async def pass_deadlines(self) -> None:
        passed = self.engines[0].rows(
            "UPDATE token SET lease_until = penstock_now() WHERE instance_id = %s AND state IN (1, 5)"
            " RETURNING id, seq, attempt",
            number(self.instance),
        )
        if passed:
            to_outbox = self.source.random() < 0.5
            async with self.engine.engine.database.connection() as connection:
                await job_store.expire(connection, passed, 1_000, to_outbox=to_outbox)

    async def expire(self) -> None:
        await self.pass_deadlines()


def as_job(event: JobDispatchEvent | None, worker: str) -> Job:
    assert event is not None
    assert event.created_at is not None
    return Job(
        id=event.job_id,
        job_type=event.job_type,
        instance_id=event.instance_id,
        step_id=event.step_id,
        step_execution_id=event.step_execution_id,
        retries_remaining=event.retries_remaining,
        variables=raw(event.job_payload),
        lock_expires_at=event.created_at,
        status="LOCKED",
        worker_id=worker,
        locked_at=event.created_at,
        created_at=event.created_at,
        attempt=event.attempt,
        idempotency_key=event.idempotency_key,
    )


async def play_games(make_kafka: MakeKafka, make_driver: MakeDriver, seeds: range) -> None:
    limits = {"max_automatic_steps": MAX_AUTOMATIC, "advance_max_work_steps": MAX_WORK}
    kafka = [make_kafka(**limits) for _ in range(2)]
    polling = make_driver(**limits)
    engines: list[Driver] = [*kafka, polling]
    broker, clock, left = Broker([*kafka], seeds.start), engines[0].clock, list(seeds)

    async def player() -> None:
        while left:
            played = PlayedThroughKafka(engines, clock, left.pop())
            played.broker, played.polling = broker, polling
            try:
                await played.play()
            except Exception as error:
                error.add_note(f"seed {played.seed}: {played.moves}")
                raise

    async with trio.open_nursery() as nursery:
        for _ in range(GAMES_AT_ONCE):
            nursery.start_soon(player)


async def test_games_through_kafka_go_by_the_rules(make_kafka: MakeKafka, make_driver: MakeDriver) -> None:
    await play_games(make_kafka, make_driver, range(40))


@pytest.mark.slow(reason="many random games")
async def test_many_games_through_kafka_go_by_the_rules(make_kafka: MakeKafka, make_driver: MakeDriver) -> None:
    await play_games(make_kafka, make_driver, range(5000, 5080))
