"""Real brokers: one per run for tests that leave it alone, one of its own for a test that kills it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Generator
from contextlib import contextmanager

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from tests.kafka.broker import KafkaBroker, is_warm
from tests.kafka.distribution import FETCH_TIMEOUT_S
from tests.kafka.topics import Topics

USERS = {"engine": "s3cret-of-the-engine"}
MAX_MESSAGE_BYTES = 100_000
COLD_TIMEOUT_S = 180 + FETCH_TIMEOUT_S
"""Of a test for which the broker may have to be fetched."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # On a new machine Maven, the archive and the first start took the 180 s that a test has: that ended its worker.
    if is_warm():
        return
    for item in items:
        if {"broker", "own_broker"}.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(COLD_TIMEOUT_S))


@contextmanager
def _left_as_found() -> Generator[None]:
    """`throttle` takes aiokafka's logger out of the tree; other tests want it back."""
    logger = logging.getLogger("aiokafka")
    before = (list(logger.handlers), logger.propagate)
    yield
    logger.handlers[:], logger.propagate = before


@pytest.fixture(autouse=True)
def aiokafka_logger() -> Generator[None]:
    with _left_as_found():
        yield


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Generator[KafkaBroker]:
    """The run's broker, with TLS and a user besides. Leave it running."""
    certificate = tmp_path_factory.mktemp("broker") / "broker.pem"
    issued = authority.issue_cert("127.0.0.1", "kafka.penstock.test")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # Kafka reads no other form
    certificate.write_bytes(pem + chain)
    properties = {"message.max.bytes": MAX_MESSAGE_BYTES}
    with KafkaBroker(users=USERS, certificate=certificate, properties=properties) as running:
        yield running


@pytest.fixture
def own_broker() -> Generator[KafkaBroker]:
    """A broker for this test alone: to be killed, paused and started again."""
    with KafkaBroker() as running:
        yield running


@pytest.fixture
def topics(broker: KafkaBroker) -> Topics:
    """Topics of this test, on the run's broker."""
    return Topics(broker.bootstrap, prefix=f"t-{uuid.uuid4().hex[:8]}")
