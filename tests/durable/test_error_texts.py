"""What a user reads when something is wrong: what it is, file and line of the user's code, and what to do about it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest

from penstock.durable import (
    PayloadTooLarge,
    open_nursery,
    receive,
    sleep,
    step,
    workflow,
)
from penstock.durable.executor import ExecutorLimits
from penstock.durable.workflow import Workflow
from penstock.kernel.drive import RunLimits
from penstock.testing import Message, run_workflow
from tests.durable.memory import Database, message
from tests.durable.test_executor import executing

STEPS = (
    r"Runs that are under way need the steps they began with: put the change under `if patched\(…\)`, undo it, "
    r"or make it another version"
)
FIT = "Let the type take what was recorded, too, or undo the change"
LACKS = "Object missing required field `day`"
LARGE = r"293 kB; at most 256 kB\. Store it and return a key"
Body = Callable[[], Coroutine[Any, Any, object]]


@dataclass
class Receipt:
    amount: int


@dataclass
class DatedReceipt:
    amount: int
    day: str


@step
async def charge() -> Receipt:
    return Receipt(7)


@step(name="charge")
async def charge_dated() -> DatedReceipt: ...


@step
async def fraud() -> None: ...


@step
async def pay(amount: int) -> None: ...


@step
async def gives(size: int) -> str:
    return "x" * size


async def as_it_was() -> None:
    await charge()
    await pay(7)
    await sleep("1 day")


async def with_a_step_before() -> None:
    await fraud()  # here
    await as_it_was()


async def without_the_second_step() -> None:
    await charge()
    await sleep("1 day")  # here


async def without_any_step() -> None:  # here
    pass


async def with_another_type() -> None:
    await charge_dated()  # here


async def with_other_arguments() -> None:
    await charge()
    await pay(8)  # here


CHANGES: list[tuple[Body, str]] = [
    (with_a_step_before, rf"at /0 the journal has 'charge', the code asks for 'fraud' \(HERE\)\. {STEPS}"),
    (without_the_second_step, rf"the journal has /1 'pay', the code ended or went on without it \(HERE\)\. {STEPS}"),
    (without_any_step, rf"the journal has /0 'charge', the code ended or went on without it \(HERE\)\. {STEPS}"),
    (
        with_another_type,
        rf"at /0: 'charge' returned \{{\"amount\":7\}} which does not fit DatedReceipt: {LACKS} \(HERE\)\. {FIT}",
    ),
    (with_other_arguments, r"pay at /1 was called with other arguments before \(HERE\)"),
]


def here(body: Body) -> str:
    """File and line of what is marked in it."""
    lines, first = inspect.getsourcelines(cast("Any", body))
    [offset] = [number for number, line in enumerate(lines) if line.rstrip().endswith("# here")]
    return rf"test_error_texts\.py:{first + offset}"


def workflow_of(body: Body) -> Workflow[[], object]:
    return workflow(name="w")(body)


@pytest.mark.parametrize(("after", "said"), CHANGES, ids=lambda value: getattr(value, "__name__", None))
async def test_code_that_does_not_fit_its_journal(after: Body, said: str, autojump_clock: object):
    database, before = Database(), workflow_of(as_it_was)
    async with executing(database, before):
        database.start(before)
        await database.wait_state("r", "parked")
    database.notify("r", message("look", "1"))
    async with executing(database, workflow_of(after), limits=ExecutorLimits(strict_args=True)):
        row = await database.wait_state("r", "blocked")
    assert row.ending is None
    assert row.blocked is not None
    assert re.fullmatch(said.replace("HERE", here(after)), row.blocked), row.blocked


async def test_other_arguments_are_a_warning_by_default(caplog: pytest.LogCaptureFixture, autojump_clock: object):
    database, before = Database(), workflow_of(as_it_was)
    async with executing(database, before):
        database.start(before)
        await database.wait_state("r", "parked")
    database.notify("r", message("look", "1"))
    async with executing(database, workflow_of(with_other_arguments)):
        row = await database.wait_state("r", "ended")
    assert row.ending is not None
    assert row.ending.failure is None
    [reported] = [record.getMessage() for record in caplog.records if "other arguments" in record.getMessage()]
    assert re.fullmatch(
        rf"run r: pay at /1 was called with other arguments before \({here(with_other_arguments)}\)", reported
    )


async def test_two_programs_with_other_steps_need_a_journal_to_differ(autojump_clock: object):
    """Two services have a workflow of one name, with other steps: nothing is wrong until a journal says so."""
    database, one, other = Database(), workflow_of(as_it_was), workflow_of(with_a_step_before)
    async with executing(database, one), executing(database, other):
        row = database.start(one)
        await database.wait_state("r", "parked")
        assert row.blocked is None
        await database.wait_state("r", "ended", "blocked")


async def returns_much() -> None:
    await gives(300_000)  # here


async def takes_much() -> None:
    await gives.using(name="x" * 3)(cast("int", "x" * 300_000))  # here


async def result_is_much() -> str:
    return "x" * 300_000


async def starts_many() -> None:
    async with open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(sleep, 1)  # here


async def nests() -> None:
    async with open_nursery():  # here
        await nests()


async def names_twice() -> None:
    async with open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(sleep, 1, key="sku-9")  # here


async def names_nothing() -> None:
    async with open_nursery() as nursery:
        nursery.start_soon(sleep, 1, key="")  # here


async def sleeps_oddly() -> None:
    await sleep("a while")  # here


async def takes_another_type() -> None:
    await receive("paid", Receipt, bad="raise")  # here


LIMITS: list[tuple[Body, str]] = [
    (returns_much, rf"StepFailed: PayloadTooLarge: gives at /0 returned a value that is {LARGE} \(HERE\)"),
    (takes_much, rf"PayloadTooLarge: the arguments of xxx is {LARGE} \(HERE\)"),
    (result_is_much, f"PayloadTooLarge: the result of w is {LARGE}"),
    (starts_many, r"TooManyBranches: a run has 10 open branches at most: start fewer at a time \(HERE\)"),
    (nests, r"TooDeep: scopes and nurseries are nested 5 deep at most: a loop needs fewer than a recursion \(HERE\)"),
    (names_twice, r"DuplicateKey: 'sku-9' is the key of another child of this nursery: give each its own \(HERE\)"),
    (names_nothing, r"BadKey: a key has 1 to 256 characters, this one 0 \(HERE\)"),
    (sleeps_oddly, r"BadDuration: .*'a while'.* \(HERE\)"),
    (
        takes_another_type,
        r"BadMessage: message 'paid' is \"seven\" which does not fit Receipt: Expected `object`, got `str` \(HERE\)",
    ),
]


@pytest.mark.parametrize(("body", "said"), LIMITS, ids=lambda value: getattr(value, "__name__", None))
async def test_a_run_that_wants_too_much_fails_with_its_line(body: Body, said: str, autojump_clock: object):
    database = Database()
    limits = ExecutorLimits(run=RunLimits(max_branches=10, max_depth=5))
    async with executing(database, workflow_of(body), limits=limits):
        row = database.start(workflow_of(body))
        database.notify("r", message("paid", '"seven"'))
        await database.wait_state("r", "ended")
    assert row.ending is not None
    assert row.ending.failure is not None
    assert re.fullmatch(said.replace("HERE", here(body) if "HERE" in said else ""), row.ending.failure), row.ending


def test_arguments_and_messages_that_are_too_large():
    @workflow
    async def body(text: str) -> str:
        return await receive("more", str)

    with pytest.raises(PayloadTooLarge, match=r"the arguments of body is 293 kB; at most 256 kB\. Store it"):
        run_workflow(body, "x" * 300_000)
    with pytest.raises(PayloadTooLarge, match=r"message 'more' is 293 kB; at most 256 kB\. Store it"):
        run_workflow(body, "x", messages=[Message("more", "x" * 300_000)])


async def test_secrets_are_masked_in_what_is_reported(caplog: pytest.LogCaptureFixture, autojump_clock: object):
    """In why a run is blocked, and in the log of an attempt that failed."""

    @step(name="login", retries=1)
    async def login(password: str) -> dict[str, str]:
        if not tried:
            tried.append(1)
            raise ConnectionError(f"https://ann:{password}@bank.example is away, password={password}")
        return {"password": password}

    @step(name="login")
    async def login_later(password: str) -> int: ...

    async def before() -> None:
        await login("hunter2")
        await sleep("1 day")

    async def after() -> None:
        await login_later("hunter2")

    tried: list[int] = []
    database = Database()
    async with executing(database, workflow_of(before)):
        database.start(workflow_of(before))
        await database.wait_state("r", "parked")
    [reported] = [record.getMessage() for record in caplog.records if "attempt" in record.getMessage()]
    assert re.fullmatch(
        r"run r: step 'login' at /0 failed, attempt 1 of 2: ConnectionError: https://ann:\*\*\*@bank\.example is away,"
        r" password=\*\*\* \(test_error_texts\.py:\d+\)\. It is tried again in 1 s",
        reported,
    )
    database.notify("r", message("look", "1"))
    async with executing(database, workflow_of(after)):
        row = await database.wait_state("r", "blocked")
    assert row.blocked is not None
    assert 'returned {"password":***} which does not fit int' in row.blocked
    assert "hunter2" not in caplog.text + row.blocked


async def test_the_time_never_goes_back(autojump_clock: object):
    """A record whose clock is behind the one before does not take the run's time back, nor its deadlines."""
    seen: list[timedelta] = []

    @workflow(name="w")
    async def body() -> None:
        from penstock.durable import now, run_info

        for name in ("one", "two"):
            await receive(name, int)
            seen.append(now() - run_info().started_at)

    database = Database()
    row = database.start(body)
    for name, at in (("one", 60.0), ("two", 30.0)):
        database.write(row, message(name, "1"))
        row.records[-1] = msgspec.structs.replace(row.records[-1], at=row.records[0].at + at if at == 60 else 0)
    row.attempt = 1
    async with executing(database, body):
        await database.wait_state("r", "ended")
    assert seen[0] == seen[1]
    assert seen[0] >= timedelta(seconds=60)
