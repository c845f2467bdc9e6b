"""Timers: asleep until the next one is due, woken by whatever arms an earlier one, here or in another engine.

One read finds what is due and how long the next one has; nothing is read while nothing is due. A million armed timers
cost one index probe a look. A timer is deleted in the transaction that acts on it, never before. One that can't be
acted on stays, is tried again with growing pauses, and keeps none of the others waiting; its row counts how often it
failed, so that a restart does not begin anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import NamedTuple

import trio

from penstock.engine.advance.quarantine import Quarantine
from penstock.errors import PenstockError, TooManyRequests, Unavailable
from penstock.log.log import RateLimitedLog, get_logger
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import AWAY, LOCKED, Database, DatabaseError, first_line
from penstock.store.rows import starts
from penstock.store.rows import timers as store
from penstock.store.rows.starts import Line
from penstock.store.rows.timers import NextTimer, Timer

DUE_MAX = 500
"""Timers taken at a look."""
SCAN_INTERVAL_MAX_S = 5.0
"""So long at most between two looks: covers a lost wake-up from another engine."""
RETRY_FIRST_S, RETRY_MAX_S = 5.0, 300.0
"""Pauses before a timer that was refused is tried again; the first one also where its instance is held by somebody."""
LINES_LOCKED_S = 0.5
"""So long after somebody held the key of a throttled start the next look tries again."""
LINES_SCANS_MAX = 20
"""So often a look asks for what is due, each time for `DUE_MAX`, while throttled starts come late."""
SERVICE = "timers"
REFUSED_MAX = 10_000
"""So many are remembered; more of them are tried at every look, and may hide others."""

_refusals = RateLimitedLog(get_logger("penstock.engine.timers"), interval_seconds=10)

Fire = Callable[[int, Timer, str | None], Awaitable[bool | None]]
"""Whether a timer of an instance fired, or with a reason failed the instance instead. None: somebody holds its
instance, or it takes long, and it fires once that is over."""


class _Refused(NamedTuple):
    """A timer that could not be acted on."""

    pause_s: float
    """Before the next try."""
    next_at: float
    reason: str


class Timers:
    """Finds due timers and fires them. Every engine does: who comes second finds the timer gone."""

    def __init__(
        self,
        database: Database,
        fire: Fire,
        quarantine: Quarantine,
        failure_limit: int,
        armed: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._database = database
        self._fire = fire
        self._quarantine = quarantine
        self._failure_limit = failure_limit
        self._next_at = 0.0  # trio time of the next look
        self._wake = trio.Event()
        self._refused: dict[Timer, _Refused] = {}
        self._failed: set[Timer] = set()  # not counted in their rows yet
        self._armed = armed
        self._read_pool = True

    def leave_scans_to_others(self) -> None:
        """This engine fires nothing: whatever it arms is told to the others."""
        self._read_pool = False

    def on_armed(self, fire_at: datetime, now: datetime) -> None:
        """A transaction armed a timer; ``now`` is the database's time in it."""
        self.on_due_in((fire_at - now).total_seconds())

    def on_due_in(self, seconds: float) -> None:
        """A transaction armed a timer that is due in so many seconds."""
        if self._bring_forward(seconds) or not self._read_pool:
            self._armed(seconds)

    def hint(self, seconds: float) -> None:
        """Another engine armed a timer that is due in so many seconds."""
        self._bring_forward(seconds)

    def _bring_forward(self, seconds: float) -> bool:
        at = trio.current_time() + max(seconds, 0)
        if at >= self._next_at:
            return False
        self._next_at = at
        self._wake.set()
        return True

    async def wait_due(self) -> None:
        """Wait until it is time to look."""
        while True:
            with trio.move_on_at(self._next_at):
                await self._wake.wait()
            self._wake = trio.Event()
            if trio.current_time() >= self._next_at:
                return

    async def fire_once(self) -> int:
        """Fire what is due. How many fired here."""
        self._next_at = trio.current_time() + SCAN_INTERVAL_MAX_S
        limit = DUE_MAX + len(self._refused)
        async with self._database.connection(ahead=True) as connection:
            await self._count_failures(connection)
            found, whole = await self._find(connection, limit)
        read_at = trio.current_time()
        due = {timer.key: timer for timer in found if timer.left_s <= 0}
        if whole and len(due) < limit:  # that is all of them: others have gone
            self._refused = {timer: about for timer, about in self._refused.items() if timer in due}
        settled = 0
        fired = 0

        async def fire(instance: int, timer: Timer, failures: int) -> None:
            nonlocal fired, settled
            try:
                done = await self._fire(instance, timer, self._give_up(timer, failures))
                if done is None:
                    settled += self._leave(timer)
                    return
                fired += done
                settled += 1
                self._refused.pop(timer, None)
                self._quarantine.forget(SERVICE, timer)
            except PenstockError as error:
                settled += self.on_refusal(instance, timer, error)
            except DatabaseError as error:  # of those that ask it themselves
                kind = Unavailable if isinstance(error, AWAY) else PenstockError
                settled += self.on_refusal(instance, timer, kind(first_line(error)))

        async with trio.open_nursery() as nursery:
            for timer, about in due.items():
                refused = self._refused.get(timer)
                if refused is None or refused.next_at <= read_at:
                    nursery.start_soon(fire, about.instance, timer, about.failures)
        if self._failed:
            async with self._database.connection(ahead=True) as connection:
                await self._count_failures(connection)
        if len(due) == limit and settled:
            self._next_at = trio.current_time()
        elif len(due) < len(found):
            self._next_at = min(self._next_at, read_at + found[len(due)].left_s)
        return fired

    async def _find(self, connection: TrioConnection, limit: int) -> tuple[list[NextTimer], bool]:
        """What is due, and the next; False: some were left out. Throttled starts that come late are put off for it, one
        behind the other. Those of a key that somebody holds, as a start whose engine hangs does, are left out. Where
        too many come late for one look, the next one goes on at once, and the other timers are found meanwhile."""
        held_up, put_off_any = set[Line](), False
        for _ in range(LINES_SCANS_MAX):
            found = await store.due(connection, limit, without=held_up)
            waiting = [(timer.key[:2], timer.line) for timer in found if timer.line is not None and timer.left_s <= 0]
            if not waiting:
                return found, not held_up
            try:
                put_off, passed = await starts.space_out(connection, *zip(*waiting, strict=True))
            except LOCKED:
                await connection.rollback()
                put_off, passed = 0, await starts.lines_being_made(connection, (line for _, line in waiting))
                if not passed:
                    break
            if not (put_off or passed):
                return found, not held_up
            if passed:
                held_up |= passed
                self.hint(LINES_LOCKED_S)
            put_off_any |= put_off > 0
        self.hint(0 if put_off_any else LINES_LOCKED_S)
        return await store.due(connection, limit, throttled=False), False

    def on_refusal(self, instance: int, timer: Timer, error: PenstockError) -> bool:
        """A timer could not be acted on; also one that was left because it takes long. False: it is not remembered."""
        if isinstance(error, Unavailable | TooManyRequests):  # those are tried again with the next look
            _refusals.warning(error.code, "a timer could not be fired", instance=f"{instance:x}", reason=error.reason)
            return False
        token, seq, index = timer
        shown = f"instance {instance:x}, token {token:x}, seq {seq}, timer {index}"
        self._quarantine.quarantine_row(SERVICE, timer, shown, error)
        if len(self._failed) < REFUSED_MAX:
            self._failed.add(timer)
        return self._leave(timer, error.reason)

    async def _count_failures(self, connection: TrioConnection) -> None:
        failed = self._failed.copy()
        if failed:
            await store.count_failures(connection, failed)
            self._failed -= failed

    def _leave(self, timer: Timer, failure: str | None = None) -> bool:
        """Leave a timer for a while, after a failure for longer each time; False when there are too many such."""
        before = self._refused.get(timer)
        if before is None and len(self._refused) >= REFUSED_MAX:
            return False
        pause_s, _, reason = before or (0.0, 0.0, "")
        if failure is not None:
            pause_s, reason = 2 * pause_s, failure
        pause_s = min(max(pause_s, RETRY_FIRST_S), RETRY_MAX_S)
        self._refused[timer] = _Refused(pause_s, trio.current_time() + pause_s, reason)
        return True

    def _give_up(self, timer: Timer, failures: int) -> str | None:
        """Why it fails its instance instead of firing, when it has failed often enough."""
        if failures < self._failure_limit:
            return None
        refused = self._refused.get(timer)
        reason = f": {refused.reason}" if refused is not None and refused.reason else ""
        return f"a timer of the step failed {failures} times{reason}"
