"""Pages of other origins in a real browser: what they send to an engine on this machine does nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from typing import Any

import pytest

from penstock.testing.definitions import linear
from tests import postgres
from tests.access.people import TOKENS, lines
from tests.runtime.engine_process import EngineProcess

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]

StartEngine = Callable[..., EngineProcess]

FETCH = """async ([url, options]) => {
  try {
    const answer = await fetch(url, options);
    return [answer.status, answer.type === 'opaque' ? null : await answer.text()];
  } catch (error) {
    return ['blocked', String(error)];
  }
}"""
SUBMIT = """([url, name, value]) => {
  const form = document.createElement('form');
  Object.assign(form, {action: url, method: 'post', enctype: 'text/plain'});
  const field = document.createElement('input');
  Object.assign(field, {type: 'hidden', name, value});
  form.append(field);
  document.body.append(form);
  form.submit();
}"""


@pytest.fixture(scope="module")
def start_engine(postgres_server: postgres.PostgresServer) -> Generator[StartEngine]:
    running: list[EngineProcess] = []
    with postgres_server.database(postgres.apply_schema) as dsn:

        def start(**settings: Any) -> EngineProcess:
            running.append(EngineProcess(dsn, **settings))
            return running[-1].wait_ready()

        yield start
        for engine in running:
            engine.__exit__()


@pytest.fixture(scope="module")
def engine(start_engine: StartEngine) -> EngineProcess:
    return start_engine()


def fetch(page: Any, url: str, **options: Any) -> tuple[Any, str | None]:
    status, text = page.evaluate(FETCH, [url, options])
    return status, text


def definitions(engine: EngineProcess) -> set[str]:
    return {item["id"] for item in engine.call("GET", "/v1/definitions")[1]["items"]}


@pytest.mark.parametrize("host", ["evil.test", "localhost", "127.0.0.1"])
def test_a_foreign_page_uploads_nothing_and_reads_nothing(
    page: Any, engine: EngineProcess, web_port: int, host: str
) -> None:
    page.goto(f"http://{host}:{web_port}/")
    api = f"http://127.0.0.1:{engine.port}/v1/definitions"
    body = json.dumps(linear(1, definition_id="evil"))
    silent = {"method": "POST", "mode": "no-cors", "headers": {"content-type": "text/plain"}, "body": body}
    assert fetch(page, api, **silent) == (0, None)  # the browser sent it: a page is not told what came of it
    assert fetch(page, api, method="POST", body=body)[0] == "blocked"
    assert fetch(page, api, method="POST", headers={"content-type": "application/json"}, body=body)[0] == "blocked"
    assert fetch(page, api)[0] == "blocked"
    with page.expect_navigation() as navigation:
        head, _, tail = body.partition("}")
        page.evaluate(SUBMIT, [api, head, "}" + tail])
    assert navigation.value.status == 403
    assert "evil" not in definitions(engine)


def test_a_name_rebound_to_this_machine_is_not_answered(page: Any, engine: EngineProcess) -> None:
    """DNS rebinding: for the browser the engine is of the page's own origin."""
    answer = page.goto(f"http://evil.test:{engine.port}/healthz")
    assert answer.status == 403
    for method in ("GET", "POST"):
        status, text = fetch(page, "/v1/instances", method=method, **({"body": "{}"} if method == "POST" else {}))
        assert status == 403
        assert text is not None
        assert json.loads(text)["error"] == "forbidden"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_the_engines_own_pages_work(page: Any, engine: EngineProcess, host: str) -> None:
    assert page.goto(f"http://{host}:{engine.port}/docs").status == 200
    body = json.dumps(linear(1, definition_id=f"own-{host.replace('.', '-')}"))
    headers = {"content-type": "application/json"}
    assert fetch(page, "/v1/definitions", method="POST", headers=headers, body=body)[0] == 201
    assert fetch(page, "/v1/definitions")[0] == 200


def test_an_allowed_page_works_and_its_neighbour_does_not(page: Any, start_engine: StartEngine, web_port: int) -> None:
    """The line that lets an existing modeller in."""
    engine = start_engine(cors_origins=f"http://modeller.test:{web_port}")
    api = f"http://localhost:{engine.port}/v1/definitions"
    body = json.dumps(linear(1, definition_id="modelled"))
    page.goto(f"http://modeller.test:{web_port}/")
    assert fetch(page, api, method="POST", headers={"content-type": "application/json"}, body=body)[0] == 201
    status, text = fetch(page, api)
    assert (status, "modelled" in (text or "")) == (200, True)
    page.goto(f"http://other.test:{web_port}/")
    assert fetch(page, api)[0] == "blocked"


def test_with_authentication_a_page_needs_a_token_from_any_browser(
    page: Any, start_engine: StartEngine, web_port: int
) -> None:
    settings = {"authentication": True, "api_tokens": ",".join(lines()), "trusted_networks": "127.0.0.0/8=admin"}
    engine = start_engine(**settings)
    api = f"http://localhost:{engine.port}/v1/definitions"
    page.goto(f"http://evil.test:{web_port}/")
    assert fetch(page, api)[0] == 401
    body = json.dumps(linear(1, definition_id="evil"))
    assert fetch(page, api, method="POST", body=body)[0] == 401
    bearer = {"authorization": f"Bearer {TOKENS['viewer'].text}"}
    assert fetch(page, api, headers=bearer)[0] == 200
    assert "evil" not in definitions(engine)  # by its address this test is admin, as the browser would be
