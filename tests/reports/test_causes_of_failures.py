"""Issue 39, point 14: failures whose texts differ by an id, an address, a path or a number had a cause each."""

from __future__ import annotations

import base64
import hashlib
import time
import uuid
from typing import Any

import pytest

from penstock.engine.instances.causes import cause_of
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.errors import BadRequest
from penstock.testing.definitions import linear
from penstock.wire.error_code import failure_text
from tests.engine.conftest import MakeDriver, make_driver

__all__ = ["make_driver"]

ONE_CAUSE = (
    lambda n: f"charge {hashlib.sha256(str(n).encode()).hexdigest()} was refused",
    lambda n: f"charge {hashlib.sha256(str(n).encode()).hexdigest()[:10]} was refused",
    lambda n: f"no order {uuid.UUID(int=n * 7**40 % 2**128)}",
    lambda n: f"no order {{{str(uuid.UUID(int=n * 7**40 % 2**128)).upper()}}} in the shop",
    lambda n: f"connection to 10.0.{n}.{n * 3 % 255}:{5000 + n} refused",
    lambda n: f"connection to [fe80::{n:x}:{n * 97:x}]:{5000 + n} refused",
    lambda n: f"<Session object at 0x7f{n * 4099:010x}> is closed",
    lambda n: f"can't open /var/lib/{'abcdefgh'[n % 8]}/in-{n}.csv: no such file",
    lambda n: rf"can't open C:\data\{'abcdefgh'[n % 8]}\{n}.csv: no such file",
    lambda n: rf"can't open \\server{n}\share\{'abcdefgh'[n % 8]}.csv: no such file",
    lambda n: f"can't find “{'xyz'[n % 3]} {n}”, «{'xyz'[n % 3]} {n}», „{'xyz'[n % 3]} {n}“ or ‘{'xyz'[n % 3]} {n}’",
    lambda n: f"can't find customer '{'xyz'[n % 3]} {n}' in \"{n}\"",
    lambda n: f"mail to {'xyz'[n % 3]}.{n}@example.{'com' if n % 2 else 'org'} bounced",
    lambda n: f"GET https://{'xyz'[n % 3]}.example.com/orders/{n}?a={n} took {n}.{n:03} s, the limit is 1,{n:03} ms",
    lambda n: f"device {'-'.join(f'{n * 7919 >> bit & 255:02X}' for bit in range(0, 24, 4))} is offline",
    lambda n: f"upstream billing-7d9f8b6c5d-{'bcdfg'[n % 5]}x{'2456789'[n % 7]}zk-{n} timed out",
    lambda n: f"can't open data/in-{n}/{'abcdefgh'[n % 8]}.csv: no such file",
    lambda n: f"can't find ''{'xyz'[n % 3]} {n}'', ‹{'xyz'[n % 3]} {n}›, ›{n}‹ or 「{'xyz'[n % 3]}{n}」",
    lambda n: f"bad signature {base64.urlsafe_b64encode(hashlib.sha256(str(n).encode()).digest()).decode()}",
    lambda n: f"ValueError: {n} is negative, got {n} rows (of {n}) for promo code {n}",
    lambda n: f"token 01J{hashlib.sha256(str(n).encode()).hexdigest()[:20].replace('a', 'XY').upper()}9Z9 expired",
)  # fmt: skip
APART = (
    ("no such order", "no such customer"),
    ("HTTP 404 from the shop", "HTTP 503 from the shop"),
    ("HTTP/1.1 404", "HTTP/1.1 500"),
    ("status code 401", "status code 429"),
    ("status=502", "status=504"),
    ("exit code 1", "exit code 137"),
    ("[Errno 2] can't open it", "[Errno 13] can't open it"),
    ("SQLSTATE 23505", "SQLSTATE 40001"),
    ("killed by signal 9", "killed by signal 15"),
    ("<Response [404]> of the shop", "<Response [503]> of the shop"),
    ("Response status code does not indicate success: 404", "Response status code does not indicate success: 503"),
    ("make: rc=1", "make: rc=2"),
    ("http 404 for '/a'", "http 500 for '/a'"),
    ("the shop returned 404", "the shop returned 500"),
    ("Server error: 500", "Server error: 503"),
    ("the shop said no (404)", "the shop said no (410)"),
    ("rpc error: code = 14", "rpc error: code = 5"),
    ("exited with 1", "exited with 137"),
    ("sqlstate=23505", "sqlstate=23503"),
    ("TLS alert 40", "TLS alert 48"),
    ("PLS-00201: not declared", "PLS-00306: not declared"),
    ("HTTP/2 stream was reset", "HTTP/1.1 stream was reset"),
    ("HRESULT 0x80070005", "HRESULT 0x80004005"),
    ("ORA-00942: not there", "ORA-01017: not there"),
    ("ValueError: amount", "KeyError: amount"),
    ("java.lang.NullPointerException", "java.lang.IllegalStateException"),
    ("S3 is away", "EC2 is away"),
    ("order 17: the card was declined", "order 17: the card is expired"),
    ("can't read 'a.csv'", "can't write 'a.csv'"),
    ("timeout after 5 s at /a/b", "refused after 5 s at /a/b"),
    ("the facade is closed", "the decade is closed"),
    ("don't pay, it can't", "don't ship, it can't"),
    ("CARD_DECLINED · no", "CARD_EXPIRED · no"),
    ("E1 · no", "E2 · no"),
    ("a" * 150 + "x", "a" * 150 + "y"),
)


@pytest.mark.parametrize("text", ONE_CAUSE)
def test_what_differs_by_ids_addresses_or_paths_has_one_cause(text: Any) -> None:
    assert len({cause_of(text(n)) for n in range(62)}) == 1
    assert len(set(map(text, range(62)))) == 62


@pytest.mark.parametrize(("one", "other"), APART)
def test_different_causes_stay_apart(one: str, other: str) -> None:
    assert cause_of(one) != cause_of(other)


def test_a_long_text_is_read_no_further_than_needed() -> None:
    began = time.process_time()
    for piece in ("a:", "a.", "'", "/", "0x", "f1", "1.1.", "a@", "://", "[Errno ", ". "):
        assert len(cause_of(piece * 100_000)) <= 200
    assert time.process_time() - began < 5


async def test_62_failures_are_one_cause_in_lists_and_groups(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(linear(1, definition_id="pay", job_type="work"))
    reasons = [text(n) for n in range(62) for text in (ONE_CAUSE[0], ONE_CAUSE[7])]
    for n in range(62):
        await driver.start("pay")
        await driver.fail(
            await driver.one("work"), reasons[n], retryable=False, error_code="Refused" if n % 2 == 0 else None
        )
    engine = driver.engine
    groups = (await engine.failures.read(None, "all")).items
    assert sorted(group.count for group in groups) == [31, 31]
    for group in groups:
        wanted = InstanceFilter(status="FAILED", cause=group.text)
        assert (await engine.instances.count(wanted)).count == 31
    assert {group.text.startswith("Refused · charge") for group in groups} == {True, False}
    overview = await engine.overview.read("15m")
    assert [one.count for one in overview.attention if one.kind == "failures"] == [31, 31]
    for contains, count in (("CHARGE", 31), ("refused", 31), ("/lib/a/in", 4), ("nobody", 0)):
        wanted = InstanceFilter(status="FAILED", error_contains=contains)
        assert (await engine.instances.count(wanted)).count == count
        at = InstanceFilter(status="FAILED", error_contains=contains, step_id="task-1", definition_id="pay")
        assert (await engine.instances.count(at)).count == count
    with pytest.raises(BadRequest, match="errorContains: needs the status FAILED"):
        await engine.instances.count(InstanceFilter(error_contains="x"))


async def test_the_database_masks_as_python_does(make_driver: MakeDriver) -> None:
    driver = make_driver()
    texts = [text(n) for text in ONE_CAUSE for n in (0, 1, 61)] + [text for pair in APART for text in pair]
    texts += [
        f"{a}{b}{a}{c}"
        for a in ("a:", "f1", "'", "/", "~", "0x", "1.")
        for b in ("'", "/x", ":", "…")
        for c in ("::1", ".b/", " 503")
    ]
    for text, words in driver.rows("SELECT t, failure_words(t) FROM unnest(%s::text[]) AS t", texts):
        assert words == cause_of(text), text


async def test_causes_of_older_rules_are_replaced(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(linear(1, definition_id="pay", job_type="work"))
    await driver.start("pay")
    job = await driver.one("work")
    await driver.fail(job, "charge abc123 was refused", retryable=False, error_code="Refused")
    driver.rows("UPDATE abnormal_end SET cause = hashtextextended('charge abc… was refused', 0) RETURNING 1")
    assert await driver.engine.failures.fill()
    wanted = InstanceFilter(status="FAILED", cause=failure_text("charge 77fed1 was refused", "Refused"))
    assert (await driver.engine.instances.count(wanted)).count == 1
