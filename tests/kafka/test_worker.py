"""The worker's Kafka transport on a real broker: order, offsets, repeats, rebalances, outages, drain."""

from __future__ import annotations

import logging
import uuid
from collections import Counter, defaultdict

import anyio
import pytest
import trio

from penstock.wire.model import Job
from penstock.worker import JobContext, Worker, WorkerObserver
from penstock.worker import kafka as kafka_module
from penstock.worker.kafka import KafkaWork
from tests.kafka.dispatches import record
from tests.kafka.workers import SmallEngine, committed, make_topic, members, send, worker_of
from tests.waiting import wait_until

pytestmark = pytest.mark.kafka


@pytest.fixture
def job_type() -> str:
    return f"type-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def engine() -> SmallEngine:
    return SmallEngine()


async def until(condition) -> None:
    async def check() -> bool:
        return bool(condition())

    await wait_until(check)


async def until_committed(bootstrap: str, job_type: str, offsets: dict[int, int]) -> None:
    async def check() -> bool:
        return await committed(bootstrap, job_type) == offsets

    await wait_until(check)


async def test_jobs_run_in_instance_order_and_offsets_follow(broker, engine, job_type):
    await make_topic(broker.bootstrap, job_type, partitions=3)
    records = [record(n, job_type, instance_id=f"i{n % 7}") for n in range(70)]
    await send(broker.bootstrap, *records)
    seen: dict[str, list[str]] = defaultdict(list)
    busy: Counter[str] = Counter()
    worker = worker_of(engine, broker.bootstrap, concurrency=16)

    @worker.handler(job_type)
    async def handle(context: JobContext) -> dict[str, int]:
        busy[context.instance_id] += 1
        assert busy[context.instance_id] == 1
        await anyio.lowlevel.checkpoint()
        seen[context.instance_id].append(context.id)
        busy[context.instance_id] -= 1
        return {"n": context.variables["n"] + 1}

    async with worker:
        await until(lambda: len(engine.completed) == 70)
    assert seen == {f"i{k}": [f"j{n}" for n in range(70) if n % 7 == k] for k in range(7)}
    offsets = await committed(broker.bootstrap, job_type)
    assert sum(offsets.values()) == 70


async def test_it_runs_under_asyncio_too(broker, engine, job_type):
    await make_topic(broker.bootstrap, job_type)
    await send(broker.bootstrap, record(1, job_type))

    def run_worker() -> None:
        async def main() -> None:
            worker = worker_of(engine, broker.bootstrap)

            @worker.handler(job_type)
            async def handle() -> None:
                worker.stop()

            await worker.run(handle_signals=False)

        anyio.run(main, backend="asyncio")

    await trio.to_thread.run_sync(run_worker)
    assert engine.completed == ["j1"]
    assert await committed(broker.bootstrap, job_type) == {0: 1}


async def test_an_unfinished_job_holds_its_partition_and_heartbeats(broker, engine, job_type, monkeypatch):
    monkeypatch.setattr(kafka_module, "LAG_EVERY_S", 0.05)
    await make_topic(broker.bootstrap, job_type)
    await send(broker.bootstrap, *[record(n, job_type) for n in range(1, 6)])
    release = trio.Event()
    lags: list[int] = []

    class Observer(WorkerObserver):
        def on_lag(self, job_type: str, records: int, seconds: float) -> None:
            assert (records > 0) == (seconds > 0)
            lags.append(records)

    worker = worker_of(engine, broker.bootstrap, lease_s=5, observer=Observer())

    @worker.handler(job_type)
    async def handle(job: Job) -> None:
        if job.id == "j3":
            await release.wait()

    async with worker:
        await until(lambda: len(engine.completed) == 4)
        await until_committed(broker.bootstrap, job_type, {0: 2})
        await until(lambda: engine.beats["j3"] >= 1)
        await until(lambda: lags[-1:] == [3])
        release.set()
        await until_committed(broker.bootstrap, job_type, {0: 5})
        await until(lambda: lags[-1:] == [0])


async def test_a_repeated_record_is_one_job(broker, engine, job_type):
    await make_topic(broker.bootstrap, job_type)
    await send(broker.bootstrap, record(1, job_type), record(1, job_type), record(2, job_type))
    worker = worker_of(engine, broker.bootstrap)
    handled: Counter[str] = Counter()

    @worker.handler(job_type)
    async def handle(job: Job) -> None:
        handled[job.id] += 1

    async with worker:
        await until(lambda: len(engine.completed) == 2)
        await send(broker.bootstrap, record(1, job_type), record(3, job_type))
        await until_committed(broker.bootstrap, job_type, {0: 5})
    assert handled == {"j1": 1, "j2": 1, "j3": 1}


async def test_poison_is_skipped_and_reported(broker, engine, job_type, caplog):
    await make_topic(broker.bootstrap, job_type)
    good = record(1, job_type)
    await send(
        broker.bootstrap,
        good._replace(value=b"\xff\xff\xff"),
        good._replace(headers=()),
        record(2, job_type, schema_version=9),
        good,
    )
    worker = Worker(KafkaWork.connect(engine, [broker.bootstrap]))  # type: ignore[arg-type]
    handled: list[str] = []

    @worker.handler(job_type)
    async def handle(job: Job) -> None:
        handled.append(job.id)

    async with worker:
        await until_committed(broker.bootstrap, job_type, {0: 4})
    assert handled == ["j1"]
    skipped = [line for line in caplog.messages if line.startswith("record skipped")]
    assert [line.partition("offset ")[2][:1] for line in skipped] == ["0", "1", "2"]
    assert "schema version is 9" in skipped[2]


async def test_a_job_lost_by_heartbeat_is_passed_over(broker, engine, job_type):
    await make_topic(broker.bootstrap, job_type)
    await send(broker.bootstrap, record(1, job_type), record(2, job_type))
    engine.lost.add("j1")
    worker = worker_of(engine, broker.bootstrap, lease_s=5)

    @worker.handler(job_type)
    async def handle(job: Job) -> None:
        if job.id == "j1":
            await trio.sleep_forever()

    async with worker:
        await until_committed(broker.bootstrap, job_type, {0: 2})
    assert engine.completed == ["j2"]


async def test_results_wait_for_an_absent_engine_and_offsets_for_them(broker, engine, job_type):
    await make_topic(broker.bootstrap, job_type)
    await send(broker.bootstrap, record(1, job_type))
    engine.away = True
    handled = trio.Event()
    worker = worker_of(engine, broker.bootstrap)

    @worker.handler(job_type)
    async def handle() -> None:
        handled.set()

    async with worker:
        await handled.wait()
        assert await committed(broker.bootstrap, job_type) == {}
        engine.away = False
        await until_committed(broker.bootstrap, job_type, {0: 1})
    assert engine.completed == ["j1"]


async def test_a_drain_finishes_running_jobs_and_releases_waiting_ones(broker, engine, job_type):
    await make_topic(broker.bootstrap, job_type)
    await send(broker.bootstrap, *[record(n, job_type) for n in range(1, 9)])
    started = trio.Event()
    worker = worker_of(engine, broker.bootstrap, concurrency=2)

    @worker.handler(job_type)
    async def handle() -> None:
        started.set()
        worker.stop()
        await anyio.lowlevel.checkpoint()

    await worker.run(handle_signals=False)
    done = sorted(engine.completed + engine.released)
    assert engine.completed
    offsets = await committed(broker.bootstrap, job_type)
    assert offsets == {0: len(done)}
    # The next member of the group begins where this one ended, at once: it has left the group, which would else miss it
    # for 10 s first.
    other = worker_of(engine, broker.bootstrap)

    @other.handler(job_type)
    async def handle_too() -> None: ...

    assert await members(broker.bootstrap, job_type) == 0
    async with other:
        await until(lambda: len(engine.completed) + len(engine.released) == 8)
        assert await members(broker.bootstrap, job_type) == 1
    assert sorted(engine.completed + engine.released) == [f"j{n}" for n in range(1, 9)]


async def test_a_worker_joins_its_group_once(broker, engine, job_type, monkeypatch):
    """With two strategies on offer it joined twice, and each join began the rebalance of all members anew."""
    await make_topic(broker.bootstrap, job_type)
    await send(broker.bootstrap, record(1, job_type))
    consumers = []
    make = KafkaWork._make

    def kept(self, group):
        consumers.append(make(self, group))
        return consumers[-1]

    monkeypatch.setattr(KafkaWork, "_make", kept)
    worker = worker_of(engine, broker.bootstrap)

    @worker.handler(job_type)
    async def handle(job: Job) -> None: ...

    async with worker:
        await until(lambda: engine.completed)
        assert [consumer._coordinator.generation for consumer in consumers] == [1]


async def test_three_workers_share_partitions_and_leave_no_job(broker, engine, job_type):
    await make_topic(broker.bootstrap, job_type, partitions=6)
    handled: Counter[str] = Counter()
    by_worker: Counter[str] = Counter()

    def another() -> Worker:
        worker = worker_of(engine, broker.bootstrap, concurrency=8)

        @worker.handler(job_type)
        async def handle(job: Job) -> None:
            handled[job.id] += 1
            by_worker[worker.worker_id] += 1

        return worker

    published = 0

    async def publish() -> None:
        nonlocal published
        await send(broker.bootstrap, *[record(n, job_type) for n in range(published, published + 100)])
        published += 100

    async def all_share() -> bool:
        await publish()
        return len(by_worker) == 3

    async with another():
        await publish()
        async with another(), another():
            await wait_until(all_share)
            await publish()
        await publish()
        # What a leaving worker had not begun it gave back to the engine, which would dispatch it anew.
        await until(lambda: len(set(engine.completed + engine.released)) == published)
    assert set(handled) >= set(engine.completed)
    assert sum((await committed(broker.bootstrap, job_type)).values()) == published


async def test_a_long_job_survives_the_rebalance_that_takes_its_partition(broker, engine, job_type, monkeypatch):
    monkeypatch.setattr("penstock.worker.kafka_consumer.REVOKE_GRACE_S", 0.2)
    await make_topic(broker.bootstrap, job_type)
    await send(broker.bootstrap, record(1, job_type), record(2, job_type))
    finish = trio.Event()
    started: Counter[str] = Counter()

    def another() -> Worker:
        worker = worker_of(engine, broker.bootstrap)

        @worker.handler(job_type)
        async def handle(job: Job) -> None:
            started[job.id] += 1
            if job.id == "j1":
                await finish.wait()

        return worker

    async with another():
        await until(lambda: engine.completed == ["j2"])
        async with another():
            # Whoever has the partition now: j1 goes on where it began, and is not begun again there.
            await send(broker.bootstrap, record(3, job_type))
            await until(lambda: "j3" in engine.completed)
            finish.set()
            await until(lambda: "j1" in engine.completed)
        await until_committed(broker.bootstrap, job_type, {0: 3})
    assert set(started) == {"j1", "j2", "j3"}


async def test_a_broker_that_dies_and_comes_back_costs_no_job(own_broker, engine, job_type):
    await make_topic(own_broker.bootstrap, job_type, partitions=2)
    await send(own_broker.bootstrap, *[record(n, job_type) for n in range(20)])
    worker = worker_of(engine, own_broker.bootstrap)

    @worker.handler(job_type)
    async def handle() -> None: ...

    async with worker:
        await until(lambda: len(engine.completed) >= 1)
        await trio.to_thread.run_sync(own_broker.kill)
        await trio.to_thread.run_sync(own_broker.start)
        await send(own_broker.bootstrap, *[record(n, job_type) for n in range(20, 40)])
        await until(lambda: len(set(engine.completed)) == 40)

        async def all_committed() -> bool:
            return sum((await committed(own_broker.bootstrap, job_type)).values()) == 40

        await wait_until(all_committed)


@pytest.mark.slow(reason="waits for a broker that stalls")
async def test_a_worker_stops_in_time_while_the_broker_stalls(own_broker, engine, job_type):
    await make_topic(own_broker.bootstrap, job_type)
    await send(own_broker.bootstrap, record(1, job_type))
    worker = worker_of(engine, own_broker.bootstrap)

    @worker.handler(job_type)
    async def handle() -> None:
        own_broker.pause()

    stopped = trio.Event()

    async def run() -> None:
        await worker.run(handle_signals=False)
        stopped.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await until(lambda: engine.completed == ["j1"])
        worker.stop()
        with trio.fail_after(kafka_module.STOP_CONSUMERS_TIMEOUT_S + 15):
            await stopped.wait()


async def test_no_broker_at_the_start_is_waited_for(engine, job_type, caplog):
    caplog.set_level(logging.WARNING, "penstock.worker")
    worker = worker_of(engine, "127.0.0.1:9")

    @worker.handler(job_type)
    async def handle() -> None: ...

    async with worker:
        await until(lambda: any("no " + job_type in line for line in caplog.messages))


async def test_an_option_that_does_not_exist_ends_the_worker(engine, job_type):
    connect = KafkaWork.connect(engine, ["127.0.0.1:9"], options={"no_such_option": 1})  # type: ignore[arg-type]
    worker = Worker(connect)

    @worker.handler(job_type)
    async def handle() -> None: ...

    with pytest.RaisesGroup(TypeError, flatten_subgroups=True, allow_unwrapped=True):
        await worker.run(handle_signals=False)


def test_without_aiokafka_the_error_says_what_to_install(engine, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ImportError, match=r"pip install 'penstock-workflow\[kafka\]'"):
        KafkaWork.connect(engine, ["127.0.0.1:9"])(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - it does not get so far
