"""What a program knows of the ends of runs: told by its own executor, else looked for, for all who wait together."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import trio

from penstock.client.errors import ClientError

if TYPE_CHECKING:
    from penstock.durable.backend import CallerRuns

POLL_FIRST_S, POLL_MAX_S = 0.05, 1.0
POLLS_PER_S = 10_000
"""Runs that are looked for in a second, at most about: who waits for more of them hears of their ends later."""
POLL_MAX_RUNS = 1_000
"""One statement asks for so many."""
UNSERVED_S = 2.0
"""A run that somebody waits for is looked at after so long, whether anybody serves it."""
UNSERVED_PAUSE_S = 30.0
"""Between two looks whether the runs of a workflow are served."""
UNSERVED_MAX = 1_000
"""Workflows of which that is remembered."""
REPORTED_MAX_CHARS = 16_384
"""Of a result that is kept for who has a handle; a larger one is read when it is asked for."""

log = logging.getLogger("penstock.durable")


class Unserved:
    """Looks whether runs that somebody waits for are served: after `UNSERVED_S`, of a crowd that waits for one."""

    def __init__(self) -> None:
        self._polled_at: dict[str, float] = {}

    async def notify(self, who: str, workflow: str, find: Callable[[], Awaitable[str | None]]) -> None:
        """Log what ``who`` waits for, a run of that workflow, if that is an App which nobody runs. ``find`` gives what
        the engine says of it. A hint: errors and slow answers are no matter."""
        now = trio.current_time()
        if self._polled_at.get(workflow, -inf) > now - UNSERVED_PAUSE_S:
            return
        if len(self._polled_at) >= UNSERVED_MAX:
            self._polled_at.clear()
        self._polled_at[workflow] = now
        try:
            with trio.move_on_after(UNSERVED_S):
                found = await find()
                if found is not None and found.startswith("an App with ") and found.endswith("none is connected"):
                    log.warning("%s waits for %s", who, found)
        except Exception as error:  # a hint fails nothing
            log.debug("the state of %s can't be read: %s", who, error)


async def latest_waits_for(runs: CallerRuns, workflow: str) -> str | None:
    """What the latest run of a workflow waits for, in the engine's words."""
    latest = await runs.latest(workflow, None, 1)
    found: str | None = (await runs.tree(latest[0].id)).get("waitsFor") if latest else None
    return found


class AwaitedEnd:
    """What this process hears of one run, for those who wait for its end."""

    __slots__ = ("__weakref__", "event", "id", "is_listed", "pause_s", "result", "waiters")

    def __init__(self, id: str) -> None:
        self.id = id
        self.event = trio.Event()
        self.result: str | None = None  # JSON, of one that completed here
        self.waiters = 0
        self.is_listed = False  # among those that are looked for
        self.pause_s = POLL_FIRST_S  # before the next look


class RunEnds:
    """What is known here of the ends of runs, and who waits for them."""

    def __init__(self) -> None:
        self._awaited: WeakValueDictionary[str, AwaitedEnd] = WeakValueDictionary()
        self._polls: list[tuple[float, int, AwaitedEnd]] = []  # a heap, by time
        self._listed_count = 0
        self._listed = trio.Event()
        self.leased: set[str] = set()  # runs that the executor of this process has: their ends are told
        self.blocked: dict[str, str] = {}
        self.unserved = Unserved()

    def of(self, instance_id: str) -> AwaitedEnd:
        """What is told of the run from now on."""
        return self._awaited.setdefault(instance_id, AwaitedEnd(instance_id))

    def notify(self, instance_id: str, result: str | None = None) -> None:
        """Something has become of the run: it completed with ``result`` (JSON), or the database is to be asked."""
        awaited = self._awaited.get(instance_id)
        if awaited is not None:
            if result is not None and len(result) <= REPORTED_MAX_CHARS:
                awaited.result = result
            awaited.event.set()

    async def wait(self, awaited: AwaitedEnd) -> None:
        """Until something has become of the run since the last time."""
        event = awaited.event
        awaited.waiters += 1
        if not awaited.is_listed:
            awaited.is_listed, awaited.pause_s = True, POLL_FIRST_S
            self._list(awaited)
            self._listed.set()
        try:
            await event.wait()
        finally:
            awaited.waiters -= 1
        if awaited.event is event:
            awaited.event = trio.Event()

    async def watch(self, find_ended: Callable[[Sequence[str]], Awaitable[Sequence[str]]]) -> None:
        """Look for the ends of runs that somebody waits for, until cancelled. ``find_ended`` gives those of them that
        have ended. Who waits at the end of it is told to look."""
        try:
            while True:
                while not self._polls:
                    self._listed = trio.Event()
                    await self._listed.wait()
                await trio.sleep_until(self._polls[0][0])
                due = self._take_due()
                if due:
                    await self._poll(due, find_ended)
                await trio.sleep(POLL_FIRST_S)
        finally:
            for awaited in list(self._awaited.values()):
                awaited.event.set()

    async def _poll(
        self, due: list[AwaitedEnd], find_ended: Callable[[Sequence[str]], Awaitable[Sequence[str]]]
    ) -> None:
        try:
            ended = await find_ended([awaited.id for awaited in due])
        except ClientError as error:  # each of them waits the outage out, and hears of the error if it is too long
            log.debug("the engine can't be asked for ended runs: %s", error)
            ended = [awaited.id for awaited in due]
        for id in ended:
            self.notify(id)
        for awaited in due:
            awaited.pause_s = min(1.5 * awaited.pause_s, POLL_MAX_S)
            self._list(awaited)

    def _list(self, awaited: AwaitedEnd) -> None:
        self._listed_count += 1
        pause_s = max(awaited.pause_s, len(self._polls) / POLLS_PER_S)
        heapq.heappush(self._polls, (trio.current_time() + pause_s, self._listed_count, awaited))

    def _take_due(self) -> list[AwaitedEnd]:
        """Those that are to be looked for now. One that is held here is told of, and looked for now and then, as it may
        have been ended by force."""
        due: list[AwaitedEnd] = []
        now = trio.current_time()
        while self._polls and self._polls[0][0] <= now and len(due) < POLL_MAX_RUNS:
            _, _, awaited = heapq.heappop(self._polls)
            if not awaited.waiters:
                awaited.is_listed = False
            elif awaited.id in self.leased and awaited.pause_s < POLL_MAX_S:
                awaited.pause_s = POLL_MAX_S
                self._list(awaited)
            else:
                due.append(awaited)
        return due
