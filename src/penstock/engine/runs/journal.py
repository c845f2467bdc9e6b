"""The journals of runs: what executors append, what others tell, and the states in between (held, parked, blocked).

Everybody who has something for a run writes into one journal, in one order, under the lock of its token. ``token.mail``
counts what others wrote: parking and ending are refused while the holder has not seen all of it.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
import trio

from penstock.core.rules.fencing import CallKind, FenceRequest
from penstock.core.rules.state import InstanceStatus
from penstock.engine.advance.timers import Timers
from penstock.engine.group_commit.queue import RETRY_FIRST_S, RETRY_MAX_S, GroupCommitQueue
from penstock.engine.jobs.jobs import Jobs
from penstock.engine.queues.events import Events
from penstock.engine.queues.heartbeats import HeartbeatCall
from penstock.engine.queues.journal_items import (
    PATH_MAX_CHARS,
    WATCH,
    AppendAnswer,
    ExtendedRun,
    JournalPage,
    MailboxNotice,
    NewRecord,
    RecordKind,
    RunEnd,
    RunLease,
)
from penstock.engine.queues.polls import Polls
from penstock.engine.queues.releases import ReleaseItem
from penstock.engine.requests.paging import NAME_MAX_CHARS
from penstock.engine.requests.payload import PayloadLimits, check_json_value, check_text, check_variables, clean_text
from penstock.engine.runs.journal_queues import (
    END_STEP,
    AppendItem,
    BlockItem,
    ContinueItem,
    FinishItem,
    JournalQueues,
    NotifyItem,
    ParkItem,
    WakeItem,
)
from penstock.engine.runs.subscriptions import RunSubscriptions
from penstock.errors import (
    BadRequest,
    Conflict,
    JournalTooLong,
    LeaseLost,
    PayloadTooLarge,
    TooManyRequests,
    Unavailable,
)
from penstock.settings import Settings
from penstock.store.db import backends
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import AWAY, Database, first_line, wait_replicated
from penstock.store.rows import jobs as job_store
from penstock.store.rows import journal as store
from penstock.store.rows import journal_cuts as cuts
from penstock.store.rows.engines import require_version
from penstock.store.rows.jobs import JobKey
from penstock.store.rows.timers import Timer
from penstock.telemetry.metrics import Metrics

T = TypeVar("T")

MAIL_MAX_ITEMS: Final = 20_000
"""News that one executor has not asked for yet: twice as many as it holds runs. More are lost, as hints may be."""
REASON_MAX_BYTES: Final = 4_096
RECORDS_MAX: Final = 5_000
"""Of one append."""
_POSITION: Final = re.compile(r"\d{1,18}", re.ASCII)
BRANCHES_MAX_DEPTH: Final = 110
"""Of objects and lists in what is told of a run's branches: what a step shows has 100 at most (`durable.codec`)."""
CONTINUE_VERSION: Final = 18
"""The schema version whose engines know how a run goes on that continued: others would begin it as it was started."""
BLOCKED_VERSION: Final = 21
"""Whose engines know that a run is listed as blocked: others would leave it in the list for ever."""


def read_sent(data: bytes, field: str, max_bytes: int) -> Any:
    """Return the value of JSON that is sent to a run. Raises BadRequest, PayloadTooLarge; they name ``field``."""
    if len(data) > max_bytes:
        raise PayloadTooLarge(f"{field}: has more than {max_bytes} bytes: store it elsewhere and send a key")
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise BadRequest(f"{field}: is not JSON: {error}") from None


def digest_of(name: str, value: Any) -> str:
    """Return what tells a message or a call from another one with its id. ``value``: as `read_sent` gives it."""
    return hashlib.sha256(name.encode() + b"\0" + msgspec.json.encode(value, order="sorted")).hexdigest()


class Mailboxes:
    """What is to be told an executor: by instance, how much mail it has."""

    def __init__(self) -> None:
        self.unread: dict[int, int] = {}
        self.watches: set[int] = set()
        self.event = trio.Event()

    def receive(self, mail: MailboxNotice) -> None:
        """Somebody has written into the journal of a run that it holds."""
        if mail.mail == WATCH:
            if len(self.watches) < MAIL_MAX_ITEMS:
                self.watches.add(mail.instance)
                self.event.set()
        elif len(self.unread) < MAIL_MAX_ITEMS or mail.instance in self.unread:
            self.unread[mail.instance] = max(mail.mail, self.unread.get(mail.instance, 0))
            self.event.set()


class Journal:
    """The operations of executors on the runs they hold, and of everybody else on any run.

    Raises LeaseLost whenever the caller does not hold the run any more: then it discards its copy. Raises Unavailable
    when the database was away for too long, and nothing is known of what became of it; ask again, with the same
    arguments.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        polls: Polls,
        jobs: Jobs,
        timers: Timers,
        events: Events,
    ) -> None:
        """``events`` are for other engines: mail for runs that their executors hold, and what runs show that somebody
        waits for there."""
        self._database = database
        self._settings = settings
        self._limits = PayloadLimits.of(settings)
        self._polls = polls
        self._jobs = jobs
        self._mailboxes: dict[str, Mailboxes] = {}
        self._appending_bytes = 0
        self._may_continue = self._may_list = False
        self._mailed_elsewhere, self.subscribers = events.mailed, RunSubscriptions(events.run_changed)
        self.commit_queues = JournalQueues(
            database,
            settings,
            metrics,
            polls.leases,
            timers,
            queued=polls.came_to_queue,
            freed=polls.came_back,
            mailed=self._mailed,
            subscribers=self.subscribers,
        )

    def batchers(self) -> list[GroupCommitQueue[Any]]:
        """Return the flushers to run."""
        return self.commit_queues.batchers()

    async def append(
        self, run_lease: RunLease, records: Sequence[NewRecord], *, after: int, mail: int, extend: bool = False
    ) -> AppendAnswer:
        """Write records, in this order, all or none. One append at a time for a run.

        ``after`` is the position of the last record that the caller knows, ``mail`` how many records of others it has
        read. The lease is extended when half of it is over, or with ``extend``. Raises LeaseLost, PayloadTooLarge.
        """
        self._check(records)
        lease = self._polls.leases.find(run_lease.instance, run_lease.seq)
        limit = self._settings.journal_max_records
        if lease is not None and lease.records + len(records) > limit:
            more = "Let another run do the rest, or raise journal_max_records"
            raise JournalTooLong(f"the run has {lease.records:,} records, of {limit:,} at most. {more}")
        item = AppendItem(run_lease, records, after=after, mail=mail, lease_s=self._extension(run_lease, extend))
        if self._appending_bytes and self._appending_bytes + item.size_bytes > self._settings.journal_queue_max_bytes:
            raise TooManyRequests("too many bytes wait to be appended already")
        self._appending_bytes += item.size_bytes
        try:
            self.commit_queues.append.submit_nowait(item)
            answer: AppendAnswer = await item.wait_answer()
            if lease is not None and not answer.reread and answer.mail == mail:  # else they are counted when read
                lease.records += len(records) - 2 * sum(record.kind == RecordKind.REFUSED for record in records)
            return answer
        finally:
            self._appending_bytes -= item.size_bytes

    def _check(self, records: Sequence[NewRecord]) -> None:
        if not 0 < len(records) <= RECORDS_MAX:
            raise BadRequest(f"records: one append takes 1 to {RECORDS_MAX:,} of them")
        limit = self._settings.payload_max_bytes
        for record in records:
            payload = record.payload or ""
            if len(payload) > limit or (len(payload) > limit // 4 and len(payload.encode()) > limit):
                raise PayloadTooLarge(f"the payload of the record at {record.path} has more than {limit} bytes")
            check_text(payload, f"the payload of the record at {record.path[:NAME_MAX_CHARS]!a}", limit)
            check_text(record.path, "path", PATH_MAX_CHARS)
            if record.name is not None:
                check_text(record.name, "name", NAME_MAX_CHARS)
            if record.mark is not None:
                check_text(record.mark, "mark", NAME_MAX_CHARS)
            if record.kind == RecordKind.REFUSED and _POSITION.fullmatch(record.name or "") is None:
                raise BadRequest("name: must be the position of the call, in a refusal")

    def fit_view(self, view: bytes | None) -> bytes | None:
        """A view as it is stored; none where it is too much for this engine: no run ends for it."""
        try:
            return None if view is None else check_json_value(view, self._limits, "view")
        except (BadRequest, PayloadTooLarge):
            return None

    def _check_shown(self, view: bytes | None, branches: bytes | None) -> bytes | None:
        """The branches, none of them where they are too many to keep: a look at a run is not worth its end."""
        if view is not None:
            check_json_value(view, self._limits, "view")
        if branches is None or len(branches) > self._limits.checkpoint_max_bytes:
            return None if branches is None else b"[]"
        limits = msgspec.structs.replace(self._limits, max_depth=max(self._limits.max_depth, BRANCHES_MAX_DEPTH))
        return check_json_value(branches, limits, "branches")

    def _extension(self, run_lease: RunLease, extend: bool) -> float | None:
        lease_s = self._settings.lease_default_seconds
        lease = self._polls.leases.find(run_lease.instance, run_lease.seq)
        if extend or lease is None or lease.ends_at - trio.current_time() < lease_s / 2:
            return lease_s
        return None

    async def read(self, instance: int, after: int = 0, *, max_bytes: int = store.PAGE_MAX_BYTES) -> JournalPage:
        """Return a page of the journal: records beyond position ``after``, at most 5,000 and 4 MB. An outage of the
        database is waited out. Raises Unavailable."""
        page = JournalPage(
            *await self._ask(lambda connection: store.read(connection, instance, after, max_bytes=max_bytes))
        )
        lease = self._polls.leases.latest(instance)
        if lease is not None:
            lease.records = len(page.records) + (lease.records if after else 0)
        return page

    async def marks(self, instance: int) -> list[str]:
        """Return the marks of all its records. As `read`."""
        return await self._ask(lambda connection: store.marks(connection, instance))

    async def find_answer(self, instance: int, id: str) -> store.Answered | None:
        """Return a call of an update, by its id; None where there is no such instance. As `read`."""
        return await self._ask(lambda connection: store.find_answer(connection, instance, id))

    async def find_view(self, instance: int) -> store.FoundView | None:
        """Return what a run shows; None where there is no such instance. As `read`."""
        return await self._ask(lambda connection: store.find_view(connection, instance, RecordKind.VIEW))

    async def require_version(self, version: int) -> None:
        """See `store.rows.engines.require_version`. As `read`; raises Unavailable while older engines live, too."""
        try:
            await self._ask(lambda connection: require_version(connection, version))
        except Conflict as error:
            raise Unavailable(error.reason) from error

    async def schema(self) -> str:
        """In which the tables are. As `read`."""
        return await self._ask(backends.schema)

    async def end_session(self, pid: int, started: str) -> None:
        """End a session of the server's in which something may have been committed, and wait until it is gone and what
        it did is as durable as all else. As `read`."""
        backend = backends.ServerProcess(pid, started)
        while await self._ask(lambda connection: backends.end_backend(connection, backend)):  # noqa: ASYNC110 - the server's
            await trio.sleep(RETRY_FIRST_S)
        await self._ask(wait_replicated)

    async def _ask(self, ask: Callable[[TrioConnection], Awaitable[T]]) -> T:
        """An answer of the database, whose outage is waited out."""
        deadline, pause_s = trio.current_time() + self._settings.outage_wait_seconds, RETRY_FIRST_S
        while True:
            try:
                async with self._database.connection() as connection:
                    return await ask(connection)
            except AWAY as error:
                if trio.current_time() >= deadline:
                    raise Unavailable(f"the journal can't be read now: {first_line(error)}") from error
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def park(
        self,
        run_lease: RunLease,
        *,
        mail: int,
        due_at: float | None,
        view: bytes | None = None,
        branches: bytes | None = None,
    ) -> bool:
        """Let go of a run that waits: until ``due_at`` (seconds since 1970; None: for ever) or until it is told
        something.

        False: there is mail; read the journal and go on. ``view`` and ``branches`` as in `extend`. Raises LeaseLost.
        """
        if due_at is not None and math.isnan(due_at):
            raise BadRequest("due_at: is not a number")
        branches = self._check_shown(view, branches)
        item = ParkItem(store.UnloadedRun(run_lease, mail, due_at, branches, view))
        return bool(await self.commit_queues.park.submit(item))

    async def finish(self, run_lease: RunLease, end: RunEnd, *, mail: int) -> bool:
        """End a run. False: there is mail; read the journal and go on. Idempotent. Raises LeaseLost, BadRequest and
        PayloadTooLarge for a result that can't be kept."""
        if end.status is InstanceStatus.ACTIVE or (end.status is InstanceStatus.FAILED and end.failure is None):
            raise BadRequest("a run ends COMPLETED, CANCELLED, or FAILED with a reason")
        if end.output is not None:
            check_variables(end.output, self._limits, "result")
        failure = None if end.failure is None else clean_text(end.failure, self._settings.payload_max_bytes)
        view = None if end.view is None else check_json_value(end.view, self._limits, "view").decode()
        error = None if end.error is None else check_text(end.error, "error", self._settings.payload_max_bytes)
        item = FinishItem(store.Finish(run_lease, mail, end.status, END_STEP, end.output, failure, view, error))
        return bool(await self.commit_queues.finish.submit(item))

    async def continue_as_new(
        self, run_lease: RunLease, payload: str, *, name: str, mail: int, kept: Sequence[int]
    ) -> bool:
        """Let a run go on as a new one: its journal is a record with this payload, then the messages at the positions
        ``kept``. ``name`` is another one each time. False: there is mail; read the journal and go on. Idempotent.
        Raises LeaseLost, PayloadTooLarge, and Unavailable while older engines live."""
        limit = 2 * (self._settings.payload_max_bytes + PATH_MAX_CHARS)  # it holds the view, and of a fork its origin
        if len(payload.encode()) > limit:
            raise PayloadTooLarge(f"the run continues with more than {self._settings.payload_max_bytes} bytes")
        check_text(payload, "arguments", limit)
        check_text(name, "name", NAME_MAX_CHARS)
        if len(kept) > self._settings.journal_max_records:
            raise BadRequest(f"kept: {self._settings.journal_max_records:,} messages at most")
        if not self._may_continue:
            await self.require_version(CONTINUE_VERSION)
            self._may_continue = True
        return bool(
            await self.commit_queues.finish.submit(
                ContinueItem(cuts.Continuation(run_lease, mail, name, payload, kept))
            )
        )

    async def block(self, run_lease: RunLease, reason: str) -> float:
        """Let go of a run that this code can't go on with; it comes back after a pause, that is answered, in seconds:
        5 s first, twice as long each time, 5 min at most. Never fails a run. Raises LeaseLost."""
        if not self._may_list:
            with suppress(Conflict):  # else it is retried all the same, and not listed
                await self._ask(lambda connection: require_version(connection, BLOCKED_VERSION))
                self._may_list = True
        item = BlockItem(run_lease, clean_text(reason, REASON_MAX_BYTES), listed=self._may_list)
        return float(await self.commit_queues.park.submit(item))

    async def extend(
        self, run_lease: RunLease, *, view: bytes | None = None, branches: bytes | None = None
    ) -> ExtendedRun:
        """Return a heartbeat: a lease of full length from now on. ``view`` (JSON) is what clients see of the run,
        ``branches`` (JSON, see `runs`) which of its branches are open; None keeps what is there. Raises LeaseLost."""
        branches = self._check_shown(view, branches)
        extension = job_store.Extension(
            run_lease.instance,
            run_lease.seq,
            run_lease.attempt,
            run_lease.holder,
            self._settings.lease_default_seconds,
            branches,
            view,
        )
        item = HeartbeatCall(
            JobKey(run_lease.instance, run_lease.instance, run_lease.seq),
            FenceRequest(CallKind.HEARTBEAT, run_lease.holder, run_lease.attempt),
            extension,
        )
        await self._jobs.beats.submit(item)
        if item.row is None:
            raise LeaseLost("another executor has the run, or it has ended")
        lease = self._polls.leases.find(run_lease.instance, run_lease.seq)
        if lease is not None and lease.blocked and branches is not None:
            lease.blocked = False
            await self._ask(lambda connection: store.go_on(connection, run_lease))
        if view is not None:
            self.subscribers.notify_written(run_lease.instance)
        return ExtendedRun(item.row.left_s, item.row.mail)

    async def release(self, run_lease: RunLease) -> None:
        """Let go of a run at once, for others to take. One that is lost already is no error."""
        job = JobKey(run_lease.instance, run_lease.instance, run_lease.seq)
        lease = job_store.Lease(run_lease.instance, run_lease.seq, run_lease.attempt, run_lease.holder)
        await self._polls.releases.submit(ReleaseItem(job, lease))

    async def notify(self, notice: store.RunNotice, timer: Timer | None = None) -> None:
        """Write somebody else's record, and wake the run or tell its holder. ``timer``: what said so, which goes
        whatever becomes of it.

        Raises NotFound, Conflict (it has ended, or is no durable run), MailboxFull (too many unread messages),
        IdempotencyConflict (the ``dedup`` came with something else).
        """
        await self.commit_queues.notice.submit(NotifyItem(notice, timer))

    async def wake(self, instance: int, seq: int) -> bool | None:
        """The time that a parked run waits for has come. False: it has not, or somebody is at it."""
        item = WakeItem(instance, seq)
        self.commit_queues.park.submit_nowait(item)
        return await item.wait_answer() if await item.wait_tried() else None

    # -- news for executors

    def open_mailbox(self, holder: str) -> None:
        """Keep news for an executor of this engine from now on, for `wait_mailbox`."""
        self._mailboxes.setdefault(holder, Mailboxes())

    def close_mailbox(self, holder: str) -> None:
        """There is no such executor any more."""
        self._mailboxes.pop(holder, None)

    async def wait_mailbox(self, holder: str) -> list[MailboxNotice]:
        """Wait for news of the runs that ``holder`` has; one waiter at most. A hint: what is lost here is found
        with the next append, park or heartbeat. `Jobs.wait_lost` tells of runs that were ended by force.

        Cancel-safe.
        """
        mailbox = self._mailboxes.setdefault(holder, Mailboxes())
        while not (mailbox.unread or mailbox.watches):
            mailbox.event = trio.Event()
            await mailbox.event.wait()
        counts, mailbox.unread = mailbox.unread, {}
        watches, mailbox.watches = mailbox.watches - counts.keys(), mailbox.watches & counts.keys()
        if mailbox.watches:
            mailbox.event.set()
        found = [MailboxNotice(holder, instance, mail) for instance, mail in counts.items()]
        return found + [MailboxNotice(holder, instance, WATCH) for instance in watches]

    def receive(self, mail: MailboxNotice) -> None:
        """Another engine says that it told a run something, or that somebody there waits for what it shows."""
        if mail.mail == WATCH:
            self.subscribers.watched_elsewhere(mail.instance)
        mailbox = self._mailboxes.get(mail.holder)
        if mailbox is not None:
            mailbox.receive(mail)

    def watch(self, instance: int, holder: str) -> None:
        """Tell who holds a run that somebody waits for what it shows. A hint, good for some seconds."""
        self._mailed(MailboxNotice(holder, instance, WATCH))

    def _mailed(self, mail: MailboxNotice) -> None:
        mailbox = self._mailboxes.get(mail.holder)
        if mailbox is not None:
            mailbox.receive(mail)
        else:
            self._mailed_elsewhere(mail)
