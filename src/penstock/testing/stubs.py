"""What stands in for workers in a test: answers to jobs, given in order, and what was asked.

An answer says what becomes of one attempt at a job. All of them run as handlers of `penstock.worker`, so that what a
handler takes, returns and raises means the same here. Decides nothing about time; `rehearsal.py` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias, cast

from penstock.client import Job
from penstock.client.encoding import to_json_object
from penstock.user_text import repr_of
from penstock.worker import NonRetryable
from penstock.worker.handler import Handler

Duration: TypeAlias = timedelta | float
"""A timedelta, or seconds."""


class Answer:
    """What becomes of one attempt at a job. Made by `returns`, `raises`, `fails`, `vanishes` and `handles`."""

    def __init__(self, text: str, function: Callable[..., Any] | None, takes: Duration = 0.0) -> None:
        self.text = text
        self.function = function
        """None: nobody ever reports."""
        self.takes = takes if isinstance(takes, timedelta) else timedelta(seconds=takes)
        if self.takes < timedelta(0):
            raise ValueError(f"takes must not be negative: {self.takes}")

    def __repr__(self) -> str:
        return f"{self.text} after {self.takes}" if self.takes else self.text

    def taking(self, pause: timedelta) -> Answer:
        """Return the same answer, taking so long, unless it says itself how long it takes."""
        return self if self.takes or not pause else Answer(self.text, self.function, pause)

    def handler(self, job_type: str, names: Mapping[str, Any]) -> Handler | None:
        """Return the handler that gives this answer; ``names`` are what its annotations, as text, may refer to."""
        return None if self.function is None else Handler(job_type, self.function, names=names)


def returns(variables: object = None, /, *, takes: Duration = 0.0, **more: object) -> Answer:
    """Let the job complete with these variables: a mapping, a dataclass, a model, or keywords.

    ``takes``: how much virtual time passes before it is done, as a timedelta or in seconds. Its lease is kept.

    Raises:
        BadRequest: that is no JSON object.
    """
    if more:
        variables = {**cast("Mapping[str, object]", variables or {}), **more}

    if variables is not None:
        to_json_object(variables)  # the test's own mistake is told where it stands

    async def answer() -> object:
        return variables

    return Answer(f"returns({'' if variables is None else repr_of(variables)})", answer, takes)


def raises(error: BaseException | type[BaseException], /, *, takes: Duration = 0.0) -> Answer:
    """Let the handler raise: the job is tried again while retries are left, but for ``NonRetryable``."""

    async def answer() -> None:
        raise error

    return Answer(f"raises({repr_of(error)})", answer, takes)


def fails(reason: str, /, *, takes: Duration = 0.0) -> Answer:
    """Let the job fail, whatever retries are left, and its instance with this reason."""

    async def answer() -> None:
        raise NonRetryable(reason)

    return Answer(f"fails({reason!r})", answer, takes)


def vanishes() -> Answer:
    """Let the worker die with the job: nothing is reported, and the lease (30 s) has to end."""
    return Answer("vanishes()", None)


def handles(function: Callable[..., Any], /, *, takes: Duration = 0.0) -> Answer:
    """Answer with a function as `Worker.handler` takes it: async or not, with the job's context and/or its
    variables."""
    return Answer(f"handles({getattr(function, '__name__', function)!s})", function, takes)


def answer_of(value: Any) -> Answer:
    """What is meant by something that is not an `Answer`: an exception raises, a function handles, else it returns."""
    if isinstance(value, Answer):
        return value
    if isinstance(value, BaseException) or _is_error_class(value):
        return raises(value)
    if callable(value):
        return handles(cast("Callable[..., Any]", value))
    return returns(cast(object, value))


def _is_error_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(cast("type[object]", value), BaseException)


class Stub:
    """What one job type is answered with, and the jobs that were asked of it."""

    def __init__(
        self,
        job_type: str,
        answers: Sequence[Answer],
        *,
        handler: Handler | None = None,
        names: Mapping[str, Any] | None = None,
    ) -> None:
        self.job_type = job_type
        self.jobs: list[Job] = []
        """The jobs it got, in order; each attempt is one."""
        self._answers = list(answers)
        self._handlers = [each.handler(job_type, names or {}) for each in answers]
        self._handler = handler

    def __repr__(self) -> str:
        return f"<stub of {self.job_type}: {len(self.jobs)} jobs>"

    @property
    def count(self) -> int:
        """Return how many jobs it got; each attempt is one."""
        return len(self.jobs)

    @property
    def variables(self) -> list[dict[str, Any]]:
        """Return the variables of each job it got."""
        return [job.variables for job in self.jobs]

    @property
    def takes(self) -> timedelta:
        """The virtual time that its next job takes."""
        return self._answers[self._upcoming()].takes if self._answers else timedelta(0)

    def take(self, job: Job) -> Handler | None:
        """Note a job; the handler to run, None when nobody ever reports."""
        handler = self._handlers[self._upcoming()] if self._handlers else self._handler
        self.jobs.append(job)
        return handler

    def _upcoming(self) -> int:
        """Which answer comes next; the last one stays for all that follow."""
        return min(len(self.jobs), len(self._answers) - 1)
