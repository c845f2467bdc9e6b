"""What a worker has of one job type's topic: which records wait, which are out, which may be committed. Pure.

- An offset is committed when every record before it is settled (a contiguous prefix per partition), so a worker that
  dies leaves nothing behind that nobody does.
- A record that comes again (published twice, or read again after a rebalance) is known by its dedup id for ten minutes.
  While the first one is still worked on, its offset waits for that.
- The jobs of one instance are handed out one after the other, in the order of their records.

Knows no clock (``now`` comes in, in seconds) and no Kafka client.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from penstock.wire.model import Job, JobRef
from penstock.worker.kafka_event import Dispatch

DEDUPLICATION_S: Final = 600.0
MAX_REMEMBERED: Final = 100_000
"""Dedup ids of settled jobs that are kept, at most: about 20 MB."""


class Lag(NamedTuple):
    """How far a consumer is behind its topic."""

    records: int
    """Records of its partitions that are not settled, the unread ones included."""
    seconds: float
    """Age of the oldest record that it has read and not settled; 0: there is none."""


class _Place:
    """Where one record stands."""

    __slots__ = ("offset", "partition", "settled", "written_at")

    def __init__(self, partition: int, offset: int, written_at: float, *, settled: bool) -> None:
        self.partition = partition
        self.offset = offset
        self.written_at = written_at
        self.settled = settled


class _Entry:
    """A job, and the places of all its records: usually one."""

    __slots__ = ("dedup_id", "is_out", "job", "places")

    def __init__(self, dispatch: Dispatch, place: _Place) -> None:
        self.dedup_id, self.job = dispatch
        self.places = [place]
        self.is_out = False


Key = tuple[str, int | None]


class Ledger:
    """The records of one topic that this worker has read and not committed yet."""

    def __init__(self) -> None:
        self._by_dedup_id: dict[str, _Entry] = {}
        self._by_key: dict[Key, _Entry] = {}
        self._lines: dict[str, deque[_Entry]] = {}
        self._ready: deque[_Entry] = deque()
        self._places: dict[int, deque[_Place]] = {}
        self._settled_at: OrderedDict[str, float] = OrderedDict()
        self._to_commit: dict[int, int] = {}
        self._read_to: dict[int, int] = {}
        self.waiting = 0
        """Jobs that are not handed out yet."""
        self.uncommitted = 0
        """Records that are read and not ready to be committed."""
        self.duplicates = 0
        """Records of jobs that had come before."""

    @property
    def partitions(self) -> list[int]:
        """Those with records that are not committed."""
        return list(self._places.keys() | self._to_commit.keys())

    # -- records come

    def add(self, partition: int, offset: int, dispatch: Dispatch | None, now: float, written_at: float = 0.0) -> None:
        """Add a record that was read; None is one that no job can be made of. Offsets of a partition come in their
        order. ``written_at``: when it was written, in seconds of the epoch."""
        self._forget_old(now)
        self._read_to[partition] = offset + 1
        place = _Place(partition, offset, written_at, settled=dispatch is None)
        self._places.setdefault(partition, deque()).append(place)
        self.uncommitted += 1
        if dispatch is None:
            self._advance(partition)
            return
        job = dispatch.job
        known = self._by_dedup_id.get(dispatch.dedup_id) or self._by_key.get((job.id, job.attempt))
        if known is not None:
            self.duplicates += 1
            known.places.append(place)
        elif dispatch.dedup_id in self._settled_at:
            self.duplicates += 1
            place.settled = True
            self._advance(partition)
        else:
            self._enter(_Entry(dispatch, place))

    def _enter(self, entry: _Entry) -> None:
        self._by_dedup_id[entry.dedup_id] = entry
        self._by_key[entry.job.id, entry.job.attempt] = entry
        line = self._lines.setdefault(entry.job.instance_id, deque())
        line.append(entry)
        self.waiting += 1
        if len(line) == 1:
            self._ready.append(entry)

    # -- jobs go out

    def take(self, max_jobs: int) -> list[Job]:
        """Hand out jobs, the longest waiting first, of different instances."""
        taken: list[Job] = []
        while self._ready and len(taken) < max_jobs:
            entry = self._ready.popleft()
            entry.is_out = True
            self.waiting -= 1
            taken.append(entry.job)
        return taken

    def settle(self, ref: JobRef, now: float) -> None:
        """The engine has answered for a job that is out, or it is not this worker's any more. Unknown ones: nothing."""
        entry = self._by_key.get((ref.job_id, ref.attempt))
        if entry is None:
            return
        self._leave(entry)
        self._settled_at[entry.dedup_id] = now
        for place in entry.places:
            place.settled = True
            self._advance(place.partition)

    def _leave(self, entry: _Entry) -> None:
        del self._by_dedup_id[entry.dedup_id]
        del self._by_key[entry.job.id, entry.job.attempt]
        line = self._lines[entry.job.instance_id]
        line.remove(entry)
        self.waiting -= not entry.is_out
        if not line:
            del self._lines[entry.job.instance_id]
        elif not line[0].is_out and line[0] not in self._ready:
            self._ready.append(line[0])

    def _forget_old(self, now: float) -> None:
        while self._settled_at:
            dedup_id, at = next(iter(self._settled_at.items()))
            if now - at <= DEDUPLICATION_S and len(self._settled_at) <= MAX_REMEMBERED:
                return
            del self._settled_at[dedup_id]

    # -- offsets

    def _advance(self, partition: int) -> None:
        places = self._places.get(partition)
        if places is None:  # revoked meanwhile
            return
        while places and places[0].settled:
            self._to_commit[partition] = places.popleft().offset + 1
            self.uncommitted -= 1
        if not places:
            del self._places[partition]

    def to_commit(self) -> dict[int, int]:
        """By partition: the offset to commit, where that has moved since it was last committed."""
        return dict(self._to_commit)

    def committed(self, offsets: dict[int, int]) -> None:
        """These offsets are committed."""
        for partition, offset in offsets.items():
            if self._to_commit.get(partition) == offset:
                del self._to_commit[partition]

    def lag(self, ends: Mapping[int, int | None], now: float) -> Lag:
        """Return how far this worker is behind at ``now``, in seconds of the epoch. ``ends``: the next offset of each
        partition, as far as the client knows it."""
        known = ((self._read_to.get(partition), end) for partition, end in ends.items())
        unread = sum(max(end - read_to, 0) for read_to, end in known if read_to is not None and end is not None)
        oldest = min((places[0].written_at for places in self._places.values()), default=now)
        return Lag(unread + self.uncommitted, max(now - oldest, 0.0))

    # -- partitions go

    def has_out(self, partitions: Collection[int]) -> bool:
        """Return whether a job of these partitions is out."""
        return any(entry.is_out for entry in self._of(partitions))

    def drop_waiting(self, partitions: Collection[int]) -> None:
        """Forget the jobs of these partitions that are not out: whoever gets the partitions reads them again."""
        for entry in list(self._of(partitions)):
            if not entry.is_out:
                if entry in self._ready:
                    self._ready.remove(entry)
                self._leave(entry)

    def revoke(self, partitions: Collection[int]) -> None:
        """The partitions are not this worker's any more. Jobs that are out stay known, in case they come back."""
        self.drop_waiting(partitions)
        for partition in partitions:
            self.uncommitted -= len(self._places.pop(partition, ()))
            self._to_commit.pop(partition, None)
            self._read_to.pop(partition, None)
        for entry in self._by_dedup_id.values():
            entry.places = [place for place in entry.places if place.partition not in partitions]

    def _of(self, partitions: Collection[int]) -> Iterable[_Entry]:
        return (
            entry
            for entry in self._by_dedup_id.values()
            if any(place.partition in partitions for place in entry.places)
        )
