"""Games of queues as in `tests/model`, with two engines in Kafka mode: jobs are admitted, published and answered."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from penstock.engine.requests.ids import show_instance, show_job
from penstock.kafka.admission import Admission
from tests.dispatch.conftest import KafkaDriver, MakeKafka
from tests.model.conftest import whole_scans
from tests.model.flow_games import FlowGame
from tests.model.flow_hands import Hands, Held, Taken, enable_sql

__all__ = ["whole_scans"]  # pytest finds the fixture here

WANTED = {
    "taken",
    "kept back",
    "complete",
    "fail",
    "release",
    "expire",
    "beat",
    "put",
    "drop",
    "pause",
    "batch",
    "fired",
}
OUTBOX = """SELECT j.name, o.instance_id, o.token_id, o.seq, o.attempt FROM dispatch_outbox o
  JOIN job_type j ON j.id = o.job_type WHERE j.name = ANY(%s) ORDER BY o.id"""


class KafkaHands(Hands):
    """A poll is a round of a relay: it admits whatever may begin, of all types, and publishes it."""

    publishes = True

    def __init__(self, engines: Sequence[KafkaDriver], source: random.Random) -> None:
        super().__init__(engines, source)
        self._kafka = engines

    async def polls(self, job_type: str, most: int, types: Sequence[str]) -> list[Taken]:
        driver = self.source.choice(self._kafka)
        async with driver.engine.database.connection() as connection:
            await Admission(driver.engine).run_once(connection)
        most = driver.engine.settings.outbox_batch_size
        taken: dict[str, Taken] = {}
        for name, instance, token, seq, attempt in driver.rows(OUTBOX, list(types)):
            shown = show_instance(instance)
            taken.setdefault(name, Taken(name, most, [])).instances.append(shown)
            self.held[shown] = Held(show_job(instance, token, seq), attempt)
        await driver.drain()
        assert driver.outbox() == []
        return [*taken.values(), *(Taken(name, most, []) for name in types if name not in taken)]

    async def hold(self, instance: str) -> None:
        await self.beat(instance)

    async def release(self, instance: str) -> None:
        await self.hold(instance)
        await super().release(instance)


async def test_limits_hold_for_what_is_published(make_kafka: MakeKafka) -> None:
    engines = [make_kafka(lease_expiry_limit=1_000) for _ in range(2)]
    enable_sql(engines[0])
    clock = engines[0].clock
    clock.stop()
    seen: Counter[str] = Counter()
    for seed in (30, 31):
        seen += await FlowGame(KafkaHands(engines, random.Random(seed)), clock, seed).play()
    assert {*seen} >= WANTED, seen
