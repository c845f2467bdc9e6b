"""The keys of an OpenID Connect issuer: read from a file or a URL, and again when they may have changed.

An issuer that is away changes nothing: the keys that were read last count. Must not follow redirects, nor anything
that a token says about where its key is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, cast

import trio

from penstock.access.identity import Identity
from penstock.access.jwt import IssuerKeys, JwtVerifier, KeyUnknown
from penstock.errors import PenstockError, Unavailable
from penstock.log import RateLimitedLog, get_logger
from penstock.settings import Settings

DOCUMENT_MAX_BYTES: Final = 1_048_576
FETCH_TIMEOUT_S: Final = 10.0
LOOK_AGAIN_S: Final = 10.0
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
        self._looked_at = -LOOK_AGAIN_S
        self._looking = trio.Lock()

    async def verify(self, token: bytes) -> Identity:
        """Whose token this is. Raises Unauthenticated, and Unavailable before any keys were read. A checkpoint only
        for a key that is not known yet."""
        try:
            return self.verifier.verify(token)
        except KeyUnknown:
            await self._look_again()
            if not len(self.keys):
                raise Unavailable("the issuer's keys could not be read yet") from None
        return self.verifier.verify(token)

    async def refresh_step(self) -> None:
        """One round of the service loop."""
        async with self._looking:
            await self._look()
        await trio.sleep(self._refresh_s)

    async def _look_again(self) -> None:
        async with self._looking:  # one for all who wait
            if trio.current_time() - self._looked_at >= LOOK_AGAIN_S:
                await self._look()

    async def _look(self) -> None:
        self._looked_at = trio.current_time()
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
            document = await _fetch(self._issuer.rstrip("/") + _DISCOVERY)
            found = cast("dict[str, Any]", document) if isinstance(document, dict) else {}
            if found.get("issuer") != self._issuer:
                raise ValueError("the discovery document is another issuer's")
            source = str(found.get("jwks_uri", ""))
            if not source.startswith(("https://", "http://")) or (
                self._issuer.startswith("https://") and not source.startswith("https://")
            ):
                raise ValueError("the discovery document names no https:// jwks_uri")
        if "://" in source:
            return await _fetch(source)
        return json.loads(await trio.to_thread.run_sync(_read_file, Path(source)))


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(DOCUMENT_MAX_BYTES + 1)
    if len(data) > DOCUMENT_MAX_BYTES:
        raise ValueError(f"more than {DOCUMENT_MAX_BYTES} bytes")
    return data


async def _fetch(url: str) -> object:
    """A JSON document. Raises ValueError and OSError."""
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
                http.stream("GET", url, headers={"accept": "application/json"}) as answer,
            ):
                if answer.status_code != 200:
                    raise ValueError(f"{url} answered {answer.status_code}")
                async for part in answer.aiter_bytes():
                    data += part
                    if len(data) > DOCUMENT_MAX_BYTES:
                        raise ValueError(f"{url} has more than {DOCUMENT_MAX_BYTES} bytes")
    except trio.TooSlowError as error:
        raise ValueError(f"{url} did not answer within {FETCH_TIMEOUT_S:g} s") from error
    except httpx.HTTPError as error:
        raise ValueError(f"{url}: {error}") from error
    return json.loads(bytes(data))
