"""What a handler raises to say how its job failed. Any other exception is a failure that may be retried."""

from __future__ import annotations

from datetime import datetime, timedelta

from penstock.client.encoding import optional_object
from penstock.wire.error_code import code_problem


class NonRetryable(Exception):
    """The job can't succeed, however often it is tried: the step and its instance fail with this message."""


class Retry(Exception):
    """Try the job again, after a pause of ``after`` (seconds or a timedelta) where one is given.

    Uses up one of the step's retries like any failure; with none left the instance fails.
    """

    def __init__(self, message: str = "the handler asked for another try", *, after: float | timedelta = 0.0) -> None:
        super().__init__(message)
        self.after_s = after.total_seconds() if isinstance(after, timedelta) else float(after)


class StepError(Exception):
    """The step failed with an error that the workflow knows by its code, such as ``CARD_DECLINED``.

    An error boundary of the step that names the code takes it at once. Else it is a failure like others: tried again
    while the step has retries left for this code, unless ``retryable`` is False. ``variables`` are what is to be known
    of it where it is caught.

    Raises:
        ValueError: the code is not 1 to 100 of letters, digits, ``_``, ``.`` and ``-``, or begins with ``Penstock.``.
        BadRequest: the variables have no JSON form.
    """

    def __init__(self, code: str, message: str = "", *, variables: object = None, retryable: bool = True) -> None:
        if (problem := code_problem(code)) is not None:
            raise ValueError(f"the code of an error {problem}: {code!r}")
        super().__init__(message or code)
        self.code = code
        self.variables = optional_object(variables)
        self.retryable = retryable


class Later(Exception):
    """Wait with the job until a time: it comes back then as the next attempt, with its checkpoint. No retry is spent,
    and the worker is free meanwhile.

    Raises:
        ValueError: the time has no offset.
    """

    signal: str | None = None

    def __init__(self, *, until: datetime) -> None:
        super().__init__(f"to be gone on with at {until}")
        self.until: datetime | None = _aware(until)


class WaitFor(Exception):
    """Wait with the job for a signal, at longest ``until`` a time: as `Later`.

    The signal is sent to the instance by this name, or by the id of the step; what it brings is among the variables.

    Raises:
        ValueError: no name, or a time without an offset.
    """

    def __init__(self, signal: str, *, until: datetime | None = None) -> None:
        if not signal:
            raise ValueError("signal: must not be empty")
        super().__init__(f"waits for the signal {signal!r}")
        self.signal: str | None = signal
        self.until = None if until is None else _aware(until)


def _aware(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise ValueError(f"{time} has no offset: give it a time zone")
    return time
