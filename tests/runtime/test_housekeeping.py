"""The chores: what is purged and what is measured."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from penstock.runtime import housekeeping
from penstock.runtime.housekeeping import LAG_INTERVAL_S, Housekeeping
from penstock.store.rows import batches
from penstock.telemetry.metrics import Metrics
from penstock.testing.definitions import linear
from penstock.wire.queue import QueuePolicy, Rate
from tests.runtime.conftest import StartLocal


async def test_idempotency_keys_go_after_their_time_and_not_before(start_local: StartLocal) -> None:
    engine = await start_local(services=False, idempotency_retention_hours=24)
    await engine.upload(linear(1))
    first = await engine.start("linear", idempotency_key="k")
    chores = Housekeeping(engine.engine)
    engine.clock.advance(23 * 3600)
    await chores.run_once()
    assert (await engine.start("linear", idempotency_key="k")).id == first.id
    engine.clock.advance(2 * 3600)
    await chores.run_once()
    assert engine.rows("SELECT count(*) FROM idempotency") == [(0,)]
    assert (await engine.start("linear", idempotency_key="k")).id != first.id


async def test_a_round_removes_all_keys_that_are_old_enough(start_local: StartLocal) -> None:
    engine = await start_local(services=False)
    engine.rows(
        """WITH kept AS (INSERT INTO idempotency (scope, key, request_hash, instance_id, created_at)
           SELECT 'start', 'key-' || k, '', k, penstock_now() - interval '25 hours' FROM generate_series(1, 2500) AS k)
           SELECT 1"""
    )
    await Housekeeping(engine.engine).run_once()
    assert engine.rows("SELECT count(*) FROM idempotency") == [(0,)]


async def test_a_round_removes_all_windows_that_are_over(start_local: StartLocal) -> None:
    engine = await start_local(services=False)
    engine.rows(
        """WITH kept AS (INSERT INTO start_window (definition_id, kind, key, until, instance_id)
           SELECT 'd', 1 + mod(k, 3), 'key-' || k, penstock_now() + (k - 2499) * interval '1 h', k
           FROM generate_series(1, 2501) AS k) SELECT 1"""
    )
    await Housekeeping(engine.engine).run_once()
    assert engine.rows("SELECT key FROM start_window ORDER BY key") == [("key-2500",), ("key-2501",)]


async def test_a_round_removes_all_batches_that_are_old_enough(
    start_local: StartLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces of a few items, by which a transaction is bounded."""
    monkeypatch.setattr(housekeeping, "PURGE_MAX_ITEMS", 10)
    engine = await start_local(services=False, retention_days=1)
    engine.rows(
        """WITH made AS (INSERT INTO batch (digest, total, begun, ended, actor, created_at, ended_at)
             SELECT '', 4, 4, 4, 'a', penstock_now() - interval '9 days', penstock_now() - k * interval '1 h'
             FROM generate_series(1, 60) AS k RETURNING id),
           items AS (INSERT INTO batch_item (batch, place, error)
             SELECT id, p, 'e' FROM made, generate_series(0, 3) AS p)
           SELECT 1"""
    )
    async with engine.engine.database.connection() as connection:
        assert await batches.purge(connection, 1, 100, 10) == 3
    assert engine.rows("SELECT count(*) FROM batch_item") == [(57 * 4,)]
    await Housekeeping(engine.engine).run_once()
    assert engine.rows("SELECT count(*), max(penstock_now() - ended_at) < interval '1 day' FROM batch") == [(23, True)]
    assert engine.rows("SELECT count(*) FROM batch_item") == [(23 * 4,)]


async def test_places_that_count_nothing_any_more_are_removed(start_local: StartLocal) -> None:
    """Not a queue's own row, nor one that an attempt holds, nor a key's whose rate is not paid for yet."""
    engine = await start_local(services=False)
    await engine.upload(linear(1))
    await engine.engine.queues.put("paced", QueuePolicy(["work"], rate_per_key=Rate(1, "PT1M")))
    await engine.engine.queues.put("gone", QueuePolicy(["other"]))
    await engine.engine.queues.delete("gone")
    engine.rows("INSERT INTO slot (queue, flow_key, running) SELECT queue, 'held', 1 FROM slot RETURNING 1")
    engine.rows("INSERT INTO slot (queue, flow_key) SELECT queue, 'idle' FROM slot WHERE flow_key = '' RETURNING 1")
    await engine.start("linear", flow_key="paced")
    await engine.complete(await engine.one("work"))
    keys = "SELECT q.name, s.flow_key FROM slot s LEFT JOIN queue q ON q.id = s.queue ORDER BY s.queue, s.flow_key"
    await Housekeeping(engine.engine).run_once()
    assert engine.rows(keys) == [("paced", ""), ("paced", "held"), ("paced", "paced"), (None, "held")]
    engine.clock.advance(61)
    await Housekeeping(engine.engine).run_once()
    assert engine.rows(keys) == [("paced", ""), ("paced", "held"), (None, "held")]
    engine.rows("UPDATE slot SET running = 0 RETURNING 1")
    await Housekeeping(engine.engine).run_once()
    assert engine.rows(keys) == [("paced", "")]


async def test_the_depth_of_the_queues_is_measured(start_local: StartLocal) -> None:
    engine = await start_local(services=False)
    await engine.upload(linear(1))
    engine.clock.stop()
    for _ in range(3):
        await engine.start("linear")
    engine.clock.advance(60)
    assert await Housekeeping(engine.engine).run_once() == 1
    registry = engine.engine.metrics.registry
    samples = {s.name: s.value for metric in registry.collect() for s in metric.samples if s.labels.get("job_type")}
    depths = [value for name, value in samples.items() if "queue" in name or "ready" in name]
    assert 3 in depths
    assert 60 in depths


async def test_a_blocked_loop_shows_as_lag(mock_clock: trio.testing.MockClock) -> None:
    lags: list[float] = []

    class Bare:
        metrics = Metrics("test")

        class polls:  # noqa: N801 - the engine's attribute
            waiters: tuple[()] = ()

            class activity:  # noqa: N801 - the polls'
                observe_lag = lags.append

    bare: Any = Bare()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Housekeeping(bare).measure_lag)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(LAG_INTERVAL_S + 0.7)
    lag = sum(
        m.value for f in Bare.metrics.registry.collect() for m in f.samples if m.name.endswith("loop_lag_seconds_sum")
    )
    assert 0.69 < lag < 0.71
    assert lags == [pytest.approx(lag)]
