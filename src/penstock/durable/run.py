"""One run as others see it: its result, what it shows, and what may be said to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import uuid4

import msgspec
import trio

from penstock.client.errors import TimedOut, Unavailable
from penstock.durable.app_thread import Portal, in_its_loop
from penstock.durable.codec import decode, encode
from penstock.durable.errors import (
    RunBlocked,
    RunCancelled,
    RunFailed,
    UpdateFailed,
    UpdateRefused,
    UpdateUnanswered,
)
from penstock.durable.given import check_flag, check_id, check_text
from penstock.durable.run_ends import UNSERVED_S, RunEnds
from penstock.durable.workflow import Workflow
from penstock.wire.fields import json_text
from penstock.wire.update import RunUpdate, RunView, UpdateCall

if TYPE_CHECKING:
    from penstock.durable.backend import CallerRuns
    from penstock.wire.model import Instance

R = TypeVar("R")

POLL_INTERVAL_S = 1.0
ASK_WAIT_S = 15
"""Of one request for an answer; then it is asked again."""
UPDATE_ID_MAX_CHARS = 200
REASON_MAX_CHARS = 4_096
MESSAGE_NAME_MAX_CHARS = 256
PATH_MAX_CHARS = 4_096


class Run(Generic[R]):
    """A handle of one run.

    All calls raise the errors of `penstock.client`.

    Attributes:
        id: the id that the run was started with, else its instance's.
        instance_id: the id of its instance.
        deduplicated: whether ``dedupe`` or ``debounce`` answered a start with this run, which was there before.
    """

    def __init__(
        self,
        id: str,
        instance_id: str,
        runs: Callable[[], CallerRuns],
        known_ends: RunEnds,
        workflow: Workflow[..., R] | None = None,
        *,
        is_new: bool = False,
        deduplicated: bool = False,
        portal: Portal | None = None,
    ) -> None:
        self.portal = portal
        self._is_new = is_new  # so there is no sense in looking for its end at once
        self.id, self.instance_id = id, instance_id
        self.deduplicated = deduplicated
        """Whether ``dedupe`` or ``debounce`` answered a start with this run, which was there before."""
        self._runs, self._run_ends, self._workflow = runs, known_ends, workflow
        self._awaited = known_ends.of(instance_id)

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    @in_its_loop
    async def result(self, timeout_s: float | None = None) -> R:
        """Wait for the end of the run, and return its result.

        Args:
            timeout_s: how many seconds to wait; without a limit by default. The run goes on afterwards.

        Raises:
            RunFailed: the run failed. RunCancelled: it was cancelled.
            RunBlocked: this process found that its code can't go on with the run.
            TimedOut: the time is over.
            Unavailable: the database is away for longer than ``outage_wait_seconds``.
        """
        with trio.move_on_after(inf if timeout_s is None else timeout_s):
            return await self._wait_result()
        raise TimedOut(f"run {self.id} has not ended within {timeout_s} s")

    async def _wait_result(self) -> R:
        awaited, polls = self._awaited, not self._is_new and self.instance_id not in self._run_ends.leased
        while awaited.result is None:
            if polls:
                seen = await self._read_through_outages()
                if seen.completed_at is not None:
                    return self._result(seen.status, seen.failure_reason or "", json_text(seen.variables))
                blocked = self._run_ends.blocked.get(self.instance_id)
                if blocked is not None:
                    raise RunBlocked(self.id, blocked)
            self._runs()  # closed, nobody would tell
            with trio.move_on_after(UNSERVED_S) as scope:
                await self._run_ends.wait(awaited)
            polls = True
            if scope.cancelled_caught:
                await self._warn_unserved()
                await self._run_ends.wait(awaited)
        return self._value(awaited.result)

    async def _warn_unserved(self) -> None:
        async def find() -> str | None:
            found: str | None = (await self._runs().tree(self.instance_id)).get("waitsFor")
            return found

        if self.instance_id not in self._run_ends.leased:
            name = "" if self._workflow is None else self._workflow.name
            await self._run_ends.unserved.notify(f"run {self.id}", name, find)

    async def _read_through_outages(self) -> Instance:
        runs = self._runs()
        ends = trio.current_time() + runs.outage_wait_s
        while True:
            try:
                return await runs.read_run(self.instance_id)
            except Unavailable:
                if trio.current_time() >= ends:
                    raise
            await trio.sleep(POLL_INTERVAL_S)

    def _result(self, status: str, reason: str, variables: bytes) -> R:
        if status == "CANCELLED":
            raise RunCancelled(self.id, reason)
        if status != "COMPLETED":
            raise RunFailed(self.id, reason)
        found = msgspec.json.decode(variables, type=dict[str, msgspec.Raw]).get("result", b"null")
        return self._value(bytes(found).decode())

    def _value(self, text: str) -> R:
        type_ = Any if self._workflow is None else self._workflow.parameters.result_type()
        value: R = decode(text, type_)
        return value

    @in_its_loop
    async def status(self) -> str:
        """Return ACTIVE, WAITING, COMPLETED, FAILED or CANCELLED."""
        return (await self._runs().read_run(self.instance_id)).status

    @in_its_loop
    async def send(self, name: str, value: object = None, *, dedup: str | None = None, force: bool = False) -> None:
        """Send a message, which is kept until the workflow function receives it.

        Args:
            name: of the message.
            value: what ``receive`` gives.
            dedup: a second message with it is the same one.
            force: send also what does not fit the type that the run waits for.

        Raises:
            BadRequest: the value does not fit. The error names the field.
            Conflict: the run has ended.
        """
        check_text("name", name, MESSAGE_NAME_MAX_CHARS, needed=True)
        check_text("dedup", dedup)
        check_flag("force", force)
        runs = self._runs()
        text = encode(value, f"message {name!r}", runs.payload_max_bytes)
        await runs.send(self.instance_id, name, text, dedup, id=self.id, force=force)

    @in_its_loop
    async def ask(
        self,
        update: str,
        /,
        *args: object,
        id: str | None = None,
        timeout_s: float | None = None,
        **kwargs: object,
    ) -> Any:
        """Call an update of the run, and return what its handler returns, as plain JSON values.

        The call is kept until the workflow function has a handler of that name. It is checked by the handler's
        annotations and its validator before anything of it is recorded.

        Args:
            update: the name of the handler, which ``@update`` made.
            args: its arguments by position, or all of them by keyword.
            id: a second call with it is the same one, as long as the run is kept, and gets the same answer. Of refused
                calls the newest are remembered (`refused_calls_max_items`).
            timeout_s: how long to wait for the answer; by default without an end. The call goes on.

        Raises:
            UpdateRefused: the validator refused the call, or its arguments do not fit.
            UpdateFailed: the handler raised an error.
            UpdateUnanswered: the run ended before the call had an answer.
            IdempotencyConflict: another call was made with this id.
            Conflict: the run has ended.
            TimedOut: there was no answer within ``timeout_s``.
        """
        check_text("update", update, MESSAGE_NAME_MAX_CHARS, needed=True)
        check_text("id", id, UPDATE_ID_MAX_CHARS)
        if args and kwargs:
            raise TypeError("ask: give all arguments by position, or all by keyword")
        runs = self._runs()
        text = encode(kwargs or list(args), f"the arguments of update {update!r}", runs.payload_max_bytes)
        ends = trio.current_time() + (inf if timeout_s is None else timeout_s)
        wait_s = int(min(ends - trio.current_time(), ASK_WAIT_S))
        call = UpdateCall(update, msgspec.Raw(text.encode()), id or uuid4().hex, wait_s)
        answer = await runs.ask(self.instance_id, call, id=self.id)
        if answer.status == "PENDING":
            with trio.move_on_at(ends):
                answer = await self._wait_answer(call.id)
        if answer.status == "PENDING":
            raise TimedOut(f"run {self.id} has not answered update {update!r} within {timeout_s} s")
        reason = answer.reason or ""
        if answer.status == "REFUSED":
            raise UpdateRefused(update, reason)
        if answer.status == "FAILED":
            raise UpdateFailed(update, answer.error_type or "", reason)
        if answer.status == "UNANSWERED":
            raise UpdateUnanswered(update, reason)
        return None if answer.value is None else msgspec.json.decode(msgspec.json.encode(answer.value))

    async def _wait_answer(self, update_id: str) -> RunUpdate:
        outage_ends = inf
        while True:
            runs = self._runs()
            try:
                answer = await runs.find_update(self.instance_id, update_id, ASK_WAIT_S, id=self.id)
            except Unavailable:
                outage_ends = min(outage_ends, trio.current_time() + runs.outage_wait_s)
                if trio.current_time() >= outage_ends:
                    raise
                await trio.sleep(POLL_INTERVAL_S)
                continue
            if answer.status != "PENDING":
                return answer
            outage_ends = inf

    @in_its_loop
    async def cancel(self, reason: str | None = None, *, force: bool = False) -> None:
        """Cancel the run: it cleans up and ends.

        Args:
            reason: why, for the error and the journal.
            force: end it at once, without clean-up.

        Raises:
            Conflict: it has ended.
        """
        check_text("reason", reason, REASON_MAX_CHARS)
        check_flag("force", force)
        await self._runs().cancel(self.instance_id, reason, force=force, id=self.id)

    @in_its_loop
    async def retry(self, from_: str | None = None, *, note: str | None = None) -> None:
        """Let a failed run go on. Its journal is deleted from a place on, but for messages; that work is done again.

        Args:
            from_: from where: the path of an operation (`history` has them), ``"start"`` for its beginning, ``"end"``
            to delete
                nothing, as after a fix of its code. By default the step or child that failed last.
            note: why, for the audit trail.

        Raises:
            Conflict: the run has not failed, or something was done after the step that failed: then give ``from_``.
        """
        await self._runs().retry(self.instance_id, from_, note, id=self.id)

    @in_its_loop
    async def fork(self, path: str, *, id: str | None = None, later_messages: bool = False) -> Run[R]:
        """Start another run with this run's journal up to an operation, and return it. It goes on from there; this run
        stays as it is, open or ended.

        Args:
            path: the operation that the new run does again, such as ``"/3"`` (`history` has them). ``"start"``: from
                the beginning; ``"end"``: from where the journal ends.
            id: the new run is started once under this id. Without it each call starts one.
            later_messages: the new run gets the messages that came after that operation, too. By default it gets those
                before.

        Raises:
            BadRequest: the journal has no such operation.
            IdempotencyConflict: another run has the id.
        """
        check_text("path", path, PATH_MAX_CHARS)
        check_id(id)
        check_flag("later_messages", later_messages)
        started = await self._runs().fork(self.instance_id, path, id, later_messages=later_messages, id=self.id)
        return Run(
            id or started.instance_id, started.instance_id, self._runs, self._run_ends, self._workflow,
            is_new=not started.deduplicated, deduplicated=started.deduplicated, portal=self.portal,
        )  # fmt: skip

    @in_its_loop
    async def view(self, key: str | float | None = None, timeout_s: float = 0.0) -> Any:
        """Return what the run showed last with `set_view`, also after its end; None before.

        Args:
            key: of what it showed with ``set_view(value, key=…)``.
            timeout_s: waits so long, in seconds, for the first value, or for the end of a run that shows none. While
                somebody waits, the run's executor writes down at once what it shows.
        """
        if isinstance(key, (int, float)):  # as it was called before there were keys
            timeout_s, key = key, None
        check_text("key", key, MESSAGE_NAME_MAX_CHARS)
        ends = trio.current_time() + timeout_s
        found = RunView()
        with trio.move_on_at(ends if timeout_s > 0 else inf):
            while not (found.shown or found.ended):
                wait_s = ASK_WAIT_S if timeout_s > 0 else 0
                found = await self._runs().view(self.instance_id, key, wait_s, id=self.id)
                if timeout_s <= 0:
                    break
        return None if found.value is None else msgspec.json.decode(msgspec.json.encode(found.value))

    @in_its_loop
    async def tree(self) -> dict[str, Any]:
        """Return the run and its branches, as ``GET /v1/instances/{id}/tree`` shows them."""
        return await self._runs().tree(self.instance_id)

    async def history(self) -> AsyncGenerator[dict[str, Any]]:
        """Read its journal, oldest record first, as ``GET /v1/instances/{id}/journal`` shows it."""
        cursor: str | None = None
        while True:
            records, cursor = await self.read_history(cursor)
            for record in records:
                yield record
            if cursor is None:
                return

    @in_its_loop
    async def read_history(self, cursor: str | None = None) -> tuple[list[dict[str, Any]], str | None]:
        """Read a part of its journal: records, and the cursor of the next part; None with the last."""
        return await self._runs().journal(self.instance_id, cursor)
