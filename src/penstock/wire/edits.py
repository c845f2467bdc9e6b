"""What is asked for to repair an instance, as JSON has it: change variables, skip, move, retry, migrate."""

from __future__ import annotations

from typing import Literal

import msgspec


class VariablesEdit(msgspec.Struct, rename="camel"):
    """``set`` (an object) and ``remove`` (names) variables. ``if_version``: only if nobody has written any since."""

    set: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))
    remove: list[str] = []
    if_version: str | None = None
    note: str | None = None


class StepSkip(msgspec.Struct, rename="camel"):
    """The oldest open execution of ``step_id``, or that with ``execution_id``, counts as done, with these variables."""

    step_id: str
    variables: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))
    execution_id: str | None = None
    note: str | None = None


class TokenMove(msgspec.Struct, rename="camel"):
    """The oldest open execution of ``step_id``, or that with ``execution_id``, is given up for ``to_step_id``."""

    step_id: str
    to_step_id: str
    execution_id: str | None = None
    note: str | None = None


class MigrationRequest(msgspec.Struct, rename="camel", kw_only=True):
    """``version``: which one, 0 for the latest. ``steps``: ids of steps that have another one there. ``timers``: when
    boundary timers with another duration fire; none: FROM_ENTRY."""

    version: int = 0
    steps: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    timers: Literal["FROM_ENTRY", "KEEP_DEADLINE", "FROM_NOW"] | None = None
    note: str | None = None
    dry_run: bool = False


class PriorityBody(msgspec.Struct, rename="camel", kw_only=True):
    priority: int


class RetryBody(msgspec.Struct, rename="camel", kw_only=True):
    """``note``: for the audit trail. ``from_step_id``: where it goes on in place of the step that failed, or of
    ``step_id``. ``again``: also where work would be done again that was done already."""

    note: str | None = None
    from_step_id: str | None = None
    step_id: str | None = None
    again: bool | None = None
