"""Two engines on one database, two things at once, many rounds: one of the two orders must come out, nothing between.

Every race says what its instance may look like afterwards; the invariants of the whole database are checked by the
fixture. Rounds run several at a time, so that batches hold several instances and lock more than one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
import trio

from penstock.engine.advance.commands import FoldCommand, TimerCommand
from penstock.errors import PenstockError
from penstock.testing.definitions import Json, definition, end, timer
from penstock.wire.model import Job
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number
from tests.shapes import choose, gateway, joining, task, user, wait
from tests.shares import mostly_slow
from tests.waiting import wait_until

ROUNDS = 24
AT_ONCE = 6

Path = tuple[tuple[str, str], ...]


class Round(NamedTuple):
    """One instance, and the jobs of it that were polled for the race, by step."""

    instance: str
    jobs: dict[str, Job]


Action = Callable[[Driver, Round], Awaitable[Any]]


async def settle(action: Action, driver: Driver, about: Round, answers: list[str]) -> None:
    for _ in range(random.randrange(40)):  # a head start now for one, now for the other
        await trio.lowlevel.checkpoint()
    try:
        await action(driver, about)
    except PenstockError as error:
        answers.append(error.code)
    else:
        answers.append("ok")


# -- what can be done


def complete(step: str, **fields: Any) -> Action:
    return lambda driver, about: driver.complete(about.jobs[step], {"by": step}, **fields)


def fail(step: str, **fields: Any) -> Action:
    return lambda driver, about: driver.fail(about.jobs[step], **fields)


def heartbeat(step: str) -> Action:
    return lambda driver, about: driver.heartbeat(about.jobs[step], checkpoint=b"1")


def signal(step: str, **fields: Any) -> Action:
    return lambda driver, about: driver.signal(about.instance, step, {"by": "signal"}, **fields)


def finish(step: str) -> Action:
    return lambda driver, about: driver.finish_task(about.instance, step, {"by": "user"})


async def cancel(driver: Driver, about: Round) -> None:
    await driver.cancel(about.instance, "raced")


async def retry(driver: Driver, about: Round) -> None:
    await driver.retry(about.instance)


async def fire(driver: Driver, about: Round) -> None:
    """Fire every timer of the instance, as one look of the timers' loop does."""
    timers = driver.rows("SELECT token_id, seq, index FROM timer WHERE instance_id = %s", number(about.instance))
    async with trio.open_nursery() as nursery:
        for found in timers:
            nursery.start_soon(driver.engine.full_path.submit, TimerCommand(number(about.instance), found))


async def fold(driver: Driver, about: Round) -> None:
    await driver.engine.full_path.submit(FoldCommand(number(about.instance), lambda: None))


async def expire(driver: Driver, about: Round, limit: int = 10) -> None:
    instance = number(about.instance)
    leased = driver.rows("SELECT id, seq, attempt FROM token WHERE state = 1 AND instance_id = %s", instance)
    if leased:
        driver.engine.leases.expiry_limit = limit
        await driver.engine.leases.expire(leased)


async def bury(driver: Driver, about: Round) -> None:
    await expire(driver, about, limit=1)


def claim(*types: str) -> Action:
    async def poll(driver: Driver, about: Round) -> None:
        await driver.poll(*types, worker="claimer", n=1)

    return poll


# -- the races


LATE = "PT1H"
INTERRUPTED = definition(
    task("x", "next", retryCount=1, boundaryEvents=[timer("late", LATE, interrupting=True)]),
    user("next"),
    user("late"),
    end(),
)
REMINDED = definition(task("x", "next", boundaryEvents=[timer("side", LATE)]), user("next"), user("side", None), end())
PLAIN = definition(task("x", "y", retryCount=1), task("y"), end())
WAITING = definition(
    wait("w", "next", boundaryEvents=[timer("late", LATE, interrupting=True)]), user("next"), user("late"), end()
)
SLEEPING = definition(wait("w", "next", duration=LATE), user("next"), end())
ASKED = definition(
    user("u", "next", boundaryEvents=[timer("late", LATE, interrupting=True)]), user("next"), user("late"), end()
)
FORKED = definition(
    gateway("fork", "a", "b"), task("a", "join"), task("b", "join"), joining("join", "last"), user("last"), end()
)
LONG_FORKED = definition(
    gateway("fork", "a", "b"),
    task("a", "a2"),
    user("a2", "join"),
    task("b", "b2"),
    user("b2", "join"),
    joining(),
    end(),
)
ENDING = definition(
    gateway("fork", "a", "b"), task("a"), task("b", "join"), joining("join", "last"), user("last"), end()
)


class Race(NamedTuple):
    body: Json
    jobs: tuple[str, ...]
    left: Action
    right: Action
    outcomes: list[tuple[str, Path]]
    later_s: float = 0  # let so much time pass before the race


def path(*parts: str) -> Path:
    """``x:C`` is step x, completed; R running, F failed, S skipped."""
    words = {"C": "COMPLETED", "R": "RUNNING", "F": "FAILED", "S": "SKIPPED"}
    return tuple((part.split(":")[0], words[part.split(":")[1]]) for part in parts)


ACTIVE, WAITS, DONE, FAILED, CANCELLED = "ACTIVE", "WAITING", "COMPLETED", "FAILED", "CANCELLED"
NEXT = (WAITS, path("x:C", "next:R"))
LATE_ONE = (WAITS, path("x:F", "late:R"))
HOUR = 3601

RACES: dict[str, Race] = {
    "complete/complete": Race(PLAIN, ("x",), complete("x"), complete("x"), [(ACTIVE, path("x:C", "y:R"))]),
    "complete/complete in the full path": Race(INTERRUPTED, ("x",), complete("x"), complete("x"), [NEXT]),
    "complete/timer": Race(INTERRUPTED, ("x",), complete("x"), fire, [NEXT, LATE_ONE], HOUR),
    "complete/reminder": Race(
        REMINDED, ("x",), complete("x"), fire, [NEXT, (WAITS, path("x:C", "side:R", "next:R"))], HOUR
    ),
    "complete/cancel": Race(
        PLAIN, ("x",), complete("x"), cancel, [(CANCELLED, path("x:C", "y:S")), (CANCELLED, path("x:S"))]
    ),
    "complete/cancel in the full path": Race(
        INTERRUPTED, ("x",), complete("x"), cancel, [(CANCELLED, path("x:C", "next:S")), (CANCELLED, path("x:S"))]
    ),
    "complete/fail": Race(
        PLAIN, ("x",), complete("x"), fail("x"), [(ACTIVE, path("x:C", "y:R")), (ACTIVE, path("x:R"))]
    ),
    "complete/fail for good": Race(
        PLAIN, ("x",), complete("x"), fail("x", retryable=False), [(ACTIVE, path("x:C", "y:R")), (FAILED, path("x:F"))]
    ),
    "complete/expiry": Race(PLAIN, ("x",), complete("x"), expire, [(ACTIVE, path("x:C", "y:R"))], 31),
    "complete/dead letter": Race(
        PLAIN, ("x",), complete("x"), bury, [(ACTIVE, path("x:C", "y:R")), (FAILED, path("x:F"))], 31
    ),
    "heartbeat/expiry": Race(PLAIN, ("x",), heartbeat("x"), expire, [(ACTIVE, path("x:R"))], 31),
    "heartbeat/dead letter": Race(
        PLAIN, ("x",), heartbeat("x"), bury, [(ACTIVE, path("x:R")), (FAILED, path("x:F"))], 31
    ),
    "heartbeat/complete": Race(PLAIN, ("x",), heartbeat("x"), complete("x"), [(ACTIVE, path("x:C", "y:R"))]),
    "heartbeat/cancel": Race(PLAIN, ("x",), heartbeat("x"), cancel, [(CANCELLED, path("x:S"))]),
    "fail/fail": Race(PLAIN, ("x",), fail("x"), fail("x"), [(ACTIVE, path("x:R"))]),
    "fail/timer": Race(INTERRUPTED, ("x",), fail("x"), fire, [(ACTIVE, path("x:R")), LATE_ONE], HOUR),
    "claim/cancel": Race(PLAIN, (), claim("x"), cancel, [(CANCELLED, path("x:S"))]),
    "claim/timer": Race(INTERRUPTED, (), claim("x"), fire, [LATE_ONE], HOUR),
    "claim/claim": Race(PLAIN, (), claim("x"), claim("x"), [(ACTIVE, path("x:R"))]),
    "signal/timer": Race(
        WAITING, (), signal("w"), fire, [(WAITS, path("w:C", "next:R")), (WAITS, path("w:F", "late:R"))], HOUR
    ),
    "signal/end of the wait": Race(SLEEPING, (), signal("w"), fire, [(WAITS, path("w:C", "next:R"))], HOUR),
    "signal/signal": Race(WAITING, (), signal("w"), signal("w"), [(WAITS, path("w:C", "next:R"))]),
    "signal/cancel": Race(
        WAITING, (), signal("w"), cancel, [(CANCELLED, path("w:C", "next:S")), (CANCELLED, path("w:S"))]
    ),
    "user task/timer": Race(
        ASKED, (), finish("u"), fire, [(WAITS, path("u:C", "next:R")), (WAITS, path("u:F", "late:R"))], HOUR
    ),
    "user task/user task": Race(ASKED, (), finish("u"), finish("u"), [(WAITS, path("u:C", "next:R"))]),
    "arrival/arrival": Race(
        FORKED,
        ("a", "b"),
        complete("a"),
        complete("b"),
        [(WAITS, path("fork:C", "a:C", "b:C", "join:C", "last:R"))],
    ),
    "step of one branch/step of another": Race(
        LONG_FORKED,
        ("a", "b"),
        complete("a"),
        complete("b"),
        [(WAITS, path("fork:C", "a:C", "b:C", one, two)) for one, two in [("a2:R", "b2:R"), ("b2:R", "a2:R")]],
    ),
    "END in one branch/arrival": Race(
        ENDING,
        ("a", "b"),
        complete("a"),
        complete("b"),
        [
            (DONE, path("fork:C", "a:C", "b:C", "end:C")),
            (DONE, path("fork:C", "a:C", "b:S", "end:C")),
        ],
    ),
    "arrival/failure": Race(
        FORKED,
        ("a", "b"),
        complete("a"),
        fail("b"),
        [(FAILED, path("fork:C", "a:C", "b:F")), (FAILED, path("fork:C", "a:S", "b:F"))],
    ),
    "arrival/cancel": Race(
        FORKED,
        ("a",),
        complete("a"),
        cancel,
        [(CANCELLED, path("fork:C", "a:C", "b:S")), (CANCELLED, path("fork:C", "a:S", "b:S"))],
    ),
    "complete in a branch/fold": Race(
        LONG_FORKED, ("a",), complete("a"), fold, [(WAITS, path("fork:C", "a:C", "b:R", "a2:R"))]
    ),
    "cancel/cancel": Race(PLAIN, (), cancel, cancel, [(CANCELLED, path("x:S"))]),
    "timer/timer": Race(INTERRUPTED, (), fire, fire, [LATE_ONE], HOUR),
    "reminder/reminder": Race(REMINDED, (), fire, fire, [(WAITS, path("x:R", "side:R"))], HOUR),
    "timer/cancel": Race(
        INTERRUPTED, (), fire, cancel, [(CANCELLED, path("x:F", "late:S")), (CANCELLED, path("x:S"))], HOUR
    ),
}
CAN_ANSWER = {"ok", "conflict", "lease-lost", "not-found", "cancelled"}


@pytest.mark.parametrize("name", mostly_slow(RACES, quick=list(RACES)[::5], reason="races two engines many times"))
async def test_race(make_driver: MakeDriver, name: str) -> None:
    race = RACES[name]
    engines = [make_driver(), make_driver()]
    await engines[0].upload(race.body)
    rounds: list[Round] = []
    for _ in range(ROUNDS):
        instance = (await engines[0].start("test")).id
        rounds.append(Round(instance, {step: await engines[0].one(step) for step in race.jobs}))
    if race.later_s:
        engines[0].clock.advance(race.later_s)
    answers: list[str] = []
    for first in range(0, ROUNDS, AT_ONCE):
        async with trio.open_nursery() as nursery:
            for about in rounds[first : first + AT_ONCE]:
                left, right = random.sample(engines, 2)
                nursery.start_soon(settle, race.left, left, about, answers)
                nursery.start_soon(settle, race.right, right, about, answers)
    seen: Counter[tuple[str, Path]] = Counter()
    for about in rounds:
        view = await engines[0].view(about.instance)
        seen[view.status, tuple(await engines[0].path(about.instance))] += 1
    assert seen.keys() <= set(race.outcomes), seen
    assert set(answers) <= CAN_ANSWER
    deadlocks = engines[0].rows("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    assert deadlocks == [(0,)]


async def test_retries_of_one_failed_instance_at_once_reopen_it_once(make_driver: MakeDriver) -> None:
    engines = [make_driver(), make_driver()]
    await engines[0].upload(PLAIN)
    for _ in range(ROUNDS):
        instance = (await engines[0].start("test")).id
        await engines[0].fail(await engines[0].one("x"), retryable=False)
        answers: list[str] = []
        async with trio.open_nursery() as nursery:
            for n in range(4):
                nursery.start_soon(settle, retry, engines[n % 2], Round(instance, {}), answers)
        assert sorted(answers) == ["conflict"] * 3 + ["ok"]
        assert await engines[0].path(instance) == [("x", "FAILED"), ("x", "RUNNING")]
        await engines[0].cancel(instance)


async def test_whoever_waits_for_a_retry_takes_the_instances_lock(make_driver: MakeDriver) -> None:
    """Several things that want the instance while a `retry` reopens it: each happens at most once."""
    engines = [make_driver(), make_driver()]
    body = definition(
        gateway("fork", "a", "w"), task("a", "join"), wait("w", "join"), joining("join", "last"), user("last"), end()
    )
    await engines[0].upload(body)
    for _ in range(ROUNDS):
        about = Round((await engines[0].start("test")).id, {})
        await engines[0].fail(await engines[0].one("a"), retryable=False)
        answers: list[str] = []
        actions = [retry, signal("w"), signal("w"), signal("w"), cancel, cancel]
        async with trio.open_nursery() as nursery:
            for n, action in enumerate(random.sample(actions, len(actions))):
                nursery.start_soon(settle, action, engines[n % 2], about, answers)
        assert set(answers) <= CAN_ANSWER
        statuses = [status for step, status in await engines[0].path(about.instance) if step == "w"]
        assert statuses.count("COMPLETED") <= 1
        if await engines[0].status(about.instance) != "CANCELLED":
            await cancel(engines[0], about) if await engines[0].status(about.instance) != "FAILED" else None


class Gate:
    """Holds the wide commits of an engine until it is told to let them go."""

    def __init__(self, driver: Driver) -> None:
        self.reached = trio.Event()
        self.go = trio.Event()
        commit = driver.engine.full_path.commit

        async def held(*args: Any, **named: Any) -> None:
            self.reached.set()
            await self.go.wait()
            await commit(*args, **named)

        driver.engine.full_path.commit = held  # type: ignore[method-assign]


async def test_whoever_waited_for_a_retry_locks_the_root_first(make_driver: MakeDriver) -> None:
    retrying, waiting, third = make_driver(), make_driver(), make_driver()
    about = Round(await retrying.run(PLAIN), {})
    await retrying.fail(await retrying.one("x"), retryable=False)
    answers: list[str] = []

    async def blocked() -> bool:
        return retrying.waiting_for_locks() > 0

    retry_gate, wait_gate = Gate(retrying), Gate(waiting)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(retrying.retry, about.instance)
        await retry_gate.reached.wait()
        nursery.start_soon(settle, cancel, waiting, about, answers)
        await wait_until(blocked)
        retry_gate.go.set()
        await wait_gate.reached.wait()
        nursery.start_soon(settle, cancel, third, about, answers)
        await wait_until(lambda: either(blocked, answers))
        wait_gate.go.set()
    assert sorted(answers) == ["conflict", "ok"]
    assert await retrying.path(about.instance) == [("x", "FAILED"), ("x", "SKIPPED")]


async def either(condition: Callable[[], Awaitable[bool]], answers: list[str]) -> bool:
    return bool(answers) or await condition()


async def test_many_branches_arriving_at_once_join_once(make_driver: MakeDriver) -> None:
    engines = [make_driver(), make_driver()]
    names = [f"b{n}" for n in range(8)]
    body = definition(
        gateway("fork", *names), *(task(name, "join") for name in names), joining("join", "last"), user("last"), end()
    )
    await engines[0].upload(body)
    for _ in range(8):
        instance = (await engines[0].start("test")).id
        jobs = await engines[0].poll(*names, n=8)
        async with trio.open_nursery() as nursery:
            for n, job in enumerate(random.sample(jobs, 8)):
                nursery.start_soon(engines[n % 2].complete, job, {job.step_id: n})
        assert (await engines[0].path(instance)).count(("join", "COMPLETED")) == 1
        assert await engines[0].open_steps(instance) == ["last"]
        assert set(await engines[0].variables(instance)) == set(names)


async def test_narrow_and_wide_batches_over_branches_and_roots_never_deadlock(make_driver: MakeDriver) -> None:
    """Both group-commit queues take the tokens of many instances, branches and roots mixed, in both engines."""
    engines = [make_driver(), make_driver()]
    await engines[0].upload(
        definition(
            task("r1", "r2"), task("r2", "fork"), gateway("fork", "a", "b"), task("a", "a2"), task("a2", "join"),
            task("b", "b2"), task("b2", "join"), joining("join", "r3"), task("r3", "r4"), task("r4"), end(),
        )
    )  # fmt: skip
    types = ["r1", "r2", "a", "a2", "b", "b2", "r3", "r4"]
    left = 60

    async def work(driver: Driver, worker: str) -> None:
        nonlocal left
        while left > 0:
            jobs = await driver.poll(*types, worker=worker, n=30)
            async with trio.open_nursery() as nursery:
                for job in jobs:
                    nursery.start_soon(driver.complete, job, {job.step_id: worker})
                    nursery.start_soon(driver.heartbeat_quietly, job)
            left = engines[0].rows("SELECT count(*) FROM instance WHERE status = 0")[0][0]

    for _ in range(left):
        await engines[0].start("test")
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for n in range(4):
                nursery.start_soon(work, engines[n % 2], f"w{n}")
    assert engines[0].rows("SELECT count(*) FROM instance WHERE status = 1") == [(60,)]
    assert engines[0].rows("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [(0,)]


async def test_wide_starts_and_wide_completions_do_not_disturb_each_other(driver: Driver) -> None:
    """Starts and completions commit at the same time in different group-commit queues of one engine."""
    await driver.upload(definition(choose("d", {"true": "x"}), task("x", "d2"), choose("d2", {"true": "end"}), end()))

    async def one() -> None:
        for _ in range(10):
            await driver.start("test")
            for job in await driver.poll("x"):
                await driver.complete(job)

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(one)
    for job in await driver.poll("x", n=100):
        await driver.complete(job)
    assert driver.rows("SELECT count(*) FROM instance WHERE status = 1") == [(80,)]
