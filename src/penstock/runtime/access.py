"""The gate's services: it learns of changed API tokens, of the issuer's keys, and of what has expired.

Tokens are looked at once a second by the version of their set, and at once when another process says that they
changed. While the database is away those that were read last count.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import trio

from penstock.access.gate import Gate
from penstock.access.roles import read_grant
from penstock.access.tokens import TOKENS_MAX_COUNT, KnownToken
from penstock.errors import BadRequest
from penstock.log.log import get_logger
from penstock.net.tls import POLL_INTERVAL_S, Tls
from penstock.settings import HttpServerKind, Settings, is_loopback
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import api_tokens as store
from penstock.store.rows import sessions

TOKENS_POLL_INTERVAL_S: Final = 1.0
PURGE_INTERVAL_S: Final = 60.0

log = get_logger(__name__)


class AccessService:
    """Keeps one gate up to date."""

    def __init__(self, gate: Gate, connection: Callable[[], AbstractAsyncContextManager[TrioConnection]]) -> None:
        self._gate = gate
        self._connection = connection
        self._version: str | None = None
        self._hint = trio.Event()
        gate.sessions.attach(connection)

    def hint(self) -> None:
        """Somebody says that the tokens have changed."""
        self._hint.set()

    async def load(self) -> int:
        """Read the tokens if they have changed; how many count."""
        async with self._connection() as connection:
            version = await store.version(connection)
            if version != self._version:
                self._gate.replace_tokens(_known(await store.alive(connection, TOKENS_MAX_COUNT)))
                self._version = version
            if await self._gate.sessions.refresh(connection):
                self._gate.end_over()
        return len(self._gate.tokens)

    def steps(self) -> dict[str, Callable[[], Awaitable[object]]]:
        """Return the services, by name."""
        steps: dict[str, Callable[[], Awaitable[object]]] = {
            "api tokens": self._poll,
            "expired calls": self._gate.watch_step,
            "expired sessions": self._purge,
        }
        if self._gate.issuer is not None:
            steps["issuer keys"] = self._gate.issuer.refresh_step
        return steps

    async def _purge(self) -> None:
        async with self._connection() as connection:
            await sessions.purge(connection)
        await trio.sleep(PURGE_INTERVAL_S)

    async def _poll(self) -> None:
        with trio.move_on_after(TOKENS_POLL_INTERVAL_S):
            await self._hint.wait()
        self._hint = trio.Event()
        await self.load()


def make_gate(settings: Settings) -> Gate | None:
    """Return the gate, None without authentication. Raises BadRequest."""
    return Gate(settings) if settings.authentication else None


class ListenerTls:
    """The TLS of each listener, None where it speaks plainly. Raises CertificateError."""

    def __init__(self, settings: Settings) -> None:
        common = settings.tls_cert_path, settings.tls_key_path
        own = settings.grpc_tls_cert_path, settings.grpc_tls_key_path
        http2 = settings.http_server is HttpServerKind.HYPERCORN
        self.rest = self._make(settings, common, ["h2", "http/1.1"] if http2 else ["http/1.1"])
        self.metrics = self._make(settings, common, ["http/1.1"])
        self.grpc = self._make(settings, own if own[0] is not None else common, ["h2"])

    @staticmethod
    def _make(settings: Settings, files: tuple[str | None, str | None], protocols: list[str]) -> Tls | None:
        certificate, key = files
        if certificate is None or key is None:
            return None
        return Tls(
            certificate,
            key,
            protocols=protocols,
            client_ca=settings.tls_client_ca_path,
            client_required=settings.tls_client_required,
        )

    @property
    def any(self) -> bool:
        return self.rest is not None or self.grpc is not None

    async def refresh_step(self) -> None:
        """One round of the service loop: files that have changed are read again."""
        await trio.sleep(POLL_INTERVAL_S)
        for tls in (self.rest, self.metrics, self.grpc):
            if tls is not None:
                tls.refresh()


def log_access(settings: Settings) -> None:
    """Say in the log how open the engine is."""
    if settings.authentication:
        if not is_loopback(settings.bind_address) and settings.tls_cert_path is None:
            log.warning(
                "API tokens are sent without TLS: use TLS here, or a proxy with TLS", bind=settings.bind_address
            )
        if settings.trusted_networks and not (settings.allowed_hosts or is_loopback(settings.bind_address)):
            log.warning(
                "trusted_networks without allowed_hosts: a web page that bends its name to this address has the role of"
                " the network that its reader is in (docs/security.md)"
            )
    elif settings.insecure:
        log.warning("INSECURE: no authentication, everybody who reaches the engine may do everything")
    elif settings.bind is None:
        log.info("no authentication: listening on 127.0.0.1 only (docs/security.md)")


def _known(tokens: list[store.AliveToken]) -> list[KnownToken]:
    known: list[KnownToken] = []
    for token in tokens:
        try:
            grant = read_grant(token.roles)
        except BadRequest as error:  # of a newer version
            log.warning("an API token is ignored: its roles can't be read", id=token.id, reason=error.reason)
            continue
        expires_at = math.inf if token.expires_at is None else token.expires_at
        known.append(KnownToken(token.id, token.name, bytes(token.digest), grant, expires_at))
    return known
