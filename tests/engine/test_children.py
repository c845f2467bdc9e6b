"""Durable runs that wait for other instances, and graphs that call durable runs: what crosses over, and what not."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import psycopg
import pytest
import trio

from penstock.core.rules.state import InstanceStatus
from penstock.engine.group_commit.queue import GroupCommitQueue
from penstock.engine.queues.journal_items import ClaimedRun, RunEnd, RunLease
from penstock.engine.runs.code import CodeWorkflow
from penstock.engine.starts.full_starts import FullStarts
from penstock.engine.starts.start_item import StartItem
from penstock.errors import BadRequest, Conflict, IdempotencyConflict, LeaseLost, NotFound, Unavailable
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.testing.definitions import definition, end, linear, service
from penstock.wire.model import StartRequest
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, variables_of
from tests.engine.runs import ORDER, begin, continue_as_new, done, finish, read, take
from tests.engine.runs import append as append_to
from tests.shapes import assign, call
from tests.waiting import wait_until

AUDIT = CodeWorkflow("audit")
HOLDER = "e0.0123abcd/audit-1"
CHILD, CANCEL = 8, 7


async def start(
    driver: Driver, run: ClaimedRun, path: str = "/0", target: Any = AUDIT, id: str = "c-1", **args: Any
) -> str:
    return await driver.engine.children.start(run.run_lease, path, target, msgspec.json.encode(args), id)


async def take_child(driver: Driver) -> ClaimedRun:
    [run] = await driver.engine.code.take(HOLDER, [AUDIT], 1, wait_s=5)
    return run


async def ends(driver: Driver, run: ClaimedRun) -> list[tuple[str, str | None, Any]]:
    """The ends that its journal holds, once all that is due has been told."""
    while driver.rows("SELECT FROM timer WHERE fire_at <= penstock_now()"):
        await driver.due()
    page = await read(driver, run.run_lease)
    found = [(record.path, record.name, record.payload or "") for record in page.records if record.kind == CHILD]
    return [(path, name, msgspec.json.decode(text)) for path, name, text in found]


async def kinds(driver: Driver, run: ClaimedRun) -> list[int]:
    return [record.kind for record in (await read(driver, run.run_lease)).records]


async def fail(
    driver: Driver, run: ClaimedRun, *, status: InstanceStatus = InstanceStatus.FAILED, mail: int = 0
) -> None:
    assert await driver.engine.journal.finish(run.run_lease, RunEnd(status, failure="no money"), mail=mail)


async def test_a_child_has_priority_and_flow_key_of_its_caller(make_driver: MakeDriver) -> None:
    driver = make_driver(services=True)
    await driver.upload(linear(1))
    await driver.engine.code.register(ORDER)
    asked = StartRequest(ORDER.definition_id, variables=b"{}", priority=2, flow_key="gold")
    caller = (await driver.engine.instances.start(asked)).id
    [run] = await take(driver)
    assert run.instance_id == caller
    ids = [await start(driver, run, "/0", id="c-1"), await start(driver, run, "/1", "linear", id="c-2")]
    assert [(view.priority, view.flow_key) for view in [await driver.view(id) for id in ids]] == [(2, "gold")] * 2
    await driver.engine.repair.set_priority(caller, 7)
    later = await start(driver, run, "/2", id="c-3")
    turns = driver.rows("SELECT priority, flow_key FROM token ORDER BY id")
    assert turns == [(7, "gold"), (2, "gold"), (2, "gold"), (7, "gold")]
    children = [(await take_child(driver)).instance_id for _ in range(2)]
    assert children == [ids[0], later], "and it is found in its turn"
    assert [job.instance_id for job in await driver.poll("work", wait=5)] == [ids[1]]


async def test_the_end_of_a_child_is_told_to_its_caller(make_driver: MakeDriver) -> None:
    driver, other = make_driver(0), make_driver(1)
    run = await begin(driver)
    id = await start(driver, run, n=7)
    assert await start(driver, run, n=7) == id, "once"
    assert await driver.engine.journal.park(run.run_lease, mail=0, due_at=None)
    child = await take_child(driver)
    assert (child.instance_id, child.arguments, child.key) == (id, b'{"n": 7}', "c-1")
    assert (await driver.view(id)).parent_instance_id == run.instance_id
    assert await finish(driver, child.run_lease, {"sum": 8})
    assert driver.rows("SELECT token_id, index FROM timer") == [(run.run_lease.instance, -17)]
    timer = driver.rows("SELECT token_id, seq, index FROM timer")[0]
    for engine in (driver, other):  # both saw that it is due
        await engine.engine.children.notify(run.run_lease.instance, timer)
    assert driver.rows("SELECT count(*) FROM timer") == [(0,)]
    [again] = await take(driver)
    assert await ends(driver, again) == [("/0", "audit", {"id": id, "status": "COMPLETED", "result": {"sum": 8}})]
    assert await start(driver, again, n=7) == id
    assert len(await ends(driver, again)) == 1, "who asks again is not told twice"
    assert await finish(driver, again.run_lease, mail=1)


async def test_a_child_is_of_one_call_of_one_run(driver: Driver) -> None:
    run, other = await begin(driver), await begin(driver)
    await start(driver, run, n=1)
    with pytest.raises(Conflict, match="did not call here"):
        await start(driver, run, "/1", n=1)
    with pytest.raises(Conflict, match="did not call here"):
        await start(driver, other, n=1)
    with pytest.raises(IdempotencyConflict):
        await start(driver, run, n=2)
    with pytest.raises(NotFound, match="unknown"):
        await start(driver, run, "/2", "no such definition", "c-2")
    await driver.engine.journal.release(run.run_lease)
    with pytest.raises(LeaseLost):
        await start(driver, run, "/3", id="c-3")
    with pytest.raises(LeaseLost):
        await driver.engine.children.cancel(run.run_lease, "/3")
    assert driver.rows("SELECT count(*) FROM instance WHERE business_key LIKE 'c-%%'") == [(1,)]


async def test_children_begin_together_and_bad_ones_alone(driver: Driver) -> None:
    run, other = await begin(driver), await begin(driver)
    await start(driver, other, id="c-13")
    refused: dict[int, str] = {}

    async def start_one(number: int) -> None:
        target = "no such definition" if number == 7 else AUDIT
        try:
            await start(driver, run, f"/{number}", target, f"c-{number}")
        except (Conflict, LeaseLost, NotFound) as error:
            refused[number] = type(error).__name__

    def begun() -> list[tuple[Any, ...]]:
        return driver.rows(
            "SELECT count(*), count(DISTINCT c.xmin::text), count(DISTINCT t.id) FROM called c"
            " JOIN token t ON t.id = c.id WHERE c.caller = %s",
            run.run_lease.instance,
        )

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(start_one, number)
    assert refused == {7: "NotFound", 13: "Conflict"}
    [(children, _, tokens)] = begun()
    assert (children, tokens) == (18, 18)
    assert driver.rows("SELECT count(*) FROM instance_key WHERE key LIKE 'c-%%'") == [(19,)]
    async with trio.open_nursery() as nursery:
        for number in range(20, 60):
            nursery.start_soon(start_one, number)
    [(children, transactions, tokens)] = begun()
    assert (children, tokens) == (58, 58)
    assert transactions < 58 - 20, "the later ones came together"
    await driver.engine.journal.release(run.run_lease)
    async with trio.open_nursery() as nursery:
        for number in range(60, 63):
            nursery.start_soon(start_one, number)
    assert [refused[number] for number in range(60, 63)] == ["LeaseLost"] * 3
    assert begun()[0][0] == 58


async def test_no_two_queues_have_a_long_child(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of children that begin together those whose first steps take long go to another queue."""
    under_way: list[StartItem] = []
    met: list[StartItem] = []
    apply = FullStarts.apply

    async def goes_on(items: list[StartItem]) -> bool:
        """Of several that were given away the other queue has evaluated one."""
        return len(items) == 1 or not all(item.moved for item in items)

    async def watched(
        self: FullStarts, commit_queue: GroupCommitQueue[StartItem], connection: TrioConnection, items: list[StartItem]
    ) -> None:
        met.extend(item for item in items if item in under_way)
        under_way.extend(items)
        try:
            await apply(self, commit_queue, connection, items)
        finally:
            await wait_until(partial(goes_on, items))
            for item in items:
                under_way.remove(item)

    monkeypatch.setattr(FullStarts, "apply", watched)
    await driver.upload(definition(assign("long", {"x": "${count(1..9000, # > n)}"}), end(), definition_id="graph"))
    run = await begin(driver)
    found = [await start(driver, run, "/0", "graph", "c-0", n=1)]

    async def start_one(number: int) -> None:
        found.append(await start(driver, run, f"/{number}", "graph", f"c-{number}", n=1))

    async with driver.engine.database.connection(), driver.engine.database.connection():
        pass  # there are two from now on, and nobody waits for one
    async with trio.open_nursery() as nursery:
        for number in range(1, 5):
            nursery.start_soon(start_one, number)
    assert not met
    assert len(set(found)) == 5
    assert driver.rows("SELECT count(*) FROM called WHERE caller = %s", run.run_lease.instance) == [(5,)]


@pytest.mark.parametrize("ended", ["the run", "by force"])
async def test_an_end_beside_a_renewed_call_is_told_to_it(driver: Driver, nursery: trio.Nursery, ended: str) -> None:
    async def waits() -> bool:
        return driver.waiting_for_locks() > 0

    async def reported() -> bool:
        return driver.rows("SELECT FROM timer WHERE index = -17") != []

    run = await begin(driver)
    id = await start(driver, run)
    child = await take_child(driver)
    with psycopg.connect(driver.dsn) as renewing:  # as `renew_call` does, whose COMMIT takes its time
        [(seq,)] = renewing.execute("UPDATE called SET seq = nextval('step_seq') RETURNING seq").fetchall()
        if ended == "the run":
            nursery.start_soon(finish, driver, child.run_lease)
        else:
            nursery.start_soon(partial(driver.engine.instances.cancel, id, "no more", force=True))
        await wait_until(waits)
    await wait_until(reported)
    assert driver.rows("SELECT seq FROM timer WHERE index = -17") == [(seq,)]


async def test_a_cancel_reaches_the_child_and_its_end_comes_back(driver: Driver) -> None:
    run = await begin(driver)
    children = driver.engine.children
    assert not await children.cancel(run.run_lease, "/0"), "it was never started"
    id = await start(driver, run)
    child = await take_child(driver)
    for _ in range(2):
        assert await children.cancel(run.run_lease, "/0")
    assert await kinds(driver, child) == [CANCEL]
    await fail(driver, child, status=InstanceStatus.CANCELLED, mail=1)
    assert await children.cancel(run.run_lease, "/0"), "it has ended, and the record is on its way"
    assert await ends(driver, run) == [("/0", "audit", {"id": id, "status": "CANCELLED", "reason": "no money"})]


@pytest.mark.parametrize("how", ["completes", "fails", "is ended by force", "is cancelled"])
async def test_a_run_waits_for_an_instance_of_a_graph(driver: Driver, how: str) -> None:
    await driver.upload(linear(1, definition_id="legacy"))
    run = await begin(driver)
    id = await start(driver, run, target="legacy", order=17)
    [job] = await driver.poll("work", n=1)
    match how:
        case "completes":
            await driver.complete(job, {"paid": True})
        case "fails":
            await driver.fail(job, retryable=False)
        case "is ended by force":
            await driver.engine.instances.cancel(id, "now", force=True)
        case _:
            assert await driver.engine.children.cancel(run.run_lease, "/0")
    [(path, name, reported)] = await ends(driver, run)
    assert (path, name, reported["id"]) == ("/0", "legacy", id)
    if how == "completes":
        assert (reported["status"], reported["result"]) == ("COMPLETED", {"order": 17, "paid": True})
    elif how == "fails":
        assert reported["status"] == "FAILED"
        with pytest.raises(Conflict, match="does not wait for it any more"):
            await driver.retry(id)
    else:
        reason = "now" if how == "is ended by force" else "the run that waits for it was cancelled"
        assert (reported["status"], reported["reason"]) == ("CANCELLED", reason)


@pytest.mark.parametrize("how", ["by force", "as it fails"])
async def test_what_a_run_called_ends_with_it(driver: Driver, how: str) -> None:
    await driver.upload(linear(1, definition_id="legacy"))
    run = await begin(driver)
    legacy = await start(driver, run, "/0", "legacy", "c-0")
    await start(driver, run, "/1", id="c-1")
    child = await take_child(driver)
    if how == "by force":
        await driver.engine.instances.cancel(run.instance_id, None, force=True)
    else:
        await fail(driver, run)
    while driver.rows("SELECT FROM timer WHERE fire_at <= penstock_now()"):
        await driver.due()
    assert await driver.status(legacy) == "CANCELLED"
    assert await kinds(driver, child) == [CANCEL]
    assert await finish(driver, child.run_lease, mail=1)
    while driver.rows("SELECT FROM timer WHERE fire_at <= penstock_now()"):
        await driver.due()
    assert driver.rows("SELECT count(*) FROM journal WHERE kind = 8") == [(0,)], "nobody is there to be told"


async def test_a_retried_run_calls_again(driver: Driver) -> None:
    run = await begin(driver)
    first = await start(driver, run, id="c-1")
    await fail(driver, await take_child(driver))
    assert len(await ends(driver, run)) == 1
    assert await finish(driver, run.run_lease) is False
    await fail(driver, run, mail=1)
    await driver.engine.instances.retry_run(run.instance_id, None)
    [again] = await take(driver)
    assert await ends(driver, again) == []
    assert not await driver.engine.children.cancel(again.run_lease, "/0"), "that call is of a former life"
    assert await start(driver, again, id="c-1") == first
    assert [reported["status"] for _, _, reported in await ends(driver, again)] == ["FAILED"], "it is told again"
    second = await start(driver, again, "/1", id="c-2")
    assert second != first


async def test_a_run_that_failed_after_its_child_completed_is_retried(driver: Driver) -> None:
    run = await begin(driver)
    await start(driver, run)
    child = await take_child(driver)
    assert await finish(driver, child.run_lease, {"sum": 8})
    assert len(await ends(driver, run)) == 1
    await fail(driver, run, mail=1)
    await driver.engine.instances.retry_run(run.instance_id, None)
    [again] = await take(driver)
    assert [reported["status"] for _, _, reported in await ends(driver, again)] == ["COMPLETED"]


CALLER = definition(
    call("ask", "audit", input={"n": "${amount}"}, output={"sum": "${result.result}"}, next_step="after"),
    service("after", "end"),
    end(),
    definition_id="caller",
)


async def a_graph_that_calls(driver: Driver, *, known: bool = True) -> tuple[str, ClaimedRun]:
    """``known``: the code is there before the definition that calls it."""
    if known:
        await driver.engine.code.register(AUDIT)
    await driver.upload(CALLER)
    await driver.engine.code.register(AUDIT)
    id = (await driver.start("caller", {"amount": 3})).id
    return id, await take_child(driver)


async def test_a_graph_calls_a_run_of_code(driver: Driver) -> None:
    caller, child = await a_graph_that_calls(driver, known=False)
    assert child.arguments == b'{"n": 3}'
    assert await finish(driver, child.run_lease, 9)
    await driver.due()
    [job] = await driver.poll("work", n=1)
    assert (job.instance_id, variables_of(job)) == (caller, {"amount": 3, "sum": 9})
    await driver.complete(job)
    assert await driver.status(caller) == "COMPLETED"


async def test_a_graph_that_ends_cancels_the_run_it_called(driver: Driver) -> None:
    caller, child = await a_graph_that_calls(driver)
    await append_to(driver, child.run_lease, done("/0"))
    await driver.cancel(caller)
    await driver.due()
    assert driver.rows("SELECT count(*) FROM timer") == [(0,)]
    assert await kinds(driver, child) == [1, CANCEL]
    assert await driver.status(child.instance_id) == "ACTIVE", "it cleans up"
    await fail(driver, child, status=InstanceStatus.CANCELLED, mail=1)
    assert driver.rows("SELECT count(*) FROM timer") == [(0,)]


async def test_a_graph_fails_with_its_run_and_calls_again(driver: Driver) -> None:
    caller, child = await a_graph_that_calls(driver)
    await fail(driver, child)
    await driver.due()
    view = await driver.view(caller)
    assert (view.status, view.failure_reason) == (
        "FAILED", f"ChildFailed: instance '{child.instance_id}' of 'audit' failed: no money"
    )  # fmt: skip
    await driver.retry(caller)
    again = await take_child(driver)
    assert again.instance_id != child.instance_id
    assert await finish(driver, again.run_lease, 4)
    await driver.due()
    [job] = await driver.poll("work", n=1)
    assert variables_of(job) == {"amount": 3, "sum": 4}


async def test_too_many_in_a_row_are_refused(driver: Driver) -> None:
    run, id = await begin(driver), "c"
    for depth in range(17):
        if depth == 16:
            with pytest.raises(BadRequest, match="call 17 in a row"):
                await start(driver, run, id=f"{id}-{depth}")
            return
        await start(driver, run, id=f"{id}-{depth}")
        run = await take_child(driver)


async def test_a_child_that_goes_on_is_not_reported_as_failed(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is retried while its caller is about to be told."""
    run = await begin(driver)
    id = await start(driver, run)
    await fail(driver, await take_child(driver))
    send_notice = driver.engine.journal.notify

    async def send_late(*args: Any) -> None:
        await driver.engine.instances.retry_run(id, None)
        await send_notice(*args)

    with monkeypatch.context() as patch:
        patch.setattr(driver.engine.journal, "notify", send_late)
        await driver.due()
    assert await ends(driver, run) == []
    assert await finish(driver, await _held(driver), 5)
    assert [reported["status"] for _, _, reported in await ends(driver, run)] == ["COMPLETED"]


async def _held(driver: Driver) -> RunLease:
    return (await take_child(driver)).run_lease


async def test_a_run_that_is_retried_may_fail_again_at_once(driver: Driver) -> None:
    """Before what it called has heard of the first time."""
    run = await begin(driver)
    await start(driver, run)
    child = await take_child(driver)
    for _ in range(2):
        await fail(driver, run)
        await driver.engine.instances.retry_run(run.instance_id, "end")
        [run] = await take(driver)
    await driver.engine.instances.cancel(run.instance_id, None, force=True)
    while driver.rows("SELECT FROM timer WHERE fire_at <= penstock_now()"):
        await driver.due()
    assert await kinds(driver, child) == [CANCEL]


async def test_a_database_that_is_away_ends_no_loop(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await begin(driver)
    await start(driver, run)
    assert await finish(driver, await _held(driver))
    away = Database("host=127.0.0.1 port=1", max_connections=1, acquire_timeout_s=0.1)
    with monkeypatch.context() as patch:
        patch.setattr(driver.engine.children, "_database", away)
        assert await driver.engine.timers.fire_once() == 0
    await away.close(0)
    assert len(await ends(driver, run)) == 1


async def test_results_are_in_memory_of_a_few_children(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.runs.children.NOTICES_AT_ONCE", 2)
    driver = make_driver()
    run = await begin(driver)
    for n in range(5):
        await start(driver, run, f"/{n}", id=f"c-{n}")
        assert await finish(driver, await _held(driver))
    send_notice, now, most = driver.engine.journal.notify, 0, 0

    async def send_counted(*args: Any) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await send_notice(*args)
        now -= 1

    monkeypatch.setattr(driver.engine.journal, "notify", send_counted)
    assert len(await ends(driver, run)) == 5
    assert most <= 2


async def test_older_engines_let_runs_wait_and_not_fail(driver: Driver) -> None:
    driver.rows(  # before the run is taken: then this engine finds that no older one lives, and none can join later
        "INSERT INTO engine (number, holder, leased_until, dispatch_mode, description, schema_version)"
        " VALUES (77, gen_random_uuid(), penstock_now() + interval '1 h', 'polling', 'old', 17) RETURNING 1"
    )
    run = await begin(driver)
    with pytest.raises(Unavailable, match="upgrade all engines first"):
        await start(driver, run)
    with pytest.raises(Unavailable, match="upgrade all engines first"):
        await continue_as_new(driver, run.run_lease)
    assert driver.rows("SELECT count(*) FROM journal") == [(0,)]
    driver.rows("DELETE FROM engine WHERE number = 77 RETURNING 1")
    assert await continue_as_new(driver, run.run_lease)
    assert await start(driver, run)
