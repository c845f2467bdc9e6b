"""One job type's consumer against a Kafka client that fails in ways a broker rarely does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from penstock.client.backoff import RetryPauses
from penstock.worker import kafka_consumer
from penstock.worker.kafka_consumer import JobConsumer

MADE = 6


class NotAllowed:
    """Starts well, and may not read."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def getmany(self, *, timeout_ms: int, max_records: int) -> Mapping[Any, list[Any]]:
        raise PermissionError("not authorized")

    async def commit(self, offsets: Mapping[Any, int]) -> None: ...

    def subscribe(self, topics: Collection[str], *, listener: object) -> None: ...

    def assignment(self) -> Collection[Any]:
        return ()

    def highwater(self, partition: Any) -> int | None: ...


def test_a_failing_consumer_is_made_again_with_growing_pauses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    resets: list[None] = []

    class Impatient(RetryPauses):
        def next_pause_s(self, error: object = None) -> float:
            return 0.0

        def reset(self) -> None:
            resets.append(None)

    monkeypatch.setattr(kafka_consumer, "RetryPauses", Impatient)
    caplog.set_level(logging.WARNING, logger="penstock.worker")
    made = 0

    def make(_group: str) -> NotAllowed:
        nonlocal made
        made += 1
        if made == MADE:
            consumer.stop()
        return NotAllowed()

    consumer = JobConsumer("t", make, lambda: None)
    asyncio.run(asyncio.wait_for(consumer.run(), 20))
    assert (made, resets) == (MADE, [])
    assert caplog.messages == ["no t jobs from Kafka: not authorized"]
