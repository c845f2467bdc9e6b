"""Starts with rules side by side: in a batch, beside held rows and older engines, in answers that wait for the end."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import trio

from penstock.engine.instances.instances import FIRST_READ_BYTES
from penstock.engine.requests.answers import COPIES, MemoryReservation
from penstock.errors import Conflict
from penstock.wire.edits import VariablesEdit
from penstock.wire.model import Instance, StartRequest, StartResult
from penstock.wire.noun import text_bytes
from penstock.wire.start import Debounce, Dedupe, Throttle
from tests.engine.driver import Driver
from tests.engine.test_held_rows import held
from tests.engine.test_start_rules import LINE, old_engine, ready
from tests.waiting import wait_until


def started(result: StartResult) -> Instance:
    assert result.instance is not None, result.reason
    return result.instance


def many(keys: str = "dcba", **rules: Any) -> list[StartRequest]:
    """Starts with keys of their own, as the SDK sends them."""
    plain = StartRequest(definition_id="report", **rules)
    return [
        msgspec.structs.replace(plain, variables=b'{"n":%d}' % n, idempotency_key=key) for n, key in enumerate(keys)
    ]


async def test_starts_of_a_batch_keep_their_order(driver: Driver) -> None:
    await ready(driver)
    results = await driver.engine.instances.start_batch(many(debounce=Debounce("k", "PT1M")))
    [id] = {started(result).id for result in results}
    assert await driver.variables(id) == {"n": 3}, "the last one's"
    spread = many("hgfe", throttle=Throttle("k", 1, "PT1M", on_excess="DELAY"))
    begins = [started(result).start_at for result in await driver.engine.instances.start_batch(spread)]
    now = driver.clock.now()
    assert begins == [None, *(now + timedelta(minutes=n) for n in (1, 2, 3))]


async def test_who_shares_a_held_key_waits_beside_the_queue(driver: Driver, nursery: trio.Nursery) -> None:
    await ready(driver)
    rule = Debounce("k", "PT1M")
    first = await driver.start("report", debounce=rule)
    results: list[StartResult] = []

    async def start() -> None:
        results.extend(await driver.engine.instances.start_batch(many(debounce=rule)))

    async def all_lock_waiting() -> bool:
        return driver.engine.starts.keyed.statistics().lock_waiting == 4

    async def answered() -> bool:
        return bool(results)

    with held(driver.dsn, "SELECT FROM start_window FOR UPDATE"):
        nursery.start_soon(start)
        await wait_until(all_lock_waiting)
        other = await driver.start("report", debounce=Debounce("other", "PT1M"))
        assert other.id != first.id
    await wait_until(answered)
    assert {started(result).id for result in results} == {first.id}


async def test_a_debounced_instance_stays_what_it_is(driver: Driver) -> None:
    await ready(driver)
    rule = Debounce("k", "PT1M")
    made = await driver.start("report", {"who": "a"}, debounce=rule)
    before = (await driver.engine.diagnosis.state(made.id)).version
    await driver.upload({**LINE, "searchAttributes": {"who": "STRING"}})
    again = await driver.start("report", {"who": "b"}, debounce=rule)
    assert (again.id, again.definition_version) == (made.id, 1)
    assert driver.rows("SELECT FROM search_attribute") == [], "its version has none"
    stale = VariablesEdit(set=msgspec.Raw(b'{"m":2}'), if_version=before)
    with pytest.raises(Conflict, match="written again"):
        await driver.engine.repair.edit_variables(made.id, stale)
    assert await driver.variables(made.id) == {"who": "b"}


async def test_the_longest_burst_can_be_counted(driver: Driver) -> None:
    await ready(driver)
    for _ in range(2):
        await driver.start("report", throttle=Throttle("k", 1, "P366D", 1_000_000))
    assert driver.rows("SELECT count(*) FROM instance") == [(2,)]


async def test_a_start_is_answered_where_its_end_is_unknown(driver: Driver, nursery: trio.Nursery) -> None:
    await driver.upload(LINE)
    answers: list[Instance] = []

    async def start() -> None:
        answers.append(await driver.start("report", wait_seconds=60.0))

    async def parked() -> bool:
        return driver.engine.ends.calls == 1

    async def answered() -> bool:
        return bool(answers)

    nursery.start_soon(start)
    await wait_until(parked)
    for table in ("ready", "token", "instance"):
        driver.rows(f"DELETE FROM {table} RETURNING 1")  # as retention does in the end
    assert await driver.engine.ends.scan_once() == 1
    await wait_until(answered)
    assert answers[0].status == "ACTIVE", "as it was started"


async def test_large_answers_of_a_batch_are_all_counted(driver: Driver) -> None:
    await driver.upload(LINE)
    large = StartRequest(
        definition_id="report", variables=msgspec.json.encode({"x": "a" * (2 * FIRST_READ_BYTES)}), wait_seconds=0.01
    )
    with closing(driver.engine.answer_memory.open()) as reservation:
        results = await driver.engine.instances.start_batch([large] * 3)
        assert all(result.instance is not None for result in results)
        size_bytes = 3 * text_bytes(large.variables)
        assert reservation.bytes >= 2 * COPIES * size_bytes > 0, "as they were started, and at their end"


async def test_a_batch_takes_no_more_memory_than_there_is(driver: Driver, nursery: trio.Nursery) -> None:
    await driver.upload(LINE)
    results: list[StartResult] = []
    memory = driver.engine.answer_memory

    async def start() -> None:
        request = StartRequest(definition_id="report", variables=b"{}", wait_seconds=60.0)
        with closing(memory.open()):
            results.extend(await driver.engine.instances.start_batch([request]))

    async def parked() -> bool:
        return driver.engine.ends.calls == 1

    async def answered() -> bool:
        return bool(results)

    nursery.start_soon(start)
    await wait_until(parked)
    job = await driver.one("work")
    with closing(MemoryReservation(memory)) as other:
        other.add(memory.max_bytes)
        await driver.complete(job)
        await wait_until(answered)
    assert started(results[0]).status == "ACTIVE", "as it was started"


@pytest.mark.parametrize("rules", [{"delay": "PT1H"}, {"dedupe": Dedupe("k", "PT1H")}], ids=["delay", "dedupe"])
async def test_older_engines_are_found_at_the_next_try(
    driver: Driver, nursery: trio.Nursery, rules: dict[str, Any]
) -> None:
    await ready(driver)
    old_engine(driver)
    ends: list[Instance | Conflict] = []

    async def start() -> None:
        try:
            ends.append(await driver.start("report", **rules))
        except Conflict as error:
            ends.append(error)

    async def lock_waiting_or_over() -> bool:
        return bool(ends) or any(commit_queue.statistics().lock_waiting for commit_queue in driver.engine.batchers())

    async def over() -> bool:
        return bool(ends)

    with held(driver.dsn, "LOCK TABLE engine IN ROW EXCLUSIVE MODE"):
        nursery.start_soon(start)
        await wait_until(lock_waiting_or_over)
    await wait_until(over)
    assert isinstance(ends[0], Conflict)
    assert driver.rows("SELECT count(*) FROM instance") == [(0,)]


async def test_starts_with_keys_of_their_own_share_transactions(driver: Driver) -> None:
    await ready(driver)
    first = await driver.engine.instances.start_batch(many("abcdefgh"))
    ids = [started(result).id for result in first]
    assert ids == sorted(ids), "in their order"
    [(count, transactions)] = driver.rows("SELECT count(*), count(DISTINCT xmin::text) FROM idempotency")
    assert (count, transactions < 4) == (8, True)
    used = msgspec.structs.replace(many("x")[0], idempotency_key="b")
    mixed = await driver.engine.instances.start_batch([*many("ah"), used, *many("wxyz")])
    assert [result.error for result in mixed] == [None, "idempotency-conflict", "idempotency-conflict", *[None] * 4]
    assert started(mixed[0]).id == ids[0]
    assert driver.rows("SELECT count(*) FROM instance") == [(12,)]
