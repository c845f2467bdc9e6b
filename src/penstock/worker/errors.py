"""What a handler raises to say how its job failed. Any other exception is a failure that may be retried."""

from __future__ import annotations

from datetime import timedelta

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
