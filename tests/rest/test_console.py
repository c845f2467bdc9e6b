"""How the console's files are served: to browsers, with a strict policy, whatever the path."""

from __future__ import annotations

import gzip
import re

import pytest

from tests.rest.scripted import Rest, ScriptedEngine

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def script_of(page: bytes) -> str:
    found = re.search(rb'src="(/console/assets/[^"]+\.js)"', page)
    assert found is not None
    return found[1].decode()


async def test_every_address_below_the_console_is_its_page(rest: Rest) -> None:
    pages = [await rest.send("GET", path, headers=BROWSER) for path in ("/console/", "/console/instances/1?tab=audit")]
    for page in pages:
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert b'<div id="root">' in page.body
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "no-referrer"


async def test_the_policy_lets_the_page_load_its_own_files_only(rest: Rest) -> None:
    first, second = [await rest.send("GET", "/console/", headers=BROWSER) for _ in range(2)]
    policy = dict(part.strip().split(" ", 1) for part in first.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == policy["worker-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    nonces = [re.search(r"'nonce-([^']+)'", page.headers["content-security-policy"]) for page in (first, second)]
    assert nonces[0] is not None
    assert nonces[1] is not None
    assert nonces[0][1] != nonces[1][1], "a nonce is for one answer"
    assert f'name="csp-nonce" content="{nonces[0][1]}"'.encode() in first.body


async def test_browsers_keep_files_and_get_them_compressed(rest: Rest) -> None:
    script = script_of((await rest.send("GET", "/console/", headers=BROWSER)).body)
    plain = await rest.send("GET", script)
    packed = await rest.send("GET", script, headers={"accept-encoding": "br;q=1.0, gzip;q=0.8"})
    refused = await rest.send("GET", script, headers={"accept-encoding": "gzip;q=0"})
    assert plain.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "immutable" in plain.headers["cache-control"]
    assert plain.headers["vary"] == packed.headers["vary"] == "accept-encoding"
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in refused.headers
    assert gzip.decompress(packed.body) == plain.body == refused.body
    assert len(packed.body) < len(plain.body) / 2


async def test_another_versions_file_is_not_answered_with_the_page(rest: Rest) -> None:
    assert (await rest.send("GET", "/console/assets/index-00000000.js", headers=BROWSER)).status == 404


@pytest.mark.parametrize("path", ["/console/../pyproject.toml", "/console/%2e%2e/__init__.py", "/console//etc/passwd"])
async def test_nothing_outside_the_folder_is_read(rest: Rest, path: str) -> None:
    found = await rest.send("GET", path, headers=BROWSER)
    assert (found.status, b'<div id="root">' in found.body) == (200, True)


async def test_only_reading_is_possible(rest: Rest) -> None:
    assert (await rest.send("POST", "/console/")).status == 405
    head, page = await rest.send("HEAD", "/console/"), await rest.send("GET", "/console/")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(page.body)))


async def test_only_browsers_are_sent_there_from_the_root(rest: Rest) -> None:
    for path in ("/", "/console"):
        sent = await rest.send("GET", path, headers=BROWSER)
        assert (sent.status, sent.headers["location"]) == (307, "/console/")
    assert (await rest.send("GET", "/")).status == 404


async def test_without_the_setting_there_is_none() -> None:
    rest = Rest(ScriptedEngine(console_enabled=False))
    assert (await rest.send("GET", "/console/", headers=BROWSER)).status == 404
    assert (await rest.send("GET", "/", headers=BROWSER)).status == 404
