"""What an executor asks of whoever keeps the journals: the `Backend`. `local` is one on an engine in this process.

All calls are fenced by the lease: who lost it gets `LeaseLost`, and gives its copy of the run up. A call waits out an
outage of the database as long as the backend does, then raises `Away`; nothing is taken for undone that was not proved
to be. Times are in seconds since 1970, by the backend's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from penstock.kernel.record import Record


class LeaseLost(Exception):
    """Another executor has the run, or it has ended: whatever this one still does does not count."""


class Away(Exception):
    """The journals can't be reached now. Whether the call took effect is not known."""


class Held(msgspec.Struct, frozen=True):
    """A run under this executor's lease. ``key`` is the backend's own name for it, ``id`` what the user sees.

    ``fresh``: nobody has written anything yet, so there is nothing to read. ``expiries`` counts the leases that ended
    without a record, one after the other.
    """

    key: str
    id: str
    attempt: int
    workflow: str
    version: int
    arguments: str
    started_at: float
    now: float
    lease_s: float
    fresh: bool = False
    expiries: int = 0


class Stored(msgspec.Struct, frozen=True):
    """Where an appended record stands in the journal."""

    pos: int
    at: float


class Page(msgspec.Struct, frozen=True):
    """Records of a journal, in order. ``more``: there are some after them."""

    records: Sequence[Record]
    more: bool = False


class Ending(msgspec.Struct, frozen=True):
    """How a run ends: with ``result`` (JSON), or with ``failure`` (an encoded error). ``cancelled``: as was asked."""

    result: str | None = None
    failure: str | None = None
    reason: str = ""
    cancelled: bool = False


class Beat(msgspec.Struct, frozen=True):
    """A lease that was extended. ``mail``: how many records others have written so far."""

    key: str
    lease_s: float
    mail: int


class Backend(Protocol):
    """The journals, seen by one executor."""

    on_mail: Callable[[str], None]
    """Set by the executor: somebody has written into the journal of this key. A hint, which may be lost."""

    async def take(self, max_runs: int, max_wait_s: float) -> list[Held]:
        """Runs that wait for an executor, under a lease each; waits for the first."""
        ...

    async def read(self, held: Held, after: int) -> Page:
        """The journal behind that position. Raises `Away`."""
        ...

    async def append(self, held: Held, records: Sequence[Record], mail: int) -> list[Stored] | None:
        """Writes the records in this order. ``mail`` is how many records of others the caller has seen.

        None when the caller has to `read` before it delivers any: others have written, or it was in doubt for a while
        whether the records were written. Raises `LeaseLost`, `Away`.
        """
        ...

    async def park(self, held: Held, mail: int, due: float | None) -> bool:
        """Gives the run up until then, or until somebody writes. False when somebody has: read, and go on."""
        ...

    async def finish(self, held: Held, mail: int, ending: Ending) -> bool:
        """Ends the run. False when somebody has written meanwhile: read, and ask again."""
        ...

    async def block(self, held: Held, reason: str) -> None:
        """This code can't go on with the run: another try later, maybe with other code. It never fails."""
        ...

    async def give_back(self, held: Held) -> None:
        """The run waits for another executor, at once."""
        ...

    async def extend(self, held: Sequence[Held], views: Sequence[str | None]) -> list[Beat]:
        """Extends leases, and keeps what the runs show (JSON, None: as it was). What is not in the answer is lost."""
        ...
