"""The machine: what an instance is made of, its states, and every legal transition.

An **instance** is a set of **tokens** (its open branches) and one JSON object of variables. A token stands on one
step; the pair (token, seq) is one *step execution*, and ``seq`` is a position from one database-wide sequence, so
that it also orders executions by entry. ``TOKEN_TRANSITIONS`` and ``INSTANCE_TRANSITIONS`` below are the whole
machine, with what SQL does alone; `move` and `change_status` are the only Python that assigns a state, and refuse what
the tables do not hold. In test databases a trigger made from them refuses it too (`penstock.testing.machine`).
The numbers are stored in the database (`schema.sql`) and never change their meaning.
"""

from __future__ import annotations

import enum
from datetime import datetime

import msgspec


class TokenState(enum.IntEnum):
    """Where one token is. Only ``READY`` tokens have a row in table ``ready``."""

    READY = 0  # a job that waits for a worker (also after a lease ended: then the last holder is kept)
    LOCKED = 1  # a job under the lease of one worker
    PARKED = 2  # a user task or a wait
    FORKED = 3  # a gateway's token, waiting for its branches
    BACKOFF = 4  # a failed job, until its retry timer fires
    DISPATCHED = 5  # a job handed to Kafka: no holder, a deadline
    ENDED = 6  # the root token after its last step; kept as the instance's lock until the instance ends
    CALLED = 7  # of a later version: a step that waits for an instance which it started
    DELAYED = 8  # of a later version: a start that waits for its time


JOB_STATES = frozenset({TokenState.READY, TokenState.LOCKED, TokenState.BACKOFF, TokenState.DISPATCHED})
OPEN_STATES = JOB_STATES | {TokenState.PARKED, TokenState.CALLED, TokenState.DELAYED}

# Indexes of a timer: 0.. is the position in the step's boundaryEvents, negative ones are the engine's own. Later
# versions have -4 to -6 (children, delays) and -16 (wake-up of a code run). An engine leaves those alone that it does
# not know.
RETRY_TIMER = -1  # the end of a retry's back-off
WAIT_TIMER = -2  # the end of a WAIT with `duration` or `until`
CONTINUE_TIMER = -3  # due at once: what one advance left to the next one (a WAIT with more kept signals)
OWN_TIMERS = (RETRY_TIMER, WAIT_TIMER, CONTINUE_TIMER)

PRIORITY_DEFAULT = 5
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
    ATTEMPT_FAILED = 10
    ATTEMPT_EXPIRED = 11
    ATTEMPT_RELEASED = 12
    ATTEMPT_REDISPATCHED = 13


CLOSING_KINDS = frozenset({HistoryKind.COMPLETED, HistoryKind.FAILED, HistoryKind.SKIPPED, HistoryKind.INTERRUPTED})
TAKEN_KINDS = frozenset({HistoryKind.SKIPPED, HistoryKind.INTERRUPTED})
"""What closes a step execution without the doing of whoever holds its job."""
INTERRUPTED_REASON = "interrupted by boundary timer"  # existing clients look for this text


class Trigger(enum.Enum):
    """Why a token moves."""

    ENTER_JOB = "enter_job"
    ENTER_LEASED = "enter_leased"  # dispatched directly: the next job is leased to a parked poll as it comes to be
    ENTER_PARKED = "enter_parked"
    FORK = "fork"
    CLAIM = "claim"
    DISPATCH = "dispatch"
    RETRY = "retry"
    BACK_OFF = "back_off"
    BACKOFF_OVER = "backoff_over"
    LEASE_EXPIRED = "lease_expired"
    RELEASE = "release"
    LATE_HEARTBEAT = "late_heartbeat"
    END = "end"


_R, _L, _P, _F, _B, _D, _E, _C, _Y = TokenState
_ANY_LEFT = frozenset({_R, _L, _P, _F, _B, _D, _C, _Y})  # a token leaves any step for any other

TOKEN_TRANSITIONS: dict[Trigger, tuple[frozenset[TokenState], TokenState]] = {
    Trigger.ENTER_JOB: (_ANY_LEFT, _R),
    Trigger.ENTER_LEASED: (_ANY_LEFT, _L),
    Trigger.ENTER_PARKED: (_ANY_LEFT, _P),
    Trigger.FORK: (_ANY_LEFT, _F),
    Trigger.CLAIM: (frozenset({_R}), _L),
    Trigger.DISPATCH: (frozenset({_R}), _D),
    Trigger.RETRY: (frozenset({_L, _R, _D}), _R),
    Trigger.BACK_OFF: (frozenset({_L, _R, _D}), _B),
    Trigger.BACKOFF_OVER: (frozenset({_B}), _R),
    Trigger.LEASE_EXPIRED: (frozenset({_L, _D}), _R),
    Trigger.RELEASE: (frozenset({_L}), _R),
    Trigger.LATE_HEARTBEAT: (frozenset({_R, _L, _D}), _L),
    Trigger.END: (_ANY_LEFT, _E),
}

# Those that begin or end a step execution (``seq`` changes, or the token has had its last one); the others stay in it.
ENTERING = frozenset({Trigger.ENTER_JOB, Trigger.ENTER_LEASED, Trigger.ENTER_PARKED, Trigger.FORK, Trigger.END})

INSTANCE_TRANSITIONS: dict[InstanceStatus, frozenset[InstanceStatus]] = {
    InstanceStatus.ACTIVE: frozenset({InstanceStatus.COMPLETED, InstanceStatus.FAILED, InstanceStatus.CANCELLED}),
    InstanceStatus.COMPLETED: frozenset(),
    InstanceStatus.FAILED: frozenset({InstanceStatus.ACTIVE}),  # `retry`, the only way out of a terminal state
    InstanceStatus.CANCELLED: frozenset(),
}


class Token(msgspec.Struct):
    """One branch of an instance. ``id == instance_id`` for the root token, which also is the instance's lock."""

    id: int
    instance_id: int
    seq: int
    step: int
    state: TokenState
    entered_at: datetime
    parent_id: int | None = None  # the gateway's token, while inside its block
    side: bool = False  # started by a non-interrupting timer: outside every gateway's count
    attempt: int = 0  # grows by one with each claim, hand-off or dispatch; also the fence
    failures: int = 0
    expiries: int = 0
    pending: int = 0  # FORKED: branches that neither arrived nor left
    arrived: int = 0  # FORKED: branches that arrived
    unfolded: int = 0  # variable deltas this token wrote since the last fold; a large one counts for several
    claimed_by: str | None = None
    claimed_at: datetime | None = None
    lease_until: datetime | None = None
    timeout_s: float | None = None  # an attempt's lease is never extended beyond (step `timeout`)
    leaving: bool = False  # of what a failure closed: the step is done, and where it leads is still to be decided
    priority: int = PRIORITY_DEFAULT
    queued: int | None = None  # the id of its row in the queue, when it came there again; see `place`

    entry: int | None = None  # which entry of the step this is, when a `retry` came back to it; see `entry_id`

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
        """Whether this is the token that is kept until the instance ends."""
        return self.id == self.instance_id

    @property
    def is_open(self) -> bool:
        """Whether a step execution is open on it (what ``currentStepIds`` shows)."""
        return self.state in OPEN_STATES


class Instance(msgspec.Struct):
    """The part of an instance that `advance` reads and changes."""

    id: int
    status: InstanceStatus = InstanceStatus.ACTIVE
    failure: str | None = None


def move(token: Token, trigger: Trigger) -> None:
    """Give ``token`` the state that ``trigger`` leads to; asserts that the table allows it."""
    sources, target = TOKEN_TRANSITIONS[trigger]
    assert token.state in sources, f"{trigger} from {token.state!r}"
    token.state = target


def change_status(instance: Instance, status: InstanceStatus, failure: str | None = None) -> None:
    """Give ``instance`` a new status; asserts that the table allows it."""
    assert status in INSTANCE_TRANSITIONS[instance.status], f"{instance.status!r} to {status!r}"
    instance.status = status
    instance.failure = failure
