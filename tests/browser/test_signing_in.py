"""Signing in and out at the console, and what each role is shown, in a real Chromium."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import pytest

from penstock.testing.definitions import linear
from tests import postgres
from tests.access.issuer_server import Issuer, serve_issuer
from tests.access.people import TOKENS, lines
from tests.browser.test_console import TIMEOUT_MS, Visitor, violations
from tests.runtime.engine_process import EngineProcess

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]


@pytest.fixture(scope="module")
def issuer() -> Generator[Issuer]:
    with serve_issuer() as found:
        yield found


@pytest.fixture(scope="module")
def locked(postgres_server: postgres.PostgresServer, issuer: Issuer) -> Generator[EngineProcess]:
    given: dict[str, Any] = {"authentication": True, "api_tokens": ",".join(lines()), **issuer.settings}
    with postgres_server.database(postgres.apply_schema) as dsn, EngineProcess(dsn, **given) as process:
        yield process.wait_ready()


@pytest.fixture
def visitor(page: Any, locked: EngineProcess, issuer: Issuer) -> Generator[Visitor]:
    """To go to the issuer is a navigation of the whole page, and the one thing that leads to another origin."""
    found = Visitor(page, locked)
    yield found
    issuer_page = f"asked elsewhere: {issuer.address}/authorize?"
    # The browser notes each answer of 401 by itself.
    assert [one for one in found.complaints if "401" not in one and not one.startswith(issuer_page)] == []


def sign_in(visitor: Visitor, token: str) -> None:
    visitor.page.get_by_label("API token").fill(token)
    with visitor.page.expect_response("**/v1/sessions"):
        visitor.click("button", "Sign in", exact=True)


def kept_by_scripts(visitor: Visitor) -> list[Any]:
    found: list[Any] = visitor.page.evaluate("() => [localStorage.length, sessionStorage.length, document.cookie]")
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_signing_in_with_a_token_and_out_again(visitor: Visitor, theme: str) -> None:
    visitor.page.emulate_media(color_scheme=theme)
    visitor.go("instances").see("Sign in to Penstock")
    assert violations(visitor.page) == []
    sign_in(visitor, "pst_wrong")
    visitor.see("unknown, revoked or expired")
    assert violations(visitor.page) == []
    assert visitor.page.get_by_role("navigation").count() == 0
    sign_in(visitor, TOKENS["operator"].text)
    visitor.see_role("heading", "Instances")
    assert visitor.clicks == 2
    visitor.page.reload()
    visitor.see("token:operator")
    assert kept_by_scripts(visitor) == [0, 0, ""]
    assert violations(visitor.page) == []
    visitor.click("button", "Sign out")
    visitor.see("Sign in to Penstock")
    visitor.page.reload()
    visitor.see("Sign in to Penstock")


def test_signing_in_at_the_issuer_with_two_clicks(visitor: Visitor, issuer: Issuer) -> None:
    visitor.go("instances?status=FAILED").see("Sign in to Penstock")
    visitor.click("button", "Sign in at 127.0.0.1")
    visitor.click("link", "Go on as anna")
    visitor.see_role("heading", "Instances")
    visitor.see("oidc:anna")
    assert visitor.page.url.endswith("/console/instances?status=FAILED")
    assert visitor.clicks == 2
    assert kept_by_scripts(visitor) == [0, 0, ""]


def test_the_issuers_no_is_reported(visitor: Visitor, issuer: Issuer) -> None:
    issuer.claims = {"nonce": "another"}
    try:
        visitor.go().see("Sign in to Penstock")
        visitor.click("button", "Sign in at 127.0.0.1")
        visitor.click("link", "Go on as anna")
        visitor.see("The issuer did not vouch for you")
    finally:
        issuer.claims = {}


def test_buttons_are_there_for_those_who_may(visitor: Visitor, locked: EngineProcess) -> None:
    page = visitor.page
    visitor.go().see("Sign in to Penstock")
    sign_in(visitor, TOKENS["admin"].text)
    visitor.see("token:admin")
    asked = {"X-Penstock-Console": "1", "Origin": visitor.home.removesuffix("/console/")}
    upload = page.request.post(f"{asked['Origin']}/v1/definitions", data=linear(1, definition_id="shop"), headers=asked)
    assert upload.status == 201
    started = page.request.post(f"{asked['Origin']}/v1/instances", data={"definitionId": "shop"}, headers=asked)
    nightly = {"definitionId": "shop", "cron": ["0 2 * * *"]}
    made = page.request.put(f"{asked['Origin']}/v1/schedules/nightly", data=nightly, headers=asked)
    assert made.status == 200
    place = f"instances/{started.json()['id']}"
    visitor.go(place).see_role("button", "Cancel…")
    visitor.go().click("button", "Sign out")
    visitor.see("Sign in to Penstock")
    sign_in(visitor, TOKENS["viewer"].text)
    visitor.see("token:viewer")
    visitor.go(place).see_role("heading", "shop")
    visitor.see("waits for a worker")
    visitor.see("token:viewer")
    assert page.get_by_role("button", name=re.compile("Cancel…|Repair…")).count() == 0
    visitor.go("instances").see("newest first")
    assert page.get_by_role("button", name="Start an instance").count() == 0
    assert page.get_by_role("checkbox").count() == 0
    visitor.go("schedules?schedule=nightly").see_role("row", "nightly")
    visitor.see("Catch-up policy")
    assert page.get_by_role("button", name=re.compile("Run nightly|Pause nightly|of the past")).count() == 0


def test_somebody_without_a_role_is_told_so(visitor: Visitor) -> None:
    visitor.go().see("Sign in to Penstock")
    sign_in(visitor, TOKENS["worker"].text)
    visitor.see("You have no role here")
    assert violations(visitor.page) == []
    visitor.click("button", "Sign out")
    visitor.see("Sign in to Penstock")


def test_a_page_without_its_session_asks_again(visitor: Visitor, locked: EngineProcess) -> None:
    visitor.go().see("Sign in to Penstock")
    sign_in(visitor, TOKENS["viewer"].text)
    visitor.see("token:viewer")
    visitor.page.context.clear_cookies()
    visitor.page.get_by_text("Sign in to Penstock").first.wait_for(timeout=TIMEOUT_MS)


def test_whoever_signs_in_next_sees_nothing_read_before(visitor: Visitor) -> None:
    page, read = visitor.page, visitor.page.locator("main table.settings").first
    visitor.go().see("Sign in to Penstock")
    sign_in(visitor, TOKENS["operator"].text)
    visitor.click("link", "Settings")
    read.wait_for(timeout=TIMEOUT_MS)
    page.route("**/v1/settings", lambda _: None)  # no answer any more
    page.context.clear_cookies()
    visitor.see("Sign in to Penstock")
    sign_in(visitor, TOKENS["viewer"].text)
    visitor.see("token:viewer")
    read.or_(page.locator("main .skeleton")).first.wait_for(timeout=TIMEOUT_MS)
    assert read.count() == 0


def test_a_draft_outlives_its_session_for_its_owner_alone(visitor: Visitor) -> None:
    """Not for whoever signs in next at the same browser, also when that one signs out."""
    page = visitor.page
    heading = page.get_by_role("heading", level=1)

    def come(name: str, shown: str) -> None:
        visitor.see("Sign in to Penstock")
        sign_in(visitor, TOKENS[name].text)
        visitor.see(f"token:{name}")
        heading.filter(has_text=shown).wait_for(timeout=TIMEOUT_MS)

    visitor.go("modeller")
    come("admin", "New workflow")
    name = page.get_by_role("region", name="Properties").get_by_label("Name", exact=True)
    name.fill("Of the admin")
    page.get_by_text("1 change, kept in this browser").wait_for(timeout=TIMEOUT_MS)
    page.context.clear_cookies()
    come("operator", "New workflow")
    page.get_by_text("no changes", exact=True).wait_for(timeout=TIMEOUT_MS)
    name.fill("Of another")
    heading.filter(has_text="Of another").wait_for(timeout=TIMEOUT_MS)
    visitor.click("button", "Sign out")
    visitor.see("Sign in to Penstock")
    visitor.go("modeller")
    come("admin", "Of the admin")
    visitor.click("button", "Sign out")
    visitor.see("Sign in to Penstock")
    assert kept_by_scripts(visitor) == [0, 0, ""]


def test_a_tab_begins_anew_for_whoever_signed_in_elsewhere(visitor: Visitor) -> None:
    first, second = visitor.page, visitor.page.context.new_page()
    visitor.go("modeller").see("Sign in to Penstock")
    sign_in(visitor, TOKENS["admin"].text)
    visitor.see("token:admin")
    name = first.get_by_role("region", name="Properties").get_by_label("Name", exact=True)
    name.fill("Of the admin")
    first.get_by_text("1 change, kept in this browser").wait_for(timeout=TIMEOUT_MS)
    first.route("**/v1/**", lambda _: None)  # no call tells it that the session is over
    first.context.clear_cookies()
    second.goto(f"{visitor.home}definitions")
    second.get_by_label("API token").fill(TOKENS["operator"].text)
    with first.expect_event("framenavigated", timeout=TIMEOUT_MS):
        second.get_by_role("button", name="Sign in", exact=True).click(timeout=TIMEOUT_MS)
    first.unroute("**/v1/**")
    first.reload()
    visitor.see("token:operator")
    first.get_by_text("no changes", exact=True).wait_for(timeout=TIMEOUT_MS)
    assert name.input_value() == "New workflow"


def test_other_tabs_are_told_of_a_sign_out(visitor: Visitor) -> None:
    second = visitor.page.context.new_page()
    visitor.go("definitions").see("Sign in to Penstock")
    sign_in(visitor, TOKENS["admin"].text)
    visitor.see("token:admin")
    second.goto(f"{visitor.home}settings")
    second.get_by_text("token:admin").wait_for(timeout=TIMEOUT_MS)
    second.route("**/v1/**", lambda _: None)  # no call tells it
    with second.expect_event("framenavigated", timeout=TIMEOUT_MS):
        visitor.click("button", "Sign out")
    second.unroute("**/v1/**")
    second.reload()
    second.get_by_text("Sign in to Penstock").wait_for(timeout=TIMEOUT_MS)


def test_whoever_could_not_be_signed_out_is_reported(visitor: Visitor) -> None:
    visitor.go("definitions").see("Sign in to Penstock")
    sign_in(visitor, TOKENS["viewer"].text)
    visitor.see("token:viewer")
    visitor.page.route("**/v1/sessions/end", lambda route: route.abort())
    visitor.click("button", "Sign out")
    visitor.see("Still signed in: The engine does not answer.")
    assert violations(visitor.page) == []
    visitor.page.unroute("**/v1/sessions/end")
    visitor.click("button", "Sign out")
    visitor.see("Sign in to Penstock")
    visitor.complaints.clear()  # of the request that came to nothing
