"""A CALL_ACTIVITY: the instance that it starts, what comes back, and what each tells the other, in every order."""

from __future__ import annotations

from datetime import timedelta

import pytest
import trio

from penstock.engine.advance.call_commands import timer_command
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.engine.requests.ids import show_instance
from penstock.errors import Conflict
from penstock.settings.secret import Secret
from penstock.store.db.vault import KeyMissing
from penstock.store.rows import instances, retention
from penstock.store.rows.retention import Partition
from penstock.testing.definitions import Json, definition, end, timer
from penstock.testing.invariants import assert_invariants
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number
from tests.engine.test_encryption import KEYS
from tests.shapes import assign, call, gateway, joining, task, user

CHILD = definition(task("pack"), end(), definition_id="ship")
PARENT = definition(
    call("ship", "ship", "after", input={"order": "${id}"}, output={"tracking": "${result.tracking}"}),
    task("after"),
    end(),
    definition_id="order",
)


REPORTED = "SELECT instance_id, token_id, seq, index::int FROM timer ORDER BY fire_at, token_id"


async def begun(driver: Driver, *definitions: Json, variables: Json | None = None) -> tuple[str, str]:
    """The last definition's instance, and the one that it has called."""
    for one in definitions:
        await driver.upload(one)
    instance = await driver.start(str(definitions[-1]["id"]), variables or {"id": 7})
    return instance.id, child_of(driver, instance.id)


def child_of(driver: Driver, instance: str) -> str:
    """The newest that waits to be waited for."""
    rows = driver.rows("SELECT id FROM called WHERE caller = %s ORDER BY id DESC LIMIT 1", number(instance))
    return show_instance(rows[0][0])


async def settle(driver: Driver) -> None:
    """Until nobody has anything more to tell. An engine that has to read a definition first lets its timer wait."""
    with trio.fail_after(60):
        while driver.rows("SELECT FROM timer WHERE fire_at <= penstock_now()"):
            await driver.due()


async def test_a_call_starts_an_instance_and_waits_for_it(make_driver: MakeDriver) -> None:
    driver = make_driver()
    parent, child = await begun(driver, CHILD, PARENT)
    assert await driver.open_steps(parent) == ["ship"]
    assert await driver.status(parent) == "ACTIVE"
    view = await driver.view(child)
    assert (view.definition_id, view.parent_instance_id) == ("ship", parent)
    assert await driver.variables(child) == {"order": 7}
    [execution] = await driver.history(parent)
    assert (execution.step_type, execution.child_instance_id) == ("CALL_ACTIVITY", child)

    await driver.complete(await driver.one("pack"), {"tracking": "T1", "secret": 1})
    assert await driver.status(child) == "COMPLETED"
    assert await driver.open_steps(parent) == ["ship"]
    await settle(driver)
    assert await driver.open_steps(parent) == ["after"]
    assert await driver.variables(parent) == {"id": 7, "tracking": "T1"}
    await driver.complete(await driver.one("after"))
    assert await driver.status(parent) == "COMPLETED"
    assert [(item.step_id, item.child_instance_id) for item in await driver.history(parent)] == [
        ("ship", child),
        ("after", None),
        ("end", None),
    ]


async def test_without_mappings_all_goes_in_and_nothing_comes_back(make_driver: MakeDriver) -> None:
    driver = make_driver()
    plain = definition(call("ship", "ship"), end(), definition_id="order")
    parent, child = await begun(driver, CHILD, plain, variables={"id": 7, "more": [1]})
    assert await driver.variables(child) == {"id": 7, "more": [1]}
    await driver.complete(await driver.one("pack"), {"tracking": "T1"})
    await settle(driver)
    assert await driver.status(parent) == "COMPLETED"
    assert await driver.variables(parent) == {"id": 7, "more": [1]}


async def test_an_instance_that_ends_at_once_is_heard_of(make_driver: MakeDriver) -> None:
    driver = make_driver()
    empty = definition(assign("set", {"tracking": "${order * 2}"}), end(), definition_id="ship")
    parent, child = await begun(driver, empty, PARENT)
    assert await driver.status(child) == "COMPLETED"
    await settle(driver)
    assert await driver.variables(parent) == {"id": 7, "tracking": 14}


async def test_a_failed_child_fails_its_caller_with_its_reason(make_driver: MakeDriver) -> None:
    driver = make_driver()
    parent, child = await begun(driver, CHILD, PARENT)
    await driver.fail(await driver.one("pack"), "no box", retryable=False)
    await settle(driver)
    view = await driver.view(parent)
    assert (view.status, view.failure_reason) == (
        "FAILED",
        f"ChildFailed: instance '{child}' of 'ship' failed: no box",
    )


async def test_a_cancelled_child_fails_its_caller(make_driver: MakeDriver) -> None:
    driver = make_driver()
    parent, child = await begun(driver, CHILD, PARENT)
    await driver.cancel(child, "by hand")
    await settle(driver)
    view = await driver.view(parent)
    assert (view.status, view.failure_reason) == (
        "FAILED",
        f"ChildCancelled: instance '{child}' of 'ship' was cancelled: by hand",
    )


async def test_a_cancelled_caller_cancels_what_it_called(make_driver: MakeDriver) -> None:
    driver = make_driver()
    parent, child = await begun(driver, CHILD, PARENT)
    await driver.cancel(parent, "enough")
    assert await driver.status(child) == "ACTIVE"
    await settle(driver)
    view = await driver.view(child)
    assert (view.status, view.failure_reason) == ("CANCELLED", "the call that waited for it was closed")
    assert driver.rows("SELECT count(*) FROM timer") == [(0,)]


async def test_an_interrupting_timer_cancels_what_was_called(make_driver: MakeDriver) -> None:
    driver = make_driver()
    impatient = definition(
        call("ship", "ship", boundaryEvents=[timer("late", "PT1H", interrupting=True)]),
        user("late"),
        end(),
        definition_id="order",
    )
    parent, child = await begun(driver, CHILD, impatient)
    await driver.due(3601)
    await settle(driver)
    assert await driver.open_steps(parent) == ["late"]
    assert await driver.status(child) == "CANCELLED"


async def test_a_retry_of_the_caller_lets_its_child_go_on(make_driver: MakeDriver) -> None:
    driver = make_driver()
    parent, child = await begun(driver, CHILD, PARENT)
    await driver.fail(await driver.one("pack"), "no box", retryable=False)
    await settle(driver)
    await driver.retry(parent)
    await settle(driver)
    assert (await driver.status(parent), await driver.status(child)) == ("ACTIVE", "ACTIVE")
    await driver.complete(await driver.one("pack"), {"tracking": "T2"})
    await settle(driver)
    assert await driver.open_steps(parent) == ["after"]
    assert (await driver.variables(parent))["tracking"] == "T2"
    assert driver.rows("SELECT count(*) FROM called") == [(1,)]


async def test_a_retry_of_the_caller_starts_anew_what_was_cancelled(make_driver: MakeDriver) -> None:
    driver = make_driver()
    parent, child = await begun(driver, CHILD, PARENT)
    await driver.cancel(child, None)
    await settle(driver)
    await driver.retry(parent)
    await settle(driver)
    again = child_of(driver, parent)
    assert again != child
    assert (await driver.status(again), await driver.status(child)) == ("ACTIVE", "CANCELLED")


async def test_a_child_is_retried_while_its_caller_has_not_heard(make_driver: MakeDriver) -> None:
    driver = make_driver()
    parent, child = await begun(driver, CHILD, PARENT)
    await driver.fail(await driver.one("pack"), "no box", retryable=False)
    await driver.retry(child)  # before its caller hears of the failure
    await settle(driver)
    assert (await driver.status(parent), await driver.status(child)) == ("ACTIVE", "ACTIVE")
    await driver.fail(await driver.one("pack"), "no tape", retryable=False)
    await settle(driver)
    assert await driver.status(parent) == "FAILED"
    with pytest.raises(Conflict, match=f"instance '{parent}', which called it, does not wait for it any more"):
        await driver.retry(child)
    assert await driver.status(child) == "FAILED"


async def test_a_caller_cancelled_after_its_retry_leaves_no_open_child(make_driver: MakeDriver) -> None:
    """The child is about to go on when the caller ends."""
    driver = make_driver()
    parent, child = await begun(driver, CHILD, PARENT)
    await driver.fail(await driver.one("pack"), "no box", retryable=False)
    await settle(driver)
    await driver.retry(parent)
    await driver.cancel(parent)
    await settle(driver)
    assert (await driver.status(parent), await driver.status(child)) == ("CANCELLED", "FAILED")
    assert driver.rows("SELECT count(*) FROM timer") == [(0,)]


async def test_an_unknown_definition_fails_the_call(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(PARENT)
    instance = await driver.start("order", {"id": 1})
    assert (await driver.view(instance.id)).failure_reason == (
        "DefinitionNotFound: step 'ship' calls 'ship', which is not there"
    )
    await driver.upload(CHILD)
    await driver.retry(instance.id)
    assert await driver.open_steps(instance.id) == ["ship"]
    await driver.complete(await driver.one("pack"), {"tracking": 1})
    await settle(driver)
    assert await driver.open_steps(instance.id) == ["after"]


async def test_calls_in_a_circle_end_at_a_depth(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(definition(call("again", "circle"), end(), definition_id="circle"))
    instance = await driver.start("circle")
    await settle(driver)
    view = await driver.view(instance.id)
    assert view.status == "FAILED"
    assert driver.rows("SELECT count(*), max(depth) FROM called") == [(16, 16)]
    [(reason,)] = driver.rows("SELECT failure FROM instance ORDER BY id DESC LIMIT 1")
    assert reason == "CallTooDeep: step 'again' would make a call at depth 17, and 16 is the most"


async def test_more_calls_than_one_transaction_makes_go_on(make_driver: MakeDriver) -> None:
    driver = make_driver()
    heads = [f"call-{n}" for n in range(130)]
    wide = definition(
        gateway("fork", *heads),
        *[call(head, "ship", "join", businessKey=f"key {head}") for head in heads],
        joining("join"),
        end(),
        definition_id="order",
    )
    empty = definition(assign("set", {"done": True}), end(), definition_id="ship")
    await driver.upload(empty)
    await driver.upload(wide)
    instance = await driver.start("order")
    assert driver.rows("SELECT count(*) FROM called") == [(100,)]
    await settle(driver)
    assert await driver.status(instance.id) == "COMPLETED"
    assert driver.rows("SELECT count(*), count(DISTINCT business_key) FROM instance WHERE parent_id IS NOT NULL") == [
        (130, 130)
    ]


LEVELS = [
    definition(task("leaf"), end(), definition_id="level-3"),
    definition(gateway("fork", "one", "two"), call("one", "level-3", "join"), call("two", "level-3", "join"),
               joining("join"), end(), definition_id="level-2"),
    definition(gateway("fork", "one", "two"), call("one", "level-2", "join"), call("two", "level-2", "join"),
               joining("join"), end(), definition_id="level-1"),
]  # fmt: skip


async def test_the_tree_of_calls_is_reported_with_where_each_stands(make_driver: MakeDriver) -> None:
    driver = make_driver()
    root, _ = await begun(driver, *LEVELS)
    await driver.complete(await driver.one("leaf"))
    await settle(driver)
    tree = await driver.engine.runs.tree(root)
    assert (tree.id, tree.status, tree.workflow, tree.version) == (root, "ACTIVE", "level-1", 1)
    assert [(b.path, b.name, b.status, b.kind) for b in tree.branches] == [
        ("/one", "level-2", "open", "child"),
        ("/two", "level-2", "open", "child"),
    ]
    leaves = [(leaf.path, leaf.status) for branch in tree.branches for leaf in branch.children]
    assert sorted(leaves) == [
        ("/one/one", "done"), ("/one/two", "open"), ("/two/one", "open"), ("/two/two", "open"),
    ]  # fmt: skip
    listed = await driver.engine.instances.find_slice(InstanceFilter(parent_instance_id=root), None, 10)
    assert [show_instance(id) for id in listed.items] == [b.instance_id for b in reversed(tree.branches)]
    nobody = InstanceFilter(parent_instance_id="no id")
    assert (await driver.engine.instances.find_slice(nobody, None, 10)).items == []
    wanted = InstanceFilter(parent_instance_id=root, status="FAILED")
    assert (await driver.engine.instances.find_slice(wanted, None, 10)).items == []


def open_instances(driver: Driver) -> int:
    return int(driver.rows("SELECT count(*) FROM instance WHERE status = 0")[0][0])


@pytest.mark.parametrize("beginning", ["cancel", "fail"])
async def test_a_tree_cut_anywhere_leaves_no_open_child(make_driver: MakeDriver, beginning: str) -> None:
    """Who has the tree's instances tell each other is ended after each of its transactions, and another one goes on."""
    first, second = make_driver(), make_driver()
    for one in LEVELS:
        await first.upload(one)
    for transactions in range(8):
        root = (await first.start("level-1")).id
        assert open_instances(first) == 7
        if beginning == "cancel":
            await first.cancel(root)
        else:
            await first.fail(await first.one("leaf"), retryable=False)
        for _ in range(transactions):  # one after another, as the first engine gets to before it ends
            due = first.rows(REPORTED)
            if due:
                instance, *timer = due[0]
                await first.engine.full_path.submit(timer_command(instance, (timer[0], timer[1], timer[2])))
        await settle(second)
        assert open_instances(first) == 0, (beginning, transactions)
        assert first.rows("SELECT count(*) FROM timer") == [(0,)]
        assert_invariants(first.dsn)


async def test_a_result_of_its_own_comes_back_before_variables(make_driver: MakeDriver) -> None:
    driver = make_driver(encryption_keys=Secret(KEYS["k1"]))
    last = {**end(), "output": {"tracking": "${'R' + string(order)}"}}
    parent, _ = await begun(driver, definition(task("pack", "end"), last, definition_id="ship"), PARENT)
    await driver.complete(await driver.one("pack"), {"tracking": "T1"})
    await settle(driver)
    assert await driver.variables(parent) == {"id": 7, "tracking": "R7"}


async def test_what_was_called_stays_as_long_as_its_first_caller(make_driver: MakeDriver) -> None:
    driver = make_driver()
    parent, child = await begun(driver, CHILD, PARENT)
    await driver.complete(await driver.one("pack"))
    await settle(driver)
    await driver.complete(await driver.one("after"))
    driver.rows("UPDATE instance SET ended_at = ended_at - interval '10 days' WHERE id = %s RETURNING 1", number(child))
    day = timedelta(days=1)
    everything = Partition("history_other", driver.clock.now() - 20 * day, driver.clock.now() + day)
    async with driver.engine.database.connection() as connection:
        assert await retention.retired(connection, everything, 5, -1) == []
        driver.rows(
            "UPDATE instance SET ended_at = ended_at - interval '10 days' WHERE id = %s RETURNING 1", number(parent)
        )
        for gone in (parent, child):
            retired = await retention.retired(connection, everything, 5, -1)
            assert await retention.remove_instances(connection, retired) == [number(gone)]
    assert driver.rows("SELECT count(*) FROM called") == [(0,)]


async def test_a_child_that_can_not_be_read_is_given_up(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver()
    parent, _ = await begun(driver, CHILD, PARENT)
    await driver.complete(await driver.one("pack"), {"tracking": "T1"})
    ((instance, *timer),) = driver.rows(REPORTED)
    reason = "a timer of the step failed 20 times"

    async def view(*_: object) -> None:
        raise KeyMissing("no key")

    with monkeypatch.context() as patch:
        patch.setattr(instances, "view", view)
        for give_up in (None, reason):
            reported = timer_command(instance, (timer[0], timer[1], timer[2]), give_up)
            if give_up is None:
                with pytest.raises(KeyMissing):
                    await driver.engine.full_path.submit(reported)
            else:
                assert await driver.engine.full_path.submit(reported)
    found = await driver.view(parent)
    assert (found.status, found.failure_reason) == ("FAILED", reason)
