"""``penstock.v1.Repair`` on a real engine: each call, what it refuses, and the client over it."""

from __future__ import annotations

import msgspec
import pytest
from grpclib.const import Status

from penstock.engine.requests import ids
from penstock.testing.definitions import definition, end
from penstock.wire import repair_v1 as w
from penstock.wire.codec import decode_message, encode_message
from penstock.wire.model import Branch, Instance, RunTree
from penstock.wire.repair import (
    BulkPreview,
    BulkRefusals,
    BulkStarted,
    BulkView,
    ChangedSteps,
    ImpactView,
    MigrationCheck,
)
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.test_calls import settle
from tests.rpc.served import CallFailed, served
from tests.shapes import call, task

__all__ = ["make_driver"]  # pytest finds the fixture here

SERVICE = "/penstock.v1.Repair/"
LINE = definition(task("one", "two"), task("two"), end(), id="line")
LATER = definition(task("zero", "one"), task("one", "three"), task("three"), end(), id="line")
ACTIVE = 1


async def test_one_instance_is_mended_by_each_call(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(LINE)
    id = (await driver.start("line", {"a": 1, "b": 2})).id
    async with served(driver.engine) as run:
        skipped = await run.call(SERVICE + "SkipStep", w.SkipStepRequest(id, "one", b'{"c":3}', note="n"), Instance)
        assert (skipped.current_step_ids, skipped.id) == (["two"], id)
        moved = await run.call(SERVICE + "MoveToken", w.MoveTokenRequest(id, "two", "one"), Instance)
        assert moved.current_step_ids == ["one"]
        changed = await run.call(SERVICE + "SetPriority", w.SetPriorityRequest(id, 0), Instance)
        assert (changed.id, driver.rows("SELECT priority FROM instance")) == (id, [(0,)])
        for wrong in (w.SetPriorityRequest(id), w.SetPriorityRequest(id, 10)):
            with pytest.raises(CallFailed) as bad:
                await run.call(SERVICE + "SetPriority", wrong, Instance)
            assert bad.value.status is Status.INVALID_ARGUMENT
        await driver.upload(LATER)
        check = await run.call(SERVICE + "CheckMigration", w.CheckMigrationRequest(id), MigrationCheck)
        assert (check.possible, check.from_version, check.to_version, check.reasons) == (True, 1, 2, [])
        steps = {"one": "three"}
        migrated = await run.call(SERVICE + "MigrateInstance", w.MigrateInstanceRequest(id, 2, steps), Instance)
        assert (migrated.definition_version, migrated.current_step_ids) == (2, ["three"])
        with pytest.raises(CallFailed) as refused:
            await run.call(SERVICE + "EditVariables", w.EditVariablesRequest(id, b'{"a":2}'), Instance)
        assert refused.value.status is Status.FAILED_PRECONDITION
        await driver.fail(await driver.one("three"), retryable=False)
        edit = w.EditVariablesRequest(id, b'{"a":2}', ["b"], note="a slip")
        await run.call(SERVICE + "EditVariables", edit, Instance)
        assert await driver.variables(id) == {"a": 2, "c": 3}
        retried = await run.call(SERVICE + "RetryInstance", w.RetryInstanceRequest(id, "one"), Instance)
        assert retried.current_step_ids == ["one"]
        kinds = driver.rows("SELECT kind FROM audit WHERE kind IN ('SKIPPED', 'MIGRATED', 'VARIABLES_EDITED')")
        assert sorted(kinds) == [("MIGRATED",), ("SKIPPED",), ("VARIABLES_EDITED",)]


async def test_many_are_counted_and_then_changed(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(LINE)
    instances = [(await driver.start("line", {"n": n})).id for n in range(3)]
    wanted = w.BulkRequest("skip", w.BulkFilter(ACTIVE, "line"), step_id="one", variables=b'{"n":7}', note="by hand")
    async with served(driver.engine) as run:
        preview = await run.call(SERVICE + "PreviewBulk", wanted, BulkPreview)
        assert (preview.count, preview.exact, [(at.step_id, at.count) for at in preview.by_step]) == (
            3, True, [("one", 3)],
        )  # fmt: skip
        wanted.per_1000_seconds = 5_000_000
        begun = await run.call(SERVICE + "StartBulk", wanted, BulkStarted)
        await driver.engine.bulk.step()
        seen = await run.call(SERVICE + "GetBulk", w.GetBulkRequest(begun.id), BulkView)
        assert (seen.state, seen.done, seen.per_second, seen.note) == ("DONE", 3, 5_000.0, "by hand")
        assert [await driver.variables(id) for id in instances] == [{"n": 7}] * 3
        stopped = await run.call(SERVICE + "StopBulk", w.StopBulkRequest(begun.id), BulkView)
        assert stopped == seen
        listed = await run.call(SERVICE + "ListBulk", w.ListBulkRequest(), w.ListBulkResponse)
        counted = msgspec.structs.replace(seen, outcome=None)  # of one that is asked for
        assert (listed.operations, listed.next) == ([counted], "")
        migration = w.BulkRequest("migrate", w.BulkFilter(definition_id="line"), version=1)
        refusals = (await run.call(SERVICE + "PreviewBulk", migration, BulkPreview)).refusals
        assert refusals is not None
        assert (refusals.checked, refusals.refused, len(refusals.instances)) == (3, 3, 3)


async def test_impact_is_of_a_document_or_a_version(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(LINE)
    id = (await driver.start("line")).id
    document = msgspec.json.encode(definition(task("two"), end(), id="line"))
    async with served(driver.engine) as run:
        given = await run.call(SERVICE + "GetImpact", w.GetImpactRequest("line", definition=document), ImpactView)
        assert [(step.step_id, step.open, step.change) for step in given.versions[0].steps] == [("one", 1, "REMOVED")]
        assert given.refusals is not None
        assert [check.instance_id for check in given.refusals.instances] == [id]
        assert given.steps == ChangedSteps(changed=[], removed=["one"], added=[])
        await driver.upload(LATER)
        there = await run.call(SERVICE + "GetImpact", w.GetImpactRequest("line", 2), ImpactView)
        assert (there.exact, there.refusals) == (True, BulkRefusals(checked=1))
        with pytest.raises(CallFailed) as refused:
            await run.call(SERVICE + "GetImpact", w.GetImpactRequest("line", definition=b"{"), ImpactView)
        assert refused.value.status is Status.INVALID_ARGUMENT


async def test_a_tree_of_calls_comes_whole(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(definition(task("work"), end() | {"output": {"sum": "${big}"}}, definition_id="leaf"))
    await driver.upload(definition(call("inner", "leaf"), end(), definition_id="middle"))
    await driver.upload(definition(call("outer", "middle"), end(), definition_id="root"))
    id = (await driver.start("root")).id
    async with served(driver.engine) as run:
        tree = await run.call(SERVICE + "GetTree", w.GetTreeRequest(id), RunTree)
        await driver.complete(await driver.one("work"), {"big": 2**60 + 1})
        await settle(driver)
        leaf_id = tree.branches[0].children[0].instance_id or ""
        ended = await run.call(SERVICE + "GetInstance", w.GetInstanceRequest(leaf_id), Instance)
    assert (ended.status, msgspec.json.decode(ended.result)) == ("COMPLETED", {"sum": 2**60 + 1})
    (middle,) = tree.branches
    (leaf,) = middle.children
    assert (tree.workflow, middle.name, leaf.name, leaf.path) == ("root", "middle", "leaf", "/outer/inner")
    assert leaf.instance_id == ids.show_instance(driver.rows("SELECT max(id) FROM instance")[0][0])


def test_a_tree_is_as_deep_as_messages_may_be() -> None:
    branch = Branch(path="/0", status="open")
    for _ in range(20):
        branch = Branch(path="/", status="open", children=[branch])
    tree = RunTree(id="1", status="ACTIVE", workflow="w", version=1, branches=[branch])
    assert decode_message(encode_message(tree, "penstock.v1"), RunTree, "penstock.v1") == tree


REFUSED = (
    (w.BulkRequest(), "action: is required"),
    (w.BulkRequest("retry"), "filter: give either a filter or ids"),
    (w.BulkRequest("retry", w.BulkFilter(9)), "status: 9 is not a value of InstanceStatus"),
    (w.BulkRequest("retry", w.BulkFilter()), "filter: is empty, so it would match all"),
    (w.BulkRequest("edit", ids=["1"]), "variables: is empty, and so is remove: name a variable"),
    (w.BulkRequest("retry", ids=["1"], remove=["a"]), "remove: does not belong to the action retry"),
)


async def test_what_makes_no_sense_is_refused(make_driver: MakeDriver) -> None:
    async with served(make_driver().engine) as run:
        for request, says in REFUSED:
            with pytest.raises(CallFailed) as refused:
                await run.call(SERVICE + "StartBulk", request, BulkStarted)
            assert refused.value.status is Status.INVALID_ARGUMENT
            assert refused.value.reason.startswith(says)


async def test_a_row_that_needs_somebody_is_acknowledged_over_both_wires(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(LINE)
    await driver.start("line")
    await driver.fail(await driver.one("one"), "no paper", retryable=False)
    rows, nothing = (w.ListAttentionRequest(), w.ListAttentionResponse), w.AcknowledgeAttentionResponse
    async with served(driver.engine) as run:
        (row,) = (await run.call(SERVICE + "ListAttention", *rows)).items
        assert (row.kind, row.count, row.more, row.acknowledged) == ("failures", 1, False, None)
        assert row.query["definitionId"] == "line"
        for wrong in (w.AcknowledgeAttentionRequest(), w.AcknowledgeAttentionRequest(row.key, -1)):
            with pytest.raises(CallFailed) as bad:
                await run.call(SERVICE + "AcknowledgeAttention", wrong, nothing)
            assert bad.value.status is Status.INVALID_ARGUMENT
        noted = w.AcknowledgeAttentionRequest(row.key, row.count, "ordered")
        await run.call(SERVICE + "AcknowledgeAttention", noted, nothing)
        (row,) = (await run.call(SERVICE + "ListAttention", *rows)).items
        assert row.acknowledged is not None
        assert row.acknowledged.note == "ordered"
        (of_rest,) = (await driver.engine.overview.attention()).items
        assert of_rest.acknowledged is not None
        assert (of_rest.acknowledged.at, of_rest.acknowledged.until) == (row.acknowledged.at, row.acknowledged.until)
        withdrawal = w.WithdrawAcknowledgementRequest(row.key)
        await run.call(SERVICE + "WithdrawAcknowledgement", withdrawal, w.WithdrawAcknowledgementResponse)
        with pytest.raises(CallFailed) as gone:
            await run.call(SERVICE + "WithdrawAcknowledgement", withdrawal, w.WithdrawAcknowledgementResponse)
        assert gone.value.status is Status.NOT_FOUND
        (row,) = (await run.call(SERVICE + "ListAttention", *rows)).items
        assert row.acknowledged is None
    kinds = driver.rows("SELECT kind, detail FROM audit WHERE kind LIKE 'ATTENTION%%' ORDER BY pos")
    assert kinds == [("ATTENTION_ACKNOWLEDGED", f"{row.key}: ordered"), ("ATTENTION_WITHDRAWN", row.key)]
