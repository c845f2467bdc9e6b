"""Who the caller is to this engine, and what they may do: interfaces show their buttons by it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from penstock.access.identity import Identity, current_identity
from penstock.access.roles import ALLOWED, Role
from penstock.api.permission import Permission
from penstock.wire.me import Me

_ORDER: Final = (Permission.VIEW, Permission.OPERATE, Permission.MODEL, Permission.TASKS, Permission.WORK)


def me() -> Me:
    """Tell who calls. Without authentication everybody may do everything, and has no name."""
    identity = current_identity()
    return Me(_names(ALLOWED[Role.ADMIN])) if identity is None else me_of(identity)


def me_of(identity: Identity) -> Me:
    """Tell who somebody known is."""
    limit = identity.job_types
    return Me(
        _names(identity.permissions),
        identity.name,
        None if limit is None else sorted(limit),
        datetime.fromtimestamp(identity.expires_at, UTC) if identity.session else None,
    )


def _names(permissions: frozenset[Permission]) -> list[str]:
    return [permission.value for permission in _ORDER if permission in permissions]
