"""How much credit a worker has given for each job type, and how much it should: pure bookkeeping of the Work stream.

Types that share a limit share its room: each gets its part, at least one, so all of them together may bring a few jobs
more than there is room for; those wait in the worker, with their leases kept. What one type does not use flows to the
others as its jobs come. Credit is taken back only when it is well over what there is room for: taking back and
granting anew with every job would cost more than the few jobs that come early.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from penstock.wire import penstock_v1 as w

# More at once would be leased long before its turn.
MAX_CREDIT_JOBS = 10_000


class Wanting(Protocol):
    """Who takes jobs of some types: for so many more there is room; none when it is ``closed``."""

    @property
    def job_types(self) -> Sequence[str]: ...
    @property
    def free_slots(self) -> int: ...
    @property
    def closed(self) -> bool: ...


class CreditBook:
    """Credit of one stream; a new stream begins with an empty book."""

    def __init__(self) -> None:
        self._granted: dict[str, int] = {}
        self._asked_back: set[str] = set()

    def changes(self, subscriptions: Iterable[Wanting]) -> list[w.Credit]:
        """Return the credit to grant (positive) or to take back (negative) now. Counts it as done."""
        found: list[w.Credit] = []
        for subscription in subscriptions:
            wanted = _share(min(subscription.free_slots, MAX_CREDIT_JOBS), len(subscription.job_types))
            for job_type in subscription.job_types:
                granted = self._granted.get(job_type, 0)
                if job_type in self._asked_back or wanted == granted:
                    continue
                if wanted > granted:
                    self._granted[job_type] = wanted
                    found.append(w.Credit(job_type, wanted - granted))
                elif granted > 2 * wanted + 1 or subscription.closed:
                    self._asked_back.add(job_type)
                    found.append(w.Credit(job_type, wanted - granted))
        return found

    def used(self, job_type: str) -> None:
        """A job of the type came."""
        self._granted[job_type] = max(0, self._granted.get(job_type, 0) - 1)

    def answered(self, credit: w.Credit) -> None:
        """The engine said what is left after some was taken back; jobs that come later stay within it."""
        self._granted[credit.job_type] = max(0, credit.jobs)
        self._asked_back.discard(credit.job_type)


def _share(free_slots: int, job_types: int) -> int:
    """Return the part of one type, rounded up."""
    return -(-free_slots // job_types)
