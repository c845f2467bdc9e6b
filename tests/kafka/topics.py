"""Topics of one test, made and read through a plain client: what is really in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import trio
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

READ_TIMEOUT_S = 20.0
KNOWN_TIMEOUT_S = 60.0


class Topics:
    def __init__(self, bootstrap: str, prefix: str = "t") -> None:
        self.bootstrap = bootstrap
        self.prefix = prefix

    async def make(self, name: str = "jobs", partitions: int = 1, **configs: str) -> str:
        """Create a topic; its full name."""
        topic = f"{self.prefix}.{name}"
        await self.make_all({topic: partitions}, **configs)
        return topic

    async def make_all(self, topics: Mapping[str, int], **configs: str) -> None:
        new = [
            NewTopic(name, count, 1, topic_configs={key.replace("_", "."): value for key, value in configs.items()})
            for name, count in topics.items()
        ]

        async def create() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await admin.start()
            try:
                answer: Any = await admin.create_topics(new)
                assert all(error[1] == 0 for error in answer.topic_errors), answer
                async with asyncio.timeout(KNOWN_TIMEOUT_S):  # created, but the brokers tell of it a moment later
                    while not all(known(topic) for topic in await admin.describe_topics(list(topics))):
                        await asyncio.sleep(0.02)
            finally:
                await admin.close()

        await in_thread(create)

    async def read(self, topic: str) -> list[Any]:
        """Every record of a topic, by partition and offset."""
        return await in_thread(read_all, self.bootstrap, topic)

    async def values(self, topic: str) -> list[bytes]:
        return [record.value for record in await self.read(topic)]


def known(topic: Mapping[str, Any]) -> bool:
    """Whether a broker's metadata have a leader for each partition."""
    partitions = topic["partitions"]
    return topic["error_code"] == 0 and all(each["error_code"] == 0 and each["leader"] >= 0 for each in partitions)


async def in_thread(function: Any, *arguments: object) -> Any:
    """Run an asyncio function in a loop and a thread of its own."""
    return await trio.to_thread.run_sync(lambda: asyncio.run(function(*arguments)))


async def read_all(bootstrap: str, topic: str) -> list[Any]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            partitions = [TopicPartition(topic, number) for number in await _partitions(consumer, topic)]
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            records: list[Any] = []
            while any([await consumer.position(each) < ends[each] for each in partitions]):
                for batch in (await consumer.getmany(timeout_ms=200)).values():
                    records += batch
            return sorted(records, key=lambda record: (record.partition, record.offset))
    finally:
        await consumer.stop()


async def _partitions(consumer: Any, topic: str) -> set[int]:
    while (found := consumer.partitions_for_topic(topic)) is None:
        with suppress(KafkaError):  # the controller has no word yet of a broker that goes on after a pause
            await consumer.topics()
        consumer._client.add_topic(topic)
        await consumer._client.force_metadata_update()
    return found
