"""What a handler raises to say how its job failed. Any other exception is a failure that may be retried."""

from __future__ import annotations

from datetime import timedelta


class NonRetryable(Exception):
    """The job can't succeed, however often it is tried: the step and its instance fail with this message."""


class Retry(Exception):
    """Try the job again, after a pause of ``after`` (seconds or a timedelta) where one is given.

    Uses up one of the step's retries like any failure; with none left the instance fails.
    """

    def __init__(self, message: str = "the handler asked for another try", *, after: float | timedelta = 0.0) -> None:
        super().__init__(message)
        self.after_s = after.total_seconds() if isinstance(after, timedelta) else float(after)
