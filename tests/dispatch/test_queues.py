"""Queues in Kafka mode: jobs are published, and count, when their queue lets them begin."""

from __future__ import annotations

import json

import trio

from penstock.engine.requests.ids import show_job
from penstock.testing.definitions import linear
from penstock.wire.model import Completion
from penstock.wire.queue import QueuePolicy, Rate
from tests.dispatch.conftest import KafkaDriver, MakeKafka


def running(kafka: KafkaDriver) -> list[tuple[str, int]]:
    rows = kafka.rows("SELECT flow_key, running FROM slot WHERE running > 0 ORDER BY 1")
    return [(key, count) for key, count in rows]


async def complete_one(kafka: KafkaDriver) -> None:
    ((instance, token, seq, attempt),) = kafka.rows(
        "SELECT instance_id, id, seq, attempt FROM token WHERE state = 5 ORDER BY seq LIMIT 1"
    )
    job = show_job(instance, token, seq)
    await kafka.engine.jobs.complete(Completion(job_id=job, worker_id="w", attempt=attempt))


async def test_jobs_are_published_as_their_queue_has_room(kafka: KafkaDriver) -> None:
    await kafka.upload(linear(1))
    await kafka.engine.queues.put("q", QueuePolicy(["work"], concurrency=2, concurrency_per_key=1))
    for key in ("a", "a", "b", "c"):
        await kafka.start("linear", flow_key=key)
    assert kafka.rows("SELECT count(*) FROM dispatch_outbox") == [(0,)]
    await kafka.drain()
    assert sorted(kafka.states()) == [(0, 0), (0, 0), (5, 1), (5, 1)]
    assert running(kafka) == [("", 2), ("a", 1), ("b", 1)]
    assert len(kafka.producer.sent) == 2
    await kafka.drain()
    assert len(kafka.producer.sent) == 2
    await complete_one(kafka)
    await kafka.drain()
    assert len(kafka.producer.sent) == 3


async def test_a_deadline_that_passes_frees_the_place(kafka: KafkaDriver) -> None:
    await kafka.upload(linear(1))
    await kafka.engine.queues.put("q", QueuePolicy(["work"], concurrency=1))
    await kafka.start("linear")
    await kafka.drain()
    assert running(kafka) == [("", 1)]
    kafka.clock.advance(kafka.engine.settings.dispatch_timeout_seconds + 1)
    due = kafka.rows("SELECT id, seq, attempt FROM token WHERE state = 5")
    assert len(await kafka.engine.leases.expire(due)) == 1
    assert running(kafka) == []
    await kafka.drain()
    assert kafka.states() == [(5, 2)]
    assert running(kafka) == [("", 1)]


async def test_a_rate_spreads_what_is_published(kafka: KafkaDriver) -> None:
    kafka.clock.stop()
    await kafka.upload(linear(1))
    await kafka.engine.queues.put("q", QueuePolicy(["work"], rate=Rate(2, "PT1S")))
    for _ in range(5):
        await kafka.start("linear")
    published: list[int] = []
    for _ in range(3):
        await kafka.drain()
        published.append(len(kafka.producer.sent))
        kafka.clock.advance(1.0)
        kafka.engine.polls.claims.fairness_order.open(["work"])
    assert published == [2, 4, 5]


async def test_jobs_from_before_the_queue_are_admitted(kafka: KafkaDriver) -> None:
    await kafka.upload(linear(1))
    await kafka.start("linear")
    await kafka.drain()
    await kafka.engine.queues.put("q", QueuePolicy(["work"], paused=True))
    kafka.clock.advance(kafka.engine.settings.dispatch_timeout_seconds + 1)
    due = kafka.rows("SELECT id, seq, attempt FROM token WHERE state = 5")
    assert len(await kafka.engine.leases.expire(due)) == 1
    await kafka.drain()
    assert kafka.states() == [(0, 1)]
    await kafka.engine.queues.pause("q", paused=False)
    await kafka.drain()
    assert kafka.states() == [(5, 2)]


async def test_a_freed_key_is_admitted_behind_many_full_ones(make_kafka: MakeKafka) -> None:
    kafka = make_kafka(flow_keys_per_claim=5)
    await kafka.upload(linear(1))
    await kafka.engine.queues.put("q", QueuePolicy(["work"], concurrency_per_key=1))
    for key in [f"k{number:02d}" for number in range(20)] * 2:
        await kafka.start("linear", flow_key=key)
    turns = kafka.engine.polls.claims.fairness_order
    for _ in range(5):  # five keys at a look
        await kafka.drain()
        turns.open(["work"])
    assert len(kafka.producer.sent) == 20
    key = json.loads(turns.cursor("work"))["5"]  # to which a round comes last
    ((instance, token, seq, attempt),) = kafka.rows(
        "SELECT instance_id, id, seq, attempt FROM token WHERE state = 5 AND flow_key = %s", key
    )
    await kafka.engine.jobs.complete(Completion(job_id=show_job(instance, token, seq), worker_id="w", attempt=attempt))
    await kafka.relay.run_once()
    assert kafka.rows("SELECT count(*) FROM token WHERE state = 5 AND flow_key = %s", key) == [(1,)]


async def test_more_keys_than_a_batch_has_room_for_are_remembered(make_kafka: MakeKafka) -> None:
    kafka = make_kafka(flow_keys_per_claim=5, outbox_batch_size=2)
    await kafka.upload(linear(1))
    await kafka.engine.queues.put("q", QueuePolicy(["work"], concurrency_per_key=1))
    for key in [f"k{number:02d}" for number in range(20)] * 2:
        await kafka.start("linear", flow_key=key)
    turns = kafka.engine.polls.claims.fairness_order
    for _ in range(20):
        await kafka.drain()
        turns.open(["work"])
    assert len(kafka.producer.sent) == 20
    last = int(json.loads(turns.cursor("work"))["5"][1:])
    keys = [f"k{(last - number) % 20:02d}" for number in range(3)]  # a round comes to them last
    for key in keys:
        ((instance, token, seq, attempt),) = kafka.rows(
            "SELECT instance_id, id, seq, attempt FROM token WHERE state = 5 AND flow_key = %s", key
        )
        await kafka.engine.jobs.complete(
            Completion(job_id=show_job(instance, token, seq), worker_id="w", attempt=attempt)
        )
    for _ in range(2):
        await kafka.relay.run_once()
    assert kafka.rows("SELECT count(*) FROM token WHERE state = 5 AND flow_key = ANY(%s)", keys) == [(3,)]


async def test_two_relays_at_once_admit_within_the_limit(make_kafka: MakeKafka) -> None:
    one, two = make_kafka(), make_kafka()
    await one.upload(linear(1))
    await one.engine.queues.put("q", QueuePolicy(["work"], concurrency=3))
    await two.engine.queues.run_once()
    for _ in range(8):
        await one.start("linear")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.drain)
        nursery.start_soon(two.drain)
    assert sorted(one.states()) == [(0, 0)] * 5 + [(5, 1)] * 3
    assert running(one) == [("", 3)]
    published = {(record.instance_id, record.attempt) for kafka in (one, two) for record in kafka.producer.sent}
    assert len(published) == 3
