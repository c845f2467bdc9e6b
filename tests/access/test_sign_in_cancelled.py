"""Signing in at an issuer, cancelled at every point: a code is exchanged once or never, and another sign-in works."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from penstock.access import sign_in
from penstock.access.issuer import Issuer as TrustedIssuer
from penstock.access.sign_in import BegunSignIn, Finished, SignIn
from penstock.errors import Unavailable
from penstock.settings import Settings
from penstock.testing.cancellation import CancelledAttempt, cancel_at_step
from tests.access.issuer_server import Issuer, serve_issuer

# What is cancelled while it sends a body leaves httpx's own generator of it to the collector.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")

POINTS_MAX = 600
BACK = "http://127.0.0.1/v1/sessions/oidc/callback"
PLACE = "/console/tasks"


@pytest.fixture
async def issuer() -> AsyncGenerator[Issuer]:
    with serve_issuer() as issuer:
        yield issuer


@pytest.fixture
def ways(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> SignIn:
    """Of an engine that trusts the issuer and lets people sign in as often as they like."""
    for name in ("SIGN_INS_MAX_PER_S", "SIGN_INS_MAX_PER_HOST_PER_S"):
        monkeypatch.setattr(sign_in, name, 1e6)
    given: dict[str, Any] = {**issuer.settings, "oidc_audience": (issuer.settings["oidc_audience"],)}
    settings = Settings(**given)
    return SignIn(settings, TrustedIssuer(settings))


async def at_every_point(
    prepare: Callable[[], Awaitable[Callable[[], Awaitable[Any]]]],
    check: Callable[[CancelledAttempt[Any]], Awaitable[None]],
) -> int:
    """How many were cancelled."""
    cancelled = 0
    for point in range(1, POINTS_MAX):
        attempt = await cancel_at_step(point, await prepare(), own_task_only=True)
        cancelled += attempt.cancelled
        await check(attempt)
        if not attempt.fired:
            return cancelled
    raise AssertionError("no end")


def answer_of(issuer: Issuer, begun: BegunSignIn) -> tuple[str, str]:
    """State and code, as the issuer sends them back once the person has signed in."""
    asked = {name: values[0] for name, values in parse_qs(urlsplit(begun.url).query).items()}
    back = parse_qs(urlsplit(issuer.authorize(asked)).query)
    return back["state"][0], back["code"][0]


async def test_beginning_is_begun_or_not(ways: SignIn, issuer: Issuer) -> None:
    async def prepare() -> Callable[[], Awaitable[BegunSignIn]]:
        return lambda: ways.begin(BACK, PLACE, None)

    async def check(attempt: CancelledAttempt[BegunSignIn]) -> None:
        for begun in attempt.results:
            found = await ways.finish(begun.kept, *answer_of(issuer, begun), issuer.address, None)
            assert (found.identity.name, found.place) == ("oidc:anna", PLACE)

    assert await at_every_point(prepare, check) >= 3


@pytest.mark.slow(reason="cancels at every point")
async def test_a_code_is_exchanged_once_or_never(ways: SignIn, issuer: Issuer) -> None:
    """Who heard no answer asks again with the same code: it is exchanged then, or it was, and the person signs in
    again."""
    tried: list[tuple[str, str, str]] = []

    async def prepare() -> Callable[[], Awaitable[Finished]]:
        begun = await ways.begin(BACK, PLACE, None)
        tried.append((begun.kept, *answer_of(issuer, begun)))
        return lambda: ways.finish(*tried[-1], issuer.address, None)

    async def check(attempt: CancelledAttempt[Finished]) -> None:
        if attempt.cancelled:
            try:
                attempt.results.append(await ways.finish(*tried[-1], issuer.address, None))
            except Unavailable:
                return
        assert [found.identity.name for found in attempt.results] == ["oidc:anna"]
        if attempt.cancelled:
            return
        with pytest.raises(Unavailable):
            await ways.finish(*tried[-1], issuer.address, None)

    assert await at_every_point(prepare, check) >= 6
    assert 0 < issuer.exchanged <= len(tried)
