"""The keys of an OpenID Connect issuer: read from a file or a URL, and again when they may have changed.

An issuer that is away changes nothing: the keys that were read last count. Must not follow redirects, nor anything
that a token says about where its key is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote_plus

import trio

from penstock.access.identity import Identity
from penstock.access.jwt import IssuerKeys, JwtVerifier, KeyUnknown
from penstock.errors import PenstockError, Unavailable
from penstock.log.log import RateLimitedLog, get_logger
from penstock.loop.taskless import need_task
from penstock.settings import Settings

DOCUMENT_MAX_BYTES: Final = 1_048_576
FETCH_TIMEOUT_S: Final = 10.0
POLL_INTERVAL_S: Final = 10.0
"""Least time between two looks for keys that tokens name: anybody can make up a name."""
_DISCOVERY: Final = "/.well-known/openid-configuration"

_troubles: Final = RateLimitedLog(get_logger(__name__), interval_seconds=60)


class Issuer:
    """One issuer. ``refresh_step`` is its service loop."""

    def __init__(self, settings: Settings) -> None:
        """Raises BadRequest for settings that can't be used."""
        assert settings.oidc_issuer is not None
        self.keys = IssuerKeys()
        self.verifier = JwtVerifier(settings, self.keys)
        self._issuer = settings.oidc_issuer
        self._source = settings.oidc_jwks
        self._refresh_s = settings.oidc_refresh_seconds
        self._polled_at = -POLL_INTERVAL_S
        self._polling = trio.Lock()

    async def verify(self, token: bytes) -> Identity:
        """Whose token this is. Raises Unauthenticated, and Unavailable before any keys were read. A checkpoint only
        for a key that is not known yet."""
        try:
            return self.verifier.verify(token)
        except KeyUnknown:
            await self._poll_if_due()
            if not len(self.keys):
                raise Unavailable("the issuer's keys could not be read yet") from None
        return self.verifier.verify(token)

    async def verify_sign_in(self, verifier: JwtVerifier, token: bytes, nonce: str) -> Identity:
        """As ``verify``, of an ID token that was asked for with this nonce."""
        try:
            return verifier.verify_sign_in(token, nonce)
        except KeyUnknown:
            await self._poll_if_due()
        return verifier.verify_sign_in(token, nonce)

    async def discover(self) -> Mapping[str, Any]:
        """Return the issuer's discovery document. Raises ValueError and OSError."""
        document = await fetch_json(self._issuer.rstrip("/") + _DISCOVERY)
        found = cast("dict[str, Any]", document) if isinstance(document, dict) else {}
        if found.get("issuer") != self._issuer:
            raise ValueError("the discovery document names another issuer")
        return found

    def url_in(self, document: Mapping[str, Any], name: str) -> str:
        """Return one of the URLs of that document. Raises ValueError."""
        found = str(document.get(name, ""))
        if not found.startswith(("https://", "http://")) or (
            self._issuer.startswith("https://") and not found.startswith("https://")
        ):
            raise ValueError(f"the discovery document has no https:// URL as {name}")
        return found

    async def refresh_step(self) -> None:
        """One round of the service loop."""
        async with self._polling:
            await self._poll()
        await trio.sleep(self._refresh_s)

    async def _poll_if_due(self) -> None:
        await need_task()
        async with self._polling:  # one for all who wait
            if trio.current_time() - self._polled_at >= POLL_INTERVAL_S:
                await self._poll()

    async def _poll(self) -> None:
        self._polled_at = trio.current_time()
        try:
            self.keys.replace(await self._read())
        except (PenstockError, OSError, ValueError, RecursionError) as error:
            _troubles.warning("keys", "the issuer's keys can't be read", source=self._shown, error=str(error)[:300])
        else:
            self.verifier.forget()

    @property
    def _shown(self) -> str:
        return self._source or self._issuer + _DISCOVERY

    async def _read(self) -> object:
        source = self._source
        if source is None:
            source = self.url_in(await self.discover(), "jwks_uri")
        if "://" in source:
            return await fetch_json(source)
        return json.loads(await trio.to_thread.run_sync(_read_file, Path(source)))


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(DOCUMENT_MAX_BYTES + 1)
    if len(data) > DOCUMENT_MAX_BYTES:
        raise ValueError(f"more than {DOCUMENT_MAX_BYTES} bytes")
    return data


async def fetch_json(
    url: str, *, form: Mapping[str, str] | None = None, client: tuple[str, str] | None = None
) -> object:
    """A JSON document; with ``form`` the answer to a POST of it, as a client with this id and secret. Raises ValueError
    and OSError."""
    import ssl

    import httpx  # only here: most engines have no issuer behind a URL

    data = bytearray()
    try:
        with trio.fail_after(FETCH_TIMEOUT_S):
            # the system's authorities (SSL_CERT_FILE counts), not those that httpx brings
            verify = ssl.create_default_context()
            async with (
                httpx.AsyncClient(
                    trust_env=False, follow_redirects=False, verify=verify, timeout=FETCH_TIMEOUT_S
                ) as http,
                http.stream(
                    "GET" if form is None else "POST",
                    url,
                    headers={"accept": "application/json", "accept-encoding": "identity"},
                    data=form,
                    auth=None if client is None else _quoted(client),
                ) as answer,
            ):
                if answer.status_code != 200:
                    raise ValueError(f"{url} answered {answer.status_code}")
                if answer.headers.get("content-encoding", "identity") != "identity":
                    raise ValueError(f"{url} answered with a compressed document, which Penstock did not ask for")
                async for part in answer.aiter_raw():
                    data += part[: DOCUMENT_MAX_BYTES + 1 - len(data)]  # to the end: httpx leaves what is broken off
        if len(data) > DOCUMENT_MAX_BYTES:
            raise ValueError(f"{url} has more than {DOCUMENT_MAX_BYTES} bytes")
    except trio.TooSlowError as error:
        raise ValueError(f"{url} did not answer within {FETCH_TIMEOUT_S:g} s") from error
    except httpx.HTTPError as error:
        raise ValueError(f"{url}: {error}") from error
    return json.loads(bytes(data))


def _quoted(client: tuple[str, str]) -> tuple[str, str]:
    """For HTTP Basic, as OAuth has it (RFC 6749, 2.3.1)."""
    return quote_plus(client[0]), quote_plus(client[1])
