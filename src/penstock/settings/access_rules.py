"""What is wrong between settings about who gets in: rules that one setting alone can't break."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from penstock.settings.access import is_loopback
from penstock.settings.model import Settings

_TLS_PAIRS: Final = (("tls_cert_path", "tls_key_path"), ("grpc_tls_cert_path", "grpc_tls_key_path"))
_HOST: Final = re.compile(r"[0-9A-Za-z._\-]+|\[[0-9A-Fa-f:.]+\]")
_ORIGIN: Final = re.compile(rf"[a-zA-Z][a-zA-Z0-9+.\-]*://(?:{_HOST.pattern})(?::[0-9]+)?")
_NEED_AUTHENTICATION: Final = ("api_tokens", "trusted_networks", "oidc_issuer", "tls_client_roles")


def access_problems(settings: Settings) -> list[tuple[str, str]]:
    """What is wrong between these settings: name and text each."""
    wrong: list[tuple[str, str]] = []
    if not (is_loopback(settings.bind_address) or settings.authentication or settings.insecure):
        cure = "needs authentication (WE_AUTHENTICATION), or WE_INSECURE=true to let everybody in"
        wrong.append(("bind", f"{settings.bind_address!r} can be reached by others: {cure}"))
    if settings.authentication and settings.insecure:
        wrong.append(("insecure", "is for engines without authentication"))
    wrong += [
        (name, "needs authentication: true (WE_AUTHENTICATION)")
        for name in _NEED_AUTHENTICATION
        if getattr(settings, name) and not settings.authentication
    ]
    if settings.oidc_issuer is None:
        names = "oidc_audience", "oidc_jwks", "oidc_client_id", "oidc_client_secret"
        wrong += [(name, "needs oidc_issuer") for name in names if getattr(settings, name)]
    elif not settings.oidc_audience:
        wrong.append(("oidc_audience", "oidc_issuer needs it: tokens for others would get in"))
    if settings.oidc_client_secret is not None and settings.oidc_client_id is None:
        wrong.append(("oidc_client_secret", "needs oidc_client_id"))
    if "openid" not in settings.oidc_scopes:
        wrong.append(("oidc_scopes", "openid has to be among them"))
    wrong += _key_source_problems(settings)
    wrong += _tls_problems(settings)
    wrong += [
        ("cors_origins", f"{origin!r} is not an origin: scheme://host or scheme://host:port, nothing after it")
        for origin in settings.cors_origins
        if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin)
    ]
    wrong += [
        ("allowed_hosts", f"{host!r} is not the name of a host; it has no port, and IPv6 addresses stand in []")
        for host in settings.allowed_hosts
        if not _HOST.fullmatch(host)
    ]
    return wrong


def _tls_problems(settings: Settings) -> list[tuple[str, str]]:
    wrong: list[tuple[str, str]] = []
    for pair in _TLS_PAIRS:
        given = [getattr(settings, name) is not None for name in pair]
        if given[0] != given[1]:
            wrong.append((pair[given.index(False)], f"{pair[0]} and {pair[1]} go together"))
    if settings.tls_client_ca_path is not None and settings.tls_cert_path is None:
        wrong.append(("tls_client_ca_path", "needs tls_cert_path: clients show certificates over TLS only"))
    if settings.tls_client_ca_path is None:
        wrong += [
            (name, "needs tls_client_ca_path")
            for name in ("tls_client_required", "tls_client_roles")
            if getattr(settings, name)
        ]
    return wrong


def _key_source_problems(settings: Settings) -> list[tuple[str, str]]:
    """Keys over plain HTTP could be anybody's."""
    name = "oidc_jwks" if settings.oidc_jwks else "oidc_issuer"
    source: str | None = getattr(settings, name)
    if source is None or (name == "oidc_jwks" and "://" not in source):
        return []
    try:
        parts = urlsplit(source)
        host = parts.hostname
    except ValueError:
        return [(name, f"{source!r} is not a URL")]
    if parts.scheme == "https" or (parts.scheme == "http" and host is not None and is_loopback(host)):
        return []
    return [(name, f"{source!r} is not an https:// URL" + ("" if settings.oidc_jwks else "; else oidc_jwks is needed"))]
