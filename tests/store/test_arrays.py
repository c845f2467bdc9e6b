"""Array literals as PostgreSQL reads them."""

from __future__ import annotations

import psycopg
import pytest

from penstock.store.db import arrays

TEXTS = [
    "",
    "a",
    "NULL",
    "null",
    '"',
    "\\",
    '\\"',
    '{"a":"b\\"c\\\\"}',
    "{}",
    "a,b",
    " ",
    "\n\t",
    "\x01",
    "ä漢\U0001f4a9",
    None,
]


@pytest.fixture
def connection(database_dsn: str):
    with psycopg.connect(database_dsn) as connection:
        yield connection


def test_texts_come_back_as_they_were(connection: psycopg.Connection) -> None:
    for texts in (TEXTS, [text for text in TEXTS if text is not None], [""], []):
        assert connection.execute("SELECT %s::text[]", [arrays.texts(texts)]).fetchone() == (texts,)
    documents = [b'{"a":"\\\\ \\" {,}"}', b"{}", None]
    (found,) = connection.execute("SELECT %s::jsonb[]", [arrays.documents(documents)]).fetchone() or ([],)
    assert found == [{"a": '\\ " {,}'}, {}, None]


def test_numbers_come_back_as_they_were(connection: psycopg.Connection) -> None:
    ints, floats = [1, None, -(2**63), 2**63 - 1], [0.1, None, 5e-324, -1e300]
    assert connection.execute("SELECT %s::bigint[]", [arrays.ints(ints)]).fetchone() == (ints,)
    assert connection.execute("SELECT %s::float8[]", [arrays.floats(floats)]).fetchone() == (floats,)
    assert connection.execute("SELECT %s::bigint[]", [arrays.numbers(ints)]).fetchone() == (ints,)
    assert connection.execute("SELECT %s::float8[]", [arrays.numbers(floats)]).fetchone() == (floats,)
    assert connection.execute("SELECT %s::bigint[]", [arrays.numbers(())]).fetchone() == ([],)
    assert connection.execute("SELECT %s::boolean[]", [arrays.bools([True, False])]).fetchone() == ([True, False],)
