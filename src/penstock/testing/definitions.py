"""Small factories that give the JSON of workflow definitions, for our tests and for those of users.

They return plain dicts and check nothing, so that tests can break them. Random ones: random_definitions.py.
"""

from __future__ import annotations

from typing import TypeAlias

Json: TypeAlias = dict[str, object]


def step(step_id: str, step_type: str, **fields: object) -> Json:
    """Return one step; ``fields`` are named as in JSON."""
    return {"id": step_id, "name": step_id, "type": step_type, **fields}


def service(step_id: str, next_step: str | None = None, *, job_type: str = "work", **fields: object) -> Json:
    """A SERVICE_TASK; without ``next_step`` its branch ends there."""
    following: Json = {} if next_step is None else {"nextStep": next_step}
    return step(step_id, "SERVICE_TASK", jobType=job_type, **following, **fields)


def end(step_id: str = "end") -> Json:
    """An END."""
    return step(step_id, "END")


def timer(target: str, duration: str = "PT1H", *, interrupting: bool = False) -> Json:
    """Return a boundary event."""
    return {"type": "TIMER", "duration": duration, "interrupting": interrupting, "targetStepId": target}


def definition(*steps: Json, definition_id: str = "test", **fields: object) -> Json:
    """Return a definition of these steps, the first one being the entry."""
    return {"id": definition_id, "name": definition_id, "steps": list(steps), **fields}


def linear(tasks: int = 3, *, definition_id: str = "linear", job_type: str = "work", retry_count: int = 0) -> Json:
    """SERVICE_TASKs ``task-1`` … in a row, then ``end``."""
    names = [f"task-{number}" for number in range(1, tasks + 1)]
    following = [*names[1:], "end"]
    steps = [
        service(name, after, job_type=job_type, retryCount=retry_count)
        for name, after in zip(names, following, strict=True)
    ]
    return definition(*steps, end(), definition_id=definition_id)


def fork(*lengths: int, definition_id: str = "fork", job_type: str = "work") -> Json:
    """A PARALLEL_GATEWAY ``fork`` with one branch per length, of that many SERVICE_TASKs ``branch-1-task-1`` …, then
    ``join``, then ``end``. Two branches of one task without lengths."""
    heads: list[str] = []
    tasks: list[Json] = []
    for branch, length in enumerate(lengths or (1, 1), start=1):
        names = [f"branch-{branch}-task-{number}" for number in range(1, length + 1)]
        chain = [*names, "join"]
        heads.append(chain[0])
        tasks += [service(name, after, job_type=job_type) for name, after in zip(names, chain[1:], strict=True)]
    return definition(
        step("fork", "PARALLEL_GATEWAY", parallelNextSteps=heads, joinStep="join"),
        *tasks,
        step("join", "JOIN_GATEWAY", nextStep="end"),
        end(),
        definition_id=definition_id,
    )
