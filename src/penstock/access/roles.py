"""Roles, what they allow, and the form in which settings and the command line give them.

Pure. The one place that says which role holds which permission; what a route needs is in `table.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from penstock.api.permission import Permission
from penstock.errors import BadRequest

JOB_TYPES_MAX: Final = 1_000
_ROLE: Final = re.compile(r"([a-z]+)(?:\((.*)\))?", re.DOTALL)


class Role(StrEnum):
    VIEWER = "viewer"
    CLERK = "clerk"
    WORKER = "worker"
    EXECUTOR = "executor"
    OPERATOR = "operator"
    ADMIN = "admin"


ALLOWED: Final[Mapping[Role, frozenset[Permission]]] = {
    Role.VIEWER: frozenset({Permission.VIEW, Permission.ANSWERS}),
    Role.CLERK: frozenset({Permission.VIEW, Permission.ANSWERS, Permission.TASKS}),
    Role.WORKER: frozenset({Permission.WORK, Permission.STREAM}),
    Role.EXECUTOR: frozenset({Permission.EXECUTE, Permission.STREAM, Permission.RUNS, Permission.ANSWERS}),
    Role.OPERATOR: frozenset(
        {Permission.VIEW, Permission.ANSWERS, Permission.TASKS, Permission.OPERATE, Permission.RUNS}
    ),
    Role.ADMIN: frozenset(Permission) - {Permission.PROVED, Permission.NONE},
}

LEAST_ROLE: Final[Mapping[Permission, Role]] = {
    Permission.VIEW: Role.VIEWER,
    Permission.ANSWERS: Role.VIEWER,
    Permission.TASKS: Role.CLERK,
    Permission.WORK: Role.WORKER,
    Permission.STREAM: Role.WORKER,
    Permission.EXECUTE: Role.EXECUTOR,
    Permission.RUNS: Role.OPERATOR,
    Permission.OPERATE: Role.OPERATOR,
    Permission.MODEL: Role.ADMIN,
}
"""What a refusal names as the role that is needed."""


class Grant(msgspec.Struct, frozen=True):
    """Roles, for workers the job types, and for executors the Apps: None is any."""

    roles: frozenset[Role]
    job_types: frozenset[str] | None = None
    apps: frozenset[str] | None = None

    @property
    def permissions(self) -> frozenset[Permission]:
        return frozenset[Permission]().union(*(ALLOWED[role] for role in self.roles))

    def __str__(self) -> str:
        """The form that `read_grant` takes."""
        limits = {Role.WORKER: self.job_types, Role.EXECUTOR: self.apps}
        found = ((role, limits.get(role)) for role in Role if role in self.roles)
        return "+".join(role if names is None else f"{role}({'|'.join(sorted(names))})" for role, names in found)


def grant_of(roles: Iterable[Role], job_types: Iterable[str] | None, apps: Iterable[str] | None = None) -> Grant:
    """Raises BadRequest for job types or Apps without the role that they limit."""
    found = frozenset(roles)
    types, names = (None if each is None else frozenset(each) for each in (job_types, apps))
    if not found:
        raise BadRequest("at least one role is needed")
    for limit, role, what in ((types, Role.WORKER, "job types"), (names, Role.EXECUTOR, "Apps")):
        if limit is None:
            continue
        if not limit or not all(limit) or len(limit) > JOB_TYPES_MAX:
            raise BadRequest(f"a role {role} is limited to 1 to {JOB_TYPES_MAX} {what}, none of them empty")
        if role not in found or Role.ADMIN in found:
            raise BadRequest(f"{what} limit the role {role}: give that role, and not admin, which may work on all")
    return Grant(found, types, names)


def read_grant(text: str) -> Grant:
    """``viewer``, ``clerk+worker``, ``worker(pack|ship)``, ``executor(shop)``. Raises BadRequest."""
    roles: list[Role] = []
    limits: dict[Role, set[str]] = {}
    for part in re.split(r"\+(?![^(]*\))", text):
        match = _ROLE.fullmatch(part.strip())
        if match is None or match[1] not in list(Role):
            raise BadRequest(f"{part.strip()!r} is not one of the roles {', '.join(Role)}")
        roles.append(Role(match[1]))
        if match[2] is not None:
            if roles[-1] not in (Role.WORKER, Role.EXECUTOR):
                raise BadRequest(f"{roles[-1]} takes no job types, worker does; executor takes Apps")
            limits.setdefault(roles[-1], set()).update(match[2].split("|"))
    return grant_of(roles, limits.get(Role.WORKER), limits.get(Role.EXECUTOR))


def merged(grants: Iterable[Grant]) -> Grant | None:
    """Return all that several grants allow; None for none of them."""
    roles: set[Role] = set()
    job_types: set[str] | None = set[str]()
    apps: set[str] | None = set[str]()
    for grant in grants:
        roles |= grant.roles
        if Role.WORKER in grant.roles and job_types is not None:
            job_types = None if grant.job_types is None else job_types | grant.job_types
        if Role.EXECUTOR in grant.roles and apps is not None:
            apps = None if grant.apps is None else apps | grant.apps
    if not roles:
        return None
    limits = (frozenset(each) if each and Role.ADMIN not in roles else None for each in (job_types, apps))
    return Grant(frozenset(roles), *limits)
