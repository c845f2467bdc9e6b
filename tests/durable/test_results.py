"""How a program comes by the result of a run that its own executor has: told, not looked for. On a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest
import trio

from penstock.client.errors import TimedOut, Unavailable
from penstock.durable import RunFailed, workflow
from penstock.durable.backend import LeasedRun
from penstock.durable.executor import Executor
from penstock.durable.loaded_run import ExecutorLimits
from penstock.durable.local import LocalRuns
from penstock.durable.run import Run
from penstock.durable.run_ends import POLL_MAX_S, REPORTED_MAX_CHARS, RunEnds
from penstock.wire.model import Instance
from tests.durable.memory import Database, MemoryBackend

STARTED = datetime(2026, 1, 1, tzinfo=UTC)


class Runs:
    """The database's rows, and how often they were looked at."""

    outage_wait_s = 0.0

    def __init__(self) -> None:
        self.reads = 0
        self.asked: list[int] = []  # for how many runs at a time
        self.row = Instance(id="1", definition_id="w", definition_version=1, status="ACTIVE", started_at=STARTED)

    async def read_run(self, instance_id: str) -> Instance:
        await trio.lowlevel.checkpoint()
        self.reads += 1
        return self.row

    async def find_ended(self, instance_ids: Sequence[str]) -> list[str]:
        await trio.lowlevel.checkpoint()
        self.asked.append(len(instance_ids))
        return list(instance_ids) if self.row.completed_at is not None else []

    def end(self, status: str, variables: bytes = b"{}", reason: str | None = None) -> None:
        self.row = msgspec.structs.replace(
            self.row, status=status, variables=msgspec.Raw(variables), failure_reason=reason, completed_at=STARTED
        )


def new_run(runs: Runs, ends: RunEnds, id: str = "1") -> Run[Any]:
    def opened() -> LocalRuns:
        return cast(LocalRuns, runs)

    return Run(id, id, opened, ends, is_new=True)


async def resulting(runs: Runs, ends: RunEnds, run: Run[Any], *, then: Callable[[], None], after_s: float) -> Any:
    """What it gives when that becomes of it so much later."""
    found: list[Any] = []

    async def wait() -> None:
        found.append(await run.result())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends.watch, runs.find_ended)
        async with trio.open_nursery() as waiting:
            waiting.start_soon(wait)
            await trio.sleep(after_s)
            then()
        nursery.cancel_scope.cancel()
    return found[0]


async def test_what_completed_here_is_reported_and_not_read(autojump_clock):
    runs, ends = Runs(), RunEnds()
    run = new_run(runs, ends)
    ends.leased.add("1")
    assert await resulting(runs, ends, run, then=lambda: ends.notify("1", '{"n":7}'), after_s=0.01) == {"n": 7}
    assert await run.result() == {"n": 7}
    assert (runs.reads, runs.asked) == (0, [])


async def test_what_completed_before_anybody_waits_for_it_is_known(autojump_clock):
    runs, ends = Runs(), RunEnds()
    run = new_run(runs, ends)
    ends.notify("1", "7")
    assert await run.result() == 7
    assert (runs.reads, trio.current_time()) == (0, 0)


async def test_a_run_taken_here_meanwhile_is_not_looked_for(autojump_clock):
    runs, ends = Runs(), RunEnds()
    run = new_run(runs, ends)

    async def take() -> None:
        await trio.sleep(0.02)
        ends.leased.add("1")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        assert await resulting(runs, ends, run, then=lambda: ends.notify("1", "7"), after_s=0.9) == 7
    assert (runs.reads, runs.asked) == (0, [])


@pytest.mark.parametrize(
    ("status", "reported"), [("COMPLETED", '"' + "x" * REPORTED_MAX_CHARS + '"'), ("COMPLETED", None), ("FAILED", None)]
)
async def test_large_results_and_failures_are_read_when_they_are_reported(
    autojump_clock, status: str, reported: str | None
):
    runs, ends = Runs(), RunEnds()
    run = new_run(runs, ends)
    ends.leased.add("1")

    def end() -> None:
        ends.leased.discard("1")
        runs.end(status, b'{"result":"as stored"}', None if status == "COMPLETED" else "as stored")
        ends.notify("1", reported)

    if status == "FAILED":
        with pytest.RaisesGroup(pytest.RaisesExc(RunFailed, match="as stored"), flatten_subgroups=True):
            await resulting(runs, ends, run, then=end, after_s=0.3)
    else:
        assert await resulting(runs, ends, run, then=end, after_s=0.3) == "as stored"
    assert runs.reads == 1
    assert trio.current_time() == pytest.approx(0.3)


async def test_what_ends_elsewhere_is_found_by_looks_that_grow_rare(autojump_clock):
    runs, ends = Runs(), RunEnds()
    run = new_run(runs, ends)
    assert await resulting(runs, ends, run, then=lambda: runs.end("COMPLETED", b'{"result":7}'), after_s=10) == 7
    assert 10 < len(runs.asked) < 20
    assert runs.reads == 1
    with pytest.raises(TimedOut):
        await new_run(Runs(), ends).result(timeout_s=3)


async def test_who_waits_for_many_runs_asks_for_them_together(autojump_clock):
    runs, ends = Runs(), RunEnds()
    found: list[Any] = []

    async def wait(id: int) -> None:
        found.append(await new_run(runs, ends, str(id)).result())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends.watch, runs.find_ended)
        async with trio.open_nursery() as waiting:
            for id in range(1_000):
                waiting.start_soon(wait, id)
            await trio.sleep(10)
            assert len(runs.asked) < 60
            assert sum(runs.asked) > 10_000
            runs.end("COMPLETED", b'{"result":7}')
        nursery.cancel_scope.cancel()
    assert found == [7] * 1_000
    assert trio.current_time() <= 10 + 1.2 * POLL_MAX_S


async def test_who_waits_when_the_app_closes_is_told_so(autojump_clock):
    runs, ends = Runs(), RunEnds()
    is_open = True

    def opened() -> LocalRuns:
        if not is_open:
            raise RuntimeError("this app is not open")
        return cast(LocalRuns, runs)

    run = Run[Any]("1", "1", opened, ends, is_new=True)

    async def wait() -> None:
        with pytest.raises(RuntimeError, match="is not open"):
            await run.result()

    async with trio.open_nursery() as waiting:
        waiting.start_soon(wait)
        with trio.move_on_after(5):
            await ends.watch(runs.find_ended)
        is_open = False
    with pytest.raises(RuntimeError, match="is not open"):
        await run.result()


class AwayRuns(Runs):
    """The database is away."""

    async def find_ended(self, instance_ids: Sequence[str]) -> list[str]:
        raise Unavailable("the database is away")

    async def read_run(self, instance_id: str) -> Instance:
        raise Unavailable("the database is away")


async def test_an_outage_is_heard_of_by_those_who_wait(autojump_clock):
    runs, ends = AwayRuns(), RunEnds()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends.watch, runs.find_ended)
        with pytest.raises(Unavailable):
            await new_run(runs, ends).result()
        nursery.cancel_scope.cancel()


async def test_nothing_is_kept_of_runs_without_a_handle(autojump_clock):
    ends = RunEnds()
    run = new_run(Runs(), ends)
    assert ends.of("1") is ends.of("1")
    del run
    ends.notify("1", "7")
    assert ends.of("1").result is None


class AskedBackend(MemoryBackend):
    """Notes for how many runs it is asked at a time."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.calls = self.runs = self.most_calls = self.most_runs = 0

    async def take(self, max_runs: int, max_wait_s: float) -> list[LeasedRun]:
        self.calls += 1
        self.runs += max_runs
        leased = sum(row.state == "held" for row in self.db.runs.values())
        self.most_calls, self.most_runs = max(self.most_calls, self.calls), max(self.most_runs, self.runs + leased)
        try:
            return await super().take(max_runs, max_wait_s)
        finally:
            self.calls -= 1
            self.runs -= max_runs


@pytest.mark.parametrize("room", [10_000, 3])
async def test_two_calls_ask_for_runs_within_the_room(autojump_clock, room: int):
    """So that what is started while one call is answered finds another one waiting."""

    @workflow
    async def body(n: int) -> int:
        return n

    database = Database()
    backend = AskedBackend(database)
    reported: list[tuple[str, str]] = []
    executor = Executor(
        backend,
        {("body", 1): body},
        ExecutorLimits(max_in_memory=room),
        lambda event, leased, detail: reported.append((leased.id, event)),
        lambda leased, result: reported.append((leased.id, result)),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(executor.run)
        for number in range(10):
            database.start(body, number, id=f"r{number}")
        for number in range(10):
            await database.wait_state(f"r{number}", "ended")
            await trio.sleep(1)
        await executor.drain(0)
        nursery.cancel_scope.cancel()
    assert backend.most_calls == 2
    assert backend.most_runs <= room
    assert [what for id, what in reported if id == "r7"] == ["taken", "7", "ended"]
