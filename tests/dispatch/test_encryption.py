"""Records of Kafka carry clear variables; those that can't be read wait, and nobody waits for them."""

from __future__ import annotations

import base64
import json

from penstock.settings import Secret
from penstock.testing.definitions import definition, end
from tests.dispatch.conftest import MakeKafka
from tests.shapes import task

LINE = definition(task("a"), end(), definition_id="line")
K1, K2 = (Secret(f"{name}={base64.b64encode(name.encode() * 16).decode()}") for name in ("k1", "k2"))


async def test_a_record_has_the_clear_variables(make_kafka: MakeKafka) -> None:
    kafka = make_kafka(encryption_keys=K1)
    await kafka.run(LINE, {"x": "s3kr1t"})
    assert "s3kr1t" not in str(kafka.rows("SELECT t::text FROM instance t"))
    await kafka.drain()
    (event,) = kafka.producer.sent
    assert json.loads(event.job_payload) == {"x": "s3kr1t"}


async def test_a_record_whose_key_is_missing_waits_alone(make_kafka: MakeKafka) -> None:
    await make_kafka(encryption_keys=K1).run(LINE, {"x": 1})
    other = make_kafka(encryption_keys=K2)
    readable = await other.start("line", {"x": 2})
    await other.drain()
    assert [event.instance_id for event in other.producer.sent] == [readable.id]
    assert len(other.outbox()) == 1
