"""The executor against journals in memory, on a virtual clock: retries, deadlines, parking, mail, takeover, blocks."""

from __future__ import annotations

import gc
import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio

from penstock.durable import fail_after, move_on_after, open_nursery, receive, set_view, sleep, step, workflow
from penstock.durable.activation import Activation
from penstock.durable.backend import LeasedRun, Shown
from penstock.durable.executor import Executor
from penstock.durable.loaded_run import ExecutorLimits, LoadedRun
from penstock.durable.workflow import Workflow
from penstock.kernel.record import JournalKind, Record
from tests.durable.memory import Database, MemoryBackend, kinds, message

PARKS_AFTER_S = 2.0


@asynccontextmanager
async def executing(
    database: Database, *workflows: Workflow[..., Any], limits: ExecutorLimits | None = None, grace_s: float = 0.0
) -> AsyncGenerator[tuple[Executor, MemoryBackend]]:
    backend = MemoryBackend(database)
    executor = Executor(backend, {(each.name, each.version): each for each in workflows}, limits)
    async with trio.open_nursery() as nursery:
        await nursery.start(executor.run)
        yield executor, backend
        await executor.drain(grace_s)
        nursery.cancel_scope.cancel()


def running(function: Callable[..., Any], **options: Any) -> Workflow[..., Any]:
    """A workflow of one step that does that."""
    the_step = step(name="s", **options)(function)

    @workflow(name="w")
    async def body() -> Any:
        return await the_step()

    return body


async def test_a_run_ends_with_its_result(autojump_clock):
    @step
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    @workflow
    async def hello(name: str) -> str:
        greeting = await greet(name)
        await sleep("1 s")
        return greeting

    database = Database()
    async with executing(database, hello):
        row = database.start(hello, "Ada")
        await database.wait_state("r", "ended")
    assert row.ending is not None
    assert row.ending.result == '"Hello, Ada!"'
    assert kinds(row) == ["DONE /0 greet", "CLOCK"]
    assert row.attempt == 1


async def test_a_run_that_has_ended_needs_no_garbage_collector(autojump_clock):
    """Each run is some hundred objects: where they lead in circles, the collector walks through all that is alive."""
    database = Database()
    gc.collect()
    before = {id(each) for each in gc.get_objects() if isinstance(each, LoadedRun | Activation)}
    gc.disable()
    try:
        async with executing(database, running(lambda: 7)):
            for number in range(20):
                database.start(running(lambda: 7), id=str(number))
                await database.wait_state(str(number), "ended")
            await trio.sleep(2 * PARKS_AFTER_S)
            now = [each for each in gc.get_objects() if isinstance(each, LoadedRun | Activation)]
            left = [each for each in now if id(each) not in before]
    finally:
        gc.enable()
    assert len(left) <= 2, "one run may stand in a variable of a service yet"


async def test_a_long_sleep_ends_with_another_attempt(autojump_clock):
    @workflow
    async def late() -> None:
        await sleep("8 h")

    database = Database()
    async with executing(database, late) as (executor, _):
        row = database.start(late)
        await database.wait_state("r", "parked")
        assert len(executor) == 0
        assert trio.current_time() == pytest.approx(PARKS_AFTER_S, abs=1)
        assert row.due == pytest.approx(database.now() - trio.current_time() + 8 * 3_600, abs=1)
        await database.wait_state("r", "ended")
        assert trio.current_time() == pytest.approx(8 * 3_600, abs=2)
    assert row.attempt == 2


async def test_a_long_pause_between_attempts_is_waited_for_in_the_database(autojump_clock):
    times: list[float] = []

    async def fails() -> str:
        times.append(trio.current_time())
        if len(times) < 3:
            raise OSError("down")
        return "up"

    body = running(fails, retries=5, first="20 s", cap="1 h")
    database = Database()
    async with executing(database, body):
        row = database.start(body)
        await database.wait_state("r", "ended")
    assert kinds(row) == ["RETRY /0 s", "RETRY /0 s", "DONE /0 s"]
    assert [record.attempt for record in row.records] == [1, 2, 3]
    assert [b - a for a, b in itertools.pairwise(times)] == [
        pytest.approx(20, abs=1),
        pytest.approx(40, abs=2),
    ]
    assert row.attempt == 3, "each pause was waited for in the database"


async def test_attempts_end_with_the_retries_as_the_bodys_error(autojump_clock):
    async def fails() -> None:
        raise OSError("down")

    body = running(fails, retries=2)
    database = Database()
    async with executing(database, body):
        row = database.start(body)
        await database.wait_state("r", "ended")
    assert row.ending is not None
    assert row.ending.failure is not None
    assert "StepFailed: OSError: down (test_executor.py:" in row.ending.failure
    assert row.records[-1].attempt == 3


async def test_a_step_over_time_is_cancelled_and_its_end_awaited(autojump_clock):
    ended: list[float] = []

    async def lingers() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(5)
            ended.append(trio.current_time())

    slow = step(name="slow")(lingers)

    @workflow
    async def body() -> str:
        with move_on_after("10 s") as scope:
            await slow()
        return f"cancelled {scope.cancelled_caught}"

    database = Database()
    async with executing(database, body):
        row = database.start(body)
        await database.wait_state("r", "ended")
    assert row.ending is not None
    assert row.ending.result == '"cancelled true"' or row.ending.result == '"cancelled True"'
    assert kinds(row) == ["CLOCK", "STOPPED /1 slow"]
    assert ended == [pytest.approx(15, abs=1)]


async def test_an_attempt_is_bounded_by_its_time_limit(autojump_clock):
    body = running(trio.sleep_forever, timeout="10 s")
    database = Database()
    async with executing(database, body):
        row = database.start(body)
        await database.wait_state("r", "ended")
    assert row.ending is not None
    assert row.ending.failure is not None
    assert "s took longer than 10 s" in row.ending.failure


async def test_an_exit_of_a_plain_function_fails_its_step_only():
    def leaves() -> None:
        raise SystemExit(3)

    body = running(leaves)
    database = Database()
    async with executing(database, body):
        row = database.start(body)
        await database.wait_state("r", "ended")
    assert row.ending is not None
    assert row.ending.failure is not None
    assert "StepFailed: SystemExit: 3" in row.ending.failure


async def test_a_ctrl_c_during_a_step_is_the_programs(autojump_clock):
    async def interrupted() -> None:
        raise KeyboardInterrupt

    body = running(interrupted)
    database = Database()
    with pytest.RaisesGroup(KeyboardInterrupt, flatten_subgroups=True):
        async with executing(database, body):
            database.start(body)
            await trio.sleep(5)
    assert database.runs["r"].records == []


async def test_a_message_wakes_parked_and_held_runs(autojump_clock):
    @workflow
    async def talks() -> list[int]:
        return [await receive("n", int), await receive("n", int)]

    database = Database()
    async with executing(database, talks):
        row = database.start(talks)
        await database.wait_state("r", "parked")
        database.notify("r", message("n", "1"))
        await database.wait_state("r", "held")
        await trio.sleep(1)
        database.notify("r", message("n", "2"))
        await database.wait_state("r", "ended")
        assert trio.current_time() < 10
    assert row.ending is not None
    assert row.ending.result == "[1,2]"
    assert row.attempt == 2


async def test_a_message_during_parking_wakes_the_run(autojump_clock):
    @workflow
    async def talks() -> int:
        return await receive("n", int)

    database = Database()
    async with executing(database, talks) as (_, backend):
        row = database.start(talks)
        park = backend.park

        async def reported_before(leased: LeasedRun, mail: int, due: float | None, shown: Shown) -> bool:
            database.notify("r", message("n", "7"))
            backend.mail.clear()
            backend.park = park  # type: ignore[method-assign]  # once
            return await park(leased, mail, due, shown)

        backend.park = reported_before  # type: ignore[method-assign]  # a race
        await database.wait_state("r", "ended")
    assert row.ending is not None
    assert row.ending.result == "7"


async def test_a_cancelled_run_cleans_up_and_ends_as_cancelled(autojump_clock):
    cleaned: list[str] = []

    @step
    async def release() -> None:
        cleaned.append("released")

    @workflow
    async def holds() -> None:
        try:
            await sleep("30 days")
        except BaseException:
            with move_on_after("1 h", shield=True):
                await release()
            raise

    database = Database()
    async with executing(database, holds):
        row = database.start(holds)
        await database.wait_state("r", "parked")
        database.notify("r", Record(0, JournalKind.CANCEL))
        await database.wait_state("r", "ended")
    assert cleaned == ["released"]
    assert row.ending is not None
    assert row.ending.cancelled


async def test_all_that_ends_together_is_appended_together(autojump_clock):
    @step
    async def quick(n: int) -> int:
        await trio.sleep(1)
        return n

    @workflow
    async def wide() -> int:
        total: list[int] = []

        async def one(n: int) -> None:
            total.append(await quick(n))

        async with open_nursery() as nursery:
            for n in range(1_000):
                nursery.start_soon(one, n)
        return sum(total)

    database = Database()
    async with executing(database, wide) as (_, backend):
        row = database.start(wide)
        await database.wait_state("r", "ended")
        assert len(backend.appends) < 20
    assert row.ending is not None
    assert row.ending.result == str(sum(range(1_000)))


async def test_an_outage_of_the_journal_is_waited_out(autojump_clock):
    began: list[int] = []

    async def once() -> str:
        began.append(1)
        return "x"

    body = running(once)
    database = Database()
    async with executing(database, body) as (_, backend):
        backend.away = 8
        row = database.start(body)
        await database.wait_state("r", "ended")
    assert began == [1]
    assert kinds(row) == ["DONE /0 s"]


async def test_who_lost_the_lease_stops_its_steps_and_writes_nothing(autojump_clock):
    cancelled: list[int] = []
    began: list[int] = []

    async def long() -> str:
        began.append(1)
        try:
            await trio.sleep(60)
        except trio.Cancelled:
            cancelled.append(1)
            raise
        return "done"

    body = running(long)
    database = Database(lease_s=10)
    async with executing(database, body) as (zombie, first):
        row = database.start(body)
        await database.wait_state("r", "held")
        await trio.sleep(1)
        first.away, first.is_cut_off = 1_000_000, True
        async with executing(database, body):
            await trio.sleep(30)
            assert len(zombie) == 0
            assert cancelled == [1]
            await database.wait_state("r", "ended")
    assert len(began) == 2
    assert kinds(row) == ["RETRY /0 s", "DONE /0 s"], "what was cut off stands before what came of it"


async def test_a_long_step_keeps_its_lease(autojump_clock):
    async def long() -> str:
        await trio.sleep(300)
        return "done"

    body = running(long)
    database = Database(lease_s=10)
    async with executing(database, body):
        row = database.start(body)
        async with executing(database, body):
            await database.wait_state("r", "ended")
    assert row.attempt == 1


async def test_other_code_blocks_the_run_with_path_names_and_line(autojump_clock):
    @step
    async def charge() -> None: ...

    @step
    async def fraud() -> None: ...

    @workflow(name="w")
    async def before() -> None:
        await charge()
        await sleep("1 day")

    @workflow(name="w")
    async def after() -> None:
        await fraud()
        await charge()

    database = Database()
    async with executing(database, before):
        database.start(before)
        await database.wait_state("r", "parked")
    database.notify("r", message("wake", "1"))
    async with executing(database, after):
        row = await database.wait_state("r", "blocked")
        assert row.blocked is not None
        assert "at /0 the journal has 'charge', the code asks for 'fraud' (test_executor.py:" in row.blocked
        assert len(row.records) == 2, "nothing was written"
        row.state = "ready"
        database.wake()
        await database.wait_state("r", "blocked")
    row.state = "ready"
    async with executing(database, before):
        await database.wait_state("r", "ended")


async def test_arguments_that_the_code_does_not_take_any_more_block(autojump_clock):
    @workflow(name="w")
    async def body(n: int) -> None: ...

    database = Database()
    row = database.start(body, 1)
    row.arguments = '{"n": "many"}'
    async with executing(database, body):
        await database.wait_state("r", "blocked")
    assert row.blocked == "w does not take the arguments of its start: n: Expected `int`, got `str`"


async def test_a_cancelled_scopes_step_is_not_begun_after_a_crash(autojump_clock):
    began: list[int] = []

    async def never() -> None:
        began.append(1)
        await trio.sleep_forever()

    slow = step(name="slow")(never)

    @workflow
    async def body() -> str:
        with move_on_after("10 s"):
            await slow()
        return "moved on"

    database = Database()
    row = database.start(body)
    row.attempt, row.mail = 1, 0
    database.write(row, Record(0, JournalKind.CLOCK))
    row.records[0] = msgspec.structs.replace(row.records[0], at=row.records[0].at + 11)
    async with executing(database, body):
        await database.wait_state("r", "ended")
    assert began == []
    assert kinds(row) == ["CLOCK", "STOPPED /1 slow"]


async def test_a_drain_parks_waiting_runs_and_gives_others_back(autojump_clock):
    async def long() -> None:
        await trio.sleep(100)

    busy = running(long)

    @workflow(name="waits")
    async def waits() -> None:
        await sleep("1 day")

    database = Database()
    async with executing(database, busy, waits, grace_s=5.0) as (executor, _):
        database.start(busy, id="busy")
        database.start(waits, id="waits")
        await trio.sleep(1)
        assert len(executor) == 2
    assert trio.current_time() == pytest.approx(6, abs=1)
    assert database.runs["busy"].state == "ready"
    assert database.runs["waits"].state == "parked"


async def test_what_a_run_shows_is_seen_while_it_works(autojump_clock):
    async def long() -> None:
        await trio.sleep(20)

    slow = step(name="slow")(long)

    @workflow
    async def body() -> None:
        set_view({"stage": "slow"})
        with fail_after("1 h"):
            await slow()

    database = Database()
    async with executing(database, body):
        row = database.start(body)
        await trio.sleep(3)
        assert row.shown.view == '{"stage":"slow"}'
        branches = msgspec.json.decode(row.shown.branches or "[]")
        scope, branch = branches
        assert (scope["path"], scope["kind"], scope["due_at"] > row.lease_until) == ("/0", "scope", True)
        assert (branch["path"], branch["kind"], branch["name"]) == ("/1", "step", "slow")
        assert branch["where"].startswith("test_executor.py:")
        await database.wait_state("r", "ended")


async def test_a_journal_that_grows_too_long_ends_the_run(autojump_clock):
    @step
    async def nothing() -> None: ...

    @workflow
    async def endless() -> None:
        while True:
            await nothing()

    database = Database()
    async with executing(database, endless, limits=ExecutorLimits(journal_max_records=50)):
        row = database.start(endless)
        await database.wait_state("r", "ended")
    assert row.ending is not None
    assert row.ending.failure is not None
    assert row.ending.failure.startswith(
        "JournalTooLong: 51 records; 50 at most. Let another run do the rest, or raise"
    )


async def test_open_nurseries_and_branches_are_shown_with_their_waits(autojump_clock):
    @workflow
    async def body() -> None:
        async with open_nursery() as nursery:
            nursery.start_soon(sleep, "1 h", key="nap")
            await receive("m", int)

    database = Database()
    async with executing(database, body):
        row = database.start(body)
        await database.wait_state("r", "parked")
    line = f"test_executor.py:{body.function.__code__.co_firstlineno + 4}"  # a branch without a line has its opener's
    shown = [(each["path"], each["kind"], each.get("where")) for each in msgspec.json.decode(row.shown.branches or "")]
    nap = ("/0.[nap]/0", "sleep", line)
    assert shown == [("/1", "receive", line), ("/0", "nursery", None), ("/0.[nap]", "branch", None), nap]


async def test_a_run_that_is_given_back_while_it_begins_ends_no_executor(autojump_clock):
    @workflow
    async def waits() -> str:
        return await receive("m", str)

    for _ in range(20):  # in which order Trio runs tasks is left to chance
        database = Database()
        database.start(waits, id="w").attempt = 1  # it has begun before: its journal is read first
        async with executing(database, waits):
            await database.wait_state("w", "held")
        assert database.runs["w"].state in ("ready", "parked")
