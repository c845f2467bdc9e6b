"""What durable runs have started and wait for: other durable runs, and instances of graphs.

The call is written with the instance that it starts, under the lease of the run that calls: there is none that the
run's end, or its cancel, can't see. The end of the instance is a timer of the caller (`store/queries/calls.sql`), like
that of a graph's call, and becomes a record of its journal here. Where a graph calls a durable run, its cancel comes
here.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any, Final

import msgspec
import trio

from penstock.core.advance.calls import CHILD_REASON_MAX_CHARS
from penstock.core.rules.state import InstanceStatus
from penstock.engine.advance.timers import Timers
from penstock.engine.definitions.definitions import CODE_CALLS_VERSION
from penstock.engine.instances.instances import Instances
from penstock.engine.queues.journal_items import PATH_MAX_CHARS, ChildEnd, RecordKind, RunLease
from penstock.engine.requests.ids import read_instance, show_instance
from penstock.engine.requests.payload import check_text
from penstock.engine.runs.code import Code, CodeWorkflow, may_differ, refuse_other_arguments
from penstock.engine.runs.journal import Journal
from penstock.errors import Conflict, LeaseLost, NotFound, PayloadTooLarge, Unavailable
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database, unavailable_when_away
from penstock.store.rows import calls as store
from penstock.store.rows import engines as engine_store
from penstock.store.rows import instances as instance_store
from penstock.store.rows import journal as journal_store
from penstock.store.rows.calls import CodeCall, EndForCode
from penstock.store.rows.timers import Timer
from penstock.store.rows.timers import delete as delete_timer
from penstock.wire.model import StartRequest

CANCEL_REASON: Final = "the run that waits for it was cancelled"
NOTICES_AT_ONCE: Final = 50
"""Ends whose results are in memory."""
OWN_ID_MAX_CHARS: Final = 200
ENDED_HASH: Final = hashlib.sha256(b"child").hexdigest()


def own_id(key: str, seq: int) -> str:
    """The id of what an operation of a run begins without naming one; paths may be longer than ids."""
    text = f"{key}@{seq:x}"
    if len(text) <= OWN_ID_MAX_CHARS:
        return text
    return f"{text[: OWN_ID_MAX_CHARS // 2]}…{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


class Children:
    """Starts and cancels them for the holder of a run, and tells their ends."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        code: Code,
        instances: Instances,
        journal: Journal,
        timers: Timers,
    ) -> None:
        self._database = database
        self._settings = settings
        self._code = code
        self._instances = instances
        self._journal = journal
        self._timers = timers
        self._enabled = False  # all engines are known to know calls of code, and no others may join
        self._notifying = trio.Semaphore(NOTICES_AT_ONCE)

    async def start(self, run_lease: RunLease, path: str, target: CodeWorkflow | str, arguments: bytes, id: str) -> str:
        """Start what the operation at ``path`` waits for, once: a durable run, or an instance of the latest version of
        a definition, with priority and flow key of the run. Gives its id.

        Raises LeaseLost, BadRequest (no such definition; too many that call each other), NotFound (a workflow of
        another App that nobody has registered), Conflict (the id is of an instance that was not called here),
        IdempotencyConflict, PayloadTooLarge, Unavailable (also while older engines live).
        """
        with unavailable_when_away():
            return await self._start(run_lease, path, target, arguments, id)

    async def _start(
        self, run_lease: RunLease, path: str, target: CodeWorkflow | str, arguments: bytes, id: str
    ) -> str:
        check_text(path, "path", PATH_MAX_CHARS)
        if len(arguments) > self._settings.payload_max_bytes:
            raise PayloadTooLarge(
                f"arguments: have more than {self._settings.payload_max_bytes} bytes: store them elsewhere "
                "and pass a key"
            )
        if not self._enabled:
            try:
                async with self._database.connection() as connection:
                    await engine_store.require_version(connection, CODE_CALLS_VERSION)
            except Conflict as error:  # an older engine lives: not for long, and no reason for a run to fail
                raise Unavailable(error.reason) from error
            self._enabled = True
        if isinstance(target, CodeWorkflow):
            definition_id, version = target.definition_id, await self._code.known(target)
        else:
            definition_id, version = target, None
        request = StartRequest(
            definition_id=definition_id,
            definition_version=version,
            variables=arguments,
            business_key=id,
            instance_key=id,
            keep_instance_key=True,
        )
        view, found = await self._instances.start_called(request, CodeCall(run_lease, path))
        if not found:
            return view.id
        number = read_instance(view.id)
        async with self._database.connection() as connection:
            called = await store.called_at(connection, number)
            if called is None or called[:2] != (run_lease.instance, path):
                raise Conflict(f"id: '{id}' is of an instance that this run did not call here")
            if version is not None and may_differ(view, arguments):
                await refuse_other_arguments(connection, view, id, arguments)
            await connection.roundtrip([store.renew(number)])
            called = await store.called_at(connection, number)  # whoever ends it now tells the call as it is now
            if called is not None and called[2] is not InstanceStatus.ACTIVE:
                await connection.roundtrip(store.notifications([], [], [number], []))
                self._timers.on_due_in(0)
        return view.id

    async def cancel(self, run_lease: RunLease, path: str) -> bool:
        """Ask what the operation at ``path`` waits for to end. False: it was never started, and never will be. Raises
        LeaseLost, Unavailable."""
        with unavailable_when_away():
            async with self._database.connection() as connection:
                is_held, found = await store.called_by_code(connection, CodeCall(run_lease, path))
        if not is_held:
            raise LeaseLost("another executor has the run, or it has ended")
        if found is None:
            return False
        number, status = found
        if status is InstanceStatus.ACTIVE:
            await self._cancel(number)
        return True

    async def _cancel(self, number: int) -> None:
        with suppress(Conflict, NotFound):  # it has ended meanwhile
            await self._instances.cancel_one_of_many(number, CANCEL_REASON)

    async def cancel_called(self, number: int, timer: Timer) -> bool:
        """A durable run was called, and who waited for it does so no more."""
        await self._cancel(number)
        async with self._database.connection() as connection:
            await connection.roundtrip([delete_timer(*timer)])
        return True

    async def notify(self, caller: int, timer: Timer) -> bool:
        """What a call waits for has ended: its timer is due, and goes with the record for the caller."""
        async with self._notifying:
            return await self._notify_caller(caller, timer)

    async def _notify_caller(self, caller: int, timer: Timer) -> bool:
        token, seq, _ = timer
        async with self._database.connection() as connection:
            end = await store.end_for_code(connection, token, seq)
            record = None
            if end is not None and end.status is not InstanceStatus.ACTIVE:
                record = await self._record(connection, end)
            if end is None or record is None:  # nobody waits any more; or it goes on, and will end again
                await connection.roundtrip([delete_timer(*timer)])
                return False
        payload = msgspec.json.encode(record).decode()
        name = end.definition_id.rpartition(":")[2] if end.is_code else end.definition_id
        notice = journal_store.RunNotice(
            caller, RecordKind.CHILD, end.path, name, payload, f"c:{seq:x}", ENDED_HASH, None
        )  # fmt: skip
        try:
            await self._journal.notify(notice, timer)
        except (Conflict, NotFound):  # the caller has ended
            return False
        return True

    async def _record(self, connection: TrioConnection, end: EndForCode) -> ChildEnd:
        id = show_instance(end.id)
        if end.status is not InstanceStatus.COMPLETED:
            reason = None if end.failure is None else end.failure[:CHILD_REASON_MAX_CHARS]
            return ChildEnd(id, end.status.name, reason=reason)
        [row] = await instance_store.view(connection, [end.id])
        result = (row.result or row.variables or "{}").encode()
        if end.is_code:
            found: dict[str, Any] = msgspec.json.decode(result, type=dict[str, msgspec.Raw])
            result = bytes(found.get("result", msgspec.Raw(b"null")))
        if len(result) > self._settings.payload_max_bytes:
            reason = f"its result has {len(result):,} bytes; at most {self._settings.payload_max_bytes:,} come back"
            return ChildEnd(id, "TOO_LARGE", reason=reason)
        return ChildEnd(id, end.status.name, msgspec.Raw(result))
