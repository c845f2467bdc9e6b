"""A standby that lists are read from, while it is one, can be reached and keeps up; else the primary is asked.

Whether it is fit is looked at once a second at most, by whoever lists; nobody waits for one that is away for longer
than `READ_TIMEOUT_S`. Never for reads by id, nor for anything that decides.
"""

from __future__ import annotations

from typing import Final, cast

import trio

from penstock.errors import PenstockError
from penstock.log.log import RateLimitedLog, get_logger
from penstock.store.db.database import Database, DatabaseError, first_line
from penstock.store.db.placement import placed

FIT_S: Final = 1.0
"""So long what was seen of it counts."""
AWAY_S: Final = 10.0
"""So long one that is not fit is left alone."""
READ_TIMEOUT_S: Final = 2.0

_log = RateLimitedLog(get_logger("penstock.store.replica"), interval_seconds=60)


class Replica:
    """One engine's connections to it. Closed with `database`, which is its own."""

    def __init__(self, database: Database, schema: str | None, *, max_lag_s: float) -> None:
        self.database = database
        self._schema = schema
        self._max_lag_s = max_lag_s
        self._placed = False
        self._checking = trio.Lock()
        self._fit, self._until = False, float("-inf")

    async def is_fit(self) -> bool:
        """Return whether lists may be read from it now."""
        if trio.current_time() >= self._until:
            async with self._checking:  # one look answers all who wait for it
                if trio.current_time() >= self._until:
                    problem = await self.problem()
                    self._fit = problem is None
                    self._until = trio.current_time() + (FIT_S if self._fit else AWAY_S)
                    if problem is not None:
                        _log.warning("unfit", "lists are read from the primary", reason=problem)
        return self._fit

    async def problem(self) -> str | None:
        """Why it is not fit; None when it is."""
        with trio.move_on_after(READ_TIMEOUT_S):
            try:
                if not self._placed:
                    self.database.use(await placed(self.database.dsn, self._schema))
                    self._placed = True
                standby, lag_s = cast("tuple[bool, float]", (await self.database.fetch("replica_lag"))[0])
            except (DatabaseError, PenstockError, OSError) as error:
                return first_line(error)
            if not standby:
                return "it is not a standby"
            return None if lag_s <= self._max_lag_s else f"it is {lag_s:.0f} s behind"
        return f"it did not answer within {READ_TIMEOUT_S:g} s"
