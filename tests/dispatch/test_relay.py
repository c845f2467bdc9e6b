"""What the relay decides: in what order it marks, publishes and deletes, and what it does about every answer."""

from __future__ import annotations

import msgspec
import psycopg
import pytest
import trio
import trio.testing

from penstock.core.rules.topic import topic_of
from penstock.errors import LeaseLost
from penstock.kafka import relay
from penstock.kafka.record import Result
from penstock.runtime.dispatch_migration import DispatchMigration
from penstock.runtime.housekeeping import Housekeeping
from penstock.testing.definitions import definition, end, service
from penstock.wire.model import Completion, Failure, Heartbeat
from penstock.wire.workflow_v1 import JobDispatchEvent
from penstock.worker.kafka_event import dispatch_of
from tests.dispatch.conftest import KafkaDriver, MakeKafka
from tests.dispatch.fake_producer import ACKED, NO_TOPIC, TOO_LARGE, UNKNOWN, event_of
from tests.engine.conftest import MakeDriver
from tests.engine.driver import number
from tests.engine.test_traces import CALLER, Recorded, span_id
from tests.shapes import parallel, task

LINE = definition(task("a", "b"), task("b", retryCount=3), end(), definition_id="line")
READY, LOCKED, BACKOFF, DISPATCHED = 0, 1, 4, 5


def done(event: JobDispatchEvent, worker: str = "w", **fields: object) -> Completion:
    return Completion(job_id=event.job_id, worker_id=worker, variables=b"{}", **fields)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a stand-in


def failed(event: JobDispatchEvent, worker: str = "w", **fields: object) -> Failure:
    return Failure(job_id=event.job_id, worker_id=worker, retryable=True, error_message="boom", **fields)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a stand-in


async def test_a_started_job_is_published_with_all_a_worker_needs(kafka: KafkaDriver) -> None:
    await kafka.upload(LINE)
    instance = (await kafka.start("line", {"x": 1}, business_key="order-7")).id
    ((token, seq, _),) = kafka.outbox()
    ((row, created),) = kafka.rows("SELECT o.id, entered_at FROM dispatch_outbox o, token")
    assert kafka.states() == [(READY, 0)]

    await kafka.drain()

    (record,) = kafka.producer.batches[0]
    job_id = f"{number(instance):x}-{token:x}-{seq:x}"
    assert record.topic == "workflow.jobs.a"
    assert record.key == instance.encode()
    assert dict(record.headers) == {
        "content-type": b"application/x-protobuf; proto=workflow.v1.JobDispatchEvent",
        "dedup-id": f"{row:x}".encode(),
    }
    assert event_of(record) == JobDispatchEvent(
        schema_version=1,
        dedup_id=f"{row:x}",
        job_id=job_id,
        instance_id=instance,
        step_execution_id=job_id,
        job_type="a",
        retries_remaining=0,
        job_payload=b'{"x": 1}',
        created_at=created,
        attempt=1,
        step_id="a",
        idempotency_key=job_id,
        definition_id="line",
        definition_version=1,
        business_key="order-7",
    )
    assert kafka.outbox() == []
    assert kafka.states() == [(DISPATCHED, 1)]
    assert kafka.rows("SELECT lease_until - claimed_at BETWEEN '1799 s' AND '1801 s', claimed_by FROM token") == [
        (True, None)
    ]
    assert kafka.rows("SELECT kind, step, detail FROM audit WHERE kind LIKE 'DISP%%'") == [
        ("DISPATCHED_VIA_BROKER", 0, f"attempt 1, dedup-id {row:x}")
    ]
    assert kafka.rows("SELECT count(*) FROM ready") == [(0,)]


async def test_a_record_goes_on_with_the_trace_of_its_instance(make_kafka: MakeKafka) -> None:
    recorded = Recorded()
    kafka = make_kafka(spans=recorded.spans)
    await kafka.upload(LINE)
    with recorded.calling(CALLER):
        await kafka.start("line")
    await kafka.start("line")
    await kafka.drain()
    (traced, plain) = kafka.producer.batches[0]
    (span,) = recorded.of("PRODUCER")
    job = dispatch_of("a", traced.value, traced.headers).job
    assert job.traceparent == f"{CALLER[:36]}{span_id(span)}-01"
    assert span.name == "publish a"
    assert "traceparent" not in dict(plain.headers)


async def test_a_retried_instances_job_is_published_under_its_first_key(kafka: KafkaDriver) -> None:
    instance = await kafka.run(LINE)
    await kafka.drain()
    first = event_of(kafka.producer.batches[0][0])
    await kafka.engine.jobs.fail(msgspec.structs.replace(failed(first), retryable=False))
    await kafka.retry(instance)
    await kafka.drain()
    second = event_of(kafka.producer.batches[1][0])
    assert second.job_id != first.job_id
    assert second.idempotency_key == first.idempotency_key == first.job_id


async def test_a_handlers_job_is_told_what_it_undoes(kafka: KafkaDriver) -> None:
    body = definition(
        task("flight", "card", compensation={"jobType": "cancel-flight"}), task("card"), end(), onFailure="COMPENSATE"
    )
    await kafka.run(body, {"x": 1})
    await kafka.drain()
    booked = done(kafka.producer.log[0])
    await kafka.engine.jobs.complete(msgspec.structs.replace(booked, variables=b'{"seat": "1A"}'))
    await kafka.drain()
    await kafka.engine.jobs.fail(msgspec.structs.replace(failed(kafka.producer.log[1]), retryable=False))
    await kafka.drain()
    event = kafka.producer.log[2]
    assert (event.job_type, event.step_id) == ("cancel-flight", "flight/compensation")
    reported = {"stepId": "flight", "output": {"seat": "1A"}}
    assert msgspec.json.decode(event.job_payload) == {"x": 1, "seat": "1A", "compensating": reported}


async def test_items_are_told_their_own_and_that_is_kept(kafka: KafkaDriver) -> None:
    each = {"items": "${[5, 6]}", "as": "n", "collect": "${result.price}", "into": "prices"}
    body = definition(task("price", forEach=each), end(), definition_id="each", recordAttempts=True)
    await kafka.upload(body)
    instance = (await kafka.start("each", {"x": 1})).id
    await kafka.drain()
    reported = [event_of(record) for record in kafka.producer.batches[0]]
    assert [msgspec.json.decode(event.job_payload) for event in reported] == [{"x": 1, "n": 5}, {"x": 1, "n": 6}]
    for price, event in enumerate(reported):
        (attempt,) = await kafka.engine.attempts.of(event.job_id)
        assert attempt.parameters is not None
        assert msgspec.json.decode(attempt.parameters) == msgspec.json.decode(event.job_payload)
        await kafka.engine.jobs.complete(msgspec.structs.replace(done(event), variables=b'{"price":%d}' % price))
    assert await kafka.status(instance) == "COMPLETED"
    assert (await kafka.variables(instance))["prices"] == [0, 1]


async def test_every_job_of_a_run_goes_through_the_outbox(kafka: KafkaDriver) -> None:
    instance = await kafka.run(LINE)
    await kafka.drain()
    await kafka.engine.jobs.complete(done(kafka.producer.log[0]))
    assert kafka.states() == [(READY, 0)]
    await kafka.drain()
    await kafka.engine.jobs.complete(done(kafka.producer.log[1], worker="another"))
    assert await kafka.status(instance) == "COMPLETED"
    assert [event.step_id for event in kafka.producer.sent] == ["a", "b"]
    assert kafka.outbox() == []


async def test_a_retry_is_published_under_a_new_dedup_id(kafka: KafkaDriver) -> None:
    await kafka.run(definition(task("b", retryCount=3), end()))
    await kafka.drain()
    await kafka.engine.jobs.fail(failed(kafka.producer.log[0]))
    assert kafka.states() == [(READY, 1)]
    assert [attempt for *_, attempt in kafka.outbox()] == [2]
    await kafka.drain()
    first, second = kafka.producer.log
    assert (first.job_id, first.attempt, first.retries_remaining) == (second.job_id, 1, 3)
    assert (second.attempt, second.retries_remaining) == (2, 2)
    assert first.dedup_id != second.dedup_id


async def test_a_job_in_back_off_gets_its_row_on_time(kafka: KafkaDriver) -> None:
    await kafka.run(definition(task("b", retryCount=1), end()))
    await kafka.drain()
    await kafka.engine.jobs.fail(failed(kafka.producer.log[0], retry_after_s=60.0))
    assert (kafka.states(), kafka.outbox()) == ([(BACKOFF, 1)], [])
    assert await kafka.due(61) == 1
    await kafka.drain()
    assert [event.attempt for event in kafka.producer.log] == [1, 2]


async def test_wide_starts_forks_and_retried_instances_write_rows(kafka: KafkaDriver) -> None:
    instance = await kafka.run(parallel(task("l"), task("r")))
    await kafka.drain()
    assert sorted(event.step_id for event in kafka.producer.log) == ["l", "r"]
    left = next(event for event in kafka.producer.log if event.step_id == "l")
    await kafka.engine.jobs.fail(Failure(job_id=left.job_id, worker_id="w", retryable=False, error_message="no"))
    assert await kafka.status(instance) == "FAILED"
    assert await kafka.drain() == 0
    await kafka.retry(instance)
    await kafka.drain()
    assert sorted(event.step_id for event in kafka.producer.log[2:]) == ["l", "r"]


async def test_a_completion_before_the_ack_applies_and_removes_the_row(
    kafka: KafkaDriver, nursery: trio.Nursery
) -> None:
    instance = await kafka.run(LINE)
    kafka.producer.gate = trio.Event()
    nursery.start_soon(kafka.drain)
    await kafka.producer.called.wait()
    assert len(kafka.outbox()) == 1  # published, not acked
    await kafka.engine.jobs.complete(done(kafka.producer.sent[0]))
    assert await kafka.open_steps(instance) == ["b"]
    assert [attempt for *_, attempt in kafka.outbox()] == [1, 1]
    kafka.producer.gate.set()
    kafka.producer.gate = None
    await kafka.drain()
    assert [event.step_id for event in kafka.producer.sent] == ["a", "b"]
    assert kafka.outbox() == []


async def test_a_relay_dying_before_publishing_leaves_rows_for_the_next(make_kafka) -> None:
    first, second = make_kafka(), make_kafka()
    await first.run(LINE)
    first.leading.trusted = False  # lost right after the mark: looked at once more before publishing
    async with first.engine.database.connection() as connection:
        await first.relay._take(connection, {1: 0}, 10, ())
    assert first.states() == [(DISPATCHED, 1)]
    ((row,),) = first.rows("SELECT id FROM dispatch_outbox")
    await second.drain()
    (event,) = second.producer.log
    assert (event.dedup_id, event.attempt) == (f"{row:x}", 1)
    assert first.producer.batches == []
    assert second.outbox() == []


@pytest.mark.parametrize("late", [ACKED, UNKNOWN])
async def test_a_leader_stopped_while_publishing_harms_no_successor(make_kafka, nursery: trio.Nursery, late) -> None:
    first, second = make_kafka(), make_kafka()
    instance = await first.run(LINE)
    first.producer.gate = trio.Event()
    first.producer.answer = lambda record: late
    nursery.start_soon(first.drain)
    await first.producer.called.wait()
    await second.drain()  # elected meanwhile
    await second.engine.jobs.complete(done(second.producer.log[0]))
    await second.drain()
    before = second.snapshot()
    first.leading.trusted = False
    first.producer.gate.set()
    await trio.testing.wait_all_tasks_blocked()
    assert second.snapshot() == before
    (repeated,) = first.producer.sent
    assert repeated.dedup_id == second.producer.log[0].dedup_id
    await second.engine.jobs.complete(done(repeated))  # a worker that takes the duplicate for a new job
    assert second.snapshot() == before
    assert await second.open_steps(instance) == ["b"]


async def test_a_relay_that_does_not_lead_touches_nothing(kafka: KafkaDriver) -> None:
    await kafka.run(LINE)
    kafka.leading.trusted = False
    before = kafka.snapshot()
    assert await kafka.relay.run_once() == 0
    assert await kafka.relay.retry_once() == 0
    assert kafka.snapshot() == before


async def test_an_unknown_answer_is_sent_again_with_the_same_id(
    kafka: KafkaDriver, mock_clock: trio.testing.MockClock
) -> None:
    await kafka.run(LINE)
    kafka.producer.answer = lambda record: UNKNOWN
    await kafka.drain()
    assert len(kafka.outbox()) == 1
    assert kafka.states() == [(DISPATCHED, 1)]
    kafka.producer.answer = lambda record: ACKED
    mock_clock.jump(1)
    assert await kafka.relay.retry_once() == 1
    first, second = kafka.producer.sent
    assert first == second
    assert (kafka.outbox(), kafka.states()) == ([], [(DISPATCHED, 1)])
    assert kafka.rows("SELECT count(*) FROM audit WHERE kind = 'DISPATCHED_VIA_BROKER'") == [(1,)]


async def test_a_missing_topic_holds_nothing_up_and_is_retried_seldom(
    kafka: KafkaDriver, mock_clock: trio.testing.MockClock
) -> None:
    missing = definition(task("missing"), end(), definition_id="missing")
    await kafka.upload(missing)
    await kafka.upload(LINE)
    for _ in range(30):
        await kafka.start("missing")
    kafka.producer.answer = lambda record: NO_TOPIC if record.topic == topic_of("missing") else ACKED
    await kafka.drain()
    assert len(kafka.outbox()) == 30
    await kafka.start("line")
    await kafka.drain()
    assert [event.step_id for event in kafka.producer.log] == ["a"]

    tries = 0
    for _ in range(1200):  # two minutes
        mock_clock.jump(0.1)
        batches = len(kafka.producer.batches)
        await kafka.relay.retry_once()
        tries += len(kafka.producer.batches) - batches
    assert 8 <= tries <= 14  # 0.1 s doubled to 30 s
    assert max(len(batch) for batch in kafka.producer.batches[2:]) == 20
    assert kafka.engine.metrics.relay_published["topic_refused"]._value.get() >= 30

    kafka.producer.answer = lambda record: ACKED
    mock_clock.jump(31)
    await kafka.relay.retry_once()
    await kafka.drain()
    assert kafka.outbox() == []
    assert len({event.dedup_id for event in kafka.producer.log}) == 31


async def test_a_missing_topic_is_created_when_topics_may_be(make_kafka, mock_clock: trio.testing.MockClock) -> None:
    kafka = make_kafka(kafka_create_topics=True)
    await kafka.run(LINE)
    kafka.producer.answer = lambda record: ACKED if record.topic in kafka.producer.created else NO_TOPIC
    await kafka.drain()
    mock_clock.jump(1)
    assert await kafka.relay.retry_once() == 1
    assert kafka.producer.created == ["workflow.jobs.a"]


async def test_a_record_that_is_too_large_waits_alone(kafka: KafkaDriver, mock_clock: trio.testing.MockClock) -> None:
    await kafka.upload(LINE)
    large = await kafka.start("line", {"big": True})
    for _ in range(3):
        await kafka.start("line")
    kafka.producer.answer = lambda record: TOO_LARGE if b"big" in record.value else ACKED
    await kafka.drain()
    assert len(kafka.producer.log) == 3
    assert kafka.rows("SELECT instance_id FROM dispatch_outbox") == [(number(large.id),)]
    await kafka.start("line")
    await kafka.drain()
    assert len(kafka.producer.log) == 4
    tried = sum(b"big" in record.value for batch in kafka.producer.batches for record in batch)
    assert tried == 1
    mock_clock.jump(1)
    kafka.producer.answer = lambda record: ACKED
    await kafka.drain()
    assert kafka.outbox() == []


async def test_jobs_that_were_done_or_cancelled_meanwhile_are_not_published(kafka: KafkaDriver) -> None:
    await kafka.upload(LINE)
    doomed = await kafka.start("line")
    await kafka.start("line")
    await kafka.cancel(doomed.id)
    assert len(kafka.outbox()) == 2
    await kafka.drain()
    assert len(kafka.producer.sent) == 1
    assert kafka.outbox() == []


async def test_variables_are_folded_when_the_message_is_made(kafka: KafkaDriver) -> None:
    await kafka.run(LINE, {"x": 1})
    await kafka.drain()
    (event,) = kafka.producer.log
    await kafka.engine.jobs.complete(Completion(job_id=event.job_id, worker_id="w", variables=b'{"y": 2}'))
    await kafka.drain()
    assert msgspec.json.decode(kafka.producer.log[1].job_payload) == {"x": 1, "y": 2}


async def test_batches_keep_the_order_per_instance_and_type(make_kafka) -> None:
    kafka = make_kafka(outbox_batch_size=7)
    await kafka.upload(LINE)
    started = [(await kafka.start("line")).id for _ in range(30)]
    await kafka.drain()
    assert [event.instance_id for event in kafka.producer.log] == started
    assert {len(batch) for batch in kafka.producer.batches} == {7, 2}


async def test_a_job_whose_token_is_locked_is_published_once_free(kafka: KafkaDriver) -> None:
    await kafka.upload(LINE)
    held, _ = await kafka.start("line"), await kafka.start("line")
    async with kafka.engine.database.connection() as connection:
        async with connection.transaction():
            await connection.fetch(b"SELECT FROM token WHERE id = $1 FOR UPDATE", (number(held.id),))
            kafka.relay.wake()
            await kafka.relay.run_once()
            assert len(kafka.producer.log) == 1
            assert len(kafka.outbox()) == 2
        while len(kafka.producer.log) < 2:
            await kafka.relay.run_once()
    assert kafka.producer.log[1].instance_id == held.id


async def test_a_troubled_row_with_a_locked_token_waits_its_turn(
    kafka: KafkaDriver, mock_clock: trio.testing.MockClock
) -> None:
    instance = await kafka.run(LINE)
    kafka.producer.answer = lambda record: UNKNOWN
    await kafka.drain()
    async with kafka.engine.database.connection() as connection, connection.transaction():
        await connection.fetch(b"SELECT FROM token WHERE id = $1 FOR UPDATE", (number(instance),))
        mock_clock.jump(0.1)
        assert await kafka.relay.retry_once() == 0
        with trio.move_on_after(0.05) as soon:
            mock_clock.autojump_threshold = 0.2
            while True:
                await kafka.relay.retry_step()
        assert soon.cancelled_caught
    assert len(kafka.producer.batches) == 1


async def test_any_worker_completes_a_dispatched_job_and_the_first_wins(kafka: KafkaDriver) -> None:
    await kafka.run(LINE)
    await kafka.drain()
    (event,) = kafka.producer.log
    await kafka.engine.jobs.complete(done(event, "one"))
    await kafka.engine.jobs.complete(done(event, "two"))
    assert kafka.rows("SELECT worker FROM history WHERE kind = 1") == [("one",)]


async def test_who_heartbeats_becomes_the_holder(kafka: KafkaDriver) -> None:
    await kafka.run(LINE)
    await kafka.drain()
    (event,) = kafka.producer.log
    before = kafka.rows("SELECT lease_until FROM token")
    await kafka.engine.jobs.heartbeat(Heartbeat(job_id=event.job_id, worker_id="one", lease_seconds=30))
    assert kafka.rows("SELECT state, claimed_by, attempt FROM token") == [(LOCKED, "one", 1)]
    assert kafka.rows("SELECT lease_until FROM token") == before  # extended, never shortened
    with pytest.raises(LeaseLost):
        await kafka.engine.jobs.complete(done(event, "two"))
    await kafka.engine.jobs.heartbeat(Heartbeat(job_id=event.job_id, worker_id="one", lease_seconds=3600))
    assert kafka.rows("SELECT lease_until FROM token") > before
    await kafka.engine.jobs.complete(done(event, "one"))


async def test_one_answer_for_each_record_is_counted(kafka: KafkaDriver) -> None:
    await kafka.upload(parallel(task("l"), task("r"), name="fork"))
    await kafka.start("fork")
    kafka.producer.answer = lambda record: UNKNOWN if record.topic == topic_of("l") else ACKED
    await kafka.drain()
    counted = kafka.engine.metrics.relay_published
    results = ("success", "unknown", "topic_refused", "record_refused")
    assert [counted[result]._value.get() for result in results] == [1, 1, 0, 0]


@pytest.mark.parametrize("margin", [0, relay.LOW_WATER_MARGIN_IDS])
async def test_a_row_that_was_committed_after_later_ones_is_found(
    kafka: KafkaDriver, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, margin: int
) -> None:
    monkeypatch.setattr(relay, "LOW_WATER_MARGIN_IDS", margin)
    await kafka.upload(LINE)
    late, _ = await kafka.start("line"), await kafka.start("line")
    with psycopg.connect(kafka.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT * FROM dispatch_outbox ORDER BY id LIMIT 1")
        connection.execute("DELETE FROM dispatch_outbox o USING kept k WHERE o.id = k.id")
        await kafka.drain()
        connection.execute("INSERT INTO dispatch_outbox SELECT * FROM kept")
    kafka.relay.wake_for("a")
    await kafka.relay.run_once()
    assert len(kafka.producer.log) == (2 if margin else 1)
    mock_clock.jump(relay.SCAN_INTERVAL_S)  # the look at everything
    await kafka.relay.run_once()
    assert kafka.producer.log[1].instance_id == late.id


async def test_a_job_whose_definition_cannot_be_read_holds_nothing_up(kafka: KafkaDriver) -> None:
    await kafka.upload(LINE)
    broken = await kafka.start("line")
    with psycopg.connect(kafka.dsn, autocommit=True) as connection:
        connection.execute("UPDATE instance SET definition = 1 + definition WHERE id = %s", (number(broken.id),))
        connection.execute(
            "INSERT INTO definition OVERRIDING SYSTEM VALUE"
            " SELECT key + 1, 'of another version', 1, name, description, '{\"steps\": 7}', uploaded_at FROM definition"
        )
    await kafka.start("line")
    await kafka.drain()
    assert len(kafka.producer.log) == 1
    assert kafka.rows("SELECT instance_id FROM dispatch_outbox") == [(number(broken.id),)]
    with psycopg.connect(kafka.dsn, autocommit=True) as connection:
        connection.execute("UPDATE instance SET definition = 1")


async def test_a_job_type_that_names_no_topic_is_refused_here(kafka: KafkaDriver, make_driver: MakeDriver) -> None:
    polling = make_driver()
    await polling.run(definition(service("a", "end", job_type="no topic"), end()))
    await DispatchMigration(kafka.engine).run_once()
    await kafka.run(LINE)
    await kafka.drain()
    assert [event.job_type for event in kafka.producer.sent] == ["a"]
    assert len(kafka.outbox()) == 1


async def test_what_waits_is_counted_by_type_and_by_age(kafka: KafkaDriver) -> None:
    await kafka.upload(LINE)
    for _ in range(3):
        await kafka.start("line")
    kafka.clock.advance(60)
    await Housekeeping(kafka.engine).run_once()
    sample = kafka.engine.metrics.registry.get_sample_value
    assert sample("workflow_engine_dispatch_outbox_backlog") == 3
    assert sample("penstock_queue_jobs", {"job_type": "a"}) == 3
    assert 60 <= (sample("penstock_queue_oldest_job_age_seconds", {"job_type": "a"}) or 0) < 120
    await kafka.drain()
    await Housekeeping(kafka.engine).run_once()
    assert sample("workflow_engine_dispatch_outbox_backlog") == 0
    assert sample("penstock_dispatch_latency_seconds_count") == 3


async def test_an_error_of_the_client_library_costs_one_repetition(
    kafka: KafkaDriver, mock_clock: trio.testing.MockClock
) -> None:
    await kafka.run(LINE)

    def broken(record: object) -> Result:
        raise RuntimeError("a bug in the client library")

    kafka.producer.answer = broken
    await kafka.drain()
    kafka.producer.answer = lambda record: ACKED
    mock_clock.jump(1)
    assert await kafka.relay.retry_once() == 1
    assert kafka.outbox() == []


async def test_a_stop_ends_the_current_batch_and_takes_no_other(kafka: KafkaDriver, nursery: trio.Nursery) -> None:
    await kafka.upload(LINE)
    await kafka.start("line")
    kafka.producer.gate = trio.Event()

    async def run() -> None:
        while True:
            await kafka.relay.step()

    nursery.start_soon(run)
    await kafka.producer.called.wait()
    second = await kafka.start("line")
    async with trio.open_nursery() as stopping:
        stopping.start_soon(kafka.relay.finish, 10)
        kafka.producer.gate.set()
    assert len(kafka.producer.log) == 1
    assert kafka.rows("SELECT instance_id FROM dispatch_outbox") == [(number(second.id),)]


async def test_a_stop_waits_only_briefly_for_a_silent_broker(kafka: KafkaDriver, nursery: trio.Nursery) -> None:
    await kafka.run(LINE)
    kafka.producer.gate = trio.Event()
    nursery.start_soon(kafka.relay.step)
    await kafka.producer.called.wait()
    with trio.fail_after(30):
        await kafka.relay.finish(0.05)
    assert len(kafka.outbox()) == 1
