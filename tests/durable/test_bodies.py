"""Bodies of workflows in memory: what users' own tests of them see."""

from __future__ import annotations

import gc
import time
import warnings
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import trio
import trio.lowlevel

from benchmarks.load.durable import waiting_run_bytes
from penstock.durable import (
    BadKey,
    BadMessage,
    Cancelled,
    NonRetryable,
    NotInWorkflow,
    PayloadTooLarge,
    StepFailed,
    TooSlow,
    Unencodable,
    first,
    now,
    open_nursery,
    receive,
    run_info,
    sleep,
    step,
    step_info,
    uuid4,
    workflow,
)
from penstock.durable.signature import Parameters
from penstock.kernel.drive import Kernel, RunLimits
from penstock.kernel.errors import (
    CancelSwallowed,
    DuplicateKey,
    ForeignAwait,
    Mismatch,
    TooDeep,
    TooManyBranches,
    Undecodable,
)
from penstock.kernel.record import JournalKind, Record
from penstock.kernel.replay import replay
from penstock.testing import Message, StuckWorkflow, Takes, run_workflow
from tests.durable import shop

ORDER = shop.Order("o-1", [shop.Line("sku-9", 2), shop.Line("sku-7", 1)])
PAID = Message("payment", shop.Payment("ann"), after="2h")
APPROVED = Message("approved", True, after="3h")


def kinds(run) -> list[str]:
    return [f"{record.kind.name} {record.path} {record.name or ''}".strip() for record in run.journal]


def test_an_order_takes_the_time_of_its_messages():
    run = run_workflow(shop.order, ORDER, messages=[PAID, APPROVED])
    assert run.result().startswith("2xsku-9,1xsku-7,19.90 approved ")
    assert run.took == timedelta(hours=3)
    assert kinds(run) == [
        "DONE /0 reserve",
        "DONE /2.[sku-9]/0 pack",
        "DONE /2.[sku-7]/0 pack",
        "MESSAGE  payment",
        "DONE /2.0/2 charge",
        "MESSAGE  approved",
    ]
    assert run.view == '{"stage":"approved","at":"2030-01-01T03:00:00Z"}'


def test_values_depend_on_the_seed_alone():
    results = [run_workflow(shop.order, ORDER, messages=[PAID, APPROVED], seed=seed).result() for seed in (7, 7, 8)]
    assert results[0] == results[1] != results[2]


def test_without_a_payment_the_customer_is_reminded_after_a_day():
    run = run_workflow(shop.order, ORDER)
    assert [(call.step, call.after) for call in run.calls][-2:] == [
        ("remind", timedelta(days=1)),
        ("charge", timedelta(days=1)),
    ]
    assert run.took == timedelta(days=1, hours=2)


def test_a_declared_error_is_not_retried_and_releases_the_stock():
    def declines(order: shop.Order) -> shop.Receipt:
        raise shop.Declined("no money")

    run = run_workflow(shop.order, ORDER, steps={shop.charge: declines}, messages=[PAID])
    with pytest.RaisesGroup(pytest.RaisesExc(shop.Declined, match="no money")):
        run.result()
    assert [call.step for call in run.calls] == ["reserve", "pack", "pack", "charge", "release"]


def test_a_retried_step_pauses_longer_and_keeps_its_key():
    keys, attempts = [], []

    def fails_twice(order: shop.Order) -> shop.Receipt:
        keys.append(step_info().key)
        attempts.append(step_info().attempt)
        if len(keys) < 3:
            raise OSError("the line is down")
        return shop.Receipt(order.id, order.total)

    run = run_workflow(shop.order, ORDER, steps={shop.charge: fails_twice}, messages=[PAID, APPROVED])
    assert run.error is None
    assert attempts == [1, 2, 3]
    assert set(keys) == {"test/2.0/2"}
    assert [call.after for call in run.calls if call.step == "charge"] == [
        timedelta(hours=2),
        timedelta(hours=2, seconds=1),
        timedelta(hours=2, seconds=3),
    ]


def test_an_undeclared_error_comes_as_step_failed_after_the_retries():
    @step(retries=1)
    async def breaks() -> None:
        raise OSError("the line is down")

    @workflow
    async def body() -> None:
        await breaks()

    run = run_workflow(body)
    with pytest.raises(StepFailed, match="OSError: the line is down") as failure:
        run.result()
    assert "raise OSError" in failure.value.traceback
    assert len(run.calls) == 2


def test_what_is_not_retryable_is_tried_once():
    @step(retries=5)
    async def breaks() -> None:
        raise NonRetryable("no such customer")

    @workflow
    async def body() -> None:
        await breaks()

    run = run_workflow(body)
    assert isinstance(run.error, StepFailed)
    assert len(run.calls) == 1


def test_an_attempt_that_takes_too_long_fails():
    run = run_workflow(shop.order, ORDER, steps={shop.charge: Takes("1 min")}, messages=[PAID])
    assert len([call for call in run.calls if call.step == "charge"]) == 4
    assert run.calls[-1].step == "release"
    assert run.error is not None


def test_a_deadline_cancels_the_step_and_clean_up_runs():
    run = run_workflow(shop.order, ORDER, steps={shop.pack: Takes("9 days")}, messages=[PAID])
    with pytest.raises(TooSlow):
        run.result()
    assert run.stopped == ["/2.[sku-9]/0", "/2.[sku-7]/0"]
    assert run.calls[-1].step == "release"
    assert run.took == timedelta(days=3)


def test_a_cancelled_run_cleans_up_under_its_shield():
    run = run_workflow(shop.order, ORDER, cancel_after="5h")
    with pytest.raises(Cancelled):
        run.result()
    assert [call.step for call in run.calls][-1] == "release"
    assert run.took == timedelta(hours=5)


def test_thirty_days_take_milliseconds():
    @workflow
    async def month() -> None:
        for _ in range(30):
            await sleep("1 day")

    took_s: list[float] = []
    for _ in range(4):  # the least: a collection of all that other tests have left only adds
        started = time.process_time()
        assert run_workflow(month).took == timedelta(days=30)
        took_s.append(time.process_time() - started)
    assert min(took_s) < 0.1, took_s


def test_a_body_gets_a_copy_of_what_its_steps_gave():
    kept = shop.Receipt("a", Decimal(1), ["x"])
    seen: list[shop.Receipt] = []

    @step
    async def gives() -> shop.Receipt:
        return kept

    @workflow
    async def body() -> bool:
        first_one, second = await gives(), await gives()
        seen.extend([first_one, second])
        first_one.tags.append("changed")
        return second.tags == ["x"] and kept.tags == ["x"]

    assert run_workflow(body).result()
    assert seen[0] is not kept


def test_steps_called_outside_of_a_body_are_plain_calls():
    assert trio.run(lambda: shop.charge(ORDER)) == shop.Receipt("o-1", Decimal("19.90"))
    assert shop.pack.function(ORDER.lines[0]) == "2xsku-9"


@pytest.mark.parametrize("verb", [open_nursery, now, uuid4, run_info])
def test_a_verb_outside_of_a_body_says_so(verb):
    with pytest.raises(NotInWorkflow, match=r"\(\) is for workflow functions; in a step use "):
        verb()


async def test_a_body_runs_inside_of_a_trio_test_too():
    run = run_workflow(shop.order, ORDER, messages=[PAID, APPROVED])
    assert run.error is None


def test_awaiting_something_foreign_is_told_at_its_line():
    @workflow
    async def body() -> None:
        await trio.lowlevel.checkpoint()

    with pytest.raises((ForeignAwait, RuntimeError)):
        run_workflow(body).result()


def test_a_foreign_awaitable_is_named_with_file_and_line():
    class Foreign:
        def __await__(self):
            yield "trap"

    @workflow
    async def body() -> None:
        await Foreign()

    with pytest.raises(ForeignAwait, match=r"test_bodies.py:\d+ awaits .* in a workflow function"):
        run_workflow(body).result()


def test_a_run_that_would_wait_for_ever_says_where():
    @workflow
    async def body() -> None:
        await receive("never", int)

    with pytest.raises(StuckWorkflow, match=r"the body at test_bodies.py:\d+"):
        run_workflow(body)


def test_a_message_of_another_type_is_raised_where_received():
    @workflow
    async def body() -> int:
        try:
            return await receive("n", int, bad="raise")
        except BadMessage as error:
            return len(error.payload) + await receive("n", int)

    assert run_workflow(body, messages=[Message("n", "many"), Message("n", 3)]).result() == len('"many"') + 3


def test_messages_that_were_kept_come_in_their_order():
    @workflow
    async def body() -> list[int]:
        await sleep("1h")
        return [await receive("n", int) for _ in range(3)]

    assert run_workflow(body, messages=[Message("n", number) for number in (1, 2, 3)]).result() == [1, 2, 3]


def test_a_message_at_the_deadline_is_kept_for_later():
    from penstock.durable import move_on_after

    @workflow
    async def body() -> str:
        with move_on_after("1h"):
            return "in time " + await receive("m", str)
        return "kept " + await receive("m", str)

    assert run_workflow(body, messages=[Message("m", "x", after="1h")]).result() == "kept x"


def test_an_alternative_that_fails_fails_all():
    @step
    async def breaks() -> None:
        raise shop.Declined

    shop_breaks = breaks.using(raises=[shop.Declined])

    @workflow
    async def body() -> None:
        await first(a=shop_breaks(), b=sleep("1h"))

    with pytest.RaisesGroup(shop.Declined):
        run_workflow(body).result()


def test_two_children_with_one_key_are_refused():
    @workflow
    async def body() -> None:
        async with open_nursery() as nursery:
            nursery.start_soon(sleep, 1, key="a")
            nursery.start_soon(sleep, 1, key="a")

    with pytest.RaisesGroup(DuplicateKey):
        run_workflow(body).result()


def test_nested_keys_whose_path_is_lost_are_refused():
    @workflow
    async def deep(left: int) -> None:
        async with open_nursery() as nursery:
            if left:
                nursery.start_soon(deep, left - 1, key="k" * 200)

    assert run_workflow(deep, 4).error is None
    with pytest.raises(BaseExceptionGroup) as failure:
        run_workflow(deep, 5).result()
    assert failure.group_contains(BadKey, match="900 at most")


def test_catching_cancelled_for_ever_ends_the_branch():
    @workflow
    async def body() -> None:
        while True:
            with suppress(Cancelled):
                await sleep("1h")

    with pytest.raises(CancelSwallowed, match=r"caught 1,000 times at test_bodies.py:\d+"):
        run_workflow(body, cancel_after=1).result()


def test_limits_of_branches_and_of_depth():
    @workflow
    async def wide() -> None:
        async with open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(sleep, 1)

    @workflow
    async def deep(n: int) -> None:
        async with open_nursery():
            await deep(n - 1) if n else None

    with pytest.RaisesGroup(TooManyBranches):
        run_workflow(wide, limits=RunLimits(max_branches=99)).result()
    run_workflow(wide, limits=RunLimits(max_branches=100)).result()
    with pytest.raises(BaseExceptionGroup) as failure:
        run_workflow(deep, 20, limits=RunLimits(max_depth=10)).result()
    assert failure.group_contains(TooDeep)


@pytest.mark.parametrize(("value", "error"), [(object(), Unencodable), ("x" * 300_000, PayloadTooLarge)])
def test_arguments_that_cannot_be_stored_are_refused_where_passed(value, error):
    @step
    async def takes(value: object) -> None: ...

    @workflow
    async def body() -> None:
        await takes(value)

    with pytest.raises(error, match="the arguments of takes"):
        run_workflow(body).result()


@pytest.mark.parametrize("value", [float("nan"), [1.0, float("-inf")], "a\0b", {"\0": 1}])
def test_a_value_that_changes_on_its_way_fails_its_step(value):
    @step
    async def gives() -> Any:
        return value

    @workflow
    async def body() -> str:
        try:
            await gives()
        except StepFailed as error:
            return error.type_name
        return "kept"

    assert run_workflow(body).result() == "Unencodable"


@pytest.mark.parametrize("value", [None, [None, "null"], "\\u0000", "\\\\u0000", 1e308])
def test_what_looks_like_it_is_kept(value):
    @step
    async def gives() -> Any:
        return value

    @workflow
    async def body() -> Any:
        return await gives()

    assert run_workflow(body).result() == value


def mute() -> Exception:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("nothing to say")

    return Mute()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("no such file: \udcff.txt"), "OSError: no such file: \\udcff.txt"),  # a name that is no UTF-8
        (mute(), "mute.<locals>.Mute: <not told: RuntimeError>"),
        (ValueError("x", object()), "ValueError: ('x', <object object at"),
    ],
)
def test_an_error_too_large_to_tell_is_reported_in_part(error, said):
    @step
    async def fails() -> None:
        raise error

    @workflow
    async def body() -> None:
        await fails.using(raises=[])()

    assert str(run_workflow(body).error).startswith(said)


def changed(body):
    """Replays the shop's journal against another body."""
    run = run_workflow(shop.order, ORDER, messages=[PAID, APPROVED])
    kernel = Kernel(run.journal[0].at)
    try:
        replay(kernel, body(), run.journal)
    finally:
        kernel.discard()


def test_an_inserted_step_is_a_mismatch_with_path_and_line():
    async def body() -> None:
        await shop.remind(ORDER)
        await shop.reserve(ORDER)

    with pytest.raises(
        Mismatch, match=r"at /0 the journal has 'reserve', the code asks for 'remind' \(test_bodies.py:\d+\)"
    ):
        changed(body)


def test_a_removed_step_is_a_mismatch():
    async def body() -> None:
        await shop.reserve(ORDER)

    with pytest.raises(Mismatch, match=r"the journal has /2.\[sku-9\]/0 'pack', the code ended or went on without it"):
        changed(body)


def test_an_unfit_recorded_value_is_reported_with_path_and_field():
    @step(name="reserve")
    async def now_gives_a_receipt(order: shop.Order) -> shop.Receipt: ...

    async def body() -> None:
        await now_gives_a_receipt(ORDER)

    said = r"at /0: 'reserve' returned \"stock-o-1\" which does not fit Receipt: Expected `object`, got `str`"
    with pytest.raises(Undecodable, match=said):
        changed(body)


def test_a_further_outcome_of_an_answered_step_is_ignored():
    run = run_workflow(shop.order, ORDER, messages=[PAID, APPROVED])
    twice = [*run.journal[:3], run.journal[1], *run.journal[3:]]
    kernel = Kernel(run.journal[0].at, run_info_of())
    replay(kernel, shop.order(ORDER), twice)
    assert kernel.result is not None
    assert kernel.result.value == run.result()


def run_info_of():
    from penstock.durable import RunInfo
    from penstock.testing.durable import STARTED_AT

    return RunInfo("test", "order", 1, STARTED_AT)


def test_every_prefix_of_a_journal_can_be_gone_on_from():
    run = run_workflow(shop.order, ORDER, messages=[PAID, APPROVED])
    for cut in range(len(run.journal) + 1):
        kernel = Kernel(run.journal[0].at, run_info_of())
        open_calls = replay(kernel, shop.order(ORDER), run.journal[:cut])
        assert set(open_calls) == set(kernel.pending)
        for record in run.journal[cut:]:
            kernel.deliver(record)
        assert kernel.result is not None
        assert kernel.result.value == run.result()


def test_a_discarded_run_does_nothing_any_more():
    did: list[str] = []

    async def body() -> None:
        try:
            await shop.reserve(ORDER)
        finally:
            did.append("clean-up began")
            await shop.release("stock")
            did.append("clean-up ended")

    kernel = Kernel()
    kernel.start(body())
    kernel.take_commands()
    kernel.discard()
    assert did == ["clean-up began"]
    assert kernel.take_commands() == []


def test_a_step_ending_after_its_deadline_gives_its_outcome():
    from penstock.durable import move_on_after

    async def body() -> str:
        with move_on_after(10):
            await shop.reserve(ORDER)
            await shop.remind(ORDER)
        return "the next one was not begun"

    kernel = Kernel(now=100)
    kernel.start(body())
    kernel.take_commands()
    kernel.deliver(Record(at=111, kind=JournalKind.DONE, path="/1", name="reserve", payload='"s"'))
    assert kernel.result is not None
    assert kernel.result.value == "the next one was not begun"
    assert kernel.take_commands() == []


def test_a_discarded_run_begins_no_branch_any_more():
    async def body() -> None:
        async with open_nursery() as nursery:
            try:
                await shop.reserve(ORDER)
            finally:
                nursery.start_soon(shop.pack, ORDER.lines[0])
                nursery.start_soon(sleep, 1)

    kernel = Kernel()
    kernel.start(body())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel.discard()
        del kernel
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_a_run_that_waits_in_ten_scopes_takes_little_memory():
    assert waiting_run_bytes() <= 20_480


@pytest.mark.parametrize(
    ("args", "kwargs", "names"),
    [((1, 2), {}, "ab"), ((1,), {}, "a"), ((1,), {"b": 2}, "ab"), ((), {}, None), ((1, 2, 3), {}, None)],
)
def test_arguments_are_bound_by_name_as_a_call_does(args: tuple[int, ...], kwargs: dict[str, int], names: str | None):
    def both(a: int, b: int = 0) -> None: ...

    def named(*, a: int) -> None: ...

    if names is None:
        with pytest.raises(TypeError):
            Parameters(both).bound(args, kwargs)
    else:
        assert Parameters(both).bound(args, kwargs) == dict(zip(names, (1, 2), strict=False))
    with pytest.raises(TypeError):
        Parameters(named).bound(args, kwargs)
