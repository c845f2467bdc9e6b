"""Batches: many starts as one. Each item is started once, whoever does it and whatever happens meanwhile."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from penstock.access.identity import Identity, set_identity
from penstock.engine.instances import batches as module
from penstock.engine.instances.batches import BatchStart
from penstock.errors import BadRequest, Conflict, IdempotencyConflict, NotFound, PayloadTooLarge, TooManyRequests
from penstock.runtime.housekeeping import Housekeeping
from penstock.settings import Settings
from penstock.settings.secret import Secret
from penstock.store.rows import batches as store
from penstock.testing.definitions import definition, end, linear, step
from penstock.wire.batch import Batch
from penstock.wire.model import StartRequest
from penstock.wire.start import Debounce, Dedupe, Throttle
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, variables_of
from tests.engine.test_encryption import KEYS

LEASE_S = Settings().start_batch_lease_seconds
LINE = linear(1, definition_id="letter")
SUMMARY = linear(1, definition_id="summary", job_type="sum up")
ASKS = definition(step("ask", "USER_TASK", nextStep="end"), end(), definition_id="asks")


def letter(number: int, **fields: Any) -> StartRequest:
    given: dict[str, Any] = {"definition_id": "letter", "variables": msgspec.json.encode({"n": number}), **fields}
    return StartRequest(**given)


def asked(count: int, **fields: Any) -> BatchStart:
    return BatchStart([letter(number) for number in range(count)], **fields)


async def work(driver: Driver, id: str, until: str) -> Batch:
    """Let the engine work until the batch is in a state."""
    with trio.fail_after(60):
        while (found := await driver.engine.batches.get(id)).state != until:
            await driver.engine.batches.step()
    return found


async def ready(driver: Driver, monkeypatch: pytest.MonkeyPatch, at_once: int = 2) -> None:
    monkeypatch.setattr(module, "STARTS_AT_ONCE", at_once)
    monkeypatch.setattr(module, "CANCELS_AT_ONCE", at_once)
    monkeypatch.setattr(module, "ENDS_AT_ONCE", at_once)
    driver.clock.stop()
    for each in (LINE, SUMMARY, ASKS):
        await driver.upload(each)


def starts(driver: Driver) -> int:
    return int(driver.rows("SELECT count(*) FROM instance")[0][0])


async def test_a_batch_starts_all_and_collects_what_they_gave(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    await ready(driver, monkeypatch)
    set_identity(Identity("token:ada", frozenset()))
    made = await driver.engine.batches.create(asked(5, on_complete="summary", note="spring"))
    set_identity(None)
    assert (made.state, made.total, made.pending, made.actor, made.note) == ("STARTING", 5, 5, "token:ada", "spring")
    assert starts(driver) == 0
    begun = await work(driver, made.id, "RUNNING")
    assert (begun.pending, begun.active, begun.completion_id) == (0, 5, None)
    jobs = await driver.poll("work")
    assert [variables_of(job)["n"] for job in jobs] == [0, 1, 2, 3, 4], "in their order"
    for job in jobs[:4]:
        await driver.complete(job, {"sent": variables_of(job)["n"] * 10})
    driver.clock.advance(1)
    await driver.engine.batches.step()
    assert (await driver.engine.batches.get(made.id)).completed == 4
    assert await driver.poll("sum up") == [], "not before all have ended"
    await driver.fail(jobs[4], "no paper", retryable=False)
    driver.clock.advance(30)
    over = await work(driver, made.id, "DONE")
    assert (over.completed, over.failed, over.active, over.ended_at) == (4, 1, 0, driver.clock.now())
    last = await driver.one("sum up")
    counts = {"completed": 4, "failed": 1, "cancelled": 0, "refused": 0, "removed": 0}
    assert variables_of(last) == {"batch": {"id": made.id, "total": 5, **counts}}
    assert last.instance_id == over.completion_id
    page = await driver.engine.batches.results(made.id, None, None, 3)
    assert [(one.index, one.state) for one in page.items] == [(0, "COMPLETED"), (1, "COMPLETED"), (2, "COMPLETED")]
    assert [variables_of(one.instance)["sent"] for one in page.items if one.instance] == [0, 10, 20]
    rest = await driver.engine.batches.results(made.id, None, page.next, 3)
    assert [(one.index, one.state) for one in rest.items] == [(3, "COMPLETED"), (4, "FAILED")]
    assert (rest.next, rest.items[1].instance and rest.items[1].instance.failure_reason) == (None, "no paper")
    (failed,) = (await driver.engine.batches.results(made.id, "FAILED", None, 10)).items
    assert failed.index == 4
    (listed,) = (await driver.engine.batches.list(None, 10)).items
    assert (listed.id, listed.state, listed.completion_id) == (made.id, "DONE", over.completion_id)
    trail = driver.rows("SELECT kind, actor, detail FROM audit WHERE kind ~ '^BATCH'")
    assert trail == [("BATCH_STARTED", "token:ada", f"{made.id}: 5 items")]
    assert driver.rows("SELECT count(*) FROM batch_item WHERE request IS NOT NULL") == [(0,)]


async def test_what_an_engine_did_not_note_is_not_started_again(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill between the starts and the mark; an engine at the same time would do it, too."""
    await ready(driver, monkeypatch, 10)
    made = await driver.engine.batches.create(asked(4))
    async with driver.engine.database.connection() as connection:
        taken = await store.claim(connection, 10)
        assert taken is not None
        requests = await store.requests(connection, taken.id, 0, 10)
    refused = await driver.engine.batches._start(taken.id, requests)
    assert (refused, starts(driver)) == ([], 4)
    assert await driver.engine.batches._start(taken.id, requests) == []
    assert (await driver.engine.batches.get(made.id)).state == "STARTING"
    driver.clock.advance(LEASE_S + 1)
    await work(driver, made.id, "RUNNING")
    assert starts(driver) == 4


async def test_engines_that_work_on_one_batch_start_each_item_once(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers = [make_driver(start_batch_lease_seconds=0.0) for _ in range(3)]  # whoever looks takes it over
    await ready(drivers[0], monkeypatch, 20)
    made = await drivers[0].engine.batches.create(BatchStart([*asked(60).items, letter(1, instance_key="own")]))
    async with trio.open_nursery() as nursery:
        for driver in drivers:
            nursery.start_soon(work, driver, made.id, "RUNNING")
    assert starts(drivers[0]) == 61
    assert drivers[0].rows("SELECT count(DISTINCT instance_id) FROM batch_item") == [(61,)]


async def test_items_have_rules_and_refusals_of_their_own(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    await ready(driver, monkeypatch)
    once = Throttle("k", 1, "PT1M")
    same, late = Dedupe("order-1", "PT1H"), Debounce("c", "PT1M")
    items = [
        letter(0, dedupe=same), letter(1, dedupe=same), letter(2, throttle=once), letter(3, throttle=once),
        letter(4, definition_id="nobody"), letter(5, delay="PT1H"), letter(6, debounce=late), letter(7, debounce=late),
    ]  # fmt: skip
    made = await driver.engine.batches.create(BatchStart(items))
    found = await work(driver, made.id, "RUNNING")
    assert (found.active, found.refused) == (6, 2)
    results = (await driver.engine.batches.results(made.id, None, None, 10)).items
    ids = [None if one.instance is None else one.instance.id for one in results]
    assert ids[0] == ids[1]
    assert ids[6] == ids[7]
    assert len({*ids}) == 5
    assert [(one.index, one.error) for one in results if one.error] == [(3, "throttled"), (4, "not-found")]
    assert (results[4].reason or "").startswith("definition 'nobody'")


async def test_a_cancelled_batch_starts_nothing_more(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    await ready(driver, monkeypatch)
    own = await driver.start("letter", dedupe=Dedupe("mine", "PT1H"))
    items = [letter(0, dedupe=Dedupe("mine", "PT1H")), *asked(5).items]
    made = await driver.engine.batches.create(BatchStart(items, on_complete="summary"))
    await driver.engine.batches.step()
    await driver.engine.batches.step()
    assert (await driver.engine.batches.get(made.id)).pending == 2
    assert (await driver.engine.batches.cancel(made.id, "wrong list")).state == "CANCELLING"
    assert (await driver.engine.batches.cancel(made.id, None)).reason == "wrong list"
    over = await work(driver, made.id, "CANCELLED") if await driver.cancel(own.id) else made
    assert (over.cancelled, over.pending, over.completion_id) == (4, 2, None)
    assert await driver.poll("work", "sum up") == []
    with pytest.raises(Conflict, match="has ended"):
        await driver.engine.batches.cancel((await _done(driver)).id, None)
    assert driver.rows("SELECT detail FROM audit WHERE kind = 'BATCH_CANCELLED'") == [(f"{made.id}: wrong list",)]


async def test_cancelling_goes_on_after_a_full_queue(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """One error, which the loop around it knows; a group of them would end the process."""
    await ready(driver, monkeypatch)
    made = await driver.engine.batches.create(asked(2))
    await work(driver, made.id, "RUNNING")
    await driver.engine.batches.cancel(made.id, None)
    with monkeypatch.context() as patch:
        patch.setattr(driver.engine.instances._full_path, "_max_queue_items", 0)
        with pytest.raises(TooManyRequests):
            await driver.engine.batches.step()
    driver.clock.advance(LEASE_S + 1)
    assert (await work(driver, made.id, "CANCELLED")).cancelled == 2


async def test_who_waits_at_once_starts_one_end(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    await ready(driver, monkeypatch)
    made = await driver.engine.batches.create(asked(1, on_complete="summary"))
    async with driver.engine.database.connection() as connection:
        requests = await store.requests(connection, int(made.id), store.AT_THE_END, 1)
    async with trio.open_nursery() as nursery:
        for _ in range(3):  # in one batch of the group-commit queue
            nursery.start_soon(driver.engine.batches._start, int(made.id), requests)
    assert starts(driver) == 1
    assert len(await driver.poll("sum up")) == 1


async def test_the_same_batch_is_found_while_too_many_are_open(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver(start_batches_open_max_items=1)
    await ready(driver, monkeypatch)
    made = await driver.engine.batches.create(asked(1, idempotency_key="k"))
    assert (await driver.engine.batches.create(asked(1, idempotency_key="k"))).id == made.id
    with pytest.raises(TooManyRequests, match="have not ended"):
        await driver.engine.batches.create(asked(1, idempotency_key="l"))


async def _done(driver: Driver) -> Batch:
    made = await driver.engine.batches.create(BatchStart([letter(0, definition_id="nobody")]))
    return await work(driver, made.id, "DONE")


async def test_cancelling_leaves_what_others_started(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    await ready(driver, monkeypatch)
    own = await driver.start("letter", dedupe=Dedupe("mine", "PT1H"))
    made = await driver.engine.batches.create(BatchStart([letter(0, dedupe=Dedupe("mine", "PT1H")), letter(1)]))
    await work(driver, made.id, "RUNNING")
    await driver.engine.batches.cancel(made.id, None)
    await driver.engine.batches.step()
    found = await driver.engine.batches.get(made.id)
    assert (found.state, found.active, found.cancelled) == ("CANCELLING", 1, 1)
    assert await driver.status(own.id) == "ACTIVE"
    await driver.complete(await driver.one("work"))
    driver.clock.advance(30)
    await work(driver, made.id, "CANCELLED")


async def test_the_same_batch_again_is_the_same(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    await ready(driver, monkeypatch)
    made = await driver.engine.batches.create(asked(2, idempotency_key="import-7"))
    again = await driver.engine.batches.create(asked(2, idempotency_key="import-7"))
    assert again == made
    with pytest.raises(IdempotencyConflict):
        await driver.engine.batches.create(asked(3, idempotency_key="import-7"))
    assert driver.rows("SELECT count(*) FROM batch_item") == [(2,)]


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (BatchStart([]), "items: has 0 items"),
        (BatchStart([letter(0)] * 6), "items: has 6 items; a batch has 1 to 5"),
        (BatchStart([letter(0), letter(1, definition_id="")]), r"items\[1\].definitionId: is required"),
        (BatchStart([letter(0, delay="soon")]), r"items\[0\].delay: "),
        (BatchStart([letter(0, idempotency_key="k")]), r"items\[0\].idempotencyKey: is of the batch"),
        (BatchStart([letter(0, wait_seconds=1.0)]), r"items\[0\].waitSeconds: is of the batch"),
        (asked(1, on_complete="x" * 257), "onComplete: has 257"),
        (asked(1, note="x" * 5_000), "note: has 5000"),
    ],
)
async def test_a_batch_with_something_bad_is_refused_whole(
    make_driver: MakeDriver, wanted: BatchStart, reason: str
) -> None:
    driver = make_driver(start_batch_max_items=5)
    with pytest.raises(BadRequest, match=f"^{reason}"):
        await driver.engine.batches.create(wanted)
    assert driver.rows("SELECT count(*) FROM batch") == [(0,)]


async def test_a_batch_has_so_many_bytes_at_most(make_driver: MakeDriver) -> None:
    driver = make_driver(start_batch_max_bytes=2_048)
    await driver.upload(LINE)
    large = letter(1, variables=msgspec.json.encode({"x": "x" * 1_000}))
    with pytest.raises(PayloadTooLarge, match=r"^items: have more than 2048 bytes together, from items\[1\] on$"):
        await driver.engine.batches.create(BatchStart([large, large, letter(2)]))
    assert driver.rows("SELECT count(*) FROM batch") == [(0,)]
    assert (await driver.engine.batches.create(BatchStart([large, letter(2)]))).total == 2


async def test_what_does_not_exist_is_not_found(make_driver: MakeDriver) -> None:
    driver = make_driver(start_batches_open_max_items=1)
    await driver.upload(LINE)
    for id in ("7", "seven"):
        with pytest.raises(NotFound, match=f"batch '{id}'"):
            await driver.engine.batches.get(id)
    with pytest.raises(NotFound):
        await driver.engine.batches.cancel("7", None)
    made = await driver.engine.batches.create(asked(1))
    with pytest.raises(TooManyRequests, match="1 batches"):
        await driver.engine.batches.create(asked(1))
    with pytest.raises(BadRequest, match="state: must be one of"):
        await driver.engine.batches.results(made.id, "OPEN", None, 1)
    with pytest.raises(BadRequest, match="cursor"):
        await driver.engine.batches.results(made.id, None, "x", 1)


async def test_who_waits_hears_of_the_end_from_another_engine(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = make_driver(services=True), make_driver()
    for each in (LINE, SUMMARY):
        await here.upload(each)
    made = await there.engine.batches.create(asked(2, on_complete="summary"))
    await work(there, made.id, "RUNNING")
    assert (await here.engine.batches.get(made.id, 0.01)).state == "RUNNING"
    answers: list[Batch] = []

    async def wait() -> None:
        answers.append(await here.engine.batches.get(made.id, 60))

    async def probe() -> None:
        while True:
            await here.engine.instances.ends.step()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(probe)
            async with trio.open_nursery() as waiting:
                waiting.start_soon(wait)
                for _ in range(2):
                    await there.complete(await there.one("work"))
            nursery.cancel_scope.cancel()
    assert [(answer.state, answer.completed) for answer in answers] == [("DONE", 2)]
    assert answers[0].completion_id is not None
    monkeypatch.setattr(module, "WAITING_MAX", 0)
    with pytest.raises(TooManyRequests):
        await here.engine.batches.get(made.id, 1)
    assert starts(here) == 3


async def test_the_end_that_cant_be_started_is_reported(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    await ready(driver, monkeypatch)
    made = await driver.engine.batches.create(BatchStart([letter(0, definition_id="x")], on_complete="nobody"))
    found = await work(driver, made.id, "DONE")
    assert (found.completion_id, found.refused) == (None, 1)
    assert (found.completion_error or "").startswith("not-found: definition 'nobody'")


async def test_results_come_in_pieces_and_outlive_their_instances(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ready(driver, monkeypatch, 10)
    monkeypatch.setattr("penstock.engine.instances.instances.PIECE_BYTES", 100)
    items = [letter(n, variables=msgspec.json.encode({"n": n, "text": "x" * 60 * n})) for n in range(4)]
    made = await driver.engine.batches.create(BatchStart(items))
    await work(driver, made.id, "RUNNING")
    seen, cursor = [], None
    while True:
        page = await driver.engine.batches.results(made.id, None, cursor, 50)
        seen += [variables_of(one.instance)["n"] for one in page.items if one.instance]
        assert len(page.items) < 4
        if (cursor := page.next) is None:
            break
    assert seen == [0, 1, 2, 3]
    for job in await driver.poll("work"):
        await driver.complete(job)
    driver.clock.advance(30)
    await work(driver, made.id, "DONE")
    driver.rows("DELETE FROM instance WHERE id IN (SELECT id FROM instance ORDER BY id LIMIT 1) RETURNING 1")
    (gone, *_) = (await driver.engine.batches.results(made.id, None, None, 50)).items
    assert (gone.state, gone.instance) == ("REMOVED", None)
    assert (await driver.engine.batches.get(made.id)).removed == 1


async def test_variables_wait_encrypted_and_what_is_old_goes(make_driver: MakeDriver) -> None:
    driver = make_driver(encryption_keys=Secret(KEYS["k1"]), retention_days=1)
    driver.clock.stop()
    await driver.upload(LINE)
    made = await driver.engine.batches.create(asked(1))
    ((stored,),) = driver.rows("SELECT variables->'n' FROM batch_item")
    assert "$enc" in stored
    await work(driver, made.id, "RUNNING")
    job = await driver.one("work")
    assert variables_of(job) == {"n": 0}
    await driver.complete(job)
    driver.clock.advance(30)
    await work(driver, made.id, "DONE")
    for _ in range(2):
        await Housekeeping(driver.engine).run_once()
        assert driver.rows("SELECT count(*) FROM batch") == [(1,)]
        driver.clock.advance(43_200)
    driver.clock.advance(1)
    await Housekeeping(driver.engine).run_once()
    assert driver.rows("SELECT (SELECT count(*) FROM batch), (SELECT count(*) FROM batch_item)") == [(0, 0)]
