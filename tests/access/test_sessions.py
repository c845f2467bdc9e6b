"""Signing in at the console: by token and at an issuer, over real HTTP, with several engines on one database."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import psycopg
import pytest

from penstock.access import sessions
from penstock.testing.definitions import definition, end, step
from tests import postgres
from tests.access.issuer_server import SECRET, Issuer, serve_issuer
from tests.access.people import TOKENS, lines
from tests.runtime.engine_process import EngineProcess
from tests.runtime.waiting import wait_until

PAGE = {"X-Penstock-Console": "1"}
DELAY = definition(step("ask", "WAIT", nextStep="end"), end(), definition_id="d")


_hosts = count(1)


@dataclass
class Answer:
    status: int
    body: Any
    cookies: list[str]
    location: str | None = None


@dataclass
class Browser:
    """Keeps cookies, and sends them with its page's origin."""

    engine: EngineProcess
    cookies: dict[str, str] = field(default_factory=dict)
    origin: str | None = None
    host: str = "127.0.0.1"
    """Where it calls from."""

    def ask(self, method: str, path: str, body: object = None, **headers: str | None) -> Answer:
        sent: dict[str, str | None] = {"Origin": self.origin or f"http://127.0.0.1:{self.engine.port}", **PAGE}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.engine.port, timeout=60, source_address=(self.host, 0)
        )
        try:
            given: dict[str, Any] = {name: value for name, value in sent.items() if value is not None}
            connection.request(method, path, None if body is None else json.dumps(body), given)
            response = connection.getresponse()
            text = response.read()
            set_cookies = response.headers.get_all("set-cookie") or []
            for each in set_cookies:
                name, _, rest = each.partition("=")
                value = rest.partition(";")[0]
                self.cookies.pop(name, None)
                if value:
                    self.cookies[name] = value
            found = json.loads(text) if text else None
            return Answer(response.status, found, set_cookies, response.headers.get("location"))
        finally:
            connection.close()

    def sign_in(self, role: str) -> Answer:
        return self.ask("POST", "/v1/sessions", {"token": TOKENS[role].text})


@pytest.fixture(scope="module")
def dsn(postgres_server: postgres.PostgresServer) -> Generator[str]:
    with postgres_server.database(postgres.apply_schema) as found:
        yield found


@pytest.fixture(scope="module")
def issuer() -> Generator[Issuer]:
    with serve_issuer() as found:
        yield found


@pytest.fixture(scope="module")
def engines(dsn: str, issuer: Issuer) -> Generator[tuple[EngineProcess, EngineProcess]]:
    issuer.secret = SECRET
    given: dict[str, Any] = {
        "authentication": True,
        "api_tokens": ",".join(lines()),
        "oidc_client_secret": SECRET,
        **issuer.settings,
    }
    with EngineProcess(dsn, **given) as one, EngineProcess(dsn, **given) as two:
        yield one.wait_ready(), two.wait_ready()


@pytest.fixture
def browser(engines: tuple[EngineProcess, EngineProcess]) -> Browser:
    """On a host of its own: the sign-ins of one are bounded per second, and all tests come from this machine."""
    return Browser(engines[0], host=f"127.0.1.{next(_hosts)}")


def test_made_up_cookies_of_one_host_shut_nobody_out(engines: tuple[EngineProcess, EngineProcess]) -> None:
    one, two = engines
    person = Browser(one)
    assert person.sign_in("viewer").status == 201
    stranger = http.client.HTTPConnection("127.0.0.1", two.port, timeout=60, source_address=("127.0.0.2", 0))
    for number in range(4 * int(sessions.UNKNOWN_MAX_PER_HOST_PER_S)):
        stranger.request("GET", "/v1/me", headers={"Cookie": f"penstock=pss_{number:043}"})
        answer = stranger.getresponse()
        answer.read()
        assert answer.status in (401, 429)
    stranger.close()
    person.engine = two
    assert person.ask("GET", "/v1/me").status == 200


def test_a_token_becomes_a_cookie_hidden_from_scripts(browser: Browser) -> None:
    answer = browser.sign_in("operator")
    assert answer.status == 201
    assert (answer.body["name"], answer.body["can"]) == ("token:operator", ["view", "operate", "tasks"])
    (cookie,) = answer.cookies
    attributes = {part.strip() for part in cookie.split(";")[1:]}
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= attributes
    assert "Secure" not in attributes
    assert TOKENS["operator"].text not in cookie
    me = browser.ask("GET", "/v1/me").body
    assert (me["name"], "sessionEndsAt" in me) == ("token:operator", True)


def test_behind_tls_the_cookie_is_secure(browser: Browser) -> None:
    browser.origin = f"https://127.0.0.1:{browser.engine.port}"
    (cookie,) = browser.sign_in("viewer").cookies
    assert cookie.startswith("__Host-penstock=")
    assert "; Secure" in cookie
    assert browser.ask("GET", "/v1/me").body["name"] == "token:viewer"


def test_every_engine_takes_a_session_until_it_ends(
    browser: Browser, engines: tuple[EngineProcess, EngineProcess]
) -> None:
    browser.sign_in("viewer")
    other = Browser(engines[1], dict(browser.cookies))
    assert other.ask("GET", "/v1/me").status == 200
    kept = dict(browser.cookies)
    assert browser.ask("POST", "/v1/sessions/end").status == 204
    assert not browser.cookies
    browser.cookies = kept
    assert browser.ask("GET", "/v1/me").status == 401
    wait_until(lambda: other.ask("GET", "/v1/me").status == 401, timeout_s=120)


def test_the_database_keeps_hashes_only(browser: Browser, dsn: str) -> None:
    browser.sign_in("clerk")
    (cookie,) = browser.cookies.values()
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT s::text FROM session s").fetchall()
        audit = connection.execute("SELECT kind, actor FROM audit WHERE kind = 'SIGNED_IN'").fetchall()
    assert rows
    assert all(cookie not in row and TOKENS["clerk"].text not in row for (row,) in rows)
    assert ("SIGNED_IN", "token:clerk") in audit


def test_the_audit_trail_names_who_signed_in(browser: Browser) -> None:
    browser.sign_in("admin")
    assert browser.ask("POST", "/v1/definitions", DELAY).status == 201
    browser.sign_in("operator")
    started = browser.ask("POST", "/v1/instances", {"definitionId": "d"})
    assert started.status == 201
    path = f"/v1/instances/{started.body['id']}"
    assert browser.ask("POST", f"{path}/cancel", {"reason": "enough"}).status == 200
    records = browser.ask("GET", f"{path}/audit").body["items"]
    assert {record["actor"] for record in records if "actor" in record} == {"token:operator"}
    assert sum("actor" in record for record in records) >= 2  # the start and the cancel


@pytest.mark.parametrize(
    "changed",
    [
        {"Origin": None},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"X_Penstock_Console": None},
        {"Origin": None, "Sec_Fetch_Site": "cross-site"},
    ],
)
def test_a_foreign_page_changes_nothing(browser: Browser, changed: dict[str, str | None]) -> None:
    browser.sign_in("operator")
    answer = browser.ask("POST", "/v1/instances", {"definitionId": "d"}, **changed)
    assert answer.status in (401, 403)
    signed_in = browser.ask("POST", "/v1/sessions", {"token": TOKENS["viewer"].text}, **changed)
    if changed != {"Origin": None}:  # what is no browser has no page
        assert signed_in.status in (400, 403)
    ended = browser.ask("POST", "/v1/sessions/end", **{**changed, "X_Penstock_Console": None})
    assert (ended.status, ended.cookies) == (400, [])


def test_a_foreign_page_reads_nothing(browser: Browser) -> None:
    browser.sign_in("operator")
    assert browser.ask("GET", "/v1/instances", Origin="http://evil.example").status == 401
    assert browser.ask("GET", "/v1/instances", Origin=None, Sec_Fetch_Site="cross-site").status == 401
    assert browser.ask("GET", "/v1/instances", Origin=None).status == 200


@pytest.mark.parametrize("cookie", ["", "pss_", "pss_" + "x" * 43, "pst_" + "x" * 60, "p;ss", "x" * 4000])
def test_a_cookie_that_is_no_session_is_refused(browser: Browser, cookie: str) -> None:
    assert browser.ask("GET", "/v1/me", Cookie=f"penstock={cookie}").status == 401


def test_a_wrong_token_opens_nothing(browser: Browser) -> None:
    for token, status in (("", 400), ("wrong", 401), (TOKENS["viewer"].text + "x", 401)):
        answer = browser.ask("POST", "/v1/sessions", {"token": token})
        assert (answer.status, answer.cookies) == (status, [])


def test_a_session_ends_with_the_token_that_opened_it(browser: Browser, dsn: str) -> None:
    """The token's row is what `penstock token revoke` changes; engines look each second."""
    from penstock.access.roles import read_grant
    from penstock.runtime import api_tokens
    from penstock.settings import Secret, Settings

    settings = Settings(postgres_dsn=Secret(dsn))
    made = api_tokens.new(settings, "eve", read_grant("viewer"), None)
    wait_until(lambda: browser.ask("POST", "/v1/sessions", {"token": made.text}).status == 201, timeout_s=120)
    assert browser.ask("GET", "/v1/me").body["name"] == "token:eve"
    api_tokens.revoke(settings, made.id)
    wait_until(lambda: browser.ask("GET", "/v1/me").status == 401, timeout_s=120)


def test_the_oldest_of_twenty_sessions_ends_for_another(browser: Browser, dsn: str) -> None:
    browser.sign_in("worker")
    first = dict(browser.cookies)
    for _ in range(sessions.SESSIONS_MAX_COUNT_OF_ONE):
        browser.sign_in("worker")
    with psycopg.connect(dsn) as connection:
        (found,) = connection.execute("SELECT count(*) FROM session WHERE name = 'token:worker'").fetchone() or (0,)
    assert found == sessions.SESSIONS_MAX_COUNT_OF_ONE
    assert Browser(browser.engine, first).ask("GET", "/v1/me").status == 401
    assert browser.ask("GET", "/v1/me").status == 200


def test_an_expired_session_is_refused_and_swept(browser: Browser, dsn: str) -> None:
    browser.sign_in("viewer")
    (cookie,) = browser.cookies.values()
    with psycopg.connect(dsn, autocommit=True) as connection:
        digest = sessions.digest_of(cookie.encode())
        connection.execute("UPDATE session SET expires_at = now() - interval '1 s' WHERE digest = %s", (digest,))
        assert browser.ask("GET", "/v1/me").status == 401
        browser.sign_in("viewer")
        left = connection.execute("SELECT FROM session WHERE digest = %s", (digest,)).fetchall()
    assert left == []


# -- at the issuer


def begin(browser: Browser, place: str = "/console/instances?status=FAILED") -> str:
    """The issuer's address for this sign-in."""
    answer = browser.ask("POST", "/v1/sessions/oidc", {"place": place})
    assert answer.status == 200, answer
    (cookie,) = answer.cookies
    assert "HttpOnly" in cookie
    assert "Path=/v1/sessions/oidc/callback" in cookie
    return str(answer.body["url"])


def come_back(browser: Browser, url: str) -> Answer:
    with urlopen(url, timeout=30) as page:
        back = page.read().decode().partition("<a href='")[2].partition("'")[0].replace("&amp;", "&")
    parts = urlsplit(back)
    return browser.ask("GET", f"{parts.path}?{parts.query}", Origin=None, Sec_Fetch_Site="cross-site")


def test_the_issuer_sends_people_back_to_their_page(browser: Browser, issuer: Issuer) -> None:
    assert browser.ask("GET", "/v1/sessions/ways").body == {"token": True, "oidc": issuer.address}
    answer = come_back(browser, begin(browser))
    assert (answer.status, answer.location) == (303, "/console/instances?status=FAILED")
    me = browser.ask("GET", "/v1/me").body
    assert (me["name"], me["can"]) == ("oidc:anna", ["view", "operate", "tasks"])
    # The ID token lasts a minute, the session for hours.
    ends_at = time.mktime(time.strptime(me["sessionEndsAt"][:19], "%Y-%m-%dT%H:%M:%S"))
    assert ends_at - time.mktime(time.gmtime()) > 11 * 3600


def test_an_operator_whose_session_an_older_engine_opened_calls_updates(
    browser: Browser, engines: tuple[EngineProcess, EngineProcess], dsn: str
) -> None:
    come_back(browser, begin(browser))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE session SET permissions = '{view,tasks,operate}' WHERE name = 'oidc:anna'")
    other = Browser(engines[1], dict(browser.cookies))
    answer = other.ask("POST", "/v1/instances/1/updates", {"name": "set_limit"})
    assert (answer.status, answer.body["error"]) == (404, "not-found"), answer
    assert other.ask("GET", "/v1/instances/1/view").status == 404


def refused(answer: Answer, word: str = "refused") -> None:
    assert (answer.status, answer.location) == (303, f"/console/?signIn={word}")
    assert not any(cookie.startswith(("penstock=", "__Host-penstock=")) for cookie in answer.cookies)


def test_a_code_counts_in_its_browser_only(browser: Browser, engines: tuple[EngineProcess, EngineProcess]) -> None:
    url = begin(browser)
    refused(come_back(Browser(engines[0]), url))
    refused(come_back(browser, begin(Browser(engines[0]))))  # another sign-in's state


def test_a_code_counts_once(browser: Browser, issuer: Issuer) -> None:
    url = begin(browser)
    kept = dict(browser.cookies)
    back = issuer.authorize({name: values[0] for name, values in parse_qs(urlsplit(url).query).items()})
    path = f"{urlsplit(back).path}?{urlsplit(back).query}"
    assert browser.ask("GET", path, Origin=None).location == "/console/instances?status=FAILED"
    refused(Browser(browser.engine, kept).ask("GET", path, Origin=None), "away")


@pytest.mark.parametrize(
    "claims",
    [{"nonce": "another"}, {"nonce": None}, {"aud": "penstock"}, {"iss": "http://other"}, {"exp": 1}, {"name": ""}],
)
def test_an_id_token_of_another_sign_in_is_refused(browser: Browser, issuer: Issuer, claims: dict[str, Any]) -> None:
    issuer.claims = claims
    try:
        refused(come_back(browser, begin(browser)))
    finally:
        issuer.claims = {}


def test_a_refusal_leads_back_to_the_console(browser: Browser) -> None:
    path = "/v1/sessions/oidc/callback"
    begin(browser)
    refused(browser.ask("GET", f"{path}?error=access_denied&state=x", Origin=None))
    for cookie in ("", "x", "e30", base64.urlsafe_b64encode(b'{"state":1}').decode()):
        refused(browser.ask("GET", f"{path}?code=x&state=", Origin=None, Cookie=f"penstock_sign_in={cookie}"))


@pytest.mark.parametrize(
    "place", ["//evil.example", "https://evil.example/console/", "/v1/me", "/console/\\evil", "/console/\r\nx: y"]
)
def test_nobody_is_sent_elsewhere_after_signing_in(browser: Browser, place: str) -> None:
    answer = browser.ask("POST", "/v1/sessions/oidc", {"place": place})
    assert answer.status == 400
    assert answer.body["reason"].startswith("place: ")


def test_an_id_token_is_no_token_for_calls(browser: Browser, issuer: Issuer) -> None:
    url = begin(browser)
    query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    kept = json.loads(base64.urlsafe_b64decode(browser.cookies["penstock_sign_in"] + "==="))
    code = parse_qs(urlsplit(issuer.authorize(query)).query)["code"][0]
    form = {
        "grant_type": "authorization_code", "code": code, "redirect_uri": kept["redirect_uri"],
        "code_verifier": kept["verifier"],
    }  # fmt: skip
    secret = base64.b64encode(b"console:it%27s+a+secret").decode()
    found = issuer.exchange(form, f"Basic {secret}")
    assert found is not None
    browser.cookies.clear()
    assert browser.ask("GET", "/v1/me", Authorization=f"Bearer {found['id_token']}").status == 401


def test_without_authentication_there_are_no_sessions(dsn: str) -> None:
    with EngineProcess(dsn) as engine:
        engine.wait_ready()
        assert engine.call("GET", "/v1/sessions/ways") == (200, {"token": False})
        assert engine.call("POST", "/v1/sessions", {"token": "x"})[0] in (400, 409)
        assert engine.call("GET", "/v1/me")[1]["can"][0] == "view"
