"""The leases that this engine granted, in memory: what each job is, and when its lease ends.

A hint and a timetable, never the truth: the fence is the token's row. What is lost here (a crash, or the book is full)
is found again by the scan of the lease service. What a commit changes here is told after it, in any order: what a newer
attempt has said is never undone by an older one (executions of a token and attempts within them grow), and what ended
lately is remembered for the grant or the heartbeat that is told after its end. So the next that is told of a token also
ends what was known of it, when another engine has finished that. Times are trio's clock, in seconds; the database's own
time decides in the end.
"""

from __future__ import annotations

import heapq
from typing import Final

import msgspec

from penstock.engine.definitions.definitions import LoadedDefinition

STALE_ENDS_MAX = 10_000
"""Ends that no lease has any more are swept out when there are about so many: else each job that was done under a lease
of an hour would be remembered for an hour."""
ENDED_MAX_ITEMS = 5_000
"""Ends are remembered until so many others were told after them, or twice as many."""
_CLOSED: Final = 1 << 31
"""In place of an attempt: behind all of them."""


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
    business_key: str | None = None
    lookups: int = 0  # how often the sweep found it neither over nor gone
    records: int = 0  # of a run: how many its journal has, as far as they were read or written under this lease
    blocked: bool = False  # of a run: it was when it was taken, and has written nothing since


class LeaseBook:
    """The leases this engine watches, at most ``max_items``: one per token, that of its latest execution known here."""

    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        self._leases: dict[int, GrantedLease] = {}  # those granted or extended longest ago first
        self._ends: list[tuple[float, int]] = []
        self._ended: dict[int, tuple[int, int]] = {}  # the last execution and attempt by token
        self._ended_before: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def grant(self, lease: GrantedLease, *, scanned: bool = False) -> None:
        """Watch a lease in place of an older one of its token; a newer one stays, and one that ended already is nothing
        to watch (``scanned``: the database has it now, whatever was told). A full book forgets another one: the scan
        finds it again if it still matters."""
        token, reported = lease.token, (lease.seq, lease.attempt)
        known = self._leases.get(token)
        if known is not None and (known.seq, known.attempt) > reported:
            return
        if not scanned:
            for ends in (self._ended, self._ended_before):
                ended = ends.get(token)
                if ended is not None and ended >= reported:
                    return
        self._watch(lease)
        if len(self._leases) > self._max_items:
            del self._leases[next(iter(self._leases))]

    def find(self, token: int, seq: int) -> GrantedLease | None:
        """Return the lease of an execution."""
        lease = self._leases.get(token)
        return lease if lease is not None and lease.seq == seq else None

    def latest(self, token: int) -> GrantedLease | None:
        """Return the lease of the token's latest execution."""
        return self._leases.get(token)

    def forget(self, token: int, seq: int) -> None:
        """The execution closed: there is no lease of it any more, nor of those before it."""
        lease = self._leases.get(token)
        if lease is not None and lease.seq <= seq:
            del self._leases[token]
        self._on_end(token, (seq, _CLOSED))

    def end(self, token: int, seq: int, attempt: int) -> None:
        """An attempt failed or was given back: its lease is over. A newer attempt may have one already: that stays."""
        reported = (seq, attempt)
        lease = self._leases.get(token)
        if lease is not None and (lease.seq, lease.attempt) <= reported:
            del self._leases[token]
        self._on_end(token, reported)

    def extend(self, token: int, seq: int, attempt: int, ends_at: float) -> None:
        """A heartbeat moved the end. What was dispatched has a holder by it, what was known may be an older attempt."""
        lease = self.find(token, seq)
        if lease is not None and lease.attempt <= attempt:
            lease.ends_at, lease.lookups, lease.attempt = ends_at, 0, attempt
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

    def doubt(self) -> None:
        """What was told may never have been: the timetable stays, what the jobs are does not."""
        for lease in self._leases.values():
            lease.loaded = None
        self._ended, self._ended_before = {}, {}

    def put_back(self, lease: GrantedLease) -> None:
        """Watch again what `take_due` took, unless it was granted or extended meanwhile."""
        if lease.token not in self._leases:
            self.grant(lease)

    def _on_end(self, token: int, reported: tuple[int, int]) -> None:
        ended = self._ended
        if ended.setdefault(token, reported) < reported:
            ended[token] = reported
        if len(ended) >= ENDED_MAX_ITEMS:
            self._ended, self._ended_before = {}, ended

    def all(self) -> list[GrantedLease]:
        """What is watched, granted or extended longest ago first. For diagnosis."""
        return list(self._leases.values())

    def _watch(self, lease: GrantedLease) -> None:
        self._leases.pop(lease.token, None)
        self._leases[lease.token] = lease
        heapq.heappush(self._ends, (lease.ends_at, lease.token))
        if len(self._ends) > 2 * len(self._leases) + STALE_ENDS_MAX:
            self._ends = [(lease.ends_at, token) for token, lease in self._leases.items()]
            heapq.heapify(self._ends)
