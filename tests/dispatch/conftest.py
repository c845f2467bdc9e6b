"""Engines in Kafka mode on a real database, with a relay that the test drives. Invariants are checked after each."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from penstock.kafka.relay import Relay
from penstock.settings import DispatchMode
from tests.dispatch.fake_producer import FakeProducer
from tests.engine.conftest import MakeDriver, driver, make_driver
from tests.engine.driver import Driver

__all__ = ["driver", "make_driver"]  # pytest finds the fixtures here


class Leading:
    """A leadership that the test decides."""

    def __init__(self) -> None:
        self.trusted = True

    def leads(self) -> bool:
        return self.trusted

    async def wait_leading(self) -> None:
        assert self.trusted


class KafkaDriver(Driver):
    """An engine in Kafka mode and its relay."""

    relay: Relay
    producer: FakeProducer
    leading: Leading

    async def drain(self) -> int:
        """Publish until nothing is left that can be; how many rows were looked at."""
        self.relay.wake()
        done = 0
        while found := await self.relay.run_once():
            done += found
        return done

    def outbox(self) -> list[tuple[int, int, int]]:
        """(token, seq, attempt) of the rows, in order."""
        return self.rows("SELECT token_id, seq, attempt FROM dispatch_outbox ORDER BY id")

    def states(self) -> list[tuple[int, int]]:
        """(state, attempt) of the tokens."""
        return self.rows("SELECT state, attempt FROM token ORDER BY id")


MakeKafka = Callable[..., KafkaDriver]


@pytest.fixture
def make_kafka(make_driver: MakeDriver) -> Generator[MakeKafka]:
    """Makes engines in Kafka mode."""
    drivers: list[KafkaDriver] = []

    def make(number: int | None = None, **settings: object) -> KafkaDriver:
        settings = {"kafka_seed_brokers": ("localhost:1",), **settings}
        plain = make_driver(number, dispatch_mode=DispatchMode.KAFKA_OUTBOX, **settings)
        driver = KafkaDriver(plain.engine, plain.dsn)
        driver.producer, driver.leading = FakeProducer(), Leading()
        driver.relay = Relay(driver.engine, driver.producer, driver.leading)  # type: ignore[arg-type]
        drivers.append(driver)
        return driver

    yield make
    for made in drivers:
        made.close()


@pytest.fixture
def kafka(make_kafka: MakeKafka) -> KafkaDriver:
    """One engine in Kafka mode."""
    return make_kafka()
