"""What a worker makes of a record: a job, or a reason to skip it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.wire.model import Job
from penstock.worker.kafka_event import Poison, dispatch_of
from tests.kafka.dispatches import event, record

HEADERS = record().headers


def test_a_record_of_the_engine_is_its_job():
    made = record(7, job_payload='{"größe": 12345678901234567890, "none": null}'.encode())
    assert dispatch_of("t", made.value, made.headers) == (
        "d7",
        Job(
            id="j7",
            job_type="t",
            instance_id="i7",
            step_id="s",
            step_execution_id="j7",
            retries_remaining=3,
            variables={"größe": 12345678901234567890, "none": None},
            created_at=datetime(2026, 11, 21, tzinfo=UTC),
            attempt=1,
            idempotency_key="k7",
            definition_id="d",
            definition_version=2,
            business_key="b7",
        ),
    )


def test_a_trace_without_a_value_is_none():
    made = record(7)
    assert dispatch_of("t", made.value, (*made.headers, ("traceparent", None))).job.traceparent is None


def test_an_engine_that_sends_neither_attempt_nor_variables_is_understood():
    made = record(1, attempt=0, job_payload=b"", step_id="", created_at=None)
    job = dispatch_of("t", made.value, made.headers).job
    assert (job.attempt, job.variables, job.created_at) == (None, {}, None)


@pytest.mark.parametrize(
    ("value", "headers", "reason"),
    [
        (b"\xff\xff\xff", HEADERS, "can't be decoded"),
        (None, HEADERS, "schema version is 0"),
        (b"", HEADERS, "schema version is 0"),
        (record(schema_version=2).value, HEADERS, "schema version is 2, not 1"),
        (record().value, (), "content-type is ''"),
        (record().value, (("content-type", b"application/json"), HEADERS[1]), "content-type is 'application/json'"),
        (record().value, HEADERS[:1], "no dedup-id header"),
        (record().value, (("content-type", None), HEADERS[1]), "content-type is ''"),
        (record().value, (HEADERS[0], ("dedup-id", None)), "no dedup-id header"),
        (record(job_id="").value, HEADERS, "names no job"),
        (record(instance_id="").value, HEADERS, "names no job"),
        (record(job_type="other").value, HEADERS, "job type is 'other', in the topic of 't'"),
        (record(job_payload=b"[1]").value, HEADERS, "no JSON object"),
        (record(job_payload=b"{").value, HEADERS, "no JSON object"),
        (record(job_payload=b'{"a": "\xff"}').value, HEADERS, "no JSON object"),
        (record(job_payload=b"[" * 100_000).value, HEADERS, "no JSON object"),
    ],
)
def test_what_is_no_job_is_skipped_with_a_reason(value, headers, reason):
    with pytest.raises(Poison) as caught:
        dispatch_of("t", value, headers)
    assert reason in str(caught.value)


def test_the_event_of_the_tests_is_that_of_the_wire():
    assert event().schema_version == 1
