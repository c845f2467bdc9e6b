"""Engines, a real broker and Python workers, and what breaks between them: no job is lost, none counts twice."""

from __future__ import annotations

import signal
import ssl
import time
from contextlib import AsyncExitStack
from datetime import datetime

import pytest
import trio

from penstock.testing.definitions import end, service
from penstock.testing.invariants import find_broken
from penstock.worker import JobContext, Worker
from penstock.worker.kafka import KafkaWork
from tests.kafka.broker import KafkaBroker
from tests.kafka.conftest import USERS
from tests.kafka.dispatches import record
from tests.kafka.fleet import Fleet
from tests.kafka.topics import Topics
from tests.kafka.workers import send
from tests.runtime.conftest import StartEngine, start_engine

__all__ = ["start_engine"]  # pytest finds the fixture here

END_TIMEOUT_S = 60  # of a process that ends by itself, most of it for its imports on a busy machine
LEADER = "workflow_engine_dispatch_relay_leader"
pytestmark = [pytest.mark.kafka, pytest.mark.slow(reason="a real broker of Kafka")]


@pytest.fixture
def fleet(database_dsn: str, broker: KafkaBroker, start_engine: StartEngine) -> Fleet:
    return Fleet(database_dsn, broker.bootstrap, start_engine)


@pytest.fixture
def own_fleet(database_dsn: str, own_broker: KafkaBroker, start_engine: StartEngine) -> Fleet:
    return Fleet(database_dsn, own_broker.bootstrap, start_engine)


async def test_workflows_run_in_order_to_their_end(fleet):
    fleet.steps = 5
    engine = await fleet.engine()
    await fleet.upload(engine)
    async with fleet.worker(engine):
        await fleet.start(engine, 100)
        await fleet.wait_ended()
    fleet.check()
    assert fleet.repeats == 0
    assert set(map(tuple, fleet.order.values())) == {tuple(f"task-{n}" for n in range(1, 6))}
    assert engine.call("GET", "/readyz") == (200, {"status": "ready"})


async def test_each_item_of_a_list_is_its_own_record(fleet):
    engine = await fleet.engine()
    each = {"items": "${map(1..60, #)}", "as": "n", "parallel": 7, "collect": "${n}", "into": "all"}
    await fleet.upload(engine, steps=[service("each", job_type=fleet.job_type, nextStep="end", forEach=each), end()])
    async with fleet.worker(engine):
        ids = await fleet.start(engine, 3)
        await fleet.wait_ended()
    async with fleet.client(engine) as client:
        for id in ids:
            assert (await client.get_instance(id)).variables == {"all": [*range(1, 61)]}
    assert {handled: count for handled, count in fleet.handled.items() if count < 60} == {}
    assert fleet.query("SELECT count(*) FROM dispatch_outbox") == [(0,)]
    assert find_broken(fleet.dsn) == []


async def test_a_broker_killed_under_load_costs_nothing_and_readiness_tells(own_fleet, own_broker):
    fleet = own_fleet
    engine = await fleet.engine(kafka_publish_timeout_seconds=2)
    await fleet.upload(engine)
    async with fleet.worker(engine):
        await fleet.start(engine, 300)
        await fleet.wait(lambda: len(fleet.handled) > 100)
        await trio.to_thread.run_sync(own_broker.kill)
        await fleet.start(engine, 200)  # the engine goes on without the broker
        await fleet.wait(lambda: engine.call("GET", "/readyz")[1] == {"status": "ready", "degraded": ["kafka"]})
        await trio.to_thread.run_sync(own_broker.start)
        await fleet.wait_ended()
        await fleet.wait(lambda: engine.call("GET", "/readyz")[1] == {"status": "ready"})
    fleet.check()
    assert engine.metric("workflow_engine_kafka_producer_errors_total") > 0


async def test_a_broker_that_stands_still_for_seconds_is_waited_for(own_fleet, own_broker):
    fleet = own_fleet
    engine = await fleet.engine()
    await fleet.upload(engine)
    async with fleet.worker(engine):
        await fleet.start(engine, 100)
        await fleet.wait(lambda: len(fleet.handled) > 30)
        own_broker.pause()
        await fleet.start(engine, 100)
        await trio.sleep(2)
        own_broker.resume()
        await fleet.wait_ended()
    fleet.check()


async def test_an_engine_without_a_broker_says_so_and_ends(fleet):
    engine = fleet.begin_engine(kafka_seed_brokers="127.0.0.1:9", kafka_connect_timeout_seconds=1)
    assert await trio.to_thread.run_sync(engine.process.wait, END_TIMEOUT_S) == 1
    first, last = (datetime.fromisoformat(engine.lines[n]["timestamp"]) for n in (0, -1))
    assert (last - first).total_seconds() < 15
    said = "\n".join(str(line) for line in engine.lines)
    assert "no Kafka broker can be used (WE_KAFKA_SEED_BROKERS: 127.0.0.1:9): 127.0.0.1:9: Connection refused" in said
    assert "Traceback" not in said


async def test_an_engine_stops_in_time_without_a_broker(own_fleet, own_broker):
    fleet = own_fleet
    engine = await fleet.engine()
    await fleet.upload(engine)
    await fleet.start(engine, 10)
    await trio.to_thread.run_sync(own_broker.kill)
    await fleet.start(engine, 50)
    began = time.monotonic()
    assert await trio.to_thread.run_sync(engine.stop) == 0
    assert time.monotonic() - began < 15
    # Nothing was lost: the next engine publishes the rest.
    await trio.to_thread.run_sync(own_broker.start)
    engine = await fleet.engine()
    async with fleet.worker(engine):
        await fleet.wait_ended()
    fleet.check()


async def test_the_other_engine_follows_a_killed_leader(fleet):
    leader = await fleet.engine(outbox_batch_size=20)
    await fleet.upload(leader)
    await fleet.wait(lambda: leader.metric(LEADER) == 1)
    other = await fleet.engine(outbox_batch_size=20)
    async with fleet.worker(other):
        await fleet.start(other, 400)
        await fleet.wait(lambda: len(fleet.handled) > 100)
        assert other.metric(LEADER) == 0
        await trio.to_thread.run_sync(leader.kill)
        killed_at = time.monotonic()
        await fleet.wait(lambda: other.metric(LEADER) == 1)
        assert time.monotonic() - killed_at < 20
        await fleet.start(other, 100)
        await fleet.wait_ended()
    fleet.check()


async def test_three_workers_come_and_go(fleet):
    engine = await fleet.engine()
    await fleet.upload(engine)
    async with fleet.worker(engine):
        await fleet.start(engine, 100)
        async with AsyncExitStack() as more:
            await more.enter_async_context(fleet.worker(engine))
            await more.enter_async_context(fleet.worker(engine))
            while len(fleet.by_worker) < 3:
                await fleet.start(engine, 50)
            await fleet.start(engine, 200)
        await fleet.start(engine, 100)
        await fleet.wait_ended()
    fleet.check()


async def test_poison_beside_the_jobs_is_skipped(fleet):
    engine = await fleet.engine()
    await fleet.upload(engine)
    good = record(1, fleet.job_type)
    poison = [good._replace(value=b"\xff"), good._replace(headers=()), record(2, fleet.job_type, schema_version=7)]
    # Without a value, as whoever writes to the topic may send it.
    poison += [
        good._replace(headers=[(each, None if each == name else value) for each, value in good.headers])
        for name, _ in good.headers
    ]
    # Well-formed, and of a job that no engine knows.
    poison.append(record(3, fleet.job_type, job_id="abc-abc-1", instance_id="abc"))
    async with fleet.worker(engine):
        await fleet.start(engine, 20)
        await send(fleet.bootstrap, *poison)
        await fleet.start(engine, 20)
        await fleet.wait_ended()
    del fleet.handled["abc", "s"]
    fleet.check()


async def test_a_missing_topic_holds_up_its_own_jobs_only(fleet):
    engine = await fleet.engine(kafka_create_topics="false")
    topics = Topics(fleet.bootstrap)
    await topics.make_all({fleet.topic: 2})
    await fleet.upload(engine)
    good, fleet.job_type = fleet.job_type, f"{fleet.job_type}-missing"
    await fleet.upload(engine, id="missing")
    bad, fleet.job_type = fleet.job_type, good
    async with fleet.worker(engine):
        stuck = await fleet.start(engine, 20, "missing")
        await fleet.start(engine, 50)
        await fleet.wait(lambda: len(fleet.handled) == 150)
        assert {instance for instance, _ in fleet.handled}.isdisjoint(stuck)
        assert engine.call("GET", "/readyz") == (200, {"status": "ready"})
        await fleet.wait(lambda: "UNKNOWN_TOPIC_OR_PARTITION" in str(engine.lines))
        await topics.make_all({f"workflow.jobs.{bad}": 2})
        fleet.job_type = bad
        async with fleet.worker(engine):
            await fleet.wait_ended(60)
    fleet.check()


async def test_a_topic_missing_at_the_start_is_named(fleet):
    engine = await fleet.engine()
    await fleet.upload(engine)
    missing = f"{fleet.topic}-2"
    fleet.job_type += "-2"
    assert await trio.to_thread.run_sync(engine.stop) == 0
    polling = await fleet.engine(dispatch_mode="polling")
    await fleet.upload(polling)
    assert await trio.to_thread.run_sync(polling.stop) == 0
    engine = fleet.begin_engine(kafka_create_topics="false")
    assert await trio.to_thread.run_sync(engine.process.wait, END_TIMEOUT_S) == 1
    assert f"Kafka topics are missing: '{missing}'" in str(engine.lines)


async def test_everything_runs_over_sasl_and_tls(fleet, broker, authority, tmp_path):
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    [(user, password)] = USERS.items()
    engine = await fleet.engine(
        kafka_seed_brokers=broker.sasl_bootstrap,
        kafka_transport="sasl_scram_tls",
        kafka_sasl_mechanism="SCRAM-SHA-256",
        kafka_sasl_username=user,
        kafka_sasl_password=password,
        kafka_tls_ca_path=ca,
    )
    await fleet.upload(engine)
    options = {
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=str(ca)),
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }
    async with fleet.worker(engine, options=options, bootstrap=broker.sasl_bootstrap):
        await fleet.start(engine, 20)
        await fleet.wait_ended()
    fleet.check()
    assert password not in str(engine.lines)


async def test_a_leader_standing_still_is_followed_and_harmless_later(fleet):
    leader = await fleet.engine(outbox_batch_size=20)
    await fleet.upload(leader)
    await fleet.wait(lambda: leader.metric(LEADER) == 1)
    other = await fleet.engine(outbox_batch_size=20)
    async with fleet.worker(other):
        await fleet.start(other, 200)
        await fleet.wait(lambda: len(fleet.handled) > 50)
        leader.process.send_signal(signal.SIGSTOP)
        await fleet.start(other, 50)
        await fleet.wait(lambda: other.metric(LEADER) == 1)
        leader.process.send_signal(signal.SIGCONT)
        await fleet.start(other, 50)
        await fleet.wait_ended()
        await fleet.wait(lambda: leader.process.poll() is not None or leader.metric(LEADER) == 0)
    fleet.check()


async def test_jobs_released_by_a_draining_worker_are_dispatched_at_once(fleet):
    fleet.steps = 1
    engine = await fleet.engine()
    await fleet.upload(engine)
    begun: list[str] = []
    worker = Worker(KafkaWork.connect(f"http://127.0.0.1:{engine.port}", [fleet.bootstrap]), drain_grace_s=0.1)

    @worker.handler(fleet.job_type)
    async def handle(context: JobContext) -> None:
        begun.append(context.instance_id)
        await trio.sleep_forever()

    async with worker:
        await fleet.start(engine, 5)
        await fleet.wait(lambda: len(begun) == 5)
    assert worker.statistics().released == 5
    async with fleet.worker(engine):
        await fleet.wait_ended(15)
    fleet.check()
    attempts = fleet.query("SELECT attempt FROM history WHERE kind = 1")
    assert {attempt for (attempt,) in attempts} == {2}
