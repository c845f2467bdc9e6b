"""The collector of cyclic garbage, kept from stopping the event loop for long.

What Python calls a full collection walks over all that is alive: 40 ms for what was imported, 100 ms for 9,000
connections to REST, 300 ms for as many to gRPC, and every newcomer waits for it. Here it walks over what has come since
the last one, as what survives is set aside (`gc.freeze`). A look at everything, for what became garbage after that, is
rare.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from resource import getpagesize
from typing import Any, Final

FULL_COLLECTION_EVERY: Final = 5
"""Middle collections: then a full one walks over some 35,000 objects, 10 to 20 ms. Python has 10."""
PAUSE_SECONDS: Final = 60.0
"""Between two looks at everything, at least."""
PAUSE_FACTOR: Final = 2_000
"""So much more time than the last look took: 100 ms in 200 s."""
CROWD_BYTES: Final = 64 * 1024 * 1024
"""More memory than after the last look: most likely a crowd of connections. A look would take long, and is put off."""
GROWTH_BEFORE_SCAN_BYTES: Final = 512 * 1024 * 1024
"""More than after the last look may be garbage: then it is not put off."""

_MEMORY_FILE: Final = Path("/proc/self/statm")


def used_memory_bytes() -> int:
    """What the process has in memory; 0 where the system does not tell (Linux does)."""
    try:
        return int(_MEMORY_FILE.read_bytes().split()[1]) * getpagesize()
    except OSError:
        return 0


class Collector:
    """Hears of each collection (`gc.callbacks`)."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, memory_bytes: Callable[[], int] = used_memory_bytes
    ) -> None:
        self._clock = clock
        self._memory_bytes = memory_bytes
        self._thresholds = gc.get_threshold()
        self._collected_at = 0.0
        self._took_s = 0.0
        self._used_bytes = 0  # after the last look
        self._began: float | None = None  # of a look at everything

    def start(self) -> None:
        """Set aside what there is, and from now on what is there after each full collection."""
        self._begin_scan()
        gc.collect()
        self._end_scan()
        gc.set_threshold(*self._thresholds[:2], FULL_COLLECTION_EVERY)
        gc.callbacks.append(self._on_phase)

    def stop(self) -> None:
        """Back to Python's own way."""
        gc.callbacks.remove(self._on_phase)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def _on_phase(self, phase: str, info: Mapping[str, Any]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            if self._is_due():
                self._begin_scan()
        elif self._began is None:
            gc.freeze()
        else:
            self._end_scan()

    def _is_due(self) -> bool:
        grown_bytes = self._memory_bytes() - self._used_bytes
        if grown_bytes >= GROWTH_BEFORE_SCAN_BYTES:
            return True
        pause_s = max(PAUSE_SECONDS, PAUSE_FACTOR * self._took_s)
        return grown_bytes < CROWD_BYTES and self._clock() - self._collected_at >= pause_s

    def _begin_scan(self) -> None:
        gc.unfreeze()
        self._began = self._clock()

    def _end_scan(self) -> None:
        assert self._began is not None
        self._collected_at = self._clock()
        self._took_s, self._began = self._collected_at - self._began, None
        self._used_bytes = self._memory_bytes()
        gc.freeze()
