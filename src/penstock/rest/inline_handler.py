"""Polls, completions and starts straight from the bytes of a connection to the group-commit queues, and from there to
its socket.

These calls are the same thousands of times a second: no request, no coroutine, no task is made for them. Whatever
is not as usual (a new body of a poll, a job that another engine leased, an answer of a megabyte, a poll that waits
for a moment only, a start that waits for its end, a header that means something) is left to the handlers of `jobs` and
`starts`, with the bytes as they came.
Answers are the same to the byte. For connections whose headers say nothing of their own, and with authentication for
callers who are known without waiting, whose polls wait elsewhere; never with limits on calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter, time
from typing import Final, Protocol, cast

import msgspec

from penstock.access.gate import Gate, reason_of
from penstock.access.identity import Identity
from penstock.api.permission import Permission
from penstock.engine.jobs.inline_jobs import InlineJobs, KnownPoll, PendingPoll
from penstock.engine.queues.claims import ClaimItem
from penstock.engine.queues.fast_path import FastCompletion
from penstock.engine.requests.answers import COPIES, AnswerMemory, MemoryReservation, current_reservation
from penstock.engine.requests.payload import PayloadLimits, is_plain_object
from penstock.engine.starts.start_item import StartItem
from penstock.errors import PenstockError, Unauthenticated
from penstock.loop.offload import INLINE_MAX_BYTES
from penstock.rest.exchange import CLIENT_GONE_STATUS, JSON, Headers, Reply, RestRequest
from penstock.rest.jobs import ENCODED_AT_ONCE_BYTES, KNOWN_POLLS_MAX_COUNT, JobRoutes, large_answer
from penstock.rest.operation import CONSOLE_HEADER
from penstock.rest.operations import START
from penstock.rest.problems import bug, problem_of
from penstock.rest.starts import IDEMPOTENCY_KEY, STARTED, StartRoutes, shown
from penstock.telemetry.metrics import Metrics
from penstock.telemetry.metrics.numbers import Distribution
from penstock.wire.model import Completion, Job

Sent = list[tuple[bytes, bytes]]
NEEDS: Final = Permission.WORK
"""Of polls and completions."""
POLL: Final = b"POST /v1/jobs/poll HTTP/1.1"
_START: Final = b"POST %b HTTP/1.1" % START.path.encode()
_BEFORE: Final = b"POST /v1/jobs/"
_BEHIND: Final = b"/complete HTTP/1.1"
_AROUND_BYTES: Final = len(_BEFORE) + len(_BEHIND)
"""Of a completion's line beside the id: a batch's is shorter, as one slash ends what is before and begins the rest."""
_POLL_PATH: Final = "/v1/jobs/poll"
_COMPLETE_PATH: Final = "/v1/jobs/{id}/complete"
_START_PATH: Final = START.path
_JSON: Final = (b"content-type", JSON)
_MEANING: Final = (
    b"origin", b"sec-fetch-site", b"traceparent", b"content-encoding", IDEMPOTENCY_KEY, b"cookie",
    CONSOLE_HEADER.lower().encode(),
)  # fmt: skip
"""Headers that a call is looked at for."""

_decode_completion = msgspec.json.Decoder(Completion).decode
_encode = msgspec.json.Encoder().encode


class Wire(Protocol):
    """A connection, as a call on it sees it. A call is over when it has called one of these."""

    @property
    def now(self) -> float:
        """Trio time of this turn of the loop."""
        ...

    @property
    def address(self) -> str | None:
        """The client's, which has no certificate: whoever comes over TLS is served otherwise."""
        ...

    @property
    def peer_gone(self) -> bool:
        """The client has closed its side, as far as was told."""
        ...

    def go_on_soon(self) -> None:
        """Have `InlineCall.go_on` called in the next turn of the loop."""
        ...

    def waits_until(self, deadline: float) -> bool:
        """Have `InlineCall.expire` called at that trio time, and `InlineCall.go_on` when the client closes its side, if
        the call is not over then. False where that is too soon to be told."""
        ...

    def is_gone(self) -> bool:
        """Return whether the client has closed its side by now."""
        ...

    def answer(self, status: int, headers: Headers, body: bytes | None) -> bool:
        """A whole answer. False: it has not left yet, `InlineCall.sent` is called when it has."""
        ...

    def leave(self, handler: Callable[[RestRequest], Awaitable[Reply]] | None) -> None:
        """Have the request served as all others are, by another handler or its own."""
        ...


class InlineRoutes:
    """What the calls of all connections have in common."""

    def __init__(
        self,
        jobs: InlineJobs,
        handlers: JobRoutes,
        starts: StartRoutes | None,
        memory: AnswerMemory,
        limits: PayloadLimits,
        metrics: Metrics,
        always: Headers,
        passes: Callable[[Mapping[bytes, bytes]], bool],
        gate: Gate | None = None,
    ) -> None:
        """``starts``: None leaves these to their handler, as where each has a span; ``always``: headers of every
        answer; ``passes``: whether headers were found good before. Without a ``gate`` everybody may do everything."""
        self.jobs = jobs
        self.starts = starts
        self.memory = memory
        self.limits = limits
        self.always = always
        self.with_json: Headers = (*always, _JSON)
        self._seconds = metrics.http_request_seconds
        self._seconds_of: dict[tuple[str, int], Distribution] = {}
        self.polls: dict[bytes, KnownPoll] = {}
        self._handlers = handlers
        self._passes = passes
        self.gate = gate

    def takes(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether calls with these headers can be served here."""
        return self._passes(headers) and not any(name in headers for name in _MEANING)

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Note that a call took so long."""
        found = self._seconds_of.get((path, status))
        if found is None:
            found = self._seconds_of[path, status] = self._seconds["POST", path, str(status)].distribution
        found.observe(seconds)

    def known_poll(self, body: bytes) -> KnownPoll | None:
        """A poll that the handler has served before."""
        read = self._handlers.known_poll(body)
        poll = None if read is None else self.jobs.known(*read)
        if poll is not None:
            if len(self.polls) == KNOWN_POLLS_MAX_COUNT:
                self.polls.clear()
            self.polls[body] = poll
        return poll


class InlineCall:
    """One connection's call, one after the other."""

    __slots__ = (
        "_caller",
        "_fault",
        "_gate",
        "_headers",
        "_item",
        "_job_id",
        "_path",
        "_pending",
        "_poll",
        "_proofs",
        "_reservation",
        "_routes",
        "_started",
        "_wire",
    )  # fmt: skip

    def __init__(self, routes: InlineRoutes, wire: Wire) -> None:
        self._routes = routes
        self._wire = wire
        self._reservation = MemoryReservation(routes.memory)
        self._item: ClaimItem | FastCompletion | StartItem | None = None
        self._pending: PendingPoll | None = None
        self._fault: Reply | None = None  # to a call that could not be begun
        self._path = _POLL_PATH  # of the call, as its handler's is called
        self._poll: KnownPoll | None = None
        self._job_id = ""
        self._started = 0.0
        self._gate = routes.gate
        self._headers: Sent = []  # of the last call
        self._proofs: list[bytes] = []  # in them
        self._caller: Identity | None = None  # with a gate

    def takes(self, headers: Mapping[bytes, bytes]) -> bool:
        """As `InlineRoutes`."""
        return self._routes.takes(headers)

    def begin(self, line: bytes, headers: Sent, body: bytes) -> bool:
        """Begin the call of a request line; False when it is not for here, or not now."""
        path = self._path_of(line)
        if path is None:
            return False
        self._path, self._started = path, perf_counter()
        try:
            if self._gate is not None and not self._lets_pass(self._gate, headers):
                return False
            if path == _POLL_PATH:
                return self._begin_poll(body)
            item = self._begin_start(body) if path == _START_PATH else self._begin_completion(line, body)
        except PenstockError:  # the handler says so, too
            self._reservation.close()
            return False
        except Exception as error:  # not left to the handler: it may have a part of its effect already
            self._fault = bug(error, "POST", line[5:-9].decode("latin-1"))
            self._wire.go_on_soon()
            return True
        self._item = item
        return item is not None

    def _path_of(self, line: bytes) -> str | None:
        """Of a request line, as its handler's is called; None where it is not for here."""
        if line == POLL:
            return _POLL_PATH
        if len(line) > _AROUND_BYTES and line.startswith(_BEFORE) and line.endswith(_BEHIND):
            return _COMPLETE_PATH
        return _START_PATH if line == _START and self._routes.starts is not None else None

    def _lets_pass(self, gate: Gate, headers: Sent) -> bool:
        """Return whether it is known at once who calls, and that they may."""
        if headers is not self._headers:
            self._headers, self._proofs = headers, [value for name, value in headers if name == b"authorization"]
        caller = self._caller = gate.find(self._proofs, self._wire.address, ())
        needs = START.needs if self._path == _START_PATH else NEEDS
        return caller is not None and needs in caller.permissions

    def _begin_poll(self, body: bytes) -> bool:
        routes = self._routes
        poll = routes.polls.get(body) or routes.known_poll(body)
        if poll is None or (self._caller is not None and not routes.jobs.lets_poll(poll, self._caller)):
            return False
        self._poll = poll
        self._item = routes.jobs.claim(poll, self._reservation, self, self._wire.now)
        return self._item is not None or self._park(poll)

    def _park(self, poll: KnownPoll) -> bool:
        """Let a poll wait; False where it would not be for long."""
        wire = self._wire
        now = wire.now
        if self._gate is not None or not (poll.waits and wire.waits_until(now + poll.wait_s)):
            return False  # with a gate it is watched whether its proof still counts
        self._pending = self._routes.jobs.park(poll, self._reservation, self, now)
        if self._pending is not None and wire.peer_gone:  # nobody tells of it again
            wire.go_on_soon()
        return self._pending is not None

    def _begin_start(self, body: bytes) -> StartItem | None:
        starts, caller = self._routes.starts, self._caller
        if starts is None or len(body) > INLINE_MAX_BYTES or START.waits_for(body):
            return None
        item = starts.begin(body, self._reservation, None if caller is None else caller.name, self._wire.now)
        item.resumes(self)
        return item

    def _begin_completion(self, line: bytes, body: bytes) -> FastCompletion | None:
        try:
            if not body.isascii():
                body.decode()
            read = _decode_completion(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        output = None if read.variables is None else bytes(read.variables) or None
        if output == b"null":
            output = None
        if output is not None and not is_plain_object(output, self._routes.limits):
            return None
        self._job_id = job_id = line[14:-18].decode("latin-1")
        types = None if self._caller is None else self._caller.job_types
        return self._routes.jobs.complete(
            job_id, read.worker_id or "", read.attempt, output, self, self._wire.now, types
        )

    def resume_soon(self) -> None:
        """The item has an answer, or has to wait elsewhere."""
        self._wire.go_on_soon()

    def go_on(self) -> None:
        """Answer, if there is an answer."""
        item, routes = self._item, self._routes
        if item is None:
            if self._pending is not None:
                self._go_on_pending(self._pending, ends=False)
            else:
                self._answer_fault()
            return
        if not item.settled:
            item.resumes(self)
            return
        self._item = None
        try:
            ended = self._end(item)
            if ended is None:
                return
            status, headers, body = ended
        except Exception as error:
            reply = problem_of(error) if isinstance(error, PenstockError) else bug(error, "POST", self._path)
            status, headers, body = reply.status, (*reply.headers, *routes.with_json), reply.body
        self._answer(status, headers, body)

    def _end(self, item: ClaimItem | FastCompletion | StartItem) -> tuple[int, Headers, bytes | None] | None:
        """Return the answer, of a settled item; None: the call goes on, here or elsewhere."""
        routes = self._routes
        if isinstance(item, StartItem):
            return STARTED, routes.with_json, shown(item.given_answer())
        if isinstance(item, ClaimItem):
            body = self._end_poll(cast(KnownPoll, self._poll), item)
            return None if body is None else (200, routes.with_json, body)
        if routes.jobs.completed(self._job_id, item):
            return 204, routes.always, None
        self._wire.leave(None)
        return None

    def _answer(self, status: int, headers: Headers, body: bytes | None) -> None:
        if self._wire.answer(status, headers, body):
            self._reservation.close()
        self._routes.observe(self._path, status, perf_counter() - self._started)

    def _answer_fault(self) -> None:
        reply, self._fault = self._fault, None
        if reply is not None:  # else it was abandoned
            self._answer(reply.status, (*reply.headers, *self._routes.with_json), reply.body)

    def _end_poll(self, poll: KnownPoll, item: ClaimItem) -> bytes | None:
        """Return the body of the answer; None: the call goes on, here or elsewhere."""
        jobs = self._routes.jobs
        found = jobs.claimed(poll, item, self, self._wire.now)
        if isinstance(found, ClaimItem):
            self._item = found
            return None
        if self._caller is not None and self._gate is not None:
            ending = self._gate.ending(self._caller, time())
            if ending is not None:
                jobs.release(item)
                raise Unauthenticated(reason_of(ending))
        if found is None:
            if not self._park(poll):
                self._wire.leave(None)
            return None
        if poll.waits and found and self._wire.peer_gone:
            jobs.release(item)
            found = []  # a client that only closed its sending side still reads
        if self._reservation.bytes > COPIES * ENCODED_AT_ONCE_BYTES:
            self._wire.leave(self._large(found))
            return None
        return b'{"jobs":%b}' % _encode(found)

    def expire(self) -> None:
        """A poll has waited for as long as it may."""
        if self._pending is not None:
            self._go_on_pending(self._pending, ends=True)

    def _go_on_pending(self, pending: PendingPoll, *, ends: bool) -> None:
        """Answer a poll that waits, if it is over. Raises nothing: other calls go on in the same turn."""
        routes, wire = self._routes, self._wire
        status, body = 200, b""
        try:
            found = routes.jobs.take(pending, ends=ends, gone=wire.is_gone())
            if found is None:
                return
            self._pending = None
            if self._reservation.bytes > COPIES * ENCODED_AT_ONCE_BYTES:
                wire.leave(self._large(found))
                return
            body = b'{"jobs":%b}' % _encode(found)
        except Exception as error:
            self._pending = None
            routes.jobs.unpark(pending)
            reply = bug(error, "POST", _POLL_PATH)
            status, body = reply.status, reply.body or b""
        self._answer(status, routes.with_json, body)

    def _large(self, jobs: list[Job]) -> Callable[[RestRequest], Awaitable[Reply]]:
        async def answer(call: RestRequest) -> Reply:
            current_reservation().add(self._reservation.bytes)
            self._reservation.close()
            return await large_answer(jobs)

        return answer

    def sent(self) -> None:
        """The answer has left after all, or can't."""
        self._reservation.close()

    def abandon(self) -> None:
        """The connection ends. Idempotent."""
        item, self._item = self._item, None
        pending, self._pending = self._pending, None
        fault, self._fault = self._fault, None
        if item is not None or pending is not None or fault is not None:
            self._routes.observe(self._path, CLIENT_GONE_STATUS, perf_counter() - self._started)
        if pending is not None:
            self._routes.jobs.unpark(pending)
        if isinstance(item, ClaimItem):
            self._routes.jobs.release(item)
        elif item is not None:
            item.resumes(None)
        self._reservation.close()
