"""What the description of each metric says, driven: the last test fails for one that nothing here drives."""

from __future__ import annotations

import http.client
import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

import grpc
import prometheus_client
import psycopg
import pytest
import trio
import trio.testing
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock.engine.advance.quarantine import Quarantine
from penstock.engine.instances.batches import BatchStart
from penstock.errors import LeaseLost, Unavailable
from penstock.kafka.producer import NOT_CONNECTED, KafkaProducer
from penstock.runtime.dispatch import KafkaDispatcher
from penstock.runtime.housekeeping import Housekeeping
from penstock.runtime.supervise import forever
from penstock.store.db.pool_errors import PoolTimeout
from penstock.telemetry.metrics import Metrics
from penstock.telemetry.metrics import registry as metrics_registry
from penstock.telemetry.metrics.plain import Counter, Histogram
from penstock.telemetry.metrics.registry import MAX_QUARANTINED_ROWS
from penstock.testing.definitions import definition, end, fork, linear, timer
from penstock.wire.model import Completion, Failure, Heartbeat, StartRequest
from penstock.wire.queue import QueuePolicy, Rate
from penstock.wire.schedule import ScheduleSpec
from tests.dispatch.conftest import KafkaDriver, kafka, make_kafka
from tests.dispatch.fake_producer import ACKED, NO_TOPIC, TOO_LARGE, UNKNOWN
from tests.dispatch.test_deadlines import sweep
from tests.engine.conftest import driver, make_driver
from tests.engine.driver import Driver, number
from tests.engine.runs import begin, finish, take
from tests.house.sources import TOP
from tests.rest.scripted import Rest, ScriptedEngine
from tests.rpc.conftest import Google, google
from tests.runtime.background import Background
from tests.runtime.conftest import StartEngine, start_engine
from tests.runtime.engine_process import EngineProcess
from tests.runtime.waiting import wait_until
from tests.sessions import stopped_sessions
from tests.shapes import choose, task, user, wait
from tests.waiting import wait_until as wait_until_true

__all__ = ["driver", "google", "kafka", "make_driver", "make_kafka", "start_engine"]  # pytest finds the fixtures here

T = TypeVar("T", bound=Callable[..., Any])
DRIVEN: set[tuple[str, str]] = set()


def drives(name: str, says: str) -> Callable[[T], T]:
    """The test drives what the metric's description says."""
    DRIVEN.add((name, says))
    return lambda test: test


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(metrics: Metrics) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(metrics.registry).decode())
        for sample in family.samples
    }


class Growth:
    """What was counted since this was made."""

    def __init__(self, driver: Driver) -> None:
        self._metrics = driver.engine.metrics
        self._before = samples(self._metrics)

    def of(self, name: str, **labels: str) -> float:
        key = name, tuple(sorted(labels.items()))
        return samples(self._metrics).get(key, 0) - self._before.get(key, 0)


# -- definitions and instances


def test_a_histogram_says_what_the_librarys_says() -> None:
    """Its `observe` is our own: on each bound, between and beyond them."""
    bounds = (0.0005, 0.01, 0.5, 2.0)
    pages: list[bytes] = []
    for kind in (Histogram, prometheus_client.Histogram):
        registry = prometheus_client.CollectorRegistry()
        family = kind("seconds", "How long.", ["what"], buckets=bounds, registry=registry)
        for amount in (-1.0, 0.0, *bounds, 0.0004, 0.02, 1, 3.0, math.inf):
            family.labels("a").observe(amount)
        pages.append(prometheus_client.generate_latest(registry))
    assert pages[0] == pages[1]
    assert b'seconds_bucket{le="0.5",what="a"} 7.0' in pages[0]


def test_a_counter_says_what_the_librarys_says() -> None:
    """Its number is our own."""
    pages: list[bytes] = []
    for kind in (Counter, prometheus_client.Counter):
        registry = prometheus_client.CollectorRegistry()
        family = kind("things", "How many.", ["what"], registry=registry)
        family.labels("a").inc()
        family.labels("a").inc(2.5)
        family.labels("b")
        pages.append(prometheus_client.generate_latest(registry))
    assert pages[0] == pages[1]
    assert b'things_total{what="a"} 3.5' in pages[0]


@drives("workflow_definitions_uploaded", "Definition versions created")
async def test_definition_versions(driver: Driver) -> None:
    growth = Growth(driver)
    await driver.upload(linear(1))
    await driver.upload(linear(1))  # the same content makes none
    await driver.upload(linear(2))
    assert growth.of("workflow_definitions_uploaded_total") == 2


@drives("penstock_schedule_times", "Times of schedules, by what the engine did about them")
async def test_times_of_schedules(driver: Driver) -> None:
    await driver.upload(linear(1))
    await driver.engine.schedules.put("nightly", ScheduleSpec("linear", every="P1D"))
    growth = Growth(driver)
    for _ in range(2):
        await driver.engine.schedules.trigger("nightly", None)
    assert growth.of("penstock_schedule_times_total", outcome="STARTED") == 1
    assert growth.of("penstock_schedule_times_total", outcome="SKIPPED") == 1


@drives("penstock_batch_starts", "Items of start batches that the engine started or refused")
async def test_starts_of_batches(driver: Driver) -> None:
    await driver.upload(linear(1))
    growth = Growth(driver)
    items = [StartRequest(definition_id=id) for id in ("linear", "x", "linear")]
    await driver.engine.batches.create(BatchStart(items))
    await driver.engine.batches.step()
    assert growth.of("penstock_batch_starts_total", outcome="STARTED") == 2
    assert growth.of("penstock_batch_starts_total", outcome="REFUSED") == 1


@drives("penstock_sql_requests", "Requests of SQL functions that the engine carried out, failed or put off")
@drives("penstock_sql_requests_waiting", "Requests of SQL functions that wait for an engine, as of the last count")
@drives("penstock_sql_requests_failed", "Requests of SQL functions that wait to be retried or dropped")
@drives("penstock_sql_requests_oldest_seconds", "How long the oldest request of a SQL function waits")
async def test_requests_of_sql_functions(driver: Driver) -> None:
    await driver.upload(linear(1))
    driver.rows("INSERT INTO setting (name, value) VALUES ('schema_version_needed', '22') RETURNING 1")
    driver.clock.stop()
    growth = Growth(driver)

    async def count() -> tuple[float, float, float]:
        async with driver.engine.database.connection() as connection:
            await driver.engine.sql_requests.chores(connection)
        waiting, failed, oldest_s = (
            growth.of(f"penstock_sql_requests_{part}") for part in ("waiting", "failed", "oldest_seconds")
        )
        return waiting, failed, oldest_s

    instance = driver.rows("SELECT penstock_start('linear')")[0][0]
    driver.rows("SELECT penstock_signal(%s, 'no such step')", instance)
    driver.clock.advance(7)
    assert await count() == (2, 0, pytest.approx(7, abs=0.1))
    while await driver.engine.sql_requests.run_once():
        pass
    assert growth.of("penstock_sql_requests_total", outcome="DONE") == 1
    assert growth.of("penstock_sql_requests_total", outcome="FAILED") == 1
    assert await count() == (0, 1, 0)


@drives("workflow_instances_started", "Instances started")
async def test_instances_started(driver: Driver) -> None:
    await driver.upload(linear(1))
    await driver.upload(fork(1, 1))
    growth = Growth(driver)
    await driver.start("linear")
    await driver.start("fork")
    for _ in range(2):  # the second gives the same instance
        await driver.start("linear", instance_key="k")
    chain = definition(end(), definition_id="first", autoStartNextWorkflow=True, nextWorkflowId="linear")
    await driver.run(chain)
    assert growth.of("workflow_instances_started_total") == 5


@drives("workflow_instances_completed", "Instances that ended, by outcome")
@drives(
    "penstock_instances_ended",
    "Instances that ended, by definition id (the first 500; others are `other`) and outcome",
)
async def test_instances_ended(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_registry, "MAX_DEFINITIONS", 2)
    growth = Growth(driver)
    await driver.run(linear(1))  # ends in the fast path
    await driver.complete(await driver.one("work"))
    await driver.start("linear")
    await driver.fail(await driver.one("work"), retryable=False)
    view = await driver.start("linear")
    await driver.cancel(view.id)
    await driver.run(definition(end(), definition_id="at-once"))
    await driver.run(definition(end(), definition_id="third"))
    for outcome, times in (("COMPLETED", 3), ("FAILED", 1), ("CANCELLED", 1)):
        assert growth.of("workflow_instances_completed_total", outcome=outcome) == times
        assert growth.of("penstock_instances_ended_total", definition="linear", outcome=outcome) == 1
    assert growth.of("penstock_instances_ended_total", definition="at-once", outcome="COMPLETED") == 1
    assert growth.of("penstock_instances_ended_total", definition="third", outcome="COMPLETED") == 0
    assert growth.of("penstock_instances_ended_total", definition="other", outcome="COMPLETED") == 1


@drives("penstock_messages_published", "Messages published")
@drives("penstock_messages_expired", "Messages that expired before a step received them")
@drives("penstock_messages_kept", "Messages that no step has received yet, as of the last count")
async def test_messages(driver: Driver) -> None:
    growth = Growth(driver)
    driver.clock.stop()
    for id in ("short", "short", "long"):  # a repeated one is not published again
        await driver.publish("paid", id, message_id=id, ttl="PT1M" if id == "short" else "P1D")
    assert growth.of("penstock_messages_published_total") == 2
    driver.clock.advance(61)
    async with driver.engine.database.connection() as connection:
        await driver.engine.messages.chores(connection)
    assert growth.of("penstock_messages_expired_total") == 1
    assert growth.of("penstock_messages_kept") == 1


@drives("workflow_steps_executed", "Step executions that ended, by type")
async def test_steps_executed(driver: Driver) -> None:
    growth = Growth(driver)
    body = definition(
        task("a", "d"), choose("d", {"true": "u"}), user("u", boundaryEvents=[timer("w", interrupting=True)]),
        end(), wait("w", "end"), definition_id="steps",
    )  # fmt: skip
    instance = await driver.run(body)
    await driver.complete(await driver.one("a"))
    await driver.due(3601)  # the timer closes the user task
    await driver.signal(instance, "w")
    ended = {"SERVICE_TASK": 1, "DECISION": 1, "USER_TASK": 1, "WAIT": 1, "END": 1, "TRANSFORMATION": 0}
    for kind, times in ended.items():
        assert growth.of("workflow_steps_executed_total", step_type=kind) == times, kind


@drives("penstock_instance_duration_seconds", "From the start of an instance to its completion")
async def test_durations(driver: Driver) -> None:
    growth = Growth(driver)
    await driver.run(linear(1, job_type="a"))
    await driver.complete(await driver.one("a"))
    failing = await driver.start("linear")
    await driver.fail(await driver.one("a"), retryable=False)
    assert await driver.status(failing.id) == "FAILED"
    assert growth.of("penstock_instance_duration_seconds_count") == 1, "of those that completed"
    assert 0 < growth.of("penstock_instance_duration_seconds_sum") < 600


@drives("penstock_instances_dead_ended", "Instances whose last branch ended without an END step; they stay ACTIVE")
async def test_dead_ends(driver: Driver) -> None:
    growth = Growth(driver)
    body = definition(task("a", None, boundaryEvents=[timer("end")]), end())
    instance = await driver.run(body)
    await driver.complete(await driver.one("a"))
    assert growth.of("penstock_instances_dead_ended_total") == 1
    assert await driver.status(instance) == "ACTIVE"


# -- jobs


@drives("job_retries", "Attempts of jobs that failed and will be retried")
async def test_job_retries(driver: Driver) -> None:
    growth = Growth(driver)
    await driver.run(definition(task("a", retryCount=1), end()))
    await driver.fail(await driver.one("a"))
    assert growth.of("job_retries_total") == 1
    await driver.fail(await driver.one("a"))  # none left
    assert growth.of("job_retries_total") == 1


@drives("engine_job_timeout", "Leases that expired, and deadlines of dispatched jobs that passed")
async def test_job_timeouts(driver: Driver, kafka: KafkaDriver) -> None:
    await driver.run(linear(1, definition_id="polled"))
    await driver.one("work")
    growth = Growth(driver)
    assert await sweep(driver, 31) == 1
    assert growth.of("engine_job_timeout_total") == 1
    await kafka.run(linear(1, job_type="k"))
    await kafka.drain()
    growth = Growth(kafka)
    assert await sweep(kafka, 1_801) >= 1
    assert growth.of("engine_job_timeout_total") >= 1


@drives("penstock_flow_claim_seconds", "Duration of claims from queues with limits or fairness")
@drives("penstock_flow_overruns", "Late heartbeats that took their slots in a queue back, even if it was full")
@drives("penstock_flow_running", "Running attempts of a queue that limits their number")
@drives("penstock_flow_waiting", "Jobs that wait in a queue, counted to 10,000")
@drives("penstock_flow_blocked_keys", "Flow keys without a free slot, as of this engine's last claim")
@drives("penstock_flow_throttled", "Claims that left jobs in the queue because of its rate")
async def test_queues(driver: Driver) -> None:
    await driver.engine.queues.put("keys", QueuePolicy(["keyed"], concurrency_per_key=1, rate=Rate(2, "PT1H")))
    await driver.upload(linear(1, definition_id="keyed", job_type="keyed"))
    for key in ("a", "a", "b", "b"):
        await driver.start("keyed", flow_key=key)
    before = Growth(driver)
    assert len(await driver.poll("keyed")) == 2
    driver.engine.polls.claims.fairness_order.open(["keyed"])
    await driver.poll("keyed")
    await driver.engine.queues.put("keys", QueuePolicy(["keyed"], concurrency_per_key=1))
    await driver.poll("keyed")
    await Housekeeping(driver.engine).run_once()
    names = ("running", "waiting", "blocked_keys", "throttled_total")
    assert [before.of(f"penstock_flow_{name}", queue="keys") for name in names] == [2, 2, 2, 1]
    await driver.engine.queues.put("q", QueuePolicy(["work"], concurrency=1))
    await driver.run(linear(1))
    growth = Growth(driver)
    job = await driver.one("work", wait=0)
    assert growth.of("penstock_flow_claim_seconds_count") == 1
    assert await sweep(driver, 31) == 3
    await driver.heartbeat(job)
    assert growth.of("penstock_flow_overruns_total") == 1


PICKUP, FIRST_LOCK = "engine_job_pickup_latency_seconds", "workflow_engine_job_poll_latency_seconds"


@drives(PICKUP, "From the creation of a job to each lease of it")
@drives(FIRST_LOCK, "From the creation of a job to its first lease")
async def test_latencies_of_jobs(driver: Driver) -> None:
    driver.clock.stop()
    growth = Growth(driver)
    await driver.run(definition(task("a", "b", retryCount=1), task("b"), end()))
    driver.clock.advance(7)
    await driver.fail(await driver.one("a", lease=3600))
    driver.clock.advance(20)
    again = await driver.one("a", lease=3600)
    for name, count, seconds in ((PICKUP, 2, 7 + 27), (FIRST_LOCK, 1, 7)):
        assert growth.of(f"{name}_count") == count
        assert growth.of(f"{name}_sum") == pytest.approx(seconds, abs=0.01)
    async with trio.open_nursery() as nursery:  # born into the hands of a parked poll
        nursery.start_soon(lambda: driver.poll("b", wait=30))
        await wait_until_true(lambda: _parked(driver))
        await driver.complete(again)
    assert growth.of(f"{FIRST_LOCK}_count") == 2
    assert growth.of(f"{FIRST_LOCK}_sum") == pytest.approx(7, abs=0.01)


async def _parked(driver: Driver) -> bool:
    return len(driver.engine.polls.waiters) > 0


@drives("workflow_engine_job_lock_conflicts", "Polls that were answered without a job")
async def test_polls_without_a_job(driver: Driver) -> None:
    await driver.run(linear(1))
    growth = Growth(driver)
    assert len(await driver.poll("work")) == 1
    assert growth.of("workflow_engine_job_lock_conflicts_total") == 0
    assert await driver.poll("work") == []
    assert await driver.poll("work", wait=0.05) == []
    assert growth.of("workflow_engine_job_lock_conflicts_total") == 2


@drives("penstock_job_lease_lost", "Completions, failures and heartbeats refused because the lease was lost")
@drives("penstock_job_fails_ignored", "Fail calls of jobs that the caller no longer held, answered with success")
async def test_refused_results(driver: Driver) -> None:
    await driver.run(linear(1))
    job = await driver.one("work")
    growth = Growth(driver)
    thief: dict[str, Any] = {"job_id": job.id, "worker_id": "thief"}
    with pytest.raises(LeaseLost):
        await driver.engine.jobs.complete(Completion(**thief))
    with pytest.raises(LeaseLost):
        await driver.engine.jobs.heartbeat(Heartbeat(**thief))
    with pytest.raises(LeaseLost):
        await driver.engine.jobs.fail(Failure(**thief, retryable=True, attempt=7))
    assert growth.of("penstock_job_lease_lost_total") == 3
    (completed,) = await driver.engine.jobs.complete_many([Completion(**thief)])
    (failed,) = await driver.engine.jobs.fail_many([Failure(**thief, retryable=True, attempt=7)])
    assert (completed.outcome, failed.outcome) == ("lease-lost", "lease-lost")
    assert growth.of("penstock_job_lease_lost_total") == 5
    assert growth.of("penstock_job_fails_ignored_total") == 0
    await driver.engine.jobs.fail(Failure(**thief, retryable=True))
    assert growth.of("penstock_job_fails_ignored_total") == 1
    assert growth.of("penstock_job_lease_lost_total") == 5
    assert growth.of("workflow_engine_job_lock_conflicts_total") == 0


@drives("penstock_queue_jobs", "Jobs that workers can take now")
@drives("penstock_queue_oldest_job_age_seconds", "Age of the oldest job that workers can take now")
async def test_the_queue(driver: Driver) -> None:
    await driver.upload(linear(1))
    await driver.start("linear")
    driver.clock.advance(60)
    await driver.start("linear")
    await Housekeeping(driver.engine).run_once()
    found = samples(driver.engine.metrics)
    label = (("job_type", "work"),)
    assert found["penstock_queue_jobs", label] == 2
    assert 60 <= found["penstock_queue_oldest_job_age_seconds", label] < 100


# -- transactions


@drives("penstock_batch_items", "Items that one transaction of a group-commit queue wrote")
@drives("engine_db_transaction_duration_seconds", "Duration of database transactions, by kind")
async def test_transactions(driver: Driver) -> None:
    await driver.upload(linear(1))
    growth = Growth(driver)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(driver.start, "linear")
    assert growth.of("penstock_batch_items_sum", commit_queue="start") == 20
    batches = growth.of("penstock_batch_items_count", commit_queue="start")
    assert 1 <= batches < 20
    assert growth.of("engine_db_transaction_duration_seconds_count", tx_type="start") == batches


@drives(
    "engine_db_lock_wait_duration_seconds", "Time to lock and read instances, nearly all of it waiting for row locks"
)
@drives("penstock_batch_age_seconds", "Age of the batch that the queue is writing now; 0 if it writes none")
@drives("penstock_aside_items", "Calls that are lock-waiting: other transactions hold their rows")
@drives("penstock_db_transactions_repeated", "Database transactions that were repeated, by cause")
async def test_a_row_that_another_transaction_holds(driver: Driver) -> None:
    view = await driver.run(definition(user("u"), end()))
    growth = Growth(driver)

    def age(found: Samples) -> float:
        return max(value for (name, _), value in found.items() if name == "penstock_batch_age_seconds")

    def aside(found: Samples) -> float:
        return sum(value for (name, _), value in found.items() if name == "penstock_aside_items")

    assert age(samples(driver.engine.metrics)) == aside(samples(driver.engine.metrics)) == 0
    ages: list[float] = []

    async def is_quarantined() -> bool:
        ages.append(age(samples(driver.engine.metrics)))
        return aside(samples(driver.engine.metrics)) == 1

    with psycopg.connect(driver.dsn) as holder:
        holder.execute("SELECT FROM token WHERE id = %s FOR UPDATE", (number(view),))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.cancel, view)
            await wait_until_true(is_quarantined)
            holder.rollback()
    assert max(ages) > 0
    assert aside(samples(driver.engine.metrics)) == 0
    assert growth.of("penstock_db_transactions_repeated_total", cause="55P03") >= 1
    assert growth.of("engine_db_lock_wait_duration_seconds_count", operation="wide") >= 2
    assert growth.of("engine_db_lock_wait_duration_seconds_sum", operation="wide") > 0


@drives("penstock_calls_late", "Calls refused as their queue did not reach them in time, although no statement failed")
async def test_calls_without_a_turn_in_time(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    view = await driver.run(definition(user("u"), end()))
    growth, commit_queue = Growth(driver), driver.engine.full_path

    async def no_connection(*_: object, **__: object) -> None:
        raise PoolTimeout("no connection", all_in_use=True)

    with monkeypatch.context() as patched:
        patched.setattr(commit_queue, "_within_s", 0.0)
        patched.setattr(commit_queue, "_once", no_connection)
        with pytest.raises(Unavailable, match="no turn in time"):
            await driver.cancel(view)
    assert growth.of("penstock_calls_late_total", commit_queue=commit_queue.name) == 1
    await driver.cancel(view)


# -- Kafka


@drives("workflow_engine_dispatch_outbox_backlog", "Rows of the outbox that the relay has not published yet")
@drives(
    "workflow_engine_dispatch_relay_publish",
    "Records that the relay sent, by result: success, unknown, topic_refused, record_refused",
)
@drives("workflow_engine_dispatch_relay_batch_latency_seconds", "Duration of publishing one batch")
@drives("penstock_dispatch_latency_seconds", "From the job's row in the outbox to the broker's acknowledgement")
async def test_the_relay(kafka: KafkaDriver) -> None:
    types = {
        "workflow.jobs.a": ACKED,
        "workflow.jobs.b": UNKNOWN,
        "workflow.jobs.c": NO_TOPIC,
        "workflow.jobs.d": TOO_LARGE,
    }
    kafka.producer.answer = lambda record: types[record.topic]
    for topic in types:
        await kafka.run(linear(1, definition_id=topic[-1], job_type=topic[-1]))
    await Housekeeping(kafka.engine).run_once()
    growth = Growth(kafka)
    assert samples(kafka.engine.metrics)["workflow_engine_dispatch_outbox_backlog", ()] == 4
    kafka.clock.advance(100)
    await kafka.drain()
    for result in ("success", "unknown", "topic_refused", "record_refused"):
        assert growth.of("workflow_engine_dispatch_relay_publish_total", result=result) >= 1, result
    assert growth.of("workflow_engine_dispatch_relay_publish_total", result="acked") == 0
    assert growth.of("workflow_engine_dispatch_relay_publish_total", result="success") == 1
    assert growth.of("workflow_engine_dispatch_relay_batch_latency_seconds_count") == len(kafka.producer.batches)
    assert growth.of("penstock_dispatch_latency_seconds_count") == 1
    assert 100 <= growth.of("penstock_dispatch_latency_seconds_sum") < 130
    await Housekeeping(kafka.engine).run_once()
    assert samples(kafka.engine.metrics)["workflow_engine_dispatch_outbox_backlog", ()] == 3


@drives("workflow_engine_dispatch_relay_leader", "1 on the engine whose relay publishes, else 0")
@drives("workflow_engine_kafka_producer_errors", "Errors of the Kafka producer")
async def test_the_leader_and_the_producer(kafka: KafkaDriver) -> None:
    dispatch = KafkaDispatcher(kafka.engine)
    for leads in (True, False):
        dispatch._on_leading(leads)
        assert samples(kafka.engine.metrics)["workflow_engine_dispatch_relay_leader", ()] == leads
    growth = Growth(kafka)
    producer = KafkaProducer(kafka.engine.settings, kafka.engine.metrics)
    producer._counted([ACKED, UNKNOWN])
    assert growth.of("workflow_engine_kafka_producer_errors_total", code="REQUEST_TIMED_OUT") == 1
    with trio.move_on_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer._reconnect)  # nobody listens there
            await wait_until_true(lambda: _not_connected(growth))
            nursery.cancel_scope.cancel()
    assert growth.of("workflow_engine_kafka_producer_errors_total", code=NOT_CONNECTED) >= 1


async def _not_connected(growth: Growth) -> bool:
    return growth.of("workflow_engine_kafka_producer_errors_total", code=NOT_CONNECTED) > 0


def test_an_engine_that_polls_shows_nothing_of_kafka() -> None:
    shown = {family.name for family in Metrics(kafka=False).registry.collect()}
    hidden = {family.name for family in Metrics().registry.collect()} - shown
    assert hidden == {
        "workflow_engine_dispatch_outbox_backlog",
        "workflow_engine_dispatch_relay_publish",
        "workflow_engine_dispatch_relay_batch_latency_seconds",
        "workflow_engine_dispatch_relay_leader",
        "workflow_engine_kafka_producer_errors",
        "penstock_dispatch_latency_seconds",
    }
    rows = re.findall(r"^\| `(\w+)` \|.*\*Kafka mode only\*", (TOP / "docs" / "metrics.md").read_text(), re.MULTILINE)
    assert {row.removesuffix("_total") for row in rows} == hidden


# -- the process


def page(engine: EngineProcess) -> Samples:
    connection = http.client.HTTPConnection("127.0.0.1", engine.metrics_port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.slow(reason="starts an engine process")
@drives("http_requests_duration_seconds", "Duration of REST requests")
@drives("grpc_requests_duration_seconds", "Duration of gRPC calls")
@drives("penstock_open_connections", "Open client connections")
@drives("penstock_parked_polls", "Long polls that wait for a job")
@drives("penstock_pool_waiting_tasks", "Tasks that wait for a database connection of the pool")
@drives("penstock_event_loop_lag_seconds", "How late the event loop ran a task that was due")
@drives("penstock_task_up", "1 while a supervised task runs")
@drives("penstock_build_info", "1, with the engine's version as a label")
def test_a_running_engine(start_engine: StartEngine, google: Google) -> None:
    from penstock import __version__

    engine = start_engine().wait_ready()
    before = page(engine)
    assert not any(name.startswith(("workflow_engine_dispatch", "workflow_engine_kafka")) for name, _ in before)
    assert before["penstock_build_info", (("version", __version__),)] == 1
    assert before["penstock_task_up", (("task", "timers"),)] == 1
    assert engine.call("GET", "/v1/instances/1f")[0] == 404
    rest = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=60)
    rest.request("GET", "/healthz")
    rest.getresponse().read()  # and the connection stays
    with grpc.insecure_channel(f"127.0.0.1:{engine.grpc_port}") as channel:
        stub = google.workflow_grpc.WorkflowEngineStub(channel)
        with pytest.raises(grpc.RpcError):
            stub.GetInstance(google.workflow.GetInstanceRequest(id="1f"), timeout=10)
        poll = {"workerId": "w", "jobTypes": ["none"], "waitSeconds": 20}
        parked = Background(engine.call, "POST", "/v1/jobs/poll", poll)
        wait_until(lambda: page(engine)["penstock_parked_polls", ()] == 1)
        found = page(engine)
        path = (("method", "GET"), ("path", "/v1/instances/{id}"), ("status", "404"))
        assert found["http_requests_duration_seconds_count", path] == 1
        (call,) = [labels for name, labels in found if name == "grpc_requests_duration_seconds_count"]
        assert dict(call)["method"].endswith("GetInstance")
        assert dict(call)["code"] == "NOT_FOUND"
        assert found["penstock_open_connections", (("listener", "REST"),)] == 2
        assert found["penstock_open_connections", (("listener", "gRPC"),)] == 1
    assert found["penstock_pool_waiting_tasks", ()] == 0
    lags = "penstock_event_loop_lag_seconds_count"
    wait_until(lambda: page(engine)[lags, ()] > before[lags, ()])
    rest.close()
    wait_until(lambda: page(engine)["penstock_open_connections", (("listener", "REST"),)] == 1)
    assert engine.stop() == 0
    assert parked.answer() == (200, {"jobs": []})


@drives("penstock_quarantined_rows", "Rows in quarantine: a background service could not handle them")
@drives("penstock_quarantined_row", "1 for each row in quarantine, at most 100; the log has the time")
async def test_rows_aside() -> None:
    metrics = Metrics()
    aside = Quarantine(metrics)
    for row in range(MAX_QUARANTINED_ROWS + 1):
        aside.quarantine_row("timers", row, f"timer {row}", psycopg.DataError("bad"))

    def shown() -> tuple[float | None, int]:
        count = metrics.registry.get_sample_value("penstock_quarantined_rows", {"service": "timers"})
        return count, sum(
            name == "penstock_quarantined_row" and value == 1 for (name, _), value in samples(metrics).items()
        )

    assert shown() == (MAX_QUARANTINED_ROWS + 1, 100)
    label = {"service": "timers", "row": "timer 7", "reason": "bad"}
    assert metrics.registry.get_sample_value("penstock_quarantined_row", label) == 1
    for row in range(5):
        aside.forget("timers", row)
    assert shown() == (MAX_QUARANTINED_ROWS - 4, MAX_QUARANTINED_ROWS - 4)


@drives("penstock_service_errors", "Rounds of background services that the database refused")
async def test_rounds_that_the_database_refused(autojump_clock: trio.testing.MockClock) -> None:
    metrics = Metrics()
    rounds = 0

    async def step() -> None:
        nonlocal rounds
        rounds += 1
        if rounds < 4:
            raise psycopg.DataError("bad")
        await trio.sleep_forever()

    with trio.move_on_after(60):
        await forever("loop", step, metrics)
    assert metrics.registry.get_sample_value("penstock_service_errors_total", {"task": "loop"}) == 3


@drives("penstock_run_takeovers", "Durable runs whose executor ended, or lost its lease, while it held them")
@drives("penstock_runs_blocked", "Durable runs that an executor's code could not go on with; each try counts")
async def test_runs_that_were_taken_over_or_blocked(driver: Driver) -> None:
    growth = Growth(driver)

    def counted() -> tuple[float, float]:
        return growth.of("penstock_run_takeovers_total"), growth.of("penstock_runs_blocked_total")

    held = (await begin(driver)).run_lease
    assert counted() == (0, 0)
    driver.clock.advance(31)
    await driver.engine.leases.expire([(held.instance, held.seq, held.attempt)])
    assert counted() == (1, 0)
    for tries in (1, 2):
        [again] = await take(driver)
        pause_s = await driver.engine.journal.block(again.run_lease, "the code asks for 'fraud'")
        assert counted() == (1, tries)
        await driver.due(pause_s + 1)
    [again] = await take(driver)
    assert await finish(driver, again.run_lease)
    assert counted() == (1, 2)


@drives("penstock_http_ignored_parameters", "Query parameters that were ignored, as their route does not have them")
async def test_parameters_that_a_route_does_not_have() -> None:
    engine = ScriptedEngine()
    rest = Rest(engine)
    for path in (
        "/v1/definitions?page=0",
        "/v1/definitions?nocache=1",
        "/v1/definitions?nocache=2&x=3",
        "/healthz?probe",
    ):
        await rest.get(path)
    label = {"path": "/v1/definitions"}
    assert engine.metrics.registry.get_sample_value("penstock_http_ignored_parameters_total", label) == 3


def test_every_sentence_is_driven() -> None:
    """One that was added or changed needs a test here that would fail if it were not true."""
    described = {(family.name, family.documentation) for family in Metrics().registry.collect()}
    described = {(name, says) for name, says in described if not name.startswith("process_")}
    assert described - DRIVEN == set()
    assert DRIVEN - described == set()


@pytest.mark.slow(reason="waits for sessions that hang")
@drives("penstock_pool_connections", "Database connections of the pool, by state: idle, busy, unanswered")
def test_connections_of_the_pool(start_engine: StartEngine, database_dsn: str) -> None:
    def pooled(state: str) -> float:
        return page(engine)["penstock_pool_connections", (("state", state),)]

    engine = start_engine(dsn=f"{database_dsn} application_name=hung", db_answer_timeout_seconds=2).wait_ready()
    assert engine.call("POST", "/v1/definitions", linear(1))[0] == 201
    wait_until(lambda: pooled("idle") >= 1)
    with stopped_sessions(database_dsn, "hung"):
        start = Background(engine.call, "POST", "/v1/instances", {"definitionId": "linear"})
        wait_until(lambda: pooled("busy") >= 1)
        wait_until(lambda: pooled("unanswered") >= 1, 60)
    assert start.answer()[0] in (201, 503)
    wait_until(lambda: pooled("unanswered") == 0, 60)
    assert engine.stop() == 0
