"""The machine: what an instance is made of, its states, and every legal transition.

An **instance** is a set of **tokens** (its open branches) and one JSON object of variables. A token stands on one
step; the pair (token, seq) is one *step execution*, and ``seq`` is a position from one database-wide sequence, so
that it also orders executions by entry. ``TOKEN_TRANSITIONS`` and ``INSTANCE_TRANSITIONS`` below are the whole
machine, with what SQL does alone; `move` and `change_status` are the only Python that assigns a state, and refuse what
the tables do not hold. In test databases a trigger made from them refuses it too (`penstock.testing.machine`); the
diagrams of `docs/states.md` are drawn from them.
The numbers are stored in the database (`schema.sql`) and never change their meaning. Where SQL has one, a comment
beside it names it.
"""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Final, NamedTuple

import msgspec


class TokenState(enum.IntEnum):
    """Where one token is. Only ``READY`` tokens have a row in table ``ready``."""

    READY = 0  # a job that waits for a worker (also after a lease ended: then the last holder is kept)
    LOCKED = 1  # a job under the lease of one worker
    PARKED = 2  # a user task, a wait, a job whose worker waits or that it completed itself, or a durable run that waits
    FORKED = 3  # of a gateway, a forEach or a COMPENSATE, waiting for its branches, its items or a handler
    BACKOFF = 4  # a failed job, until its retry timer fires
    DISPATCHED = 5  # a job handed to Kafka: no holder, a deadline
    ENDED = 6  # the root token after its last step; kept as the instance's lock until the instance ends
    CALLED = 7  # a call that waits for the end of the instance which it started
    DELAYED = 8  # the root token of an instance that has not begun: it waits for its time


JOB_STATES = frozenset({TokenState.READY, TokenState.LOCKED, TokenState.BACKOFF, TokenState.DISPATCHED})
OPEN_STATES = JOB_STATES | {TokenState.PARKED, TokenState.CALLED}

# Indexes of a timer: 0.. is the position in the step's boundaryEvents, negative ones are the engine's own. An engine
# leaves those alone that it does not know.
RETRY_TIMER = -1  # the end of a retry's back-off
WAIT_TIMER = -2  # the end of a WAIT with `duration` or `until`, or of a parked job's wait
CONTINUE_TIMER = -3  # due at once: what one advance left to the next one (a WAIT with more kept signals, a call)
# Between instances, each due at once: a transaction tells another instance so, and has only its own one's lock.
CHILD_TIMER = -4  # of a call: the instance that it started has ended
CANCEL_TIMER = -5  # of an instance (its id, and the seq of the call): the call that waited for it was closed
START_TIMER = -6  # of an instance that has not begun: its time has come
REOPEN_TIMER = -7  # of an instance (its id, and the seq of the call): a `retry` of the caller came back to the call
MESSAGE_TIMER = -8  # of a wait: there is a message for it (`core.rules.correlation`)
RECORDED_TIMER = -9  # due at once: of a job that its worker's own transaction completed (SQL function `complete`)
RUN_ENDED_TIMER = -12  # of an instance (its id, and 0): it has ended, and its schedule is to know
OVERTAKEN_TIMER = -13  # likewise, of one that is open: its schedule starts another one in its place
WAKE_TIMER = -16  # the time that a parked durable run waits for
RUN_CHILD_TIMER = -17  # of a call of a durable run (its id, and the seq of the call): the instance has ended
OWN_TIMERS = (
    RETRY_TIMER,
    WAIT_TIMER,
    CONTINUE_TIMER,
    CHILD_TIMER,
    CANCEL_TIMER,
    START_TIMER,
    REOPEN_TIMER,
    MESSAGE_TIMER,
    RECORDED_TIMER,
    RUN_ENDED_TIMER,
    OVERTAKEN_TIMER,
    WAKE_TIMER,
    RUN_CHILD_TIMER,
)

PRIORITY_DEFAULT: Final = 5
"""Of a job. Lower ones come first."""


class InstanceStatus(enum.IntEnum):
    """``WAITING`` of the wire contract is not stored: it is ``ACTIVE`` with a user task or wait open."""

    ACTIVE = 0
    COMPLETED = 1
    FAILED = 2
    CANCELLED = 3


class HistoryKind(enum.IntEnum):
    """What one history row records. 1–9 close a step execution, 10+ end one attempt of a job that goes on."""

    COMPLETED = 1
    FAILED = 2
    SKIPPED = 3  # closed by END, a failure elsewhere, or a cancel
    INTERRUPTED = 4  # closed by an interrupting boundary timer; shown as FAILED
    CAUGHT = 5  # failed, and an error boundary goes on; shown as FAILED
    COMPENSATED = 6  # of a compensation handler: what it undoes is undone; shown as COMPLETED
    ATTEMPT_FAILED = 10
    ATTEMPT_EXPIRED = 11
    ATTEMPT_RELEASED = 12
    ATTEMPT_REDISPATCHED = 13
    ATTEMPT_PARKED = 14  # its worker waits for a time or a signal
    JOB_SIGNALLED = 15  # of a parked job: what its signal brought; ends no attempt
    OUTPUT_MAPPED = 16  # of a call that was done before: what its `output` made of the result, when a `retry` came back


CLOSING_KINDS = frozenset(kind for kind in HistoryKind if kind < HistoryKind.ATTEMPT_FAILED)
DONE_KINDS = frozenset({HistoryKind.COMPLETED, HistoryKind.COMPENSATED})
"""What closes a step execution whose work is done."""
TAKEN_KINDS = frozenset({HistoryKind.SKIPPED, HistoryKind.INTERRUPTED})
"""What closes a step execution without the doing of whoever holds its job."""
INTERRUPTED_REASON = "interrupted by boundary timer"  # existing clients look for this text


class Trigger(enum.Enum):
    """Why a token moves."""

    BEGIN = "begin"
    BEGIN_LEASED = "begin_leased"
    ENTER_JOB = "enter_job"
    ENTER_LEASED = "enter_leased"
    ENTER_PARKED = "enter_parked"
    CALL = "call"
    FORK = "fork"
    COMPENSATE = "compensate"
    CLAIM = "claim"
    HEARTBEAT = "heartbeat"
    RELEASE = "release"
    LEASE_EXPIRED = "lease_expired"
    RETRY = "retry"
    BACK_OFF = "back_off"
    BACKOFF_OVER = "backoff_over"
    RETRY_LEASED = "retry_leased"
    DISPATCH = "dispatch"
    REDISPATCH = "redispatch"
    DISPATCH_ENDED = "dispatch_ended"
    SWITCH_MODE = "switch_mode"
    PARK = "park"
    WAKE = "wake"
    BLOCK = "block"
    END = "end"


class Transition(NamedTuple):
    """One row of the table."""

    sources: frozenset[TokenState]
    target: TokenState
    when: str


_R, _L, _P, _F, _B, _D, _E, _C, _Y = TokenState
_LEFT = frozenset({_R, _L, _P, _F, _B, _D, _C, _Y})  # a token leaves any step for any other
_HELD = frozenset({_L, _R, _D})  # somebody may act on the job: READY ones still have their last holder


def _row(sources: frozenset[TokenState] | TokenState, target: TokenState, when: str) -> Transition:
    return Transition(frozenset({sources}) if isinstance(sources, TokenState) else sources, target, when)


TOKEN_TRANSITIONS: dict[Trigger, Transition] = {
    Trigger.BEGIN: _row(_Y, _R, "the time of a start has come; its first step is entered at once"),
    Trigger.BEGIN_LEASED: _row(_Y, _L, "the same, and its job is dispatched directly"),
    Trigger.ENTER_JOB: _row(_LEFT, _R, "a service task is entered; its job waits in the queue or the outbox"),
    Trigger.ENTER_LEASED: _row(_LEFT, _L, "the same, dispatched directly: leased to a parked poll in one statement"),
    Trigger.ENTER_PARKED: _row(_LEFT, _P, "a user task or a wait is entered"),
    Trigger.CALL: _row(_LEFT, _C, "a call is entered; the instance that it starts comes to be in the same transaction"),
    Trigger.FORK: _row(_LEFT, _F, "a parallel gateway or a step with forEach is entered, or what was done is undone"),
    Trigger.COMPENSATE: _row(_E, _F, "the instance is undone, and its root token had nowhere to go"),
    Trigger.CLAIM: _row(_R, _L, "a poll takes the job"),
    Trigger.HEARTBEAT: _row(_HELD, _L, "the holder goes on, the last one comes back, a dispatched job gets one"),
    Trigger.RELEASE: _row(_L, _R, "the holder gives the job back"),
    Trigger.LEASE_EXPIRED: _row(_L, _R, "the lease ended"),
    Trigger.RETRY: _row(_HELD, _R, "the attempt failed and is repeated at once"),
    Trigger.BACK_OFF: _row(_HELD, _B, "the attempt failed and is repeated later"),
    Trigger.BACKOFF_OVER: _row(_B, _R, "the retry's time has come"),
    Trigger.RETRY_LEASED: _row(_HELD | {_B, _P}, _L, "a job comes back for another attempt, dispatched directly"),
    Trigger.DISPATCH: _row(_R, _D, "the relay hands the job to Kafka"),
    Trigger.REDISPATCH: _row(_D, _D, "the relay hands it over again: whether it was published is not known"),
    Trigger.DISPATCH_ENDED: _row(_D, _R, "the deadline of the dispatch passed, or an operator asked for it"),
    Trigger.SWITCH_MODE: _row(frozenset({_R, _D}), _R, "the engines' dispatch mode changed; it gets another place"),
    Trigger.PARK: _row(
        _HELD, _P, "a job, or a durable run, waits for a time or for what it is told, or for being taken up"
    ),
    Trigger.WAKE: _row(_P, _R, "its time has come, or somebody told it something"),
    Trigger.BLOCK: _row(_L, _B, "a durable run can't go on with this code, or ended its executors again and again"),
    Trigger.END: _row(_LEFT, _E, "the root token has nowhere to go and is kept as the instance's lock"),
}
"""All that there are, also those that only a statement of `store/queries` makes. Beside them a token comes to be in one
of `BIRTH_STATES` (a start, also one that waits for its time, a branch, a side token, a `retry`), and is deleted from
any state when its branch or its instance ends."""

ENTERING = frozenset(
    {
        Trigger.ENTER_JOB,
        Trigger.ENTER_LEASED,
        Trigger.ENTER_PARKED,
        Trigger.CALL,
        Trigger.FORK,
        Trigger.COMPENSATE,
    }
)
"""Those begin a step execution: ``seq`` changes. The others stay in it; `Trigger.END` may do either, as automatic steps
have come and gone within the same advance."""

BIRTH_STATES = frozenset(
    {*(TOKEN_TRANSITIONS[trigger].target for trigger in (*ENTERING, Trigger.END)), TokenState.DELAYED}
)

INSTANCE_TRANSITIONS: dict[InstanceStatus, frozenset[InstanceStatus]] = {
    InstanceStatus.ACTIVE: frozenset({InstanceStatus.COMPLETED, InstanceStatus.FAILED, InstanceStatus.CANCELLED}),
    InstanceStatus.COMPLETED: frozenset(),
    InstanceStatus.FAILED: frozenset({InstanceStatus.ACTIVE}),  # `retry`, the only way out of a terminal state
    InstanceStatus.CANCELLED: frozenset(),
}
"""An instance comes to be ACTIVE, also one that ends in the same transaction."""


class Token(msgspec.Struct):
    """One branch of an instance. ``id == instance_id`` for the root token, which also is the instance's lock."""

    id: int
    instance_id: int
    seq: int
    step: int
    state: TokenState
    entered_at: datetime
    parent_id: int | None = None  # the gateway's token, while inside its block; of an item that of its forEach
    side: bool = False  # started by a non-interrupting timer: outside every gateway's count
    attempt: int = 0  # grows by one with each claim, direct dispatch or dispatch; the fence
    failures: int = 0
    expiries: int = 0
    pending: int = 0  # FORKED: branches that neither arrived nor left; of a forEach items under way, and `arrived`
    arrived: int = 0  # FORKED: branches that arrived; of a forEach 1 while further items wait for its CONTINUE_TIMER
    unfolded: int = 0  # variable deltas this token wrote since the last fold; a large one counts for several
    claimed_by: str | None = None
    claimed_at: datetime | None = None
    lease_until: datetime | None = None
    timeout_s: float | None = None  # an attempt's lease is never extended beyond (step `timeout`)
    backoff_s: float | None = None  # first and longest pause of its retries, where the step's are evaluated
    backoff_max_s: float | None = None
    leaving: bool = False  # of what a failure closed: the step is done, and where it leads is still to be decided
    raw: int | None = None  # likewise: position of the row with whose raw result its mapping is to be evaluated again
    priority: int = PRIORITY_DEFAULT
    flow_key: str | None = None  # while READY: it waits among those with keys ('': without one of its own)
    held: int | None = None  # slots that its attempt holds; see `schema.sql`
    run_queue: int | None = None  # of a durable run: the queue that counts it as open
    queued: int | None = None  # the id of its row in the queue, when it came there again; see `place`
    waits_for: str | None = None  # of a parked job: the signal that wakes it

    entry: int | None = None  # which entry of the step this is, when a `retry` came back to it; see `entry_id`
    item: int | None = None  # the index of the item of a forEach that it is for

    @property
    def entry_id(self) -> int:
        """Of this entry of the step: the same in all its attempts, also after a `retry` of the instance."""
        return self.seq if self.entry is None else self.entry

    @property
    def place(self) -> int:
        """The id of the row that it has in the queue while READY: another one each time, so that none is met twice."""
        return self.seq if self.queued is None else self.queued

    @property
    def is_root(self) -> bool:
        """Return whether this is the token that is kept until the instance ends."""
        return self.id == self.instance_id

    @property
    def is_recorded(self) -> bool:
        """Return whether it is a job that its worker's own transaction completed, and that is still to be taken up."""
        return self.state is TokenState.PARKED and self.claimed_by is not None

    @property
    def is_open(self) -> bool:
        """Return whether a step execution is open on it (what ``currentStepIds`` shows)."""
        return self.state in OPEN_STATES


class Instance(msgspec.Struct):
    """The part of an instance that `advance` reads and changes."""

    id: int
    status: InstanceStatus = InstanceStatus.ACTIVE
    failure: str | None = None
    failure_code: str | None = None
    result: bytes | None = None  # what its END gave, a JSON object
    priority: int | None = None  # of its jobs, and their flow key
    flow_key: str | None = None
    depth: int = 0  # how many instances called it, one the other; 0: a call waits for nothing of it
    watched: bool = False  # whether the schedule that started it is to know of its end


def move(token: Token, trigger: Trigger) -> None:
    """Give ``token`` the state that ``trigger`` leads to; asserts that the table allows it."""
    row = TOKEN_TRANSITIONS[trigger]
    assert token.state in row.sources, f"{trigger} from {token.state!r}"
    token.state = row.target


def change_status(
    instance: Instance, status: InstanceStatus, failure: str | None = None, code: str | None = None
) -> None:
    """Give ``instance`` a new status; asserts that the table allows it."""
    assert status in INSTANCE_TRANSITIONS[instance.status], f"{instance.status!r} to {status!r}"
    instance.status = status
    instance.failure, instance.failure_code = failure, code
