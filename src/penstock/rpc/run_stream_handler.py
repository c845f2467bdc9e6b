"""The runs of an executor's ``Work`` stream: what it says of them and is told, through the group-commit queues that a
process of its own would use. `work_stream` carries the messages, and gives back what is held when the stream ends.

The answers of each list come in the order of its items. Each item is dealt with in a task of its own, as the
group-commit queues make statements of many; of journals at most ``PAGES_MAX`` are read ahead of the client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import trio

from penstock.access.identity import check_app, may
from penstock.api.permission import Permission
from penstock.core.graph.definition import BUSINESS_KEY_MAX_CHARS
from penstock.core.rules.state import InstanceStatus
from penstock.engine.engine import Engine
from penstock.engine.jobs.streams import JobStream
from penstock.engine.queues.journal_items import (
    APPENDED,
    PATH_MAX_CHARS,
    UPDATE_RULES,
    WATCH,
    ClaimedRun,
    JournalPage,
    NewRecord,
    RunEnd,
    RunLease,
)
from penstock.engine.requests import ids
from penstock.engine.requests.payload import EMPTY_OBJECT, check_count, check_text
from penstock.engine.runs.children import own_id
from penstock.engine.runs.code import CodeWorkflow
from penstock.engine.runs.records import run_record, time_of
from penstock.errors import BadRequest, Forbidden, JournalTooLong, LeaseLost, PenstockError, Unavailable
from penstock.errors import TooManyRequests as Busy
from penstock.loop.offload import run_sized
from penstock.rpc.reading import given, read_variables, required
from penstock.store.db.database import AWAY, first_line
from penstock.wire import penstock_v1 as w
from penstock.wire.fields import json_text
from penstock.wire.model import Job

PAGES_MAX: Final = 4
"""Pages of journals that are read and not sent."""
PAGE_MAX_BYTES: Final = 1024 * 1024
"""Of payloads in one page, and of what is taken in one message; gRPC clients take 4 MiB by default."""
PENDING_MAX_BYTES: Final = 8 * 1024 * 1024
"""Of items that are not answered; beyond it nothing is read from the client."""
RECORD_BYTES: Final = 100
"""Of a record, beside its path and its payload."""
PAUSE_MAX_MS: Final = (1 << 32) - 1
NUMBER_MAX: Final = (1 << 31) - 1
TOO_OLD: Final = (
    "an App with a newer penstock has gone on with this run, by rules that this one does not know: "
    "upgrade penstock in all Apps that serve the workflow"
)

Item: TypeAlias = w.RunAppend | w.RunPark | w.RunFinish | w.RunRead | w.RunChild | w.RunExtend


class _Kind(NamedTuple):
    """One list of items, and that of its answers."""

    items: str
    answers: str
    answer_type: Callable[..., Any]
    serve: Callable[[RunLease, Any, Any], Awaitable[None]]
    """Fills in the answer. Raises what its outcome is made of."""


class _PendingItem:
    """An item, until it is answered."""

    __slots__ = ("answer", "is_done", "item", "kind", "settles", "size_bytes")

    def __init__(self, kind: _Kind, item: Item, settles: int | None) -> None:
        self.kind, self.item = kind, item
        self.answer: Any = kind.answer_type(job_id=item.job_id, attempt=item.attempt)
        self.is_done = False
        self.settles = settles  # the attempt that it ends on this stream, if any
        self.size_bytes = _size(item)


class RunStreamHandler:
    """See the module. ``wake`` is called when `compose` may have something."""

    def __init__(self, engine: Engine, jobs: JobStream, wake: Callable[[], None], rules: int) -> None:
        """``rules``: the newest version of them that the executor knows."""
        self._engine, self._jobs, self._wake, self._rules = engine, jobs, wake, rules
        self._kinds = (
            _Kind("appends", "appended", w.RunAppended, self._append),
            _Kind("run_parks", "parked", w.RunParked, self._park),
            _Kind("finishes", "finished", w.RunFinished, self._finish),
            _Kind("reads", "pages", w.RunPage, self._read),
            _Kind("children", "children", w.RunChildAnswer, self._child),
            _Kind("extends", "extended", w.RunExtended, self._extend),
        )
        self._pending_items: dict[str, deque[_PendingItem]] = {kind.answers: deque() for kind in self._kinds}
        self._nursery: trio.Nursery
        self._reads: deque[_PendingItem] = deque()  # not begun
        self._reading = 0
        self._describing = 0
        self._claimed: deque[tuple[w.Run, int]] = deque()
        self._mail: dict[str, int] = {}
        self._watches: dict[str, None] = {}  # runs of which somebody waits for what they show
        self._job_ids: dict[int, str] = {}  # by instance, of what the executor has
        self.pending_bytes = 0

    async def run(self, nursery: trio.Nursery, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tell of mail until cancelled. Items are dealt with in the nursery."""
        self._nursery = nursery
        journal, holder = self._engine.journal, self._jobs.worker
        journal.open_mailbox(holder)
        task_status.started()
        try:
            while True:
                for mail in await journal.wait_mailbox(holder):
                    job_id = self._job_ids.get(mail.instance)
                    if job_id is not None and mail.mail == WATCH:
                        self._watches[job_id] = None
                    elif job_id is not None:
                        self._mail[job_id] = mail.mail
                self._wake()
        finally:
            journal.close_mailbox(holder)

    # -- in

    def take(self, request: w.WorkRequest) -> int:
        """Begin with the items of a message; how many there are. Raises BadRequest for too many."""
        count = 0
        for kind in self._kinds:
            items: Sequence[Item] = getattr(request, kind.items)
            check_count(len(items), kind.items)
            count += len(items)
            for item in items:
                ends = isinstance(item, w.RunPark | w.RunFinish)
                pending_item = _PendingItem(kind, item, self._on_reported(item) if ends else None)
                self._pending_items[kind.answers].append(pending_item)
                self.pending_bytes += pending_item.size_bytes
                if isinstance(item, w.RunRead):
                    self._reads.append(pending_item)
                else:
                    self._nursery.start_soon(self._serve, pending_item)
        self._read_on()
        return count

    def _read_on(self) -> None:
        while self._reads and self._reading < PAGES_MAX:
            self._reading += 1
            self._nursery.start_soon(self._serve, self._reads.popleft())

    async def _serve(self, pending_item: _PendingItem) -> None:
        item, answer = pending_item.item, pending_item.answer
        try:
            if not self._jobs.holds(item.job_id, item.attempt):
                raise LeaseLost("this stream has no lease for the run, or has it no longer")
            job = ids.read_job(item.job_id)
            await pending_item.kind.serve(
                RunLease(job.instance, job.seq, item.attempt, self._jobs.worker), item, answer
            )
            answer.outcome = w.OutcomeCode.OK
        except (PenstockError, *AWAY) as error:
            answer.outcome = _outcome(error)
            answer.reason = error.reason if isinstance(error, PenstockError) else first_line(error)
        self._settle(pending_item)
        pending_item.is_done = True
        self._wake()

    def _on_reported(self, item: Item) -> int | None:
        return self._jobs.on_reported(item.job_id, item.attempt) if item.attempt else None  # 0 is no attempt here

    def _settle(self, pending_item: _PendingItem) -> None:
        answer, item = pending_item.answer, pending_item.item
        is_lost = answer.outcome == w.OutcomeCode.LEASE_LOST
        attempt = pending_item.settles
        if attempt is None and is_lost:
            attempt = self._on_reported(item)
        if attempt is None:
            return
        goes_on = isinstance(item, w.RunFinish) and item.begun is not None
        has_left = is_lost or (answer.outcome == w.OutcomeCode.OK and not answer.unread and not goes_on)
        self._jobs.on_settled(item.job_id, attempt, final=has_left)
        if has_left:
            self.forget([item.job_id])

    def forget(self, job_ids: Iterable[str]) -> None:
        """The executor does not have these runs any more."""
        for job_id in job_ids:
            self._job_ids.pop(ids.read_job(job_id).instance, None)

    # -- out

    @property
    def has_taken(self) -> bool:
        """Return whether runs wait to be sent: no more are taken then."""
        return bool(self._claimed or self._describing)

    @property
    def is_idle(self) -> bool:
        """Return whether everything is answered."""
        return not self._describing and not any(self._pending_items.values())

    def describe(self, jobs: Sequence[Job]) -> None:
        """Runs were leased: tell what the executor needs of them."""
        for job in jobs:
            self._job_ids[ids.read_job(job.id).instance] = job.id
        self._describing += 1
        self._nursery.start_soon(self._describe, jobs)

    async def _describe(self, jobs: Sequence[Job]) -> None:
        try:
            runs = await self._engine.code.claimed(jobs)
            beyond = set[int]()
            if self._rules < UPDATE_RULES:
                beyond = await self._engine.code.beyond_rules([run.run_lease.instance for run in runs], self._rules)
            for job, claimed in zip(jobs, runs, strict=True):
                if claimed.run_lease.instance in beyond:
                    self._nursery.start_soon(self._stand_back, job, claimed.run_lease)
                else:
                    self._claimed.append(_run(job, claimed, self._rules))
        except PenstockError:  # they went back to the queue, and the credit for them is as it was
            self.forget(job.id for job in jobs)
            for job in jobs:
                attempt = self._jobs.on_reported(job.id, job.attempt or 0)
                if attempt is not None:
                    self._jobs.on_settled(job.id, attempt, final=True)
                self._jobs.grant(job.job_type, 1)
        self._describing -= 1
        self._wake()

    async def _stand_back(self, job: Job, held: RunLease) -> None:
        """A run that this executor is too old for waits for another one."""
        with suppress(PenstockError, *AWAY):  # then the end of the lease brings it back
            await self._engine.journal.block(held, TOO_OLD)
        self.forget([job.id])
        attempt = self._jobs.on_reported(job.id, held.attempt)
        if attempt is not None:
            self._jobs.on_settled(job.id, attempt, final=True)
        self._jobs.grant(job.job_type, 1)
        self._wake()

    def compose(self, message: w.WorkResponse) -> int:
        """Put what is there into a message; how many items it answers."""
        count = size_bytes = 0
        for name, slots in self._pending_items.items():
            answers: list[Any] = getattr(message, name)
            while slots and slots[0].is_done and size_bytes < PAGE_MAX_BYTES:
                pending_item = slots.popleft()
                answers.append(pending_item.answer)
                self.pending_bytes -= pending_item.size_bytes
                count += 1
                if isinstance(pending_item.item, w.RunRead):
                    self._reading -= 1
                    size_bytes += _records_size(pending_item.answer.records)
        while self._claimed and size_bytes < PAGE_MAX_BYTES:
            run, run_bytes = self._claimed.popleft()
            message.runs.append(run)
            size_bytes += run_bytes
        if self._mail:
            message.mail += [w.RunMail(job_id, mail) for job_id, mail in self._mail.items()]
            self._mail.clear()
        if self._watches:
            message.mail += [w.RunMail(job_id, WATCH) for job_id in self._watches]
            self._watches.clear()
        self._read_on()
        return count

    # -- one item each

    async def _append(self, held: RunLease, item: w.RunAppend, answer: w.RunAppended) -> None:
        records = await run_sized(_size(item), lambda: [_new_record(record) for record in item.records])
        try:
            appended = await self._engine.journal.append(
                held, records, after=read_position(item.after, "after"), mail=item.mail
            )
        except JournalTooLong:
            answer.full = True
            raise
        answer.reread = appended.reread or appended.mail != item.mail
        if not answer.reread:
            answer.positions = [f"{place.pos:x}" for place in appended.placed]
            answer.at = time_of(appended.placed[0].at)

    async def _park(self, held: RunLease, item: w.RunPark, answer: w.RunParked) -> None:
        journal = self._engine.journal
        if item.give_back:
            await journal.release(held)
        elif item.blocked_on:
            answer.pause_ms = min(round(1_000 * await journal.block(held, item.blocked_on)), PAUSE_MAX_MS)
        else:
            due_at = None if item.due_at is None else item.due_at.timestamp()
            view, branches = journal.fit_view(item.view or None), item.branches or None
            answer.unread = not await journal.park(held, mail=item.mail, due_at=due_at, view=view, branches=branches)

    async def _finish(self, held: RunLease, item: w.RunFinish, answer: w.RunFinished) -> None:
        journal = self._engine.journal
        if item.begun is not None:
            kept = [read_position(each, "kept") for each in item.kept]
            payload, name = item.begun.payload or "", item.begun.name or ""
            done = await journal.continue_as_new(held, payload, name=name, mail=item.mail, kept=kept)
        else:
            done = await journal.finish(held, _end(item, journal.fit_view(item.view or None)), mail=item.mail)
        answer.unread = not done

    async def _read(self, held: RunLease, item: w.RunRead, answer: w.RunPage) -> None:
        journal = self._engine.journal
        if item.marks:
            answer.marks = await journal.marks(held.instance)
            return
        page = await journal.read(held.instance, read_position(item.after, "after"), max_bytes=PAGE_MAX_BYTES)
        if page.mail is None:
            raise LeaseLost("the run has ended")
        _fill(answer, page)

    async def _child(self, held: RunLease, item: w.RunChild, answer: w.RunChildAnswer) -> None:
        children, limits = self._engine.children, self._engine.limits
        check_text(item.path, "path", PATH_MAX_CHARS)
        if item.cancel:
            answer.unknown = not await children.cancel(held, item.path)
            return
        target: CodeWorkflow | str = given(item.definition_id, "definition_id") or CodeWorkflow(
            required(item.workflow, "workflow"), item.version, item.app
        )
        if isinstance(target, CodeWorkflow):
            check_app(target.app, Permission.OPERATE)
        elif not may(Permission.OPERATE):
            raise Forbidden(
                "definition_id: starting an instance of a definition needs the role operator in addition to executor"
            )
        id = item.id or own_id(required(item.key, "key"), held.seq)
        check_text(id, "id", BUSINESS_KEY_MAX_CHARS)
        arguments = await read_variables(item.arguments, limits, "arguments") or EMPTY_OBJECT
        await children.start(held, item.path, target, arguments, id)

    async def _extend(self, held: RunLease, item: w.RunExtend, answer: w.RunExtended) -> None:
        journal = self._engine.journal
        view = journal.fit_view(item.view or None)
        extended = await journal.extend(held, view=view, branches=item.branches or None)
        answer.lease_ms, answer.mail = max(round(1_000 * extended.lease_left_s), 0), extended.mail


def _outcome(error: BaseException) -> w.OutcomeCode:
    if isinstance(error, LeaseLost):
        return w.OutcomeCode.LEASE_LOST
    if isinstance(error, Unavailable | Busy) or not isinstance(error, PenstockError):
        return w.OutcomeCode.UNAVAILABLE
    return w.OutcomeCode.INVALID


def read_position(text: str, field: str) -> int:
    """Return a place in a journal; empty is before its beginning. Raises BadRequest."""
    try:
        number = int(text or "0", 16)
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise BadRequest(f"{field}: {text[:40]!a} is not a position")
    return number


def _size(item: Item) -> int:
    match item:
        case w.RunAppend():
            return _records_size(item.records)
        case w.RunFinish():
            begun = 0 if item.begun is None else _records_size([item.begun])
            return len(item.result or "") + len(item.failure or "") + len(item.view) + begun + sum(map(len, item.kept))
        case w.RunPark():
            return len(item.view) + len(item.branches) + len(item.blocked_on)
        case w.RunExtend():
            return len(item.view) + len(item.branches)
        case w.RunChild():
            return len(item.arguments) + len(item.path) + len(item.id) + len(item.key) + len(item.definition_id)
        case w.RunRead():
            return 0


def _records_size(records: Sequence[w.RunRecord]) -> int:
    return sum(RECORD_BYTES + len(record.path) + len(record.payload or "") for record in records)


def _end(item: w.RunFinish, view: bytes | None) -> RunEnd:
    if item.error:
        _check_json(item.error, "error")
    if item.result is not None:
        output = b'{"result":' + item.result.encode() + b"}"
        return RunEnd(InstanceStatus.COMPLETED, output=output, view=view, error=item.error or None)
    if item.cancelled:
        return RunEnd(InstanceStatus.CANCELLED, failure=item.failure, view=view, error=item.error or None)
    return RunEnd(InstanceStatus.FAILED, failure=item.failure or "failed", view=view, error=item.error or None)


def _check_json(text: str, what: str) -> None:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"{what}: is not JSON: {error}") from None


def _new_record(record: w.RunRecord) -> NewRecord:
    """Raises BadRequest for what is none of an executor's, and would be refused by the database only."""
    if record.kind not in APPENDED:
        raise BadRequest(f"kind: {record.kind} is not one that an executor writes")
    if (record.rules or 0) > UPDATE_RULES:
        raise BadRequest(f"rules: this engine knows rules up to version {UPDATE_RULES}")
    if record.attempt < 0 or (record.took_ms or 0) > NUMBER_MAX:
        raise BadRequest(f"attempt, took_ms: must be between 0 and {NUMBER_MAX}")
    if record.payload is not None and not record.payload.startswith("~"):
        _check_json(record.payload, "payload")
    return NewRecord(
        kind=record.kind,
        path=record.path,
        name=record.name,
        payload=record.payload,
        digest=record.digest,
        attempt=record.attempt,
        took_ms=record.took_ms,
        mark=record.mark,
        rules=record.rules or 0,
    )


def _fill(answer: w.RunPage, page: JournalPage) -> w.RunPage:
    answer.records = [run_record(row) for row in page.records]
    answer.mail, answer.more = page.mail or 0, page.more
    return answer


def _run(job: Job, claimed: ClaimedRun, rules: int) -> tuple[w.Run, int]:
    """What the executor is told, and how many bytes that is about."""
    is_fresh = claimed.run_lease.attempt == 1 and claimed.mail == 0
    page = None if claimed.page is None or is_fresh else _fill(w.RunPage(), claimed.page)
    arguments = json_text(claimed.arguments)
    run = w.Run(
        job_id=job.id,
        attempt=claimed.run_lease.attempt,
        job_type=claimed.job_type,
        instance_id=claimed.instance_id,
        arguments=arguments,
        started_at=time_of(claimed.started_at),
        taken_at=time_of(claimed.taken_at),
        lease_ms=max(round(1_000 * claimed.lease_left_s), 0),
        fresh=is_fresh,
        expiries=claimed.expiries,
        key=claimed.key or "",
        page=page,
        rules=min(claimed.rules, rules),
    )
    return run, len(arguments) + (0 if page is None else _records_size(page.records))
