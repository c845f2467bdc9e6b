"""Engines, workers, users and operators of a simulation, each with bad luck of every kind.

Engines take what waits as one batch, at most one item per instance, as the group-commit queues do; a batch takes time,
may be rolled back and repeated, committed in doubt and looked up, or die with its engine. Nobody waits for an answer
for ever: whoever gets none asks again, at another engine.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from penstock.core.graph.definition import StepType
from penstock.core.rules.fencing import CallKind, FenceDecision, FenceRequest
from penstock.core.rules.state import InstanceStatus, TokenState
from penstock.testing.random_definitions import random_output
from tests.core.machine import START
from tests.simulation.history import History, Job
from tests.simulation.queue import Queue
from tests.simulation.world import World

BATCH_MAX = 8
BATCH_S = (0.01, 6.0)
"""Slow, so that much waits meanwhile and is asked again."""
TRIES_MAX = 6
RETRIES_MAX = 2
EVENTS_MAX = 60
"""Endless workflows are cancelled after so many."""


class Item:
    """Something to do to one instance, in one transaction."""

    def __init__(self, history: History, do: Callable[[], Any], answered: Callable[[Any], None]) -> None:
        self.history = history
        self.do = do
        self.answered = answered
        self.result: Any = None
        self.committed = False


class Engine:
    """A queue and a flusher."""

    def __init__(self, world: World, seen: Counter[str]) -> None:
        self._world = world
        self._seen = seen
        self._queue: deque[Item] = deque()
        self._busy = False

    def submit(self, item: Item) -> None:
        self._queue.append(item)
        self._flush()

    def _flush(self) -> None:
        if self._busy or not self._queue:
            return
        self._busy = True
        batch: dict[int, Item] = {}
        later: list[Item] = []
        while self._queue and len(batch) < BATCH_MAX:
            item = self._queue.popleft()
            if id(item.history) in batch:
                later.append(item)
            else:
                batch[id(item.history)] = item
        self._queue.extendleft(reversed(later))
        self._seen[f"batches of {'one' if len(batch) == 1 else 'several'}"] += 1
        self._world.after(self._world.between(*BATCH_S), lambda: self._end(list(batch.values())))

    def _end(self, batch: list[Item]) -> None:
        """The transaction's end: all of its items are applied in one moment, or none."""
        luck = self._world.chance.random()
        if luck < 0.05:
            self._seen["rolled back and repeated"] += 1
            self._world.after(self._world.between(0.01, 0.5), lambda: self._end(batch))
            return
        if luck < 0.08:
            self._seen["ended inside the COMMIT, in doubt"] += 1
            if self._world.one_in(2):
                self._commit(batch)
            self._world.after(self._world.between(0.01, 1), lambda: self._find(batch))
            return
        if luck < 0.1:  # with all that waited here; half of the batches were committed
            self._seen["engines killed"] += 1
            if self._world.one_in(2):
                self._commit(batch)
            self._queue.clear()
        else:
            self._commit(batch)
            if luck < 0.15:
                self._seen["committed in doubt, looked up"] += 1
                self._world.after(self._world.between(0.01, 1), lambda: self._answer(batch))
                return
            for item in batch:
                item.answered(item.result)
        self._busy = False
        self._flush()

    def _commit(self, batch: list[Item]) -> None:
        for item in batch:
            assert not item.committed, "applied twice"
            item.history.at(self._world.now)
            item.result, item.committed = item.do(), True

    def _find(self, batch: list[Item]) -> None:
        """What became of a transaction that is in doubt; it is repeated only if it was not committed."""
        if batch[0].committed:
            self._answer(batch)
        else:
            self._end(batch)

    def _answer(self, batch: list[Item]) -> None:
        for item in batch:
            item.answered(item.result)
        self._busy = False
        self._flush()


class Crowd:
    """Everybody around one instance."""

    def __init__(self, world: World, engines: list[Engine], queue: Queue, history: History, seen: Counter[str]) -> None:
        self._world = world
        self._engines = engines
        self._queue = queue
        self._history = history
        self._seen = seen
        self._watched: set[tuple[int, ...]] = set()

    def begin(self) -> None:
        self._scan()
        if self._world.one_in(12):
            self._world.after(self._world.between(0, 90_000), lambda: self._ask("cancel", self._history.cancel))
        waits = [step.id for step in self._history.machine.definition.steps if step.type is StepType.WAIT]
        if waits and self._world.one_in(4):
            step, output = self._world.chance.choice(waits), random_output(self._world.chance)
            self._world.after(
                self._world.between(0, 90_000),
                lambda: self._ask("keep signal", lambda: self._history.keep_signal(step, output)),
            )

    # -- asking engines

    def _ask(self, what: str, do: Callable[[], Any], tries: int = TRIES_MAX) -> None:
        """Have it done; without an answer in time once more, elsewhere, a bounded number of times."""
        answers: list[Any] = []

        def answered(result: Any) -> None:
            answers.append(result)
            self._seen[f"{what}: {_word(result)}"] += 1
            self._scan()

        self._world.chance.choice(self._engines).submit(Item(self._history, do, answered))

        def again() -> None:
            if not answers and tries > 1:
                self._seen["asked again"] += 1
                self._ask(what, do, tries - 1)
            elif not answers:
                self._scan()

        self._world.after(5, again)

    # -- noticing what there is to do; whoever notices may be late, or the second

    def _scan(self) -> None:
        history, world = self._history, self._world
        if history.status is InstanceStatus.FAILED and history.retries < RETRIES_MAX:
            if self._once(history.retries, -9) and not world.one_in(3):
                world.after(world.between(0, 60), lambda: self._ask("retry", history.retry))
            return
        if history.status is not InstanceStatus.ACTIVE:
            return
        if history.events > EVENTS_MAX:
            if self._once(-8):
                self._ask("cancel", history.cancel)
            return
        for token in history.ready():
            if self._once(token.id, token.seq, token.attempt, token.expiries, token.failures):
                world.after(world.between(0, 2), self._poll)
        for timer, armed in history.machine.timers.items():
            if self._once(*timer, int(armed.fire_at.timestamp())):
                due_s = (armed.fire_at - START).total_seconds() - world.now
                for _ in range(1 + world.one_in(3)):  # several engines see it
                    world.after(due_s + world.between(0, 5), lambda timer=timer: self._fire(timer))
        for token in history.machine.tokens.values():
            job = (token.id, token.seq)
            if token.state is TokenState.PARKED and self._once(*job):
                world.after(world.between(0, 200_000), lambda job=job: self._finish(job))
            elif token.state is TokenState.LOCKED and token.lease_until is not None:
                self._watch(job, token.attempt, (token.lease_until - START).total_seconds())

    def _watch(self, job: Job, attempt: int, until_s: float) -> None:
        """As the scan finds leases that nobody watches."""
        if self._once(*job, attempt, int(until_s * 1000)):
            self._world.after(until_s - self._world.now, lambda: self._sweep(job, attempt))

    def _once(self, *about: int) -> bool:
        """True the first time."""
        new = about not in self._watched
        self._watched.add(about)
        return new

    def _fire(self, timer: tuple[int, int, int]) -> None:
        """A timer stays where it is until it has fired: who was refused for an outage looks again."""
        self._ask("fire", lambda: self._history.fire(timer))

        def still_there() -> None:
            if timer in self._history.machine.timers and self._history.status is InstanceStatus.ACTIVE:
                self._fire(timer)

        self._world.after(40, still_there)

    def _finish(self, job: Job) -> None:
        output = random_output(self._world.chance)
        self._ask("user", lambda: self._history.finish_task(job, output))

        def still_open() -> None:
            token = self._history.token(job)
            if token is not None and self._history.status is InstanceStatus.ACTIVE:
                self._finish(job)

        self._world.after(40, still_open)

    # -- workers

    def _poll(self) -> None:
        """A worker claims the oldest job; a claim whose answer is lost is a lease nobody knows of."""
        history, world = self._history, self._world
        ready = history.ready()
        if history.status is not InstanceStatus.ACTIVE or not ready:
            return
        history.at(world.now)
        worker = f"w{world.chance.randrange(4)}"
        lease_s = world.between(1, 10)
        token = history.claim(worker, lease_s)
        if token is None:
            self._queue.wait(self._poll)
            return
        job, attempt = (token.id, token.seq), token.attempt
        world.after(lease_s, lambda: self._sweep(job, attempt))
        if world.one_in(25):
            self._seen["claims lost"] += 1
            return
        world.after(world.between(0, lease_s * 1.5), lambda: self._work(worker, job, attempt))

    def _sweep(self, job: Job, attempt: int) -> None:
        """The lease service of any engine: late, and again when a heartbeat extended the lease."""
        history = self._history
        history.at(self._world.now)
        if history.expire(job, attempt):
            self._seen["leases ended"] += 1
        token = history.token(job)
        if token is not None and token.state is TokenState.LOCKED and token.attempt == attempt:
            self._world.after(self._world.between(0.2, 3), lambda: self._sweep(job, attempt))
        self._scan()

    def _work(self, worker: str, job: Job, attempt: int) -> None:
        world = self._world
        if world.one_in(12):
            self._seen["workers killed"] += 1
            return
        self._history.done.add((job, worker))
        named = attempt if world.chance.random() < 0.6 else None
        kind = world.chance.choices((CallKind.COMPLETE, CallKind.FAIL, CallKind.HEARTBEAT), (6, 3, 1))[0]
        retryable = not world.one_in(5)
        output = random_output(world.chance)
        self._report(FenceRequest(kind, worker, named), job, output, retryable)
        if kind is CallKind.HEARTBEAT:
            world.after(world.between(0, 8), lambda: self._work(worker, job, attempt))
        if world.one_in(4):
            self._seen["repeats"] += 1
            world.after(
                world.between(0, 20), lambda: self._report(FenceRequest(kind, worker, named), job, output, retryable)
            )
        if world.one_in(8):
            self._seen["strangers"] += 1
            other = world.chance.choice((CallKind.COMPLETE, CallKind.FAIL))
            world.after(
                world.between(0, 20),
                lambda: self._report(
                    FenceRequest(other, "stranger", world.chance.choice((None, 77))), job, {"n": 99}, True
                ),
            )

    def _report(self, call: FenceRequest, job: Job, output: dict[str, object], retryable: bool) -> None:
        self._ask(call.kind.value, lambda: self._history.call(call, job, output, retryable=retryable))


def _word(result: Any) -> str:
    if isinstance(result, FenceDecision):
        return result.value
    return "done" if result else "nothing to do"
