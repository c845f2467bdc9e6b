"""Dispatch through a real Kafka broker: how long a job takes to a worker, how fast the relay empties the outbox.

A broker (`tests.kafka.broker`, full JIT) and an engine in Kafka mode of its own. The latency is that of the
Python worker, on an idle engine: from when the start is confirmed, and from when it is sent, to the handler.
The outbox is filled while the broker is down; the rate is that between 10 % and 90 % of the records.
"""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from benchmarks import scrape
from benchmarks.bench import POLL_INTERVAL_S, STUCK_AFTER_S, Bench, ScenarioFailed, Unsuitable
from benchmarks.database import Database
from benchmarks.deployment import engine, work_directory
from benchmarks.load.counts import percentile
from benchmarks.meter import Snapshot
from benchmarks.result import Bound, Run
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import START_VARIABLES_BYTES, Workflow, linear, variables_of
from penstock.client import Client
from penstock.worker import Worker
from penstock.worker.kafka import KafkaWork

if TYPE_CHECKING:
    from tests.kafka.broker import KafkaBroker

WARM_UP_ROUNDS = 30
PAUSE_S = 0.02
WINDOW = (0.1, 0.9)
ROW = "Kafka mode: commit → record in the worker p50 ≤ 15 ms; relay ≥ 5,000 records/s"
ACKED = re.compile(r'^workflow_engine_dispatch_relay_publish_total\{result="success"\} (\S+)$', re.MULTILINE)


def run(bench: Bench) -> Run:
    began = time.monotonic()
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing:
        raise Unsuitable(f"needs {' and '.join(missing)} for a Kafka broker")
    try:
        from tests.kafka.broker import KafkaBroker
    except ImportError:
        raise Unsuitable("needs a checkout: the tests have the Kafka broker") from None
    options = bench.options
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # the worker here tells of the group's beginnings
    bench.progress(0.0, "starting a Kafka broker")
    with work_directory(options.work_dir) as directory, KafkaBroker(directory / "kafka", fast=False) as broker:
        settings = {"dispatch_mode": "kafka_outbox", "kafka_seed_brokers": broker.bootstrap, "kafka_create_topics": "1"}
        with engine(directory, options.settings | settings) as deployment:
            assert deployment.dsn is not None
            database = Database(deployment.dsn)
            try:
                mine = Bench(deployment, database, options, bench.progress)
                figures = _latency(mine, broker) | _relay(mine, broker)
                figures |= {"errors": 0.0}
            finally:
                database.close()
    bench.problems += mine.problems
    return bench.run_of(figures, began)


# -- latency


def _latency(bench: Bench, broker: KafkaBroker) -> dict[str, float]:
    workflow = linear(bench.new_tag(), 1)
    bench.upload(workflow)
    rounds = bench.size(400, 100)
    sent, confirmed = trio.run(_rounds, bench, broker.bootstrap, workflow, rounds)
    found = {
        "record_p50_ms": percentile(sorted(confirmed), 0.5),
        "record_p99_ms": percentile(sorted(confirmed), 0.99),
        "start_to_record_p50_ms": percentile(sorted(sent), 0.5),
    }
    return {name: value * 1e3 for name, value in found.items() if value is not None}


async def _rounds(bench: Bench, bootstrap: str, workflow: Workflow, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds from the start sent, and from the start confirmed, to the handler."""
    sent: list[float] = []
    confirmed: list[float] = []
    send, receive = trio.open_memory_channel[float](1)
    deployment = bench.deployment
    async with Client(f"http://{deployment.host}:{deployment.port}") as client:
        worker = Worker(KafkaWork.connect(client, [bootstrap]))

        @worker.handler(workflow.job_types[0])
        async def handle() -> None:
            send.send_nowait(time.monotonic())

        async with worker:
            for number in range(-WARM_UP_ROUNDS, rounds):
                with trio.fail_after(STUCK_AFTER_S):
                    sent_at = time.monotonic()
                    await client.start_instance(workflow.id, variables={"orderId": 4711001})
                    confirmed_at = time.monotonic()
                    received_at = await receive.receive()
                if number >= 0:
                    sent.append(received_at - sent_at)
                    confirmed.append(max(0.0, received_at - confirmed_at))
                    bench.progress(number / rounds, "instances one after the other")
                await trio.sleep(PAUSE_S)
    return sent, confirmed


# -- the relay


def _relay(bench: Bench, broker: KafkaBroker) -> dict[str, float]:
    workflow = linear(bench.new_tag(), 1)
    bench.upload(workflow)
    records = bench.size(40_000, 10_000)
    broker.stop()
    bench.seed(workflow, variables_of(START_VARIABLES_BYTES), records)
    before = _acked(bench)
    broker.start()
    marks: list[tuple[float, Snapshot]] = []
    for share in WINDOW:
        _wait(bench, lambda: _acked(bench) - before, int(records * share), records)
        marks.append((_acked(bench), bench.meter.snapshot()))
    _wait(bench, lambda: _acked(bench) - before, records, records)
    (first, begin), (last, end) = marks
    seconds, published = end.at - begin.at, last - first
    figures = {"relay_records_per_s": published / seconds}
    for who in ("engine", "postgres"):
        used = (getattr(begin, f"{who}_cpu_s"), getattr(end, f"{who}_cpu_s"))
        if None not in used:
            figures[f"{who}_cpu_s_per_1000"] = (used[1] - used[0]) / published * 1000
    if begin.database is not None and end.database is not None:
        figures["wal_bytes_per_item"] = (end.database.wal_bytes - begin.database.wal_bytes) / published
    return figures


def _acked(bench: Bench) -> float:
    """Records that the broker has acknowledged so far."""
    assert bench.deployment.metrics is not None
    found = ACKED.search(scrape.read_page(*bench.deployment.metrics))
    return 0.0 if found is None else float(found[1])


def _wait(bench: Bench, count: Callable[[], float], until: int, records: int) -> None:
    reached, moved_at = -1.0, time.monotonic()
    while (done := count()) < until:
        bench.progress(done / records, "the relay empties the outbox")
        if done > reached:
            reached, moved_at = done, time.monotonic()
        elif time.monotonic() - moved_at > STUCK_AFTER_S:
            raise ScenarioFailed(f"the relay made no progress for {STUCK_AFTER_S:.0f} s at {done:.0f} of {records}")
        time.sleep(POLL_INTERVAL_S)


SCENARIOS = [
    Scenario(
        "kafka",
        "Dispatch through Kafka: a job's way to the worker, and the relay at full speed",
        run,
        (
            Bound(figure="record_p50_ms", row=ROW, at_most=15),
            Bound(figure="relay_records_per_s", row=ROW, at_least=5_000),
        ),
        own_engine=True,
    ),
]
