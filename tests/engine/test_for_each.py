"""forEach through the engine: jobs, tasks and calls of items, and what is kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from penstock.core.advance.for_each import STARTED_MAX_COUNT
from penstock.engine.queues.variables import FOLD_MIN_DELTAS
from penstock.errors import LeaseLost
from penstock.settings.secret import Secret
from penstock.store.rows import retention
from penstock.testing.definitions import Json, definition, end, timer
from penstock.testing.invariants import assert_invariants
from penstock.wire.edits import StepSkip, TokenMove
from penstock.wire.model import Completion, ItemCounts, Job, Park
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number, selected, variables_of
from tests.engine.test_calls import settle
from tests.engine.test_encryption import KEYS
from tests.shapes import call, task, user

KEPT = ("map_state", "item_vars", "map_result")


def prices(**fields: Any) -> Json:
    """A price for each line, then a task `total`."""
    each: Json = {
        "items": "${lines}", "as": "line", "index": "i", "collect": "${result.price}", "into": "prices", **fields,
    }  # fmt: skip
    more = {name: each.pop(name) for name in ("retryCount", "boundaryEvents") if name in each}
    return definition(task("price", "total", forEach=each, **more), task("total"), end(), definition_id="prices")


async def begun(driver: Driver, body: Json, lines: Sequence[object]) -> str:
    await driver.upload(body)
    return (await driver.start(str(body["id"]), {"lines": list(lines), "shop": "s"})).id


async def jobs(driver: Driver, *, n: int = 100) -> dict[int, Job]:
    """What waits for a worker of `price`, by the index of its item."""
    return {variables_of(job)["i"]: job for job in await driver.poll("price", n=n)}


def kept(driver: Driver) -> list[int]:
    """How many rows are kept of forEach steps, by table."""
    return [driver.rows(f"SELECT count(*) FROM {table}")[0][0] for table in KEPT]


async def test_each_item_is_a_job_with_its_own_variables(make_driver: MakeDriver) -> None:
    driver = make_driver()
    instance = await begun(driver, prices(parallel=2), [{"sku": "a"}, {"sku": "b"}, {"sku": "c"}])
    assert await driver.open_steps(instance) == ["price"]
    waiting = await jobs(driver)
    lines = [{"sku": "a"}, {"sku": "b"}, {"sku": "c"}]
    assert [variables_of(job) for _, job in sorted(waiting.items())] == [
        {"lines": lines, "shop": "s", "line": lines[i], "i": i} for i in (0, 1)
    ]
    assert kept(driver) == [1, 3, 0]
    await driver.complete(waiting[1], {"price": 20, "shop": "another"})
    [(index, third)] = (await jobs(driver)).items()
    assert index == 2
    assert kept(driver) == [1, 3, 1]
    assert_invariants(driver.dsn)
    await driver.complete(third, {"price": 30})
    await driver.complete(waiting[0], {"price": 10})
    assert await driver.open_steps(instance) == ["total"]
    assert await driver.variables(instance) == {"lines": lines, "shop": "s", "prices": [10, 20, 30]}
    assert kept(driver) == [0, 0, 0]
    rows = driver.rows("SELECT item, kind FROM history ORDER BY pos")
    assert rows == [(1, 1), (2, 1), (0, 1), (None, 1)]
    assert_invariants(driver.dsn)


async def test_jobs_of_items_are_dispatched_directly_with_their_variables(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(prices())
    found: list[Job] = []

    async def worker() -> None:
        found.extend(await driver.poll("price", n=5, wait=60))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker)
        with trio.fail_after(60):
            while not len(driver.engine.polls.waiters):
                await trio.lowlevel.checkpoint()
        await driver.start("prices", {"lines": ["x", "y"]})
    waiting = {variables_of(job)["i"]: job for job in [*found, *(await jobs(driver)).values()]}
    assert {i: variables_of(job)["line"] for i, job in waiting.items()} == {0: "x", 1: "y"}


async def test_items_that_end_together_are_one_transaction(make_driver: MakeDriver) -> None:
    driver = make_driver()
    instance = await begun(driver, prices(parallel=10), range(40))
    for _ in range(4):
        waiting = await jobs(driver)
        async with trio.open_nursery() as nursery:
            for i, job in waiting.items():
                nursery.start_soon(driver.complete, job, {"price": i * 10})
    assert await driver.open_steps(instance) == ["total"]
    assert (await driver.variables(instance))["prices"] == [i * 10 for i in range(40)]
    transactions = driver.rows("SELECT count(DISTINCT ended_at) FROM history WHERE item IS NOT NULL")[0][0]
    assert transactions < 20
    assert_invariants(driver.dsn)


async def test_a_fold_writes_no_token_of_a_waiting_item(make_driver: MakeDriver) -> None:
    """Each would cost a lock and an update, 150 B of WAL, every 64 items."""
    driver = make_driver()
    await begun(driver, prices(parallel=100), list(range(200)))
    taken = list((await jobs(driver, n=FOLD_MIN_DELTAS)).values())
    versions = "SELECT id, xmin::text FROM token WHERE item IS NOT NULL AND state = 0 ORDER BY id"
    waiting = driver.rows(versions)
    folded = driver.rows("SELECT folded_pos FROM instance")
    done = [
        Completion(job_id=job.id, attempt=job.attempt, variables=b"{}", worker_id=job.worker_id or "") for job in taken
    ]
    assert {outcome.outcome for outcome in await driver.engine.jobs.complete_many(done)} == {"ok"}
    assert driver.rows("SELECT folded_pos FROM instance") > folded
    assert driver.rows("SELECT max(unfolded) FROM token") == [(0,)]
    assert len(waiting) == 100 - FOLD_MIN_DELTAS
    assert set(waiting) < set(driver.rows(versions))
    assert_invariants(driver.dsn)


async def test_many_items_begin_in_slices(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await begun(driver, prices(parallel=1000), range(250))
    assert driver.rows("SELECT count(*) FROM ready") == [(STARTED_MAX_COUNT,)]
    assert_invariants(driver.dsn)
    await settle(driver)
    assert driver.rows("SELECT count(*) FROM ready") == [(250,)]
    assert_invariants(driver.dsn)


async def test_a_list_of_ten_thousand_items_is_kept(make_driver: MakeDriver) -> None:
    driver = make_driver()
    instance = await begun(driver, prices(), [{"sku": f"item {i}"} for i in range(10_000)])
    assert kept(driver) == [1, 10_000, 0]
    assert driver.rows("SELECT vars FROM item_vars WHERE item = 9999") == [({"i": 9999, "line": {"sku": "item 9999"}},)]
    await driver.cancel(instance)
    assert kept(driver) == [0, 0, 0]
    assert_invariants(driver.dsn)


async def test_a_failed_item_fails_it_and_a_retry_goes_on(make_driver: MakeDriver) -> None:
    driver = make_driver()
    instance = await begun(driver, prices(parallel=3), [1, 2, 3, 4])
    waiting = await jobs(driver)
    await driver.complete(waiting[0], {"price": 10})
    await driver.fail(waiting[1], "no such line", retryable=False)
    view = await driver.view(instance)
    assert (view.status, view.failure_reason, view.failure_code) == (
        "FAILED", "no such line", "Penstock.NotRetryable",
    )  # fmt: skip
    assert [job.id for job in (await driver.engine.jobs.failed(0, 10, "price")).items] == [waiting[1].id]
    assert kept(driver) == [1, 4, 1]
    assert_invariants(driver.dsn)
    await driver.retry(instance)
    assert_invariants(driver.dsn)
    waiting = await jobs(driver)
    assert waiting.keys() == {1, 2, 3}
    for i, job in waiting.items():
        await driver.complete(job, {"price": i * 10 + 10})
    assert (await driver.variables(instance))["prices"] == [10, 20, 30, 40]
    assert await driver.open_steps(instance) == ["total"]
    assert_invariants(driver.dsn)


async def test_errors_of_items_may_be_collected(make_driver: MakeDriver) -> None:
    driver = make_driver()
    instance = await begun(driver, prices(onError="COLLECT"), [1, 2])
    waiting = await jobs(driver)
    await driver.fail(waiting[1], "gone", retryable=False, error_code="GONE")
    assert driver.rows("SELECT failed, next FROM map_state") == [(1, 2)]
    await driver.complete(waiting[0], {"price": 1})
    assert (await driver.variables(instance))["prices"] == [1, {"error": {"code": "GONE", "message": "gone"}}]
    assert_invariants(driver.dsn)


async def test_boundaries_are_of_the_whole_step(make_driver: MakeDriver) -> None:
    driver = make_driver()
    late = timer("late", "PT1H", interrupting=True)
    body = prices(boundaryEvents=[late])
    body["steps"].insert(1, task("late"))  # type: ignore[attr-defined]  # a list  # pyright: ignore[reportAttributeAccessIssue] - likewise
    instance = await begun(driver, body, [1, 2])
    waiting = await jobs(driver)
    assert driver.rows("SELECT index::int FROM timer") == [(0,)]
    assert_invariants(driver.dsn)
    await driver.due(3601)
    assert await driver.open_steps(instance) == ["late"]
    assert kept(driver) == [0, 0, 0]
    with pytest.raises(LeaseLost):
        await driver.complete(waiting[0])
    assert_invariants(driver.dsn)


async def test_a_user_task_comes_for_each_item(make_driver: MakeDriver) -> None:
    driver = make_driver()
    each: Json = {"items": "${who}", "collect": "${result.ok}", "into": "oks"}
    body = definition(user("approve", forEach=each), end(), definition_id="approvals")
    await driver.upload(body)
    instance = (await driver.start("approvals", {"who": ["ann", "bob"]})).id
    assert await driver.status(instance) == "WAITING"
    assert driver.rows("SELECT count(*) FROM open_task") == [(2,)]
    for ok in (True, False):
        await driver.finish_task(instance, "approve", {"ok": ok})
    assert await driver.status(instance) == "COMPLETED"
    assert (await driver.variables(instance))["oks"] == [True, False]
    assert_invariants(driver.dsn)


async def test_a_call_is_made_for_each_item(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(definition(task("pack"), {**end(), "output": {"box": "${n * 2}"}}, definition_id="child"))
    each: Json = {"items": "${lines}", "as": "line", "parallel": 2, "collect": "${result.box}", "into": "boxes"}
    body = definition(call("pack-all", "child", forEach=each, input={"n": "${line}"}), end(), definition_id="parent")
    await driver.upload(body)
    instance = (await driver.start("parent", {"lines": [1, 2, 3]})).id
    for _ in range(3):
        for job in await driver.poll("pack", n=10):
            await driver.complete(job)
        await settle(driver)
        assert_invariants(driver.dsn)
    assert await driver.status(instance) == "COMPLETED"
    assert (await driver.variables(instance))["boxes"] == [2, 4, 6]


async def test_items_closed_by_a_cancel_cancel_what_they_called(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(definition(task("pack"), end(), definition_id="child"))
    body = definition(call("all", "child", forEach={"items": "${1..150}", "parallel": 150}), end(), definition_id="p")
    await driver.upload(body)
    instance = (await driver.start("p")).id
    await settle(driver)
    assert driver.rows("SELECT count(*) FROM called") == [(150,)]
    await driver.cancel(instance)
    await settle(driver)
    assert driver.rows("SELECT status, count(*) FROM instance GROUP BY 1") == [(3, 151)]
    assert_invariants(driver.dsn)


async def test_what_is_kept_of_items_is_encrypted(make_driver: MakeDriver) -> None:
    driver = make_driver(encryption_keys=Secret(KEYS["k1"]))
    instance = await begun(driver, prices(parallel=1), ["a secret", "b"])
    assert "secret" not in str(driver.rows("SELECT vars::text FROM item_vars"))
    for i in range(2):
        [job] = (await jobs(driver)).values()
        assert variables_of(job)["line"] == ["a secret", "b"][i]
        await driver.complete(job, {"price": "hidden"})
        assert "hidden" not in str(driver.rows("SELECT value::text FROM map_result"))
    assert (await driver.variables(instance))["prices"] == ["hidden", "hidden"]


async def test_signals_of_a_parked_item_are_its_own(make_driver: MakeDriver) -> None:
    driver = make_driver()
    instance = await begun(driver, prices(), [1])
    [job] = (await jobs(driver)).values()
    park = Park(job_id=job.id, attempt=job.attempt, worker_id="w1", until=None, signal="paid")
    await driver.engine.jobs.park(park)
    await driver.signal(instance, "paid", {"amount": 7})
    [job] = (await jobs(driver)).values()
    assert variables_of(job)["amount"] == 7
    assert "amount" not in await driver.variables(instance)
    assert_invariants(driver.dsn)


async def test_what_is_kept_of_a_failed_instance_goes_with_it(make_driver: MakeDriver) -> None:
    driver = make_driver()
    instance = await begun(driver, prices(), [1, 2])
    await driver.fail((await jobs(driver))[0], "boom", retryable=False)
    assert kept(driver) == [1, 2, 0]
    async with driver.engine.database.connection() as connection:
        removed = await retention.remove_instances(connection, [selected(driver, instance)])
    assert removed == [number(instance)]
    assert kept(driver) == [0, 0, 0]


async def test_the_history_counts_the_items_of_a_step(make_driver: MakeDriver) -> None:
    driver = make_driver()
    instance = await begun(driver, prices(parallel=2, onError="COLLECT", until="${i == 2}"), [1, 2, 3, 4, 5])
    for i, job in (await jobs(driver)).items():
        await (driver.fail(job, "gone", retryable=False) if i == 0 else driver.complete(job, {"price": 1}))
    history = [(item.item, item.status, item.items, item.attempt_number) for item in await driver.history(instance)]
    assert history == [
        (None, "RUNNING", ItemCounts(total=5, completed=1, failed=1, running=2), 1),
        (0, "FAILED", None, 1),
        (1, "COMPLETED", None, 1),
        (2, "RUNNING", None, 1),
        (3, "RUNNING", None, 1),
    ]
    waiting = await jobs(driver)
    await driver.complete(waiting[2], {"price": 1})
    history = [
        (item.item, item.status, item.items) for item in await driver.history(instance) if item.step_id == "price"
    ]
    assert history[0] == (None, "COMPLETED", ItemCounts(total=5, completed=2, failed=1, running=0))
    assert (history[-1][:2], len(history)) == ((3, "SKIPPED"), 5)
    page = await driver.engine.diagnosis.history(instance, None, 10, output=False)
    assert [(item.item, item.items) for item in page.items if item.items is not None] == [(None, history[0][2])]


async def test_of_a_list_that_failed_the_whole_is_skipped(driver: Driver) -> None:
    """Its items that were about to begin have no place in the order yet."""
    body = definition(call("each", "nowhere", "after", forEach={"items": "${[1, 2, 3]}"}), task("after"), end())
    instance = await driver.run(body)
    assert (await driver.view(instance)).failure_code == "Penstock.DefinitionNotFound"
    await driver.engine.repair.skip(instance, StepSkip("each"))
    assert await driver.open_steps(instance) == ["after"]
    assert_invariants(driver.dsn)


async def test_an_item_sent_to_an_end_takes_the_list_along(driver: Driver) -> None:
    instance = await driver.run(definition(task("each", "end", forEach={"items": "${[1, 2]}"}), end()))
    job = await driver.one("each")
    await driver.engine.repair.move(instance, TokenMove("each", "end", execution_id=job.id))
    history = await driver.history(instance)
    assert [(one.step_id, one.item, one.status) for one in history] == [
        ("each", None, "SKIPPED"), ("each", 0, "SKIPPED"), ("each", 1, "SKIPPED"), ("end", None, "COMPLETED"),
    ]  # fmt: skip
    assert await driver.status(instance) == "COMPLETED"
