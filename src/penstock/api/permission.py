"""What a call can need, on either wire. Which role holds which is `penstock.access.roles`."""

from __future__ import annotations

from enum import StrEnum


class Permission(StrEnum):
    """What a route can need. `GET /v1/me` tells the first four by these names."""

    VIEW = "view"
    OPERATE = "operate"
    MODEL = "model"
    TASKS = "tasks"
    WORK = "work"
    EXECUTE = "execute"
    """To take runs of durable workflows."""
    STREAM = "stream"
    """To open a Work stream, which then needs `WORK`, or `EXECUTE` of an executor."""
    RUNS = "runs"
    """To start runs of durable workflows, to send to them and to call their updates."""
    ANSWERS = "answers"
    """To find a run of a durable workflow, and to read what it answers and shows."""
    PROVED = "proved"
    """Whoever has proved who they are."""
    NONE = "none"
    """Open to everybody."""
