"""An open user task, as people are told of it over REST."""

from __future__ import annotations

from datetime import datetime

import msgspec


class UserTask(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An open user task. ``job_type`` says for whom it is, ``next_timer`` when its next boundary timer fires, ``item``
    which item of a forEach it is about, from 0."""

    instance_id: str
    step_id: str
    execution_id: str
    name: str
    job_type: str
    definition_id: str
    version: int
    opened_at: datetime
    business_key: str | None = None
    assignee: str | None = None
    next_timer: datetime | None = None
    item: int | None = None
    summary: str | None = None
    """What `metadata.forms[stepId].summary`, an expression, gives for the variables of the instance and the item."""
