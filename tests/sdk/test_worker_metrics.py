"""What a worker's metrics show."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from penstock.client import ConnectionFailed
from penstock.worker import NonRetryable, Worker, WorkerObserver
from penstock.worker.metrics import WorkerMetrics
from tests.sdk.loops import Run
from tests.sdk.scripted_transport import ScriptedTransport, job


def test_the_lag_behind_kafka_is_shown() -> None:
    registry = CollectorRegistry()
    observer: WorkerObserver = WorkerMetrics(registry)
    for records, seconds in ((7, 3.5), (2, 0.5)):
        observer.on_lag("good", records, seconds)
    assert registry.get_sample_value("penstock_worker_kafka_lag_records", {"job_type": "good"}) == 2
    assert registry.get_sample_value("penstock_worker_kafka_lag_seconds", {"job_type": "good"}) == 0.5


def test_ends_of_handlers_results_and_the_engine_are_counted(run: Run) -> None:
    registry = CollectorRegistry()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"penstock_worker_{name}", labels)

    running: list[float | None] = []

    async def main() -> None:
        transport = ScriptedTransport()
        outage = [ConnectionFailed("refused")]

        def receive() -> None:
            if outage:
                raise outage.pop()

        transport.on_receive = receive
        worker = Worker(transport, observer=WorkerMetrics(registry))

        @worker.handler("good")
        async def good() -> None:
            running.append(value("handlers_running", job_type="good"))

        @worker.handler("bad")
        async def bad() -> None:
            raise NonRetryable("no")

        @worker.handler("unlucky")
        async def unlucky() -> None:
            raise ValueError("once more")

        async with worker:
            await transport.wait_until(lambda: transport.subscriptions)
            assert value("engine_reachable") == 0
            transport.hand_out(job("1", "good"), job("2", "good"), job("3", "bad"), job("4", "unlucky"))
            await transport.wait_until(lambda: len(transport.completed) == 2 and len(transport.failed) == 2)

    run(main)
    assert value("engine_reachable") == 1
    assert running in ([1, 2], [1, 1], [2, 2])
    assert value("handlers_running", job_type="good") == 0
    assert value("handler_seconds_count", job_type="good", end="completed") == 2
    assert value("handler_seconds_count", job_type="bad", end="failed") == 1
    assert value("handler_seconds_count", job_type="unlucky", end="to-retry") == 1
    assert value("results_total", job_type="good", report="completion", outcome="ok") == 2
    assert value("results_total", job_type="bad", report="failure", outcome="ok") == 1
