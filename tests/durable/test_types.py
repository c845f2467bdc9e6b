"""mypy and pyright, both strict, infer arguments and results through `step`, `workflow`, `first` and `receive`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.sources import TOP

RIGHT = ["examples/durable_order.py", "tests/durable/typed_bodies.py"]
WRONG = """
from __future__ import annotations
from functools import partial
from penstock.durable import (
    App, child, each, first, open_nursery, receive, send, sleep, start, step, workflow
)
from penstock.testing import explore, run_workflow

@step(retries=1)
async def charge(order: str, *, times: int = 1) -> int:
    return times

@workflow
async def body(order: str) -> int:
    await charge(3)  # wrong
    await charge(order, often=2)  # wrong
    text: str = await charge(order)  # wrong
    number: int = await receive("n", str)  # wrong
    won = await first(paid=receive("paid", int), late=sleep(1))
    plain: int = won.value  # wrong
    async with open_nursery() as nursery:
        nursery.start_soon(charge, 3)  # wrong
        nursery.start_soon(charge)  # wrong
        nursery.start_soon(body, order, 1)  # wrong
        nursery.start_soon(options, order, "one", key="o")  # wrong
        nursery.start_soon(partial(charge, order, times="two"))  # wrong
    await body(3)  # wrong
    await charge.using(timeout="5s")(3)  # wrong
    charge(order)  # wrong
    plain(order)  # wrong
    charge.using(retries=3)(order)  # wrong
    sleep(1)  # wrong
    receive("n", str)  # wrong
    child(body, order)  # wrong
    send("r", "n", 1)  # wrong
    start(body, order)  # wrong
    each(charge, [order])  # wrong
    first(paid=receive("paid", int))  # wrong
    body(order)  # wrong
    await child(body, 3)  # wrong
    await child(body, order, 4)  # wrong
    await child(body)  # wrong
    await child(body, 3, id="c")  # wrong
    await child(body, orders="o")  # wrong
    await child(body, order, ids="c")  # wrong
    await child("billing", 17)  # wrong
    await start(body, 3)  # wrong
    await start(body, id="s")  # wrong
    await start(options, order, "one", id="s")  # wrong
    return text + str(number) + str(plain)  # wrong

@workflow
async def options(order: str, count: int = 1, *, gift: bool = False) -> str:
    return order

@step
def plain(order: str) -> int:
    return order  # wrong

async def starts(app: App) -> None:
    await app.start(body, 3)  # wrong
    await app.start(body)  # wrong
    await app.start(body, id="b")  # wrong
    await app.start(body, 3, id="b")  # wrong
    await app.start(body, "o", 4, id="b")  # wrong
    await app.start(body, orders="o")  # wrong
    await app.start(body, order=3)  # wrong
    await app.start(body, "o", id=3)  # wrong
    await app.start(body, "o", priority="high")  # wrong
    await app.start(body, "o", ids="b")  # wrong
    await app.start(options, "o", "two", id="b")  # wrong
    await app.start(options, "o", gift=3)  # wrong
    await app.start(partial(options, "o", gift="no"), id="b")  # wrong
    await app.start("body", "o")  # wrong
    text: str = await (await app.start(body, "o")).result()  # wrong
    print(text)

def runs(app: App) -> None:
    app.run(body, 3)  # wrong
    app.run(body, id="b")  # wrong
    app.run(body, 3, id="b")  # wrong
    app.run(options, "o", gifts=True)  # wrong
    app.run(options, "o", "two", deadline="1h")  # wrong
    app.run(body, "o", delay="1h")  # wrong
    with app.in_thread() as shop:
        shop.start(body, 3)  # wrong
        shop.start(body, 3, id="b")  # wrong
        shop.start(body, "o", deadlines="1h")  # wrong
    run_workflow(body, 3)  # wrong
    run_workflow(body, 3, seed="b")  # wrong
    run_workflow(body, "o", backend="curio")  # wrong
    explore(body, 3)  # wrong
    explore(options, "o", "two", seed="b")  # wrong
"""


def checks(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / command[0]), *command[1:]], cwd=TOP, capture_output=True, text=True
    )


def lines_marked() -> set[int]:
    return {number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")}


@pytest.fixture
def wrong(tmp_path):
    path = tmp_path / "wrong_bodies.py"
    path.write_text(WRONG)
    return str(path)


@pytest.mark.slow(reason="runs a type checker")
def test_mypy_passes_what_is_right_and_finds_what_is_wrong(wrong, tmp_path):
    mypy = ["mypy", "--strict", f"--cache-dir={tmp_path / 'cache'}"]
    right = checks(*mypy, *RIGHT)
    assert right.returncode == 0, right.stdout
    found = checks(*mypy, wrong).stdout
    assert {int(line) for line in re.findall(r"wrong_bodies\.py:(\d+): error", found)} == lines_marked(), found


@pytest.mark.slow(reason="runs a type checker")
def test_pyright_passes_what_is_right_and_finds_what_is_wrong(wrong):
    result = checks("pyright", "--outputjson", "--pythonpath", sys.executable, *RIGHT, wrong)
    errors = [
        (Path(error["file"]).name, error["range"]["start"]["line"] + 1, error["message"])
        for error in json.loads(result.stdout)["generalDiagnostics"]
    ]
    assert {line for name, line, _ in errors if name == "wrong_bodies.py"} == lines_marked(), errors
    assert [error for error in errors if error[0] != "wrong_bodies.py"] == []
