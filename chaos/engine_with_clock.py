"""``penstock`` with a wall clock that is off by what stands in the file ``CHAOS_CLOCK_FILE``, in seconds.

Ids hold the engine's own time; leases and timers go by the database's. The file is read at every call.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_FILE = Path(os.environ["CHAOS_CLOCK_FILE"])
_TRUE_NS = time.time_ns


def shifted_ns() -> int:
    """The time as this process is to see it."""
    return _TRUE_NS() + int(float(_FILE.read_text() or 0) * 1e9)


time.time_ns = shifted_ns
time.time = lambda: shifted_ns() / 1e9

if __name__ == "__main__":
    from penstock.cli import main

    main()
