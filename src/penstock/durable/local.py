"""The engine in this process (`own_engine`): the journals of an executor, and what an `App` asks for its caller.

These two alone of `durable` know the engine. Batching, outages, commits in doubt, timers, sweeper and retention
are the engine's; here is what one says to the other.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import msgspec
import trio

from penstock import errors
from penstock.client.errors import BadRequest as BadRequestOfClient
from penstock.client.errors import Conflict, IdempotencyConflict, NotFound, error_for
from penstock.client.errors import PayloadTooLarge as TooLargeForClient
from penstock.core.rules.state import InstanceStatus, TokenState
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
    SavedPage,
    Shown,
    StartedRun,
    Stored,
)
from penstock.durable.check import CheckedRun
from penstock.durable.child import ChildCall
from penstock.durable.errors import SendRefused, StartRefused
from penstock.durable.names import RunNames
from penstock.durable.own_engine import open_engine
from penstock.durable.run_ends import latest_waits_for
from penstock.durable.step import StepCall, StepInfo
from penstock.durable.takes import schema_of_arguments
from penstock.durable.transaction import DatabaseSession, Fence, StepTransactions
from penstock.durable.workflow import Workflow
from penstock.engine.engine import Engine
from penstock.engine.queues.journal_items import WATCH, ClaimedRun, JournalPage, JournalRow, NewRecord, RunEnd
from penstock.engine.queues.journal_items import RunLease as Lease
from penstock.engine.requests.ids import show_instance
from penstock.engine.runs.children import own_id
from penstock.engine.runs.code import CodeWorkflow
from penstock.engine.runs.mailbox import read_branches
from penstock.engine.runs.runs import Raised
from penstock.engine.schedules.declared import InCode
from penstock.errors import BadRequest, JournalTooLong, PayloadTooLarge, PenstockError, TooManyRequests, Unavailable
from penstock.errors import LeaseLost as LeaseIsLost
from penstock.kernel.operation import Outcome
from penstock.kernel.record import OUTCOMES, JournalKind, Record
from penstock.runtime.database_start import wait_out
from penstock.store.db.database import AWAY, away_reason, first_line
from penstock.store.rows.journal import OpenRun as StoredRun
from penstock.store.rows.origins import OriginRow
from penstock.wire.model import Instance, StartRequest
from penstock.wire.update import RunUpdate, RunView, UpdateCall

T = TypeVar("T")

PAGE_RECORDS = 500


@asynccontextmanager
async def open_local(
    dsn: str | None,
    app: str,
    workflows: Sequence[Workflow[..., Any]],
    *,
    migrate: bool = False,
    rest_port: int | None = None,
) -> AsyncGenerator[Opened]:
    """An engine in this process for the block, see `own_engine`."""
    serves = bool(workflows)
    async with open_engine(dsn, serves=serves, migrate=migrate, rest_port=rest_port) as (engine, url, found):
        runs = LocalRuns(engine, app)
        if not serves:
            yield Opened(runs, None, url)
            return
        backend = LocalBackend(engine, app, workflows, runs, dsn=found)
        await with_client_errors(wait_out(backend.register, engine.database, engine.settings.outage_wait_seconds))
        try:
            yield Opened(runs, backend, url)
        finally:
            backend.close()


class LocalBackend:
    """The journals of one app's workflows, for one executor."""

    def __init__(
        self,
        engine: Engine,
        app: str,
        workflows: Sequence[Workflow[..., Any]],
        runs: LocalRuns | None = None,
        *,
        dsn: str = "",
    ) -> None:
        """``runs``: what the app's caller asks; it knows the ids of those that were started here. ``dsn``: the database
        for transactions of steps."""
        vault = engine.database.vault
        self._transactions = StepTransactions(dsn, self, str if vault is None else vault.seal_text)
        self._schema: str | None = None
        self._engine, self._runs = engine, runs or LocalRuns(engine, app)
        self._code = [CodeWorkflow(each.name, each.version, app) for each in workflows]
        self._workflows = workflows
        self._by_type = {each.job_type: each for each in self._code}
        self._watches: set[str] = set()
        self._holder = engine.code.holder(app or "app", 1)
        engine.journal.open_mailbox(self._holder)

    async def register(self) -> None:
        """Make the workflows known, so that their runs can be asked for. Raises the engine's errors."""
        exclusive = self._engine.settings.postgres_dsn is None  # programs of one person share the embedded one
        for each, known in zip(self._code, self._workflows, strict=True):
            await self._engine.code.register(each, anew=True)
            await self._engine.signatures.publish(each.job_type, schema_of_arguments(known.parameters, known.name))
            await self._engine.origins.register(each, OriginRow(*known.origin), exclusive=exclusive, lives_here=True)
            if known.queue is not None:
                await self._engine.queues.join(known.queue, each.job_type)
            in_code = InCode(known.schedule_text(), known.queue or "", known.policy_text())
            await self._engine.declarations.register(each, in_code)

    async def take(self, max_runs: int, max_wait_s: float) -> list[LeasedRun]:
        """Runs under lease."""
        found = await _asked(self._engine.code.take(self._holder, self._code, max_runs, wait_s=max_wait_s))
        return [self._read_claimed(each) for each in found]

    def _read_claimed(self, claimed: ClaimedRun) -> LeasedRun:
        workflow = self._by_type[claimed.job_type]
        return LeasedRun(
            key=_key(claimed.run_lease.instance),
            id=claimed.instance_id,
            attempt=claimed.run_lease.attempt,
            workflow=workflow.name,
            version=workflow.version,
            arguments=claimed.arguments.decode(),
            started_at=claimed.started_at,
            now=claimed.taken_at,
            lease_s=claimed.lease_left_s,
            fresh=claimed.run_lease.attempt == 1 and claimed.mail == 0,
            expiries=claimed.expiries,
            fence=claimed.run_lease,
            name=claimed.key or self._runs.names.of(claimed.instance_id),
            page=None if claimed.page is None else _read_page(claimed.page),
            rules=claimed.rules,
        )

    async def wait_mailbox(self) -> list[str]:
        """Keys of runs that were told something."""
        found = await self._engine.journal.wait_mailbox(self._holder)
        self._watches.update(_key(mail.instance) for mail in found if mail.mail == WATCH)
        return [_key(mail.instance) for mail in found]

    def was_watch(self, key: str) -> bool:
        """Return whether somebody waits for what the run shows."""
        if key not in self._watches:
            return False
        self._watches.discard(key)
        return True

    async def read(self, leased: LeasedRun, after: int) -> RecordPage:
        """Return a page of the journal."""
        page = await _asked(self._engine.journal.read(_lease(leased).instance, after))
        return _read_page(page)

    async def marks(self, leased: LeasedRun) -> list[str]:
        """Of a long journal."""
        return await _asked(self._engine.journal.marks(_lease(leased).instance))

    async def append(self, leased: LeasedRun, records: Sequence[Record], after: int, mail: int) -> list[Stored] | None:
        """Write records."""
        new = [_new_record(record) for record in records]
        try:
            answer = await self._engine.journal.append(_lease(leased), new, after=after, mail=mail)
        except Exception as error:  # not `_asked`: many runs wait here at a time, with each coroutine of theirs
            _raise_for_executor(error)
            raise
        if answer.reread or answer.mail != mail:
            return None
        return [Stored(place.pos, place.at) for place in answer.placed]

    def _kept(self, view: str | None) -> bytes | None:
        return self._engine.journal.fit_view(_bytes(view))

    async def park(self, leased: LeasedRun, mail: int, due: float | None, shown: Shown) -> bool:
        """Give the run up until then."""
        view, branches = self._kept(shown.view), _bytes(shown.branches)
        park = self._engine.journal.park(_lease(leased), mail=mail, due_at=due, view=view, branches=branches)
        return await _asked(park)

    async def finish(self, leased: LeasedRun, mail: int, ending: Ending) -> bool:
        """End the run."""
        view = self._kept(ending.view)
        if ending.result is not None:
            output = b'{"result":' + ending.result.encode() + b"}"
            end = RunEnd(InstanceStatus.COMPLETED, output=output, view=view, error=ending.error)
        elif ending.cancelled:
            end = RunEnd(InstanceStatus.CANCELLED, failure=ending.failure, view=view, error=ending.error)
        else:
            end = RunEnd(InstanceStatus.FAILED, failure=ending.failure or "failed", view=view, error=ending.error)
        return await _asked(self._engine.journal.finish(_lease(leased), end, mail=mail))

    async def continue_as_new(self, leased: LeasedRun, mail: int, begun: Record, kept: Sequence[int]) -> bool:
        """As a new run."""
        payload, name = begun.payload or "", begun.name or ""
        journal = self._engine.journal
        return await _asked(journal.continue_as_new(_lease(leased), payload, name=name, mail=mail, kept=kept))

    async def block(self, leased: LeasedRun, reason: str) -> float:
        """Blocked on code."""
        return await _asked(self._engine.journal.block(_lease(leased), reason))

    async def release(self, leased: LeasedRun) -> None:
        """For others to take."""
        await _asked(self._engine.journal.release(_lease(leased)))

    async def transact(
        self,
        leased: LeasedRun,
        call: StepCall,
        info: StepInfo,
        after: int,
        permit: AppendPermit,
        limiter: trio.CapacityLimiter,
    ) -> Outcome:
        """A step that is a transaction."""
        if self._schema is None:
            self._schema = await _asked(self._engine.journal.schema())
        lease = _lease(leased)
        fence = Fence(lease.instance, lease.seq, lease.attempt, lease.holder, self._schema, leased.rules)
        max_bytes = self._engine.settings.payload_max_bytes
        return await self._transactions.run(leased, fence, call, info, after, permit, limiter, max_bytes)

    async def end_session(self, session: DatabaseSession) -> None:
        """Until it is gone."""
        await _asked(self._engine.journal.end_session(session.pid, session.started))

    async def is_written(self, leased: LeasedRun, path: str, after: int) -> bool:
        """Return whether the step has an outcome."""
        while True:
            page = await self.read(leased, after)
            if any(record.path == path and record.kind in OUTCOMES for record in page.records):
                return True
            if not page.more:
                return False
            after = page.records[-1].pos

    def close(self) -> None:
        """End what transactions of steps have left open."""
        self._transactions.close()

    async def start(self, workflow: str, version: int, arguments: str, id: str) -> str:
        """Return a run of a workflow of this app, whoever serves it."""
        try:
            return (await self._runs.start(workflow, version, arguments, id)).instance_id
        except (Conflict, IdempotencyConflict, BadRequestOfClient, TooLargeForClient) as error:
            raise StartRefused(error.reason) from None

    async def start_child(self, leased: LeasedRun, path: str, call: ChildCall, id: str) -> None:
        """A run of a workflow of this app, or an instance of a definition."""
        lease, target = _lease(leased), call.target
        about = target if isinstance(target, str) else CodeWorkflow(target.name, target.version, self._runs.app)
        try:
            arguments = call.arguments.encode()
            await _asked(self._engine.children.start(lease, path, about, arguments, call.id or own_id(id, lease.seq)))
        except (errors.Conflict, errors.IdempotencyConflict, errors.NotFound) as error:
            raise StartRefused(error.reason) from None
        except Refused as error:
            raise StartRefused(str(error)) from None

    async def cancel_child(self, leased: LeasedRun, path: str) -> bool:
        """Ask it to end."""
        return await _asked(self._engine.children.cancel(_lease(leased), path))

    async def waits_for(self, workflow: str) -> str | None:
        """What the latest run waits for."""
        return await latest_waits_for(self._runs, workflow)

    async def send(self, run_id: str, name: str, payload: str, dedup: str, *, sender: str, force: bool = False) -> None:
        """A message to a run of this app's workflows, or of any."""
        try:
            instance_id = await self._runs.find(run_id, dict.fromkeys(each.name for each in self._code), or_any=True)
            await self._runs.send(instance_id, name, payload, dedup, id=run_id, sender=sender, force=force)
        except (NotFound, Conflict, BadRequestOfClient, TooLargeForClient) as error:
            raise SendRefused(error.reason) from None

    async def extend(self, leased: LeasedRun, shown: Shown) -> Beat:
        """Return a heartbeat."""
        view, branches = self._kept(shown.view), _bytes(shown.branches)
        answer = await _asked(self._engine.journal.extend(_lease(leased), view=view, branches=branches))
        return Beat(answer.lease_left_s, answer.mail)


class LocalRuns:
    """What an `App` asks of the engine for its caller. Raises the errors of `penstock.client`."""

    def __init__(self, engine: Engine, app: str) -> None:
        self._engine, self.app = engine, app
        self.payload_max_bytes = engine.settings.payload_max_bytes
        self.outage_wait_s = engine.settings.outage_wait_seconds
        self.names = RunNames()

    async def start(
        self, workflow: str, version: int, arguments: str, id: str | None, asked: StartRequest | None = None
    ) -> StartedRun:
        """A new run, or the one that has this id, or with which ``asked`` has it answered."""
        code = CodeWorkflow(workflow, version, self.app)
        view = await with_client_errors(self._engine.code.start(code, arguments.encode(), id=id, asked=asked))
        self.names.note(view.id, id)
        return StartedRun(view.id, bool(view.deduplicated))

    async def find(self, id: str, workflows: Mapping[str, object], *, or_any: bool = False) -> str:
        """Return the instance id of the run with this id: of these workflows, else of any if there are none, or
        ``or_any``."""
        return await with_client_errors(self._engine.code.find(self.app, id, workflows, or_any=or_any))

    async def latest(
        self, workflow: str | None, status: str | None, limit: int, *, blocked: bool = False
    ) -> list[Instance]:
        """The latest runs, newest first, without their arguments: of a workflow, or of all that are code. Of all, see
        `engine.runs.code`."""
        return await with_client_errors(self._engine.code.latest(self.app, workflow, status, limit, blocked=blocked))

    async def waits_for(self, instance_id: str) -> str | None:
        """What an open run waits for, in words."""
        return await with_client_errors(self._engine.runs.waits_for(instance_id))

    async def code_versions(self, workflow: str) -> dict[int, int]:
        """By version of a workflow's code the key of the definition that its runs have."""
        stored = await with_client_errors(
            self._engine.definitions.versions_of(CodeWorkflow(workflow, 1, self.app).definition_id)
        )
        return {
            cast("dict[str, Any]", each.definition.metadata)["code"]["version"]: each.key
            for each in stored
            if each.code
        }

    async def read_open(self, definition: int) -> AsyncGenerator[list[CheckedRun]]:
        """All runs of a definition that have not ended, in slices, each with the first page of its journal."""
        async for runs in self._engine.runs.read_open(definition):
            yield [
                CheckedRun(
                    id=run.key or show_instance(run.id),
                    instance=run.id,
                    arguments=run.arguments,
                    started_at=run.started_at,
                    page=_read_page(page),
                    waits=_waits(run),
                )
                for run, page in runs
            ]

    async def records(self, instance_id: str, after: int) -> SavedPage:
        """Return a page of a run's journal beyond a position."""
        page = await with_client_errors(self._engine.runs.records(instance_id, f"{after:x}" if after else None))
        arguments = None if page.arguments is None else page.arguments.decode()
        return SavedPage(list(map(_read_record, page.records)), page.more, page.began_at, arguments)

    async def read_records(self, instance: int, after: int) -> RecordPage:
        """Return a page of a journal beyond a position."""
        return _read_page(await with_client_errors(self._engine.journal.read(instance, after)))

    async def read_marks(self, instance: int) -> list[str]:
        """Return the marks of a whole journal."""
        return await with_client_errors(self._engine.journal.marks(instance))

    async def journal(self, instance_id: str, cursor: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """Some records of a run, oldest first, as REST shows them, and where the next ones are."""
        page = await with_client_errors(self._engine.runs.journal(instance_id, cursor, PAGE_RECORDS))
        records: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(page.items))
        return records, page.next

    async def read_run(self, instance_id: str) -> Instance:
        """The run as it is now."""
        return await with_client_errors(self._engine.instances.get(instance_id))

    async def find_ended(self, instance_ids: Sequence[str]) -> list[str]:
        """Those that have ended, or are not there."""
        return await with_client_errors(self._engine.instances.find_ended(instance_ids))

    async def tree(self, instance_id: str) -> dict[str, Any]:
        """Return the run's branches, as REST shows them."""
        found = await with_client_errors(self._engine.runs.tree(instance_id))
        tree: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
        return tree

    async def send(
        self,
        instance_id: str,
        name: str,
        payload: str,
        dedup: str | None,
        *,
        id: str,
        sender: str | None = None,
        force: bool = False,
    ) -> None:
        """A message."""
        sent = self._engine.runs.send(instance_id, name, payload.encode(), dedup=dedup, sender=sender, force=force)
        await with_client_errors(sent, id)

    async def ask(self, instance_id: str, call: UpdateCall, *, id: str) -> RunUpdate:
        """Call an update."""
        return await with_client_errors(self._engine.updates.ask(instance_id, call), id)

    async def find_update(self, instance_id: str, update_id: str, wait_s: int, *, id: str) -> RunUpdate:
        """Return what became of a call."""
        return await with_client_errors(self._engine.updates.get(instance_id, update_id, wait_s), id)

    async def view(self, instance_id: str, key: str | None, wait_s: int, *, id: str) -> RunView:
        """Return what the run shows."""
        return await with_client_errors(self._engine.updates.view(instance_id, key, wait_s), id)

    async def resolve_message(
        self, instance_id: str, position: str, payload: str | None, note: str | None, *, force: bool, id: str
    ) -> None:
        """Drop a message that the run rejected, or send another one in its place."""
        text = None if payload is None else payload.encode()
        await with_client_errors(
            self._engine.runs.resolve_message(instance_id, position, text, note=note, force=force), id
        )

    async def cancel(self, instance_id: str, reason: str | None, *, force: bool, id: str) -> None:
        """Ask the run to end, or end it."""
        await with_client_errors(self._engine.instances.cancel(instance_id, reason, force=force), id)

    async def raised(self, instance_id: str) -> list[Raised]:
        """What a run's steps raised last, then its function."""
        return await with_client_errors(self._engine.runs.raised(instance_id))

    async def adopt(self, workflow: str) -> list[str]:
        """Let the next program that serves a workflow under no name have its runs; its job types."""
        return await with_client_errors(self._engine.origins.adopt(workflow))

    async def fork(
        self, instance_id: str, path: str, fork_id: str | None, *, later_messages: bool, id: str
    ) -> StartedRun:
        """Start another run with the journal of this one, up to an operation."""
        forked = self._engine.forks.fork(instance_id, path, fork_id=fork_id, later_messages=later_messages)
        view = await with_client_errors(forked, id)
        self.names.note(view.id, fork_id)
        return StartedRun(view.id, bool(view.deduplicated))

    async def retry(self, instance_id: str, from_path: str | None, note: str | None, *, id: str) -> None:
        """Let a failed run go on."""
        await with_client_errors(self._engine.instances.retry_run(instance_id, from_path, note), id)


async def with_client_errors(call: Awaitable[T], id: str | None = None) -> T:
    """What a caller gets: the engine's errors are those of its clients, and name the run as the caller does."""
    try:
        return await call
    except PenstockError as error:
        raise error_for(error.code, error.reason if id is None else f"run {id}: {error.reason}") from None
    except AWAY as error:
        raise error_for("unavailable", f"{away_reason(error)}: {first_line(error)}") from error


async def _asked(call: Awaitable[T]) -> T:
    """What an executor gets."""
    try:
        return await call
    except Exception as error:
        _raise_for_executor(error)
        raise


def _raise_for_executor(error: Exception) -> None:
    """Raise an error of the engine as the one that executors know. Return for any other error."""
    if isinstance(error, LeaseIsLost):
        raise RunLeaseLost from None
    if isinstance(error, JournalTooLong):
        raise JournalFull(error.reason) from None
    if isinstance(error, BadRequest | PayloadTooLarge):
        raise Refused(error.reason) from None
    if isinstance(error, (Unavailable, TooManyRequests, *AWAY)):
        raise Away(first_line(error)) from error


def _lease(leased: LeasedRun) -> Lease:
    assert isinstance(leased.fence, Lease)
    return leased.fence


def _waits(run: StoredRun) -> list[tuple[str, str, str]] | None:
    if run.state != TokenState.PARKED or run.branches is None:
        return None
    return [(each.path, each.kind, each.name or "") for each in read_branches(run.branches)]


def _key(instance: int) -> str:
    return show_instance(instance)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _new_record(record: Record) -> NewRecord:
    return NewRecord(
        record.kind,
        record.path,
        record.name,
        record.payload,
        record.digest,
        record.attempt,
        record.took_ms,
        record.mark,
        record.rules or 0,
    )


def _read_page(page: JournalPage) -> RecordPage:
    if page.mail is None:
        raise RunLeaseLost
    return RecordPage([_read_record(record) for record in page.records], page.mail, page.more)


def _read_record(row: JournalRow) -> Record:
    return Record(
        row.at,
        JournalKind(row.kind),
        row.path,
        row.name,
        row.payload,
        row.digest,
        row.attempt,
        row.pos,
        row.took_ms,
        row.mark,
        row.rules,
    )
