"""Records as an engine publishes them, and those that it never would."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.core.rules.topic import topic_of
from penstock.kafka.event import CONTENT_TYPE
from penstock.kafka.record import KafkaRecord
from penstock.wire.codec import encode_message
from penstock.wire.model import Job, JobRef
from penstock.wire.workflow_v1 import JobDispatchEvent
from penstock.worker.kafka_event import Dispatch


def event(number: int = 1, job_type: str = "t", **changes: Any) -> JobDispatchEvent:
    plain = JobDispatchEvent(
        schema_version=1,
        dedup_id=f"d{number}",
        job_id=f"j{number}",
        instance_id=f"i{number}",
        step_execution_id=f"j{number}",
        step_id="s",
        job_type=job_type,
        retries_remaining=3,
        attempt=1,
        job_payload=b'{"n": %d}' % number,
        created_at=datetime(2026, 11, 21, tzinfo=UTC),
        idempotency_key=f"k{number}",
        definition_id="d",
        definition_version=2,
        business_key=f"b{number}",
    )
    return msgspec.structs.replace(plain, **changes)


def record(number: int = 1, job_type: str = "t", **changes: Any) -> KafkaRecord:
    made = event(number, job_type, **changes)
    headers = (("content-type", CONTENT_TYPE), ("dedup-id", made.dedup_id.encode()))
    return KafkaRecord(topic_of(job_type), made.instance_id.encode(), encode_message(made), headers)


def dispatch(number: int, instance: str | None = None, attempt: int = 1, dedup_id: str | None = None) -> Dispatch:
    job = Job(id=f"j{number}", job_type="t", instance_id=instance or f"i{number}", attempt=attempt)
    return Dispatch(dedup_id or f"d{number}", job)


def ref(number: int, attempt: int = 1) -> JobRef:
    return JobRef(job_id=f"j{number}", attempt=attempt)
