"""The client's calls about workflow instances: start, read, wait, cancel, user tasks, signals."""

from __future__ import annotations

import math
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Unpack

import anyio
import msgspec

from penstock.api import instances as api
from penstock.api import tasks
from penstock.client.backoff import RetryPauses
from penstock.client.call import RowCall, pages_of
from penstock.client.caller import every_item
from penstock.client.encoding import optional_object
from penstock.client.errors import ClientError, Conflict, NotFound, TimedOut, Unavailable
from penstock.client.model import StartResult
from penstock.client.operation import (
    InstanceFilters,
    StartInstance,
    StartInstances,
)
from penstock.client.repair import RepairCalls
from penstock.wire.model import (
    AuditRecord,
    Instance,
    KeptSignal,
    RecordedAttempt,
    Signal,
    StartRequest,
    StepExecution,
    UserTaskCompletion,
)
from penstock.wire.page import Page
from penstock.wire.start import Debounce, Dedupe, Throttle
from penstock.wire.why import Why

START_CHUNK_ITEMS = 200
LIST_PART_ITEMS = 200
FIRST_POLL_PAUSE_S = 0.05
MAX_POLL_PAUSE_S = 1.0
MIN_READ_S = 1.0


class WaitState(msgspec.Struct, frozen=True):
    """What is read of where an instance stands."""

    why: Why


class InstanceCalls(RepairCalls):
    """Start instances, look at them and act on them.

    ``variables`` is a mapping, dataclass, msgspec struct or pydantic model: anything with the form of a JSON object.
    """

    async def start_instance(
        self,
        definition_id: str,
        variables: object = None,
        *,
        version: int | None = None,
        business_key: str | None = None,
        instance_key: str | None = None,
        keep_instance_key: bool = False,
        idempotency_key: str | None = None,
        priority: int | None = None,
        flow_key: str | None = None,
        start_at: datetime | str | None = None,
        delay: str | None = None,
        dedupe: Dedupe | None = None,
        throttle: Throttle | None = None,
        debounce: Debounce | None = None,
        wait_s: float = 0.0,
    ) -> Instance:
        """Start an instance of the latest or the given version.

        Repeated safely: without an ``idempotency_key`` the client makes one for this call. Give your own to make
        the start idempotent beyond this call (the engine keeps keys for 24 h). An ``instance_key`` is unique among the
        open instances of the definition: while there is one with it, that one is returned. With
        ``keep_instance_key`` the key stays taken after the end, as long as the engine keeps the instance: your own key
        then makes the start happen once, however late it is repeated. ``priority`` (0 to 9, lower first) and
        ``flow_key`` (a tenant, say) are of its jobs: docs/queues.md.

        With ``start_at`` (a time without a zone is the caller's own) or ``delay`` (ISO 8601) it is there at once and
        begins later. ``dedupe``, ``throttle`` and ``debounce`` say what becomes of others with their key:
        docs/starts.md. With ``wait_s`` (at most 60) the answer comes when it has ended, or after so long.

        Raises:
            NotFound: no such definition or version.
            IdempotencyConflict: the key was used with another request.
            Throttled: more starts with the key than ``throttle`` allows.
        """
        request = StartRequest(
            definition_id=definition_id,
            definition_version=version,
            variables=optional_object(variables),
            business_key=business_key,
            instance_key=instance_key,
            keep_instance_key=keep_instance_key,
            idempotency_key=idempotency_key or _new_idempotency_key(),
            priority=priority,
            flow_key=flow_key,
            start_at=start_at.astimezone(UTC).isoformat() if isinstance(start_at, datetime) else start_at,
            delay=delay,
            dedupe=dedupe,
            throttle=throttle,
            debounce=debounce,
            wait_seconds=wait_s or None,
        )
        return await self.call(StartInstance(request=request))

    async def start_instances(self, requests: Sequence[StartRequest]) -> list[StartResult]:
        """Start many instances; one result per request, in their order. Sent in parts of 200.

        Each result holds an instance or an error (``result.unwrap()`` raises it): one refused request stops no
        other. What was ``unavailable`` is repeated while time is left. Raises only for what can't be encoded.
        """
        keyed = [
            request
            if request.idempotency_key
            else msgspec.structs.replace(request, idempotency_key=_new_idempotency_key())
            for request in requests
        ]
        results: list[StartResult] = []
        for first in range(0, len(keyed), START_CHUNK_ITEMS):
            results += await self._start_chunk(keyed[first : first + START_CHUNK_ITEMS])
        return results

    async def _start_chunk(self, chunk: Sequence[StartRequest]) -> list[StartResult]:
        results: list[StartResult | None] = [None] * len(chunk)
        open_items = list(range(len(chunk)))
        deadline = anyio.current_time() + self._timeout_s
        backoff = RetryPauses()
        while True:
            left_s = max(0.0, deadline - anyio.current_time())
            try:
                operation = StartInstances(items=[chunk[index] for index in open_items])
                answers = await self.call(operation, timeout_s=left_s)
            except ClientError as error:
                answers = [StartResult(error=error.code, reason=error.reason)] * len(open_items)
            for index, answer in zip(open_items, answers, strict=True):
                results[index] = answer
            open_items = [
                index for index, answer in zip(open_items, answers, strict=True) if answer.error == "unavailable"
            ]
            pause_s = backoff.next_pause_s()
            if not open_items or anyio.current_time() + pause_s >= deadline:
                return [result for result in results if result is not None]
            await anyio.sleep(pause_s)

    async def get_instance(self, instance_id: str, *, wait_s: int = 0) -> Instance:
        """Return the instance as it is now; with ``wait_s`` (0 to 60) when it has ended, or after so long.

        Raises:
            NotFound: no such instance.
            TooManyRequests: the engine has as many calls that wait as it takes.
        """
        return await self.call(RowCall(api.GET_INSTANCE, api.GetInstance(instance_id, wait_s or None)))

    async def get_why(self, instance_id: str) -> Why:
        """Return why an instance is where it is: ``code``, ``text`` and, where something happens by itself, ``next``.

        Raises:
            NotFound: no such instance.
            Unavailable: the database is too busy for people's looks.
        """
        return (await self.call(RowCall(api.GET_STATE, api.GetState(instance_id), WaitState))).why

    async def find_instance(self, definition_id: str, instance_key: str) -> Instance:
        """Find the instance that has an instance key: the open one, or the one that keeps it.

        Raises:
            NotFound: there is none.
        """
        wanted = api.ListInstances(definition_id=definition_id, instance_key=instance_key, page=0, page_size=20)
        page = await self.call(RowCall(api.LIST_INSTANCES, wanted))
        if not page.items:
            raise NotFound(f"no instance of '{definition_id}' has the instance key '{instance_key}'")
        return page.items[0]

    async def list_instances(
        self,
        *,
        page: int = 0,
        page_size: int = 20,
        cursor: str | None = None,
        limit: int | None = None,
        **filters: Unpack[InstanceFilters],
    ) -> Page[Instance]:
        """List one page of the instances that match all given filters (`InstanceFilters`), newest first. Pages count
        from 0.

        With a ``limit`` in place of pages: go on with ``cursor=page.next`` until that is None. So nothing is left out
        or comes twice, whatever changes meanwhile. ``iterate_instances`` does it.
        """
        number, size = pages_of(page, page_size, cursor, limit)
        wanted = api.ListInstances(page=number, page_size=size, cursor=cursor, limit=limit, **filters)
        return await self.call(RowCall(api.LIST_INSTANCES, wanted))

    def iterate_instances(self, **filters: Unpack[InstanceFilters]) -> AsyncIterator[Instance]:
        """Read all instances that match, newest first, as you go.

        You may change what is yielded (cancel it, retry it): each instance that matches when it is read is yielded
        once, none is skipped. Those that start meanwhile are not.
        """
        return every_item(lambda cursor: self.list_instances(cursor=cursor, limit=LIST_PART_ITEMS, **filters))

    async def get_history(self, instance_id: str) -> list[StepExecution]:
        """List all step executions of an instance in the order of entry.

        Raises:
            NotFound: no such instance.
        """
        return await self.call(RowCall(api.GET_HISTORY, api.GetHistory(instance_id)))

    async def get_attempts(self, execution_id: str) -> list[RecordedAttempt]:
        """List the newest attempts of an execution (``StepExecution.id``, or a job's id), oldest first.

        Each with its result and what its worker told last; with what it was given where the definition has
        ``recordAttempts``, or the engine records the job type.

        Raises:
            NotFound: no such execution.
        """
        return await self.call(RowCall(api.LIST_ATTEMPTS, api.ListAttempts(execution_id)))

    async def get_audit(self, instance_id: str, *, limit: int | None = None) -> list[AuditRecord]:
        """List the first records of an instance's audit trail, oldest first; 1,000 at most.

        Raises:
            NotFound: no such instance.
        """
        return (await self.call(RowCall(api.GET_AUDIT, api.GetAudit(instance_id, limit)))).items

    def iterate_audit(self, instance_id: str) -> AsyncIterator[AuditRecord]:
        """Read the whole audit trail of an instance, oldest first, as you go.

        Raises:
            NotFound: no such instance.
        """
        return every_item(lambda cursor: self.call(RowCall(api.GET_AUDIT, api.GetAudit(instance_id, cursor=cursor))))

    async def list_signals(self, instance_id: str) -> list[KeptSignal]:
        """List the signals that are kept for waits which are not open yet (``signal(…, buffer=True)``), oldest first.

        Raises:
            NotFound: no such instance.
        """
        return await self.call(RowCall(api.LIST_SIGNALS, api.ListSignals(instance_id)))

    async def cancel_instance(
        self, instance_id: str, *, reason: str | None = None, force: bool = False, compensate: bool = False
    ) -> Instance:
        """Cancel an instance; its workers learn it at their next heartbeat.

        When the answer of an earlier try was lost and the instance turns out to be cancelled, that is success.

        A durable run is asked to end: the clean-up of its body runs first, so what comes back may be open still.
        ``force`` ends it at once, without. An engine that is reached by gRPC knows no force.

        ``compensate``: what the instance did is undone first, by the handlers of its steps; so it is open still in what
        comes back, unless there was nothing to undo.

        Raises:
            NotFound: no such instance.
            Conflict: it has ended already, or is being undone.
        """
        cancel = RowCall(api.CANCEL_INSTANCE, api.CancelInstance(instance_id, reason, force, compensate))
        try:
            return await self.call(cancel)
        except Unavailable as error:
            if not error.maybe_applied:
                raise
            lost = error
        instance = await self.get_instance(instance_id)
        if instance.status == "CANCELLED":
            return instance
        if instance.ended:
            raise Conflict(f"instance {instance_id} is {instance.status}") from lost
        raise lost

    async def wait_until_ended(
        self, instance_id: str, *, timeout_s: float | None = None, on_change: Callable[[Instance], None] | None = None
    ) -> Instance:
        """Read an instance again and again (at most once a second) until it has ended.

        ``on_change`` is called with every state that differs from the one before, the first included.

        Raises:
            NotFound: no such instance.
            TimedOut: it has not ended within ``timeout_s`` seconds (None waits for ever).
            Unavailable: the engine was away for as long as a call may take, or until the time was over; a look gets
                a second at least.
        """
        deadline = anyio.current_time() + (math.inf if timeout_s is None else timeout_s)
        pause_s = FIRST_POLL_PAUSE_S
        seen: Instance | None = None
        while True:
            left_s = max(MIN_READ_S, deadline - anyio.current_time())
            read = RowCall(api.GET_INSTANCE, api.GetInstance(instance_id))
            instance = await self.call(read, timeout_s=min(self._timeout_s, left_s))
            if on_change is not None and instance != seen:
                on_change(instance)
            seen = instance
            if instance.ended:
                return instance
            if anyio.current_time() + pause_s > deadline:
                raise TimedOut(f"instance {instance_id} is still {instance.status} after {timeout_s:g} s")
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, MAX_POLL_PAUSE_S)

    async def complete_user_task(
        self,
        instance_id: str,
        step_id: str,
        variables: object = None,
        *,
        completed_by: str | None = None,
        execution_id: str | None = None,
    ) -> None:
        """Complete the open user task of a step, of several (items of a forEach) the oldest, or the one that is named.
        Not repeated when an answer was lost.

        Raises:
            NotFound: no such instance, or no open task there.
            Conflict: the instance has ended.
            BadRequest: the step is of another type.
        """
        done = UserTaskCompletion(instance_id, step_id, optional_object(variables), completed_by, execution_id)
        await self.call(RowCall(tasks.COMPLETE_USER_TASK, done))

    async def signal(
        self,
        instance_id: str,
        step_id: str,
        variables: object = None,
        *,
        idempotency_key: str | None = None,
        buffer: bool = False,
        signal_id: str | None = None,
    ) -> None:
        """Signal a waiting step; its variables are merged. Repeated safely, as with ``start_instance``.

        With ``buffer`` a signal that comes before its wait is open is kept until then. A ``signal_id`` of your own does
        that too, and is remembered as long as the instance: however often the signal is sent, it acts once.

        Raises:
            NotFound: no such instance.
            Conflict: the instance does not wait there, or has ended.
            BadRequest: the step is of another type.
        """
        signal = Signal(
            instance_id=instance_id,
            step_id=step_id,
            variables=optional_object(variables),
            buffer=buffer,
            signal_id=signal_id or None,
            idempotency_key=idempotency_key or (None if signal_id else _new_idempotency_key()),
        )
        await self.call(RowCall(tasks.SIGNAL, signal))

    async def signal_by_key(
        self, definition_id: str, instance_key: str, step_id: str, variables: object = None, *, signal_id: str
    ) -> None:
        """Signal a waiting step of the instance that has an instance key, by ids that are all your own.

        The signal may come before its wait is open, and any number of times: it acts once.

        Raises:
            NotFound: no instance has the key (yet).
            Conflict: the instance has ended, or has no such step.
            IdempotencyConflict: another signal came with this ``signal_id``.
            BadRequest: the step is of another type.
        """
        signal = Signal(
            step_id=step_id,
            variables=optional_object(variables),
            signal_id=signal_id,
            definition_id=definition_id,
            instance_key=instance_key,
        )
        await self.call(RowCall(tasks.SIGNAL_BY_KEY, signal))


def _new_idempotency_key() -> str:
    return uuid.uuid4().hex
