"""How fast a journal is replayed: records per second of CPU, with the codec and the check of arguments.

`python -m benchmarks.replay`. Needs no database.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from benchmarks.calibration import print_line
from penstock.durable import RunInfo, move_on_after, open_nursery, step
from penstock.kernel.drive import Kernel
from penstock.kernel.operation import Start
from penstock.kernel.record import JournalKind, Record
from penstock.kernel.replay import replay

ROUNDS = 3


@dataclass
class Receipt:
    id: str
    amount: str
    currency: str
    note: str


PAYLOAD = '{"id":"r-4711","amount":"19.90","currency":"EUR","note":"' + "x" * 40 + '"}'


@step
async def charge(number: int) -> Receipt:
    raise AssertionError(f"a replay runs no step ({number})")


async def chain(steps: int) -> None:
    for number in range(steps):
        await charge(number)


async def branches(count: int, steps: int) -> None:
    async with open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(chain, steps)


async def scopes(steps: int) -> None:
    for number in range(steps):
        with move_on_after("1 day"):
            await charge(number)


def journal_of(body: Callable[[], Awaitable[None]]) -> list[Record]:
    """What a run of the body would leave: every step is done as soon as it is asked for."""
    kernel, records = Kernel(info=INFO), []
    kernel.start(_coroutine(body))
    while kernel.result is None:
        for command in kernel.take_commands():
            assert isinstance(command, Start)
            call = command.call
            record = Record(len(records) / 1000, JournalKind.DONE, command.path, call.name, PAYLOAD, call.digest)
            records.append(record)
        for record in records[-len(kernel.pending) :]:
            kernel.deliver(record)
    return records


INFO = RunInfo("bench", "bench", 1, datetime.now(UTC))


async def _coroutine(body: Callable[[], Awaitable[None]]) -> None:
    await body()


def main() -> None:
    print_line()
    bodies: dict[str, Callable[[], Awaitable[None]]] = {
        "one branch, 20,000 steps": lambda: chain(20_000),
        "100 branches of 200 steps": lambda: branches(100, 200),
        "9,000 branches of 2 steps": lambda: branches(9_000, 2),
        "20,000 steps, each in a scope": lambda: scopes(20_000),
    }
    for name, body in bodies.items():
        records, best = journal_of(body), 0.0
        for _ in range(ROUNDS):
            kernel, began = Kernel(info=INFO), time.process_time()
            replay(kernel, _coroutine(body), records)
            best = max(best, len(records) / (time.process_time() - began))
        print(f"{name:32s} {best:10,.0f} records/s")
    records = journal_of(lambda: chain(20))
    began = time.process_time()
    for _ in range(1_000):
        replay(Kernel(info=INFO), _coroutine(lambda: chain(20)), records)
    print(f"{'1,000 runs of 20 steps':32s} {20_000 / (time.process_time() - began):10,.0f} records/s")


if __name__ == "__main__":
    main()
