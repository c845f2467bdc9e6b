"""What jobs will hold of the memory for answers: a guess before their claim, by the largest of their type of late, and
the reading of variables as far as there is room. Must not know whose jobs they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.engine.requests.answers import COPIES, AnswerMemory
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import variables as store

READ_MAX_COUNT: Final = 64
"""Instances whose variables are made into text at once for jobs that were claimed."""
READ_MAX_BYTES: Final = 2_097_152
"""And so many bytes of them, if not a single one has more: they are decoded in one step of the loop."""
SIZES_MAX_COUNT: Final = 10_000


class JobSizes:
    """Sizes of large jobs by type."""

    def __init__(self, memory: AnswerMemory) -> None:
        self._memory = memory
        self._sizes: dict[str, int] = {}

    def job_bytes(self, job_type: str) -> int:
        """What a job of the type will hold of the memory for answers."""
        return COPIES * self._sizes.get(job_type, store.INLINE_VARIABLES_MAX_BYTES)

    def largest(self, job_types: Sequence[str]) -> int:
        """Return the same of the largest of some types."""
        if not self._sizes:
            return COPIES * store.INLINE_VARIABLES_MAX_BYTES
        return max(map(self.job_bytes, job_types))

    def note(self, job_type: str, size_bytes: int) -> None:
        """Large ones are remembered, and slowly forgotten."""
        known = self._sizes.get(job_type, 0)
        if size_bytes <= store.INLINE_VARIABLES_MAX_BYTES and not known:
            return
        size_bytes = max(size_bytes, known * 7 // 8)
        if size_bytes > store.INLINE_VARIABLES_MAX_BYTES:
            if len(self._sizes) >= SIZES_MAX_COUNT:
                self._sizes.clear()
            self._sizes[job_type] = size_bytes
        else:
            self._sizes.pop(job_type, None)

    async def read(self, connection: TrioConnection, instances: Sequence[int]) -> tuple[dict[int, str], dict[int, int]]:
        """The variables of instances, as far as there is room for them, at least of one that fits alone; and the bytes
        of those for which there was none."""
        read: dict[int, str] = {}
        more: dict[int, int] = {}
        free_bytes = max(self._memory.free_bytes // COPIES, 0)
        for first in range(0, len(instances), READ_MAX_COUNT):
            wanted: Sequence[int] = instances[first : first + READ_MAX_COUNT]
            max_bytes = min(free_bytes, READ_MAX_BYTES)
            while wanted:
                found, larger = await store.read_within(connection, wanted, max_bytes)
                grown = bool(more and larger)  # since their sizes were read: enough of it
                for instance in wanted:
                    more.pop(instance, None)
                more |= larger
                read |= found
                free_bytes -= sum(map(len, found.values()))
                wanted = () if grown else self._next(more, free_bytes, alone=not read)
                max_bytes = sum(more[instance] for instance in wanted)
            if more:
                break
        return read, more

    def _next(self, sizes: Mapping[int, int], free_bytes: int, *, alone: bool) -> Sequence[int]:
        """What to read next of what was left: the first ones, as many as one step of the loop and the room take.
        ``alone``: nothing has been read, so the least one may have what is there for all."""
        part: list[int] = []
        part_bytes = 0
        for instance, size_bytes in sorted(sizes.items()):
            part_bytes += size_bytes
            if part_bytes > free_bytes or (part and part_bytes > READ_MAX_BYTES):
                break
            part.append(instance)
        if not part and sizes and alone:
            least = min(sizes, key=lambda instance: sizes[instance])
            if self._memory.fits(COPIES * sizes[least]):
                part.append(least)
        return part
