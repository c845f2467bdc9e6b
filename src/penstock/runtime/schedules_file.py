"""Schedules from a file, put as the engine starts. Others stay as they are, and so does what was paused by hand."""

from __future__ import annotations

from typing import Final, cast

import msgspec

from penstock.engine.requests.payload import unknown_field
from penstock.engine.schedules.schedules import Schedules
from penstock.errors import BadRequest, Conflict
from penstock.log.log import get_logger
from penstock.runtime.queues_file import read_named
from penstock.wire.schedule import ScheduleSpec

SETTING: Final = "schedules_file"

log = get_logger(__name__)


async def apply_schedules(schedules: Schedules, file: str) -> int:
    """Put each; how many. Raises BadRequest for a file that can't be read or used. While older engines live none is
    put: the last engine that is upgraded does it."""
    named = await read_named(file, SETTING, "ids of schedules to what they say")
    specs = {id: _spec(file, id, said) for id, said in named.items()}
    try:
        for id, spec in specs.items():
            await schedules.put(id, spec)
    except Conflict as error:
        log.warning("schedules are not applied", file=file, reason=error.reason)
        return 0
    log.info("schedules applied", file=file, schedules=len(specs))
    return len(specs)


def _spec(file: str, id: str, said: object) -> ScheduleSpec:
    unknown = unknown_field(ScheduleSpec, cast("dict[str, object]", said)) if isinstance(said, dict) else None
    if unknown is not None:
        raise BadRequest(f"{SETTING}: {file}: {id}: {unknown} is not a field of a schedule")
    try:
        return msgspec.json.decode(msgspec.json.encode(said), type=ScheduleSpec)
    except (msgspec.MsgspecError, TypeError) as error:
        raise BadRequest(f"{SETTING}: {file}: {id}: {error}") from None
