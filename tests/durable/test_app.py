"""`App` as programs have it: processes that are killed, interrupted, forked, and others that talk to their runs."""

from __future__ import annotations

import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.durable.programs import JOURNAL, Program, ended, own_directory, until

DONE = 1
pytestmark = pytest.mark.slow(reason="programs in processes of their own")


@pytest.fixture
def directory() -> Generator[Path]:
    yield from own_directory()


ORDER = """
import os, pathlib, sys, time
from penstock.durable import App, first, receive, sleep, step, workflow

here = pathlib.Path(__file__).parent

@step
def pay(n: int) -> int:
    with open(here / "paid", "a") as file:
        file.write(f"{os.getpid()}\\n")
    if (here / "slow").exists():
        (here / "slow").unlink()
        time.sleep(600)
    return n * 2

@workflow
async def order(n: int) -> str:
    paid = await pay(n)
    approved = await receive("approved", str)
    return f"{paid} {approved}"

app = App(order)
"""
RUNS = ORDER + 'print(app.run(order, 21, id="o-1"))\n'
APPROVES = """
import sys, trio
from penstock.durable import App

async def main() -> None:
    async with App() as app:
        run = await app.get("o-1")
        await run.send("approved", sys.argv[1])
        print(await run.result())

trio.run(main)
"""


def test_another_terminal_sends_what_the_first_waits_for(directory: Path):
    first = Program(directory, RUNS)
    running = first.start()
    until(lambda: first.rows("SELECT 1 FROM timer UNION ALL SELECT 1 FROM token WHERE state = 2") != [], running)
    second = Program(directory, APPROVES, "approves.py").start("by ann")
    assert ended(second)[:2] == (0, "42 by ann\n")
    code, said, errors = ended(running)
    assert (code, said) == (0, "42 by ann\n"), errors
    assert "penstock: run o-1 waits: message 'approved' (program.py:" in errors
    assert (directory / "paid").read_text().count("\n") == 1


def test_a_program_killed_in_a_step_begins_that_step_again(directory: Path):
    (directory / "slow").touch()
    program = Program(directory, RUNS)
    killed = program.start()
    until(lambda: (directory / "paid").exists() and not (directory / "slow").exists(), killed)
    killed.send_signal(signal.SIGKILL)
    assert ended(killed)[0] == -signal.SIGKILL
    again = program.start()
    until(lambda: (DONE, "/0", "pay") in program.rows(), again)  # after the record of the attempt that was cut off
    second = Program(directory, APPROVES, "approves.py").start("late")
    assert ended(second)[:2] == (0, "42 late\n")
    assert ended(again)[:2] == (0, "42 late\n")
    assert (directory / "paid").read_text().count("\n") == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_goes_on_at_the_next_start(directory: Path, number: signal.Signals):
    program = Program(directory, RUNS)
    interrupted = program.start()
    until(lambda: program.rows() == [(DONE, "/0", "pay")], interrupted)
    interrupted.send_signal(number)
    found, said, errors = ended(interrupted)
    assert (found, said) == (128 + number, "")
    assert errors.splitlines()[-1] == "penstock: stopped; run o-1 goes on where it was when this is run again"
    assert "Traceback" not in errors
    again = program.start()
    until(lambda: program.rows("SELECT attempt FROM token") != [], again)
    second = Program(directory, APPROVES, "approves.py").start("ok")
    assert ended(second)[:2] == (0, "42 ok\n")
    assert ended(again)[:2] == (0, "42 ok\n")


def test_one_of_two_programs_takes_over_the_others_runs(directory: Path):
    (directory / "slow").touch()
    program = Program(directory, ORDER + "app.main()\n")
    first = program.start()
    until(lambda: program.rows("SELECT 1 FROM engine") != [], first)
    second = program.start()
    until(lambda: program.rows("SELECT count(*)::int FROM engine") == [(2,)], first, second)
    starter = Program(directory, ORDER + STARTS, "starter.py").start()
    assert ended(starter)[0] == 0
    until(lambda: (directory / "paid").exists() and not (directory / "slow").exists(), first, second)
    pid = int((directory / "paid").read_text())
    holder, other = (first, second) if pid == first.pid else (second, first)
    holder.send_signal(signal.SIGKILL)
    ended(holder)
    until(lambda: (DONE, "/0", "pay") in program.rows(), other)  # after the record of the attempt that was cut off
    other.send_signal(signal.SIGTERM)
    assert ended(other)[0] == 0


STARTS = """
import trio
async def main() -> None:
    client = App()
    async with client:
        await client.start(order, 21, id="o-1")
trio.run(main)
"""


REFUSED = (
    ORDER
    + """
import asyncio, trio

def refused(call) -> None:
    try:
        call()
    except RuntimeError as error:
        print(error)

async def inside() -> None:
    refused(lambda: app.run(order, 1))

trio.run(inside)
asyncio.run(inside())
with app.in_thread() as shop:
    shop.start(order, 1, id="o-2")
    child = os.fork()
    if not child:
        refused(lambda: app.run(order, 1))
        refused(lambda: shop.get("o-2"))
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
refused(lambda: shop.get("o-2"))
"""
)


def test_run_is_refused_inside_of_loops_and_after_a_fork(directory: Path):
    code, said, errors = ended(Program(directory, REFUSED).start())
    assert code == 0, errors
    trio_s, asyncio_s, forked, forked_too, left = said.splitlines()
    assert trio_s == "run() blocks, and a Trio loop runs here: use `async with app`"
    assert asyncio_s == "run() blocks, and an asyncio loop runs here: use `async with app`"
    assert "of which this one is a fork" in forked
    assert forked_too == forked
    assert left == "this app does not serve any more"


THREADED = (
    ORDER
    + """
import asyncio

async def endpoint(shop) -> str:
    run = await asyncio.to_thread(shop.start, order, 4, id="o-3")
    await asyncio.to_thread(run.send, "approved", "by asyncio")
    return await asyncio.to_thread(run.result)

async def main() -> None:
    with app.in_thread() as shop:
        print(await endpoint(shop))
        print(shop.get("o-3").status())

asyncio.run(main())
"""
)


def test_a_program_with_asyncio_has_it_in_a_thread(directory: Path):
    code, said, errors = ended(Program(directory, THREADED).start())
    assert (code, said) == (0, "8 by asyncio\nCOMPLETED\n"), errors


FAILS = """
from penstock.durable import App, step, workflow

class Declined(Exception): ...

@step(raises=[Declined])
async def charge() -> None:
    raise Declined("no money")

@workflow
async def order() -> None:
    await charge()

App(order).run(order)
"""


def test_a_run_that_failed_says_what_was_raised_and_where(directory: Path):
    code, _, errors = ended(Program(directory, FAILS).start())
    assert code == 1
    assert "RunFailed: run " in errors
    assert "failed: Declined: no money (program.py:12)" in errors


BLOCKED = """
import sys
from penstock.durable import App, sleep, step, workflow

@step
async def charge() -> None: ...

@step
async def fraud() -> None: ...

@workflow
async def order() -> str:
    if len(sys.argv) > 1:
        await fraud()
    await charge()
    await sleep("15 s")
    return "done"

print(App(order).run(order, id="o-1"))
"""


def test_unfit_code_is_reported_and_the_old_code_goes_on(directory: Path):
    program = Program(directory, BLOCKED)
    first = program.start()
    until(lambda: program.rows(JOURNAL)[:1] == [(DONE, "/0", "charge")], first)
    first.send_signal(signal.SIGKILL)
    ended(first)
    code, _, errors = ended(program.start("other"))
    assert code == 1
    assert "RunBlocked: run o-1 is blocked on code: at /0 the journal has 'charge', the code asks for 'fraud'" in errors
    assert "(program.py:14)" in errors
    code, said, errors = ended(program.start())
    assert (code, said) == (0, "done\n"), errors
