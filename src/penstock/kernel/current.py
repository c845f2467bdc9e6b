"""Which branch runs in this thread: what `sleep()` and `open_nursery()` refer to without a context argument.

Only a kernel runs bodies, one branch at a time, so a plain attribute is exact. It is per thread, as several executors
may run kernels in threads of one process.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.kernel.branch import Branch


class _Running(threading.local):
    branch: Branch | None = None


running = _Running()


def current_branch() -> Branch | None:
    """The branch whose code is running in this thread, None outside of bodies."""
    return running.branch
