"""What the journal of a run holds: everything that came from outside into its body, in the order of delivery."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class JournalKind(IntEnum):
    """Numbers are stored (`journal.kind`) and never given twice."""

    DONE = 1
    FAILED = 2
    STOPPED = 3  # cancelled, and it has really ended
    ABANDONED = 4  # cancelled, and nobody waits for its thread
    CLOCK = 5
    MESSAGE = 6
    CANCEL = 7
    CHILD = 8
    RETRY = 9  # an attempt failed, the next one is due; no outcome
    BEGUN = 10
    SUPPLIED = 11  # an operator's outcome in place of the step's
    VIEW = 12  # what the run showed last; comes with its end
    ERROR = 13  # what the body raised, or calls that it did not await; comes with a run's end, and goes with its retry
    DROPPED = 14  # an operator dropped the message at a position, its path in hex, or sent another one in its place
    ASKED = 15  # somebody calls an update: its path is the call's id, its payload the arguments
    ACCEPTED = 16  # the handler of the update begins; the payload says after which position it was checked
    ANSWERED = 17  # what the handler of the update gave
    REFUSED = 18  # the call was refused. It is not stored: it takes the call out of the journal


RULES = 2
"""The newest version of the rules by which records are delivered. 0 are those of before there were versions; A
run is delivered by one version after the other, never by an older one again, so what is replayed is as it was."""
UPDATE_RULES = 3
"""The rules of records about updates. Programs that know these kinds say so to an engine; all else is by `RULES`."""
OUTCOMES = frozenset(
    {
        JournalKind.DONE,
        JournalKind.FAILED,
        JournalKind.STOPPED,
        JournalKind.ABANDONED,
        JournalKind.CHILD,
        JournalKind.SUPPLIED,
    }
)
UPDATES = frozenset({JournalKind.ASKED, JournalKind.ACCEPTED, JournalKind.ANSWERED, JournalKind.REFUSED})
FROM_OTHERS = frozenset(
    {JournalKind.MESSAGE, JournalKind.CANCEL, JournalKind.CHILD, JournalKind.DROPPED, JournalKind.ASKED}
)
"""What others write, and wakes a run."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One row of the journal.

    ``path`` is the operation that it answers, '' for the clock, the scope's for a cancel. ``name`` is the step's or the
    message's. ``at`` is in seconds since 1970, and never goes back within a run. ``payload`` is what was encoded:
    JSON, or ``~<codec>:<base64>``. ``mark``: what `patched` said yes to the first time, before this record. ``rules``:
    the version of the rules by which it is delivered, at first and at each replay; None: by those of `Kernel.newest`.
    """

    at: float
    kind: JournalKind
    path: str = ""
    name: str | None = None
    payload: str | None = None
    digest: int | None = None
    attempt: int = 1
    pos: int = 0
    took_ms: int | None = None
    mark: str | None = None
    rules: int | None = None
