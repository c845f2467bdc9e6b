"""Kafka mode around the relay: the producer, the check of the topics at start, wake-ups, and the order of a stop.

Only made in mode `kafka_outbox`. There is no fallback: without a broker, or with a topic missing, the engine does not
start; once it runs, a broker that goes away only degrades it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final

import trio

from penstock.core.rules.topic import topic_of, topic_problem
from penstock.engine.engine import Engine
from penstock.errors import PenstockError
from penstock.kafka.leadership import Leadership
from penstock.kafka.producer import KafkaProducer
from penstock.kafka.relay import Relay
from penstock.log.log import get_logger
from penstock.runtime.membership import Membership
from penstock.runtime.supervise import Supervisor
from penstock.store.rows import outbox as store

PRODUCER = "kafka producer"
FINISH_TIMEOUT_S: Final = 2.0
"""How long the batch under way may take at the end; then its rows are published again by the next relay."""
SHOWN_MAX: Final = 20

log = get_logger(__name__)


class TopicsMissing(PenstockError):
    """Jobs have no topic to go to."""


class KafkaDispatcher:
    """One engine's part in dispatching jobs through Kafka."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._producer = KafkaProducer(engine.settings, engine.metrics)
        self._leadership = Leadership(engine.database, self._on_leading)
        self._relay = Relay(engine, self._producer, self._leadership)
        self._new_topics: set[str] = set()
        self._uploaded = trio.Event()

    async def start(self, supervisor: Supervisor) -> None:
        """Connect and look at the topics. Raises BrokerUnavailable and TopicsMissing."""
        topics = await self.topics_needed()
        await supervisor.start(PRODUCER, self._producer.run)
        await self._check_topics(topics)

    def wire(self, membership: Membership) -> None:
        """Let everything that writes rows wake the relay: here at once, elsewhere through NOTIFY."""
        events = self._engine.events
        events.queued.listen(self._relay.wake_for)
        events.uploaded.listen(self._on_uploaded)
        events.queued_elsewhere.listen(self._relay.wake)
        events.migrated.listen(self._relay.wake)
        membership.relays_here = self._leadership.leads

    def steps(self) -> dict[str, Callable[[], Awaitable[object]]]:
        """Return the services, by name."""
        steps: dict[str, Callable[[], Awaitable[object]]] = {
            "relay election": self._leadership.step,
            "relay": self._relay.step,
            "relay retries": self._relay.retry_step,
        }
        if self._engine.settings.kafka_create_topics:
            steps["topics"] = self._create_new_topics
        return steps

    def degraded(self) -> list[str]:
        """What is away although the engine serves, for `/readyz`."""
        return [] if self._producer.away() is None else ["kafka"]

    async def finish(self) -> None:
        """Take nothing more from the outbox; the batch under way is waited for."""
        await self._relay.finish(FINISH_TIMEOUT_S)

    async def stop(self, supervisor: Supervisor) -> None:
        """End the producer, last: what the flushers wrote may be under way in it."""
        await supervisor.stop(PRODUCER)

    def _on_leading(self, leads: bool) -> None:
        self._engine.metrics.relay_leader.set(int(leads))
        if leads:
            self._relay.wake()

    def _on_uploaded(self, job_types: Collection[str]) -> None:
        self._new_topics.update(topic_of(name) for name in job_types)
        self._uploaded.set()

    async def _create_new_topics(self) -> None:
        """One round of the service: workers that subscribe before the first job shall find their topic."""
        await self._uploaded.wait()
        self._uploaded = trio.Event()
        topics, self._new_topics = self._new_topics, set()
        try:
            failed = await self._producer.create_topics(topics)
        except PenstockError as error:  # the relay creates them when it meets their jobs
            failed = dict.fromkeys(topics, error.reason)
        if failed:
            log.warning("kafka topics could not be created", topics=failed)

    async def topics_needed(self) -> list[str]:
        """Return the topics of all job types in use. Raises TopicsMissing for job types that no topic can be named
        after."""
        async with self._engine.database.connection(ahead=True) as connection:
            job_types = await store.dispatched_types(connection)
        unnameable = [name for name in job_types if topic_problem(name) is not None]
        if unnameable:
            raise TopicsMissing(
                f"job types that can't be names of Kafka topics are in use: {_listed(unnameable)}. In polling mode, let"
                " their jobs end and upload versions without them."
            )
        return [topic_of(name) for name in job_types]

    async def _check_topics(self, topics: list[str]) -> None:
        missing = await self._producer.missing_topics(topics)
        if missing and self._engine.settings.kafka_create_topics:
            failed = await self._producer.create_topics(missing)
            if failed:
                name, reason = next(iter(failed.items()))
                raise TopicsMissing(f"Kafka topics could not be created: {_listed(list(failed))}. '{name}': {reason}")
            log.info("kafka topics created", topics=missing)
        elif missing:
            raise TopicsMissing(
                f"Kafka topics are missing: {_listed(missing)}. Create them, or set WE_KAFKA_CREATE_TOPICS=true."
            )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(f"'{name}'" for name in names[:SHOWN_MAX]) + more
