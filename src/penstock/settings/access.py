"""Settings about who gets in, and the rules between them. The page for operators is docs/security.md."""

from __future__ import annotations

import ipaddress
import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import msgspec

from penstock.settings.described import says
from penstock.settings.secret import Secret

if TYPE_CHECKING:
    from penstock.settings.model import Settings

__all__ = ["AccessSettings", "access_problems", "is_loopback"]


_access = partial(says, "Access")
_oidc = partial(says, "JSON Web Tokens")
_tls = partial(says, "TLS")


class AccessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Part of ``Settings``."""

    authentication: Annotated[
        bool, _access("Every call has to prove who it is from, and to have the role that it needs.")
    ] = False
    insecure: Annotated[
        bool,
        _access("Without authentication: allow a `bind` that others can reach. Everybody there can do everything."),
    ] = False
    api_tokens: Annotated[
        tuple[str, ...],
        _access(
            "`name=roles=sha256:<hex>` each, as `penstock token new --offline` prints it; beside those in the database."
        ),
    ] = ()
    trusted_networks: Annotated[
        tuple[str, ...],
        _access(
            "`10.0.0.0/8=worker` each: what these addresses may do without a proof. For SDKs without a place for one."
        ),
    ] = ()
    token_max_calls_per_second: Annotated[
        float, _access("Calls of one token, JWT subject or certificate in each process; over it 429. 0: any.", 0, 1e9)
    ] = 0
    token_max_running_calls: Annotated[
        int,
        _access("Of these at once, parked polls and streams too, in each process; over it 429. 0: any.", 0, 1_000_000),
    ] = 0
    address_max_calls_per_second: Annotated[
        float, _access("Calls from one address in each process, health aside; over it 429. 0: any.", 0, 1e9)
    ] = 0
    address_max_connections: Annotated[
        int,
        _access(
            "Open connections from one address, on REST and on gRPC each; one more is closed. 0: any.", 0, 1_000_000
        ),
    ] = 0
    session_max_hours: Annotated[
        float, _access("How long somebody who signed in at the console stays signed in.", 0.01, 8_760)
    ] = 12
    tls_cert_path: Annotated[
        str | None,
        _tls("Certificate chain (PEM) of REST, metrics, and gRPC unless it has its own. With it they speak TLS only."),
    ] = None
    tls_key_path: Annotated[str | None, _tls("Private key of the certificate (PEM). Changed files are read again.")] = (
        None
    )
    tls_client_ca_path: Annotated[
        str | None, _tls("Authority (PEM) of clients' certificates, which they may show then.")
    ] = None
    tls_client_required: Annotated[bool, _tls("A client without such a certificate gets no connection.")] = False
    tls_client_roles: Annotated[
        tuple[str, ...],
        _tls(
            "What names in them may do, with authentication: `dns:w.example=worker` each; `uri:`, `email:`, `cn:`, `*`."
        ),
    ] = ()
    oidc_issuer: Annotated[
        str | None, _oidc("Issuer of JSON Web Tokens that are accepted, exactly as in their claim `iss`.")
    ] = None
    oidc_audience: Annotated[
        tuple[str, ...], _oidc("The claim `aud` has to name one of these; needed with `oidc_issuer`.")
    ] = ()
    oidc_jwks: Annotated[
        str | None,
        _oidc("URL or file of the issuer's keys (JWKS). Default: found through `/.well-known/openid-configuration`."),
    ] = None
    oidc_refresh_seconds: Annotated[
        float, _oidc("The issuer's keys are read again so often, and when a token names an unknown one.", 1, 86_400)
    ] = 300
    oidc_clock_skew_seconds: Annotated[
        float, _oidc("How far the clocks of issuer and engine may be apart.", 0, 600)
    ] = 30
    oidc_name_claim: Annotated[str, _oidc("The claim that names the caller, in the audit trail too.")] = "sub"
    oidc_roles_claim: Annotated[
        str, _oidc("The claim with the roles: a list, or words with blanks; with dots it goes into objects.")
    ] = "roles"
    oidc_roles: Annotated[
        tuple[str, ...],
        _oidc("What values of that claim mean: `packers=worker(pack|ship)` each. Default: the names of the roles."),
    ] = ()
    oidc_client_id: Annotated[
        str | None,
        _oidc(
            "People sign in to the console at the issuer as this client; redirect URI: …`/v1/sessions/oidc/callback`."
        ),
    ] = None
    oidc_client_secret: Annotated[
        Secret | None, _oidc("Secret of that client. Default: a public client, with PKCE as always.")
    ] = None
    oidc_scopes: Annotated[
        tuple[str, ...], _oidc("Scopes that are asked for at that sign-in; those with the claims of name and roles.")
    ] = ("openid", "profile")


_TLS_PAIRS: Final = (("tls_cert_path", "tls_key_path"), ("grpc_tls_cert_path", "grpc_tls_key_path"))
_HOST: Final = re.compile(r"[0-9A-Za-z._\-]+|\[[0-9A-Fa-f:.]+\]")
_ORIGIN: Final = re.compile(rf"[a-zA-Z][a-zA-Z0-9+.\-]*://(?:{_HOST.pattern})(?::[0-9]+)?")
_NEED_AUTHENTICATION: Final = ("api_tokens", "trusted_networks", "oidc_issuer", "tls_client_roles")


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"


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
        ("cors_origins", f"{origin!r} is no origin: scheme://host or scheme://host:port, nothing after it")
        for origin in settings.cors_origins
        if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin)
    ]
    wrong += [
        ("allowed_hosts", f"{host!r} is no name of a host; it has no port, and IPv6 addresses stand in []")
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
        return [(name, f"{source!r} is no URL")]
    if parts.scheme == "https" or (parts.scheme == "http" and host is not None and is_loopback(host)):
        return []
    return [(name, f"{source!r} is no https:// URL" + ("" if settings.oidc_jwks else "; else oidc_jwks is needed"))]
