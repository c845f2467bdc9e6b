"""Who calls: made by the gate, carried with the task that serves the call, read where it matters.

Relies on a context variable, so that what is made in the task of a call (items of batches, audit rows) can name the
actor without every signature in between carrying it. Without authentication it is never set, and nobody is limited.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final

import msgspec

from penstock.access.roles import LEAST_ROLE, Grant
from penstock.api.permission import Permission
from penstock.errors import Forbidden


class Identity(msgspec.Struct, frozen=True):
    """One caller. ``name`` is what audit rows show: ``token:<name>``, ``oidc:<subject>``, ``network:<cidr>``."""

    name: str
    permissions: frozenset[Permission]
    job_types: frozenset[str] | None = None
    """What a worker is limited to; None is any."""
    key: str = ""
    """What limits are counted by, and what is revoked: the same for all calls with one token."""
    expires_at: float = math.inf
    """Seconds since the epoch."""
    ambient: bool = False
    """Proved by where the call comes from (network, certificate): a browser sends such a proof for any page."""
    session: bytes = b""
    """Digest of the session's cookie; empty without one."""
    apps: frozenset[str] | None = None
    """What an executor is limited to; None is any."""

    @property
    def limited(self) -> bool:
        """Return whether calls are counted by its key: many hosts may share a network."""
        return not self.key.startswith("network:")

    @classmethod
    def of(
        cls, name: str, grant: Grant, *, key: str = "", expires_at: float = math.inf, ambient: bool = False
    ) -> Identity:
        return cls(
            name, grant.permissions, grant.job_types, key or name, expires_at, ambient, apps=grant.apps
        )  # fmt: skip

    def require(self, permission: Permission) -> None:
        """Raises Forbidden, with the least role that would do."""
        if permission not in self.permissions and permission not in (Permission.NONE, Permission.PROVED):
            raise Forbidden(f"this needs the role {LEAST_ROLE[permission]}, which {self.name} does not have")


_current: Final[ContextVar[Identity | None]] = ContextVar("penstock_identity", default=None)


def set_identity(identity: Identity | None) -> None:
    """Of the call that this task serves from now on."""
    _current.set(identity)


def current_identity() -> Identity | None:
    """None without authentication, and for what the engine does by itself."""
    return _current.get()


def actor(otherwise: str | None = None) -> str | None:
    """Whom an audit row names: the caller that was proved; else what the request says, which nobody has checked."""
    identity = _current.get()
    return otherwise if identity is None else identity.name


def job_type_limit() -> frozenset[str] | None:
    """The job types that this call may touch; None is any."""
    identity = _current.get()
    return None if identity is None else identity.job_types


def check_job_types(job_types: Iterable[str]) -> None:
    """Raises Forbidden when the caller is limited and one of these is not among what it may work on."""
    limit = job_type_limit()
    if limit is None:
        return
    for name in job_types:
        if name not in limit:
            raise Forbidden(f"this needs the role worker for job type '{name}', which {actor()} does not have")


def may(permission: Permission) -> bool:
    """Return whether this call's caller has a permission; without authentication everybody has all."""
    identity = _current.get()
    return identity is None or permission in identity.permissions


def may_execute(app: str) -> bool:
    """Return whether this call's caller may serve the workflows of an App, and so registers them."""
    identity = _current.get()
    return may(Permission.EXECUTE) and (identity is None or identity.apps is None or app in identity.apps)


def is_limited_to_apps(otherwise: Permission | None = None) -> bool:
    """Return whether this call's caller reaches some Apps only; nobody with the permission ``otherwise`` is limited."""
    identity = _current.get()
    return identity is not None and identity.apps is not None and otherwise not in identity.permissions


def check_app(app: str, otherwise: Permission | None = None) -> None:
    """Raises Forbidden when the caller is limited to other Apps; ``otherwise``: has not this permission either."""
    identity = _current.get()
    if identity is None or identity.apps is None or app in identity.apps or not is_limited_to_apps(otherwise):
        return
    named = f"App '{app}'" if app else "Apps without a name"
    raise Forbidden(f"this needs the role executor for {named}, which {identity.name} does not have")
