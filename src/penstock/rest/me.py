"""Who the caller is to this engine, and what they may do: interfaces show their buttons by it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec
from quart import Response

from penstock.access.identity import Identity, current_identity
from penstock.access.roles import ALLOWED, Role
from penstock.api.permission import Permission
from penstock.rest.exchange import Reply
from penstock.rest.reading import respond

_ORDER: Final = (Permission.VIEW, Permission.OPERATE, Permission.MODEL, Permission.TASKS, Permission.WORK)


class Me(msgspec.Struct, rename="camel", omit_defaults=True):
    """``jobTypes`` is what a worker is limited to, ``sessionEndsAt`` is of those who signed in at the console."""

    can: list[str]
    name: str | None = None
    job_types: list[str] | None = None
    session_ends_at: datetime | None = None


def me() -> Me:
    """Without authentication everybody may do everything, and has no name."""
    identity = current_identity()
    return Me(_names(ALLOWED[Role.ADMIN])) if identity is None else me_of(identity)


def me_of(identity: Identity) -> Me:
    """Of somebody known."""
    limit = identity.job_types
    return Me(
        _names(identity.permissions),
        identity.name,
        None if limit is None else sorted(limit),
        datetime.fromtimestamp(identity.expires_at, UTC) if identity.session else None,
    )


def _names(permissions: frozenset[Permission]) -> list[str]:
    return [permission.value for permission in _ORDER if permission in permissions]


class MeRoutes:
    """One route."""

    async def me(self) -> Response:
        """``GET /v1/me``"""
        return respond(Reply(200, msgspec.json.encode(me())))
