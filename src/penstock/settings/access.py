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
        float,
        _access("Calls from one address (IPv6: one /64) in each process, health aside; over it 429. 0: any.", 0, 1e9),
    ] = 0
    address_max_connections: Annotated[
        int,
        _access(
            "Open connections from one address (IPv6: one /64), on REST and on gRPC each; one more is closed. 0: any.",
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


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"
