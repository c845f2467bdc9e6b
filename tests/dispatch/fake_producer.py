"""A producer that answers what a test wants: for the relay's decisions only, never in place of a broker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import trio

from penstock.kafka.record import KafkaRecord, PublishOutcome, Result
from penstock.wire.codec import decode_message
from penstock.wire.workflow_v1 import JobDispatchEvent

ACKED = Result(PublishOutcome.ACKED)
UNKNOWN = Result(PublishOutcome.UNKNOWN, "REQUEST_TIMED_OUT", "no answer")
NO_TOPIC = Result(PublishOutcome.TOPIC_REFUSED, "UNKNOWN_TOPIC_OR_PARTITION", "no such topic")
TOO_LARGE = Result(PublishOutcome.RECORD_REFUSED, "MESSAGE_TOO_LARGE", "too large")


def event_of(record: KafkaRecord) -> JobDispatchEvent:
    return decode_message(record.value, JobDispatchEvent)


class FakeProducer:
    """``answer`` decides for each record; ``gate`` holds every call until it is set; ``log`` is what a topic has."""

    def __init__(self) -> None:
        self.answer: Callable[[KafkaRecord], Result] = lambda record: ACKED
        self.batches: list[list[KafkaRecord]] = []
        self.log: list[JobDispatchEvent] = []
        self.created: list[str] = []
        self.before: Callable[[], object] | None = None
        self.gate: trio.Event | None = None
        self.called = trio.Event()

    async def publish(self, records: Sequence[KafkaRecord]) -> list[Result]:
        self.batches.append(list(records))
        self.called.set()
        if self.gate is not None:
            await self.gate.wait()
        results = [self.answer(record) for record in records]
        self.log += [
            event_of(record)
            for record, result in zip(records, results, strict=True)
            if result.outcome is PublishOutcome.ACKED
        ]
        return results

    async def create_topics(self, names: Collection[str]) -> dict[str, str]:
        self.created += names
        return {}

    def away(self) -> str | None:
        return None

    @property
    def sent(self) -> list[JobDispatchEvent]:
        return [event_of(record) for batch in self.batches for record in batch]
