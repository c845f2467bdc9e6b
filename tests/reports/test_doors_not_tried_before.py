"""Doors that no penetration test had tried: certificates, the issuer, the archive, encryption, Kafka, cookies."""

from __future__ import annotations

import base64
import gzip
import http.server
import json
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.access.issuer import fetch_json
from penstock.core.graph.definition import InvalidDefinition
from penstock.core.rules.topic import TOPIC_PREFIX, topic_of, topic_problem
from penstock.http.request import is_whole_request
from penstock.net.tls import names_in
from penstock.rest.hiding import asked_by_console
from penstock.runtime import archive
from penstock.settings import ArchiveFormat, Secret
from penstock.testing.definitions import definition, end
from tests.engine.conftest import MakeDriver, make_driver
from tests.shapes import task

__all__ = ["make_driver"]

CN = ((("commonName", "ops"),),)


@pytest.mark.parametrize(
    ("certificate", "names"),
    [
        ({"subject": CN}, ("cn:ops",)),
        ({"subject": CN, "subjectAltName": (("DNS", "pack"),)}, ("dns:pack",)),
        ({"subject": CN, "subjectAltName": (("IP Address", "10.0.0.7"),)}, ()),
        ({"subject": CN, "subjectAltName": (("DirName", ()), ("URI", "spiffe://x/y"))}, ("uri:spiffe://x/y",)),
        ({"subject": ((("commonName", "dns:ops"),),)}, ("cn:dns:ops",)),
        ({}, ()),
    ],
    ids=["common", "dns", "address", "uri", "prefix", "none"],
)
def test_a_common_name_counts_beside_no_other_name_of_any_kind(
    certificate: Mapping[str, Any], names: tuple[str, ...]
) -> None:
    assert names_in(certificate) == names


@contextmanager
def issuer(body: bytes, **headers: str) -> Generator[str]:
    """Over real HTTP, with one answer."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - silent
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("body", "headers", "said"),
    [
        (gzip.compress(b"[" + b" " * 50_000_000 + b"]"), {"content_encoding": "gzip"}, "compressed"),
        (b" " * 1_100_000, {}, "more than"),
        (b"[" * 200_000, {}, None),
        (b"\xff\xfe{", {}, None),
        (b"", {}, None),
    ],
    ids=["bomb", "large", "nested", "no-text", "nothing"],
)
async def test_an_issuers_document_is_bounded_whatever_it_is(
    body: bytes, headers: dict[str, str], said: str | None
) -> None:
    with issuer(body, **headers) as url, pytest.raises((ValueError, RecursionError), match=said):
        await fetch_json(url)
    with issuer(b'{"keys": []}') as url:
        assert await fetch_json(url) == {"keys": []}


@pytest.mark.parametrize("form", list(ArchiveFormat))
def test_an_archive_file_is_written_where_it_was_made(tmp_path: Path, form: ArchiveFormat) -> None:
    if form is ArchiveFormat.PARQUET:
        pytest.importorskip("pyarrow")
    victim, path = tmp_path / "victim", tmp_path / "shared" / "early" / ("a" + archive.SUFFIXES[form])
    victim.write_text("mine")
    written = archive._open(path, form)
    assert path.stat().st_mode & 0o777 == 0o600
    assert {each.stat().st_mode & 0o777 for each in (path.parent, path.parent.parent)} == {0o700}
    path.rename(tmp_path / "taken")
    path.symlink_to(victim)
    written.append([json.dumps({"instance": {"id": "1"}})])
    written.close()
    assert victim.read_text() == "mine"
    with pytest.raises(FileExistsError):
        archive._open(path, form)


async def test_no_secret_variable_becomes_a_search_attribute_under_encryption(make_driver: MakeDriver) -> None:
    both = definition(task("a"), end(), id="both", metadata={"secretVariables": ["ssn", "x"]}) | {
        "searchAttributes": {"ssn": "STRING", "customer": "STRING"}
    }
    keys = Secret("k1=" + base64.b64encode(b"k" * 32).decode())
    with pytest.raises(InvalidDefinition, match=r"searchAttributes\.ssn.*in clear"):
        await make_driver(encryption_keys=keys).upload(both)
    await make_driver().upload(both)


@pytest.mark.parametrize("job_type", ["__consumer_offsets", "../x", "a b", "a\nb", "a:b", "\u0430", "x" * 250, ""])
def test_a_job_type_names_no_topic_of_others(job_type: str) -> None:
    assert topic_of(job_type).startswith(TOPIC_PREFIX)
    assert (topic_problem(job_type) is None) == (job_type == "__consumer_offsets")


HEAD = b"POST /v1/jobs/poll HTTP/1.1\r\nhost: localhost\r\n"


@pytest.mark.parametrize(
    ("begun", "whole"),
    [
        (b"", False),
        (b"POST /v1", False),
        (HEAD + b"Content-Length: 4\r\n\r\n", False),
        (HEAD + b'content-length:4\r\n\r\n{"a', False),
        (HEAD + b"content-length: 4\r\n\r\nnull", True),
        (HEAD + b"content-length: 4\r\n\r\nnullPOST", True),
        (HEAD + b"content-length: 4\r\nexpect: 100-continue\r\n\r\n", True),
        (HEAD + b"content-length: x\r\n\r\n", True),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n", True),
        (HEAD + b"\r\n", True),
        (HEAD + b"x: \r\n\r\ncontent-length: 9\r\n", True),
        (b"\x16\x03\x01", True),
        (b"\r\n", True),
    ],
)
def test_at_the_door_a_small_body_is_waited_for_with_its_head(begun: bytes, whole: bool) -> None:
    assert is_whole_request(begun) is whole


def test_cookies_that_http2_sends_apart_are_read_together() -> None:
    assert asked_by_console([(b"cookie", b"penstock=pss_x"), (b"cookie", b"a=b")])
    assert not asked_by_console([(b"cookie", b"penstock_sign_in=x"), (b"cookie", b"xpenstock=y")])
