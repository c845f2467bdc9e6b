"""The relay's producer against a real broker: what it says of each record is what is in the log."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from penstock.errors import BrokerUnavailable
from penstock.kafka.producer import KafkaProducer
from penstock.kafka.record import KafkaRecord, PublishOutcome
from penstock.kafka.session import KafkaSession
from penstock.settings import DispatchMode, Settings
from penstock.telemetry.metrics import Metrics
from tests.kafka.conftest import MAX_MESSAGE_BYTES
from tests.kafka.topics import Topics
from tests.waiting import wait_until

pytestmark = pytest.mark.kafka


def settings_for(bootstrap: str, **more: Any) -> Settings:
    return Settings(
        dispatch_mode=DispatchMode.KAFKA_OUTBOX,
        kafka_seed_brokers=(bootstrap,),
        **more,
    )


@asynccontextmanager
async def running(settings: Settings):
    producer = KafkaProducer(settings, Metrics("test"))
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: producer.run(task_status=task_status))
        yield producer
        nursery.cancel_scope.cancel()


def records(topic: str, *values: str, key: str = "instance-1") -> list[KafkaRecord]:
    headers = (("content-type", b"application/x-protobuf"), ("dedup-id", b"7"))
    return [KafkaRecord(topic, key.encode(), value.encode(), headers) for value in values]


def outcomes(results) -> list[PublishOutcome]:
    return [result.outcome for result in results]


async def test_records_arrive_with_key_and_headers_in_the_order_given(broker, topics):
    topic = await topics.make(partitions=4)
    values = [f"value {n}" for n in range(300)]
    async with running(settings_for(broker.bootstrap)) as producer:
        results = await producer.publish(records(topic, *values))
        assert outcomes(results) == [PublishOutcome.ACKED] * 300
        assert producer.away() is None
    log = await topics.read(topic)
    assert [record.value.decode() for record in log] == values
    assert {record.partition for record in log} == {log[0].partition}
    assert {(record.key, record.headers) for record in log} == {
        (b"instance-1", (("content-type", b"application/x-protobuf"), ("dedup-id", b"7")))
    }


async def test_a_missing_topic_is_refused_without_delaying_others(broker, topics):
    topic = await topics.make()
    async with running(settings_for(broker.bootstrap)) as producer:
        batch = records(topic, "a") + records("no-such-topic", "b") + records(topic, "c")
        began = time.monotonic()
        results = await producer.publish(batch)
        assert time.monotonic() - began < 20  # aiokafka alone waits 40 s
        assert outcomes(results) == [PublishOutcome.ACKED, PublishOutcome.TOPIC_REFUSED, PublishOutcome.ACKED]
        assert results[1].code == "UNKNOWN_TOPIC_OR_PARTITION"
        assert producer._metrics.producer_errors["UNKNOWN_TOPIC_OR_PARTITION"]._value.get() == 1
        assert producer.away() is None
    assert await topics.values(topic) == [b"a", b"c"]


async def test_a_topic_made_later_is_found(broker, topics):
    async with running(settings_for(broker.bootstrap)) as producer:
        name = f"{topics.prefix}.later"
        assert outcomes(await producer.publish(records(name, "early"))) == [PublishOutcome.TOPIC_REFUSED]
        await topics.make("later")
        assert outcomes(await producer.publish(records(name, "late"))) == [PublishOutcome.ACKED]
    assert await topics.values(name) == [b"late"]


async def test_a_record_over_the_setting_is_refused_unsent_and_alone(broker, topics):
    topic = await topics.make()
    async with running(settings_for(broker.bootstrap, kafka_max_record_bytes=20_000)) as producer:
        results = await producer.publish(records(topic, "a", "x" * 20_000, "b"))
        assert outcomes(results) == [PublishOutcome.ACKED, PublishOutcome.RECORD_REFUSED, PublishOutcome.ACKED]
        assert results[1].code == "MESSAGE_TOO_LARGE"
    assert await topics.values(topic) == [b"a", b"b"]


async def test_too_large_a_record_breaks_nothing_for_long(broker, topics):
    topic = await topics.make()
    large = "x" * (MAX_MESSAGE_BYTES + 1)
    async with running(settings_for(broker.bootstrap)) as producer:
        first = await producer.publish(records(topic, "a", large, "b"))
        assert outcomes(first)[:2] == [PublishOutcome.ACKED, PublishOutcome.RECORD_REFUSED]
        # What follows a refused batch has a gap in front: it is sent again, through a new client.

        async def published() -> bool:
            return outcomes(await producer.publish(records(topic, "b")))[0] is PublishOutcome.ACKED

        await wait_until(published)
        # The size is remembered: the same record again costs its neighbours nothing.
        results = await producer.publish(records(topic, "c", large, "d"))
        assert outcomes(results) == [PublishOutcome.ACKED, PublishOutcome.RECORD_REFUSED, PublishOutcome.ACKED]
    assert [value for value in await topics.values(topic) if len(value) > 1] == []
    assert (await topics.values(topic))[-2:] == [b"c", b"d"]


async def test_missing_topics_are_listed_and_created_on_request(broker, topics):
    there = await topics.make("there")
    wanted = [f"{topics.prefix}.{name}" for name in ("b", "a")]
    async with running(settings_for(broker.bootstrap, kafka_topic_partitions=3)) as producer:
        assert await producer.missing_topics([there, *wanted]) == sorted(wanted)
        assert await producer.create_topics([there, *wanted]) == {}
        assert await producer.missing_topics([there, *wanted]) == []
        assert outcomes(await producer.publish(records(wanted[0], "1"))) == [PublishOutcome.ACKED]
        refused = await producer.create_topics(["not a name", f"{topics.prefix}.c"])
        assert refused.keys() == {"not a name"}
        assert "INVALID_TOPIC_EXCEPTION" in refused["not a name"]


async def test_a_missing_broker_is_an_error_that_names_it():
    producer = KafkaProducer(settings_for("127.0.0.1:9", kafka_connect_timeout_seconds=2), Metrics("test"))
    began = time.monotonic()
    with pytest.raises(BrokerUnavailable) as caught:
        await producer.run()
    assert time.monotonic() - began < 20
    assert "127.0.0.1:9" in caught.value.reason
    assert "refused" in caught.value.reason.lower()


async def test_what_does_not_speak_kafka_is_no_broker():
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    producer = KafkaProducer(settings_for(address, kafka_connect_timeout_seconds=0.5), Metrics("test"))
    with pytest.raises(BrokerUnavailable, match="does not answer"):
        await producer.run()
    await listeners[0].aclose()


async def test_publishing_before_a_connection_stands_says_unknown():
    producer = KafkaProducer(settings_for("127.0.0.1:9"), Metrics("test"))
    [result] = await producer.publish(records("t", "1"))
    assert (result.outcome, result.code) == (PublishOutcome.UNKNOWN, "NOT_CONNECTED")
    assert producer.away() == "not connected yet"
    with pytest.raises(BrokerUnavailable):
        await producer.missing_topics(["t"])


async def test_a_cancelled_batch_leaves_a_producer_that_works(broker, topics):
    topic = await topics.make()
    async with running(settings_for(broker.bootstrap)) as producer:
        for round_ in range(20):
            with trio.move_on_after(round_ * 0.0005):
                await producer.publish(records(topic, *[f"{round_}-{n}" for n in range(50)]))

        async def published() -> bool:
            return outcomes(await producer.publish(records(topic, "last")))[0] is PublishOutcome.ACKED

        await wait_until(published)
    assert (await topics.values(topic))[-1] == b"last"


@pytest.mark.chaos
async def test_a_restarted_broker_has_all_that_was_acked(own_broker):
    topics = Topics(own_broker.bootstrap)
    topic = await topics.make(partitions=3)
    acked: list[str] = []
    sent = 0
    stop = trio.Event()
    async with running(settings_for(own_broker.bootstrap, kafka_publish_timeout_seconds=1)) as producer:

        async def publish() -> None:
            nonlocal sent
            while not stop.is_set():
                values = [f"{sent}-{n}" for n in range(20)]
                sent += 1
                results = await producer.publish(
                    [record for value in values for record in records(topic, value, key=value)]
                )
                acked.extend(v for v, r in zip(values, results, strict=True) if r.outcome is PublishOutcome.ACKED)
                await trio.sleep(0.01)

        async def away() -> bool:
            return producer.away() is not None

        async def back() -> bool:
            return len(acked) > before + 100

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            before = 0
            await wait_until(back)
            await trio.to_thread.run_sync(own_broker.kill)
            await wait_until(away)
            before = len(acked)
            await trio.to_thread.run_sync(own_broker.start)
            await wait_until(back)
            assert producer.away() is None
            stop.set()
    log = [value.decode() for value in await topics.values(topic)]
    assert set(acked) <= set(log)


async def test_closing_is_bounded_while_the_broker_is_down(own_broker):
    topic = await Topics(own_broker.bootstrap).make()
    async with running(settings_for(own_broker.bootstrap)) as producer:
        assert outcomes(await producer.publish(records(topic, "1"))) == [PublishOutcome.ACKED]
        await trio.to_thread.run_sync(own_broker.kill)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.publish, records(topic, "2"))
            await trio.testing.wait_all_tasks_blocked(0.2)
            nursery.cancel_scope.cancel()
        began = time.monotonic()
    assert time.monotonic() - began < 20


async def test_a_paused_broker_is_waited_for_within_the_time_out(own_broker):
    topics = Topics(own_broker.bootstrap)
    topic = await topics.make()
    async with running(settings_for(own_broker.bootstrap)) as producer:
        assert outcomes(await producer.publish(records(topic, "1"))) == [PublishOutcome.ACKED]
        own_broker.pause()
        results: list[PublishOutcome] = []

        async def publish() -> None:
            results.extend(outcomes(await producer.publish(records(topic, "2", "3"))))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            await trio.sleep(2)  # longer than anything but the time-out
            own_broker.resume()
        assert results == [PublishOutcome.ACKED] * 2
    assert await topics.values(topic) == [b"1", b"2", b"3"]


async def test_an_outage_is_seen_without_a_record(own_broker, monkeypatch):
    monkeypatch.setattr("penstock.kafka.producer.PROBE_INTERVAL_S", 0.2)
    async with running(settings_for(own_broker.bootstrap)) as producer:

        async def away() -> bool:
            return producer.away() is not None

        await trio.to_thread.run_sync(own_broker.kill)
        await wait_until(away)


async def test_a_silent_seed_broker_does_not_hide_the_others(broker, topics):
    topic = await topics.make()
    [silent] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    seeds = [f"127.0.0.1:{silent.socket.getsockname()[1]}"] * 3 + [broker.bootstrap]
    settings = Settings(kafka_seed_brokers=tuple(seeds), kafka_connect_timeout_seconds=30)
    began = time.monotonic()
    async with silent, running(settings) as producer:
        assert time.monotonic() - began < 20
        assert outcomes(await producer.publish(records(topic, "1"))) == [PublishOutcome.ACKED]


async def test_a_client_that_breaks_unexpectedly_is_replaced(broker, topics, monkeypatch):
    topic = await topics.make()
    failures = iter([ValueError("odd"), ValueError("odd")])
    open_session = KafkaSession.open

    async def open_(*arguments: Any) -> KafkaSession:
        if (failure := next(failures, None)) is not None:
            raise failure
        return await open_session(*arguments)

    async with running(settings_for(broker.bootstrap)) as producer:
        monkeypatch.setattr(KafkaSession, "open", open_)
        assert producer._connection is not None
        await producer._connection.close()  # as if its thread had died

        async def published() -> bool:
            return outcomes(await producer.publish(records(topic, "1")))[0] is PublishOutcome.ACKED

        await wait_until(published)
    assert next(failures, None) is None
    assert await topics.values(topic) == [b"1"]
