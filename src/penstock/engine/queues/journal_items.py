"""What executors and the journal say to each other. Plain data; the kinds of records are numbers that only they know.

A *run* is an instance of a durable workflow: one token, the root, whose job an executor holds under a lease.
Its *journal* is everything that came from outside into its body. `durable/local` and `rpc` translate from and to these.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from penstock.core.rules.state import InstanceStatus
from penstock.store.rows.journal import JournalRow, NewRecord, Placed, RunLease

__all__ = [
    "AppendAnswer",
    "ClaimedRun",
    "ExtendedRun",
    "JournalPage",
    "JournalRow",
    "MailboxNotice",
    "NewRecord",
    "Placed",
    "RecordKind",
    "RunEnd",
    "RunLease",
    "RunMessage",
]  # fmt: skip


PATH_MAX_CHARS: Final = 1_000
RULES: Final = 2
"""The newest version of the rules by which executors deliver records (`kernel.record.RULES`)."""
UPDATE_RULES: Final = 3
"""Those of records about calls of updates (`kernel.record.UPDATE_RULES`): no older program gets a run that has one."""
RULES_VERSION: Final = 21
"""The schema version whose engines know that there are such versions."""


class RecordKind(IntEnum):
    """Of a record that the engine writes, looks at or takes from an executor, by the names of
    `kernel.record.JournalKind`."""

    DONE = 1
    FAILED = 2
    STOPPED = 3
    ABANDONED = 4
    CLOCK = 5
    MESSAGE = 6
    CANCEL = 7
    CHILD = 8
    RETRY = 9
    BEGUN = 10
    SUPPLIED = 11
    VIEW = 12
    ERROR = 13
    DROPPED = 14
    ASKED = 15
    ACCEPTED = 16
    ANSWERED = 17
    REFUSED = 18


FAILED_KINDS: Final = (RecordKind.FAILED,)
DONE_KINDS: Final = (RecordKind.DONE, RecordKind.CHILD, RecordKind.SUPPLIED)
"""What became of a step or a child that was not cancelled."""
APPENDED: Final = frozenset(
    {
        RecordKind.DONE, RecordKind.FAILED, RecordKind.STOPPED, RecordKind.ABANDONED, RecordKind.CLOCK,
        RecordKind.RETRY, RecordKind.ACCEPTED, RecordKind.ANSWERED, RecordKind.REFUSED,
    }
)  # fmt: skip
"""Records that executors append one by one; others come with a run's end, or from the engine."""
FROM_OTHERS: Final = frozenset(
    {RecordKind.MESSAGE, RecordKind.CANCEL, RecordKind.CHILD, RecordKind.DROPPED, RecordKind.ASKED}
)
"""Records that others write, and that wake a run which waits."""


class ChildEnd(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What the caller's journal holds of an end. ``status`` TOO_LARGE: of one that completed with more than a record
    holds."""

    id: str
    status: str
    result: msgspec.Raw | None = None
    reason: str | None = None


class JournalPage(NamedTuple):
    """Records in order of ``pos``. ``mail``: how many records of others the journal has up to here, as of this page;
    None when the run has ended. With ``more`` there is another page after the last record."""

    records: list[JournalRow]
    mail: int | None
    more: bool


class ClaimedRun(NamedTuple):
    """A run that was leased to an executor.

    With ``attempt`` > 1 or ``mail`` > 0 it has a journal: ``page`` is its first one, and tells how much mail is in it;
    None: `Journal.read` gives it.
    """

    run_lease: RunLease
    instance_id: str
    """As clients write it."""
    job_type: str
    arguments: bytes
    """A JSON object by parameter name."""
    started_at: float
    """Seconds since 1970: what `now()` gives before any record."""
    taken_at: float
    """What the database's clock showed then."""
    lease_left_s: float
    mail: int
    key: str | None
    """The id that it was started with; of one that was taken before, and was given one."""
    expiries: int
    """Takeovers without a record so far: from the third on the run is activated alone."""
    page: JournalPage | None
    rules: int
    """By which what comes next is delivered: 0 while an engine lives that does not know that there are versions."""


class AppendAnswer(NamedTuple):
    """The records are durable.

    When ``mail`` is another number than the caller's, or ``reread`` is set (the commit was in doubt), nothing of
    ``placed`` may be delivered: `Journal.read` has it, between the records of others.
    """

    placed: list[Placed]
    mail: int
    reread: bool
    lease_left_s: float | None
    """None: the lease was not extended."""


class RunEnd(NamedTuple):
    """How a run ends. ``output`` is the JSON object ``{"result": …}`` of one that completed, ``view`` what it showed
    last, ``error`` what its function raised (JSON)."""

    status: InstanceStatus
    output: bytes | None = None
    failure: str | None = None
    view: bytes | None = None
    error: str | None = None


class ExtendedRun(NamedTuple):
    """A heartbeat's answer. ``mail`` other than the caller's: read the journal."""

    lease_left_s: float
    mail: int


WATCH: Final = 0
"""In place of how much mail there is: somebody waits for what the run shows."""


class MailboxNotice(NamedTuple):
    """News for an executor: others wrote into the journal of a run that it holds. ``mail`` is how much there is now, or
    `WATCH`."""

    holder: str
    instance: int
    mail: int


class RunMessage(NamedTuple):
    """Something that others have for a run. ``payload`` is JSON. ``dedup``: a second one with it is the same one."""

    kind: RecordKind
    path: str = ""
    name: str | None = None
    payload: str | None = None
    dedup: str | None = None
