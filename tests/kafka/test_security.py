"""SASL over TLS against a real broker, and what is said when it doesn't fit: the cause, and never the password."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
import trustme

from penstock.errors import BrokerUnavailable
from penstock.kafka.producer import KafkaProducer
from penstock.kafka.record import KafkaRecord, PublishOutcome
from penstock.kafka.security import client_options, tls_context
from penstock.settings import KafkaTransport, SaslMechanism, Secret, Settings
from penstock.telemetry.metrics import Metrics
from tests.kafka.conftest import USERS

[(USER, PASSWORD)] = USERS.items()


@pytest.fixture
def ca_path(authority, tmp_path):
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


@pytest.fixture
def secured(broker, ca_path):
    def make(**changes: Any) -> Settings:
        values: dict[str, Any] = {
            "kafka_seed_brokers": (broker.sasl_bootstrap,),
            "kafka_transport": KafkaTransport.SASL_SCRAM_TLS,
            "kafka_sasl_username": USER,
            "kafka_sasl_password": Secret(PASSWORD),
            "kafka_tls_ca_path": str(ca_path),
            "kafka_connect_timeout_seconds": 5,
        }
        return Settings(**(values | changes))

    return make


async def publish(settings: Settings, topic: str) -> PublishOutcome:
    producer = KafkaProducer(settings, Metrics("test"))
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: producer.run(task_status=task_status))
        [result] = await producer.publish([KafkaRecord(topic, b"key", b"value", ())])
        nursery.cancel_scope.cancel()
    return result.outcome


async def refusal(settings: Settings) -> str:
    with pytest.raises(BrokerUnavailable) as caught:
        await KafkaProducer(settings, Metrics("test")).run()
    return caught.value.reason


@pytest.mark.kafka
@pytest.mark.parametrize("mechanism", SaslMechanism)
async def test_scram_over_tls_publishes(secured, topics, mechanism, caplog):
    caplog.set_level(logging.DEBUG)
    topic = await topics.make()
    assert await publish(secured(kafka_sasl_mechanism=mechanism), topic) is PublishOutcome.ACKED
    assert await topics.values(topic) == [b"value"]
    assert PASSWORD not in caplog.text


@pytest.mark.kafka
async def test_the_certificate_may_carry_another_name_than_the_address(secured, topics):
    topic = await topics.make()
    assert await publish(secured(kafka_tls_server_name="kafka.penstock.test"), topic) is PublishOutcome.ACKED
    reason = await refusal(secured(kafka_tls_server_name="other.penstock.test"))
    assert "other.penstock.test" in reason


@pytest.mark.kafka
async def test_a_wrong_password_is_said_and_not_shown(secured, caplog):
    caplog.set_level(logging.DEBUG)
    reason = await refusal(secured(kafka_sasl_password=Secret("wr0ng-one")))
    assert "SaslAuthenticationFailed" in reason or "Authentication failed" in reason
    assert "wr0ng-one" not in reason + caplog.text


@pytest.mark.kafka
async def test_a_broker_of_another_authority_is_refused(secured, tmp_path):
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    assert "certificate verify failed" in await refusal(secured(kafka_tls_ca_path=str(other)))


@pytest.mark.kafka
async def test_plaintext_to_a_port_that_speaks_tls_ends_in_time(broker):
    reason = await refusal(Settings(kafka_seed_brokers=(broker.sasl_bootstrap,), kafka_connect_timeout_seconds=2))
    assert broker.sasl_bootstrap in reason


def test_a_ca_file_that_is_none_is_named(tmp_path):
    missing = tmp_path / "missing.pem"
    with pytest.raises(BrokerUnavailable, match=r"WE_KAFKA_TLS_CA_PATH: .*missing\.pem: No such file"):
        tls_context(str(missing), None)
    missing.write_text("no certificate")
    with pytest.raises(BrokerUnavailable, match="WE_KAFKA_TLS_CA_PATH"):
        tls_context(str(missing), "name")


def test_without_a_ca_file_the_systems_authorities_count():
    context = tls_context(None, None)
    assert context.verify_mode.name == "CERT_REQUIRED"
    assert context.check_hostname


def test_plaintext_carries_no_credentials():
    settings = Settings(kafka_seed_brokers=("a:1", "b:2"), kafka_sasl_password=Secret("x"))
    assert client_options(settings) == {"bootstrap_servers": ["a:1", "b:2"], "client_id": "penstock"}
