"""An OpenID Connect issuer with one client, over real HTTP: discovery, keys, a page to sign in, and the token endpoint,
which looks at what it is given as the standard says."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import secrets
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

CLIENT, SECRET = "console", "it's a secret"


class Issuer:
    """``person`` signs in next; ``claims`` are put over those of the ID token."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.address = ""
        self.person: dict[str, Any] = {"sub": "u-1", "name": "anna", "roles": ["operator"]}
        self.claims: dict[str, Any] = {}
        self.secret: str | None = None
        self.exchanged = 0
        self._codes: dict[str, dict[str, str]] = {}

    @property
    def settings(self) -> dict[str, str]:
        """Of an engine that trusts it."""
        return {
            "oidc_issuer": self.address,
            "oidc_audience": "penstock",
            "oidc_client_id": CLIENT,
            "oidc_name_claim": "name",
        }

    def authorize(self, query: dict[str, str]) -> str:
        """The address that the browser is sent back to once the person has signed in."""
        assert query["response_type"] == "code"
        assert query["client_id"] == CLIENT
        assert query["code_challenge_method"] == "S256"
        assert "openid" in query["scope"].split()
        code = secrets.token_urlsafe(16)
        self._codes[code] = query
        more = urlencode({"code": code, "state": query["state"], "iss": self.address})
        return f"{query['redirect_uri']}?{more}"

    def exchange(self, form: dict[str, str], authorization: str | None) -> dict[str, str] | None:
        asked = self._codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        expected = None
        if self.secret is not None:
            quoted = urlencode({"": CLIENT})[1:] + ":" + urlencode({"": self.secret})[1:]
            expected = "Basic " + base64.b64encode(quoted.encode()).decode()
        if (
            asked is None
            or challenge != asked["code_challenge"]
            or form["redirect_uri"] != asked["redirect_uri"]
            or form["grant_type"] != "authorization_code"
            or authorization != expected
            or (self.secret is None and form.get("client_id") != CLIENT)
        ):
            return None
        self.exchanged += 1
        now = int(time.time())
        claims = {"iss": self.address, "aud": CLIENT, "iat": now, "exp": now + 60, "nonce": asked["nonce"]}
        token = jwt.encode(claims | self.person | self.claims, self.key, "RS256", headers={"kid": "k"})
        return {"id_token": token, "access_token": "opaque", "token_type": "Bearer"}

    def documents(self) -> dict[str, Any]:
        public = json.loads(RSAAlgorithm.to_jwk(self.key.public_key()))
        return {
            "/.well-known/openid-configuration": {
                "issuer": self.address,
                "jwks_uri": f"{self.address}/keys",
                "authorization_endpoint": f"{self.address}/authorize",
                "token_endpoint": f"{self.address}/token",
            },
            "/keys": {"keys": [{**public, "kid": "k", "use": "sig", "alg": "RS256"}]},
        }


@contextmanager
def serve_issuer() -> Generator[Issuer]:
    issuer = Issuer()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/authorize":
                back = issuer.authorize({name: values[0] for name, values in parse_qs(parts.query).items()})
                link = f"<a href='{back.replace('&', '&amp;')}'>Go on as anna</a>"
                page = f"<!doctype html><title>issuer</title><link rel=icon href='data:,'>{link}"
                self._answer(200, "text/html", page.encode())
                return
            found = issuer.documents().get(parts.path)
            self._answer(200 if found else 404, "application/json", json.dumps(found).encode())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            found = issuer.exchange(form, self.headers.get("authorization"))
            answer = found or {"error": "invalid_grant"}
            self._answer(400 if found is None else 200, "application/json", json.dumps(answer).encode())

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield issuer
        server.shutdown()
        thread.join()
