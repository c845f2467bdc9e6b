"""Short words for steps, beyond those of penstock.testing.definitions, and definitions that several tests run."""

from __future__ import annotations

from penstock.testing.definitions import Json, definition, end, service, step


def user(step_id: str, next_step: str | None = "end", **fields: object) -> Json:
    following: Json = {} if next_step is None else {"nextStep": next_step}
    return step(step_id, "USER_TASK", **following, **fields)


def wait(step_id: str, next_step: str = "end", **fields: object) -> Json:
    return step(step_id, "WAIT", nextStep=next_step, **fields)


def choose(step_id: str, arms: dict[str, str]) -> Json:
    """A DECISION with its conditions in this order."""
    return step(step_id, "DECISION", conditionalNextSteps=arms)


def assign(step_id: str, values: Json, next_step: str = "end") -> Json:
    return step(step_id, "TRANSFORMATION", transformations=values, nextStep=next_step)


def gateway(step_id: str, *heads: str, join: str = "join") -> Json:
    return step(step_id, "PARALLEL_GATEWAY", parallelNextSteps=list(heads), joinStep=join)


def joining(step_id: str = "join", next_step: str = "end") -> Json:
    return step(step_id, "JOIN_GATEWAY", nextStep=next_step)


def parallel(*branches: Json, heads: list[str] | None = None, after: str = "end", name: str = "parallel") -> Json:
    """A gateway ``fork`` whose branches begin at ``heads`` (by default every one of these steps), then ``join``."""
    first = heads or [str(branch["id"]) for branch in branches]
    return definition(gateway("fork", *first), *branches, joining("join", after), end(), definition_id=name)


def task(step_id: str, next_step: str | None = "end", **fields: object) -> Json:
    """A SERVICE_TASK whose job type is its id."""
    return service(step_id, next_step, job_type=step_id, **fields)


def call(step_id: str, definition_id: str, next_step: str | None = "end", **fields: object) -> Json:
    following: Json = {} if next_step is None else {"nextStep": next_step}
    return step(step_id, "CALL_ACTIVITY", definitionId=definition_id, **following, **fields)


def compensate(step_id: str = "undo", next_step: str = "end", **fields: object) -> Json:
    return step(step_id, "COMPENSATE", nextStep=next_step, **fields)
