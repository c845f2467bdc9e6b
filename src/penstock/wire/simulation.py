"""What somebody asks who tries a definition, and what they let happen (`engine/simulation`)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class Move(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Something that happens. ``do`` is complete (a job, a user task, the instance of a call), fail (a job, the
    instance of a call), cancel (the instance of a call with ``token_id``, else the whole), signal (to a wait, or to
    ``step_id`` before it waits), message, fire (a timer), advance (the clock, by ``seconds`` or to the next timer), or
    retry."""

    do: str
    token_id: str | None = None
    step_id: str | None = None
    index: int | None = None
    name: str | None = None
    correlation_key: str | None = None
    variables: dict[str, Any] | None = None
    retryable: bool = True
    error: str | None = None
    error_code: str | None = None
    compensate: bool = False
    by: str | None = None
    seconds: float | None = None


class SimulationRequest(msgspec.Struct, rename="camel"):
    """A definition as it would be uploaded, the variables that an instance starts with, and what happened since.
    ``started_at``: where the clock begins, at the present time if it is left out; the next request repeats it.
    ``test``: the answer has all of it as a test, too."""

    definition: msgspec.Raw
    variables: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    moves: list[Move] = []
    started_at: datetime | None = None
    test: bool = False
