"""The inbox: open user tasks are listed while they are open, claims say who means to do one."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import psycopg
import pytest
import trio

from penstock.access.identity import Identity, set_identity
from penstock.access.roles import read_grant
from penstock.errors import BadRequest, Conflict, Forbidden, NotFound, Unavailable
from penstock.store.rows import inbox as store
from penstock.testing.definitions import definition, end, timer
from penstock.testing.invariants import find_broken
from penstock.wire.model import UserTaskCompletion
from penstock.wire.page import Count, Page
from penstock.wire.user_task import UserTask
from tests.engine.driver import Driver
from tests.shapes import gateway, joining, task, user, wait

ASKED = definition(
    task("prepare", "review"),
    user("review", "next", name="Review it", jobType="clerks", boundaryEvents=[timer("late", interrupting=True)]),
    user("next"),
    user("late"),
    end(),
)
ALONE = definition(user("alone", jobType="bosses"), end(), id="alone")


async def probe(driver: Driver, job_type: str | None = None, **fields: Any) -> Page[UserTask]:
    wanted: dict[str, Any] = {"definition_id": None, "assignee": None, "unclaimed": False, "cursor": None, "limit": 50}
    return await driver.engine.inbox.list_open(job_type, **{**wanted, **fields})


async def steps(driver: Driver, job_type: str | None = None, **fields: Any) -> list[str]:
    return [task.step_id for task in (await probe(driver, job_type, **fields)).items]


async def test_a_task_is_listed_while_it_is_open(driver: Driver) -> None:
    instance = await driver.run(ASKED)
    assert await steps(driver) == []
    await driver.complete(await driver.one("prepare"))
    (shown,) = (await probe(driver)).items
    assert (shown.instance_id, shown.name, shown.job_type, shown.version) == (instance, "Review it", "clerks", 1)
    assert shown.next_timer is not None
    await driver.finish_task(instance, "review")
    (shown,) = (await probe(driver)).items
    assert (shown.step_id, shown.job_type, shown.next_timer) == ("next", "next", None)
    await driver.finish_task(instance, "next")
    assert await steps(driver) == []


async def test_timers_cancels_and_failures_take_tasks_off_the_list(driver: Driver) -> None:
    instance = await driver.run(ASKED)
    await driver.complete(await driver.one("prepare"))
    assert await driver.due(3601) == 1
    assert await steps(driver) == ["late"]
    await driver.cancel(instance)
    assert await steps(driver) == []
    forked = await driver.run(
        definition(gateway("fork", "u", "t"), user("u", "join"), task("t", "join"), joining(), end(), id="forked")
    )
    assert await steps(driver) == ["u"]
    await driver.fail(await driver.one("t"), retryable=False)
    assert await steps(driver) == []
    await driver.engine.instances.retry(forked)
    assert await steps(driver) == ["u"]
    assert find_broken(driver.dsn) == []


async def test_the_list_is_read_page_by_page_oldest_first(driver: Driver) -> None:
    await driver.upload(ALONE)
    await driver.upload(definition(user("other", jobType="clerks"), end(), id="other"))
    started = [(await driver.start(id)).id for id in ("alone", "other", "alone", "other", "alone")]
    seen: list[str] = []
    cursor = None
    for _ in range(3):
        page = await probe(driver, limit=2, cursor=cursor)
        seen += [task.instance_id for task in page.items]
        cursor = page.next
    assert (seen, cursor) == (started, None)
    assert await steps(driver, "clerks") == ["other", "other"]
    assert await steps(driver, "bosses", definition_id="other") == []
    assert await steps(driver, "unheard of") == []
    refused: list[dict[str, Any]] = [
        {"definition_id": "alone"},
        {"cursor": "x"},
        {"assignee": "ann", "unclaimed": True},
    ]
    for bad in refused:
        with pytest.raises(BadRequest):
            await probe(driver, **bad)


async def test_tasks_of_an_instance_are_found_by_its_id(driver: Driver) -> None:
    two = [
        gateway("fork", "u", "v"),
        user("u", "join"),
        user("v", "join"),
        joining(next_step="last"),
        user("last", "wait"),
    ]
    await driver.upload(definition(*two, wait("wait"), end(), id="two"))
    await driver.upload(ALONE)
    inbox, instance = driver.engine.inbox, (await driver.start("two")).id
    other = (await driver.start("alone")).id
    await inbox.claim(instance, "v", "ann")
    first = await inbox.list_of_instance(instance, None, 1)
    rest = await inbox.list_of_instance(instance, first.next, 1)
    assert [(task.step_id, task.assignee) for task in (*first.items, *rest.items)] == [("u", None), ("v", "ann")]
    assert rest.next is None
    assert [task.instance_id for task in (await inbox.list_of_instance(other, None, 50)).items] == [other]
    execution = rest.items[0].execution_id
    assert (await inbox.list_execution(execution)).items == rest.items
    await driver.finish_task(instance, "v")
    assert (await inbox.list_execution(execution)).items == []
    await driver.finish_task(instance, "u")
    assert [task.step_id for task in (await inbox.list_of_instance(instance, None, 50)).items] == ["last"]
    await driver.finish_task(instance, "last")
    assert (await inbox.list_of_instance(instance, None, 50)).items == []
    assert (await inbox.list_of_instance("1", None, 50)).items == []
    for find in (inbox.list_execution("x"), inbox.list_of_instance("-", None, 50)):
        with pytest.raises(NotFound):
            await find


async def test_open_tasks_are_counted_to_ten_thousand(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    await driver.upload(ALONE)
    inbox = driver.engine.inbox
    assert await inbox.count() == Count(count=0, exact=True)
    started = [await driver.start("alone") for _ in range(3)]
    assert await inbox.count() == Count(count=3, exact=True)
    await driver.engine.instances.cancel(started[0].id, None)
    assert await inbox.count() == Count(count=2, exact=True)
    monkeypatch.setattr("penstock.engine.instances.inbox.COUNT_MAX", 1)
    assert await inbox.count() == Count(count=1, exact=False)


async def test_a_long_walk_ends_early_with_a_cursor(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SCAN_ROWS", 2)
    monkeypatch.setattr("penstock.engine.instances.inbox.SCAN_MAX_S", 0)
    await driver.upload(ALONE)
    started = [(await driver.start("alone")).id for _ in range(5)]
    for id in started[:4]:
        await driver.engine.inbox.claim(id, "alone", "ann")
    page = await probe(driver, unclaimed=True)
    assert page.items == []
    assert page.next is not None
    page = await probe(driver, unclaimed=True, cursor=(await probe(driver, unclaimed=True, cursor=page.next)).next)
    assert [task.instance_id for task in page.items] == started[4:]


async def test_a_task_is_claimed_by_one_and_given_back(driver: Driver) -> None:
    instance = await driver.run(ALONE)
    inbox = driver.engine.inbox
    assert (await inbox.claim(instance, "alone", "ann")).assignee == "ann"
    assert (await inbox.claim(instance, "alone", "ann")).assignee == "ann"
    with pytest.raises(Conflict, match="claimed by 'ann'"):
        await inbox.claim(instance, "alone", "bob")
    with pytest.raises(Conflict, match="claimed by 'ann'"):
        await inbox.release(instance, "alone", "bob")
    assert await steps(driver, assignee="ann") == ["alone"]
    assert await steps(driver, unclaimed=True) == []
    assert (await inbox.release(instance, "alone", None)).assignee is None
    assert await steps(driver, unclaimed=True) == ["alone"]
    with pytest.raises(BadRequest, match="by: "):
        await inbox.claim(instance, "alone", None)
    kinds = [(record.kind, record.actor) for record in (await driver.engine.instances.audit(instance)).items]
    assert [kind for kind in kinds if kind[0].startswith("TASK")] == [
        ("TASK_CLAIMED", "ann"), ("TASK_CLAIMED", "ann"), ("TASK_RELEASED", None)
    ]  # fmt: skip
    await driver.finish_task(instance, "alone")
    with pytest.raises(NotFound, match="not open"):
        await inbox.claim(instance, "alone", "ann")


@pytest.mark.parametrize(("by", "expected"), [(None, "ann"), ("bob", "bob")])
async def test_a_task_is_completed_by_whoever_claimed_it(driver: Driver, by: str | None, expected: str) -> None:
    instance = await driver.run(ALONE)
    await driver.engine.inbox.claim(instance, "alone", "ann")
    done = UserTaskCompletion(instance_id=instance, step_id="alone", completed_by=by)
    await driver.engine.tasks.complete_user_task(done)
    records = (await driver.engine.instances.audit(instance)).items
    reported = [(record.kind, record.actor, record.detail) for record in records if record.step_id == "alone"]
    assert reported == [
        ("TASK_CLAIMED", "ann", None), ("USER_TASK_COMPLETED", expected, None), ("STEP_COMPLETED", expected, None)
    ]  # fmt: skip


async def test_a_clerk_claims_in_its_own_name_only(driver: Driver) -> None:
    instance = await driver.run(ALONE)
    inbox = driver.engine.inbox
    set_identity(Identity.of("token:ann", read_grant("clerk")))
    try:
        with pytest.raises(Forbidden, match="operator"):
            await inbox.claim(instance, "alone", "bob")
        assert (await inbox.claim(instance, "alone", None)).assignee == "token:ann"
        set_identity(Identity.of("token:eve", read_grant("clerk")))
        with pytest.raises(Conflict):
            await inbox.release(instance, "alone", None)
        set_identity(Identity.of("token:op", read_grant("operator")))
        assert (await inbox.release(instance, "alone", None)).assignee is None
        assert (await inbox.claim(instance, "alone", "bob")).assignee == "bob"
    finally:
        set_identity(None)


async def test_of_many_who_claim_at_once_one_has_it(driver: Driver) -> None:
    instance = await driver.run(ALONE)
    got: list[str] = []

    async def claim(name: str) -> None:
        try:
            await driver.engine.inbox.claim(instance, "alone", name)
            got.append(name)
        except Conflict:
            pass

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for n in range(20):
                nursery.start_soon(functools.partial(claim, f"p{n}"))
    assert len(got) == 1
    assert [task.assignee for task in (await probe(driver)).items] == got


async def forget_the_list(driver: Driver) -> None:
    """As in a database from before there was one."""
    with psycopg.connect(driver.dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE open_task")
        connection.execute("DELETE FROM setting WHERE name = 'open_tasks'")


async def test_a_list_no_older_engine_kept_is_filled(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.instances.inbox.FILL_ROWS", 3)
    await driver.upload(ALONE)
    started = [(await driver.start("alone")).id for _ in range(7)]
    await forget_the_list(driver)
    inbox = driver.engine.inbox
    with pytest.raises(Unavailable, match="is making the list of open user tasks"):
        await probe(driver)
    with psycopg.connect(driver.dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO engine VALUES (1000, gen_random_uuid(), now() + interval '1 h', 'POLLING', 'old one', 8)"
        )
        with pytest.raises(Conflict, match="upgrade all engines first"):
            await probe(driver)
        assert not await inbox.fill()
        connection.execute("DELETE FROM engine WHERE number = 1000")
    with psycopg.connect(driver.dsn) as connection:  # somebody is at one of them just now
        connection.execute("SELECT FROM token ORDER BY id LIMIT 1 FOR UPDATE")
        assert not await inbox.fill()
    assert await inbox.fill()
    assert [task.instance_id for task in (await probe(driver)).items] == started
    assert find_broken(driver.dsn) == []


async def test_a_summary_names_the_task_without_secrets(driver: Driver) -> None:
    forms = {"alone": {"summary": "who + ', ' + amount + ' EUR'"}, "other": {"summary": "secret"}}
    body = definition(
        gateway("fork", "alone", "other", "bad"), user("alone", "join"), user("other", "join"), user("bad", "join"),
        joining(), end(), metadata={"forms": forms | {"bad": [1]}, "secretVariables": ["secret"]},
    )  # fmt: skip
    await driver.run(body, {"who": "Nadia", "amount": "92000", "secret": "x"})
    found = {task.step_id: task.summary for task in (await probe(driver)).items}
    assert found == {"alone": "Nadia, 92000 EUR", "other": None, "bad": None}


async def test_tasks_of_items_are_distinguished(driver: Driver) -> None:
    """Claimed and completed by their own names: of a list the oldest may be another person's."""
    each = {"items": "${papers}", "as": "paper", "collect": "${result.ok}", "into": "verdicts"}
    forms = {"forms": {"read": {"summary": "paper.title + ' of ' + author"}}}
    read = user("read", jobType="clerks", forEach=each, boundaryEvents=[timer("end", interrupting=True)])
    await driver.upload(definition(read, end(), id="read", metadata=forms))
    papers = [{"title": title} for title in ("a", "b", "c")]
    instance = (await driver.start("read", {"papers": papers, "author": "Ann", "paper": {"title": "x"}})).id
    shown = (await probe(driver, "clerks")).items
    assert [(task.item, task.summary) for task in shown] == [(0, "a of Ann"), (1, "b of Ann"), (2, "c of Ann")]
    assert all(task.next_timer is not None for task in shown)
    padded = "vars || jsonb_build_object('pad', repeat('x', 1100000))"
    assert driver.rows(f"UPDATE item_vars SET vars = {padded} WHERE item = 1 RETURNING 1") == [(1,)]
    summaries = [task.summary for task in (await probe(driver, "clerks")).items]
    assert summaries == ["a of Ann", None, None], "nothing else of that name in place of what was not read"
    driver.rows("UPDATE item_vars SET vars = vars - 'pad' RETURNING 1")
    inbox, last = driver.engine.inbox, shown[-1].execution_id
    claimed = await inbox.claim(instance, "read", "eve", last)
    assert (claimed.item, claimed.assignee, claimed.execution_id) == (2, "eve", last)
    assert [task.item for task in (await probe(driver, assignee="eve")).items] == [2]
    assert (await inbox.release(instance, "read", "eve", last)).assignee is None

    async def complete(task: str, ok: object) -> None:
        variables = msgspec.json.encode({"ok": ok})
        done = UserTaskCompletion(instance, "read", variables, "eve", task)
        await driver.engine.tasks.complete_user_task(done)

    await complete(last, "last")
    with pytest.raises(NotFound, match="'read' is not open"):
        await complete(last, "again")
    with pytest.raises(NotFound, match="'read' is not open"):
        await inbox.claim(instance, "read", "eve", last)
    with pytest.raises(BadRequest, match="executionId: is not the id"):
        await complete("x", "y")
    assert [task.item for task in (await probe(driver, "clerks")).items] == [0, 1]
    await complete(shown[1].execution_id, "second")
    await complete(shown[0].execution_id, "first")
    assert (await driver.variables(instance))["verdicts"] == ["first", "second", "last"]
    assert find_broken(driver.dsn) == []
