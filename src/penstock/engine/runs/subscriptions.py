"""Who waits here for something of a run: an answer to a call, a view, its end. All are hints.

A subscriber is woken at once by what this engine writes of the run, or hears from others. As a hint may be lost it
polls by itself, with growing pauses.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

import trio

POLL_FIRST_S, POLL_MAX_S = 0.05, 1.0
WATCHED_S: Final = 5.0
WATCH_AGAIN_S: Final = 2.0
"""Whoever waits for what a run shows says so again."""
SUBSCRIBERS_MAX: Final = 10_000
"""Of one engine; those beyond look without hints."""


class RunSubscription:
    """One subscription."""

    def __init__(self, waited: trio.Event) -> None:
        """``waited`` is set by the first wait of any subscription."""
        self._waited, self._event = waited, trio.Event()
        self._pause_s = POLL_FIRST_S

    def notify(self) -> None:
        """Something became of the run."""
        self._event.set()

    async def wait(self, ends: float = float("inf")) -> None:
        """Until there is something to look for, or it is time to look, at the latest at ``ends`` (Trio's time)."""
        self._waited.set()
        with trio.move_on_at(min(ends, trio.current_time() + self._pause_s)):
            await self._event.wait()
        self._event = trio.Event()
        self._pause_s = min(1.5 * self._pause_s, POLL_MAX_S)


class RunSubscriptions:
    """The subscriptions of one engine, by instance, and which runs are waited for at others."""

    def __init__(self, changed: Callable[[int], None]) -> None:
        """``changed`` hears of runs that are waited for at another engine."""
        self.subscribed: dict[int, set[RunSubscription]] = {}
        self._changed = changed
        self._waited = trio.Event()
        self.elsewhere: dict[int, float] = {}  # until when (Trio's time) somebody waits there
        self._count = 0

    @contextmanager
    def subscribe(self, instance: int) -> Generator[RunSubscription]:
        """News of a run for the block."""
        subscription = RunSubscription(self._waited)
        if self._count >= SUBSCRIBERS_MAX:
            yield subscription
            return
        self._count += 1
        self.subscribed.setdefault(instance, set()).add(subscription)
        try:
            yield subscription
        finally:
            self._count -= 1
            others = self.subscribed[instance]
            others.discard(subscription)
            if not others:
                del self.subscribed[instance]

    async def wait_first(self) -> None:
        """Return at once if anybody has waited here for something of a run before, else with the first who does."""
        await self._waited.wait()

    def watched_elsewhere(self, instance: int) -> None:
        """Somebody waits at another engine for what a run of here shows."""
        now = trio.current_time()
        if len(self.elsewhere) >= SUBSCRIBERS_MAX:
            self.elsewhere = {each: ends for each, ends in self.elsewhere.items() if ends > now}
        if len(self.elsewhere) < SUBSCRIBERS_MAX:
            self.elsewhere[instance] = now + WATCHED_S

    def notify_written(self, instance: int) -> None:
        """Something was written of a run. As a rule nobody waits for it."""
        if self.subscribed:
            self.notify(instance)
        if self.elsewhere and (ends := self.elsewhere.get(instance)) is not None:
            if ends > trio.current_time():
                self._changed(instance)
            else:
                del self.elsewhere[instance]

    def notify(self, instance: int) -> None:
        """Something became of a run."""
        for subscription in self.subscribed.get(instance, ()):
            subscription.notify()
