"""One `Work` stream of an executor: items out, answers in, runs and news handed to whoever opened it.

The answers of a list come in the order of its items, so each goes to the first of its kind that waits. When the stream
ends the engine gives its runs to others: whoever waits then, or asks later, has lost the lease.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, Protocol, TypeAlias

import msgspec
import trio

from penstock.client.errors import ClientError, ConnectionFailed, InternalError
from penstock.client.grpc.call import GrpcCall
from penstock.client.grpc.credit import CreditBook, Wanting
from penstock.durable.backend import Away, Refused, RunLeaseLost
from penstock.kernel.record import UPDATE_RULES
from penstock.wire import penstock_v1 as w
from penstock.wire.codec import decode_message, encode_message
from penstock.wire.protobuf import DecodeError

MESSAGE_MAX_BYTES: Final = 1024 * 1024
"""An engine takes messages of 4 MiB by default; of one item that is larger a message is made all the same."""
MESSAGE_MAX_ITEMS: Final = 500
GATHER_ITERATIONS: Final = 2
"""Tasks that have something for the next message get so many turns to say so."""

Item: TypeAlias = w.RunAppend | w.RunPark | w.RunFinish | w.RunRead | w.RunChild | w.RunExtend
_LISTS: Final = {
    w.RunAppend: ("appends", "appended"),
    w.RunPark: ("run_parks", "parked"),
    w.RunFinish: ("finishes", "finished"),
    w.RunRead: ("reads", "pages"),
    w.RunChild: ("children", "children"),
    w.RunExtend: ("extends", "extended"),
}
"""Of each kind of items, and of their answers."""


class Intake(Wanting, Protocol):
    """Who opened the stream."""

    def opened(self) -> None:
        """The engine has taken the stream."""
        ...

    def accept(self, link: Link, run: w.Run) -> None:
        """A run that was leased to this executor."""
        ...

    def notice_run(self, job_id: str) -> None:
        """There is news of a run: its journal is to be read."""
        ...

    def watch(self, job_id: str) -> None:
        """Somebody waits for what a run shows."""
        ...


class _Question:
    """An item that waits for its answer. ``answer`` None: the stream has ended."""

    __slots__ = ("answer", "answered", "item", "size_bytes")

    def __init__(self, item: Item, size_bytes: int) -> None:
        self.item, self.size_bytes = item, size_bytes
        self.answered = trio.Event()
        self.answer: Any = None


class Link:
    """An open stream. `run` serves it until it ends."""

    def __init__(self, call: GrpcCall, worker_id: str, intake: Intake) -> None:
        self._call, self._worker_id, self._intake = call, worker_id, intake
        self._credit = CreditBook()
        self._to_send: deque[_Question] = deque()
        self._waiting: dict[str, deque[_Question]] = {answers: deque() for _, answers in _LISTS.values()}
        self._changed = trio.Event()
        self.is_over = False
        self.answered = False
        """Whether the engine has taken the stream."""
        self.leased: dict[str, int] = {}
        """Jobs of the runs that came on it and were not let go of, with their attempts: one may come again at once."""

    async def ask(self, item: Item, size_bytes: int = 0) -> Any:
        """Return the answer to an item. Raises `RunLeaseLost`, `Away`, `Refused`; the last with the answer as its
        second argument."""
        if self.is_over:
            raise RunLeaseLost
        question = _Question(item, size_bytes)
        self._to_send.append(question)
        self._changed.set()
        await question.answered.wait()
        answer = question.answer
        if answer is None or answer.outcome == w.OutcomeCode.LEASE_LOST:
            self.end_lease(item.job_id, item.attempt)
            raise RunLeaseLost
        if answer.outcome == w.OutcomeCode.UNAVAILABLE:
            raise Away(answer.reason)
        if answer.outcome != w.OutcomeCode.OK:
            raise Refused(answer.reason, answer)
        return answer

    def end_lease(self, job_id: str, attempt: int) -> None:
        """This attempt at a run is over here."""
        if self.leased.get(job_id) == attempt:
            del self.leased[job_id]

    def on_free_slots(self) -> None:
        """The executor takes another number of runs than before."""
        self._changed.set()

    async def run(self) -> None:
        """Send and receive until the stream ends, which always raises ClientError."""
        error: ClientError | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                try:
                    await self._call.wait_taken()
                    self.answered = True
                    self._intake.opened()
                    await self._read()
                except ClientError as raised:
                    error = raised
                nursery.cancel_scope.cancel()
        finally:
            self.is_over = True
            for question in (*self._to_send, *(each for waiting in self._waiting.values() for each in waiting)):
                question.answered.set()
            for job_id in self.leased:
                self._intake.notice_run(job_id)
        raise error or ConnectionFailed("the stream ended")

    # -- out

    async def _write(self) -> None:
        message = w.WorkRequest(worker_id=self._worker_id, executor=True, rules=UPDATE_RULES)
        message.credits = self._credit.changes([self._intake])
        await self._call.send(encode_message(message))
        while True:
            await self._changed.wait()
            for _ in range(GATHER_ITERATIONS):
                await trio.lowlevel.checkpoint()
            self._changed = trio.Event()
            changes = self._credit.changes([self._intake])
            while changes or self._to_send:
                message = self._compose()
                message.credits, changes = changes, []
                await self._call.send(encode_message(message))

    def _compose(self) -> w.WorkRequest:
        message, count, size_bytes = w.WorkRequest(), 0, 0
        while self._to_send and count < MESSAGE_MAX_ITEMS:
            size_bytes += self._to_send[0].size_bytes
            if count and size_bytes > MESSAGE_MAX_BYTES:
                break
            question = self._to_send.popleft()
            items, answers = _LISTS[type(question.item)]
            getattr(message, items).append(question.item)
            self._waiting[answers].append(question)
            count += 1
        return message

    # -- in

    async def _read(self) -> None:
        while (body := await self._call.receive()) is not None:
            try:
                self._take(decode_message(body, w.WorkResponse))
            except (DecodeError, msgspec.MsgspecError) as error:
                raise InternalError(f"unreadable message on the Work stream: {error}") from error
        raise ConnectionFailed("the engine ended the stream")

    def _take(self, message: w.WorkResponse) -> None:
        for name, waiting in self._waiting.items():
            for answer in getattr(message, name):
                if not waiting:
                    raise InternalError("the engine answered an item that was not sent")
                question = waiting.popleft()
                question.answer = answer
                question.answered.set()
        for run in message.runs:
            self._credit.used(run.job_type)
            self.leased[run.job_id] = run.attempt
            self._intake.accept(self, run)
        for credit in message.credits:
            self._credit.answered(credit)
        for mail in message.mail:
            (self._intake.notice_run if mail.count else self._intake.watch)(mail.job_id)
        for loss in message.lease_losses:
            self._intake.notice_run(loss.job_id)
        for end in message.cancellations:
            self._intake.notice_run(end.job_id)
        if message.runs or message.credits:
            self._changed.set()
