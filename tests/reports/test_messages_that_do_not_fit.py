"""A message that does not fit its receive fails no run: it is rejected, and the run waits on for one that fits."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import pydantic
import pytest
from typer.testing import CliRunner

from penstock.cli.app import app as commands
from penstock.client import BadRequest, Client, Conflict, IdempotencyConflict
from penstock.durable import (
    App,
    BadMessage,
    Cancelled,
    ChildFailed,
    Run,
    SendRefused,
    StepFailed,
    child,
    first,
    move_on_after,
    open_nursery,
    patched,
    receive,
    send,
    sleep,
    step,
    workflow,
)
from penstock.durable.activation import MAX_REASON_CHARS, MAX_SHOWN_REJECTED, SCHEMAS_MAX_BYTES, Activation, Still
from penstock.durable.workflow import Workflow
from penstock.kernel.record import RULES, JournalKind, Record
from penstock.testing import Message, StuckWorkflow, explore, run_workflow
from tests.waiting import wait_until


@dataclass
class Approval:
    by: str
    amount: int


refunds: list[str] = []


@step
async def refund() -> None:
    refunds.append("refunded")


@workflow
async def order() -> str:
    approval = await receive("approval", Approval)
    return f"approved by {approval.by}"


@workflow
async def guarded() -> str:
    try:
        return (await receive("approval", Approval)).by
    except BaseException:
        await refund()
        raise


def message(name: str, payload: str, pos: int, rules: int | None = None) -> Record:
    return Record(100.0 + pos, JournalKind.MESSAGE, name=name, payload=payload, pos=pos, rules=rules)


def dropped(name: str, of: int, pos: int, payload: str | None = None) -> Record:
    return Record(100.0 + pos, JournalKind.DROPPED, f"{of:x}", name, payload, pos=pos)


replayed: list[Activation] = []


@pytest.fixture(autouse=True)
def nothing_is_left() -> Generator[None]:
    refunds.clear()
    yield
    while replayed:
        replayed.pop().discard()


def run(body: Workflow[..., Any], *records: Record) -> Activation:
    found = Activation(body, "r", "{}", 100.0, Still())
    replayed.append(found)
    found.replay(records)
    return found


def value(body: Workflow[..., Any], *records: Record) -> object:
    found = run(body, *records)
    assert found.result is not None
    if found.result.error is not None:
        raise found.result.error
    return found.result.value


def test_the_run_waits_on_and_nothing_is_refunded() -> None:
    messages = [Message("approval", {"by": 7}), Message("approval", {"by": "ann", "amount": 3}, after=1)]
    assert run_workflow(guarded, messages=messages).result() == "ann"
    assert refunds == []


def test_a_test_is_told_what_does_not_fit() -> None:
    with pytest.raises(StuckWorkflow, match=r"'approval' at amount: Expected `int`, got `str`"):
        run_workflow(order, messages=[Message("approval", {"by": "ann", "amount": "3"})])


def test_what_was_rejected_is_there_for_a_receive_that_it_fits() -> None:
    @workflow
    async def body() -> list[Any]:
        return [await receive("m", int), await receive("m", str), await receive("m", int)]

    messages = [Message("m", "a"), Message("m", 1), Message("m", "b"), Message("m", 2)]
    assert run_workflow(body, messages=messages).result() == [1, "a", 2]
    explore(body, messages=messages)


def test_the_first_who_waits_and_whom_it_fits_gets_it() -> None:
    @workflow
    async def body() -> list[Any]:
        got: list[Any] = []

        async def one(type_: Any) -> None:
            got.append(await receive("m", type_))

        async with open_nursery() as nursery:
            for type_ in (int, str, int):
                nursery.start_soon(one, type_)
        return got

    messages = [
        Message("m", "a", after=1),
        Message("m", "b", after=2),
        Message("m", 1, after=3),
        Message("m", 2, after=4),
    ]
    assert run_workflow(body, messages=messages).result() == ["a", 1, 2]


def test_with_raise_it_is_used_up_and_raised() -> None:
    @workflow
    async def body() -> list[Any]:
        try:
            return [await receive("m", Approval, bad="raise")]
        except BadMessage as error:
            return [error.payload, error.field, await receive("m", int, bad="raise")]

    sent = {"by": "ann", "amount": "3"}
    found = run_workflow(body, messages=[Message("m", sent), Message("m", 3)]).result()
    assert found == [msgspec.json.encode(sent).decode(), "amount", 3]


@step
async def breaks() -> int:
    raise OSError("no")


@workflow
async def breaks_as_child() -> int:
    return await breaks()


@pytest.mark.parametrize(
    ("alternative", "kind"),
    [
        (lambda: receive("m", int, bad="raise"), BadMessage),
        (breaks, StepFailed),
        (lambda: child(breaks_as_child), ChildFailed),
    ],
    ids=["message", "step", "child"],
)
def test_what_an_alternative_of_first_raises_comes_in_a_group(
    alternative: Callable[[], Awaitable[int]], kind: type[Exception]
) -> None:
    @workflow
    async def body() -> list[str]:
        found: list[str] = []
        try:
            await first(a=alternative(), never=receive("never", int))
        except* kind as group:
            found += [type(each).__name__ for each in group.exceptions]
        return found

    assert run_workflow(body, messages=[Message("m", "no number")]).result() == [kind.__name__]


def test_another_word_than_these_two_is_refused() -> None:
    @workflow
    async def body() -> int:
        return await receive("m", int, bad=cast(Any, "ignore"))

    with pytest.raises(ValueError, match='bad is \'ignore\': give "reject" or "raise"'):
        run_workflow(body).result()


def test_who_is_cancelled_leaves_what_fits_the_next_one() -> None:
    @workflow
    async def body() -> list[Any]:
        await sleep("1 s")
        won = await first(a=receive("m", int), b=receive("m", str), c=receive("m", int))
        return [won.name, await receive("m", int), await receive("m", str), await receive("m", int)]

    messages = [Message("m", number) for number in (1, 2, "s", 3)]
    assert run_workflow(body, messages=messages).result() == ["a", 2, "s", 3]
    explore(body, messages=messages)


@pytest.mark.parametrize("rules", range(2))
def test_records_of_before_raise_as_they_did(rules: int) -> None:
    records = [message("approval", '{"by":7}', 1), Record(110.0, JournalKind.CLOCK, pos=2)]
    with pytest.raises(BadMessage, match="which does not fit Approval"):
        value(order, *(msgspec.structs.replace(record, rules=rules) for record in records))


def test_a_run_goes_on_by_the_new_rules_from_where_the_old_ones_end() -> None:
    @workflow
    async def body() -> list[Any]:
        got: list[Any] = []
        while len(got) < 3:
            try:
                got.append(await receive("m", int))
            except BadMessage:
                got.append("bad")
        return got

    old = [message("m", '"a"', 1, RULES - 1), message("m", "1", 2, RULES - 1)]
    assert value(body, *old, message("m", '"b"', 3, RULES), message("m", "2", 4)) == ["bad", 1, 2]


def test_only_what_no_receive_has_is_dropped() -> None:
    taken, rejected = message("approval", '{"by":"ann","amount":3}', 2), message("approval", '{"by":7}', 1)
    found = run(order, rejected, dropped("approval", 1, 3))
    assert (found.rejects, found.result) == (False, None)
    assert value(order, rejected, taken, dropped("approval", 2, 3)) == "approved by ann"
    assert run(order, rejected).rejects


def test_a_corrected_message_has_the_place_of_the_one_that_was_sent() -> None:
    @workflow
    async def body() -> list[int]:
        got = [await receive("first", int)]
        return [*got, await receive("m", int), await receive("m", int)]

    records = [message("m", '"a"', 1), message("m", "2", 2), dropped("m", 1, 3, "1"), message("first", "0", 4)]
    assert value(body, *records) == [0, 1, 2]
    fits = run(order, message("approval", '{"by":7}', 1), dropped("approval", 1, 2, '{"by":"bob","amount":1}'))
    assert fits.result is not None
    assert fits.result.value == "approved by bob"
    still = run(order, message("approval", '{"by":7}', 1), dropped("approval", 1, 2, '{"by":8}'))
    assert [(each.pos, each.field) for each in still.rejected()] == [("2", "by")]


def test_a_deploy_with_a_wider_type_heals_a_run_that_waits_and_no_other() -> None:
    """What a receive has taken past a message that did not fit, it takes again, though that one fits now."""

    def flow(type_: Any) -> Workflow[[], list[Any]]:
        @workflow(name="body")
        async def body() -> list[Any]:
            got: list[Any] = [await receive("m", type_)]
            await refund()
            return [*got, await receive("m", type_)]

        return body

    wider = flow(Any)
    assert run(flow(int), message("m", '"a"', 1)).rejects
    assert not run(wider, message("m", '"a"', 1)).rejects
    done = run_workflow(flow(int), messages=[Message("m", "a"), Message("m", 1), Message("m", 2, after=1)])
    assert done.result() == [1, 2]
    assert [(record.mark or "")[:6] for record in done.journal if record.kind is JournalKind.DONE] == ["~took "]
    with_rest = done.journal[: [record.kind for record in done.journal].index(JournalKind.DONE) + 1]
    assert value(wider, *with_rest) == [1, "a"]


def test_no_patch_has_the_name_of_such_a_mark() -> None:
    @workflow
    async def body() -> bool:
        return patched("~took it")

    with pytest.raises(ValueError, match="does not begin with '~took '"):
        run_workflow(body).result()


def test_a_waiting_run_publishes_what_it_accepts_and_what_it_rejected() -> None:
    found = run(order, message("approval", '{"by":"ann","amount":"x"}', 7))
    [wait] = found.published()
    assert wait["accepts"] == [
        msgspec.Raw(
            b'{"type":"object","properties":{"by":{"type":"string"},"amount":{"type":"integer"}},'
            b'"required":["by","amount"]}'
        )
    ]
    assert wait["rejected"] == [{"pos": "7", "field": "amount", "reason": "Expected `int`, got `str` - at `$.amount`"}]
    assert (wait["rejects"], wait["as_of"], wait["kind"], wait["name"]) == (1, "7", "receive", "approval")


@pytest.mark.parametrize("type_", [object, bytes | None, 3], ids=["anything", "a union", "no type"])
def test_of_what_says_nothing_nothing_is_published(type_: Any) -> None:
    @workflow
    async def body() -> None:
        async with open_nursery() as nursery:
            nursery.start_soon(receive, "m", int)
            nursery.start_soon(receive, "raises", int)

            async def raising() -> None:
                await receive("raises", int, bad="raise")

            nursery.start_soon(raising)
            nursery.start_soon(receive, "m", type_)

    accepts = [wait.get("accepts") for wait in run(body).published() if wait["kind"] == "receive"]
    said = type_ == bytes | None
    assert [len(each) for each in accepts if each is not None] == ([2] if said else [])


def test_what_is_published_is_bounded() -> None:
    wide = msgspec.defstruct("Wide", [(f"field_{'x' * 100}_{number}", int) for number in range(60)])

    @workflow
    async def body() -> None:
        async with open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(receive, f"m{number}", wide)

    records = [message(f"m{number % 100}", '"x"', number + 1) for number in range(300)]
    shown = run(body, *records).published()
    size = sum(len(bytes(schema)) for wait in shown for schema in wait.get("accepts") or ())
    assert 0 < size <= SCHEMAS_MAX_BYTES
    assert sum(len(wait.get("rejected") or ()) for wait in shown) == MAX_SHOWN_REJECTED
    assert sum(wait.get("rejects") or 0 for wait in shown) == 300


class Odd(msgspec.Struct):
    text: str

    def __post_init__(self) -> None:
        raise ValueError(f"{self.text}\0\ud800" + "x" * 10_000)


def test_what_a_validator_says_can_be_kept() -> None:
    @workflow
    async def body() -> None:
        await receive("m", Odd)

    [rejected] = run(body, message("m", '{"text":"t"}', 1)).rejected()
    assert rejected.reason[:2] == "t\ufffd"
    assert len(rejected.reason) == MAX_REASON_CHARS
    assert rejected.reason.encode()


class Card(pydantic.BaseModel):
    card_no: int = pydantic.Field(lt=10)


def test_a_rejected_value_is_in_no_reason() -> None:
    """Its payload may be hidden from who sees the reason."""

    @workflow
    async def body() -> None:
        await receive("m", Card)

    [rejected] = run(body, message("m", '{"card_no":4111}', 1)).rejected()
    assert "4111" not in rejected.reason
    assert "less than 10" in rejected.reason


def test_a_type_that_is_too_deep_or_too_large_is_not_published() -> None:
    deep: Any = int
    for number in range(40):
        deep = msgspec.defstruct(f"Level{number}", [("below", deep)])
    large = msgspec.defstruct("Large", [(f"field_{'x' * 500}_{number}", int) for number in range(60)])

    @workflow
    async def body() -> None:
        await first(a=receive("deep", deep), b=receive("large", large), c=receive("fits", int))

    accepts = {wait["name"]: wait.get("accepts") for wait in run(body).published() if wait["kind"] == "receive"}
    assert accepts == {"deep": None, "large": None, "fits": [msgspec.Raw(b'{"type":"integer"}')]}


def test_a_cancel_ends_a_run_whose_messages_do_not_fit() -> None:
    @workflow
    async def body() -> str:
        try:
            return str(await receive("m", int))
        except Cancelled:
            with move_on_after("1 h", shield=True):
                await refund()
            raise

    found = run_workflow(body, messages=[Message("m", "a")], cancel_after="1 h")
    assert isinstance(found.error, Cancelled)
    assert refunds == ["refunded"]


BOUND_S = 60.0
slow = pytest.mark.slow(reason="runs that wait for long enough to be written down")


@workflow
async def asks(target: str, forced: bool) -> str:
    """Sends another run what does not fit."""
    try:
        await send(target, "approval", {"by": 7}, force=forced)
    except SendRefused as error:
        return str(error)
    return "sent"


async def shown(run: Run[Any], is_there: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The run's tree, as soon as that is there."""
    found: dict[str, Any] = {}

    async def probe() -> bool:
        found.clear()
        found.update(await run.tree())
        return bool(is_there(found))

    await wait_until(probe, lambda: str(found))
    return found


@asynccontextmanager
async def waiting(at: str) -> AsyncGenerator[tuple[App, Run[str]]]:
    async with App(order, asks, name="shop", at=at) as app:
        run = await app.start(order, id="o-1")
        await shown(run, lambda tree: tree.get("waitsFor") == "message 'approval'")
        yield app, run


@slow
async def test_all_who_send_are_told_what_does_not_fit(at: str) -> None:
    async with waiting(at) as (app, run):
        with pytest.raises(BadRequest, match=r"run o-1: payload: by: must be text, not 7\. The run waits for another"):
            await run.send("approval", {"by": 7, "amount": 1})
        refused = await (await app.start(asks, "o-1", False)).result(BOUND_S)
        assert "payload: amount: is missing" in refused or "payload: by: must be text" in refused
        assert await (await app.start(asks, "o-1", True)).result(BOUND_S) == "sent"
        tree = await shown(run, lambda tree: tree.get("rejected"))
        [rejected] = tree["rejected"]
        assert rejected["sender"].startswith("run ")
        assert (rejected["name"], rejected["path"], rejected["payload"]) == ("approval", "by", {"by": 7})
        await run.send("approval", {"by": 8}, force=True)
        await shown(run, lambda tree: tree.get("rejectedCount") == 2)
        await run.send("approval", {"by": "ann", "amount": 3})
        assert await run.result(BOUND_S) == "approved by ann"


@slow
async def test_a_program_that_starts_later_has_rejected_the_same(database_dsn: str) -> None:
    async with App(at=database_dsn, name="shop", migrate=True) as client:
        run = await client.start(order, id="o-1")
        for payload in ({"by": 7}, {"by": "bob", "amount": 1}):
            await run.send("approval", payload)
        async with App(order, name="shop", at=database_dsn):
            assert await run.result(BOUND_S) == "approved by bob"


@slow
async def test_over_rest_it_is_422_and_dropped_or_corrected(database_dsn: str) -> None:
    async with (
        App(order, name="shop", at=database_dsn, rest_port=0, migrate=True) as app,
        Client(str(app.rest_url)) as client,
    ):
        run = await app.start(order, id="o-1")
        id = run.instance_id
        await shown(run, lambda tree: tree.get("waitsFor") == "message 'approval'")
        with pytest.raises(BadRequest, match="by: must be text") as caught:
            await client.send_message(id, "approval", {"by": 7, "amount": 1})
        assert (caught.value.status, [problem.path for problem in caught.value.problems]) == (422, ["by"])
        for amount in ("a", "b"):
            await client.send_message(id, "approval", {"by": "ann", "amount": amount}, force=True)
        tree = await shown(run, lambda tree: tree.get("rejectedCount") == 2)
        dropped, corrected = (each["position"] for each in tree["rejected"])
        await client.drop_message(id, dropped, note="sent by mistake")
        await client.drop_message(id, dropped)
        await shown(run, lambda tree: tree.get("rejectedCount") == 1)
        with pytest.raises(BadRequest, match="amount: must be an integer"):
            await client.correct_message(id, corrected, {"by": "ann", "amount": "c"})
        await client.correct_message(id, corrected, {"by": "ann", "amount": 3})
        assert await run.result(BOUND_S) == "approved by ann"
        for position in (dropped, corrected):
            with pytest.raises((Conflict, IdempotencyConflict)):
                await client.correct_message(id, position, {"by": "eve", "amount": 1})
        kinds = [record.kind async for record in client.iterate_journal(id)]
        assert kinds == ["message", "message", "dropped", "dropped"]


@slow
def test_an_operator_drops_and_corrects_by_command(database_dsn: str) -> None:
    def runs(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(commands, ["runs", *words, "--at", database_dsn])
        return done.exit_code, done.output

    def rejected(count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        ends = time.monotonic() + BOUND_S
        while len(found) != count:
            assert time.monotonic() < ends
            found = json.loads(runs("show", "o-1", "--json")[1]).get("rejected", [])
        return found

    with App(order, at=database_dsn, migrate=True).in_thread() as app:
        run = app.start(order, id="o-1")
        for payload in ("{}", "7"):
            assert runs("send", "o-1", "approval", payload, "--force")[0] == 0
        first, second = rejected(2)
        code, reported = runs("show", "o-1")
        assert code == 0
        assert f"rejected message 'approval' at {first['position']}, sent" in reported
        assert "    7" in reported
        assert runs("drop", "o-1", first["position"]) == (0, f"dropped {first['position']} of o-1\n")
        assert rejected(1) == [second]
        code, reported = runs("send", "o-1", "approval", "[]")
        assert (code, "payload: must be an object, not []" in reported) == (1, True)
        code, reported = runs("correct", "o-1", second["position"], '{"by": "ann", "amount": "x"}')
        assert (code, "amount: must be an integer" in reported) == (1, True)
        assert runs("correct", "o-1", second["position"], '{"by": "ann", "amount": 2}', "--json")[0] == 0
        assert run.result(BOUND_S) == "approved by ann"


@slow
async def test_a_deploy_with_a_wider_type_is_heard_of_by_who_sends(database_dsn: str) -> None:
    """A run that was unloaded went on publishing the former type until something woke it; nothing did."""

    def asking(type_: Any) -> Workflow[[], str]:
        @workflow(name="asking")
        async def body() -> str:
            return str(await receive("approval", type_))

        return body

    async with App(asking(int), name="shop", at=database_dsn, migrate=True) as app:
        run = await app.start(asking(int), id="a-1")
        await shown(run, lambda tree: tree.get("waitsFor") == "message 'approval'")
    async with App(asking(int | str), name="shop", at=database_dsn) as app:
        run = await app.get("a-1")
        with pytest.raises(BadRequest, match="payload: must be an integer"):
            await run.send("approval", "yes")

        async def accepts() -> bool:
            try:
                await run.send("approval", "yes")
            except BadRequest:
                return False
            return True

        await wait_until(accepts, lambda: "the former type is published still")
        assert await run.result(BOUND_S) == "yes"
