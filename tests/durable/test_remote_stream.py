"""The executor's side of a Work stream, without a network: answers, cancellation at every point, surplus runs."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, cast

import pytest
import trio
import trio.testing

from penstock.client.errors import ClientError, ConnectionFailed
from penstock.client.grpc.call import GrpcCall
from penstock.durable import remote, workflow
from penstock.durable.backend import Away, Refused, RunLeaseLost, Shown
from penstock.durable.remote import RemoteBackend
from penstock.durable.remote_runs import RemoteRuns
from penstock.durable.remote_stream import Link
from penstock.kernel.record import JournalKind, Record
from penstock.testing.cancellation import CancelledAttempt, Operation, cancel_everywhere
from penstock.wire import penstock_v1 as w
from penstock.wire import runs_v1 as r
from penstock.wire.codec import decode_message, encode_message


@workflow
async def order() -> None:
    pass


class Engine:
    """What a link calls: answers each read with its job, and remembers all other requests."""

    def __init__(self, outcome: w.OutcomeCode = w.OutcomeCode.OK) -> None:
        self.outcome = outcome
        self.requests: list[w.WorkRequest] = []
        self.runs: list[w.Run] = []
        """That come with the answer to the next park."""
        self.answers, self._answers = trio.open_memory_channel[w.WorkResponse](1_000)

    async def wait_taken(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send(self, body: bytes) -> None:
        await trio.lowlevel.checkpoint()
        request = decode_message(body, w.WorkRequest)
        self.requests.append(request)
        pages = [w.RunPage(item.job_id, item.attempt, self.outcome, marks=[item.after]) for item in request.reads]
        parked = [w.RunParked(item.job_id, item.attempt, self.outcome) for item in request.run_parks]
        appended = [w.RunAppended(item.job_id, item.attempt, self.outcome, reread=True) for item in request.appends]
        runs, self.runs = self.runs if parked else [], []
        await self.answers.send(w.WorkResponse(pages=pages, parked=parked, appended=appended, runs=runs))

    async def receive(self) -> bytes | None:
        try:
            return encode_message(await self._answers.receive())
        except trio.EndOfChannel:
            return None


def backend_of() -> RemoteBackend:
    runs = cast(Any, type("Runs", (), {"app": "", "names": type("Names", (), {"of": staticmethod(lambda id: "")})})())
    return RemoteBackend(cast(Any, None), runs, [order])


def link_to(engine: Engine, backend: RemoteBackend) -> Link:
    return Link(cast(GrpcCall, engine), "w", backend)


def run_of(number: int, attempt: int = 1) -> w.Run:
    now = datetime.now(UTC)
    fresh = attempt == 1
    return w.Run(f"job-{number}", attempt, "code:order@1", f"i-{number}", b"{}", now, now, 30_000, fresh=fresh)


async def test_a_cancelled_question_does_not_take_the_next_answer(nursery: trio.Nursery):
    engine = Engine()
    link = link_to(engine, backend_of())
    nursery.start_soon(link.run)
    await trio.testing.wait_all_tasks_blocked()

    async def prepare() -> Operation[w.RunPage]:
        return lambda: link.ask(w.RunRead("first", 1, "1"))

    async def check(attempt: CancelledAttempt[w.RunPage]) -> None:
        page = await link.ask(w.RunRead("second", 1, "2"))
        assert (page.job_id, page.marks) == ("second", ["2"])
        assert all(page.job_id == "first" for page in attempt.results)

    points = await cancel_everywhere(prepare, check)
    assert points.cancelled >= 1


async def test_a_run_at_a_cancelled_call_goes_to_the_next():
    backend = backend_of()
    link = link_to(Engine(), backend)

    async def prepare() -> Operation[list[Any]]:
        backend.accept(link, run_of(1))
        return lambda: backend.take(5, 30)

    async def check(attempt: CancelledAttempt[list[Any]]) -> None:
        taken = [leased.key for found in attempt.results for leased in found]
        assert backend.closed
        with trio.move_on_after(0):
            taken += [leased.key for leased in await backend.take(5, 0)]
        assert taken == ["job-1"]

    await cancel_everywhere(prepare, check)


async def test_leases_end_with_their_stream(nursery: trio.Nursery):
    engine, backend = Engine(), backend_of()
    link = link_to(engine, backend)
    await engine.answers.send(w.WorkResponse(runs=[run_of(1)]))
    outcome: list[ClientError] = []

    async def serve() -> None:
        try:
            await link.run()
        except ClientError as error:
            outcome.append(error)

    nursery.start_soon(serve)
    [leased] = await backend.take(5, 30)
    for code, error in ((w.OutcomeCode.UNAVAILABLE, Away), (w.OutcomeCode.INVALID, Refused)):
        engine.outcome = code
        with pytest.raises(error):
            await backend.read(leased, 0)
    engine.answers.close()
    assert await backend.wait_mailbox() == ["job-1"], "the executor looks at what it has lost"
    with pytest.raises(RunLeaseLost):
        await backend.read(leased, 0)
    assert [type(error) for error in outcome] == [ConnectionFailed]


async def test_runs_that_nobody_asks_for_any_more_go_back(nursery: trio.Nursery, autojump_clock: Any):
    engine, backend = Engine(), backend_of()
    link = link_to(engine, backend)
    nursery.start_soon(link.run)
    nursery.start_soon(backend.return_surplus)
    await engine.answers.send(w.WorkResponse(runs=[run_of(1)]))
    await trio.sleep(3 * remote.SURPLUS_WAIT_S)
    parks = [park for request in engine.requests for park in request.run_parks]
    assert [(park.job_id, park.give_back) for park in parks] == [("job-1", True)]
    assert not link.leased


async def test_a_batch_is_one_item_however_large_it_is(nursery: trio.Nursery):
    engine, backend = Engine(), backend_of()
    nursery.start_soon(link_to(engine, backend).run)
    await engine.answers.send(w.WorkResponse(runs=[run_of(1)]))
    [leased] = await backend.take(5, 30)
    records = [Record(0.0, JournalKind.DONE, f"/{n}", payload=f'"{"x" * 400_000}"') for n in range(6)]
    assert await backend.append(leased, records, 0, 0) is None, "the engine says that others have written, too"
    appends = [item for request in engine.requests for item in request.appends]
    assert [[record.path for record in item.records] for item in appends] == [[f"/{n}" for n in range(6)]]


async def test_a_run_that_comes_again_at_once_is_still_held(nursery: trio.Nursery):
    engine, backend = Engine(), backend_of()
    link = link_to(engine, backend)
    nursery.start_soon(_run_to_its_end, link)
    await engine.answers.send(w.WorkResponse(runs=[run_of(1)]))
    [leased] = await backend.take(5, 30)
    engine.runs = [run_of(1, attempt=2)]  # somebody wrote to it in the moment in which it was parked
    assert await backend.park(leased, 0, None, Shown())
    [again] = await backend.take(5, 30)
    assert (again.key, again.attempt) == ("job-1", 2)
    engine.answers.close()
    with trio.fail_after(30):
        assert await backend.wait_mailbox() == ["job-1"]


async def _run_to_its_end(link: Link) -> None:
    with suppress(ClientError):
        await link.run()


class Nowhere:
    """The channel of an address where no engine is for half a minute."""

    async def unary(self, *_: object, **__: object) -> Any:
        await trio.lowlevel.checkpoint()
        if trio.current_time() < self.until:
            raise ConnectionFailed("nobody listens")
        return r.RegisterWorkflowsResponse(1_000)

    def __init__(self) -> None:
        self.until = trio.current_time() + 30


async def test_the_first_connect_tells_that_nobody_answers(autojump_clock: Any, caplog: pytest.LogCaptureFixture):
    nowhere = Nowhere()
    runs = RemoteRuns(cast(Any, nowhere), "")
    await runs.register([order])
    assert "the engine is away: nobody listens. The next try is in 2.0 s" in caplog.messages
    assert re.fullmatch(r"the engine is back after 3\d\.\d s", caplog.messages[-1])
    caplog.clear()
    nowhere.until = trio.current_time() + 30
    await runs.register([order])
    assert not caplog.messages, "of later outages the stream tells"
    nowhere.until += 100
    with pytest.raises(ConnectionFailed):
        await RemoteRuns(cast(Any, nowhere), "").register([order])
