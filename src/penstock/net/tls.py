"""TLS for listeners: a certificate from files, read again when they change, and who a client's certificate names.

Both servers stand on it. New connections get the newest certificate; those that are open keep theirs. Files
that can't be used end the start, later they only leave the certificate that there is.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Any, cast

import trio

from penstock.log.log import get_logger
from penstock.loop.poller import PlainStream, has_input
from penstock.net.accept import Guest

POLL_INTERVAL_S = 5.0
"""Between two looks at the files; renewed certificates overlap by days."""

log = get_logger("penstock.tls")
_PREFIXES = {"DNS": "dns", "URI": "uri", "email": "email"}


class CertificateError(Exception):
    """Files that no TLS can be made of; the text names them and the cause."""


class Tls:
    """The TLS of one listener."""

    def __init__(
        self,
        certificate: str,
        key: str,
        *,
        protocols: list[str],
        client_ca: str | None = None,
        client_required: bool = False,
    ) -> None:
        """PEM files; ``protocols`` for ALPN. With ``client_ca`` clients may show a certificate of that authority.
        Raises CertificateError."""
        self._files = [certificate, key, *([client_ca] if client_ca else [])]
        self._protocols = protocols
        self._client_required = client_required
        self._marks = self._read_marks()
        self.context = self._make()

    def refresh(self) -> bool:
        """Take changed files; whether there were some that can be used."""
        marks = self._read_marks()
        if marks == self._marks:
            return False
        try:
            self.context = self._make()
        except CertificateError as error:
            log.warning("the certificate could not be reloaded", error=str(error))
            return False
        self._marks = marks
        log.info("the certificate was reloaded", file=self._files[0])
        return True

    def _read_marks(self) -> list[tuple[int, int, int] | None]:
        marks: list[tuple[int, int, int] | None] = []
        for file in self._files:
            try:
                found = os.stat(file)
            except OSError:
                marks.append(None)
            else:
                marks.append((found.st_mtime_ns, found.st_ino, found.st_size))
        return marks

    def _make(self) -> ssl.SSLContext:
        certificate, key, *authorities = self._files
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # it costs us more than the client
        context.set_alpn_protocols(self._protocols)
        try:
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:  # which of the two it means does not always stand in it
            raise CertificateError(f"certificate {certificate}, key {key}: {error}") from error
        for authority in authorities:
            try:
                context.load_verify_locations(authority)
            except (OSError, ssl.SSLError) as error:
                raise CertificateError(f"authority of clients {authority}: {error}") from error
            context.verify_mode = ssl.CERT_REQUIRED if self._client_required else ssl.CERT_OPTIONAL
        return context


def names_of(stream: object) -> tuple[str, ...]:
    """Whom the client's certificate names, such as ``dns:w.example``; nothing without one. Its common name counts only
    when it has no other names (RFC 6125)."""
    if not isinstance(stream, trio.SSLStream):
        return ()
    stream = cast("trio.SSLStream[trio.abc.Stream]", stream)
    try:
        found = cast("dict[str, Any] | None", stream.getpeercert())
    except trio.NeedHandshakeError:
        return ()
    return names_in(found or {})


def names_in(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names in a certificate, as Python shows it. An address is no name for us, but one beside which no
    common name counts."""
    others = found.get("subjectAltName", ())
    names = [f"{_PREFIXES[kind]}:{value}" for kind, value in others if kind in _PREFIXES]
    if not others:
        names = [f"cn:{value}" for part in found.get("subject", ()) for kind, value in part if kind == "commonName"]
    return tuple(names)


class TlsStream(trio.abc.HalfCloseableStream):
    """A server's side of TLS that can say that it sends no more, as a socket can."""

    def __init__(self, stream: trio.SSLStream[PlainStream]) -> None:
        self._stream = stream
        self.socket = stream.transport_stream.socket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        await self._stream.transport_stream.send_eof()

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)


def ends_waiting(stream: PlainStream, waiting: trio.CancelScope) -> bool:
    """Cancel the wait for a client, unless it has sent something that was not dealt with."""
    if has_input(stream.socket):
        return False
    waiting.cancel()
    return True


async def accept_tls(
    stream: PlainStream, tls: Tls, timeout_s: float, guest: Guest
) -> trio.SSLStream[PlainStream] | None:
    """Return the handshake; None when the client does not finish it in time, or at all. The stream is closed then."""
    secured: trio.SSLStream[PlainStream] = trio.SSLStream(stream, tls.context, server_side=True, https_compatible=True)
    try:
        with trio.move_on_after(timeout_s) as patience:
            guest.end = lambda: ends_waiting(stream, patience)
            await secured.do_handshake()
            return secured
    except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
        log.debug("TLS handshake failed", exc_info=True)
    await trio.aclose_forcefully(stream)
    return None
