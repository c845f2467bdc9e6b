"""Sessions: what a browser holds in place of a token after its user has signed in.

A session is a row that any engine finds by the hash of the cookie, so the first call with a cookie costs each engine a
look into the database and those after it none. Sessions that are ended are told by a version, as changed API tokens
are: a number, and of which server. One that was opened with an API token is as good as that token, and ends with it.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple

import msgspec

from penstock.access.identity import Identity
from penstock.access.limits import SharedRate
from penstock.access.tokens import TokenBook, digest_of
from penstock.api.permission import Permission
from penstock.errors import Conflict, TooManyRequests, Unauthenticated, Unavailable
from penstock.loop.taskless import need_task
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import sessions as store

SESSIONS_MAX_COUNT: Final = 10_000
SESSIONS_MAX_COUNT_OF_ONE: Final = 20
"""Of one token or one subject: the oldest ends for one more."""
UNKNOWN_MAX_PER_S: Final = 200.0
UNKNOWN_MAX_PER_HOST_PER_S: Final = 40.0
"""Looks into the database for cookies that are not known here: anybody can make them up. 0.3 ms each."""
_LOOKUPS_MAX: Final = 3
_PREFIX: Final = "pss_"
_COOKIE: Final = re.compile(rb"pss_[0-9A-Za-z_-]{43}")
_SECRET_BYTES: Final = 32
_ID_BYTES: Final = 6
_OF_EXECUTORS: Final[Mapping[Permission, Permission | None]] = {
    Permission.EXECUTE: None,
    Permission.RUNS: Permission.OPERATE,
    Permission.ANSWERS: Permission.VIEW,
}
"""What an executor's limit to Apps is about, and with which permission somebody has it for all of them."""
_UNKNOWN: Final = "the session is unknown, was ended or has expired: sign in again"

Connections = Callable[[], AbstractAsyncContextManager[TrioConnection]]


class OpenedSession(NamedTuple):
    """``cookie`` is told once and kept nowhere."""

    cookie: str
    identity: Identity


class Sessions:
    """Those of one engine's callers."""

    def __init__(self, tokens: TokenBook, max_hours: float) -> None:
        self._tokens = tokens
        self._max_s = max_hours * 3_600
        self._connection: Connections | None = None
        self._known: dict[bytes, Identity] = {}
        self._version: store.SessionsVersion | None = None
        self._lookups = SharedRate(UNKNOWN_MAX_PER_S, UNKNOWN_MAX_PER_HOST_PER_S)

    def attach(self, connection: Connections) -> None:
        """The database is there from now on."""
        self._connection = connection

    def has(self, digest: bytes) -> bool:
        """Return whether a session that was known here counts still."""
        return digest in self._known

    async def identify(self, cookie: bytes, address: str | None) -> Identity:
        """Whose session this is. Raises Unauthenticated, Unavailable and TooManyRequests. A checkpoint only for one
        that is not known here."""
        if _COOKIE.fullmatch(cookie) is None:
            raise Unauthenticated(_UNKNOWN)
        digest = digest_of(cookie)
        found = self._known.get(digest)
        return self._now(await self._look_up(digest, address) if found is None else found)

    async def open(self, proved: Identity) -> OpenedSession:
        """Raises Conflict when there are too many."""
        cookie = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        expires_at = min(time.time() + self._max_s, proved.expires_at)
        if proved.apps is not None:  # a session has no place for them, and people execute nothing
            lost = {each for each, otherwise in _OF_EXECUTORS.items() if otherwise not in proved.permissions}
            proved = msgspec.structs.replace(proved, permissions=proved.permissions - lost, apps=None)
        identity = msgspec.structs.replace(proved, session=digest_of(cookie.encode()), expires_at=expires_at)
        job_types = None if identity.job_types is None else sorted(identity.job_types)
        new = store.NewSession(
            identity.session, secrets.token_hex(_ID_BYTES), identity.name, identity.key,
            sorted(identity.permissions), job_types, expires_at,
        )  # fmt: skip
        async with self._connected() as connection:
            opened = await store.insert(connection, new, most=SESSIONS_MAX_COUNT, most_of_key=SESSIONS_MAX_COUNT_OF_ONE)
        if not opened:
            raise Conflict(
                f"{SESSIONS_MAX_COUNT:,} sessions are open, which is the most: end some with `penstock session end`"
            )
        return OpenedSession(cookie, identity)

    async def end(self, cookie: bytes) -> None:
        """Nothing happens when there is no such session."""
        if _COOKIE.fullmatch(cookie) is None:
            return
        digest = digest_of(cookie)
        async with self._connected() as connection:
            await store.end(connection, digest=digest)
        self._known.pop(digest, None)

    async def refresh(self, connection: TrioConnection) -> bool:
        """Forget those that were ended, if any were; whether it has looked."""
        version = await store.version(connection)
        if version == self._version:
            return False
        # Before the look: what is looked up meanwhile is of this version, or looked up again.
        self._version, known = version, list(self._known)
        try:
            left = await store.left(connection, known) if known else set[bytes]()
        except BaseException:
            self._version = None
            raise
        for digest in known:
            if digest not in left:
                self._known.pop(digest, None)
        return True

    async def _look_up(self, digest: bytes, address: str | None) -> Identity:
        await need_task()
        if not self._lookups.take(address):
            raise TooManyRequests("too many requests with unknown sessions: try again")
        async with self._connected() as connection:
            for _ in range(_LOOKUPS_MAX):
                version = await store.version(connection)
                row = await store.find(connection, digest)
                if row is None:
                    raise Unauthenticated(_UNKNOWN)
                if self._version is not None and version.server != self._version.server:
                    self._version = None  # which of the two is the next one is not known: `refresh` looks at all
                if self._version is None or version.ended >= self._version.ended:
                    return self._keep(_identity_of(row))
                # What was ended meanwhile has been forgotten here already, and nobody would tell of it again.
        raise Unavailable("the engine could not read the session, as sessions change too fast: try again")

    def _keep(self, identity: Identity) -> Identity:
        if len(self._known) >= SESSIONS_MAX_COUNT:
            now = time.time()
            self._known = {digest: one for digest, one in self._known.items() if one.expires_at > now}
        while len(self._known) >= SESSIONS_MAX_COUNT:
            del self._known[next(iter(self._known))]
        self._known[identity.session] = identity
        return identity

    def _now(self, known: Identity) -> Identity:
        """With what its token allows now. Raises Unauthenticated."""
        if known.expires_at <= time.time():
            self._known.pop(known.session, None)
            raise Unauthenticated(_UNKNOWN)
        if not known.key.startswith("token:"):
            return known
        token = self._tokens.identity_of(known.key)
        if token is None:
            raise Unauthenticated("the token of this session was revoked or has expired: sign in again")
        expires_at = min(known.expires_at, token.expires_at)
        return msgspec.structs.replace(token, session=known.session, expires_at=expires_at)

    def _connected(self) -> AbstractAsyncContextManager[TrioConnection]:
        if self._connection is None:
            raise Unavailable("the engine is starting: try again")
        return self._connection()


def _identity_of(row: store.StoredSession) -> Identity:
    permissions = frozenset(Permission(name) for name in row.permissions if name in list(Permission))
    # also of a session that an older engine opened, which stored neither for these
    if Permission.VIEW in permissions:
        permissions |= {Permission.ANSWERS}
    if Permission.OPERATE in permissions:
        permissions |= {Permission.RUNS}
    return Identity(
        row.name,
        permissions,
        None if row.job_types is None else frozenset(row.job_types),
        row.key,
        row.expires_at,
        session=bytes(row.digest),
    )
