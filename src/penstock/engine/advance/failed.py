"""Tells the log of instances that failed, no more often than somebody can read.

Of one definition one line in `INTERVAL_S`; the next one says how many were left out.
"""

from __future__ import annotations

import math
from typing import Final

import trio

from penstock.log.log import get_logger

INTERVAL_S: Final = 1.0
DEFINITIONS_MAX_ITEMS: Final = 1000
REASON_MAX_CHARS: Final = 200

log = get_logger("penstock.engine.group_commit.failed")


class FailedInstances:
    """Of one engine."""

    def __init__(self) -> None:
        self._reported: dict[str, tuple[float, int]] = {}

    def notify(self, instance_id: int, definition_id: str, reason: str) -> None:
        """An instance failed, and it is committed."""
        now = trio.current_time()
        at, left_out = self._reported.get(definition_id, (-math.inf, 0))
        if now - at < INTERVAL_S:
            self._reported[definition_id] = at, left_out + 1
            return
        if len(self._reported) >= DEFINITIONS_MAX_ITEMS:
            self._reported.clear()
        self._reported[definition_id] = now, 0
        more = {"left_out": left_out} if left_out else {}
        shown = reason[:REASON_MAX_CHARS]
        log.warning("an instance failed", instance=f"{instance_id:x}", definition=definition_id, reason=shown, **more)
