"""Workflows under `penstock.testing`: virtual time, in order, the same each time, and bounded."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest
import trio
from psycopg.conninfo import make_conninfo
from trio.testing import MockClock

from penstock.client import BadRequest, Client, Conflict, JobCancelled, NotFound
from penstock.client.builder import WorkflowBuilder
from penstock.client.builder import timer as boundary
from penstock.settings import SettingsError
from penstock.testing import (
    EngineStopped,
    HandlerHangs,
    NotSettled,
    Stuck,
    TestEngine,
    fails,
    handles,
    performer,
    raises,
    returns,
    vanishes,
)
from penstock.testing.definitions import definition, end, fork, linear, service, step, timer
from penstock.wire.model import PollRequest
from penstock.worker import JobContext, Retry, Worker

START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
at_start = pytest.mark.penstock(now=START)


def after(**units: float) -> dt.datetime:
    return START + dt.timedelta(**units)


APPROVAL = definition(
    step(
        "approve",
        "USER_TASK",
        nextStep="end",
        boundaryEvents=[timer("remind", "P1D"), timer("escalate", "P3D", interrupting=True)],
    ),
    service("remind", job_type="mail"),
    service("escalate", "end", job_type="boss"),
    end(),
    definition_id="approval",
)


async def test_nothing_happens_until_the_test_says_so(engine: TestEngine) -> None:
    await engine.deploy(linear(3))
    work = engine.stub("work", {"a": 1}, {"b": 2}, {"a": 3})
    run = await engine.start("linear", {"x": 0})
    assert (run.status, run.path, work.count) == ("ACTIVE", ["task-1"], 0)
    await run.settle()
    assert run.status == "COMPLETED"
    assert run.path == ["task-1", "task-2", "task-3", "end"]
    assert run.variables == {"x": 0, "a": 3, "b": 2}
    assert work.variables == [{"x": 0}, {"x": 0, "a": 1}, {"x": 0, "a": 1, "b": 2}]


@at_start
async def test_thirty_days_pass_at_once_and_to_the_second(engine: TestEngine) -> None:
    await engine.deploy(
        definition(step("cool-off", "WAIT", duration="P30D", nextStep="task"), service("task", "end"), end())
    )
    engine.stub("work")
    run = await engine.start("test")
    await engine.advance(days=29, hours=23, minutes=59, seconds=59)
    assert run.open_steps == ["cool-off"]
    await engine.advance(1)
    run.assert_path("cool-off", "task", "end")
    assert run.instance.completed_at == engine.now == after(days=30)


@at_start
async def test_timers_fire_in_order_each_at_its_time(engine: TestEngine) -> None:
    await engine.deploy(APPROVAL)
    mail, boss = engine.stub("mail"), engine.stub("boss")
    run = await engine.start("approval")
    await engine.advance(to=after(days=10))
    run.assert_completed()
    assert (mail.count, boss.count, engine.now) == (1, 1, after(days=10))
    entered = {item.step_id: item.started_at for item in run.history}
    assert entered == {"approve": START, "remind": after(days=1), "escalate": after(days=3), "end": after(days=3)}


@at_start
async def test_a_job_is_retried_after_a_back_off_without_jitter(engine: TestEngine) -> None:
    backoff = {"initial": "PT1M", "multiplier": 10, "max": "PT1H", "jitter": 1}
    await engine.deploy(definition(service("task", "end", retryCount=3, retryBackoff=backoff), end()))
    engine.stub("work", raises(TimeoutError("away")), raises(OSError), Retry("later", after=7), {"done": True})
    run = await engine.start("test")
    await engine.settle()
    assert "tried again at 2030-01-01 00:01:00Z" in run.waits_for()[0]
    await run.finish()
    attempts = run.history[0].attempts
    assert [each.reason for each in attempts[:3]] == ["TimeoutError: away", "OSError: ", "later"]
    assert [each.ended_at for each in attempts[:3]] == [START, after(minutes=1), after(minutes=11)]
    assert engine.now == after(minutes=11, seconds=7)
    assert run.attempts("task") == 4


@at_start
async def test_a_vanished_workers_lease_ends_after_30_seconds(engine: TestEngine) -> None:
    await engine.deploy(linear(1))
    engine.stub("work", vanishes(), returns(by="another"))
    run = await engine.start("linear")
    await engine.settle()
    assert run.waits_for() == ["task-1: a job of type 'work' is held by stub until 2030-01-01 00:00:30Z"]
    await engine.advance(seconds=29)
    assert run.status == "ACTIVE"
    await engine.advance(seconds=1)
    run.assert_variables(by="another")


async def test_a_job_that_kills_every_worker_is_dead_lettered(engine: TestEngine) -> None:
    await engine.deploy(linear(1))
    work = engine.stub("work", vanishes())
    run = await (await engine.start("linear")).finish()
    run.assert_failed("lease expired 10 times")
    assert work.count == 10


@pytest.mark.penstock(settings={"lease_expiry_limit": 2})
async def test_the_engine_takes_settings(engine: TestEngine) -> None:
    await engine.deploy(linear(1))
    engine.stub("work", vanishes())
    (await (await engine.start("linear")).finish()).assert_failed("lease expired 2 times")


@at_start
async def test_a_slow_job_keeps_its_lease_while_timers_fire(engine: TestEngine) -> None:
    await engine.deploy(
        definition(
            service("slow", "end", boundaryEvents=[timer("alert", "PT2H")]), service("alert", job_type="mail"), end()
        )
    )
    engine.stub("work", returns(done=True), takes=dt.timedelta(days=3))
    mail = engine.stub("mail")
    run = await (await engine.start("test")).finish()
    assert (engine.now, mail.count, run.attempts("slow")) == (after(days=3), 1, 1)


@at_start
async def test_a_slow_job_that_is_interrupted_is_never_done(engine: TestEngine) -> None:
    boundary_events = [timer("late", "PT1H", interrupting=True)]
    await engine.deploy(
        definition(
            service("slow", "end", boundaryEvents=boundary_events), service("late", "end", job_type="mail"), end()
        )
    )
    done: list[str] = []
    engine.stub("work", handles(lambda: done.append("too late"), takes=7200))
    engine.stub("mail", takes=dt.timedelta(hours=5))
    run = await (await engine.start("test")).finish()
    assert (run.path, done, engine.now) == (["slow", "late", "end"], [], after(hours=6))


@at_start
async def test_a_job_over_its_time_limit_is_handed_out_again(engine: TestEngine) -> None:
    await engine.deploy(definition(service("task", "end", timeout="PT1H"), end()))
    engine.stub("work", returns(first=True, takes=7200), returns(second=True))
    run = await (await engine.start("test")).finish()
    assert (run.variables, engine.now) == ({"second": True}, after(hours=1))


@pytest.mark.parametrize("again", [1, 2, 3])
@at_start
async def test_what_happens_at_one_moment_keeps_its_order(engine: TestEngine, again: int) -> None:
    await engine.deploy(fork(2, 1, 3))
    order: list[tuple[str, int]] = []
    engine.stub("work", lambda job: order.append((job.step_id, job.variables["n"])))
    backoff = {"initial": "PT1M", "multiplier": 1}
    await engine.deploy(
        definition(service("flaky", "end", retryCount=1, retryBackoff=backoff, job_type="flaky"), end())
    )
    engine.stub("flaky", *[raises(OSError)] * 3, lambda job: order.append((job.step_id, job.variables["n"])))
    for number in range(2):
        await engine.start("fork", {"n": number})
    for number in range(3):
        await engine.start("test", {"n": number})
    await engine.advance(minutes=1)
    heads = [(f"branch-{branch}-task-1", number) for number in (0, 1) for branch in (1, 2, 3)]
    seconds = [(f"branch-{branch}-task-2", number) for number in (0, 1) for branch in (1, 3)]
    thirds = [("branch-3-task-3", 0), ("branch-3-task-3", 1)]
    assert order == [*heads, *seconds, *thirds, ("flaky", 0), ("flaky", 1), ("flaky", 2)]


async def test_of_simultaneous_timers_the_older_steps_fires_first(engine: TestEngine) -> None:
    waits = [step(f"nap-{number}", "WAIT", duration="P1D", nextStep="join") for number in (1, 2, 3)]
    naps = [f"nap-{number}" for number in (2, 3, 1)]
    await engine.deploy(
        definition(
            step("fork", "PARALLEL_GATEWAY", parallelNextSteps=naps, joinStep="join"),
            *(wait | {"nextStep": f"{wait['id']}-over"} for wait in waits),
            *(service(f"{wait['id']}-over", "join") for wait in waits),
            step("join", "JOIN_GATEWAY", nextStep="end"),
            end(),
        )
    )
    engine.stub("work")
    run = await (await engine.start("test")).finish()
    run.assert_path("fork", *naps, *(f"{nap}-over" for nap in naps), "join", "end")


async def test_the_oldest_job_comes_first_whatever_its_type(engine: TestEngine) -> None:
    names = ["b", "a", "c"]
    await engine.deploy(*(linear(1, definition_id=name, job_type=name) for name in names))
    order: list[str] = []
    for name in sorted(names):
        engine.stub(name, lambda job: order.append(f"{job.job.job_type}{job.variables['n']}"))
    for number in range(2):
        for name in names:
            await engine.start(name, {"n": number})
    await engine.settle()
    assert order == ["b0", "a0", "c0", "b1", "a1", "c1"]


async def test_what_ended_with_the_test_says_so(penstock_dsn: str) -> None:
    with TestEngine(penstock_dsn) as engine:
        await engine.deploy(linear(1))
        run = await engine.start("linear")
    with pytest.raises(EngineStopped, match="the engine has stopped"):
        _ = run.status


async def test_user_tasks_and_signals(engine: TestEngine) -> None:
    flow = WorkflowBuilder("contract")
    flow.user_task("review", boundary=[boundary("P2D", "late")])
    flow.wait("signed")
    flow.end("done")
    flow.end("late")
    await engine.deploy(flow)
    run = await engine.start("contract")
    await run.signal("signed", {"early": True}, buffer=True)
    with pytest.raises(NotFound):
        await run.complete_task("signed-not")
    assert run.status == "WAITING"
    assert run.waits_for()[0].startswith("review: a user task is open; its timer goes to 'late' at ")
    await run.complete_task("review", {"ok": True}, by="ann")
    await run.finish()
    run.assert_path("review", "signed", "done")
    run.assert_variables(ok=True, early=True)
    with pytest.raises(Conflict):
        await run.cancel()


async def test_cancel_and_retry(engine: TestEngine) -> None:
    await engine.deploy(linear(1))
    engine.stub("work", fails("no money"), {"paid": True})
    run = await (await engine.start("linear")).settle()
    run.assert_failed("no money")
    await run.retry()
    (await run.settle()).assert_completed()
    other = await engine.start("linear")
    await other.cancel("changed my mind")
    assert (other.status, other.failure, other.open_steps) == ("CANCELLED", "changed my mind", [])


async def test_the_workflow_that_follows_is_a_run_as_well(engine: TestEngine) -> None:
    first = linear(1, definition_id="first") | {"autoStartNextWorkflow": True, "nextWorkflowId": "second"}
    await engine.deploy(linear(1, definition_id="second"), first)
    engine.stub("work")
    run = await engine.start("first", {"kept": 1})
    assert run.next is None
    await run.settle()
    assert run.next is not None
    run.next.assert_variables(kept=1)
    assert run.next.instance.parent_instance_id == run.id


# -- stubs


async def test_a_function_is_what_a_worker_takes_for_a_handler(engine: TestEngine) -> None:
    await engine.deploy(linear(2, retry_count=1))

    class Order(msgspec.Struct):
        amount: int

    async def charge(order: Order, job: JobContext) -> dict[str, Any]:
        await job.report(checkpoint={"seen": job.attempt}, progress="half")
        if job.attempt == 1:
            raise OSError("once")
        return {"charged": order.amount, "checkpoint": job.checkpoint}

    engine.stub("work", charge)
    run = await (await engine.start("linear", {"amount": 5})).settle()
    run.assert_variables(charged=5, checkpoint={"seen": 1})
    wrong = await (await engine.start("linear", {"amount": "five"})).settle()
    wrong.assert_failed("the variables do not fit Order")


async def test_checkpoints_of_a_worker_have_its_format(engine: TestEngine) -> None:
    await engine.deploy(linear(1, retry_count=2))
    old, new = Worker("http://nowhere.invalid"), Worker("http://nowhere.invalid")

    @old.handler("work", checkpoint_format=1)
    async def by_page(job: JobContext) -> None:
        await job.report(checkpoint={"page": 3})
        engine.use(new)
        raise OSError("once")

    @new.handler("work", checkpoint_format=2)
    async def by_row(job: JobContext) -> dict[str, Any]:
        if job.checkpoint is None:
            await job.report(checkpoint={"row": job.checkpoint_of(1)["page"] * 100})
            raise OSError("twice")
        return {"checkpoint": job.checkpoint}

    engine.use(old)
    run = await (await engine.start("linear")).settle()
    run.assert_variables(checkpoint={"row": 300})


async def test_a_handler_without_its_job_is_cancelled_as_in_production(engine: TestEngine) -> None:
    await engine.deploy(linear(1))
    seen: list[str] = []

    async def handler(job: JobContext) -> None:
        await engine.client.cancel_instance(job.instance_id)
        with pytest.raises(JobCancelled):
            await job.report(progress="half")
        seen.append(str(job.stop_reason))
        await trio.lowlevel.checkpoint()
        seen.append("went on")

    engine.stub("work", handler)
    run = await (await engine.start("linear")).settle()
    assert (run.status, seen) == ("CANCELLED", ["cancelled"])


async def test_a_result_that_the_engine_refuses_fails_the_job(engine: TestEngine) -> None:
    await engine.deploy(linear(1))
    engine.stub("work", {"text": "\0"})
    (await (await engine.start("linear")).settle()).assert_failed("the engine refused the result")


async def test_the_handlers_of_a_worker_do_its_jobs(engine: TestEngine) -> None:
    await engine.deploy(definition(service("a", "b", job_type="a"), service("b", "end", job_type="b"), end()))
    worker = Worker("http://nowhere.invalid")

    @worker.handler("a")
    def a() -> dict[str, int]:
        return {"a": 1}

    @worker.handler("b")
    async def b(variables: dict[str, Any]) -> dict[str, int]:
        return {"b": variables["a"] + 1}

    engine.use(worker)
    (await (await engine.start("test")).settle()).assert_variables(a=1, b=2)
    engine.stub("b", returns={"b": "stubbed"})
    (await (await engine.start("test")).settle()).assert_variables(b="stubbed")
    assert engine.stubs["a"].count == 2


async def test_wrong_uses_of_a_stub_are_reported(engine: TestEngine) -> None:
    with pytest.raises(TypeError, match="no argument 'return'"):
        engine.stub("x", **{"return": {}})  # pyright: ignore[reportArgumentType] - on purpose
    with pytest.raises(TypeError, match="either answers, or one of"):
        engine.stub("x", {}, returns={})
    with pytest.raises(ValueError, match="takes must not be negative"):
        engine.stub("x", takes=-1)
    with pytest.raises(TypeError, match="another parameter"):
        engine.stub("x", lambda variables, another, third: None)
    assert engine.stubs == {}


async def test_what_can_not_be_returned_is_reported_at_once(engine: TestEngine) -> None:
    for wrong in ([1], "text", {"x": float("nan")}, {"x": object()}):
        with pytest.raises(BadRequest):
            engine.stub("work", returns=wrong)


async def test_a_clock_of_trio_that_jumps_is_another_thing(engine: TestEngine, autojump_clock: MockClock) -> None:
    await engine.deploy(linear(1))

    async def slow() -> None:
        await trio.sleep(1000)

    engine.stub("work", slow)
    before = engine.now
    with trio.fail_after(1001):
        (await (await engine.start("linear")).finish()).assert_completed()
    assert engine.now == before


# -- what goes wrong


async def test_a_job_without_a_stub_waits_and_says_so(engine: TestEngine) -> None:
    await engine.deploy(linear(2))
    run = await engine.start("linear", {"x": 1})
    with pytest.raises(Stuck) as stuck:
        await run.finish()
    assert str(stuck.value).splitlines()[0] == (
        "nothing more will happen without an event from outside; the run of linear has not ended"
    )
    assert "task-1: a job of type 'work' waits for a worker, and there is no stub for it" in str(stuck.value)
    assert 'variables: {"x":1}' in str(stuck.value)


@at_start
async def test_a_run_that_ends_later_than_allowed_is_stuck(engine: TestEngine) -> None:
    await engine.deploy(definition(step("nap", "WAIT", duration="P2D", nextStep="end"), end()))
    run = await engine.start("test")
    with pytest.raises(Stuck, match="not before 2030-01-02 00:00:00Z"):
        await run.finish(within=dt.timedelta(days=1))
    await run.finish(within=dt.timedelta(days=2))


@pytest.mark.penstock(events_max=50)
async def test_a_loop_does_not_settle(engine: TestEngine) -> None:
    await engine.deploy(
        definition(service("a", "b"), step("b", "DECISION", conditionalNextSteps={"x": "end", "true": "a"}), end())
    )
    engine.stub("work")
    await engine.start("test", {"x": False})
    with pytest.raises(NotSettled, match=r"after 50 jobs and timers; the last of it:(\n.*'work' was done){12}$"):
        await engine.settle()


@pytest.mark.penstock(real_time_max_s=0)
async def test_too_long_a_call_in_real_time_is_given_up(engine: TestEngine) -> None:
    await engine.deploy(linear(2))
    engine.stub("work")
    await engine.start("linear")
    with pytest.raises(NotSettled, match="after 0 s of real time"):
        await engine.settle()


async def test_a_handler_that_hangs_is_given_up(engine: TestEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performer, "HANDLER_TIMEOUT_S", 0.05)
    await engine.deploy(linear(1))
    engine.stub("work", anyio.sleep_forever)
    await engine.start("linear")
    with pytest.raises(HandlerHangs, match=r"the handler of 'work' has not ended within 0\.05 s"):
        await engine.settle()


async def test_a_handler_can_not_let_time_pass(engine: TestEngine) -> None:
    await engine.deploy(linear(1))

    async def cheat() -> None:
        await engine.advance(days=1)

    engine.stub("work", cheat)
    run = await (await engine.start("linear")).settle()
    run.assert_failed("can't be called by a handler")


async def test_time_does_not_go_back(engine: TestEngine) -> None:
    before = engine.now
    with pytest.raises(ValueError, match="time does not go back"):
        await engine.advance(-1)
    with pytest.raises(TypeError, match="takes a duration"):
        await engine.advance(1, days=1)
    assert engine.now == before


def test_a_start_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a time zone"):
        TestEngine("", now=dt.datetime(2030, 1, 1))  # noqa: DTZ001 - that is the point


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(TypeError, match="there is no setting 'lease_maximum'"):
        TestEngine("", settings={"lease_maximum": 1})
    with pytest.raises(SettingsError, match="lease-expiry-limit: 'often' is not accepted"):
        TestEngine("", settings={"lease_expiry_limit": "often"})


async def test_a_missing_definition_is_reported_with_the_places(engine: TestEngine) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no odrer.json in .*tests/testing, nor in /"):
        await engine.deploy("odrer.json")
    await engine.deploy("../../examples/prime-count.json")
    await engine.deploy(Path("examples/prime-count.json").absolute())


async def test_a_definition_that_is_refused_says_all_that_is_wrong(engine: TestEngine) -> None:
    with pytest.raises(BadRequest) as refused:
        await engine.deploy(definition(service("a", "nowhere")))
    assert len(refused.value.problems) == 2


async def test_failing_assertions_tell_the_story(engine: TestEngine) -> None:
    await engine.deploy(linear(2, retry_count=1))
    engine.stub("work", {"paid": 1}, raises(OSError("no line")))
    run = await (await engine.start("linear")).settle()
    assert repr(run) == "<run of linear, FAILED: OSError: no line>"
    claims = {
        "did not complete": run.assert_completed,
        "did not fail because of 'poor'": lambda: run.assert_failed("poor"),
        "does not stand at ['task-2']": lambda: run.assert_at("task-2"),
        "did not go through ['task-1']": lambda: run.assert_path("task-1"),
        "did not pass ['task-2', 'task-1']": lambda: run.assert_passed("task-2", "task-1"),
        "has other variables: paid is 1, not 2; there is no x": lambda: run.assert_variables(paid=2, x=None),
    }
    for said, claim in claims.items():
        with pytest.raises(AssertionError) as failed:
            claim()
        first, status, _, *path = str(failed.value).splitlines()
        assert (first, status) == (f"the run of linear {said}", "  FAILED: OSError: no line")
        assert path[0].startswith("    task-1 COMPLETED at ")
        assert path[2] == "      attempt 1 FAILED: OSError: no line"
    run.assert_failed("no line")
    run.assert_at()
    run.assert_passed("task-2")
    run.assert_path("task-1", "task-2")


# -- around it


async def test_real_workers_reach_it_over_http_on_virtual_time(engine: TestEngine) -> None:
    await engine.deploy(
        definition(step("nap", "WAIT", duration="P30D", nextStep="task"), service("task", "end"), end())
    )
    async with engine.serve() as url:
        worker = Worker(url, wait_s=5)
        worker.handler("work")(lambda: {"by": "worker"})
        async with worker, Client(url) as client:
            started = await client.start_instance("test")
            await engine.advance(days=30)
            ended = await client.wait_until_ended(started.id, timeout_s=120)
        assert engine.run(started.id).variables == ended.variables == {"by": "worker"}
    with pytest.raises(httpx.ConnectError):
        async with httpx.AsyncClient(trust_env=False) as http:
            await http.get(url)


async def test_a_poll_that_waits_gets_a_job_whose_lease_ended(engine: TestEngine) -> None:
    await engine.deploy(linear(1))
    run = await engine.start("linear")
    [first] = await engine.client.poll_jobs("dies", ["work"], lease_s=30)

    async def take() -> None:
        request = PollRequest(worker_id="lives", job_types=["work"], wait_seconds=60)
        [second] = await engine.thread.call(engine.thread.engine.jobs.poll, request)
        await engine.client.complete_job(second.id, "lives", {"attempt": second.attempt})

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            while not len(engine.thread.engine.polls.waiters):
                await trio.lowlevel.checkpoint()
            await engine.advance(seconds=30)
    assert (first.attempt, run.status, run.variables) == (1, "COMPLETED", {"attempt": 2})


async def test_a_call_that_is_cancelled_is_cancelled_in_the_engine(engine: TestEngine) -> None:
    with trio.move_on_after(0.05):
        await engine.client.poll_jobs("w", ["work"], wait_s=60)
    await engine.deploy(linear(1))
    engine.stub("work")
    (await (await engine.start("linear")).settle()).assert_completed()
    assert len(engine.thread.engine.polls.waiters) == 0


async def test_an_engine_that_broke_is_reported_and_hangs_nobody(
    penstock_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = TestEngine(penstock_dsn)

    async def broken(items: object) -> None:
        raise LookupError("a bug")

    with pytest.raises(EngineStopped, match="the engine broke"), engine:
        await engine.deploy(linear(1))
        monkeypatch.setattr(engine.thread.engine.starts.keyed, "apply_batch", broken)
        with pytest.raises(EngineStopped):
            await engine.start("linear")
        with pytest.raises(EngineStopped):
            await engine.settle()
            await engine.start("linear")


def test_a_database_that_is_not_there_is_reported_at_once(penstock_dsn: str) -> None:
    with pytest.raises(Exception, match="does not exist"), TestEngine(make_conninfo(penstock_dsn, dbname="gone")):
        pytest.fail("it started")
