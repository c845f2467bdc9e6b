"""The leases that this engine granted, in memory: what each job is, and when its lease ends.

A hint and a timetable, never the truth: the fence is the token's row. What is lost here (a crash, or the book is full)
is found again by the scan of the lease service. What a commit changes here is told after it, in any order: what a newer
attempt has said is never undone by an older one (executions of a token and attempts within them grow). So the next that
is told of a token also ends what was known of it, when another engine has finished that. Times are trio's clock, in
seconds; the database's own time decides in the end.
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
    """The leases this engine watches, at most ``max_items``: one per token, that of its latest execution known here."""

    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        self._leases: dict[int, GrantedLease] = {}  # those granted or extended longest ago first
        self._ends: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._leases)

    def grant(self, lease: GrantedLease) -> None:
        """Watch a lease in place of an older one of its token; a newer one stays. A full book forgets another one: the
        scan finds it again if it still matters."""
        known = self._leases.get(lease.token)
        if known is not None and (known.seq, known.attempt) > (lease.seq, lease.attempt):
            return
        self._watch(lease)
        if len(self._leases) > self._max_items:
            del self._leases[next(iter(self._leases))]

    def find(self, token: int, seq: int) -> GrantedLease | None:
        """The lease of an execution."""
        lease = self._leases.get(token)
        return lease if lease is not None and lease.seq == seq else None

    def forget(self, token: int, seq: int) -> None:
        """The execution closed: there is no lease of it any more, nor of those before it."""
        lease = self._leases.get(token)
        if lease is not None and lease.seq <= seq:
            del self._leases[token]

    def end(self, token: int, seq: int, attempt: int) -> None:
        """An attempt failed or was given back: its lease is over. A newer attempt may have one already: that stays."""
        lease = self._leases.get(token)
        if lease is not None and (lease.seq, lease.attempt) <= (seq, attempt):
            del self._leases[token]

    def extend(self, token: int, seq: int, attempt: int, ends_at: float) -> None:
        """A heartbeat moved the end. What was dispatched has a holder by it, what was known may be an older attempt."""
        lease = self.find(token, seq)
        if lease is not None and lease.attempt <= attempt:
            lease.ends_at, lease.looks, lease.attempt, lease.dispatched = ends_at, 0, attempt, False
            self._watch(lease)

    def take_due(self, now: float, limit: int) -> list[GrantedLease]:
        """Leases whose end has come, at most ``limit``; they are forgotten."""
        due: list[GrantedLease] = []
        while self._ends and self._ends[0][0] <= now and len(due) < limit:
            ends_at, token = heapq.heappop(self._ends)
            lease = self._leases.get(token)
            if lease is not None and lease.ends_at == ends_at:
                del self._leases[token]
                due.append(lease)
        return due

    def put_back(self, lease: GrantedLease) -> None:
        """Watch again what `take_due` took, unless it was granted or extended meanwhile."""
        if lease.token not in self._leases:
            self.grant(lease)

    def _watch(self, lease: GrantedLease) -> None:
        self._leases.pop(lease.token, None)
        self._leases[lease.token] = lease
        heapq.heappush(self._ends, (lease.ends_at, lease.token))
        if len(self._ends) > 2 * len(self._leases) + STALE_ENDS_MAX:
            self._ends = [(lease.ends_at, token) for token, lease in self._leases.items()]
            heapq.heapify(self._ends)
