"""Long polls of people's pages: a call is parked until something that it watches has changed.

One task looks once a second, while anybody watches, with one statement for all watched instances; parked calls cost
nothing meanwhile. What is remembered is this engine's: a tag of another engine is answered at once, as if everything
had changed. Who watches the overview, too, is told with the rest, so that a page needs one call only: one reading of it
serves all. Nothing is added to any path that writes.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
import trio

from penstock.engine.requests import ids
from penstock.engine.status.overview import Overview, check_range
from penstock.errors import BadRequest, NotFound, TooManyRequests
from penstock.store.db.database import Database
from penstock.store.rows import watch as store
from penstock.wire.overview import OverviewView

POLL_INTERVAL_S: Final = 1.0
WAIT_MAX_S: Final = 30.0
INSTANCES_MAX: Final = 200
"""That one call watches."""
NEWER_MAX: Final = 100
"""Counted so far."""
CALLS_MAX: Final = 1_000
"""Parked in one engine."""
WATCHED_MAX: Final = 2_000
"""Instances that all calls of one engine watch: a look at them takes some ten milliseconds."""
KEPT_MAX_COUNT: Final = 20_000
"""Instances whose marks are remembered after nobody watches them any more: those of calls that come again."""


class Changes(msgspec.Struct, frozen=True, omit_defaults=True):
    """What has changed. ``tag`` is the ``since`` of the next call; ``newer``: so many instances were started,
    counted to 100. ``overview`` is there when it was asked for and is another one than before."""

    tag: str
    changed: list[str]
    newer: int = 0
    overview: OverviewView | None = None


class _Known:
    """An instance's mark, and the look at which it was another one before."""

    __slots__ = ("changed_at", "mark")

    def __init__(self, mark: int | None, changed_at: int) -> None:
        self.mark = mark
        self.changed_at = changed_at


class _Reading:
    """An overview, and the look at which it became another one."""

    __slots__ = ("changed_at", "view")

    def __init__(self, view: OverviewView, changed_at: int) -> None:
        self.view = view
        self.changed_at = changed_at


class Watch:
    """The parked calls of one engine."""

    def __init__(self, database: Database, overview: Overview) -> None:
        self._database = database
        self._overview = overview
        self._ranges: Counter[str] = Counter()
        self._readings: dict[str, _Reading] = {}
        self._name = secrets.token_hex(4)
        self._scans = 1
        self._newest_at = 0
        self._latest: list[int] = []
        self._known: dict[int, _Known] = {}
        self._watched: Counter[int] = Counter()
        self._pending = 0
        self._polled = trio.Event()
        self._wanted = trio.Event()
        self._stopping = False

    async def wait(
        self,
        since: str | None,
        instances: Sequence[str],
        newer_than: str | None,
        wait_s: float,
        overview: str | None = None,
    ) -> Changes | None:
        """What has changed since a tag, as soon as something has; None when nothing did within the time. ``overview``:
        the range of the one that is watched as well.

        Without a tag, or with another engine's, at once: the tag to begin with, and all that is watched.
        Raises BadRequest, and TooManyRequests.
        """
        watched = [_instance(id) for id in instances]
        newest = None if newer_than is None else _instance(newer_than)
        if len(watched) > INSTANCES_MAX:
            raise BadRequest(f"instances: at most {INSTANCES_MAX}")
        if overview is not None:
            check_range(overview)
        if self._pending >= CALLS_MAX or len(self._watched) + len(watched) > WATCHED_MAX:
            raise TooManyRequests("too many pages are watching: try again")
        self._pending += 1
        self._watched.update(watched)
        ranges = [] if overview is None else [overview]
        self._ranges.update(ranges)
        try:
            from_scan = self._read_tag(since)
            if from_scan is None:
                return await self._begin(watched, newest, overview)
            with trio.move_on_after(min(max(wait_s, 0.0), WAIT_MAX_S)):
                while True:
                    changes = self._since(from_scan, watched, newest, overview)
                    if changes is not None or self._stopping:
                        return changes
                    self._wanted.set()
                    await self._polled.wait()
            return None
        finally:
            self._pending -= 1
            self._watched.subtract(watched)
            for id in watched:
                if self._watched[id] <= 0:
                    del self._watched[id]
            self._ranges.subtract(ranges)
            self._ranges += Counter()  # those that nobody watches go

    async def step(self) -> None:
        """One round of the service loop: a look, or a wait for somebody who watches."""
        if not self._pending:
            self._wanted = trio.Event()
            await self._wanted.wait()
        await self.poll()
        await self.poll_overviews()
        await trio.sleep(POLL_INTERVAL_S)

    async def poll(self) -> None:
        """See what has changed, and tell those who wait."""
        watched = list(self._watched)
        async with self._database.connection() as connection:
            marks = await store.marks(connection, watched) if watched else {}
            started = await store.newer(connection, self._latest[-1] if self._latest else 0, NEWER_MAX)
        self._scans += 1
        for id in watched:
            self._note(id, marks.get(id))
        if started:
            self._latest = [*self._latest, *started][-NEWER_MAX:]
            self._newest_at = self._scans
        for id in list(self._known) if len(self._known) > KEPT_MAX_COUNT else ():
            if id not in self._watched:
                del self._known[id]
        self._notify()

    async def poll_overviews(self) -> None:
        """Read the overviews that are watched, and tell those who wait."""
        for name in list(self._ranges):
            await self._read(name)

    def _notify(self) -> None:
        polled, self._polled = self._polled, trio.Event()
        polled.set()

    def drain(self) -> None:
        """Answer those who wait now, and all others at once."""
        self._stopping = True
        self._polled.set()

    def _note(self, id: int, mark: int | None) -> None:
        known = self._known.get(id)
        if known is None:
            self._known[id] = _Known(mark, self._scans)
        elif known.mark != mark:
            known.mark, known.changed_at = mark, self._scans

    async def _read(self, name: str) -> OverviewView:
        """An overview, which all are told of that wait for it. The time alone makes no other one of it."""
        view = await self._overview.read(name)
        known = self._readings.get(name)
        if known is None or msgspec.structs.replace(known.view, at=view.at) != view:
            self._scans += 1
            self._readings[name] = _Reading(view, self._scans)
            self._notify()
        return view

    async def _begin(self, watched: Sequence[int], newest: int | None, overview: str | None) -> Changes:
        """All of it has changed, for somebody who knows nothing yet. What changes from here on is told."""
        self._wanted.set()
        unknown = [id for id in watched if id not in self._known]
        if unknown:
            async with self._database.connection() as connection:
                marks = await store.marks(connection, unknown)
            for id in unknown:
                self._known.setdefault(id, _Known(marks.get(id), self._scans))
        view = None if overview is None else await self._read(overview)
        return Changes(self._tag(), [ids.show_instance(id) for id in watched], self._newer(newest), view)

    def _newer(self, than: int | None) -> int:
        """Instances that were started later, of those that were seen last."""
        return 0 if than is None else len(self._latest) - bisect_right(self._latest, than)

    def _since(self, scan: int, watched: Sequence[int], newest: int | None, overview: str | None) -> Changes | None:
        """What was seen to change after a scan; None when nothing was."""
        changed = [id for id in watched if (known := self._known.get(id)) is not None and known.changed_at > scan]
        newer = self._newer(newest) if self._newest_at > scan else 0
        reading = None if overview is None else self._readings.get(overview)
        view = reading.view if reading is not None and reading.changed_at > scan else None
        if not changed and not newer and view is None:
            return None
        return Changes(self._tag(), [ids.show_instance(id) for id in changed], newer, view)

    def _tag(self) -> str:
        return f"{self._name}-{self._scans}"

    def _read_tag(self, since: str | None) -> int | None:
        name, _, scan = (since or "").partition("-")
        if name != self._name or not scan.isascii() or not scan.isdigit() or len(scan) > 18:
            return None
        return min(int(scan), self._scans)


def _instance(id: str) -> int:
    try:
        return ids.read_instance(id)
    except NotFound:
        raise BadRequest(f"'{id[:64]}' is not an instance id") from None
