"""What a schedule says: checked as it comes, kept as JSON, and read again as the rules of `core.time.schedule`."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Final, TypeVar

import msgspec

from penstock.core.graph.definition import BUSINESS_KEY_MAX_CHARS
from penstock.core.time.duration import DurationError, parse_duration
from penstock.core.time.schedule import CATCH_UP_WINDOW_DEFAULT, CatchUp, Overlap, Rules
from penstock.core.time.schedule_times import ScheduleError, check_ahead, read_times
from penstock.engine.queues.queues import check_flow_key, check_priority
from penstock.engine.requests.paging import NAME_MAX_CHARS
from penstock.engine.requests.payload import check_text
from penstock.errors import BadRequest
from penstock.wire.schedule import ScheduleSpec

E = TypeVar("E", bound=StrEnum)

NOTE_MAX_CHARS: Final = 4_096
RULES_KEPT: Final = 1_024
TIMELESS: Final = (
    "definitionId", "definitionVersion", "businessKey", "overlap", "catchUp", "catchUpWindow", "pauseOnFailure", "note",
    "priority", "flowKey",
)  # fmt: skip
"""Fields that say nothing about times."""

_decode = msgspec.json.Decoder(ScheduleSpec).decode


def check_spec(name: str, spec: ScheduleSpec, now: datetime) -> bytes:
    """As it is kept, but for the variables and whether it is paused. Raises BadRequest with the field and the reason.
    May take a while."""
    check_text(name, "id", NAME_MAX_CHARS)
    if not spec.definition_id:
        raise BadRequest("definitionId: is required")
    check_text(spec.definition_id, "definitionId", NAME_MAX_CHARS)
    if (spec.definition_version or 0) < 0:
        raise BadRequest("definitionVersion: must be 0 for the latest version, or one of its versions")
    for value, field, most in (
        (spec.business_key, "businessKey", BUSINESS_KEY_MAX_CHARS),
        (spec.note, "note", NOTE_MAX_CHARS),
    ):
        if value is not None:
            check_text(value, field, most)
    check_priority(spec.priority)
    if spec.flow_key is not None:
        check_flow_key(spec.flow_key)
    kept = msgspec.structs.replace(spec, variables=None, paused=None, cron=spec.cron or [])
    text = msgspec.json.encode(kept)
    try:
        check_ahead(_rules(name, kept).times, now)
    except ScheduleError as error:
        raise BadRequest(str(error)) from None
    return text


@lru_cache(maxsize=RULES_KEPT)
def read_spec(text: str) -> ScheduleSpec:
    """One that was kept."""
    return _decode(text)


@lru_cache(maxsize=RULES_KEPT)
def read_rules(name: str, text: str) -> Rules:
    """Of one that was kept. Raises ScheduleError where it is right no more: a time zone may be gone."""
    return _rules(name, read_spec(text))


def _rules(name: str, spec: ScheduleSpec) -> Rules:
    times = read_times(
        cron=spec.cron,
        time_zone=spec.time_zone,
        every=spec.every,
        anchor=spec.anchor,
        start_at=spec.start_at,
        end_at=spec.end_at,
        jitter=spec.jitter,
    )
    overlap = read_overlap(spec.overlap)
    catch_up = _word(CatchUp, spec.catch_up, CatchUp.LAST, "catchUp")
    try:
        window_s = parse_duration(spec.catch_up_window or CATCH_UP_WINDOW_DEFAULT)
    except DurationError as error:
        raise ScheduleError("catchUpWindow", str(error)) from None
    return Rules(name, times, overlap, catch_up, window_s)


def hint_of(spec: ScheduleSpec, *, is_known: bool) -> str | None:
    """What a schedule that is right will do, where that may be meant otherwise. ``is_known``: its definition."""
    if not is_known:
        return f"there is no definition '{spec.definition_id}' yet: until there is, its times are recorded as FAILED"
    overlap, first = read_overlap(spec.overlap), "catchUp ALL: of times that are caught up together"
    if spec.catch_up != CatchUp.ALL or overlap in (Overlap.ALLOW, Overlap.BUFFER_ALL):
        return None
    what = {
        Overlap.SKIP: "the first is started, and those that come while its run is open are skipped",
        Overlap.BUFFER_ONE: "the first is started, one waits for its end, and others are skipped meanwhile",
        Overlap.CANCEL_OTHER: "the last is started, and the others are skipped",
    }[overlap]
    return f"{first} {what}; overlap BUFFER_ALL starts all of them one after the other, ALLOW side by side"


def read_overlap(word: str | None, default: Overlap = Overlap.SKIP) -> Overlap:
    """Raises ScheduleError."""
    return _word(Overlap, word, default, "overlap")


def _word(kind: type[E], word: str | None, default: E, field: str) -> E:
    try:
        return default if word is None else kind(word)
    except ValueError:
        raise ScheduleError(field, f"must be one of {', '.join(kind)}") from None
