"""What `advance` decided: the rows to write. Plain data; the store writes it in one transaction."""

from __future__ import annotations

from datetime import datetime
from enum import Enum, auto
from typing import Annotated, TypeVar

import msgspec

from penstock.core.rules.state import HistoryKind, Instance, InstanceStatus, Token

T = TypeVar("T")


class HistoryRow(msgspec.Struct, frozen=True):
    """A closed step execution, or an ended attempt of a job that goes on."""

    position: int  # orders rows, and with them the variable deltas, of one instance
    token_id: int
    seq: int
    step: int
    kind: HistoryKind
    started_at: datetime
    ended_at: datetime
    attempt: int
    claimed_at: datetime | None = None
    worker: str | None = None
    reason: str | None = None
    output: bytes | None = None  # the variable delta, a JSON object
    code: str | None = None  # of the error with which it ended
    item: int | None = None  # of a forEach
    items: bytes | None = None  # of the whole of one: how many there are, and became what


class Timer(msgspec.Struct, frozen=True):
    """A timer of one step execution."""

    fire_at: datetime
    token_id: int
    seq: int
    index: int


class JobRef(msgspec.Struct, frozen=True):
    """A job in the queue: which type, which execution, where it stands."""

    job_type: str
    token_id: int
    seq: int
    priority: int
    place: int
    flow_key: str | None = None


class ReleasedSlots(msgspec.Struct, frozen=True):
    """What an attempt held that has ended: ``held`` as in the token; or the queue that counted a run which is open no
    more."""

    job_type: str
    held: int = 0
    flow_key: str = ""
    run_queue: int | None = None


class TaskRef(msgspec.Struct, frozen=True):
    """An execution of a user task, as it stands in the inbox."""

    token_id: int
    seq: int
    step: int
    entered_at: datetime


class AuditRow(msgspec.Struct, frozen=True):
    """Something that neither the instance nor its history records."""

    kind: str
    token_id: int | None = None
    step: int | None = None
    actor: str | None = None
    detail: str | None = None


class Chain(msgspec.Struct, frozen=True):
    """The next workflow to start in the same transaction."""

    definition_id: str


class ChildStart(msgspec.Struct, frozen=True):
    """An instance to start in the same transaction; the token waits for its end."""

    token_id: int
    seq: int
    definition_id: str
    version: int  # 0: the latest
    variables: bytes  # a JSON object
    business_key: str | None
    entry: int | None  # when a `retry` came back to the step: then one that failed since this entry goes on instead


class MessageWait(msgspec.Struct, frozen=True):
    """An execution of a WAIT that waits for a message."""

    token_id: int
    seq: int
    name: str
    key: str


class MapState(msgspec.Struct):
    """How far the forEach of a token is."""

    total: int
    next: int = 0  # the first item that has not begun
    done: int = 0
    failed: int = 0
    kept_bytes: int = 0  # of what is collected


class MapEffects(msgspec.Struct):
    """What becomes of the forEach steps of an instance, by their tokens. What ``ended`` was there before; what has
    begun since is in ``begun``, with the variables of its items, JSON objects."""

    ended: list[int] = []
    begun: dict[int, list[bytes]] = {}
    states: dict[int, MapState] = {}
    results: dict[tuple[int, int], bytes] = {}  # by token and item: what is collected, JSON
    variables: dict[tuple[int, int], bytes] = {}  # of items that were told something

    def end(self, token: int) -> None:
        """It is done with, and all that is kept of it."""
        if self.begun.pop(token, None) is None:
            self.ended.append(token)
        self.states.pop(token, None)
        self.results = {key: value for key, value in self.results.items() if key[0] != token}
        self.variables = {key: value for key, value in self.variables.items() if key[0] != token}

    def follow(self, later: MapEffects) -> None:
        """Take in what came after this."""
        for token in later.ended:
            self.end(token)
        self.begun |= later.begun
        self.states |= later.states
        self.results |= later.results
        self.variables |= later.variables


class CompensatedStep(msgspec.Struct, frozen=True):
    """A completed step execution, by the position of its row, and the token of the handler that undoes it."""

    position: int
    token_id: int


class Compensation(msgspec.Struct, frozen=True):
    """How an instance ends once it is undone."""

    status: InstanceStatus
    failure: str | None
    code: str | None
    step: int | None  # that failed it
    job: bool  # whether that was a job


class Merge(Enum):
    """How a field of several outcomes, one after the other, becomes that of one (`core.advance.merging`). Fields that
    share a rule from TOKENS on are merged together: what came and went in between is not written."""

    FIRST = auto()  # as the first one says
    LAST = auto()
    ANY = auto()  # whether one says so
    SUM = auto()
    JOINED = auto()  # the lists, one after the other
    MAPS = auto()
    TOKENS = auto()
    JOBS = auto()
    PARKED = auto()
    TASKS = auto()
    TIMERS = auto()
    SUBSCRIPTIONS = auto()


Joined = Annotated[list[T], Merge.JOINED]


class Effects(msgspec.Struct):
    """Everything that one event changes in one instance. Each field says how it is merged.

    ``inserted`` and ``updated`` hold whole tokens in their final state, ``deleted`` their ids. ``dequeued`` and
    ``disarmed`` name queue rows and timers of executions that were closed; ``queued`` holds jobs that now wait for a
    worker (the engine may hand them off instead), ``released`` what ended attempts held. ``parked`` and ``unparked``
    name the tokens that are PARKED now and were not, and the other way round; ``opened`` and ``closed`` the user
    tasks that are open now and were not, and the other way round; ``subscribed`` the waits that wait for a message now
    and did not, ``unsubscribed`` those (token, seq) that do so no more. ``snapshot`` are the tokens a failure closed,
    for `retry`.
    """

    instance: Annotated[Instance, Merge.LAST]
    ended: Annotated[bool, Merge.LAST] = False
    reopened: Annotated[bool, Merge.FIRST] = False
    turned: Annotated[bool, Merge.ANY] = False  # the definition has told flow key or priority of the instance
    # the last token ended without END: the instance stays active with no open step
    dead_end: Annotated[bool, Merge.LAST] = False
    inserted: Annotated[list[Token], Merge.TOKENS] = []
    updated: Annotated[list[Token], Merge.TOKENS] = []
    deleted: Annotated[list[int], Merge.TOKENS] = []
    queued: Annotated[list[JobRef], Merge.JOBS] = []
    dequeued: Annotated[list[JobRef], Merge.JOBS] = []
    released: Joined[ReleasedSlots] = []
    parked: Annotated[list[int], Merge.PARKED] = []
    unparked: Annotated[list[int], Merge.PARKED] = []
    opened: Annotated[list[TaskRef], Merge.TASKS] = []
    closed: Annotated[list[TaskRef], Merge.TASKS] = []
    armed: Annotated[list[Timer], Merge.TIMERS] = []
    disarmed: Annotated[list[tuple[int, int]], Merge.TIMERS] = []  # (token, seq): all timers of it
    fired: Annotated[list[Timer], Merge.TIMERS] = []  # one timer of an execution that stays open
    history: Joined[HistoryRow] = []
    audit: Joined[AuditRow] = []
    consumed_signals: Joined[int] = []
    chain: Annotated[Chain | None, Merge.LAST] = None
    calls: Joined[ChildStart] = []
    abandoned: Joined[tuple[int, int]] = []  # (token, seq): calls that wait no more, while what they started may go on
    subscribed: Annotated[list[MessageWait], Merge.SUBSCRIPTIONS] = []
    unsubscribed: Annotated[list[tuple[int, int]], Merge.SUBSCRIPTIONS] = []
    received: Joined[int] = []  # messages that are done with
    maps: Annotated[MapEffects | None, Merge.MAPS] = None
    item_outputs: Joined[tuple[int, bytes]] = []  # by position: of items that can be undone, and raw results
    raw_kept: Annotated[bool, Merge.ANY] = False  # among them is a result that could not be mapped
    mapped: Joined[int] = []  # positions of raw results that were mapped now, or are not to be any more
    undone: Joined[CompensatedStep] = []
    freed: Joined[int] = []  # tokens of handlers that were closed: what they were to undo, others will
    undoing: Annotated[Compensation | None, Merge.LAST] = None  # it is undone from now on
    ended_as: Annotated[Compensation | None, Merge.LAST] = None  # it was, and has ended
    snapshot: Annotated[list[Token] | None, Merge.LAST] = None
    steps_run: Annotated[int, Merge.SUM] = 0
