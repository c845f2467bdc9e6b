"""What one broker can't be made to do: partitions that never acknowledge, errors of any kind. A scripted client."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import errors

from penstock.kafka import session as module
from penstock.kafka.record import KafkaRecord, PublishOutcome
from penstock.kafka.results import code_of, result_of
from penstock.kafka.session import KafkaSession
from penstock.settings import Settings
from tests.kafka.topics import in_thread


class ScriptedClient:
    """Knows every topic; each topic's records end as its script says, by their value; None never ends."""

    def __init__(self, **ends: object) -> None:
        self.client = self
        self.cluster = self
        self.ends = ends

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0}

    async def send(self, topic: str, value: bytes, key: bytes, *, headers: object) -> asyncio.Future[object]:
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        end = self.ends[topic]
        if isinstance(end, Exception):
            future.set_exception(end)
        elif end is not None:
            future.set_result(end)
        return future


def publish(topics: list[str], timeout_s: float = 0.5, **ends: object):
    async def run():
        settings = Settings(kafka_publish_timeout_seconds=timeout_s)
        session = KafkaSession(ScriptedClient(**ends), settings, {}, {})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a scripted one
        return await session.publish([KafkaRecord(topic, b"k", b"v", ()) for topic in topics])

    return in_thread(run)


async def test_a_topic_without_acknowledgements_delays_others_only_briefly(monkeypatch):
    monkeypatch.setattr(module, "STRAGGLER_S", 0.05)
    published = await publish(["stuck", "good", "stuck"], timeout_s=60, stuck=None, good=1)
    stuck, good, also_stuck = published.results
    assert good.outcome is PublishOutcome.ACKED
    assert stuck == also_stuck
    assert (stuck.outcome, stuck.code) == (PublishOutcome.TOPIC_REFUSED, "REQUEST_TIMED_OUT")
    assert published.spent


async def test_without_acknowledgements_all_is_unknown_after_the_time_out(monkeypatch):
    monkeypatch.setattr(module, "STRAGGLER_S", 0.01)
    published = await publish(["a", "b"], timeout_s=0.1, a=None, b=None)
    assert [result.outcome for result in published.results] == [PublishOutcome.UNKNOWN] * 2
    assert published.spent


async def test_an_acknowledged_batch_leaves_the_session_as_it_is():
    published = await publish(["a"], a=1)
    assert (published.results[0].outcome, published.spent) == (PublishOutcome.ACKED, False)


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        (errors.OutOfOrderSequenceNumber(), PublishOutcome.UNKNOWN, "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (errors.ProducerFenced(), PublishOutcome.UNKNOWN, "PRODUCER_FENCED"),
        (errors.UnknownProducerId(), PublishOutcome.UNKNOWN, "UNKNOWN_PRODUCER_ID"),
        (errors.TopicAuthorizationFailedError("t"), PublishOutcome.TOPIC_REFUSED, "TOPIC_AUTHORIZATION_FAILED"),
        (errors.MessageSizeTooLargeError(), PublishOutcome.RECORD_REFUSED, "MESSAGE_TOO_LARGE"),
        (errors.KafkaError("odd"), PublishOutcome.UNKNOWN, "KAFKA"),
        (ValueError("odd"), PublishOutcome.UNKNOWN, "VALUE"),
    ],
)
async def test_a_batch_that_failed_ends_the_session(error, outcome, code):
    published = await publish(["bad", "good"], bad=error, good=1)
    assert [result.outcome for result in published.results] == [outcome, PublishOutcome.ACKED]
    assert published.results[0].code == code
    assert published.spent


def test_codes_are_kafkas_own_names():
    assert code_of(errors.UnknownTopicOrPartitionError()) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert code_of(errors.NotLeaderForPartitionError()) == "NOT_LEADER_FOR_PARTITION"
    assert code_of(TimeoutError()) == "REQUEST_TIMED_OUT"
    assert result_of(errors.KafkaConnectionError("gone")).outcome is PublishOutcome.UNKNOWN
