"""Ids: made here, 64 bits, ordered by time; shown as opaque text.

41 bits of milliseconds since 2025, 10 bits of the engine's number, 12 bits of a counter. The number is a leased row
(`runtime/membership`); if two engines ever had the same, or the clock went back across a restart, the primary key
refuses the clash and the caller takes new ids. Must not read the database.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime

from penstock.errors import BadRequest, NotFound
from penstock.store.rows.jobs import JobKey, job_key

EPOCH_MS = 1_735_689_600_000  # 2025-01-01T00:00:00Z
_NUMBER_BITS, _COUNTER_BITS = 10, 12
_COUNTER_MAX = (1 << _COUNTER_BITS) - 1
_MAX = (1 << 63) - 1
_TEXT_MAX_CHARS = 64
GIVEN_MAX_COUNT = 5_000
"""Ids that were given to workers and that nobody has named since: some 300 bytes each."""
_given: dict[str, JobKey] = {}
# One text for each number: no leading zeros, signs, blanks, underscores or upper case, all of which int() takes.
_NUMBER = "(0|[1-9a-f][0-9a-f]{0,15})"
_JOB = re.compile(f"{_NUMBER}-{_NUMBER}-{_NUMBER}").fullmatch  # a third of the time of three times int()


class IdSource:
    """Makes ids. Never repeats one within a process, also when the clock goes back or more than 4,096 fall in a ms."""

    def __init__(self, number: int, clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        if not 0 <= number < 1 << _NUMBER_BITS:
            raise ValueError(f"engine number {number}")
        self.number = number
        self._clock_ms = clock_ms
        self._last_ms = 0
        self._counter = 0

    def next(self) -> int:
        """Return a new id, greater than every one before it."""
        now = self._clock_ms() - EPOCH_MS
        if now > self._last_ms:
            self._last_ms, self._counter = now, 0
        elif self._counter < _COUNTER_MAX:
            self._counter += 1
        else:  # more ids than the millisecond has: borrow from the next one
            self._last_ms, self._counter = self._last_ms + 1, 0
        return self._last_ms << (_NUMBER_BITS + _COUNTER_BITS) | self.number << _COUNTER_BITS | self._counter


def first_instance(at: datetime) -> int:
    """The smallest id that an instance started at a time can have: `first_instance_id` of the schema."""
    ms = int(at.timestamp() * 1_000) - EPOCH_MS
    return min(max(0, ms) << (_NUMBER_BITS + _COUNTER_BITS), _MAX)


def age_s(instance: int) -> float:
    """How long ago the instance was started, by this machine's clock; never negative."""
    return max(0.0, time.time() - started_s(instance))


def started_s(instance: int) -> float:
    """When the instance was started, in seconds since 1970, by the clock of the engine that started it."""
    return ((instance >> (_NUMBER_BITS + _COUNTER_BITS)) + EPOCH_MS) / 1_000


def show_instance(id: int) -> str:
    """Return the text of an instance id."""
    return hex(id)[2:]  # noqa: FURB116 - 123 ns; that form 152, and several times that when compiled


def read_instance(text: str) -> int:
    """Return the number of an instance id; NotFound for whatever never was one."""
    return _hex(text, "instance", text)


def show_job(instance: int, token: int, seq: int) -> str:
    """The text of a job id, which also is the step execution's."""
    first = show_instance(instance)
    return f"{first}-{first if token == instance else show_instance(token)}-{show_instance(seq)}"


def show_given_job(instance: int, token: int, seq: int) -> str:
    """As `show_job`, of one that its worker is likely to name soon: `read_job` remembers it."""
    if len(_given) >= GIVEN_MAX_COUNT:
        _given.clear()
    text = show_job(instance, token, seq)
    _given[text] = job_key((instance, token, seq))
    return text


def read_job(text: str) -> JobKey:
    """Return the three numbers of a job id; NotFound for whatever never was one."""
    given = _given.pop(text, None)
    if given is not None:
        return given
    found = _JOB(text)
    if found is not None:
        key = JobKey(int(found[1], 16), int(found[2], 16), int(found[3], 16))
        if max(key) <= _MAX:
            return key
    raise NotFound(f"job '{text[:_TEXT_MAX_CHARS]}' is unknown")


def read_execution(text: str | None) -> tuple[int, int] | None:
    """Token and seq of an execution that a request names. Raises BadRequest."""
    if text is None:
        return None
    try:
        found = read_job(text)
    except NotFound:
        raise BadRequest("executionId: is not the id of an execution") from None
    return found.token, found.seq


def _hex(part: str, what: str, text: str) -> int:
    # int() also takes signs, blanks, underscores and upper case: an id has one text only
    if 0 < len(part) <= 16 and part.isalnum() and part.isascii():
        try:
            number = int(part, 16)
        except ValueError:
            number = -1
        if 0 <= number <= _MAX and f"{number:x}" == part:
            return number
    raise NotFound(f"{what} '{text[:_TEXT_MAX_CHARS]}' is unknown")
