"""Whatever comes in: each parser answers or refuses, and its work grows with the input and no faster.

Work is counted, in lines of Python that run, never timed. What makes work explode is as a rule something said twice, or
one in another: so inputs are pieces of good ones, repeated and nested. A short slice of it runs with all tests;
`make fuzz` tries as many as FUZZ says, each time others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.testing.random_definitions import definitions
from penstock.wire import penstock_v1 as w
from penstock.wire.codec import encode_message, package_of
from penstock.wire.model import Completion, PollRequest, StartRequest
from penstock.wire.protobuf import write_varint
from tests.fuzz import parsers
from tests.fuzz.parsers import cut
from tests.http.raw import chunked, get, post

fuzzed = settings(
    max_examples=int(os.environ.get("FUZZ", "40")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


def lines_run(work: Callable[[], object]) -> int:
    """The lines of Python that ``work`` runs."""
    count = 0

    def tick(_frame: Any, event: str, _arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return tick

    before = sys.gettrace()
    sys.settrace(tick)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def check(work: Callable[[], object], size: int, *, per_byte: float, base: int = 5_000) -> None:
    """The work is within what the size of the input allows."""
    ran = lines_run(work)
    assert ran <= base + per_byte * size, f"{ran} lines for {size} bytes"


def soup(pieces: Iterable[bytes]) -> st.SearchStrategy[bytes]:
    """Pieces, any bytes and numbers, in any order, some of it many times."""
    some = st.sampled_from(sorted(set(pieces))) | st.binary(max_size=6)
    runs = st.builds(lambda piece, times: piece * times, some, st.sampled_from([1, 1, 1, 2, 7, 100]))
    return st.lists(runs, max_size=25).map(b"".join)


# ---------------------------------------------------------------------------------------------------------- HTTP/1.1

REQUESTS = get("/a?b=c", "X-Y: z") + post("/p", b"body") + chunked("/c", b"a", b"bc")
HTTP_PIECES = [
    *cut(REQUESTS),
    *REQUESTS.split(b"\r\n"),
    b"\r\n",
    b"\n",
    b"0\r\n\r\n",
    b"Content-Length: 3\r\n",
    b"1;x=y\r\n",
]


@fuzzed
@given(st.lists(st.just(REQUESTS) | soup(HTTP_PIECES), max_size=4), st.integers(1, 400))
def test_the_http_parser(parts: list[bytes], size: int) -> None:
    data = b"".join(parts)

    check(lambda: parsers.http(data, size), len(data), per_byte=60)


# ------------------------------------------------------------------------------------------------------------ HTTP/2

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


frames = st.builds(
    frame,
    st.integers(0, 10) | st.integers(0, 255),
    st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x2D, 255]),
    st.sampled_from([0, 1, 1, 3, 2, 2**31 - 1]),
    st.binary(max_size=40)
    | st.sampled_from([b"", b"\x82\x86\x84\x41\x01a", b"\0" * 4, b"\0" * 5, b"\0" * 8, b"\x3f\xff" * 9]),
)


@fuzzed
@given(st.lists(st.tuples(frames, st.sampled_from([1, 1, 1, 3, 60])), max_size=12), st.integers(1, 600))
def test_the_http2_seam(sent: list[tuple[bytes, int]], size: int) -> None:
    data = PREFACE + b"".join(each * times for each, times in sent)

    check(lambda: parsers.http2(data, size), len(data), per_byte=120, base=20_000)


# ---------------------------------------------------------------------------------------------------------- protobuf


def _length(body: bytes) -> bytes:
    return write_varint(len(body)) + body


MESSAGES: list[Any] = [
    Completion("1-2-3", worker_id="w", variables=b'{"a":[1,{"b":null}],"c":"d"}'),
    StartRequest("d", 1, b'{"a":{"b":{"c":[[1]]}}}', "k"),
    PollRequest("w", ["a", "b"], 3, 30),
    w.WorkRequest("w", 30, [w.Credit("work", 1)], [w.Completion("1-2-3", 1, b"{}")], [w.Failure("1-2-4")]),
]
nested = st.recursive(
    soup([b"\x08\x00", b"\x20\x01", b"\x1a\x01a", b"\x11" + b"\0" * 8]),
    lambda inner: st.builds(
        lambda tag, parts: b"".join(tag + _length(part) for part in parts),
        st.sampled_from([b"\x0a", b"\x12", b"\x2a", b"\x32", b"\x1a"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=12,
)


@fuzzed
@given(st.sampled_from(MESSAGES), st.data())
@example(MESSAGES[0], None)
def test_the_protobuf_codec(message: Any, data: Any) -> None:
    package = package_of(type(message)) or "workflow.v1"
    good = encode_message(message, package)
    body = (
        good
        if data is None
        else data.draw(soup(cut(good, 4)) | nested | nested.map(lambda each: b"\x1a" + _length(each)))
    )

    check(lambda: parsers.message(body, type(message), package), len(body), per_byte=60)


# ------------------------------------------------------------------------------------------------------- expressions

TOKENS = [
    b"a", b"b.c", b"a?.b", b"[", b"]", b"(", b")", b"{", b"}", b"1", b"1.5e3", b"0x1f", b"'s'", b'"t"', b" + ", b" - ",
    b" ** ", b" and ", b" or ", b"not ", b"!", b" == ", b" < ", b" ?? ", b" ? ", b" : ", b",", b"..", b"#", b"any(a, ",
    b"count(", b"let x = ", b"; ", b" | ", b" matches '(a|b)*'", b"$env", b"nil", b"true", b"/*", b"*/", b"// x\n",
]  # fmt: skip


@fuzzed
@given(soup(TOKENS))
@example(b"(" * 200)
@example(b"not " * 500 + b"true")
@example(b"1" + b" < 1" * 400)
@example(b"[" * 60 + b"]" * 60)
def test_the_expression_parser(source: bytes) -> None:
    text = source.decode("utf-8", "replace")

    check(lambda: parsers.expression(text), len(text), per_byte=150)


# ------------------------------------------------------------------------------------------------------- definitions


@fuzzed
@given(definitions(), st.data())
def test_the_definition_parser(body: Any, data: Any) -> None:
    good = msgspec.json.encode(body)
    pieces = [
        *cut(good, 40),
        b'"steps":[',
        b'{"id":"a",',
        b'"type":"DECISION",',
        b"[",
        b"{",
        b"}",
        b"]",
        b",",
        b'""',
        b"1e9",
    ]
    text = data.draw(st.just(good) | soup(pieces))

    check(lambda: parsers.definition(text), len(text), per_byte=150, base=20_000)


@fuzzed
@given(
    soup(
        [
            b'{"a":',
            b"[",
            b"]",
            b"}",
            b"1e1,",
            b"0." + b"1" * 40,
            b'"\\u0000"',
            b'"\\ud800"',
            b"-",
            b"9" * 30,
            b" ",
            b"null",
        ]
    )
)
@example(b"[" + b"1e1," * 500 + b"1]")
@example(b"[" * 300)
def test_the_check_of_variables(raw: bytes) -> None:
    check(lambda: parsers.variables(raw), len(raw), per_byte=60)


@pytest.mark.parametrize("times", [500, 1_000])
def test_work_that_grows_faster_is_noticed(times: int) -> None:
    """The check can fail."""

    def square() -> None:
        for _ in range(times):
            for _ in range(times):
                pass

    with pytest.raises(AssertionError, match="lines for"):
        check(square, times, per_byte=150)
