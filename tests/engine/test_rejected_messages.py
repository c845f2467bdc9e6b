"""What a run says that it accepts is asked before it is sent a message; what it rejected is dropped or corrected."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from penstock.core.rules.state import InstanceStatus
from penstock.engine.definitions.json_schema import WrongValue
from penstock.engine.queues.journal_items import RULES, ClaimedRun, NewRecord, RunEnd
from penstock.engine.requests.ids import show_instance
from penstock.engine.runs.mailbox import REJECTED_MAX, SHOWN_MAX_BYTES
from penstock.errors import BadRequest, Conflict, IdempotencyConflict, NotFound
from penstock.settings import Secret
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.engine.runs import append, begin, done, finish, read, take

SCHEMA = {"type": "object", "properties": {"by": {"type": "string"}}, "required": ["by"]}
KEYS = Secret("k=" + "A" * 43 + "=")
GOOD, BAD = b'{"by":"ann"}', b'{"by":7}'


def waits(as_of: int, *rejected: int, accepts: object = (SCHEMA,), rejects: int | None = None) -> bytes:
    """As an executor writes down that a run waits at one receive."""
    wait: dict[str, Any] = {"path": "/0", "kind": "receive", "name": "go", "where": "order.py:7", "as_of": f"{as_of:x}"}
    if accepts:
        wait["accepts"] = accepts
    if rejected:
        wait["rejects"] = len(rejected) if rejects is None else rejects
        wait["rejected"] = [{"pos": f"{pos:x}", "field": "by", "reason": "is not a text"} for pos in rejected]
    return msgspec.json.encode([wait])


async def park(driver: Driver, run: ClaimedRun, mail: int, branches: bytes) -> None:
    assert await driver.engine.journal.park(run.run_lease, mail=mail, due_at=None, branches=branches)


async def parked(driver: Driver, count: int = 1, **fields: Any) -> tuple[ClaimedRun, list[int]]:
    """A run that has rejected messages, and their positions."""
    run = await begin(driver)
    for _ in range(count):
        await driver.engine.runs.send(run.instance_id, "go", BAD)
    found = [record.pos for record in (await read(driver, run.run_lease)).records]
    await park(driver, run, count, waits(found[-1], *found, **fields))
    return run, found


def audited(driver: Driver) -> list[tuple[Any, ...]]:
    return driver.rows("SELECT kind, detail FROM audit WHERE starts_with(kind, 'MESSAGE') ORDER BY pos")


async def resolve(driver: Driver, run: ClaimedRun, position: int, payload: bytes | None = None, **fields: Any) -> None:
    await driver.engine.runs.resolve_message(run.instance_id, f"{position:x}", payload, **fields)


@pytest.mark.parametrize("keys", [None, KEYS], ids=["clear", "sealed"])
async def test_what_a_waiting_run_does_not_accept_is_refused_with_its_field(
    make_driver: MakeDriver, keys: Secret | None
) -> None:
    driver = make_driver(encryption_keys=keys)
    run = await begin(driver)
    await park(driver, run, 0, waits(0))
    reason = "payload: by: must be text, not 7. The run waits for another message 'go' at order.py:7"
    with pytest.raises(WrongValue, match=re.escape(reason)):
        await driver.engine.runs.send(run.instance_id, "go", BAD)
    with pytest.raises(WrongValue) as caught:
        await driver.engine.runs.send(run.instance_id, "go", b"{}")
    assert [(problem.path, problem.reason) for problem in caught.value.problems] == [("by", "is missing")]
    assert driver.rows("SELECT state, mail FROM token") == [(2, 0)], "nothing has come"
    await driver.engine.runs.send(run.instance_id, "other", BAD)
    [again] = await take(driver)
    await park(driver, again, 1, waits((await read(driver, again.run_lease)).records[-1].pos))
    await driver.engine.runs.send(run.instance_id, "go", BAD, force=True)
    assert [record.payload for record in (await read(driver, (await take(driver))[0].run_lease)).records] == [
        '{"by":7}'
    ] * 2


async def test_a_parked_run_that_refuses_is_asked_again(driver: Driver) -> None:
    """A deploy may have made its type wider meanwhile: what it says next holds for the next message."""
    run = await begin(driver)
    await park(driver, run, 0, waits(0))
    other = await begin(driver)
    await park(driver, other, 0, waits(0))
    for _ in range(2):  # the second is as quick as the first
        with pytest.raises(WrongValue):
            await driver.engine.runs.send(run.instance_id, "go", BAD)
    assert driver.rows("SELECT token_id = instance_id, index FROM timer") == [(True, -16)]
    assert await driver.due() == 1
    [again] = await take(driver)
    assert (again.instance_id, again.mail) == (run.instance_id, 0), "nothing came, and the other one sleeps"
    with pytest.raises(WrongValue):  # it is at work: nobody has to wake it
        await driver.engine.runs.send(run.instance_id, "go", BAD)
    assert driver.rows("SELECT count(*) FROM timer") == [(0,)]
    await park(driver, again, 0, waits(0, accepts=({"type": "object"},)))
    await driver.engine.runs.send(run.instance_id, "go", BAD)


async def test_only_what_holds_still_is_gone_by(driver: Driver) -> None:
    """A second message comes after the first: by then the run may wait for another type."""
    run = await begin(driver)
    await park(driver, run, 0, waits(0))
    await driver.engine.runs.send(run.instance_id, "go", GOOD)
    await driver.engine.runs.send(run.instance_id, "go", BAD)
    [again] = await take(driver)
    await append(driver, again.run_lease, done("/1"), mail=2)
    await driver.engine.runs.send(run.instance_id, "go", BAD)
    page = await read(driver, again.run_lease)
    await driver.engine.journal.extend(again.run_lease, branches=waits(page.records[-1].pos))
    with pytest.raises(WrongValue):
        await driver.engine.runs.send(run.instance_id, "go", BAD)


@pytest.mark.parametrize("accepts", [None, [{"type": 17}], [{}], [{"anyOf": 3}], [{"enum": [[]]}, {}]])
async def test_a_schema_that_says_nothing_refuses_nothing(driver: Driver, accepts: Any) -> None:
    run = await begin(driver)
    await park(driver, run, 0, waits(0, accepts=accepts))
    await driver.engine.runs.send(run.instance_id, "go", BAD)
    assert driver.rows("SELECT mail FROM token") == [(1,)]


@pytest.mark.parametrize("keys", [None, KEYS], ids=["clear", "sealed"])
async def test_a_rejected_message_is_shown_with_its_sender_and_field(
    make_driver: MakeDriver, keys: Secret | None
) -> None:
    driver = make_driver(encryption_keys=keys)
    run = await begin(driver)
    await driver.engine.runs.send(run.instance_id, "go", BAD, sender="run 4711")
    [message] = (await read(driver, run.run_lease)).records
    await park(driver, run, 1, waits(message.pos, message.pos))
    tree = await driver.engine.runs.tree(run.instance_id)
    [found] = tree.rejected
    assert (found.position, found.name, found.sender) == (f"{message.pos:x}", "go", "run 4711")
    assert (found.path, found.reason, found.where) == ("by", "is not a text", "order.py:7")
    assert msgspec.json.encode(found.payload) == BAD
    assert (tree.rejected_count, tree.waits_for) == (1, "message 'go' (1 rejected)")
    [record] = (await driver.engine.runs.journal(run.instance_id)).items
    assert record.sender == "run 4711"


async def test_what_is_shown_of_them_is_bounded(driver: Driver) -> None:
    run = await begin(driver)
    await driver.engine.runs.send(run.instance_id, "go", b'"' + b"x" * SHOWN_MAX_BYTES + b'"')
    for _ in range(REJECTED_MAX + 4):
        await driver.engine.runs.send(run.instance_id, "go", BAD)
    found = [record.pos for record in (await read(driver, run.run_lease)).records]
    await park(driver, run, len(found), waits(found[-1], *found, rejects=700))
    tree = await driver.engine.runs.tree(run.instance_id)
    assert [message.position for message in tree.rejected] == [f"{pos:x}" for pos in found[:REJECTED_MAX]]
    assert tree.rejected[0].payload is None
    assert tree.rejected_count == 700


async def test_a_dropped_one_is_a_record_that_wakes_the_run(driver: Driver) -> None:
    run, [first, second] = await parked(driver, 2)
    await resolve(driver, run, first, note="by hand")
    assert driver.rows("SELECT state, mail FROM token") == [(0, 3)]
    await resolve(driver, run, second)  # though the run has said nothing since
    await resolve(driver, run, second)
    rows = driver.rows("SELECT kind, path, name, payload, rules FROM journal WHERE kind = 14 ORDER BY pos")
    assert rows == [(14, f"{pos:x}", "go", None, RULES) for pos in (first, second)]
    assert audited(driver) == [
        ("MESSAGE_DROPPED", "go: by hand"), ("MESSAGE_DROPPED", "go"),
    ]  # fmt: skip
    with pytest.raises(IdempotencyConflict):
        await resolve(driver, run, second, GOOD)
    [again] = await take(driver)
    assert [record.rules for record in (await read(driver, again.run_lease)).records] == [RULES] * 4


async def test_a_corrected_one_has_to_fit_and_is_kept_when_the_run_continues(driver: Driver) -> None:
    run, [position] = await parked(driver)
    with pytest.raises(WrongValue):
        await resolve(driver, run, position, BAD)
    await resolve(driver, run, position, GOOD)
    await resolve(driver, run, position, GOOD)
    assert audited(driver) == [("MESSAGE_CORRECTED", "go")]
    [again] = await take(driver)
    page = await read(driver, again.run_lease)
    assert [(record.kind, record.payload) for record in page.records] == [(6, BAD.decode()), (14, GOOD.decode())]
    kept = [page.records[-1].pos]
    assert await driver.engine.journal.continue_as_new(again.run_lease, "{}", name="1", mail=2, kept=kept)
    begun, message = (await read(driver, again.run_lease)).records
    assert (begun.kind, message.kind, message.path, message.payload) == (10, 6, "", GOOD.decode())


async def test_after_a_correction_the_others_wait_for_what_the_run_makes_of_it(driver: Driver) -> None:
    """It may receive the corrected one, and then another that did not fit before."""
    run, [first, second] = await parked(driver, 2)
    await resolve(driver, run, first, GOOD)
    for payload in (None, GOOD):
        with pytest.raises(Conflict, match="a receive has taken it, it was dropped, or the run is at work"):
            await resolve(driver, run, second, payload)
    await driver.engine.runs.send(run.instance_id, "go", BAD)  # by then it may fit
    assert audited(driver) == [("MESSAGE_CORRECTED", "go")]


async def test_what_came_before_is_not_refused_when_it_is_sent_again(driver: Driver) -> None:
    """Its answer was lost; the run has received it, and waits for another type."""
    run = await begin(driver)
    await driver.engine.runs.send(run.instance_id, "go", BAD, dedup="k")
    [message] = (await read(driver, run.run_lease)).records
    await park(driver, run, 1, waits(message.pos))
    await driver.engine.runs.send(run.instance_id, "go", BAD, dedup="k")
    with pytest.raises(IdempotencyConflict):
        await driver.engine.runs.send(run.instance_id, "go", b'{"by":8}', dedup="k")
    with pytest.raises(WrongValue):
        await driver.engine.runs.send(run.instance_id, "go", BAD, dedup="l")


async def test_what_a_receive_may_have_had_is_not_dropped(driver: Driver) -> None:
    """The run was at work since it was rejected: another receive may have taken it."""
    run, [position] = await parked(driver)
    await driver.engine.runs.send(run.instance_id, "other", b"1")
    with pytest.raises(Conflict, match="a receive has taken it, it was dropped, or the run is at work"):
        await resolve(driver, run, position)
    [again] = await take(driver)
    await append(driver, again.run_lease, done("/0"), mail=2)
    with pytest.raises(Conflict):
        await resolve(driver, run, position, GOOD)
    page = await read(driver, again.run_lease)
    await park(driver, again, 2, waits(page.records[-1].pos))
    for pos in (position, page.records[-1].pos, 4_711):  # taken; no message; not there
        with pytest.raises(Conflict, match="no message that the run rejected"):
            await resolve(driver, run, pos)
    assert driver.rows("SELECT count(*) FROM journal WHERE kind = 14") == [(0,)]
    assert audited(driver) == []


async def test_what_is_no_position_or_no_run_is_refused(driver: Driver) -> None:
    run, [position] = await parked(driver)
    for text in ("", "x", "0x1f", "1F", "f" * 17, "8" + "0" * 15, "１"):
        with pytest.raises(BadRequest, match="position: is not one of a journal's"):
            await driver.engine.runs.resolve_message(run.instance_id, text)
    with pytest.raises(NotFound):
        await driver.engine.runs.resolve_message(show_instance(run.run_lease.instance + 1), f"{position:x}")
    with pytest.raises(BadRequest, match="note"):
        await resolve(driver, run, position, note="x" * 5_000)
    await driver.engine.instances.cancel(run.instance_id, None, force=True)
    with pytest.raises(Conflict, match="ended: it is CANCELLED"):
        await resolve(driver, run, position)


async def test_a_retry_brings_nothing_back_that_was_dropped(driver: Driver) -> None:
    run, [position] = await parked(driver)
    await resolve(driver, run, position)
    [again] = await take(driver)
    await append(driver, again.run_lease, NewRecord(2, "/1", "charge", '{"type_name":"E"}', rules=RULES), mail=2)
    end = RunEnd(InstanceStatus.FAILED, failure="no")
    assert await driver.engine.journal.finish(again.run_lease, end, mail=2)
    await driver.engine.instances.retry_run(run.instance_id, None, None)
    [last] = await take(driver)
    assert [record.kind for record in (await read(driver, last.run_lease)).records] == [6, 14]
    await finish(driver, last.run_lease)
