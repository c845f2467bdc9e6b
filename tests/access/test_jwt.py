"""JSON Web Tokens: which get in, which tricks don't, and keys that change."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from penstock.access import issuer as issuer_module
from penstock.access import jwt as jwt_module
from penstock.access.gate import Gate
from penstock.access.issuer import Issuer
from penstock.errors import BadRequest, Unauthenticated, Unavailable
from penstock.settings import Settings
from tests.access.people import TOKENS, lines

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SHORT = rsa.generate_private_key(public_exponent=65537, key_size=1024)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
ISSUER = "https://issuer.example/realm"


def jwk(key: Any, kid: str | None, **more: Any) -> dict[str, Any]:
    kinds = {rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm, ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm}  # pyright: ignore[reportAttributeAccessIssue] - untyped there
    algorithm = next((found for kind, found in kinds.items() if isinstance(key, kind)), jwt.algorithms.OKPAlgorithm)  # pyright: ignore[reportAttributeAccessIssue] - untyped there
    named = {} if kid is None else {"kid": kid}
    return {**json.loads(algorithm.to_jwk(key.public_key())), **named, **more}


KEYS = {"keys": [jwk(RSA, "r", use="sig", alg="RS256"), jwk(EC, "e"), jwk(ED, "d"), jwk(SHORT, "s")]}


def settings(path: Path, **more: Any) -> Settings:
    fixed: dict[str, Any] = {"oidc_issuer": ISSUER, "oidc_audience": ("penstock", "spare"), "oidc_jwks": str(path)}
    return Settings(authentication=True, api_tokens=lines(), **{**fixed, **more})


@pytest.fixture
def jwks(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps(KEYS))
    return path


async def ready(path: Path, **more: Any) -> Gate:
    gate = Gate(settings(path, **more))
    assert gate.issuer is not None
    await gate.issuer._poll()
    return gate


def claims(**changes: Any) -> dict[str, Any]:
    now = time.time()
    fixed = {"iss": ISSUER, "aud": "penstock", "sub": "u1", "exp": now + 60, "iat": now, "roles": ["viewer"]}
    found = {**fixed, **changes}
    return {name: value() if callable(value) else value for name, value in found.items() if value is not None}


def later(seconds: float) -> Any:
    """A time, when it is asked for."""
    return lambda: time.time() + seconds


def token(
    key: Any = RSA, kid: str | None = "r", alg: str = "RS256", head: dict[str, Any] | None = None, **changes: Any
) -> str:
    headers = {**({} if kid is None else {"kid": kid}), **(head or {})}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of keys too short
        return jwt.encode(claims(**changes), key, alg, headers=headers)


async def who(gate: Gate, text: str) -> Any:
    return await gate.identify([b"Bearer " + text.encode()], "127.0.0.1")


@pytest.mark.parametrize(
    ("key", "kid", "alg"), [(RSA, "r", "RS256"), (EC, "e", "ES256"), (ED, "d", "EdDSA")], ids=["rsa", "ec", "ed"]
)
async def test_a_token_of_the_issuer_gets_in(jwks: Path, key: Any, kid: str, alg: str) -> None:
    gate = await ready(jwks)
    text = token(key, kid, alg)
    for _ in range(2):  # verified, then known
        identity = await who(gate, text)
        assert (identity.name, identity.permissions) == ("oidc:u1", {"view", "answers"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"iss": "https://other.example"}, "another issuer"),
        ({"iss": ISSUER + "/"}, "another issuer"),
        ({"iss": None}, "lacks one of the claims"),
        ({"aud": "somebody"}, "another audience"),
        ({"aud": []}, "lacks one of the claims"),
        ({"aud": None}, "lacks one of the claims"),
        ({"exp": None}, "lacks one of the claims"),
        ({"exp": later(-60)}, "it has expired"),
        ({"exp": "never"}, "it can't be read"),
        ({"nbf": later(600)}, "not valid yet"),
        ({"iat": later(600)}, "not valid yet"),
        ({"sub": None}, "does not hold a name"),
        ({"sub": ""}, "does not hold a name"),
        ({"sub": "a\nb"}, "does not hold a name"),
    ],
)
async def test_a_claim_that_is_wrong_is_reported(jwks: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(Unauthenticated, match=said):
        await who(await ready(jwks), token(**changes))


@pytest.mark.parametrize("changes", [{"aud": ["a", "spare"]}, {"exp": later(-20)}, {"nbf": later(20)}])
async def test_one_of_several_audiences_and_slightly_wrong_clocks_are_accepted(jwks: Path, changes: Any) -> None:
    assert (await who(await ready(jwks), token(**changes))).name == "oidc:u1"


async def test_a_token_known_before_ends_with_its_time(jwks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = await ready(jwks)
    text = token()
    await who(gate, text)
    monkeypatch.setattr(jwt_module, "time", SimpleNamespace(time=later(91)))
    with pytest.raises(Unauthenticated, match="the token has expired"):
        await who(gate, text)


def unsigned(head: dict[str, Any], payload: dict[str, Any], signature: bytes = b"") -> str:
    parts = (json.dumps(head).encode(), json.dumps(payload).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def signed_with_the_public_key(alg: str, kid: str) -> str:
    """The classic: the verifier takes the RSA key's PEM for an HMAC secret."""
    pem = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    text = unsigned({"alg": alg, "kid": kid, "typ": "JWT"}, claims()).rsplit(".", 1)[0]
    signature = hmac.new(pem, text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def tricks() -> dict[str, str]:
    good = token()
    head, payload, signature = good.split(".")
    return {
        "none": unsigned({"alg": "none", "kid": "r"}, claims()),
        "None": unsigned({"alg": "None", "kid": "r"}, claims()),
        "none without a key": unsigned({"alg": "none"}, claims()),
        "none with a signature": f"{unsigned({'alg': 'none', 'kid': 'r'}, claims())}{signature}",
        "no alg": unsigned({"kid": "r"}, claims()),
        "HS256 with the public key": signed_with_the_public_key("HS256", "r"),
        "RS256 header over an HMAC": signed_with_the_public_key("RS256", "r"),
        "another RSA algorithm than the key's": token(alg="RS512"),
        "another key": token(OTHER),
        "another key's id": token(kid="e"),
        "no kid among several": token(kid=None),
        "a key too short": token(SHORT, "s"),
        "kid traversal": token(kid="../../../../dev/null"),
        "kid SQL": token(kid="r' OR '1'='1"),
        "kid no text": unsigned({"alg": "RS256", "kid": ["r"]}, claims(), b"x"),
        "its own key": token(OTHER, "o", head={"jwk": jwk(OTHER, "o")}),
        "its own key's address": token(
            OTHER, "o", head={"jku": "http://127.0.0.1:1/jwks", "x5u": "http://127.0.0.1:1/"}
        ),
        "crit": token(head={"crit": ["b64"], "b64": False}),
        "no signature": f"{head}.{payload}.",
        "signature cut": f"{head}.{payload}.{signature[:-4]}",
        "payload changed": f"{head}.{unsigned({}, claims(roles=['admin'])).split('.')[1]}.{signature}",
        "four parts": good + ".x",
        "long": f"{head}.{'A' * 20_000}.{signature}",
        "deep": unsigned({"alg": "RS256", "kid": "r"}, {"a": json.loads("[" * 900 + "]" * 900)}, b"x"),
        "no JSON": "YQ.YQ.YQ",
        "empty": "..",
    }


@pytest.mark.parametrize("trick", sorted(tricks()))
async def test_no_trick_gets_in(jwks: Path, trick: str) -> None:
    with pytest.raises(Unauthenticated):
        await who(await ready(jwks), tricks()[trick])


async def test_an_api_token_gets_in_beside_the_issuers(jwks: Path) -> None:
    assert (await who(await ready(jwks), TOKENS["clerk"].text)).name == "token:clerk"


@pytest.mark.parametrize(
    ("roles", "changes", "permissions", "job_types"),
    [
        ((), {"roles": "viewer worker"}, {"view", "answers", "work", "stream"}, None),
        ((), {"roles": ["other", 7, None]}, set(), None),
        ((), {"roles": {"viewer": True}}, set(), None),
        ((), {"roles": None}, set(), None),
        (
            ("packers=worker(pack)", "leads=viewer+worker(lead)"),
            {"roles": ["packers", "leads"]},
            {"view", "answers", "work", "stream"},
            {"pack", "lead"},
        ),
        (("packers=worker(pack)",), {"roles": ["admin"]}, set(), None),
    ],
)
async def test_what_the_roles_of_a_token_mean(
    jwks: Path, roles: Any, changes: Any, permissions: Any, job_types: Any
) -> None:
    identity = await who(await ready(jwks, oidc_roles=roles), token(**changes))
    assert (identity.permissions, identity.job_types) == (permissions, job_types)


async def test_roles_and_name_may_stand_in_other_claims(jwks: Path) -> None:
    gate = await ready(jwks, oidc_roles_claim="realm_access.roles", oidc_name_claim="email")
    identity = await who(gate, token(realm_access={"roles": ["clerk"]}, email="kim@a.example"))
    assert (identity.name, identity.permissions) == ("oidc:kim@a.example", {"view", "answers", "tasks"})


# -- keys that change


async def test_a_key_counts_once_named_and_the_old_one_ends(jwks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer_module, "POLL_INTERVAL_S", 0.0)
    gate = await ready(jwks)
    old = token()
    await who(gate, old)
    jwks.write_text(json.dumps({"keys": [jwk(OTHER, "r2")]}))
    assert (await who(gate, token(OTHER, "r2"))).name == "oidc:u1"
    with pytest.raises(Unauthenticated):  # it was known, and is looked at anew
        await who(gate, old)


async def test_made_up_keys_do_not_make_the_engine_ask_often(jwks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = await ready(jwks)
    assert gate.issuer is not None
    asked = 0

    async def read() -> object:
        nonlocal asked
        asked += 1
        return KEYS

    monkeypatch.setattr(gate.issuer, "_read", read)
    for number in range(20):
        with pytest.raises(Unauthenticated):
            await who(gate, token(kid=f"k{number}"))
    assert asked == 0  # it was asked just before


async def test_an_issuer_that_is_away_leaves_its_keys_valid(jwks: Path) -> None:
    gate = await ready(jwks)
    assert gate.issuer is not None
    for broken in (
        "{",
        "[]",
        '{"keys": []}',
        '{"keys": [{"kty": "oct", "k": "AAAA", "kid": "r"}]}',
        '{"keys": [7]}',
        "[" * 100_000,
    ):
        jwks.write_text(broken)
        await gate.issuer._poll()
        assert (await who(gate, token())).name == "oidc:u1"


async def test_no_token_is_called_wrong_before_keys_were_read(tmp_path: Path) -> None:
    gate = Gate(settings(tmp_path / "nowhere.json"))
    with pytest.raises(Unavailable, match="keys could not be read yet"):
        await who(gate, token())


async def test_keys_come_from_the_url_in_the_issuers_document() -> None:
    import http.server
    import threading

    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            address = f"http://127.0.0.1:{self.server.server_address[1]}"  # pyright: ignore[reportIndexIssue] - host and port
            documents = {
                "/realm/.well-known/openid-configuration": {
                    "issuer": f"{address}/realm",
                    "jwks_uri": f"{address}/keys",
                },
                "/other/.well-known/openid-configuration": {
                    "issuer": f"{address}/realm",
                    "jwks_uri": f"{address}/keys",
                },
                "/keys": KEYS,
            }
            found = documents.get(self.path)
            self.send_response(200 if found else 302)
            if not found:
                self.send_header("location", "/keys")
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - silent
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        found = Issuer(settings(Path(), oidc_issuer=f"{address}/realm", oidc_jwks=None))
        await found._poll()
        assert (await found.verify(token(iss=f"{address}/realm").encode())).name == "oidc:u1"
        for source in ({"oidc_issuer": f"{address}/other", "oidc_jwks": None}, {"oidc_jwks": f"{address}/elsewhere"}):
            another = Issuer(settings(Path(), **source))
            await another._poll()
            assert not len(another.keys)
        server.shutdown()
    assert asked.count("/keys") == 1  # redirects are not followed


@pytest.mark.parametrize("roles", [("packers",), ("packers=boss",)])
def test_roles_that_can_t_be_read_end_the_start(jwks: Path, roles: Any) -> None:
    with pytest.raises(BadRequest, match="oidc_roles: "):
        Gate(settings(jwks, oidc_roles=roles))


@pytest.mark.parametrize("exp", [10**400, -(10**400), 10**18, "1e400", "nan", [], {}, True, 1e308])
async def test_an_exp_that_is_no_time_is_a_refusal(jwks: Path, exp: object) -> None:
    gate = await ready(jwks)
    with pytest.raises(Unauthenticated):
        await gate.identify([f"Bearer {token(exp=exp)}".encode()], None)
