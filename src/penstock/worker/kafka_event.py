"""From a Kafka record to a job: the value is a ``workflow.v1.JobDispatchEvent``. Pure.

Relies on the pure message modules of `penstock.rpc`, which know no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from penstock.wire.codec import decode_message
from penstock.wire.model import Job
from penstock.wire.noun import Variables
from penstock.wire.protobuf import DecodeError
from penstock.wire.workflow_v1 import JobDispatchEvent

SCHEMA_VERSION: Final = 1
MESSAGE: Final = b"workflow.v1.JobDispatchEvent"

_variables = msgspec.json.Decoder(Variables)


class Poison(Exception):
    """A record that no job can be made of; the text says why."""


class Dispatch(NamedTuple):
    """A job that came through Kafka. ``dedup_id`` is the same for a record that was published again."""

    dedup_id: str
    job: Job


def dispatch_of(job_type: str, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> Dispatch:
    """Return the job in a record of a job type's topic. Headers may have no value: whoever may write to it may send
    these.

    Raises:
        Poison: a header is missing or another than expected, the value can't be decoded or is of another version.
    """
    named = {name: value or b"" for name, value in headers}
    content_type = named.get("content-type", b"")
    if MESSAGE not in content_type:
        raise Poison(f"its content-type is {content_type.decode(errors='replace')!r}, not that of a JobDispatchEvent")
    dedup_id = named.get("dedup-id", b"").decode(errors="replace")
    if not dedup_id:
        raise Poison("it has no dedup-id header")
    try:
        event = decode_message(value or b"", JobDispatchEvent)
    except DecodeError as error:
        raise Poison(f"its value can't be decoded: {error}") from error
    if event.schema_version != SCHEMA_VERSION:
        raise Poison(f"its schema version is {event.schema_version}, not {SCHEMA_VERSION}")
    if not (event.job_id and event.instance_id):
        raise Poison("it names no job or no instance")
    if event.job_type != job_type:
        raise Poison(f"its job type is {event.job_type!r}, in the topic of {job_type!r}")
    traceparent = named.get("traceparent", b"").decode("latin-1")
    return Dispatch(dedup_id, _job_of(event, traceparent or None))


def _job_of(event: JobDispatchEvent, traceparent: str | None) -> Job:
    variables: dict[str, Any] = {}
    if event.job_payload:
        try:
            variables = _variables.decode(event.job_payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Poison(f"its variables are no JSON object: {error}") from error
    return Job(
        id=event.job_id,
        job_type=event.job_type,
        instance_id=event.instance_id,
        step_id=event.step_id,
        step_execution_id=event.step_execution_id,
        retries_remaining=event.retries_remaining,
        variables=variables,
        created_at=event.created_at,
        attempt=event.attempt or None,
        idempotency_key=event.idempotency_key,
        definition_id=event.definition_id,
        definition_version=event.definition_version,
        business_key=event.business_key or None,
        traceparent=traceparent,
    )
