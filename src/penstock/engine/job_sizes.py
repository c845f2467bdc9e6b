"""What jobs will hold of the memory for answers: a guess before their claim, by the largest of their type of late, and
the reading of variables as far as there is room. Must not know whose jobs they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.engine.answers import COPIES, AnswerMemory
from penstock.store import jobs as store
from penstock.store.connection import TrioConnection

READ_MAX_COUNT: Final = 64
"""Instances whose variables are made into text at once for jobs that were claimed."""
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
        """The same of the largest of some types."""
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
        read_bytes = 0
        for first in range(0, len(instances), READ_MAX_COUNT):
            wanted = instances[first : first + READ_MAX_COUNT]
            room_bytes = max(self._memory.room_bytes // COPIES - read_bytes, 0)
            found, more = await store.variables_within(connection, wanted, room_bytes)
            if more and not read and not found:
                least = min(more, key=lambda instance: more[instance])
                if self._memory.fits(COPIES * more[least]):
                    found, _ = await store.variables_within(connection, [least], more[least])
            read |= found
            read_bytes += sum(map(len, found.values()))
            if more:
                break
        return read, more
