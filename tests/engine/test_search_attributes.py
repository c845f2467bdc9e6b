"""Search attributes: instances are found by declared variables as they are now. Each test ends with the invariants."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import msgspec
import pytest
import trio

from penstock.core.graph.definition import InvalidDefinition
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.errors import BadRequest, Conflict
from penstock.settings import Secret
from penstock.testing.definitions import definition, end
from penstock.wire.edits import VariablesEdit
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number, selected
from tests.shapes import parallel, service, task, user

TYPES = {"customer": "STRING", "amount": "NUMBER", "express": "BOOLEAN", "due": "TIME"}
ORDER = definition(task("pack", "ship"), task("ship"), end(), id="order") | {"searchAttributes": TYPES}
NOON = "2026-01-31T12:00:00Z"


async def found(driver: Driver, attributes: dict[str, str], **more: Any) -> list[str]:
    wanted = InstanceFilter(attributes=attributes, **more)
    page = await driver.engine.instances.list(wanted, 0, 50)
    count = await driver.engine.instances.count(wanted)
    assert (page.total, count.count) == (len(page.items), len(page.items))
    piece = await driver.engine.instances.list_slice(wanted, None, 50)
    assert piece.items == page.items
    return [view.id for view in page.items]


async def test_instances_are_found_by_value_and_between_bounds(driver: Driver) -> None:
    await driver.upload(ORDER)
    ids = [
        (await driver.start("order", {"customer": f"c{n % 2}", "amount": n, "express": n == 3, "due": NOON})).id
        for n in range(4)
    ]
    newest = ids[::-1]
    assert await found(driver, {"customer": "c1"}) == [ids[3], ids[1]]
    assert await found(driver, {"customer": "c1", "amount": "1"}) == [ids[1]]
    assert await found(driver, {"customer": "c1", "amount.from": "2"}) == [ids[3]]
    assert await found(driver, {"amount.from": "1", "amount.to": "3"}) == [ids[2], ids[1]]
    assert await found(driver, {"amount": "2.0"}) == [ids[2]]
    assert await found(driver, {"express": "true"}) == [ids[3]]
    assert await found(driver, {"due": NOON}) == newest
    assert await found(driver, {"due": "2026-01-31T13:00:00+01:00"}) == newest
    assert await found(driver, {"due.to": NOON}) == []
    assert await found(driver, {"customer": "c1"}, definition_id="order", status="ACTIVE") == [ids[3], ids[1]]
    assert await found(driver, {"customer": "c1"}, status="FAILED") == []
    assert await found(driver, {"customer": "c1"}, definition_id="other") == []


async def test_a_variable_that_no_definition_declares_is_no_filter(driver: Driver) -> None:
    """An empty list said that no instance has the value."""
    said = (
        "attr.other: no definition declares this variable in searchAttributes, and only those that are declared filter"
    )
    plain = definition(task("work"), end(), id="plain", description='"searchAttributes": {"other": "STRING"}')
    await driver.upload(plain)
    await driver.start("plain", {"other": "1"})
    for attributes in ({"other": "1"}, {"other.from": "1"}):
        for more in ({}, {"definition_id": "plain"}, {"status": "FAILED"}):
            with pytest.raises(BadRequest, match=re.escape(said)):
                await found(driver, attributes, **more)
    await driver.upload(definition(task("work"), end(), id="late") | {"searchAttributes": {"other": "STRING"}})
    assert await found(driver, {"other": "1"}) == [], "it may be found from now on"
    driver.rows("DELETE FROM definition WHERE id = 'late' RETURNING 1")
    driver.rows("INSERT INTO search_attribute VALUES (1, 'other', NULL, 2) RETURNING 1")
    assert await found(driver, {"other": "1"}) == [], "it was declared once"
    driver.rows("DELETE FROM search_attribute RETURNING 1")


async def test_an_attribute_follows_its_variable(driver: Driver) -> None:
    await driver.upload(ORDER)
    id = (await driver.start("order", {"customer": "old", "amount": 7})).id
    await driver.complete(await driver.one("pack"), {"customer": "new", "other": 1})
    assert await found(driver, {"customer": "new", "amount": "7"}) == [id]
    assert await found(driver, {"customer": "old"}) == []
    job = await driver.one("ship")
    await driver.complete(job, {"amount": "no number any more", "express": None})
    assert await found(driver, {"customer": "new"}, status="COMPLETED") == [id]
    assert await found(driver, {"amount": "7"}) == []


async def test_a_name_written_with_escapes_is_the_same_name(driver: Driver) -> None:
    await driver.upload(ORDER)
    id = (await driver.start("order")).id
    job = await driver.one("pack")
    (outcome,) = await driver.engine.jobs.complete_many([completion_with(job, b'{"\\u0063ustomer": "escaped"}')])
    assert outcome.outcome == "ok"
    assert await found(driver, {"customer": "escaped"}) == [id]


def completion_with(job: Any, variables: bytes) -> Any:
    from penstock.wire.model import Completion

    return Completion(job_id=job.id, worker_id=job.worker_id, attempt=job.attempt, variables=variables)


async def test_completions_without_one_stay_on_the_fast_path(driver: Driver) -> None:
    await driver.upload(ORDER)
    await driver.start("order", {"customer": "c"})
    sample = driver.engine.metrics.registry.get_sample_value
    labels = {"tx_type": "complete"}  # of the fast path
    await driver.complete(await driver.one("pack"), {"other": "value"})
    before = sample("engine_db_transaction_duration_seconds_count", labels) or 0
    await driver.complete(await driver.one("ship"), {"custom": 1})
    assert driver.rows("SELECT count(*) FROM search_attribute") == [(1,)]
    assert sample("engine_db_transaction_duration_seconds_count", labels) == before + 1
    await driver.start("order")
    await driver.complete(await driver.one("pack"), {"customer": "d"})
    assert sample("engine_db_transaction_duration_seconds_count", labels) == before + 1


async def test_branches_children_and_edits_write_attributes_too(driver: Driver) -> None:
    both = parallel(
        service("a", "join", job_type="a"), service("b", "join", job_type="b"), heads=["a", "b"], name="both"
    )
    await driver.upload(both | {"searchAttributes": TYPES})
    id = (await driver.start("both", {"customer": "start"})).id
    jobs = await driver.poll("a", "b")
    async with trio.open_nursery() as nursery:  # one transaction for both, or one each: the last one stays
        for job in jobs:
            nursery.start_soon(driver.complete, job, {"customer": job.job_type, "amount": 1})
    ((last,),) = driver.rows("SELECT text FROM search_attribute WHERE name = 'customer'")
    assert (await driver.variables(id))["customer"] == last
    ask = definition(user("ask", "end"), end(), definition_id="ask") | {"searchAttributes": TYPES}
    await driver.upload(ask)
    waits = (await driver.start("ask", {"customer": "x", "amount": 3})).id
    edit = VariablesEdit(set=msgspec.Raw(b'{"customer": "edited"}'), remove=["amount"], note=None)
    await driver.engine.repair.edit_variables(waits, edit)
    assert await found(driver, {"customer": "edited"}) == [waits]
    assert await found(driver, {"amount": "3"}) == []
    await driver.finish_task(waits, "ask", {"amount": 9})
    assert await found(driver, {"amount.from": "8", "customer": "edited"}) == [waits]


async def test_values_that_do_not_fit_fail_nothing(driver: Driver) -> None:
    await driver.upload(ORDER)
    odd = {"customer": "c" * 257, "amount": 10**400, "express": "true", "due": "noon"}
    id = (await driver.start("order", odd)).id
    assert driver.rows("SELECT count(*) FROM search_attribute WHERE text IS NOT NULL OR number IS NOT NULL") == [(0,)]
    assert await driver.status(id) == "ACTIVE"
    await driver.complete(await driver.one("pack"), {"amount": True, "customer": {"id": 1}})
    assert await found(driver, {"amount.from": "0"}) == []


async def test_a_definition_without_them_writes_nothing(driver: Driver) -> None:
    await driver.upload(definition(task("pack"), end(), id="plain"))
    await driver.start("plain", {"customer": "c"})
    await driver.complete(await driver.one("pack"), {"customer": "d"})
    assert driver.rows("SELECT count(*) FROM search_attribute") == [(0,)]


async def test_attributes_are_readable_where_variables_are_sealed(make_driver: MakeDriver) -> None:
    driver = make_driver(encryption_keys=Secret("k=" + "A" * 43 + "="))
    await driver.upload(ORDER)
    id = (await driver.start("order", {"customer": "c"})).id
    assert await found(driver, {"customer": "c"}) == [id]
    ((variables,),) = driver.rows("SELECT vars FROM instance WHERE id = %s", number(id))
    assert list(variables["customer"]) == ["$enc"]


async def test_they_go_with_their_instance(driver: Driver) -> None:
    from penstock.store.rows import retention

    await driver.upload(ORDER)
    id = (await driver.start("order", {"customer": "c"})).id
    await driver.cancel(id)
    async with driver.engine.database.connection() as connection:
        assert await retention.remove_instances(connection, [selected(driver, id)]) == [number(id)]
    assert driver.rows("SELECT count(*) FROM search_attribute") == [(0,)]


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"a-b": "STRING"}, "must be the name of a variable"),
        ({"a": "TEXT"}, "searchAttributes.a: must be one of STRING, NUMBER, BOOLEAN, TIME"),
        ({"a": 1}, "searchAttributes.a: must be one of"),
        (["a"], "searchAttributes: must be an object"),
        ({f"a{n}": "STRING" for n in range(21)}, "searchAttributes: has 21 names, more than 20"),
    ],
)
async def test_a_wrong_declaration_is_refused(driver: Driver, declared: Any, problem: str) -> None:
    with pytest.raises(InvalidDefinition) as refused:
        await driver.upload(ORDER | {"searchAttributes": declared})
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"a-b": "1"}, "attr.a-b: must be"),
        ({"a.least": "1"}, "attr.a.least: must be"),
        ({"a": "1", "a.from": "1"}, "can't be combined with its bounds"),
        ({"a.from": "x"}, "bounds must be numbers, or times"),
        ({"a.to": "nan"}, "bounds must be numbers, or times"),
        ({"a": "x" * 257}, "attr.a"),
        ({f"a{n}": "1" for n in range(6)}, "at most 5"),
    ],
)
async def test_a_wrong_search_is_refused(driver: Driver, attributes: dict[str, str], reason: str) -> None:
    with pytest.raises(BadRequest, match=reason.replace(".", r"\.")):
        await found(driver, attributes)


async def test_they_are_refused_while_older_engines_live(driver: Driver) -> None:
    driver.rows(
        "INSERT INTO engine (number, holder, leased_until, dispatch_mode, description, schema_version)"
        " VALUES (77, gen_random_uuid(), now() + interval '1 h', 'polling', 'old', 17) RETURNING 1"
    )
    with pytest.raises(Conflict, match="upgrade all engines first"):
        await driver.upload(ORDER)
    driver.rows("DELETE FROM engine WHERE number = 77 RETURNING 1")


async def test_the_clock_of_a_time_is_exact(driver: Driver) -> None:
    await driver.upload(ORDER)
    at = dt.datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=dt.UTC)
    id = (await driver.start("order", {"due": at.isoformat()})).id
    assert await found(driver, {"due": at.isoformat()}) == [id]
    assert await found(driver, {"due.from": (at + dt.timedelta(microseconds=1)).isoformat()}) == []
