"""What everybody may do with a run: send to it, cancel it, read its journal and the tree of its branches."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from penstock.engine.vocabulary import Answer

JOURNAL_PAGE_MAX = 1_000


class RecordView(Answer, frozen=True, kw_only=True):
    """One record of a journal as clients see it. ``kind`` is a word: done, failed, clock, message …"""

    pos: str
    at: datetime
    kind: str
    path: str = ""
    name: str | None = None
    attempt: int | None = None
    took_ms: int | None = None
    payload: msgspec.Raw | None = None
    codec: str | None = None  # of a payload that is no JSON; it is base64 text then


class JournalSlice(Answer, frozen=True, kw_only=True):
    """Some records, oldest first. ``next`` is the cursor of those after them; the last slice has none."""

    items: list[RecordView]
    next: str | None = None


class BranchView(Answer, frozen=True, kw_only=True):
    """An operation or branch of a run, by path, and what is below it.

    ``status``: done, failed, stopped, running (a step), waiting (a sleep, a message), open (a nursery or branch).
    """

    path: str
    status: str
    name: str | None = None
    kind: str | None = None
    attempt: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    due_at: datetime | None = None
    where: str | None = None  # file and line of the user's code
    children: list[BranchView] | None = None


class RunTree(Answer, frozen=True, kw_only=True):
    """A run and its branches. ``waits_for``: what the whole run waits for, in words; ``view`` is what `set_view` set.

    What is open is as of ``as_of``, when the executor last wrote it down.
    """

    id: str
    status: str
    workflow: str
    version: int
    branches: list[BranchView]
    view: Any = None
    waits_for: str | None = None
    as_of: datetime | None = None
    mail: int = 0


class OpenBranch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of the JSON that executors give to `Journal.extend` and `Journal.park` as ``branches``: a list of these."""

    path: str
    kind: str
    """step, sleep, receive, nursery, scope, branch, child."""
    name: str | None = None
    since: float | None = None
    due_at: float | None = None
    attempt: int | None = None
    where: str | None = None


class Runs:
    """The operations on runs; ids are instance ids as text. Raises NotFound, and Conflict for one that is no run."""

    async def send(self, instance_id: str, name: str, payload: bytes, *, dedup: str | None = None) -> None:
        """Send a message: JSON. With ``dedup`` a second one is the same one, for as long as the run is kept.

        Raises NotFound, BadRequest, Conflict (it has ended), TooManyRequests, IdempotencyConflict, PayloadTooLarge.
        """
        raise NotImplementedError

    async def cancel(self, instance_id: str, reason: str | None = None) -> None:
        """Ask a run to end: its root scope is cancelled, and clean-up runs. `Instances.cancel` with ``force`` ends it
        without. A second one changes nothing. Raises NotFound, Conflict (it has ended)."""
        raise NotImplementedError

    async def journal(self, instance_id: str, cursor: str | None = None, limit: int = JOURNAL_PAGE_MAX) -> JournalSlice:
        """Records after ``cursor``, oldest first; fewer where they are large. Raises NotFound, BadRequest."""
        raise NotImplementedError

    async def tree(self, instance_id: str) -> RunTree:
        """The run's branches: what has ended from its journal, what is open as the executor last said."""
        raise NotImplementedError
