"""Metrics: the names of the contract, and several processes as one."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock.telemetry.metrics import Aggregate, Metrics, export
from penstock.telemetry.metrics.registry import MAX_JOB_TYPES

CONTRACT = {
    "workflow_definitions_uploaded_total": (),
    "workflow_instances_started_total": (),
    "workflow_instances_completed_total": ("outcome",),
    "workflow_steps_executed_total": ("step_type",),
    "job_retries_total": (),
    "http_requests_duration_seconds": ("method", "path", "status"),
    "grpc_requests_duration_seconds": ("method", "code"),
    "engine_db_transaction_duration_seconds": ("tx_type",),
    "engine_db_lock_wait_duration_seconds": ("operation",),
    "engine_job_timeout_total": (),
    "engine_job_pickup_latency_seconds": (),
    "workflow_engine_job_lock_conflicts_total": (),
    "workflow_engine_job_poll_latency_seconds": (),
    "workflow_engine_dispatch_outbox_backlog": (),
    "workflow_engine_dispatch_relay_publish_total": ("result",),
    "workflow_engine_dispatch_relay_batch_latency_seconds": (),
    "workflow_engine_dispatch_relay_leader": (),
    "workflow_engine_kafka_producer_errors_total": ("code",),
}


def samples(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def aggregated(aggregate: Aggregate) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    registry = CollectorRegistry()
    registry.register(aggregate)
    return samples(registry)


def test_every_metric_of_the_contract_is_there_with_its_labels():
    families = {
        family.name + ("_total" if family.type == "counter" else ""): family for family in Metrics().registry.collect()
    }
    assert families.keys() >= CONTRACT.keys()
    metrics = Metrics()
    metrics.instances_completed["COMPLETED"].inc()
    metrics.steps_executed["END"].inc()
    metrics.http_request_seconds["GET", "/v1/instances/{id}", "200"].observe(0.1)
    metrics.grpc_request_seconds["PollJobs", "OK"].observe(0.1)
    metrics.db_transaction_seconds["complete"].observe(0.1)
    metrics.db_lock_wait_seconds["complete"].observe(0.1)
    metrics.relay_published["ok"].inc()
    metrics.producer_errors["TIMEOUT"].inc()
    found = {}
    for name, labels in samples(metrics.registry):
        keys = tuple(key for key, _ in labels if key != "le")
        found.setdefault(name.removesuffix("_count"), keys)
    for name, labels in CONTRACT.items():
        assert found[name] == tuple(sorted(labels)), name


def test_nothing_is_exposed_twice_as_a_creation_time():
    assert b"_created" not in generate_latest(Metrics().registry)


def test_two_engines_in_one_process_count_apart():
    one, two = Metrics(), Metrics()
    one.instances_started.inc()
    assert samples(one.registry)["workflow_instances_started_total", ()] == 1
    assert samples(two.registry)["workflow_instances_started_total", ()] == 0


def test_a_child_is_made_once():
    metrics = Metrics()
    assert metrics.steps_executed["END"] is metrics.steps_executed["END"]
    assert metrics.http_request_seconds["GET", "/", "200"] is metrics.http_request_seconds["GET", "/", "200"]


def test_the_queue_gauges_forget_job_types_that_are_gone():
    metrics = Metrics()
    metrics.set_queue([("a", 3, 1.5), ("b", 1, 0.5)])
    metrics.set_queue([("b", 2, 2.5)])
    found = samples(metrics.registry)
    assert {key: value for key, value in found.items() if key[0].startswith("penstock_queue")} == {
        ("penstock_queue_jobs", (("job_type", "b"),)): 2,
        ("penstock_queue_oldest_job_age_seconds", (("job_type", "b"),)): 2.5,
    }


def test_too_many_job_types_are_counted_together():
    metrics = Metrics()
    metrics.set_queue([(f"type-{number}", number, float(number)) for number in range(MAX_JOB_TYPES + 3)])
    jobs = {key[1]: value for key, value in samples(metrics.registry).items() if key[0] == "penstock_queue_jobs"}
    assert len(jobs) == MAX_JOB_TYPES + 1
    assert jobs[("job_type", "other"),] == 0 + 1 + 2


def test_the_pool_is_asked_when_somebody_scrapes():
    busy = 1
    metrics = Metrics()
    metrics.watch_pool(lambda: 2, lambda: busy, lambda: 0, lambda: 0)
    busy = 5
    assert samples(metrics.registry)["penstock_pool_connections", (("state", "busy"),)] == 5


@pytest.fixture
def children():
    one, two = Metrics("1.0"), Metrics("1.0")
    one.instances_started.inc(3)
    two.instances_started.inc(4)
    one.http_request_seconds["GET", "/", "200"].observe(0.003)
    two.http_request_seconds["GET", "/", "200"].observe(4)
    two.http_request_seconds["POST", "/", "200"].observe(4)
    one.parked_polls.set(10)
    two.parked_polls.set(20)
    one.set_queue([("a", 5, 1.0)])
    two.set_queue([("a", 7, 2.0)])
    aggregate = Aggregate()
    aggregate.update("1", export(one.registry))
    aggregate.update("2", export(two.registry))
    return aggregate, one, two


def test_counters_and_histograms_of_several_processes_are_summed(children):
    aggregate, *_ = children
    found = aggregated(aggregate)
    assert found["workflow_instances_started_total", ()] == 7
    labels = (("method", "GET"), ("path", "/"), ("status", "200"))
    assert found["http_requests_duration_seconds_count", labels] == 2
    assert found["http_requests_duration_seconds_bucket", (("le", "0.005"), *labels)] == 1
    assert found["http_requests_duration_seconds_sum", labels] == pytest.approx(4.003)


def test_own_metrics_of_processes_are_summed_and_shared_ones_not(children):
    aggregate, *_ = children
    found = aggregated(aggregate)
    assert found["penstock_parked_polls", ()] == 30
    assert found["penstock_queue_jobs", (("job_type", "a"),)] == 7
    assert found["penstock_build_info", (("version", "1.0"),)] == 1


def test_a_dead_process_lowers_no_counter_and_loses_its_gauges(children):
    aggregate, one, _ = children
    aggregate.retire("2")
    aggregate.retire("never-seen")
    found = aggregated(aggregate)
    assert found["workflow_instances_started_total", ()] == 7
    assert found["penstock_parked_polls", ()] == 10
    one.instances_started.inc()
    aggregate.update("1", export(one.registry))
    assert aggregated(aggregate)["workflow_instances_started_total", ()] == 8
    aggregate.retire("1")
    assert aggregated(aggregate)["workflow_instances_started_total", ()] == 8
