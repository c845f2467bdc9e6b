"""What the relay hands to a producer, and what it gets back: the seam between the outbox and the broker.

The relay (`relay.py`) decides what is published and when; a producer (`producer.py`) knows brokers, topics and
connections. Neither knows the other's inside. Nothing here does I/O.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol


class KafkaRecord(NamedTuple):
    """One message. The partition follows from the key: all jobs of an instance and type stay in order."""

    topic: str
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]


class PublishOutcome(enum.Enum):
    """What became of a record. The value is the label of the metric."""

    ACKED = "acked"  # all in-sync replicas have it
    UNKNOWN = "unknown"  # timed out, cancelled, disconnected: it may be in the log, now or later; send it again
    TOPIC_REFUSED = "topic_refused"  # topic missing or not authorized: nothing goes to this topic for now
    RECORD_REFUSED = "record_refused"  # too large, or invalid by itself: others of the same topic may go through


class Result(NamedTuple):
    """The outcome of one record; ``code`` is Kafka's name of the error, ``reason`` a sentence for the log."""

    outcome: PublishOutcome
    code: str = ""
    reason: str = ""


class Producer(Protocol):
    """What the relay needs of a producer."""

    async def publish(self, records: Sequence[KafkaRecord]) -> list[Result]:
        """Send one batch and wait for every answer: one result per record, in the same order. Never raises for what
        a broker does. Bounded by its own time-out (what is not answered by then is UNKNOWN). Cancelling unsends
        nothing: all records of a cancelled call count as UNKNOWN. A refused record delays no other."""
        ...

    async def create_topics(self, names: Collection[str]) -> dict[str, str]:
        """Create topics; those that could not be created, with the reason. Existing ones are fine. Bounded in time;
        raises BrokerUnavailable."""
        ...

    def away(self) -> str | None:
        """Why the broker can't be reached now, in a sentence; None while it answers. Doesn't wait."""
        ...
