"""What waits aside, and until when: job types whose topic has trouble, rows whose record was refused.

Pauses double from `RETRY_FIRST_S`. Pure: the time comes in (trio's clock, seconds). Memory is bounded by the number of
job types and by `QUARANTINE_MAX_ROWS`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.kafka.record import PublishOutcome

RETRY_FIRST_S: Final = 0.1
UNKNOWN_RETRY_MAX_S: Final = 5.0
REFUSED_RETRY_MAX_S: Final = 30.0
QUARANTINE_MAX_ROWS: Final = 1_000
"""Refused records that are remembered; with more of them their job type waits as a whole."""


class Trouble(msgspec.Struct):
    """Until when something waits. ``refused``: its topic said no, as against nothing."""

    next_try_at: float
    pause_s: float
    refused: bool = False


class Troubles:
    """All that one relay leaves out of its main loop for now."""

    def __init__(self) -> None:
        self._types: dict[int, Trouble] = {}
        self._rows: dict[int, Trouble] = {}

    # -- job types

    def has(self, job_type: int) -> bool:
        """Return whether the job type waits aside."""
        return job_type in self._types

    def refused(self, job_type: int) -> bool:
        """Return whether it does because its topic refused."""
        trouble = self._types.get(job_type)
        return trouble is not None and trouble.refused

    def back_off(self, job_type: int, outcome: PublishOutcome, now: float) -> None:
        """Let it wait, twice as long as the last time."""
        longest_s = UNKNOWN_RETRY_MAX_S if outcome is PublishOutcome.UNKNOWN else REFUSED_RETRY_MAX_S
        pause_s = _longer(self._types.get(job_type), longest_s)
        self._types[job_type] = Trouble(now + pause_s, pause_s, outcome is PublishOutcome.TOPIC_REFUSED)

    def forget_type(self, job_type: int) -> bool:
        """It is well again; whether it was not."""
        return self._types.pop(job_type, None) is not None

    def next_try_at(self) -> float:
        """When the next job type is to be tried."""
        return min((trouble.next_try_at for trouble in self._types.values()), default=float("inf"))

    def take_due(self, now: float) -> list[int]:
        """Job types that are to be tried now. Those of which nothing is heard come again after the same pause."""
        due = [job_type for job_type, trouble in self._types.items() if trouble.next_try_at <= now]
        for job_type in due:
            self._types[job_type].next_try_at = now + self._types[job_type].pause_s
        return due

    # -- rows

    def quarantine_row(self, row: int, now: float) -> bool:
        """Let one row wait, twice as long as the last time; False when too many do."""
        if row not in self._rows and len(self._rows) >= QUARANTINE_MAX_ROWS:
            return False
        pause_s = _longer(self._rows.get(row), REFUSED_RETRY_MAX_S)
        self._rows[row] = Trouble(now + pause_s, pause_s)
        return True

    def forget_row(self, row: int) -> None:
        """It was published."""
        self._rows.pop(row, None)

    def quarantined_rows(self, now: float) -> list[int]:
        """The rows whose time has not come. Those that nobody met for long are forgotten: they were void."""
        gone = [row for row, trouble in self._rows.items() if trouble.next_try_at < now - 2 * REFUSED_RETRY_MAX_S]
        for row in gone:
            del self._rows[row]
        return [row for row, trouble in self._rows.items() if trouble.next_try_at > now]


def _longer(old: Trouble | None, longest_s: float) -> float:
    return RETRY_FIRST_S if old is None else min(old.pause_s * 2, longest_s)
