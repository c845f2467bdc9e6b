"""Prometheus metrics of a worker. Needs prometheus_client, which only this module imports.

::

    worker = Worker(url, observer=WorkerMetrics())
    prometheus_client.start_http_server(9100)
"""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from penstock.worker.observer import WorkerObserver

# From quick calls to jobs of minutes.
HANDLER_BUCKETS_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class WorkerMetrics(WorkerObserver):
    """Counts and times; one per registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._handlers = Histogram(
            "penstock_worker_handler_seconds",
            "Run time of handlers, by how they ended.",
            ("job_type", "end"),
            registry=registry,
            buckets=HANDLER_BUCKETS_S,
        )
        self._running = Gauge(
            "penstock_worker_handlers_running", "Handlers that run now.", ("job_type",), registry=registry
        )
        self._results = Counter(
            "penstock_worker_results_total",
            "Results that the engine has answered.",
            ("job_type", "report", "outcome"),
            registry=registry,
        )
        self._lag = Gauge(
            "penstock_worker_kafka_lag_records",
            "Records of the worker's partitions whose jobs are not reported yet.",
            ("job_type",),
            registry=registry,
        )
        self._lag_seconds = Gauge(
            "penstock_worker_kafka_lag_seconds",
            "Age of the oldest record that the worker has read and not reported.",
            ("job_type",),
            registry=registry,
        )
        self._reachable = Gauge(
            "penstock_worker_engine_reachable", "Whether the last poll was answered.", registry=registry
        )

    def on_handler_started(self, job_type: str) -> None:
        """See ``WorkerObserver``."""
        self._running.labels(job_type).inc()

    def on_handler_ended(self, job_type: str, end: str, seconds: float) -> None:
        """See ``WorkerObserver``."""
        self._running.labels(job_type).dec()
        self._handlers.labels(job_type, end).observe(seconds)

    def on_result_settled(self, job_type: str, report: str, outcome: str) -> None:
        """See ``WorkerObserver``."""
        self._results.labels(job_type, report, outcome).inc()

    def on_lag(self, job_type: str, records: int, seconds: float) -> None:
        """See ``WorkerObserver``."""
        self._lag.labels(job_type).set(records)
        self._lag_seconds.labels(job_type).set(seconds)

    def on_engine(self, reachable: bool) -> None:
        """See ``WorkerObserver``."""
        self._reachable.set(reachable)
