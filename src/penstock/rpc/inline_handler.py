"""Polls and completions of ``workflow.v1`` from their bytes to the group-commit queues and back, without a coroutine
each.

A worker's calls are the same thousands of times a second. Whatever is not as usual (a new poll, a job that another
engine leased, a large answer, a closed window) goes on as all other calls do, with the request as it came
(`server.GrpcServer.go_on`). Answers are the same to the byte. Must not know how a connection reads or writes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from msgspec import Struct

from penstock.engine.jobs.inline_jobs import InlineJobs, KnownPoll
from penstock.engine.queues.claims import ClaimItem
from penstock.engine.queues.fast_path import FastCompletion
from penstock.engine.requests.answers import COPIES
from penstock.engine.requests.payload import PayloadLimits, is_plain_object
from penstock.errors import PenstockError
from penstock.loop.offload import INLINE_MAX_BYTES
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import decode_message, encode_message
from penstock.wire.model import Completion, Job, PollRequest
from penstock.wire.protobuf import DecodeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.rpc.call import ServerCall

    Call = ServerCall[Any, Any]

AskedT = TypeVar("AskedT")

POLLS_KEPT: Final = 1_000
POLL_KEPT_MAX_BYTES: Final = 1_000
"""Polls that are known by their bytes: a megabyte."""
_EMPTY: Final = b""
_TRACE: Final = b"traceparent"


class InlineCalls:
    """What the calls of all connections have in common."""

    def __init__(
        self,
        jobs: InlineJobs,
        limits: PayloadLimits,
        answer: Callable[[Call, list[Job]], Awaitable[None]],
    ) -> None:
        """``answer``: a poll, with these jobs, however long it takes."""
        self.jobs = jobs
        self.answer = answer
        self._limits = limits
        self._polls: dict[bytes, KnownPoll] = {}

    def begin_poll(self, call: Call) -> bool:
        """Begin a poll; False when it is not for here, or not now."""
        message = call.whole
        if message is None or _TRACE in call.headers:
            return False
        try:
            poll = self._polls.get(message) or self._known_poll(message)
            if poll is None or (call.caller is not None and not self.jobs.lets_poll(poll, call.caller)):
                return False
            begun = _InlinePoll(self, call, poll)
            item = self.jobs.claim(poll, call.reservation, begun, call.started_at)
        except (PenstockError, DecodeError):  # the method says so, too
            return False
        return begun.expect(item)

    def _known_poll(self, message: bytes) -> KnownPoll | None:
        """A poll that `Jobs.poll` has found good."""
        if len(message) > POLL_KEPT_MAX_BYTES:
            return None
        read = decode_message(message, PollRequest, m.PACKAGE)
        poll = self.jobs.known(read, 0) if read.max_jobs > 0 and read.worker_id else None
        if poll is not None:
            if len(self._polls) >= POLLS_KEPT:
                self._polls.clear()
            self._polls[message] = poll
        return poll

    def begin_completion(self, call: Call) -> bool:
        """Begin a completion; False when it is not for here."""
        message = call.whole
        if message is None or len(message) > INLINE_MAX_BYTES or _TRACE in call.headers:
            return False
        try:
            read = decode_message(message, Completion, m.PACKAGE)
            output: Any = read.variables or None
            if not read.worker_id or (output is not None and not is_plain_object(output, self._limits)):
                return False
            begun = _InlineCompletion(self, call, read.job_id)
            types = None if call.caller is None else call.caller.job_types
            item = self.jobs.complete(read.job_id, read.worker_id, None, output, begun, call.started_at, types)
        except (PenstockError, DecodeError):  # the method says so, too
            return False
        return begun.expect(item)


class _InlineCall(Struct, Generic[AskedT], eq=False):
    """One call, from its item to its end."""

    calls: InlineCalls
    call: Call
    asked: AskedT
    """What is asked for: a poll, or the id of the job that is completed."""
    item: Any = None

    def expect(self, item: Any) -> bool:
        """Wait for it, if there is one."""
        if item is None:
            return False
        self.item = item
        call = self.call
        call.begun = True
        call.on_cancel = self.cancel
        return True

    def resume_soon(self) -> None:
        """The item has an answer, or has to wait elsewhere."""
        self.call.connection.server.taskless.queue.add(self.go_on)

    def go_on(self) -> None:
        """Answer, if there is an answer."""
        item, call = self.item, self.call
        if item is None:
            return  # it was cancelled
        if not item.settled:
            item.resumes(self)
            return
        self.item = call.on_cancel = None
        try:
            if not self._end(item):
                return
        except Exception as error:
            call.outcome = call.connection.server.problem(call, error)
        call.handled = True
        call.connection.server.end(call)

    @abstractmethod
    def _end(self, item: Any) -> bool:
        """Write the answer. False: the call goes on, here or elsewhere."""

    def cancel(self) -> None:
        """Its client has, or its time is over."""
        item, call = self.item, self.call
        self.item = call.on_cancel = None
        if item is not None:
            self._abandon(item)
        call.connection.server.end(call)

    def _abandon(self, item: Any) -> None:
        item.resumes(None)


class _InlinePoll(_InlineCall[KnownPoll], eq=False):
    def _end(self, item: ClaimItem) -> bool:
        calls, call = self.calls, self.call
        found = calls.jobs.claimed(self.asked, item, self, call.connection.last_received)
        if isinstance(found, ClaimItem):
            return not self.expect(found)
        jobs = found or []
        try:
            call.check_caller()
            small = call.reservation.bytes <= COPIES * INLINE_MAX_BYTES
            if small and call.answer_and_end(encode_message(m.PollJobsResponse(jobs), m.PACKAGE)):
                return True
        except BaseException:
            calls.jobs.release(item)
            raise
        held = call.reservation

        async def answer(call: Call) -> None:
            call.reservation.add(held.bytes)
            held.close()
            await calls.answer(call, jobs)

        call.connection.server.go_on(call, answer)
        return False

    def _abandon(self, item: ClaimItem) -> None:
        self.calls.jobs.release(item)


class _InlineCompletion(_InlineCall[str], eq=False):
    def _end(self, item: FastCompletion) -> bool:
        call = self.call
        if not self.calls.jobs.completed(self.asked, item):
            call.connection.server.go_on(call)
            return False
        if not call.answer_and_end(_EMPTY):

            async def answer(call: Call) -> None:
                await call.send_message(m.CompleteJobResponse())

            call.connection.server.go_on(call, answer)
            return False
        return True
