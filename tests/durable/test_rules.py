"""Rules of durable workflows that no other room shows; `README.md` beside this says where each rule is shown."""

from __future__ import annotations

import logging
import threading
from datetime import datetime
from typing import Any

import msgspec
import pytest
import trio

from penstock.durable import App, Event, StepFailed, now, open_nursery, receive, run_info, sleep, step, workflow
from penstock.durable.backend import Stored
from penstock.durable.executor import ExecutorLimits
from penstock.durable.recorded_error import Failure
from penstock.kernel.record import JournalKind, Record
from tests.durable.memory import Database, kinds, message
from tests.durable.test_executor import executing


@step
async def pack(sku: str) -> str:
    return f"{sku} packed"


@step(retries=3)
async def charge() -> int:
    return 1


async def test_a_childs_key_outlives_another_order_of_its_loop(autojump_clock: object):
    skus = ["a", "b", "c"]

    @workflow(name="w")
    async def body() -> list[str]:
        packed: list[str] = []

        async def line(sku: str) -> None:
            packed.append(await pack(sku))

        async with open_nursery() as nursery:
            for sku in skus:
                nursery.start_soon(line, sku, key=sku)
        await receive("go", int)
        return sorted(packed)

    database = Database()
    async with executing(database, body):
        row = database.start(body)
        await database.wait_state("r", "parked")
    skus.reverse()
    database.notify("r", message("go", "1"))
    async with executing(database, body, limits=ExecutorLimits(strict_args=True)):
        await database.wait_state("r", "ended")
    assert row.ending is not None
    assert row.ending.result == '["a packed","b packed","c packed"]'
    assert sorted(kinds(row)) == ["DONE /0.[a]/0 pack", "DONE /0.[b]/0 pack", "DONE /0.[c]/0 pack", "MESSAGE  go"]


async def test_options_of_a_step_may_change_between_deploys(autojump_clock: object):
    @step(name="charge", retries=0, timeout="1 s", within="9 s", raises=[ValueError])
    async def later(often: int = 1) -> int:
        """With another text, other limits and one more argument, which has a default."""
        return 2

    @workflow(name="w")
    async def before() -> int:
        paid = await charge()
        await receive("go", int)
        return paid

    @workflow(name="w")
    async def after() -> int:
        paid = await later()
        await receive("go", int)
        return paid

    database = Database()
    async with executing(database, before):
        row = database.start(before)
        await database.wait_state("r", "parked")
    database.notify("r", message("go", "1"))
    async with executing(database, after):
        await database.wait_state("r", "ended")
    assert row.ending is not None
    assert row.ending.result == "1"


async def test_a_new_version_leaves_old_runs_to_old_code(autojump_clock: object):
    @workflow(name="w")
    async def old() -> str:
        await receive("go", int)
        return "old"

    @workflow(name="w", version=2)
    async def new() -> str:
        return "new"

    database = Database()
    async with executing(database, old):
        database.start(old, id="first")
        await database.wait_state("first", "parked")
    database.notify("first", message("go", "1"))
    async with executing(database, old, new):
        database.start(new, id="second")
        await database.wait_state("first", "ended")
        await database.wait_state("second", "ended")
    endings = [row.ending for row in database.runs.values()]
    assert [ending.result for ending in endings if ending is not None] == ['"old"', '"new"']


async def test_mail_without_a_hint_is_found_by_the_heartbeat(autojump_clock: object):
    """The hint is lost while a long step runs: nothing else would look."""
    received: list[datetime] = []

    @step
    async def long() -> None:
        await trio.sleep(60)

    @workflow
    async def body() -> None:
        async with open_nursery() as nursery:
            nursery.start_soon(long)
            await receive("now", int)
            received.append(now())

    began = trio.current_time()
    database = Database()
    async with executing(database, body):
        row = database.start(body)
        await trio.sleep(5)
        database.write(row, message("now", "1"))
        row.mail += 1  # written by somebody whose hint did not arrive
        while not received:
            await trio.sleep(1)
        assert trio.current_time() - began <= 6 + database.lease_s
        await database.wait_state("r", "ended")


async def test_above_its_room_an_executor_parks_at_once(autojump_clock: object):
    @workflow
    async def waits() -> None:
        await receive("go", int)

    @workflow
    async def body() -> None: ...

    database = Database()
    async with executing(database, waits, body, limits=ExecutorLimits(max_in_memory=1, park_after_s=1_000)):
        database.start(waits, id="first")
        database.start(body, id="second")
        with trio.fail_after(500):
            await database.wait_state("second", "ended")
        assert database.runs["first"].state == "parked"


class Behind(Database):
    """A database whose clock is seconds behind when it first writes a record of the clock: another server took over."""

    behind_s = 3.0

    def write(self, row: Any, record: Record) -> Stored:
        stored = super().write(row, record)
        if record.kind is JournalKind.CLOCK:
            stored = Stored(stored.pos, stored.at - self.behind_s)
            row.records[-1] = msgspec.structs.replace(row.records[-1], at=stored.at)
            self.behind_s = 0.0
        return stored


async def test_a_clock_that_is_behind_is_slept_out(autojump_clock: object):
    @workflow
    async def body() -> str:
        await sleep("10 s")
        return "slept"

    began = trio.current_time()
    database = Behind()
    async with executing(database, body, limits=ExecutorLimits(park_after_s=1_000)):
        row = database.start(body)
        with trio.fail_after(500):
            await database.wait_state("r", "ended")
        assert trio.current_time() - began >= 10
    assert kinds(row) == ["CLOCK", "CLOCK"], "the first was before its time, and did not count"


@pytest.mark.parametrize("type_name", ["SystemExit", "KeyboardInterrupt", "CalledProcessError", "os.system"])
async def test_a_stored_class_is_never_imported(type_name: str, autojump_clock: object):
    failed = msgspec.json.encode(Failure(type_name, "rm -rf", args=["rm -rf"])).decode()

    @workflow
    async def body() -> str:
        try:
            await charge()
        except StepFailed as error:
            return error.type_name
        return "as itself"

    database = Database()
    row = database.start(body)
    database.write(row, Record(0, JournalKind.FAILED, "/0", "charge", failed))
    row.attempt = 1
    async with executing(database, body):
        await database.wait_state("r", "ended")
    assert row.ending is not None
    assert row.ending.result == f'"{type_name}"'


async def test_a_body_knows_whether_it_is_replayed(autojump_clock: object):
    seen: list[tuple[int, bool]] = []

    @workflow
    async def body() -> None:
        for number in range(2):
            seen.append((number, run_info().replaying))
            await receive("go", int)
        seen.append((2, run_info().replaying))

    database = Database()
    for _ in range(2):
        async with executing(database, body):
            if "r" not in database.runs:
                database.start(body)
            await database.wait_state("r", "parked")
        database.notify("r", message("go", "1"))
    async with executing(database, body):
        await database.wait_state("r", "ended")
    assert seen == [(0, False), (0, True), (1, False), (0, True), (1, True), (2, False)]


async def test_a_blocked_run_is_left_alone_for_five_minutes(autojump_clock: object):
    """The executor that found that its code does not fit does not replay the run each time that it gets it."""
    replays: list[int] = []

    @workflow
    async def body() -> None:
        replays.append(1)
        await charge()

    database = Database()
    row = database.start(body)
    database.write(row, Record(0, JournalKind.DONE, "/0", "fraud", "null"))
    row.attempt = 1
    async with executing(database, body):
        for minute in range(7):
            await database.wait_state("r", "blocked")
            assert len(replays) == (1 if minute < 5 else 2)
            await trio.sleep(60.1)
            row.state = "ready"
            database.wake()
            await trio.sleep(0.1)


def test_an_app_starts_nothing_before_its_first_use():
    @workflow
    async def body() -> None: ...

    before = threading.enumerate()
    app = App(body, at="postgresql://nobody@127.0.0.1:1/none")
    assert threading.enumerate() == before
    assert app.rest_url is None


@pytest.mark.slow(reason="two programs in processes of their own")
def test_two_services_with_one_name_run_their_own(database_dsn: str):
    def service(name: str) -> tuple[App, Any]:
        @workflow
        async def order(n: int) -> str:
            return f"{name} {n}"

        return App(order, name=name, at=database_dsn), order

    (shop, shops), (bank, banks) = service("shop"), service("bank")
    with shop.in_thread() as at_shop, bank.in_thread() as at_bank:
        runs = [client.start(of, 7, id="o-1") for client, of in ((at_shop, shops), (at_bank, banks))]
        assert [run.result(60) for run in runs] == ["shop 7", "bank 7"]
        assert runs[0].instance_id != runs[1].instance_id


async def test_logs_of_a_replay_are_not_told_twice(autojump_clock: object, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    log = logging.getLogger("a shop")

    @workflow
    async def body() -> None:
        log.info("begun")
        await receive("go", int)
        log.info("ended")

    database = Database()
    async with executing(database, body):
        database.start(body)
        await database.wait_state("r", "parked")
    database.notify("r", message("go", "1"))
    async with executing(database, body):
        await database.wait_state("r", "ended")
    assert [record.message for record in caplog.records if record.name == "a shop"] == ["begun", "ended"]


async def test_what_is_local_to_a_run_costs_no_record(autojump_clock: object):
    @workflow
    async def body() -> str:
        event = Event()
        async with open_nursery() as nursery:
            nursery.start_soon(event.wait)
            event.set()
        return "done"

    database = Database()
    async with executing(database, body):
        row = database.start(body)
        await database.wait_state("r", "ended")
    assert row.records == []
