"""Items whose advance takes long: evaluated in a thread before any lock is taken, then applied as in their own
group-commit queue.

One at a time, so that they hold up nobody but each other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import trio

from penstock.engine.advance.advancer import Advancer, LongItem
from penstock.engine.group_commit.batcher import Batcher
from penstock.errors import PenstockError, Unavailable
from penstock.settings import Settings
from penstock.store.db.database import DatabaseError

TRIES_MAX: Final = 3
"""An instance that changed so often while an item of it was evaluated is evaluated under its lock."""

I = TypeVar("I", bound=LongItem[Any])  # noqa: E741 - an item


class LongPath(Batcher[I]):
    """A queue beside another one. ``apply`` settles an item, lets it stand aside, or gives it to `take_over` again."""

    def __init__(
        self, name: str, settings: Settings, advancer: Advancer, apply: Callable[[list[I]], Awaitable[None]]
    ) -> None:
        super().__init__(name, max_items=1, max_queue_items=settings.long_queue_max_items)
        self._advancer = advancer
        self._apply = apply
        self._wait_s = settings.outage_wait_seconds
        self._mine: I | None = None
        self._waiting: dict[object, I] = {}

    def take_over(self, item: I) -> None:
        """An attempt took too long: the item is not the caller's any more."""
        item.was_long = True
        item.move()
        if item is self._mine:
            return
        item.forget_large()
        twin = self._waiting.setdefault(item.same_as, item)
        if twin is not item:
            return  # nobody waits for this one: it comes again when the other one is done and it is still due
        try:
            self.submit_nowait(item)
        except PenstockError as error:
            del self._waiting[item.same_as]
            item.refuse(error)

    async def apply_batch(self, items: list[I]) -> None:
        for item in items:
            self._mine = item
            try:
                while item.moved:
                    await self._try(item)
            finally:
                self._mine = None
                del self._waiting[item.same_as]
                item.case = item.ahead = None  # of one that stands aside: it may be large

    async def _try(self, item: I) -> None:
        if item.case is not None:
            try:
                item.ahead = await self._advancer.ahead(item.case)
            except (DatabaseError, Unavailable):
                item.ahead = None  # what is chained could not be looked up; `apply` waits for the database
            except PenstockError as error:
                item.refuse(error)
            item.tries += 1
            item.stays = item.tries > TRIES_MAX
        item.moved = False
        item.deadline = trio.current_time() + self._wait_s
        if not item.settled:
            await self._apply([item])
