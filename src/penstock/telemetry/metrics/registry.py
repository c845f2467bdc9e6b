"""The engine's metrics: every Prometheus name of the wire contract, and ours (``penstock_``), in one object.

Relies on prometheus_client; one registry per ``Metrics``, so that tests and several engines in one process don't share
counters. Must do nothing on the hot path but add a number (0.1 us a counter, 0.2 us a histogram): the children of a
labelled metric are found in a dict, which saves the 0.8 us and the lock of ``labels()``; what has to be asked for
(queue depth, pool use) is asked when somebody scrapes, or by a slow task.

Label values come from closed sets (statuses, route patterns, task names), except job types and definition ids, which
users choose: see ``MAX_JOB_TYPES`` and ``MAX_DEFINITIONS``. What a description says is driven by
`tests/runtime/test_metrics.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, disable_created_metrics
from prometheus_client.metrics import MetricWrapperBase

from penstock.telemetry.metrics.plain import Counter, Histogram

__all__ = ["Family", "Metrics"]

# Job types told apart in the gauges of the queue; those with the fewest jobs beyond it are one label, `other`.
MAX_JOB_TYPES: Final = 500
# Definition ids told apart among the ends of instances; those that come later are one label, `other`.
MAX_DEFINITIONS: Final = 500

# Requests and transactions: from under the durable commit of a fast disk to an outage that was waited out.
LATENCY_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
# From a job's birth to a worker's hands: 5 ms to a parked worker, hours in a backlog.
PICKUP_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5, 15, 60, 300, 1_800, 7_200)
BATCH_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
# From a call of a few steps to something that waits for people for a month.
DURATION_BUCKETS: Final = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 1_800, 7_200, 28_800, 86_400, 604_800, 2_592_000,
)  # fmt: skip
LAG_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)

K = TypeVar("K", bound=str | tuple[str, ...])
M = TypeVar("M", bound=MetricWrapperBase)

MAX_QUARANTINED_ROWS: Final = 100
"""Rows that are shown one by one."""
MAX_QUEUES: Final = 100
"""Queues with metrics of their own; what claims of later ones met is `other`'s."""

# `_created` series would double the size of the page and mean nothing here.
disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus_client left this one without types


class Family(dict[K, M], Generic[K, M]):
    """The children of one labelled metric: ``family["END"].inc()``, ``family["GET", path, "200"].observe(seconds)``."""

    __slots__ = ("metric",)

    def __init__(self, metric: M) -> None:
        super().__init__()
        self.metric = metric

    def __missing__(self, values: K) -> M:
        child = self.metric.labels(*((values,) if isinstance(values, str) else values))
        self[values] = child
        return child


class Metrics:
    """All metrics of one engine process. Attributes are counters (``.inc(n)``), histograms (``.observe(seconds)``),
    gauges (``.set(v)``), and a ``Family`` of them where there are labels. Nothing here raises or waits."""

    def __init__(self, version: str = "", *, kafka: bool = True) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._engine()
        self._database()
        self._sql_requests()
        self._requests()
        self._jobs()
        self._kafka(self.registry if kafka else CollectorRegistry())  # what an engine that polls does not show
        self._process(version)

    def _engine(self) -> None:
        self.definitions_uploaded = self._counter("workflow_definitions_uploaded", "Definition versions created")
        self.instances_started = self._counter("workflow_instances_started", "Instances started")
        self.instances_completed: Family[str, Counter] = Family(
            self._counter("workflow_instances_completed", "Instances that ended, by outcome", "outcome")
        )
        self._instances_ended: Family[tuple[str, ...], Counter] = Family(
            self._counter(
                "penstock_instances_ended",
                f"Instances that ended, by definition id (the first {MAX_DEFINITIONS}; others are `other`) and outcome",
                "definition",
                "outcome",
            )
        )
        self._ended_definitions: set[str] = set()
        self._flow_queues: set[str] = set()
        self.instance_seconds = self._histogram(
            "penstock_instance_duration_seconds", "From the start of an instance to its completion", DURATION_BUCKETS
        )
        self.steps_executed: Family[str, Counter] = Family(
            self._counter("workflow_steps_executed", "Step executions that ended, by type", "step_type")
        )
        self.messages_published = self._counter("penstock_messages_published", "Messages published")
        self.messages_expired = self._counter(
            "penstock_messages_expired", "Messages that expired before a step received them"
        )
        self.messages_kept = self._gauge(
            "penstock_messages_kept", "Messages that no step has received yet, as of the last count"
        )
        self.dead_ends = self._counter(
            "penstock_instances_dead_ended", "Instances whose last branch ended without an END step; they stay ACTIVE"
        )
        self.schedule_times: Family[str, Counter] = Family(
            self._counter(
                "penstock_schedule_times",
                "Times of schedules, by what the engine did about them",
                "outcome",
            )
        )
        self.batch_starts: Family[str, Counter] = Family(
            self._counter(
                "penstock_batch_starts", "Items of start batches that the engine started or refused", "outcome"
            )
        )
        self.batch_items: Family[str, Histogram] = Family(
            self._histogram(
                "penstock_batch_items",
                "Items that one transaction of a group-commit queue wrote",
                BATCH_BUCKETS,
                "commit_queue",
            )
        )
        self._batch_age = self._gauge(
            "penstock_batch_age_seconds", "Age of the batch that the queue is writing now; 0 if it writes none", "queue"
        )
        self._lock_waiting_items = self._gauge(
            "penstock_aside_items", "Calls that are lock-waiting: other transactions hold their rows", "queue"
        )

    def _database(self) -> None:
        self.db_transaction_seconds: Family[str, Histogram] = Family(
            self._histogram(
                "engine_db_transaction_duration_seconds",
                "Duration of database transactions, by kind",
                LATENCY_BUCKETS,
                "tx_type",
            )
        )
        self.db_lock_wait_seconds: Family[str, Histogram] = Family(
            self._histogram(
                "engine_db_lock_wait_duration_seconds",
                "Time to lock and read instances, nearly all of it waiting for row locks",
                LATENCY_BUCKETS,
                "operation",
            )
        )
        self.db_retries: Family[str, Counter] = Family(
            self._counter(
                "penstock_db_transactions_repeated", "Database transactions that were repeated, by cause", "cause"
            )
        )
        self.pool_connections: Family[str, Gauge] = Family(
            self._gauge(
                "penstock_pool_connections",
                "Database connections of the pool, by state: idle, busy, unanswered",
                "state",
            )
        )
        self.pool_waiting = self._gauge(
            "penstock_pool_waiting_tasks", "Tasks that wait for a database connection of the pool"
        )

    def _sql_requests(self) -> None:
        self.sql_requests: Family[str, Counter] = Family(
            self._counter(
                "penstock_sql_requests",
                "Requests of SQL functions that the engine carried out, failed or put off",
                "outcome",
            )
        )
        self.sql_requests_waiting = self._gauge(
            "penstock_sql_requests_waiting", "Requests of SQL functions that wait for an engine, as of the last count"
        )
        self.sql_requests_failed = self._gauge(
            "penstock_sql_requests_failed", "Requests of SQL functions that wait to be retried or dropped"
        )
        self.sql_requests_oldest_seconds = self._gauge(
            "penstock_sql_requests_oldest_seconds", "How long the oldest request of a SQL function waits"
        )

    def _requests(self) -> None:
        self.http_request_seconds: Family[tuple[str, ...], Histogram] = Family(
            self._histogram(
                "http_requests_duration_seconds",
                "Duration of REST requests",
                LATENCY_BUCKETS,
                "method",
                "path",
                "status",
            )
        )
        self.http_ignored_parameters: Family[str, Counter] = Family(
            self._counter(
                "penstock_http_ignored_parameters",
                "Query parameters that were ignored, as their route does not have them",
                "path",
            )
        )
        self.grpc_request_seconds: Family[tuple[str, ...], Histogram] = Family(
            self._histogram(
                "grpc_requests_duration_seconds", "Duration of gRPC calls", LATENCY_BUCKETS, "method", "code"
            )
        )
        self._open_connections = self._gauge("penstock_open_connections", "Open client connections", "listener")
        self.calls_late: Family[str, Counter] = Family(
            self._counter(
                "penstock_calls_late",
                "Calls refused as their queue did not reach them in time, although no statement failed",
                "commit_queue",
            )
        )

    def _jobs(self) -> None:
        self.job_retries = self._counter("job_retries", "Attempts of jobs that failed and will be retried")
        self.job_timeouts = self._counter(
            "engine_job_timeout", "Leases that expired, and deadlines of dispatched jobs that passed"
        )
        self.job_pickup_seconds = self._histogram(
            "engine_job_pickup_latency_seconds", "From the creation of a job to each lease of it", PICKUP_BUCKETS
        )
        self.flow_claim_seconds = self._histogram(
            "penstock_flow_claim_seconds", "Duration of claims from queues with limits or fairness", LATENCY_BUCKETS
        )
        self._flow_running = self._gauge(
            "penstock_flow_running", "Running attempts of a queue that limits their number", "queue"
        )
        self._flow_waiting = self._gauge(
            "penstock_flow_waiting", "Jobs that wait in a queue, counted to 10,000", "queue"
        )
        self._flow_blocked = self._gauge(
            "penstock_flow_blocked_keys", "Flow keys without a free slot, as of this engine's last claim", "queue"
        )
        self._flow_throttled = self._counter(
            "penstock_flow_throttled", "Claims that left jobs in the queue because of its rate", "queue"
        )
        self.flow_overruns = self._counter(
            "penstock_flow_overruns", "Late heartbeats that took their slots in a queue back, even if it was full"
        )
        self.empty_polls = self._counter("workflow_engine_job_lock_conflicts", "Polls that were answered without a job")
        self.run_takeovers = self._counter(
            "penstock_run_takeovers", "Durable runs whose executor ended, or lost its lease, while it held them"
        )
        self.runs_blocked = self._counter(
            "penstock_runs_blocked", "Durable runs that an executor's code could not go on with; each try counts"
        )
        self.leases_lost = self._counter(
            "penstock_job_lease_lost", "Completions, failures and heartbeats refused because the lease was lost"
        )
        self.fails_ignored = self._counter(
            "penstock_job_fails_ignored", "Fail calls of jobs that the caller no longer held, answered with success"
        )
        self.first_lock_seconds = self._histogram(
            "workflow_engine_job_poll_latency_seconds", "From the creation of a job to its first lease", PICKUP_BUCKETS
        )
        self.parked_polls = self._gauge("penstock_parked_polls", "Long polls that wait for a job")
        self._queue_jobs = self._gauge("penstock_queue_jobs", "Jobs that workers can take now", "job_type")
        self._queue_age = self._gauge(
            "penstock_queue_oldest_job_age_seconds", "Age of the oldest job that workers can take now", "job_type"
        )

    def _kafka(self, registry: CollectorRegistry) -> None:
        self.outbox_backlog = Gauge(
            "workflow_engine_dispatch_outbox_backlog",
            "Rows of the outbox that the relay has not published yet",
            registry=registry,
        )
        self.relay_published: Family[str, Counter] = Family(
            Counter(
                "workflow_engine_dispatch_relay_publish",
                "Records that the relay sent, by result: success, unknown, topic_refused, record_refused",
                ("result",),
                registry=registry,
            )
        )
        self.relay_batch_seconds = Histogram(
            "workflow_engine_dispatch_relay_batch_latency_seconds",
            "Duration of publishing one batch",
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.dispatch_seconds = Histogram(
            "penstock_dispatch_latency_seconds",
            "From the job's row in the outbox to the broker's acknowledgement",
            buckets=PICKUP_BUCKETS,
            registry=registry,
        )
        self.relay_leader = Gauge(
            "workflow_engine_dispatch_relay_leader", "1 on the engine whose relay publishes, else 0", registry=registry
        )
        self.producer_errors: Family[str, Counter] = Family(
            Counter(
                "workflow_engine_kafka_producer_errors", "Errors of the Kafka producer", ("code",), registry=registry
            )
        )

    def _process(self, version: str) -> None:
        self.loop_lag_seconds = self._histogram(
            "penstock_event_loop_lag_seconds", "How late the event loop ran a task that was due", LAG_BUCKETS
        )
        self.task_up: Family[str, Gauge] = Family(
            self._gauge("penstock_task_up", "1 while a supervised task runs", "task")
        )
        self._quarantined_rows = self._gauge(
            "penstock_quarantined_rows", "Rows in quarantine: a background service could not handle them", "service"
        )
        self._quarantined_row = self._gauge(
            "penstock_quarantined_row",
            "1 for each row in quarantine, at most 100; the log has the time",
            "service",
            "row",
            "reason",
        )
        self.service_errors: Family[str, Counter] = Family(
            self._counter("penstock_service_errors", "Rounds of background services that the database refused", "task")
        )
        self._gauge("penstock_build_info", "1, with the engine's version as a label", "version").labels(version).set(1)
        ProcessCollector(registry=self.registry)

    def on_end(self, definition_id: str, outcome: str, took_s: float) -> None:
        """An instance of the definition ended."""
        self.instances_completed[outcome].inc()
        if outcome == "COMPLETED":
            self.instance_seconds.observe(took_s)
        if definition_id not in self._ended_definitions:
            if len(self._ended_definitions) >= MAX_DEFINITIONS:
                definition_id = "other"
            else:
                self._ended_definitions.add(definition_id)
        self._instances_ended[definition_id, outcome].inc()

    def instance_totals(self) -> dict[str, int]:
        """How many instances were started, and how many ended by outcome in lower case, since this process began."""
        (started,) = self.instances_started.collect()
        (ended,) = self.instances_completed.metric.collect()
        totals = {"started": sum(int(sample.value) for sample in started.samples)}
        for sample in ended.samples:
            totals[sample.labels["outcome"].lower()] = int(sample.value)
        return totals

    def duration_totals(self) -> dict[float, int]:
        """How many instances completed that took at most so many seconds, and more than the bound before."""
        counts = self.instance_seconds.counts()
        return {bound: count for bound, count in zip((*DURATION_BUCKETS, math.inf), counts, strict=True) if count}

    def batch_totals(self) -> tuple[int, float]:
        """How many transactions there were, and how many items they took together."""
        commit_queues = self.batch_items.values()
        return sum(sum(commit_queue.counts()) for commit_queue in commit_queues), sum(
            commit_queue.total() for commit_queue in commit_queues
        )

    def clients(self) -> int:
        """Connections of clients, of all listeners."""
        (found,) = self._open_connections.collect()
        return sum(int(sample.value) for sample in found.samples)

    def set_queue(self, rows: Iterable[tuple[str, int, float]]) -> None:
        """Replaces the gauges of the queue by (job type, ready jobs, age of the oldest in seconds)."""
        ordered = sorted(rows, key=lambda row: row[1], reverse=True)
        kept, rest = ordered[:MAX_JOB_TYPES], ordered[MAX_JOB_TYPES:]
        if rest:
            kept.append(("other", sum(row[1] for row in rest), max(row[2] for row in rest)))
        self._queue_jobs.clear()
        self._queue_age.clear()
        for job_type, jobs, age_seconds in kept:
            self._queue_jobs.labels(job_type).set(jobs)
            self._queue_age.labels(job_type).set(age_seconds)

    def set_flow(self, rows: Iterable[tuple[str, int | None, int]]) -> None:
        """Replaces the gauges of queues by (queue, running attempts, waiting jobs); MAX_QUEUES at most."""
        self._flow_running.clear()
        self._flow_waiting.clear()
        for queue, running, waiting in rows:
            self._flow_waiting.labels(queue).set(waiting)
            if running is not None:
                self._flow_running.labels(queue).set(running)

    def observe_flow_claim(self, queue: str, *, blocked: int, throttled: bool) -> None:
        """What a claim of a queue's jobs met."""
        if queue not in self._flow_queues:
            if len(self._flow_queues) >= MAX_QUEUES:
                queue = "other"
            self._flow_queues.add(queue)
        self._flow_blocked.labels(queue).set(blocked)
        if throttled:
            self._flow_throttled.labels(queue).inc()

    def set_quarantined_rows(self, rows: Iterable[tuple[str, str, str]]) -> None:
        """Replaces the gauges of rows aside by (service, row, reason)."""
        self._quarantined_rows.clear()
        self._quarantined_row.clear()
        for number, (service, row, reason) in enumerate(rows):
            self._quarantined_rows.labels(service).inc()
            if number < MAX_QUARANTINED_ROWS:
                self._quarantined_row.labels(service, row, reason).set(1)

    def watch_pool(
        self,
        idle: Callable[[], int],
        busy: Callable[[], int],
        unanswered: Callable[[], int],
        waiting: Callable[[], int],
    ) -> None:
        """Has these asked at each scrape."""
        self.pool_connections["idle"].set_function(idle)
        self.pool_connections["busy"].set_function(busy)
        self.pool_connections["unanswered"].set_function(unanswered)
        self.pool_waiting.set_function(waiting)

    def watch_connections(self, listener: str, open_count: Callable[[], int]) -> None:
        """Has it asked at each scrape."""
        self._open_connections.labels(listener).set_function(open_count)

    def watch_batches(self, queue: str, age_seconds: Callable[[], float], lock_waiting: Callable[[], int]) -> None:
        """Has these asked at each scrape."""
        self._batch_age.labels(queue).set_function(age_seconds)
        self._lock_waiting_items.labels(queue).set_function(lock_waiting)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)
