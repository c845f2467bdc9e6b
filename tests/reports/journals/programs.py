"""The workflows whose journals e75dc088 wrote: ``python tests/reports/journals/programs.py FOLDER``, with that commit's
``src`` in PYTHONPATH. Beside each journal stands how its run ended: ``NAME.end.json``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from penstock.durable import (
    StepFailed,
    fail_after,
    first,
    move_on_after,
    open_memory_channel,
    open_nursery,
    receive,
    sleep,
    step,
    workflow,
)
from penstock.durable.workflow import Workflow
from penstock.kernel.local import Semaphore


class Declined(Exception):
    """Has a constructor of its own."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(f"declined ({code}): {reason}")
        self.code, self.reason = code, reason


@step(raises=[OSError])
def read_file(name: str) -> str:
    raise FileNotFoundError(2, "no such file", name)


@step(raises=[Declined])
def pay(pence: int) -> int:
    raise Declined(51, "no money")


@step
def note(names: set[str], about: dict[str, int]) -> int:
    return len(names) + len(about)


@step
def charge(pence: int) -> str:
    return f"r-{pence}"


@workflow
async def two_names() -> str:
    await sleep("1 s")
    won = await first(a=receive("a", int), b=receive("b", int))
    other = "b" if won.name == "a" else "a"
    with move_on_after("1 s"):
        return f"{won.name} {won.value}, then {await receive(other, int)}"
    return f"{won.name} {won.value}, {other} is lost"


@workflow
async def approval() -> str:
    won = await first(m=receive("approval", str), t=sleep("2 s"))
    with move_on_after("1 s"):
        return f"{won.name}, then {await receive('approval', str)}"
    return f"{won.name}, and the message is lost"


@workflow
async def items_and_permits() -> list[str]:
    seen: list[str] = []
    send, take = open_memory_channel(5)
    permits = Semaphore(1)
    await send.send("one")
    await send.send("two")
    won = await first(a=take.receive(), b=take.receive())
    seen.append(f"{won.name} {won.value}")
    with move_on_after("1 s"):
        seen.append(await take.receive())
    lost = await first(a=sleep("0 s"), b=permits.acquire())
    seen.append(f"{lost.name} {permits.value}")
    await charge(5)
    return seen


@workflow
async def subclass() -> str:
    try:
        return await read_file("a.txt")
    except StepFailed as error:
        return f"StepFailed {error}"
    except OSError as error:
        return f"{type(error).__name__} {error}"


@workflow
async def mangled() -> str:
    try:
        await pay(100)
    except Declined as error:
        return f"{error.code!r} {error}"
    except StepFailed as error:
        return f"StepFailed {error}"
    return "paid"


@workflow
async def sets(names: set[str], about: dict[str, int]) -> int:
    return await note(names, about)


@workflow
async def plain(pence: int) -> list[str]:
    got: list[str] = []

    async def one(of: int) -> None:
        got.append(await charge(of))

    async with open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(one, pence + number)
    with fail_after("1 h"):
        await sleep("10 s")
        got.append(await receive("go", str))
    return got


RUNS: dict[str, tuple[Workflow[..., Any], tuple[Any, ...], list[tuple[str, object, str]]]] = {
    "two_names": (two_names, (), [("a", 1, "0 s"), ("b", 2, "0 s")]),
    "items_and_permits": (items_and_permits, (), []),
    "subclass": (subclass, (), []),
    "mangled": (mangled, (), []),
    "sets": (sets, ({"ann", "bob", "cy"}, {"z": 1, "a": 2}), []),
    "plain": (plain, (7,), [("go", "on", "20 s")]),
}
"""By file: the workflow, its arguments, and messages: name, value, when."""


def write(folder: Path) -> None:
    """All of them, with the code that is imported."""
    from penstock.durable.activation import Activation, Still
    from penstock.durable.check import SavedRun
    from penstock.kernel.record import JournalKind, Record
    from penstock.testing import Message, run_workflow, save_journal

    for name, (flow, args, messages) in RUNS.items():
        reported = [Message(of, value, after=after) for of, value, after in messages]
        run = run_workflow(flow, *args, messages=reported, seed=name)
        save_journal(run, folder / f"{name}.json")
        (folder / f"{name}.end.json").write_text(json.dumps(run.result()) + "\n")
    at = 1893456000.0  # nobody had the run when its sleep was over, and the message came after that
    message = Record(at + 3, JournalKind.MESSAGE, name="approval", payload='"yes"', pos=1)
    records = [message, Record(at + 4, JournalKind.CLOCK, pos=2)]
    activation = Activation(approval, "approval", "{}", at, Still())
    activation.replay(records)
    assert activation.result is not None
    (folder / "approval.json").write_bytes(SavedRun("approval", 1, "approval", "{}", at, records).text())
    (folder / "approval.end.json").write_text(json.dumps(activation.result.value) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
