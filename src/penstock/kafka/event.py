"""The record of one dispatched job: topic, key, headers, and the value that workers decode.

The value is `workflow.v1.JobDispatchEvent`, in the bytes that any client of that schema writes. Pure; must not read
the database or know a producer.
"""

from __future__ import annotations

from penstock.core.rules.topic import topic_of
from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.engine.requests import ids
from penstock.kafka.record import KafkaRecord
from penstock.store.rows.outbox import Outgoing
from penstock.wire.codec import encode_message
from penstock.wire.workflow_v1 import JobDispatchEvent

SCHEMA_VERSION = 1
CONTENT_TYPE = b"application/x-protobuf; proto=workflow.v1.JobDispatchEvent"


def record_of(row: Outgoing, loaded: LoadedDefinition, variables: bytes, traceparent: str | None = None) -> KafkaRecord:
    """Return the message of a row. The same row gives the same dedup id, by which workers know what came twice.

    The key is the instance: one partition per instance and type keeps their order.
    """
    step = loaded.definition.steps[row.step]
    job_id = ids.show_job(row.instance, row.token, row.seq)
    instance_id, job_type, dedup_id = ids.show_instance(row.instance), step.job_type or "", f"{row.id:x}"
    event = JobDispatchEvent(
        schema_version=SCHEMA_VERSION,
        dedup_id=dedup_id,
        job_id=job_id,
        instance_id=instance_id,
        step_execution_id=job_id,
        job_type=job_type,
        retries_remaining=max(0, step.retry_count - row.failures),
        job_payload=variables,
        created_at=row.entered_at,
        attempt=row.attempt,
        step_id=step.id,
        idempotency_key=ids.show_job(row.instance, row.token, row.entry),
        definition_id=loaded.definition.id,
        definition_version=loaded.version,
        business_key=row.business_key or "",
    )
    headers = [("content-type", CONTENT_TYPE), ("dedup-id", dedup_id.encode())]
    if traceparent is not None:
        headers.append(("traceparent", traceparent.encode()))
    return KafkaRecord(topic_of(job_type), instance_id.encode(), encode_message(event), tuple(headers))
