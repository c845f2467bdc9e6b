"""One life of an aiokafka producer, on the asyncio side of the bridge: connect, publish batches, look at topics.

A session ends at the first trouble that its producer doesn't come out of by itself: an idempotent producer never gives
up a record, so what timed out would be sent some day, after records that came later. `producer.py` then begins a new
one. Every wait here is bounded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from penstock.errors import BrokerUnavailable
from penstock.kafka.client import KafkaSender, NoBroker, abandon, find_broker, make_sender
from penstock.kafka.record import KafkaRecord, PublishOutcome, Result
from penstock.kafka.results import MESSAGE_TOO_LARGE, TIMED_OUT, refusal, result_of
from penstock.kafka.topics import create, describe
from penstock.settings import Settings

# How long a look at a topic may take: metadata of a broker that answers takes milliseconds.
METADATA_TIMEOUT_S: Final = 1.0
METADATA_PAUSE_S: Final = 0.02
# Without any ack in this time, while others of the batch were acked, a topic is given up.
STRAGGLER_S: Final = 2.0
PROBE_TIMEOUT_S: Final = 2.0
STOP_TIMEOUT_S: Final = 1.0
# A size that the broker refused for a topic is refused here for so long, without asking.
LIMIT_KEPT_S: Final = 60.0
# What a record's value gets around it: key, headers, lengths and the batch's own head.
RECORD_OVERHEAD_BYTES: Final = 256

Limits = MutableMapping[str, tuple[int, float]]
"""By topic: the size in bytes that a broker refused, and until when that is believed (monotonic seconds)."""


class Published(NamedTuple):
    """What became of a batch. ``spent``: the session must not be used any more."""

    results: list[Result]
    spent: bool


class KafkaSession:
    """A connected producer. Made by ``open``; everything runs in the bridge's loop.

    Args:
        options: aiokafka's, from `security.client_options`.
        limits: kept over sessions by the owner.
    """

    def __init__(self, sender: KafkaSender, settings: Settings, options: dict[str, Any], limits: Limits) -> None:
        self._sender = sender
        self._client = sender.client
        self._settings = settings
        self._options = options
        self._timeout_s = settings.kafka_publish_timeout_seconds
        self._limits = limits
        self._tracked: set[str] = set()
        self._spent = False

    @classmethod
    async def open(cls, settings: Settings, options: dict[str, Any], limits: Limits) -> KafkaSession:
        """Connect: a broker answered, the credentials were taken, an idempotent producer's id was given.

        Raises:
            BrokerUnavailable: none did in time; the text names brokers and causes.
        """
        timeout_s = settings.kafka_connect_timeout_seconds
        try:
            found = await find_broker(options, timeout_s)
        except NoBroker as error:
            raise BrokerUnavailable(f"{_unusable(settings)}: {error}") from error
        sender = make_sender(
            options | {"bootstrap_servers": [found]},
            request_timeout_s=settings.kafka_publish_timeout_seconds,
            max_record_bytes=settings.kafka_max_record_bytes,
        )
        try:
            async with asyncio.timeout(timeout_s):
                await sender.start()
        except Exception as error:
            abandon(sender)
            reason = result_of(error).reason
            raise BrokerUnavailable(
                f"{_unusable(settings)}: {found} answers, but not as a cluster: {reason}"
            ) from error
        return cls(sender, settings, options, limits)

    async def close(self) -> None:
        """Disconnect; the loop must end then. Waits for nothing that is not acknowledged."""
        if self._spent:
            abandon(self._sender)
            return
        stopping = asyncio.ensure_future(self._sender.stop())
        await asyncio.wait([stopping], timeout=STOP_TIMEOUT_S)
        if not stopping.done():
            stopping.cancel()

    async def answers(self) -> bool:
        """Return whether a broker answers now."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await describe(self._client, ())
        except Exception:
            return False
        return True

    async def describe(self, topics: Collection[str]) -> dict[str, str]:
        """The topics that can't be used: name → Kafka's name of the reason.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await describe(self._client, topics)
        except Exception as error:
            raise BrokerUnavailable(f"the Kafka topics could not be read: {result_of(error).reason}") from error

    async def create(self, topics: Collection[str]) -> dict[str, str]:
        """See `topics.create`."""
        return await create(
            self._options,
            topics,
            partitions=self._settings.kafka_topic_partitions,
            replicas=self._settings.kafka_topic_replicas,
            brokers=len(self._client.cluster.brokers()),
            timeout_s=self._timeout_s,
        )

    # -- publishing

    async def publish(self, records: Sequence[KafkaRecord]) -> Published:
        """Send a batch; one result per record, in order. Never raises; takes the time-out at most (+ 1 s)."""
        results: list[Result | None] = [None] * len(records)
        by_topic: dict[str, list[int]] = {}
        for index, record in enumerate(records):
            by_topic.setdefault(record.topic, []).append(index)
        for topic, result in (await self._refused(by_topic)).items():
            for index in by_topic.pop(topic):
                results[index] = result
        # A task per topic: a partition whose buffer is full holds up its own topic only.
        tasks = {asyncio.create_task(self._publish_topic(indexes, records, results)) for indexes in by_topic.values()}
        try:
            pending = await self._wait(tasks, results)
        except asyncio.CancelledError:
            self._spent = True
            raise
        if pending:
            self._spent = True
            await asyncio.gather(*pending, return_exceptions=True)
            for indexes in by_topic.values():
                self._give_up(indexes, results)
        return Published([result or _timed_out() for result in results], self._spent)

    async def _wait(self, tasks: set[asyncio.Task[None]], results: Sequence[Result | None]) -> set[asyncio.Task[None]]:
        """Wait for the topics; those that were given up, cancelled."""
        deadline = time.monotonic() + self._timeout_s
        pending = tasks
        try:
            while pending:
                before = sum(result is not None for result in results)
                left_s = deadline - time.monotonic()
                _, pending = await asyncio.wait(pending, timeout=min(STRAGGLER_S, max(left_s, 0)))
                settled = [result for result in results if result is not None]
                stuck = len(settled) == before and any(result.outcome is PublishOutcome.ACKED for result in settled)
                if stuck or time.monotonic() >= deadline:
                    break
        finally:
            for task in pending:
                task.cancel()
        return pending

    async def _publish_topic(
        self, indexes: Sequence[int], records: Sequence[KafkaRecord], results: list[Result | None]
    ) -> None:
        sent: list[tuple[int, asyncio.Future[object]]] = []
        for index in indexes:
            record = records[index]
            if (refused := self._too_large(record)) is not None:
                results[index] = refused
                continue
            try:
                future = await self._sender.send(record.topic, record.value, record.key, headers=list(record.headers))
            except Exception as error:
                results[index] = self._failed(record, error)
            else:
                sent.append((index, future))
        for index, future in sent:
            if not future.done():  # acks come per partition: few of these wait
                await asyncio.wait([future])
            cause = future.exception()
            results[index] = _ACKED if cause is None else self._failed(records[index], cause)

    def _failed(self, record: KafkaRecord, error: BaseException) -> Result:
        # An idempotent producer numbers what it sends to a partition. A batch that failed leaves a gap, and the broker
        # refuses everything after it; aiokafka 0.14 does not begin a new epoch then, as Java's client does.
        self._spent = True
        result = result_of(error)
        if result.code == MESSAGE_TOO_LARGE:
            self._limits[record.topic] = (_size_of(record), time.monotonic() + LIMIT_KEPT_S)
        return result

    def _too_large(self, record: KafkaRecord) -> Result | None:
        size = _size_of(record)
        refused_size, until = self._limits.get(record.topic, (0, 0.0))
        if size > self._settings.kafka_max_record_bytes:
            reason = f"not sent: {size} bytes, over kafka_max_record_bytes ({self._settings.kafka_max_record_bytes})"
        elif until > time.monotonic() and size >= refused_size:
            reason = f"not sent: {size} bytes; the broker refused {refused_size} for this topic"
        else:
            return None
        return refusal(MESSAGE_TOO_LARGE, reason)

    def _give_up(self, indexes: Sequence[int], results: list[Result | None]) -> None:
        """Say what became of the records of a topic that was given up, or ended with an error of its own."""
        some_acked = any(result is not None and result.outcome is PublishOutcome.ACKED for result in results)
        own_acked = any(
            (result := results[index]) is not None and result.outcome is PublishOutcome.ACKED for index in indexes
        )
        lost = _timed_out()
        if some_acked and not own_acked:
            reason = f"not acknowledged within {STRAGGLER_S} s, while other topics were"
            lost = Result(PublishOutcome.TOPIC_REFUSED, TIMED_OUT, reason)
        for index in indexes:
            if results[index] is None:
                results[index] = lost

    # -- topics

    async def _refused(self, topics: Collection[str]) -> dict[str, Result]:
        """Those of the topics that nothing can be sent to now. aiokafka's own wait for a missing one takes 40 s."""
        new = [topic for topic in topics if self._client.cluster.partitions_for_topic(topic) is None]
        if not new:
            return {}
        try:
            async with asyncio.timeout(METADATA_TIMEOUT_S):
                problems = await describe(self._client, new)
        except Exception as error:
            return dict.fromkeys(new, result_of(error))
        refused = {topic: refusal(code, f"not sent: topic {topic}: {code}") for topic, code in problems.items()}
        self._track([topic for topic in new if topic not in refused], dropped=refused)
        with suppress(TimeoutError):
            async with asyncio.timeout(METADATA_TIMEOUT_S):
                while self._unknown(new, refused):
                    if not await self._client.force_metadata_update():
                        await asyncio.sleep(METADATA_PAUSE_S)
        for topic in self._unknown(new, refused):
            refused[topic] = refusal("LEADER_NOT_AVAILABLE", f"not sent: topic {topic} has no leader yet")
        return refused

    def _unknown(self, topics: Sequence[str], refused: Collection[str]) -> list[str]:
        known = self._client.cluster.partitions_for_topic
        return [topic for topic in topics if topic not in refused and known(topic) is None]

    def _track(self, topics: Sequence[str], *, dropped: Collection[str]) -> None:
        """Keep the metadata of these fresh; and not of those, whose mere mention may create them on some brokers."""
        if not self._tracked.isdisjoint(dropped):
            self._tracked.difference_update(dropped)
            self._client.set_topics(set(self._tracked))
        for topic in topics:
            self._tracked.add(topic)
            self._client.add_topic(topic)


_ACKED: Final = Result(PublishOutcome.ACKED)


def _unusable(settings: Settings) -> str:
    return f"no Kafka broker can be used (WE_KAFKA_SEED_BROKERS: {', '.join(settings.kafka_seed_brokers)})"


def _timed_out() -> Result:
    return Result(PublishOutcome.UNKNOWN, TIMED_OUT, "no acknowledgement in time")


def _size_of(record: KafkaRecord) -> int:
    return len(record.value) + len(record.key) + RECORD_OVERHEAD_BYTES
