"""What lint finds in bodies, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.durable.lint import RULES, lint
from tests.durable import shop, typed_bodies
from tests.house.sources import TOP

BODY = """
@workflow
async def body(o):
    {line}
"""
IMPORTED = """
import datetime as dt
import os, random as chance, time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from datetime import datetime
from os import environ, path
from pathlib import Path
from time import monotonic
from uuid import uuid4

import trio

from penstock import durable
from penstock.durable import first, move_on_after, sleep
from penstock.durable import now as the_time

@durable.workflow(version=2)
async def body(o):
    {line}
"""


def found(source: str) -> list[tuple[int, str]]:
    return [(finding.line, finding.rule) for finding in lint(source)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("time.time()", "time.time(): the time is different at replay"),
        ("datetime.now(UTC)", "use penstock.durable.now()"),
        ("random.random()", "use penstock.durable.rng()"),
        ("uuid.uuid4()", "uuid4()"),
        ("os.environ['A']", "os.environ: the environment may be different"),
        ("open('x')", "move it into a step"),
        ("await trio.sleep(1)", "use penstock.durable's own"),
        ("threading.Thread()", "a body has no threads"),
    ],
)
def test_what_differs_at_replay_is_found(line, said):
    [finding] = lint(BODY.format(line=line))
    assert finding.line == 4
    assert said in finding.text


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("monotonic()", "clock"),
        ("dt.date.today()", "clock"),
        ("datetime.utcnow()", "clock"),
        ("chance.choice(o)", "random"),
        ("uuid4()", "random"),
        ("environ['A']", "environment"),
        ("environ.get('A')", "environment"),
        ("os.getenv('A')", "environment"),
        ("os.listdir()", "io"),
        ("path.exists('x')", "io"),
        ("Path('x').read_text()", "io"),
        ("ThreadPoolExecutor()", "thread"),
        ("hash(o)", "hash"),
        ("[x for x in set(o)]", "set-order"),
        ("list({1, 2})", "set-order"),
        ("async with trio.open_nursery() as n: n", "loop"),
    ],
)
def test_names_are_known_whatever_they_were_imported_as(line, rule):
    assert found(IMPORTED.format(line=line)) == [(19, rule)]


@pytest.mark.parametrize(
    "line",
    [
        "the_time()",
        "await sleep('1h')",
        "path.join('a', 'b')",
        "sorted({1, 2})",
        "chance.Random(7).random()",
        "o.now(), o.random()",
        "dt.datetime(2030, 1, 1)",
        "len({1})",
    ],
)
def test_what_is_the_same_at_replay_is_left_alone(line):
    assert found(IMPORTED.format(line=line)) == []


def test_the_order_of_a_set_is_found():
    [finding] = lint(BODY.format(line="for x in {1, 2}: await go(x)"))
    assert "sort it" in finding.text
    assert found(BODY.format(line="names = {o}\n    for x in names: await go(x)")) == [(5, "set-order")]


@pytest.mark.parametrize("kind", ["trio.Cancelled", "CancelledError"])
def test_another_librarys_cancelled_is_found(kind):
    line = f"try: await sleep(1)\n    except {kind}: raise"
    assert found(IMPORTED.format(line=line)) == [(20, "cancelled")]


def test_only_clean_up_without_a_shield_is_found():
    source = """
@workflow
async def body(o):
    try:
        await charge(o)
    except BaseException:
        await release(o)
        raise
    except OSError:
        await release(o)
    finally:
        await release(o)
        with move_on_after(60, shield=True):
            await release(o)
"""
    assert found(source) == [(7, "clean-up"), (12, "clean-up")]


def test_functions_that_a_body_calls_are_checked_too():
    source = """
from penstock.durable import step, workflow
import time

def price(o):
    return time.time()

async def pay(o):
    await charge(price(o))

@step
def charge(amount):
    time.time()

def unused():
    time.time()

@workflow
async def body(o):
    def nested():
        return time.time()
    async with nursery(): nursery.start_soon(pay, o)
"""
    assert found(source) == [(6, "clock"), (21, "clock")]


STEPS = """
from bank import BankError
from penstock.durable import step, workflow

class Declined(Exception): ...

@step(raises=[Declined])
async def charge(o): ...

@step(raises=[BankError])
async def ask(o): ...

@step(raises=[ConnectionError])
async def ship(o): ...

@workflow
async def body(o):
    try:
        await {call}(o)
    except {kind}:
        pass
"""


@pytest.mark.parametrize(
    ("call", "kind", "there"),
    [
        ("charge", "OSError", True),  # comes as StepFailed
        ("charge.using(timeout='5s')", "(KeyError, Declined)", True),
        ("charge", "Declined", False),
        ("charge", "Exception", False),
        ("charge", "StepFailed", False),
        ("ask", "OSError", False),  # BankError may be one
        ("ship", "OSError", False),
        ("ship", "KeyError", True),
    ],
)
def test_a_handler_that_never_meets_its_steps_error_is_found(call, kind, there):
    assert found(STEPS.format(call=call, kind=kind)) == ([(20, "undeclared")] if there else [])


def test_a_line_can_be_left_alone_by_rule():
    assert found(BODY.format(line="time.time()  # penstock: ignore[clock]")) == []
    assert found(BODY.format(line="time.time()  # penstock: ignore[io]")) == [(4, "clock")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_line_is_what_python_takes_for_one(end):
    source = BODY.format(line='"\x0c\u2028", time.time()  # penstock: ignore[clock]').replace("\n", end)
    assert found(source) == []


def test_steps_and_the_examples_are_left_alone():
    assert lint("@step\nasync def charge(o):\n    time.time()\n") == []
    for path in (shop.__file__, typed_bodies.__file__, TOP / "examples" / "durable_order.py"):
        assert lint(Path(path).read_text()) == []


def test_each_rule_is_shown_by_one_of_these_tests():
    source = Path(__file__).read_text()
    assert [rule for rule in RULES if f'"{rule}"' not in source] == []


UNAWAITED = """
from penstock import durable
from penstock.durable import child, each, first, receive, send, sleep, start, step, workflow

@step(retries=2)
async def charge(o): ...

@step
def pack(o): ...

async def helper(o):
    await charge(o)

def plain(o): ...

@workflow
async def other(o): ...

@workflow
async def body(o):
    {line}
"""


@pytest.mark.parametrize(
    "call",
    [
        "charge(o)", "pack(o)", "charge.using(retries=1)(o)", "helper(o)", "other(o)", "sleep(1)", "durable.sleep(1)",
        "receive('n', str)", "send('r', 'n')", "start(other, o)", "child(other, o)", "each(charge, o)",
        "first(a=sleep(1))",
    ],
)  # fmt: skip
def test_a_call_that_is_not_awaited_is_found(call: str):
    assert found(UNAWAITED.format(line=call)) == [(21, "not-awaited")]
    assert found(UNAWAITED.format(line=f"await {call}")) == []
    assert found(UNAWAITED.format(line=f"later = {call}; await later")) == []
    assert found(UNAWAITED.format(line=f"if o:\n        {call}")) == [(22, "not-awaited")]


@pytest.mark.parametrize("call", ["plain(o)", "print_later(o)", "o.charge(1)", "nursery.start_soon(charge, o)"])
def test_other_calls_are_not_awaited(call: str):
    assert found(UNAWAITED.format(line=call)) == []
