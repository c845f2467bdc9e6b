"""Settings about who gets in; `access_rules.py` has the rules between them. Page for operators: docs/security.md."""

from __future__ import annotations

import ipaddress
from functools import partial
from typing import Annotated

import msgspec

from penstock.settings.described import says
from penstock.settings.secret import Secret

__all__ = ["AccessSettings", "is_loopback"]

_access = partial(says, "Access")
_oidc = partial(says, "JSON Web Tokens")
_tls = partial(says, "TLS")


class AccessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Part of ``Settings``."""

    authentication: Annotated[
        bool, _access("Every call must prove who makes it, and its caller must have the role that the call needs.")
    ] = False
    insecure: Annotated[
        bool,
        _access(
            "Allow a `bind` that others can reach without authentication. Everybody who reaches it can do everything."
        ),
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
            "`10.0.0.0/8=worker` each: the roles of callers from these addresses that send no token. For SDKs "
            "that can't send one."
        ),
    ] = ()
    token_max_calls_per_second: Annotated[
        float,
        _access(
            "Calls per second of one token, JWT subject or certificate in each process; more get 429. 0: no limit.",
            0,
            1e9,
        ),
    ] = 0
    token_max_running_calls: Annotated[
        int,
        _access(
            "Calls of one token, JWT subject or certificate that run at once in each process, with waiting "
            "polls and streams; more get 429. 0: no limit.",
            0,
            1_000_000,
        ),
    ] = 0
    address_max_calls_per_second: Annotated[
        float,
        _access(
            "Calls per second from one address (IPv6: one /64) in each process, without those for health; "
            "more get 429. 0: no limit.",
            0,
            1e9,
        ),
    ] = 0
    address_max_connections: Annotated[
        int,
        _access(
            "Open connections from one address (IPv6: one /64), for REST and for gRPC each; further ones are "
            "closed. 0: no limit.",
            0,
            1_000_000,
        ),
    ] = 0
    address_max_unproved_connections: Annotated[
        int,
        _access(
            "Of these, on each port, those that have asked for nothing (with authentication: not proved who they are); "
            "at the limit the oldest of them makes room.",
            1,
            1_000_000,
        ),
    ] = 1_000
    session_max_hours: Annotated[
        float, _access("How long somebody who signed in at the console stays signed in.", 0.01, 8_760)
    ] = 12
    tls_cert_path: Annotated[
        str | None,
        _tls(
            "Certificate chain (PEM) of REST and metrics, and of gRPC unless it has its own. With it these "
            "ports speak TLS only."
        ),
    ] = None
    tls_key_path: Annotated[
        str | None, _tls("Private key of the certificate (PEM). The engine reads both files again when they change.")
    ] = None
    tls_client_ca_path: Annotated[
        str | None, _tls("Certificate authority (PEM) of clients. With it clients may show a certificate.")
    ] = None
    tls_client_required: Annotated[bool, _tls("Close the connections of clients that show no such certificate.")] = (
        False
    )
    tls_client_roles: Annotated[
        tuple[str, ...],
        _tls(
            "Roles by names in clients' certificates, with authentication: `dns:w.example=worker` each; "
            "`uri:`, `email:`, `cn:`, `*`."
        ),
    ] = ()
    oidc_issuer: Annotated[
        str | None, _oidc("Issuer of JSON Web Tokens that are accepted, exactly as in their claim `iss`.")
    ] = None
    oidc_audience: Annotated[
        tuple[str, ...], _oidc("Audiences: the claim `aud` must name one of them. Required with `oidc_issuer`.")
    ] = ()
    oidc_jwks: Annotated[
        str | None,
        _oidc("URL or file of the issuer's keys (JWKS). Default: found through `/.well-known/openid-configuration`."),
    ] = None
    oidc_refresh_seconds: Annotated[
        float,
        _oidc(
            "Interval at which the engine reads the issuer's keys again. It also does when a token names an "
            "unknown key.",
            1,
            86_400,
        ),
    ] = 300
    oidc_clock_skew_seconds: Annotated[
        float, _oidc("Allowed difference between the clocks of issuer and engine.", 0, 600)
    ] = 30
    oidc_name_claim: Annotated[str, _oidc("Claim with the caller's name, which the audit trail shows, too.")] = "sub"
    oidc_roles_claim: Annotated[
        str,
        _oidc(
            "Claim with the roles: a list, or words separated by blanks. A name with dots is a path through objects."
        ),
    ] = "roles"
    oidc_roles: Annotated[
        tuple[str, ...],
        _oidc(
            "Roles by values of that claim: `packers=worker(pack|ship)` each. Default: the values are names of roles."
        ),
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


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"
