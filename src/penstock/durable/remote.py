"""An engine that the program is connected to: the journals of an executor, and what an `App` asks for its caller.

Runs come over one `Work` stream, and everything that is said of them goes there; it is opened again, with growing
pauses, for as long as the app is open. With a stream its leases end, so nothing is ever in doubt here: what an engine
did not answer stands in the journal, or does not, when the run is taken again.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any, Final

import trio

from penstock.client.backoff import RetryPauses
from penstock.client.errors import (
    BadRequest,
    ClientError,
    Conflict,
    IdempotencyConflict,
    InternalError,
    NotFound,
    PayloadTooLarge,
    Unauthenticated,
    Unavailable,
)
from penstock.client.grpc import GrpcTransport
from penstock.client.grpc.channel import Channel
from penstock.client.grpc.connection import GrpcLimits
from penstock.client.token import Token
from penstock.durable.backend import (
    AppendPermit,
    Away,
    Beat,
    Ending,
    JournalFull,
    LeasedRun,
    Opened,
    RecordPage,
    Refused,
    RunLeaseLost,
    Shown,
    Stored,
)
from penstock.durable.child import ChildCall
from penstock.durable.errors import NonRetryable, SendRefused, StartRefused
from penstock.durable.remote_runs import ANSWER_MAX_BYTES, AWAY, BACK, RemoteRuns, read_record
from penstock.durable.remote_stream import MESSAGE_MAX_BYTES, Link
from penstock.durable.run_ends import latest_waits_for
from penstock.durable.step import StepCall, StepInfo
from penstock.durable.workflow import Workflow
from penstock.kernel.operation import Outcome
from penstock.kernel.record import Record
from penstock.loop.taskless import need_task
from penstock.wire import penstock_v1 as w
from penstock.wire import runs_v1 as r

if TYPE_CHECKING:
    from penstock.durable.transaction import StepTransactions

CLOSE_MAX_S: Final = 2.0
SURPLUS_WAIT_S: Final = 1.0
"""A run that came when none was asked for any more goes back after so long."""
RECORD_BYTES: Final = 100
"""Of a record, beside its path and its payload."""
DUE_MAX_S: Final = 253_402_300_799.0
"""The end of the year 9999: what is due later never is."""
NO_DATABASE: Final = (
    "a transaction on Penstock's own database needs an App on that database (at='postgresql://…'). "
    "Over gRPC name the database: @step.transaction(at='postgresql://…')"
)
_WORK: Final = "/penstock.v1.Worker/Work"

log = logging.getLogger("penstock.durable")


@asynccontextmanager
async def open_remote(
    url: str,
    app: str,
    workflows: Sequence[Workflow[..., Any]],
    *,
    token: Token | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> AsyncGenerator[Opened]:
    """Connected for the block. What the engine refuses this program for good ends the block."""
    limits = GrpcLimits(max_message_bytes=ANSWER_MAX_BYTES)
    transport = GrpcTransport(url, token=token, ssl_context=ssl_context, limits=limits)
    try:
        runs = RemoteRuns(transport.channel, app)
        if not workflows:
            yield Opened(runs, None)
            return
        await runs.register(workflows)
        backend = RemoteBackend(transport.channel, runs, workflows)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(backend.serve)
            try:
                yield Opened(runs, backend)
            finally:
                backend.close()
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_MAX_S):
            await transport.aclose()


class RemoteBackend:
    """The journals of one app's workflows, for one executor."""

    def __init__(self, channel: Channel, runs: RemoteRuns, workflows: Sequence[Workflow[..., Any]]) -> None:
        self._channel, self._runs = channel, runs
        self._by_type = {_job_type(runs.app, each): each for each in workflows}
        self._worker_id = f"{runs.app or 'app'}-{os.getpid()}"
        self._link: Link | None = None
        self._away_since: float | None = None
        self._arrived: dict[str, tuple[Link, w.Run, float]] = {}
        self._asked = 0
        self._came = trio.Event()
        self._mail: dict[str, None] = {}
        self._mailed = trio.Event()
        self._watches: set[str] = set()  # of these news, those that somebody waits for what the run shows
        self._transactions: StepTransactions | None = None

    # -- the stream

    async def serve(self) -> None:
        """Until cancelled. Raises what the engine refuses for good."""
        backoff, was_in = RetryPauses(), False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.return_surplus)
            while True:
                link: Link | None = None
                try:
                    try:
                        async with self._channel.open(_WORK) as call:
                            link = self._link = Link(call, self._worker_id, self)
                            await link.run()
                    finally:
                        self._link = None
                        self._arrived.clear()
                except ClientError as error:
                    if link is not None and link.answered:
                        was_in = True
                        backoff.reset()
                    passes = isinstance(error, Unavailable | InternalError)
                    if not (passes or (was_in and isinstance(error, Unauthenticated))):
                        raise
                    pause_s = backoff.next_pause_s(error if isinstance(error, Unavailable) else None)
                    log.warning(AWAY, error.reason, pause_s)
                    if self._away_since is None:
                        self._away_since = trio.current_time()
                    await trio.sleep(pause_s)

    async def return_surplus(self) -> None:
        """Give back what came when none was asked for any more. Until cancelled."""
        while True:
            await trio.sleep(SURPLUS_WAIT_S)
            early = trio.current_time() - SURPLUS_WAIT_S
            for job_id, (link, run, came_at) in list(self._arrived.items()):
                if came_at < early and not self._asked and self._arrived.pop(job_id, None) is not None:
                    try:
                        await link.ask(w.RunPark(job_id, run.attempt, give_back=True))
                    except (RunLeaseLost, Away, Refused) as error:
                        log.debug("a run could not be released: %s", error)
                    link.end_lease(job_id, run.attempt)

    @property
    def job_types(self) -> Sequence[str]:
        """Of the app's workflows."""
        return list(self._by_type)

    @property
    def free_slots(self) -> int:
        """For so many runs somebody waits."""
        return max(self._asked - len(self._arrived), 0)

    @property
    def closed(self) -> bool:
        """Nobody waits: not even a few may come."""
        return not self._asked

    def opened(self) -> None:
        """From the stream."""
        if self._away_since is not None:
            log.warning(BACK, trio.current_time() - self._away_since)
            self._away_since = None

    def accept(self, link: Link, run: w.Run) -> None:
        """From the stream."""
        self._arrived[run.job_id] = (link, run, trio.current_time())
        self._came.set()
        self._came = trio.Event()

    def notice_run(self, job_id: str) -> None:
        """From the stream."""
        self._watches.discard(job_id)  # its journal is to be read: that is more
        self._notify(job_id)

    def _notify(self, job_id: str) -> None:
        self._mail[job_id] = None
        self._mailed.set()

    def watch(self, job_id: str) -> None:
        """From the stream."""
        if job_id not in self._mail:
            self._watches.add(job_id)
            self._notify(job_id)

    # -- what an executor asks

    async def take(self, max_runs: int, max_wait_s: float) -> list[LeasedRun]:
        """Runs under lease."""
        self._ask_for(max_runs)
        try:
            with trio.move_on_after(max_wait_s):
                while not self._arrived:
                    await self._came.wait()
        finally:
            self._ask_for(-max_runs)
        found: list[LeasedRun] = []
        while self._arrived and len(found) < max_runs:
            job_id = next(iter(self._arrived))
            link, run, came_at = self._arrived.pop(job_id)
            found.append(self._leased(link, run, trio.current_time() - came_at))
        return found

    def _ask_for(self, count: int) -> None:
        self._asked += count
        if self._link is not None:
            self._link.on_free_slots()

    def _leased(self, link: Link, run: w.Run, age_s: float) -> LeasedRun:
        workflow = self._by_type[run.job_type]
        assert run.started_at is not None
        assert run.taken_at is not None
        return LeasedRun(
            key=run.job_id,
            id=run.instance_id,
            attempt=run.attempt,
            workflow=workflow.name,
            version=workflow.version,
            arguments=run.arguments.decode(),
            started_at=run.started_at.timestamp(),
            now=run.taken_at.timestamp(),
            lease_s=run.lease_ms / 1_000 - age_s,
            fresh=run.fresh,
            expiries=run.expiries,
            fence=link,
            name=run.key or self._runs.names.of(run.instance_id),
            page=None if run.page is None else _page(run.page),
            rules=run.rules,
        )

    async def wait_mailbox(self) -> list[str]:
        """Keys of runs that were told something, or lost."""
        while not self._mail:
            self._mailed = trio.Event()
            await self._mailed.wait()
        keys, self._mail = list(self._mail), {}
        return keys

    def was_watch(self, key: str) -> bool:
        """Return whether somebody waits for what the run shows."""
        if key not in self._watches:
            return False
        self._watches.discard(key)
        return True

    async def read(self, leased: LeasedRun, after: int) -> RecordPage:
        """Return a page of the journal."""
        return _page(await _link(leased).ask(w.RunRead(leased.key, leased.attempt, after=f"{after:x}")))

    async def marks(self, leased: LeasedRun) -> list[str]:
        """Of a long journal."""
        page: w.RunPage = await _link(leased).ask(w.RunRead(leased.key, leased.attempt, marks=True))
        return page.marks

    async def append(self, leased: LeasedRun, records: Sequence[Record], after: int, mail: int) -> list[Stored] | None:
        """Write records: as one item, as an engine writes that as a whole or not at all."""
        await need_task()
        made = [_new_record(record) for record in records]
        item = w.RunAppend(leased.key, leased.attempt, f"{after:x}", mail, [record for record, _ in made])
        try:
            answer: w.RunAppended = await _link(leased).ask(item, sum(size_bytes for _, size_bytes in made))
        except Refused as error:
            if error.args[1].full:
                raise JournalFull(error.args[0]) from None
            raise
        if answer.reread or answer.at is None:
            return None
        at = answer.at.timestamp()
        return [Stored(int(position, 16), at) for position in answer.positions]

    async def park(self, leased: LeasedRun, mail: int, due: float | None, shown: Shown) -> bool:
        """Give the run up until then."""
        await need_task()
        due_at = None if due is None or due == inf else datetime.fromtimestamp(min(due, DUE_MAX_S), UTC)
        view, branches = _bytes(shown.view), _branches(shown)
        item = w.RunPark(leased.key, leased.attempt, mail, due_at, view, branches)
        answer: w.RunParked = await _link(leased).ask(item, len(view) + len(branches))
        return self._end_lease(leased, not answer.unread)

    def _end_lease(self, leased: LeasedRun, done: bool) -> bool:
        if done:
            _link(leased).end_lease(leased.key, leased.attempt)
        return done

    async def finish(self, leased: LeasedRun, mail: int, ending: Ending) -> bool:
        """End the run."""
        await need_task()
        view, failure = _bytes(ending.view), ending.failure
        if failure is not None:
            failure = failure[: self._runs.payload_max_bytes]
        item = w.RunFinish(
            leased.key, leased.attempt, mail,
            result=ending.result, failure=failure, cancelled=ending.cancelled, view=view, error=ending.error or "",
        )  # fmt: skip
        size_bytes = len((ending.result or failure or "").encode()) + len(view) + len(item.error.encode())
        answer: w.RunFinished = await _link(leased).ask(item, size_bytes)
        return self._end_lease(leased, not answer.unread)

    async def continue_as_new(self, leased: LeasedRun, mail: int, begun: Record, kept: Sequence[int]) -> bool:
        """As a new run."""
        record, size_bytes = _new_record(begun)
        item = w.RunFinish(leased.key, leased.attempt, mail, begun=record, kept=[f"{pos:x}" for pos in kept])
        answer: w.RunFinished = await _link(leased).ask(item, size_bytes)
        return not answer.unread

    async def block(self, leased: LeasedRun, reason: str) -> float:
        """Blocked on code."""
        answer: w.RunParked = await _link(leased).ask(
            w.RunPark(leased.key, leased.attempt, blocked_on=reason or "blocked")
        )
        self._end_lease(leased, done=True)
        return answer.pause_ms / 1_000

    async def release(self, leased: LeasedRun) -> None:
        """For others to take."""
        await _link(leased).ask(w.RunPark(leased.key, leased.attempt, give_back=True))
        self._end_lease(leased, done=True)

    async def transact(
        self,
        leased: LeasedRun,
        call: StepCall,
        info: StepInfo,
        after: int,
        permit: AppendPermit,
        limiter: trio.CapacityLimiter,
    ) -> Outcome:
        """A step that is a transaction, in a database of the program's own."""
        from penstock.durable.transaction import Fence, StepTransactions

        if call.step.database is None:
            return Outcome(error=NonRetryable(f"{call.name}: {NO_DATABASE}"))
        if self._transactions is None:
            self._transactions = StepTransactions("", None)
        max_bytes = self._runs.payload_max_bytes
        fence = Fence(0, 0, leased.attempt, "", "")  # of the journals' database: not used here
        return await self._transactions.run(leased, fence, call, info, after, permit, limiter, max_bytes)

    def close(self) -> None:
        """End what transactions of steps have left open."""
        if self._transactions is not None:
            self._transactions.close()

    async def start(self, workflow: str, version: int, arguments: str, id: str) -> str:
        """Return a run of a workflow of this app, whoever serves it."""
        try:
            return (await self._runs.start(workflow, version, arguments, id)).instance_id
        except (Conflict, IdempotencyConflict, BadRequest, PayloadTooLarge) as error:
            raise StartRefused(error.reason) from None

    async def start_child(self, leased: LeasedRun, path: str, call: ChildCall, id: str) -> None:
        """A run of a workflow of this app, or an instance of a definition."""
        item = w.RunChild(leased.key, leased.attempt, path, id=call.id or "", key=id, arguments=call.arguments.encode())
        if isinstance(call.target, str):
            item.definition_id = call.target
        else:
            item.app, item.workflow, item.version = self._runs.app, call.target.name, call.target.version
        try:
            await _link(leased).ask(item, len(item.arguments))
        except Refused as error:
            raise StartRefused(error.args[0]) from None

    async def cancel_child(self, leased: LeasedRun, path: str) -> bool:
        """Ask it to end."""
        answer: w.RunChildAnswer = await _link(leased).ask(w.RunChild(leased.key, leased.attempt, path, cancel=True))
        return not answer.unknown

    async def waits_for(self, workflow: str) -> str | None:
        """What the latest run waits for."""
        return await latest_waits_for(self._runs, workflow)

    async def send(self, run_id: str, name: str, payload: str, dedup: str, *, sender: str, force: bool = False) -> None:
        """A message to a run of this app's workflows, or of any."""
        names = list(dict.fromkeys(each.name for each in self._by_type.values()))
        to = r.FindRunRequest(self._runs.app, run_id, names, or_any=True)
        try:
            request = r.SendToRunRequest("", to, name, payload.encode(), dedup, force, sender)
            await self._runs.send_to(request, run_id)
        except (NotFound, Conflict, BadRequest, PayloadTooLarge) as error:
            raise SendRefused(error.reason) from None

    async def extend(self, leased: LeasedRun, shown: Shown) -> Beat:
        """Return a heartbeat."""
        item = w.RunExtend(leased.key, leased.attempt, _bytes(shown.view), _branches(shown))
        answer: w.RunExtended = await _link(leased).ask(item, len(item.view) + len(item.branches))
        return Beat(answer.lease_ms / 1_000, answer.mail)


def _job_type(app: str, workflow: Workflow[..., Any]) -> str:
    return f"code:{app}:{workflow.name}@{workflow.version}" if app else f"code:{workflow.name}@{workflow.version}"


def _link(leased: LeasedRun) -> Link:
    assert isinstance(leased.fence, Link)
    return leased.fence


def _bytes(text: str | None) -> bytes:
    return b"" if text is None else text.encode()


def _branches(shown: Shown) -> bytes:
    """None of them where they are too many for a message: a look at a run is not worth its end."""
    branches = _bytes(shown.branches)
    return branches if len(branches) <= MESSAGE_MAX_BYTES else b"[]"


def _new_record(record: Record) -> tuple[w.RunRecord, int]:
    """And about how many bytes it has in a message."""
    message = w.RunRecord(
        kind=record.kind,
        path=record.path,
        name=record.name,
        payload=record.payload,
        digest=record.digest,
        attempt=record.attempt,
        took_ms=record.took_ms,
        mark=record.mark,
        rules=record.rules,
    )
    return message, RECORD_BYTES + len(record.path.encode()) + len((record.payload or "").encode())


def _page(page: w.RunPage) -> RecordPage:
    return RecordPage([read_record(record) for record in page.records], page.mail, page.more)
