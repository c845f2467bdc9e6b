"""Topics: which of them can be published to, and creating those that are missing. On the asyncio side of the bridge.

Looking never creates, whatever the broker's ``auto.create.topics.enable`` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Final, cast

from penstock.errors import BrokerUnavailable
from penstock.kafka.client import Connections, make_admin
from penstock.kafka.results import NOT_CONNECTED, code_of, result_of

# One request for thousands of topics is a large answer; a broker's answer is bounded by aiokafka's buffers.
MAX_TOPICS_PER_REQUEST: Final = 500
DEFAULT_MAX_REPLICAS: Final = 3


async def describe(client: Connections, topics: Collection[str]) -> dict[str, str]:
    """The topics that can't be used: name → Kafka's name of the reason. With no topics it is a bare sign of life.

    Raises:
        KafkaError and others: no broker answers.
    """
    from aiokafka.errors import NodeNotReadyError, for_code
    from aiokafka.protocol.metadata import MetadataRequest

    names = sorted(topics)
    problems: dict[str, str] = {}
    for first in range(0, max(len(names), 1), MAX_TOPICS_PER_REQUEST):
        node = client.get_random_node()
        if node is None:
            raise NodeNotReadyError(NOT_CONNECTED)
        request = MetadataRequest(names[first : first + MAX_TOPICS_PER_REQUEST], allow_auto_topic_creation=False)
        answer = await client.send(node, request)
        for number, topic, *_ in cast("list[tuple[int, str, Any]]", answer.topics):
            if number:
                problems[topic] = code_of(cast(BaseException, for_code(number)()))
    return problems


async def create(
    options: Mapping[str, Any],
    topics: Collection[str],
    *,
    partitions: int,
    replicas: int,
    brokers: int,
    timeout_s: float,
) -> dict[str, str]:
    """Create topics; those that could not be: name → reason. One that exists already is fine.

    Args:
        partitions: of each topic.
        replicas: of each partition; 0 takes as many as there are brokers, at most 3.
        brokers: how many there are.

    Raises:
        BrokerUnavailable: no answer in time. Some of the topics may have been created.
    """
    from aiokafka.admin import NewTopic
    from aiokafka.errors import NoError, TopicAlreadyExistsError, for_code

    admin = make_admin(options, request_timeout_s=timeout_s)
    copies = replicas or max(1, min(brokers, DEFAULT_MAX_REPLICAS))
    wanted = [NewTopic(name, partitions, copies) for name in sorted(topics)]
    try:
        async with asyncio.timeout(timeout_s):
            await admin.start()
            answer = await admin.create_topics(wanted)
    except Exception as error:
        raise BrokerUnavailable(f"the Kafka topics could not be created: {result_of(error).reason}") from error
    finally:
        await admin.close()
    refused: dict[str, str] = {}
    for name, number, *message in cast("list[tuple[str, int, str]]", answer.topic_errors):
        error_type = for_code(number)
        if error_type not in (NoError, TopicAlreadyExistsError):
            refused[name] = f"{code_of(cast(BaseException, error_type()))}: {(message or [''])[0] or 'no reason given'}"
    return refused
