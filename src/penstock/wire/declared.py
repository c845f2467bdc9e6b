"""Schedules and queues that the code of durable workflows has, as REST, the client and the console show them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from penstock.wire.noun import Answer


class Declaration(Answer, frozen=True):
    """A schedule or a queue that the code of a durable workflow has. `kind`: schedule, queue. `state`: AS_IN_CODE,
    CHANGED (somebody has put another one), DELETED (somebody has deleted it), NOT_IN_CODE (the code had it once).
    `workflow` and `version`: the code that said so last, at `seen_at`. `body`: what it says."""

    kind: str
    id: str
    state: str
    workflow: str
    version: int
    seen_at: datetime
    body: dict[str, Any] | None = None
