"""Random programs on the kernel and on Trio itself; what each branch saw, and when, must be among Trio's results.

`python -m tests.kernel.oracle --count 10000 --seed 0 [--ties]` runs many, with messages, context variables and errors.

Both sides play the same executor: a step starts when all branches are blocked; outcomes and ends of cancelled steps
come one at a time, each when all branches are blocked again, as the kernel takes one record at a time.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import sys
import time
from collections import Counter, defaultdict, deque
from math import inf

import msgspec
import outcome
import trio
import trio.testing

from penstock.kernel.drive import Kernel
from penstock.kernel.errors import CallRefusal, Cancelled
from penstock.kernel.local import Event, Semaphore, open_channel
from penstock.kernel.nursery import Nursery
from penstock.kernel.operation import REJECTS, CallOperation, Outcome, Receive, Sleep, Start, block
from penstock.kernel.record import RULES, UPDATE_RULES, JournalKind, Record
from penstock.kernel.scope import CancelScope
from tests.kernel.programs import Act, Ask, Failure, Interpreter, Program, Programs, fits, label

STUCK_AT = 2_000.0  # when what waits for an event that nobody sets is released
MAX_ORDERS = (
    5_000  # of Trio's shuffles tried for one program; with 200, one tie program of some 25,000 had not come yet
)


SHOWN_MAX = 20
KINDS = {"message": "messages", "look": "variables", "with": "variables", "raise": "errors", "try": "errors"}


async def wait_among(waiting: dict[trio.lowlevel.Task, object], beside: object = None) -> object:
    """Until another task wakes it, with a value; cancelled it is no longer among them."""
    task = trio.lowlevel.current_task()
    waiting[task] = beside

    def abort(_) -> trio.lowlevel.Abort:
        del waiting[task]
        return trio.lowlevel.Abort.SUCCEEDED

    return await trio.lowlevel.wait_task_rescheduled(abort)


def wake_first(waiting: dict[trio.lowlevel.Task, object], value: object = None) -> object:
    """What stood beside it."""
    task = next(iter(waiting))
    trio.lowlevel.reschedule(task, outcome.Value(value))
    return waiting.pop(task)


class Queue:
    """On Trio: who takes waits, looks for a cancel, and takes without a checkpoint after it."""

    def __init__(self) -> None:
        self.items: deque = deque()
        self.waiting: dict[trio.lowlevel.Task, object] = {}
        self.promised = 0

    def has_free(self) -> bool:
        return len(self.items) > self.promised

    def pop(self):
        return self.items.popleft()

    def put(self, item) -> None:
        self.items.append(item)
        self.offer()

    def offer(self) -> None:
        while self.waiting and self.has_free():
            self.promise()
            wake_first(self.waiting)

    def promise(self) -> None:
        self.promised += 1

    async def take(self):
        at_once = self.has_free()
        if at_once:
            self.promise()
        else:
            error = await wait_among(self.waiting)
            if isinstance(error, Exception):
                raise error
        if at_once:
            await trio.lowlevel.cancel_shielded_checkpoint()
        self.promised -= 1
        try:
            if trio.current_effective_deadline() > -inf:
                return self.pop()
        finally:
            self.offer()
        return await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.SUCCEEDED)


class Mail(Queue):
    """The messages of a name: who takes waits for one that fits. Written for clarity: all is looked at each time."""

    def __init__(self) -> None:
        super().__init__()
        self.woken: list[str] = []  # the types of those that were woken and have had no turn

    def left(self) -> list:
        """What is there when all that were woken have taken theirs."""
        items = list(self.items)
        for type_ in self.woken:
            items.remove(next(item for item in items if accepts(type_, item)))
        return items

    def offer(self) -> None:
        for task, beside in list(self.waiting.items()):
            type_ = str(beside)
            if any(accepts(type_, item) for item in self.left()):
                self.woken.append(type_)
                del self.waiting[task]
                trio.lowlevel.reschedule(task, outcome.Value(None))

    def act(self, act: Act) -> None:
        """An operator's, if something fits nobody who waits."""
        left = self.left()
        if self.waiting and left:
            index = self.items.index(left[0])
            del self.items[index]
            if act.value is not None:
                self.items.insert(index, act.value)
            self.offer()

    async def receive(self, type_: str):
        while True:
            if any(accepts(type_, item) for item in self.left()):
                self.woken.append(type_)
                await trio.lowlevel.cancel_shielded_checkpoint()
            else:
                await wait_among(self.waiting, type_)
            self.woken.remove(type_)
            if trio.current_effective_deadline() == -inf:
                self.offer()
                return await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.SUCCEEDED)
            found = next((item for item in self.items if accepts(type_, item)), None)
            if found is not None:  # else another one, woken later, was first
                self.items.remove(found)
                self.offer()
                if not fits(type_, found):
                    raise Failure(f"bad {found}")
                return found


def accepts(type_: str, item: object) -> bool:
    return type_.endswith("!") or fits(type_, item)


class Permits(Queue):
    """A semaphore."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.items += [None] * count

    async def acquire(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        await self.take()

    def release(self) -> None:
        self.put(None)

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_) -> None:
        self.release()


class Items(Queue):
    """A memory channel with one end of each kind; it is closed as a whole."""

    def __init__(self, room: float) -> None:
        super().__init__()
        self.room, self.senders, self.is_closed = room, {}, False

    def has_free(self) -> bool:
        return len(self.items) + len(self.senders) > self.promised

    def promise(self) -> None:
        super().promise()
        if len(self.items) < self.promised and self.senders:
            self.items.append(wake_first(self.senders))

    def pop(self):
        if self.is_closed:
            raise trio.ClosedResourceError
        return super().pop()

    async def receive(self):
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.is_closed:
            raise trio.ClosedResourceError
        return await self.take()

    async def send(self, item) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.is_closed:
            raise trio.ClosedResourceError
        if self.waiting or (not self.senders and len(self.items) - self.promised < self.room):
            self.put(item)
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        if await wait_among(self.senders, item):
            raise trio.ClosedResourceError

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.items.clear()
            while self.senders:
                wake_first(self.senders, "closed")
            while self.waiting:
                wake_first(self.waiting, trio.EndOfChannel())


class TrioSide:
    """Trio with a virtual clock, and an executor that hands outcomes out one by one."""

    Event, Semaphore, sleep, open_nursery = trio.Event, Permits, staticmethod(trio.sleep), trio.open_nursery
    now = staticmethod(trio.current_time)

    def __init__(self, outside: trio.Nursery) -> None:
        self.outside = outside
        self.mail: defaultdict[str, Mail] = defaultdict(Mail)
        self.due: deque[trio.Event] = deque()
        self.some = trio.Event()
        self.handlers: trio.Nursery | None = None  # of updates, until the body has ended
        self.interpreter: Interpreter | None = None

    def serve(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter

    def ask(self, ask: Ask) -> None:
        """Its handler begins, beside the body, unless the validator refuses it."""
        if self.handlers is not None and self.interpreter is not None and not self.interpreter.refuses(ask):
            self.handlers.start_soon(self.answer, self.interpreter, ask)

    @staticmethod
    async def answer(interpreter: Interpreter, ask: Ask) -> None:
        try:
            await interpreter.handle(ask)
        except trio.Cancelled:
            raise
        except BaseException as error:  # the caller's
            if isinstance(error, BaseExceptionGroup) and error.subgroup(trio.Cancelled):
                raise error.subgroup(trio.Cancelled) from None

    @staticmethod
    def open_memory_channel(room: int):
        items = Items(room)
        return items, items

    def receive(self, name: str, type_: str):
        return self.mail[name].receive(type_)

    def send_now(self, name: str, value: object) -> None:
        self.mail[name].put(value)

    async def send_all(self, messages: list) -> None:
        for at, name, value in messages:
            await trio.sleep_until(at)
            if isinstance(value, Act):
                self.mail[name].act(value)
            elif isinstance(value, Ask):
                self.ask(value)
            else:
                self.mail[name].put(value)

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


def on_trio(program: Program, seed: int) -> tuple:
    """Outcome and trace; the seed decides how Trio shuffles."""
    trio._core._run._r.seed(seed)

    async def run() -> tuple:
        ended: BaseException | None = None

        async def guarded() -> None:
            nonlocal ended
            async with trio.open_nursery() as side.handlers:
                try:
                    await interpreter.main(program.body)
                except BaseException as error:
                    ended = error
                    if isinstance(error, Exception):
                        side.handlers.cancel_scope.cancel()
                side.handlers = None
            outside.cancel_scope.cancel()

        async with trio.open_nursery() as outside:
            side = TrioSide(outside)
            interpreter = Interpreter(side)
            outside.start_soon(guarded)
            outside.start_soon(side.hand_out)
            outside.start_soon(side.send_all, program.messages)
            await trio.sleep(STUCK_AT)
            interpreter.release()
            await trio.sleep(STUCK_AT)
            raise AssertionError("a program waits for ever")
        return label(ended), interpreter.frozen()

    return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


class StepCall:
    """A step of a program."""

    def __init__(self, i: int, seconds: float, fails: bool, stubborn: bool) -> None:
        self.i, self.seconds, self.fails, self.stubborn = i, seconds, fails, stubborn
        self.name, self.digest = f"step {i}", None

    def digest_by(self, rules: int) -> int | None:
        return self.digest

    def outcome(self, record: Record) -> Outcome:
        if record.kind is JournalKind.DONE:
            return Outcome()
        return Outcome(error=Cancelled() if record.kind is JournalKind.STOPPED else Failure(self.name))


class KernelSide:
    """The kernel's own names, as Trio's."""

    Event, Semaphore, open_memory_channel = Event, Semaphore, staticmethod(open_channel)

    def __init__(self, kernel: Kernel, program: Program) -> None:
        self.kernel = kernel
        self.asks = {value.number: value for _, _, value in program.messages if isinstance(value, Ask)}

    def now(self) -> float:
        return self.kernel.now

    def serve(self, interpreter: Interpreter) -> None:
        def bind(arguments: str, *, check: bool):
            ask = self.asks[int(arguments)]
            if check and interpreter.refuses(ask):
                raise CallRefusal("an event is set")
            return lambda: interpreter.handle(ask)

        self.kernel.need_updates().register("call", bind)

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

    def receive(self, name: str, type_: str):
        def outcome(record: Record) -> Outcome:
            if fits(type_, record.payload):
                return Outcome(record.payload)
            return Outcome(error=Failure(f"bad {record.payload}"))

        return block(Receive(name, outcome, raises=type_.endswith("!")))

    def send_now(self, name: str, value: str) -> None:
        self.kernel.mailbox(name).put(Record(0, JournalKind.MESSAGE, name=name, payload=value), self.kernel)

    def step(self, i: int, seconds: float, fails: bool, stubborn: bool):
        return block(CallOperation(StepCall(i, seconds, fails, stubborn)))


class Executor:
    """Runs a kernel's steps on a virtual clock; keeps the journal."""

    def __init__(self, kernel: Kernel, interpreter: Interpreter, messages: list) -> None:
        self.kernel, self.interpreter = kernel, interpreter
        self.messages = deque(messages)
        self.journal: list[Record] = []
        self.running: dict[str, StepCall] = {}
        self.ends: list[tuple[float, int, str]] = []
        self.due: deque[tuple[str, JournalKind]] = deque()  # outcomes that are not delivered yet
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
                self.due.append((command.path, JournalKind.STOPPED))
        for path in at_once:
            self.ended(path)

    def ended(self, path: str) -> None:
        self.due.append((path, JournalKind.FAILED if self.running[path].fails else JournalKind.DONE))

    def record(self, record: Record) -> None:
        record = msgspec.structs.replace(record, pos=self.journal[-1].pos + 1 if self.journal else 1)
        self.journal.append(record)
        self.kernel.deliver(record)
        self.obey()

    def hand_out(self) -> None:
        self.settle()
        while self.due:
            path, kind = self.due.popleft()
            call = self.running.pop(path)
            self.record(Record(at=self.at, kind=kind, path=path, name=call.name))
            self.settle()

    def settle(self) -> None:
        """Checks calls of updates, and writes down what handlers gave."""
        updates = self.kernel.updates
        if updates is None:
            return
        while True:
            for asked in updates.callable():
                if updates.problem_of(asked) is None:
                    self.record(
                        Record(self.at, JournalKind.ACCEPTED, asked.path, "call", updates.as_of, rules=UPDATE_RULES)
                    )
                else:
                    self.kernel.deliver(Record(self.at, JournalKind.REFUSED, asked.path, rules=UPDATE_RULES))
                    self.journal = [each for each in self.journal if each.path != asked.path]
                break
            else:
                if not updates.answers:
                    return
                self.record(
                    Record(self.at, JournalKind.ANSWERED, next(iter(updates.answers)), "call", rules=UPDATE_RULES)
                )

    def act(self, name: str, act: Act) -> None:
        """An operator's, where a message is rejected."""
        mailbox = self.kernel.mailbox(name)
        if mailbox.rejected:
            path, payload = f"{mailbox.free[0].record.pos:x}", None if act.value is None else str(act.value)
            self.record(Record(self.at, JournalKind.DROPPED, path, name, payload))

    def run(self) -> None:
        self.obey()
        while True:
            self.hand_out()
            if self.kernel.result is not None:
                return
            at = min(
                self.kernel.next_due(),
                self.ends[0][0] if self.ends else inf,
                self.messages[0][0] if self.messages else inf,
            )
            if at == inf:
                if self.released:
                    return
                self.released = True
                self.at = STUCK_AT
                pos = self.journal[-1].pos + 1 if self.journal else 1
                released = Record(at=STUCK_AT, kind=JournalKind.CLOCK, name="release", pos=pos)
                self.journal.append(released)
                self.interpreter.release()
                self.kernel.deliver(self.journal[-1])
                self.obey()
                continue
            self.at = at
            stopping = {path for path, kind in self.due if kind is JournalKind.STOPPED}
            while self.ends and self.ends[0][0] <= at:
                path = heapq.heappop(self.ends)[2]
                if path in self.running and path not in stopping:
                    self.ended(path)
            is_said = bool(self.messages) and self.messages[0][0] <= at
            if is_said and isinstance(self.messages[0][2], Act) and self.kernel.next_due() <= at:
                is_said = False  # an operator goes by what the run says, and a deadline that is over counts there
            if is_said:  # nobody had the time to note that a sleep is over
                _, name, value = self.messages.popleft()
                if isinstance(value, Act):
                    self.act(name, value)
                elif isinstance(value, Ask):
                    self.record(Record(at, JournalKind.ASKED, f"u{value.number}", "call", str(value.number)))
                    self.settle()
                else:
                    self.record(Record(at=at, kind=JournalKind.MESSAGE, name=name, payload=str(value)))
            elif self.kernel.next_due() <= at:
                self.record(Record(at=at, kind=JournalKind.CLOCK))


def outcome_of(kernel: Kernel, interpreter: Interpreter) -> tuple:
    return label(kernel.result.error) if kernel.result else "stuck", interpreter.frozen()


def on_kernel(program: Program, rules: int = RULES) -> tuple[tuple, list[Record]]:
    """Outcome and trace, and the journal."""
    kernel = Kernel(rules=rules)
    interpreter = Interpreter(KernelSide(kernel, program))
    executor = Executor(kernel, interpreter, program.messages)
    kernel.start(interpreter.main(program.body))
    executor.run()
    seen = outcome_of(kernel, interpreter)
    if kernel.result is None:
        kernel.discard()
        interpreter.trace.clear()
        return ("stuck", ()), executor.journal
    return seen, executor.journal


def replayed(program: Program, journal: list[Record], rules: int = RULES) -> tuple:
    kernel = Kernel(rules=rules)
    interpreter = Interpreter(KernelSide(kernel, program))

    kernel.start(interpreter.main(program.body))
    for record in journal:
        if record.name == "release":
            interpreter.release()
        kernel.take_commands()
        kernel.deliver(record)
    if kernel.result is None:
        kernel.discard()
        return "stuck", ()
    return outcome_of(kernel, interpreter)


def compare(seed: int, *, ties: bool, rules: int = RULES, orders: int = MAX_ORDERS) -> tuple[str, int, bool]:
    """What is wrong ('' when nothing), the number of records, whether Trio itself gave more than one result."""
    program = Programs(seed, ties=ties, misfits=rules >= REJECTS).program()
    seen, journal = on_kernel(program, rules)
    if replayed(program, journal, rules) != seen:
        return "replay differs", len(journal), False
    trios: set[tuple] = set()
    for order in range(orders):
        found = on_trio(program, order)
        trios.add(("stuck", ()) if found[0] == "Cancelled" and seen[0] == "stuck" else found)
        if seen in trios:
            return "", len(journal), len(trios) > 1
    return f"none of Trio's {len(trios)} results", len(journal), len(trios) > 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="so many programs")
    parser.add_argument("--seed", type=int, default=0, help="of the first one; the others have the next ones")
    parser.add_argument("--ties", action="store_true", help="many things happen at the same moment")
    options = parser.parse_args()
    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True
    started, wrong, count = time.monotonic(), 0, Counter()
    for seed in range(options.seed, options.seed + options.count):
        problem, records, several = compare(seed, ties=options.ties)
        count["records"] += records
        count["programs"] += 1
        count["with several results on Trio before ours came"] += several
        program = Programs(seed, ties=options.ties).program()
        count.update(f"with {kind}" for kind in kinds_of(program.body))
        count["with calls"] += any(isinstance(value, Ask) for _, _, value in program.messages)
        if problem:
            wrong += 1
            if wrong <= SHOWN_MAX:
                print(f"seed {seed}: {problem}", flush=True)
    print(f"{dict(count)}, wrong: {wrong}, {time.monotonic() - started:.0f} s")
    return bool(wrong)


def kinds_of(value: object) -> set[str]:
    """Of what the issue of a program is about: messages, variables, errors."""
    found: set[str] = set()
    if isinstance(value, tuple | list):
        if isinstance(value, tuple) and value:
            found |= {KINDS[value[0]]} if value[0] in KINDS else set()
            found |= {"errors"} if value[0] == "step" and value[3] else set()
        for each in value:
            found |= kinds_of(each)
    return found


if __name__ == "__main__":
    sys.exit(main())
