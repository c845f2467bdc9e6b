"""Requests of SQL functions: carried out after the commit of the transaction that made them, and deleted.

An engine locks the first request of each transaction (others pass it by) and carries out that transaction's requests
in order, by the same methods that REST calls. The locks last until what became of the requests is written, so a second
engine claims a request only when this one, or its connection, is gone. What was carried out until then is done once all
the same: a start has the id that its program was given, a signal and a message have an id of their own, and an instance
that has ended needs no cancel. A request that the engine refuses is kept as failed, to be retried or dropped. Must not
know SQL.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import trio

from penstock.access.identity import Identity, actor, set_identity
from penstock.api import sql_requests as api
from penstock.api.permission import Permission
from penstock.engine.instances.instances import REASON_MAX_CHARS, Instances
from penstock.engine.instances.messages import Messages
from penstock.engine.instances.tasks import Tasks
from penstock.engine.requests import ids
from penstock.engine.requests.bound import Binding, bind
from penstock.engine.requests.paging import read_numbers, slice_limit
from penstock.engine.requests.payload import PayloadLimits, check_variables, clean_text
from penstock.engine.runs.runs import Runs
from penstock.engine.starts.full_starts import NotDue
from penstock.engine.starts.start_item import StartItem
from penstock.errors import BadRequest, Conflict, NotFound, PenstockError, Throttled, TooManyRequests, Unavailable
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import AWAY, Database
from penstock.store.rows import audit as audit_store
from penstock.store.rows import sql_requests as store
from penstock.store.rows.sql_requests import ClaimedRequest, RequestRow
from penstock.telemetry.metrics import Metrics
from penstock.wire.model import PublishRequest, Signal, StartRequest
from penstock.wire.noun import raw
from penstock.wire.page import Page
from penstock.wire.sql_request import SqlRequest

TRANSACTIONS_MAX: Final = 256
REQUESTS_MAX: Final = 512
REQUESTS_MAX_BYTES: Final = 8_388_608
ROUND_MAX_S: Final = 2.0
"""Of one round: what is left after so long comes with the next one, so that others are not held up by it."""
RETRY_FIRST_S, RETRY_MAX_S = 0.5, 60.0
"""Pauses before the next try of what the engine was too busy for."""
COUNTED_MAX: Final = 10_000
PURGE_MAX_ROWS: Final = 1_000
START: Final = "start"
_BUSY: Final = (Unavailable, TooManyRequests, Throttled)


class _SendArguments(msgspec.Struct, rename="camel"):
    name: str
    message_id: str | None = None


class _CancelArguments(msgspec.Struct):
    reason: str | None = None
    compensate: bool = False


class _Outcome:
    """What became of a round's requests."""

    def __init__(self) -> None:
        self.done: builtins.list[int] = []
        self.failed: builtins.list[tuple[int, str, str]] = []
        self.delayed: builtins.list[tuple[int, float]] = []

    def refuse(self, request: ClaimedRequest, error: Exception) -> bool:
        """Take an error that carrying out a request raised. True: those behind it in its transaction wait, too."""
        if isinstance(error, NotDue) or (request.operation == "cancel" and isinstance(error, Conflict)):
            self.done.append(request.id)  # it was started by an earlier try; it has ended
            return False
        if isinstance(error, PenstockError) and not isinstance(error, _BUSY):
            self.failed.append((request.id, error.code, clean_text(error.reason, REASON_MAX_CHARS)))
            return False
        pause_s = min(RETRY_FIRST_S * 2 ** min(request.tries, 10), RETRY_MAX_S)
        if isinstance(error, Throttled):
            pause_s = max(pause_s, error.retry_after_s)
        self.delayed.append((request.id, pause_s))
        return True


class SqlRequests:
    """Carries out requests, and shows those that wait or failed."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        limits: PayloadLimits,
        instances: Instances,
        tasks: Tasks,
        runs: Runs,
        messages: Messages,
    ) -> None:
        self._database = database
        self._settings = settings
        self._metrics = metrics
        self._limits = limits
        self._instances = instances
        self._tasks = tasks
        self._runs = runs
        self._messages = messages
        self._asked = trio.Event()

    # -- the service

    def hint(self) -> None:
        """A transaction that made requests has committed."""
        self._asked.set()

    async def step(self) -> None:
        """One round of the service loop: what there is to carry out, or a wait for more."""
        if await self.run_once():
            return
        with trio.move_on_after(self._settings.sql_requests_poll_seconds):
            await self._asked.wait()
        self._asked = trio.Event()

    async def run_once(self) -> int:
        """Carry out the oldest requests that no other engine has; how many those were."""
        async with self._database.connection(ahead=True) as connection, connection.transaction():
            claimed = await store.claim(connection, TRANSACTIONS_MAX, REQUESTS_MAX, REQUESTS_MAX_BYTES)
            if not claimed:
                return 0
            outcome, ends_at = _Outcome(), trio.current_time() + ROUND_MAX_S
            async with trio.open_nursery() as nursery:
                for requests in _by_transaction(claimed):
                    nursery.start_soon(self._carry_out, requests, outcome, ends_at)
            await store.finish(connection, outcome.done, outcome.failed, outcome.delayed)
        for label, rows in (("DONE", outcome.done), ("FAILED", outcome.failed), ("DELAYED", outcome.delayed)):
            self._metrics.sql_requests[label].inc(len(rows))
        return len(claimed)

    async def _carry_out(self, requests: Sequence[ClaimedRequest], outcome: _Outcome, ends_at: float) -> None:
        """The requests of one transaction, in order. Starts that follow each other are in one batch."""
        at = 0
        while at < len(requests) and (at == 0 or trio.current_time() < ends_at):
            until = at
            while until < len(requests) and requests[until].operation == START:
                until += 1
            if until > at:
                waits = await self._start(requests[at:until], outcome)
            else:
                until = at + 1
                waits = await self._do(requests[at], outcome)
            if waits:
                return
            at = until

    async def _start(self, requests: Sequence[ClaimedRequest], outcome: _Outcome) -> bool:
        """True: some are to be tried again, and those behind them wait."""
        waits = False
        items: builtins.list[tuple[ClaimedRequest, StartItem]] = []
        for request in requests:
            if request.is_started:
                outcome.done.append(request.id)
                continue
            assert request.instance is not None
            try:
                wanted = msgspec.json.decode(request.request, type=StartRequest)
                variables = check_variables(_body(request), self._limits)
                _act_for(request)
                item = self._instances.submit_reserved(
                    msgspec.structs.replace(wanted, variables=variables), request.instance
                )
                items.append((request, item))
            except PenstockError as error:
                waits |= outcome.refuse(request, error)
        for request, item in items:
            try:
                started = await item.wait_answer()
                if ids.read_instance(started.id) != request.instance:
                    raise Conflict(f"instance '{started.id}' has its key")
                outcome.done.append(request.id)
            except (PenstockError, *AWAY) as error:
                waits |= outcome.refuse(request, error)
        return waits

    async def _do(self, request: ClaimedRequest, outcome: _Outcome) -> bool:
        """Carry out what is no start. True: it is to be tried again, and those behind it wait."""
        _act_for(request)
        try:
            match request.operation:
                case "send":
                    await self._send(request)
                case "signal":
                    await self._signal(request)
                case "publish":
                    await self._publish(request)
                case _:
                    await self._cancel(request)
        except (PenstockError, *AWAY) as error:
            return outcome.refuse(request, error)
        outcome.done.append(request.id)
        return False

    async def _send(self, request: ClaimedRequest) -> None:
        asked = msgspec.json.decode(request.request, type=_SendArguments)
        dedup = asked.message_id or _own_id(request)
        await self._runs.send(_instance(request), asked.name, _body(request) or b"null", dedup=dedup)

    async def _signal(self, request: ClaimedRequest) -> None:
        asked = msgspec.json.decode(request.request, type=Signal)
        variables = check_variables(_body(request), self._limits)
        id = asked.signal_id or _own_id(request)
        await self._tasks.signal(
            msgspec.structs.replace(asked, instance_id=_instance(request), variables=variables, signal_id=id)
        )

    async def _publish(self, request: ClaimedRequest) -> None:
        asked = msgspec.json.decode(request.request, type=PublishRequest)
        variables = check_variables(_body(request), self._limits)
        id = asked.message_id or _own_id(request)
        await self._messages.publish(msgspec.structs.replace(asked, variables=variables, message_id=id))

    async def _cancel(self, request: ClaimedRequest) -> None:
        asked = msgspec.json.decode(request.request, type=_CancelArguments)
        await self._instances.cancel(_instance(request), asked.reason, compensate=asked.compensate)

    async def chores(self, connection: TrioConnection) -> None:
        """Forget what failed long ago, and count."""
        await store.purge(connection, self._settings.sql_requests_failed_retention_days, PURGE_MAX_ROWS)
        counts = await store.count(connection, COUNTED_MAX)
        self._metrics.sql_requests_waiting.set(counts.waiting)
        self._metrics.sql_requests_failed.set(counts.failed)
        self._metrics.sql_requests_oldest_seconds.set(counts.oldest_s)

    # -- for people

    async def list(self, state: str | None, cursor: str | None, limit: int | None) -> Page[SqlRequest]:
        """Requests that failed, or that wait, oldest first. Raises BadRequest."""
        if state not in (None, "", api.FAILED, api.WAITING):
            raise BadRequest(f"state: is {api.FAILED} or {api.WAITING}")
        after = 0 if not cursor else read_numbers(cursor, digits=18)[0]
        size = slice_limit(limit or 0)
        async with self._database.connection() as connection:
            rows = await store.read(connection, after, size, failed=state != api.WAITING)
        return Page(items=[_shown(row) for row in rows], next=str(rows[-1].id) if len(rows) == size else None)

    async def retry(self, number: str) -> None:
        """Carry out a failed request with the next ones. Raises NotFound, and Conflict when it has not failed, or
        another instance has its key."""
        id = _number(number)
        try:
            async with self._database.connection() as connection, connection.transaction():
                if not await store.retry(connection, id):
                    await self._refuse(connection, id)
                await self._record(connection, "SQL_REQUEST_RETRIED", number)
        except store.KeyTaken:
            raise Conflict("another request waits with its instance key; drop one of them") from None
        self.hint()

    async def drop(self, number: str) -> None:
        """Forget a failed request. Raises NotFound, and Conflict when it has not failed."""
        id = _number(number)
        async with self._database.connection() as connection, connection.transaction():
            if not await store.drop(connection, id):
                await self._refuse(connection, id)
            await self._record(connection, "SQL_REQUEST_DROPPED", number)

    async def _refuse(self, connection: TrioConnection, id: int) -> None:
        if await store.has_failed(connection, id) is None:
            raise NotFound(f"SQL request '{id}' is unknown: it is carried out or dropped, or there was none")
        raise Conflict(f"SQL request '{id}' has not failed: an engine carries it out")

    async def _record(self, connection: TrioConnection, kind: str, detail: str) -> None:
        if self._settings.audit_log_enabled:
            await connection.fetch(*audit_store.add(None, None, kind, actor(), detail))


def bindings(requests: SqlRequests) -> tuple[Binding, ...]:
    """What serves the operations on requests of SQL functions."""
    return (
        bind(api.LIST_SQL_REQUESTS, lambda ask: requests.list(ask.state, ask.cursor, ask.limit)),
        bind(api.RETRY_SQL_REQUEST, lambda ask: requests.retry(ask.number)),
        bind(api.DROP_SQL_REQUEST, lambda ask: requests.drop(ask.number)),
    )


def _by_transaction(claimed: Iterable[ClaimedRequest]) -> builtins.list[builtins.list[ClaimedRequest]]:
    found: dict[str, builtins.list[ClaimedRequest]] = {}
    for request in claimed:
        found.setdefault(request.transaction, []).append(request)
    return list(found.values())


def _act_for(request: ClaimedRequest) -> None:
    """What this task does from now on is the role's: audit rows and instances name it."""
    set_identity(Identity(f"sql:{request.role}", frozenset({Permission.OPERATE})))


def _body(request: ClaimedRequest) -> bytes | None:
    return None if request.body is None else request.body.encode()


def _instance(request: ClaimedRequest) -> str:
    assert request.instance is not None
    return ids.show_instance(request.instance)


def _own_id(request: ClaimedRequest) -> str:
    """By which a second try is known."""
    return f"sql:{request.id}"


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise NotFound(f"SQL request '{text[:20]}' is unknown")
    return int(text)


def _shown(row: RequestRow) -> SqlRequest:
    return SqlRequest(
        id=str(row.id),
        operation=row.operation,
        role=row.role,
        asked_at=row.asked_at,
        instance_id=None if row.instance is None else ids.show_instance(row.instance),
        definition_id=row.definition_id,
        instance_key=row.instance_key,
        request=raw(row.request),
        size_bytes=row.size_bytes,
        tries=row.tries,
        due_at=row.due_at,
        failed_at=row.failed_at,
        error=row.error,
        reason=row.reason,
    )
