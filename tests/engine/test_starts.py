"""Starting instances and uploading definitions, also several at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import pytest
import trio

from penstock.core.advance.advance import advance as real_advance
from penstock.core.graph.definition import Definition
from penstock.engine.advance import advancer
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.engine.starts import starts as commit_queues
from penstock.errors import BadRequest, IdempotencyConflict, NotFound
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import IdTaken
from penstock.store.db.outcome import InDoubt
from penstock.store.rows import instances as store
from penstock.store.rows.definitions import active_keys
from penstock.testing.definitions import definition, end, fork, linear, service, step
from penstock.wire.model import Instance, StartRequest
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number
from tests.waiting import wait_until


async def are_parked(driver: Driver, polls: int) -> bool:
    return len(driver.engine.polls.waiters) == polls


async def gather(*functions: Any) -> list[Any]:
    results: dict[int, Any] = {}

    async def run(index: int, function: Any) -> None:
        results[index] = await function()

    async with trio.open_nursery() as nursery:
        for index, function in enumerate(functions):
            nursery.start_soon(run, index, function)
    return [results[index] for index in range(len(functions))]


async def test_only_changed_content_makes_a_new_version(driver: Driver) -> None:
    await driver.upload(linear(1))
    await driver.upload(linear(1))
    assert (await driver.engine.definitions.get("linear")).version == 1
    await driver.upload(linear(2))
    assert (await driver.engine.definitions.get("linear")).version == 2
    assert len((await driver.engine.definitions.get("linear", 1)).definition.steps) == 2
    await driver.upload(linear(1))  # the content of an older version: that version, and no new one
    assert driver.rows("SELECT count(*) FROM definition") == [(2,)]
    with pytest.raises(NotFound):
        await driver.engine.definitions.get("linear", 3)


async def test_uploads_at_once_never_make_the_same_version(make_driver: MakeDriver) -> None:
    one, two = make_driver(1), make_driver(2)
    bodies = [linear(length) for length in (1, 2, 3, 1, 2, 3)]
    await gather(*(lambda b=body, d=driver: d.upload(b) for body in bodies for driver in (one, two)))
    versions = [version for (version,) in one.rows("SELECT version FROM definition ORDER BY 1")]
    assert versions == list(range(1, len(versions) + 1))


async def test_running_instances_stay_on_their_version(driver: Driver) -> None:
    await driver.upload(linear(1))
    view = await driver.start("linear")
    await driver.upload(linear(2))
    await driver.complete(await driver.one("work"))
    assert (await driver.view(view.id)).status == "COMPLETED"
    assert (await driver.start("linear")).definition_version == 2
    assert (await driver.start("linear", definition_version=1)).definition_version == 1


async def test_a_new_version_is_started_though_none_is_asked_for(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement that starts sees whether the version that the engine remembers is the latest."""
    one, two = make_driver(1), make_driver(2)
    asked: list[list[str]] = []

    async def counted(connection: TrioConnection, ids: list[str]) -> dict[str, int]:
        asked.append(ids)
        return await active_keys(connection, ids)

    monkeypatch.setattr(commit_queues, "active_keys", counted)
    await one.upload(linear(1, job_type="old"))
    for _ in range(3):
        await one.start("linear")
    assert asked == [["linear"]]
    assert len(await one.poll("old")) == 3
    await two.upload(linear(2, job_type="new"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(one.poll, "old", wait=50))  # it is not to get a job of the new version

        async def is_parked() -> bool:
            return len(one.engine.polls.waiters) == 1

        await wait_until(is_parked)
        assert [(await one.start("linear")).definition_version for _ in range(2)] == [2, 2]
        assert asked == [["linear"], ["linear"]]
        assert [waiter.free_slots for waiter in one.engine.polls.waiters.idle_for("old")] == [10]
        nursery.cancel_scope.cancel()
    assert [job.definition_version for job in await one.poll("new")] == [2, 2]
    two.rows("UPDATE definition SET id = 'gone' RETURNING 1")
    with pytest.raises(NotFound):
        await one.start("linear")
    two.rows("UPDATE definition SET id = 'linear' RETURNING 1")


async def test_a_start_in_doubt_stays_the_version_that_was_tried(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first try goes on without us, and is committed after all else; the second one finds another version, which
    takes the full path, under another id."""
    one, two = make_driver(1), make_driver(2)
    tries: list[Sequence[store.FastStart]] = []
    start_fast = store.start_fast

    async def doubtful(connection: TrioConnection, items: Sequence[store.FastStart], **named: Any) -> list[store.Begun]:
        tries.append(items)
        if len(tries) == 1:
            await two.upload(fork(1, 1, definition_id="linear"))
            raise InDoubt("it goes on without us")
        return await start_fast(connection, items, **named)

    await one.upload(linear(1))
    await one.start("linear")
    monkeypatch.setattr(store, "start_fast", doubtful)
    assert (await one.start("linear")).definition_version == 1
    assert (await one.start("linear")).definition_version == 2
    async with one.engine.database.connection() as connection:
        with pytest.raises(IdTaken):
            await start_fast(connection, tries[0])
    assert one.rows("SELECT count(*) FROM instance") == [(3,)]


@pytest.mark.parametrize("committed", [False, True])
async def test_a_start_in_doubt_takes_a_newer_plain_version(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    """Its first try assumed an older one. Where that was committed after all, before the third, it is the answer."""
    one, two = make_driver(1), make_driver(2)
    tries: list[Sequence[store.FastStart]] = []
    start_fast = store.start_fast

    async def doubtful(connection: TrioConnection, items: Sequence[store.FastStart], **named: Any) -> list[store.Begun]:
        tries.append(items)
        if len(tries) == 1:
            raise InDoubt("it goes on without us")
        if committed and len(tries) == 3:
            async with two.engine.database.connection() as other:
                await start_fast(other, tries[0], to_outbox=False)
        return await start_fast(connection, items, **named)

    await one.upload(linear(1))
    await one.start("linear")
    await two.upload(linear(2) | {"id": "linear"})
    monkeypatch.setattr(store, "start_fast", doubtful)
    begun = await one.start("linear")
    assert begun.definition_version == (1 if committed else 2)
    assert one.rows("SELECT count(*), max(definition) FROM instance") == [(2, begun.definition_version)]


async def test_a_start_in_doubt_gives_no_poll_another_type(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker polls for two types, each apart. The first try, for a poll of one, is committed after all while the
    latest version is tried for that of the other."""
    one, two = make_driver(1), make_driver(2)
    tries: list[Sequence[store.FastStart]] = []
    start_fast = store.start_fast

    async def doubtful(connection: TrioConnection, items: Sequence[store.FastStart], **named: Any) -> list[store.Begun]:
        tries.append(items)
        if len(tries) == 1:
            raise InDoubt("it goes on without us")
        if len(tries) == 3:
            async with two.engine.database.connection() as other:
                await start_fast(other, tries[0], to_outbox=False)
        return await start_fast(connection, items, **named)

    await one.upload(linear(1, job_type="old"))
    await one.start("linear")
    assert len(await one.poll("old")) == 1
    await two.upload(linear(2, job_type="new") | {"id": "linear"})
    monkeypatch.setattr(store, "start_fast", doubtful)
    async with trio.open_nursery() as nursery:
        for job_type in ("old", "new"):
            nursery.start_soon(partial(one.poll, job_type, wait=50))
        await wait_until(lambda: are_parked(one, 2))
        assert (await one.start("linear")).definition_version == 1
        assert [tried[0].direct_to for tried in tries] == ["w1"] * 3
        (idle,) = one.engine.polls.waiters.idle_for("new")
        assert (idle.free_slots, idle.jobs) == (10, [])
        nursery.cancel_scope.cancel()


async def test_unknown_definitions_and_versions_are_not_found(driver: Driver) -> None:
    await driver.upload(linear(1))
    for fields in ({"definition": "nowhere"}, {"definition": "linear", "definition_version": 9}):
        with pytest.raises(NotFound):
            await driver.start(**fields)  # pyright: ignore[reportArgumentType] - a stand-in
    with pytest.raises(BadRequest):
        await driver.start("")
    assert driver.rows("SELECT count(*) FROM instance") == [(0,)]


async def test_an_idempotency_key_gives_the_first_answer_again(make_driver: MakeDriver) -> None:
    one, two = make_driver(1), make_driver(2)
    await one.upload(linear(1))
    views: list[Instance] = await gather(
        *(lambda d=driver: d.start("linear", {"a": 1}, idempotency_key="k") for driver in (one, two) * 5)
    )
    assert len({view.id for view in views}) == 1
    assert one.rows("SELECT count(*) FROM instance") == [(1,)]
    with pytest.raises(IdempotencyConflict):
        await one.start("linear", {"a": 2}, idempotency_key="k")
    await one.complete(await one.one("work"))
    again = await two.start("linear", {"a": 1}, idempotency_key="k")
    assert (again.id, again.status) == (views[0].id, "ACTIVE")


async def test_an_instance_key_is_unique_among_open_instances(make_driver: MakeDriver) -> None:
    one, two = make_driver(1), make_driver(2)
    await one.upload(linear(1))
    views = await gather(*(lambda d=driver: d.start("linear", instance_key="order-7") for driver in (one, two) * 5))
    assert len({view.id for view in views}) == 1
    assert sum(view.deduplicated is None for view in views) == 1, "the others were told whose it is"
    await one.complete(await one.one("work"))
    later = await one.start("linear", instance_key="order-7")
    assert (later.id != views[0].id, later.deduplicated) == (True, None)


async def test_a_batch_start_answers_each_item(driver: Driver) -> None:
    await driver.upload(linear(1))
    results = await driver.engine.instances.start_batch(
        [
            StartRequest(definition_id="linear", variables=b'{"n":1}'),
            StartRequest(definition_id="nowhere"),
            StartRequest(definition_id=""),
            StartRequest(definition_id="linear", business_key="b"),
        ]
    )
    assert [result.error for result in results] == [None, "not-found", "bad-request", None]
    assert driver.rows("SELECT count(*) FROM instance") == [(2,)]


async def test_a_start_that_runs_to_its_end_at_once(driver: Driver) -> None:
    await driver.upload(
        definition(step("t", "TRANSFORMATION", transformations={"x": "${1 + 1}"}, nextStep="end"), end())
    )
    view = await driver.start("test", {"a": 1})
    assert (view.status, view.current_step_ids, msgspec.json.decode(view.variables)) == (  # pyright: ignore[reportArgumentType] - a stand-in
        "COMPLETED",
        [],
        {"a": 1, "x": 2},
    )
    assert view.completed_at is not None
    assert (await driver.view(view.id)).completed_at == view.completed_at


async def test_more_automatic_steps_than_allowed_fail_the_instance(make_driver: MakeDriver) -> None:
    driver = make_driver(max_automatic_steps=50)
    loop = step("d", "DECISION", conditionalNextSteps={"n < 0": "end", "true": "t"})
    await driver.upload(definition(step("t", "TRANSFORMATION", transformations={"n": 1}, nextStep="d"), loop, end()))
    view = await driver.start("test", {"n": 1})
    assert view.status == "FAILED"
    assert "automatic steps" in (view.failure_reason or "")


async def test_lists_filter_and_count(driver: Driver) -> None:
    await driver.upload(linear(1))
    await driver.upload(definition(step("u", "USER_TASK", nextStep="end"), end(), definition_id="parked"))
    first = await driver.start("linear", business_key="b1")
    waiting = await driver.start("parked", business_key="b2")
    failed = await driver.start("linear", business_key="b1")
    cancelled = await driver.start("linear")
    jobs = {job.instance_id: job for job in await driver.poll("work")}
    await driver.fail(jobs[failed.id])
    await driver.engine.instances.cancel(cancelled.id, None)
    done = await driver.start("linear")
    await driver.complete(await driver.one("work"))

    async def ids(page: int = 0, page_size: int = 0, **fields: Any) -> list[str]:
        found = await driver.engine.instances.list(InstanceFilter(**fields), page, page_size)
        assert found.total == len(found.items) or page_size
        return [item.id for item in found.items]

    assert await ids() == [done.id, cancelled.id, failed.id, waiting.id, first.id]
    assert await ids(definition_id="parked") == [waiting.id]
    assert await ids(definition_id="nowhere") == []
    assert await ids(business_key="b1") == [failed.id, first.id]
    assert await ids(status="ACTIVE") == [first.id]
    assert await ids(status="WAITING") == [waiting.id]
    assert await ids(status="FAILED") == [failed.id]
    assert await ids(status="CANCELLED") == [cancelled.id]
    assert await ids(status="COMPLETED") == [done.id]
    assert await ids(page=1, page_size=2) == [failed.id, waiting.id]
    with pytest.raises(BadRequest):
        await ids(status="ODD")
    with pytest.raises(BadRequest):
        await ids(page=-1)


async def test_jobs_are_handed_out_oldest_first(driver: Driver) -> None:
    await driver.upload(definition(service("s", "end"), end()))
    started = [(await driver.start("test")).id for _ in range(20)]
    assert [job.instance_id for job in await driver.poll("work", n=20)] == started


async def test_a_start_that_can_not_be_advanced_is_refused_alone(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug of ours must not end the process: the same call would end the next one too."""

    def advance(definition: Definition, *args: Any) -> Any:
        if definition.id == "broken":
            raise ZeroDivisionError
        return real_advance(definition, *args)

    monkeypatch.setattr(advancer, "advance", advance)
    for name in ("broken", "fine"):
        await driver.upload(definition(step("wait", "WAIT", nextStep="end"), end(), definition_id=name))
    requests = [StartRequest(definition_id=name) for name in ("fine", "broken", "fine")]
    keyed = [
        StartRequest(definition_id=name, idempotency_key=f"key {name}", instance_key="one")
        for name in ("fine", "broken")
    ]
    results = await driver.engine.instances.start_batch([*requests, *keyed])
    assert [result.error for result in results] == [None, "internal-error", None, None, "internal-error"]
    assert driver.rows("SELECT count(*) FROM instance") == [(3,)]
    assert driver.rows("SELECT key FROM idempotency") == [("key fine",)]
    assert driver.rows("SELECT definition_id FROM instance_key") == [("fine",)]


async def test_a_summary_leaves_the_variables_out(driver: Driver) -> None:
    await driver.upload(linear(1))
    view = await driver.start("linear", {"a": 1})
    [found] = await driver.engine.instances.summarize([number(view.id)])
    assert set(msgspec.json.decode(msgspec.json.encode(view))) - set(
        msgspec.json.decode(msgspec.json.encode(found))
    ) == {"variables"}


async def test_a_found_instance_that_nobody_waits_for_holds_nothing(driver: Driver, monkeypatch: Any) -> None:
    await driver.upload(linear(1))
    await driver.start("linear", {"text": "x" * 10_000}, instance_key="k")
    commit_queue, memory = driver.engine.starts.keyed, driver.engine.answer_memory
    apply, go_on = commit_queue.apply, trio.Event()

    async def held_up(*args: Any) -> None:
        await go_on.wait()
        await apply(*args)

    async def is_queued() -> bool:
        return memory.used_bytes > 0

    monkeypatch.setattr(commit_queue, "apply", held_up)
    hold = memory.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(driver.start, "linear", {}, instance_key="k"))
        await wait_until(is_queued)
        nursery.cancel_scope.cancel()
    hold.end()
    go_on.set()
    await commit_queue.wait_flushed()
    assert memory.used_bytes == 0
