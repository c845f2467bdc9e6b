"""The leases that this engine granted, in memory: what each job is, and when its lease ends.

A hint and a timetable, never the truth: the fence is the token's row. What is lost here (a crash) is found again by
the scan of the lease service. What a commit changes here is told after it, in any order: what a newer attempt has said
is never undone by an older one (attempts grow within an execution). Times are trio's clock, in seconds; the database's
own time decides in the end.
"""

from __future__ import annotations

import heapq

import msgspec

from penstock.engine.definitions import LoadedDefinition

STALE_ENDS_MAX = 10_000
"""Ends that no lease has any more are swept out when there are about so many: else each job that was done under a lease
of an hour would be remembered for an hour."""


class GrantedLease(msgspec.Struct):
    """One job under lease."""

    instance: int
    token: int
    seq: int
    attempt: int
    step: int
    loaded: LoadedDefinition | None  # None for leases that the scan found
    worker: str
    ends_at: float
    looks: int = 0  # how often the sweep found it neither over nor gone
    dispatched: bool = False  # through Kafka: nobody's lease, but a deadline


class LeaseBook:
    """All leases this engine watches, by (token, seq)."""

    def __init__(self) -> None:
        self._leases: dict[tuple[int, int], GrantedLease] = {}
        self._ends: list[tuple[float, int, int]] = []

    def __len__(self) -> int:
        return len(self._leases)

    def grant(self, lease: GrantedLease) -> None:
        """Watch a lease in place of an older attempt's; a newer attempt's stays."""
        known = self._leases.get((lease.token, lease.seq))
        if known is None or known.attempt <= lease.attempt:
            self._leases[lease.token, lease.seq] = lease
            self._note_end(lease)

    def find(self, token: int, seq: int) -> GrantedLease | None:
        """The lease of an execution."""
        return self._leases.get((token, seq))

    def forget(self, token: int, seq: int) -> None:
        """The execution closed: there is no lease of it any more."""
        self._leases.pop((token, seq), None)

    def end(self, token: int, seq: int, attempt: int) -> None:
        """An attempt failed or was given back: its lease is over. A newer attempt may have one already: that stays."""
        lease = self._leases.get((token, seq))
        if lease is not None and lease.attempt <= attempt:
            del self._leases[token, seq]

    def extend(self, token: int, seq: int, attempt: int, ends_at: float) -> None:
        """A heartbeat moved the end. What was dispatched has a holder by it, what was known may be an older attempt."""
        lease = self._leases.get((token, seq))
        if lease is not None and lease.attempt <= attempt:
            lease.ends_at, lease.looks, lease.attempt, lease.dispatched = ends_at, 0, attempt, False
            self._note_end(lease)

    def take_due(self, now: float, limit: int) -> list[GrantedLease]:
        """Leases whose end has come, at most ``limit``; they are forgotten."""
        due: list[GrantedLease] = []
        while self._ends and self._ends[0][0] <= now and len(due) < limit:
            ends_at, token, seq = heapq.heappop(self._ends)
            lease = self._leases.get((token, seq))
            if lease is not None and lease.ends_at == ends_at:
                del self._leases[token, seq]
                due.append(lease)
        return due

    def put_back(self, lease: GrantedLease) -> None:
        """Watch again what `take_due` took, unless it was granted or extended meanwhile."""
        if (lease.token, lease.seq) not in self._leases:
            self.grant(lease)

    def _note_end(self, lease: GrantedLease) -> None:
        heapq.heappush(self._ends, (lease.ends_at, lease.token, lease.seq))
        if len(self._ends) > 2 * len(self._leases) + STALE_ENDS_MAX:
            self._ends = [(lease.ends_at, *key) for key, lease in self._leases.items()]
            heapq.heapify(self._ends)
