"""Bad rows: what the database refuses of a background service's batch is halved down to the row, and that is set aside.

Such services take rows by the batch. One row that can't be handled must end neither the process nor the work on all
others. Who has the rows in hand gives them to `Quarantine.each`, which halves what is refused. Who has them chosen by
the statement takes as many as its `Portion` says: half as many after each refusal, twice as many after each batch that
was not refused. The row that is refused alone waits aside, longer each time. Rows aside are listed
(`Quarantine.listing`, and as metrics) until one was handled after all, or is gone. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar, cast

import trio

from penstock.errors import PenstockError
from penstock.log.log import get_logger
from penstock.store.db.database import BAD_DATA, DatabaseError, first_line
from penstock.telemetry.metrics import Metrics

PAUSE_FIRST_S: Final = 5.0
PAUSE_MAX_S: Final = 300.0
ROWS_MAX: Final = 10_000
"""So many are remembered by one engine. More are tried again and again, one at a time."""
FORGET_AFTER_S: Final = 3 * PAUSE_MAX_S
"""Who was not met again for so long is gone."""

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")
T = TypeVar("T")

log = get_logger("penstock.engine.quarantine")


class QuarantinedRow(NamedTuple):
    """A row that waits aside. ``next_try_at`` is of trio's clock."""

    service: str
    row: str
    reason: str
    tries: int
    next_try_at: float


class Quarantine:
    """The rows of all services of one engine."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._rows: dict[tuple[str, Hashable], QuarantinedRow] = {}

    def quarantine_row(self, service: str, key: Hashable, row: str, error: BaseException) -> float:
        """Leave a row for a while; for how many seconds. ``row`` names it for people."""
        known = self._rows.get((service, key))
        tries = 1 if known is None else known.tries + 1
        pause_s = min(PAUSE_FIRST_S * (1 << min(tries - 1, 10)), PAUSE_MAX_S)
        reason = error.reason if isinstance(error, PenstockError) else first_line(error)
        if known is not None or len(self._rows) < ROWS_MAX:
            self._rows[service, key] = QuarantinedRow(service, row, reason, tries, trio.current_time() + pause_s)
        log.warning("a row is quarantined", service=service, row=row, reason=reason, tries=tries, again_in_s=pause_s)
        self._show()
        return pause_s

    async def each(
        self,
        rows: Sequence[R],
        handle: Callable[[Sequence[R]], Awaitable[Sequence[T]]],
        leave: Callable[[R, DatabaseError], object],
    ) -> list[T]:
        """Call ``handle`` with the rows; in halves when the database refuses them. ``leave`` is called with a row that
        is refused alone, and has to set it aside. All that ``handle`` returned. Other errors are raised, of whichever
        half: the rest is left as it is then."""
        try:
            return list(await handle(rows))
        except BAD_DATA as error:
            if len(rows) == 1:
                leave(rows[0], error)
                return []
        middle = len(rows) // 2
        first = await self.each(rows[:middle], handle, leave)
        return first + await self.each(rows[middle:], handle, leave)

    def forget(self, service: str, key: Hashable) -> None:
        """The row was handled, or is gone."""
        if self._rows.pop((service, key), None) is not None:
            self._show()

    def waiting(self, service: str) -> list[Hashable]:
        """The rows of a service whose time has not come."""
        now = trio.current_time()
        gone = [key for key, about in self._rows.items() if about.next_try_at < now - FORGET_AFTER_S]
        for key in gone:
            del self._rows[key]
        if gone:
            self._show()
        return [key for (name, key), about in self._rows.items() if name == service and about.next_try_at > now]

    def listing(self) -> list[QuarantinedRow]:
        """Return all of them."""
        return list(self._rows.values())

    def _show(self) -> None:
        self._metrics.set_quarantined_rows((about.service, about.row, about.reason) for about in self._rows.values())


class Portion(Generic[K]):
    """How many rows one service takes at once; ``rows`` is that number. Its rows are known by a ``K``."""

    def __init__(self, quarantine: Quarantine, service: str, max_rows: int) -> None:
        self._quarantine = quarantine
        self._service = service
        self._max_rows = max_rows
        self.rows = max_rows

    def grow(self) -> None:
        """The database took what it was given."""
        self.rows = min(2 * self.rows, self._max_rows)

    def shrink(self, error: DatabaseError) -> bool:
        """The database refused it: take less. False when that was one row, which is to be set aside then. Raises the
        error again when it is not about the data."""
        if not isinstance(error, BAD_DATA):
            raise error
        several = self.rows > 1
        self.rows = max(1, self.rows // 2)
        return several

    def waiting(self) -> list[K]:
        """As `Quarantine.waiting`."""
        return cast("list[K]", self._quarantine.waiting(self._service))

    def quarantine_row(self, key: K, row: str, error: DatabaseError) -> None:
        """As `Quarantine.quarantine_row`."""
        self._quarantine.quarantine_row(self._service, key, row, error)
