"""Random programs on the kernel and on Trio itself; what each branch saw, and when, must be among Trio's results.

`python -m tests.kernel.oracle 100000 --from 0 [--ties]` runs many and prints what it saw.

Both sides play the same executor: a step starts when all branches are blocked; outcomes and ends of cancelled steps
come one at a time, each when all branches are blocked again, as the kernel takes one record at a time.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import sys
import time
from collections import Counter, deque
from math import inf

import trio
import trio.testing

from penstock.kernel.drive import Kernel
from penstock.kernel.errors import Cancelled
from penstock.kernel.local import Event, Semaphore, open_channel
from penstock.kernel.nursery import Nursery
from penstock.kernel.operation import CallOperation, Outcome, Sleep, Start, block
from penstock.kernel.record import Kind, Record
from penstock.kernel.scope import CancelScope
from tests.kernel.programs import Failure, Interpreter, Programs, label

STUCK_AT = 2_000.0  # when what waits for an event that nobody sets is released
MAX_ORDERS = (
    5_000  # of Trio's shuffles tried for one program; with 200, one tie program of some 25,000 had not come yet
)


class TrioSide:
    """Trio with a virtual clock, and an executor that hands outcomes out one by one."""

    Event, Semaphore, sleep, open_nursery = trio.Event, trio.Semaphore, staticmethod(trio.sleep), trio.open_nursery
    now = staticmethod(trio.current_time)

    def __init__(self, outside: trio.Nursery) -> None:
        self.outside = outside
        self.due: deque[trio.Event] = deque()
        self.some = trio.Event()

    @staticmethod
    def open_memory_channel(room: int):
        return trio.open_memory_channel(room)

    @staticmethod
    def CancelScope(*, shield: bool = False) -> trio.CancelScope:  # noqa: N802 - Trio's name
        return trio.CancelScope(shield=shield)

    @staticmethod
    def move_on_after(seconds: float, *, shield: bool = False):
        return trio.move_on_after(seconds, shield=shield)

    @staticmethod
    def fail_after(seconds: float, *, shield: bool = False):
        return trio.fail_after(seconds, shield=shield)

    def put(self, event: trio.Event) -> None:
        self.due.append(event)
        self.some.set()

    async def hand_out(self) -> None:
        while True:
            await self.some.wait()
            while self.due:
                await trio.testing.wait_all_tasks_blocked()
                self.due.popleft().set()
            self.some = trio.Event()

    async def step(self, i: int, seconds: float, fails: bool, stubborn: bool) -> None:
        await trio.testing.wait_all_tasks_blocked()
        ended, gone = trio.Event(), False

        async def work() -> None:
            await trio.sleep(seconds)
            if not gone:
                self.put(ended)

        self.outside.start_soon(work)
        try:
            with trio.CancelScope(shield=stubborn):
                await ended.wait()
        except trio.Cancelled:
            gone = True
            if ended in self.due:
                self.due.remove(ended)
            stopped = trio.Event()
            self.put(stopped)
            with trio.CancelScope(shield=True):
                await stopped.wait()
            raise
        if fails:
            raise Failure(f"step {i}")


def on_trio(program: list, seed: int) -> tuple:
    """Outcome and trace; the seed decides how Trio shuffles."""
    trio._core._run._r.seed(seed)

    async def run() -> tuple:
        outcome: BaseException | None = None

        async def guarded() -> None:
            nonlocal outcome
            try:
                await interpreter.main(program)
            except BaseException as error:
                outcome = error
            outside.cancel_scope.cancel()

        async with trio.open_nursery() as outside:
            side = TrioSide(outside)
            interpreter = Interpreter(side)
            outside.start_soon(guarded)
            outside.start_soon(side.hand_out)
            await trio.sleep(STUCK_AT)
            interpreter.release()
            await trio.sleep(STUCK_AT)
            raise AssertionError("a program waits for ever")
        return label(outcome), interpreter.frozen()

    return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


class StepCall:
    """A step of a program."""

    def __init__(self, i: int, seconds: float, fails: bool, stubborn: bool) -> None:
        self.i, self.seconds, self.fails, self.stubborn = i, seconds, fails, stubborn
        self.name, self.digest = f"step {i}", None

    def outcome(self, record: Record) -> Outcome:
        if record.kind is Kind.DONE:
            return Outcome()
        return Outcome(error=Cancelled() if record.kind is Kind.STOPPED else Failure(self.name))


class KernelSide:
    """The kernel's own names, as Trio's."""

    Event, Semaphore, open_memory_channel = Event, Semaphore, staticmethod(open_channel)

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def now(self) -> float:
        return self.kernel.now

    def open_nursery(self) -> Nursery:
        return Nursery(self.kernel)

    def CancelScope(self, *, shield: bool = False) -> CancelScope:  # noqa: N802 - Trio's name
        return CancelScope(self.kernel, shield=shield)

    def move_on_after(self, seconds: float, *, shield: bool = False) -> CancelScope:
        return CancelScope(self.kernel, seconds, shield=shield)

    def fail_after(self, seconds: float, *, shield: bool = False) -> CancelScope:
        return CancelScope(self.kernel, seconds, shield=shield, too_slow=True)

    def sleep(self, seconds: float):
        return block(Sleep(seconds))

    def step(self, i: int, seconds: float, fails: bool, stubborn: bool):
        return block(CallOperation(StepCall(i, seconds, fails, stubborn)))


class Executor:
    """Runs a kernel's steps on a virtual clock; keeps the journal."""

    def __init__(self, kernel: Kernel, interpreter: Interpreter) -> None:
        self.kernel, self.interpreter = kernel, interpreter
        self.journal: list[Record] = []
        self.running: dict[str, StepCall] = {}
        self.ends: list[tuple[float, int, str]] = []
        self.due: deque[tuple[str, Kind]] = deque()  # outcomes that are not delivered yet
        self.ticks = itertools.count()
        self.released = False
        self.at = 0.0

    def obey(self) -> None:
        at_once: list[str] = []
        for command in self.kernel.take_commands():
            if isinstance(command, Start):
                call = command.call
                assert isinstance(call, StepCall)
                self.running[command.path] = call
                if call.seconds:
                    heapq.heappush(self.ends, (self.at + call.seconds, next(self.ticks), command.path))
                else:  # started when all are blocked: after what was cancelled before
                    at_once.append(command.path)
            elif not self.running[command.path].stubborn:
                for entry in [entry for entry in self.due if entry[0] == command.path]:
                    self.due.remove(entry)
                self.due.append((command.path, Kind.STOPPED))
        for path in at_once:
            self.ended(path)

    def ended(self, path: str) -> None:
        self.due.append((path, Kind.FAILED if self.running[path].fails else Kind.DONE))

    def record(self, record: Record) -> None:
        self.journal.append(record)
        self.kernel.deliver(record)
        self.obey()

    def hand_out(self) -> None:
        while self.due:
            path, kind = self.due.popleft()
            call = self.running.pop(path)
            self.record(Record(at=self.at, kind=kind, path=path, name=call.name))

    def run(self) -> None:
        self.obey()
        while True:
            self.hand_out()
            if self.kernel.result is not None:
                return
            at = min(self.kernel.next_due(), self.ends[0][0] if self.ends else inf)
            if at == inf:
                if self.released:
                    return
                self.released = True
                self.at = STUCK_AT
                self.journal.append(Record(at=STUCK_AT, kind=Kind.CLOCK, name="release"))
                self.interpreter.release()
                self.kernel.deliver(self.journal[-1])
                self.obey()
                continue
            self.at = at
            stopping = {path for path, kind in self.due if kind is Kind.STOPPED}
            while self.ends and self.ends[0][0] <= at:
                path = heapq.heappop(self.ends)[2]
                if path in self.running and path not in stopping:
                    self.ended(path)
            if self.kernel.next_due() <= at:
                self.record(Record(at=at, kind=Kind.CLOCK))


def outcome_of(kernel: Kernel, interpreter: Interpreter) -> tuple:
    return label(kernel.result.error) if kernel.result else "stuck", interpreter.frozen()


def on_kernel(program: list) -> tuple[tuple, list[Record]]:
    """Outcome and trace, and the journal."""
    kernel = Kernel()
    interpreter = Interpreter(KernelSide(kernel))
    executor = Executor(kernel, interpreter)
    kernel.start(interpreter.main(program))
    executor.run()
    seen = outcome_of(kernel, interpreter)
    if kernel.result is None:
        kernel.discard()
        interpreter.trace.clear()
        return ("stuck", ()), executor.journal
    return seen, executor.journal


def replayed(program: list, journal: list[Record]) -> tuple:
    kernel = Kernel()
    interpreter = Interpreter(KernelSide(kernel))

    kernel.start(interpreter.main(program))
    for record in journal:
        if record.name == "release":
            interpreter.release()
        kernel.take_commands()
        kernel.deliver(record)
    if kernel.result is None:
        kernel.discard()
        return "stuck", ()
    return outcome_of(kernel, interpreter)


def compare(seed: int, *, ties: bool) -> tuple[str, int, bool]:
    """What is wrong ('' when nothing), the number of records, whether Trio itself gave more than one result."""
    program = Programs(seed, ties=ties).body(4)
    seen, journal = on_kernel(program)
    if replayed(program, journal) != seen:
        return "replay differs", len(journal), False
    trios: set[tuple] = set()
    for order in range(MAX_ORDERS):
        outcome = on_trio(program, order)
        trios.add(("stuck", ()) if outcome[0] == "Cancelled" and seen[0] == "stuck" else outcome)
        if seen in trios:
            return "", len(journal), len(trios) > 1
    return f"none of Trio's {len(trios)} results", len(journal), len(trios) > 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=int)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--ties", action="store_true")
    options = parser.parse_args()
    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True
    started, wrong, count = time.monotonic(), [], Counter()
    for seed in range(options.first, options.first + options.programs):
        problem, records, several = compare(seed, ties=options.ties)
        count["records"] += records
        count["programs"] += 1
        count["with several results on Trio before ours came"] += several
        if problem:
            wrong.append(f"seed {seed}: {problem}")
            print(wrong[-1], flush=True)
    print(f"{dict(count)}, wrong: {len(wrong)}, {time.monotonic() - started:.0f} s")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
