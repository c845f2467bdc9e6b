"""Bytes to requests, without any socket."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.http.limits import HttpLimits
from penstock.http.parser import ParseProgress, RequestParser
from penstock.http.refusal import Refusal
from penstock.http.request import BodyBudget, ParsedRequest
from tests.http.raw import chunked, get, h2c_offer, post


def parser(**limits: int) -> RequestParser:
    bounds = HttpLimits(**limits)
    return RequestParser(bounds, BodyBudget(bounds.max_request_memory_bytes))


def feed(under_test: RequestParser, pieces: list[bytes]) -> list[ParsedRequest]:
    requests = []
    for piece in pieces:
        under_test.receive(piece)
        while (request := under_test.next_request()) is not None:
            requests.append(request)
            under_test.release()
    return requests


def parse(data: bytes, **limits: int) -> list[ParsedRequest]:
    return feed(parser(**limits), [data])


def refusal_of(data: bytes, **limits: int) -> Refusal:
    with pytest.raises(Refusal) as caught:
        parse(data, **limits)
    return caught.value


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges) if b > a]


# -- how the bytes are cut does not matter

PIECES = st.binary(max_size=30) | st.sampled_from(
    [b"\r\n\r\n", b"0\r\n\r\n", b"\r\nUpgrade: h2c\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\r\n\r\n\r\n\r\n"]
)
REQUESTS = st.one_of(
    st.builds(lambda body: post("/counted", body), PIECES),
    st.builds(lambda bodies: chunked("/chunked", *bodies), st.lists(PIECES, max_size=5)),
    st.builds(lambda body: h2c_offer("/offer", body), PIECES),
    st.builds(
        lambda bodies: chunked("/both", *bodies, headers=("Connection: keep-alive, Upgrade", "uPGRADE:h2c")),
        st.lists(PIECES, max_size=3),
    ),
    st.just(get("/plain?a=b", "Accept: */*")),
    st.just(b"\r\n" + get("/after-an-empty-line")),
    st.just(get("/one-zero", "Connection: keep-alive", version="1.0")),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(REQUESTS, min_size=1, max_size=6), st.lists(st.integers(0, 10_000), max_size=12))
def test_any_cutting_of_the_stream_gives_the_same_requests(requests: list[bytes], places: list[int]) -> None:
    stream = b"".join(requests)
    one_by_one = [parse(request)[0] for request in requests]
    under_test = parser()
    assert feed(under_test, cut(stream, places)) == one_by_one
    assert under_test.progress is ParseProgress.NOTHING


KNOWN = post("/v1/jobs/poll", b"{}", "Content-Type: application/json", "Authorization: Bearer x")


def verdict(under_test: RequestParser, data: bytes) -> list[ParsedRequest] | tuple[int, str]:
    try:
        return feed(under_test, [data])
    except Refusal as refusal:
        return refusal.status, refusal.reason


LINES = [
    b"POST /v1/jobs/a-1/complete HTTP/1.1", b"POST / HTTP/1.1", b"POST /a?b=c HTTP/1.1", b"POST /%2e HTTP/1.1",
    b"POST http://a/b HTTP/1.1", b"POST /a HTTP/1.0", b"POST /a HTTP/1.2", b"POST  /a HTTP/1.1", b"POST /a\tHTTP/1.1",
    b"POST /a b HTTP/1.1", b"post /a HTTP/1.1", b"POST /a HTTP/1.1 ", b" POST /a HTTP/1.1", b"POST a HTTP/1.1",
    b"POST /a#b HTTP/1.1", b"POST /\xff HTTP/1.1", b"POST /a\0 HTTP/1.1", b"POST /a\rHost: b HTTP/1.1",
    b"GET /a HTTP/1.1",
    b"CONNECT a:1 HTTP/1.1", b"POST /" + b"a" * 2_000 + b" HTTP/1.1", b"POST /a HTTP/1.1\r", b"POST /a",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_headers_that_were_seen_before_change_no_verdict(line: bytes) -> None:
    data = line + KNOWN[KNOWN.find(b"\r\n") :]
    experienced, fresh = parser(max_request_line_bytes=1_500), parser(max_request_line_bytes=1_500)
    assert len(feed(experienced, [KNOWN])) == 1
    assert experienced._known
    assert verdict(experienced, data) == verdict(fresh, data)


@pytest.mark.parametrize(
    "data",
    [
        post("/a", b"{}", "Connection: close"),
        post("/a", b"{}", "Expect: 100-continue"),
        post("/a", b"{}", "X: " + "y" * 2_000),
        post("/a", b"{}", version="1.0"),
        h2c_offer("/a", b"{}"),
        chunked("/a", b"{}"),
        get("/a"),
    ],
)
def test_headers_beyond_a_length_are_read_each_time(data: bytes) -> None:
    under_test = parser()
    feed(under_test, [data])
    assert not under_test._known


def test_known_headers_count_their_body_and_its_end() -> None:
    budget = BodyBudget(1_000)
    under_test = RequestParser(HttpLimits(), budget)
    assert len(feed(under_test, [KNOWN])) == 1
    under_test.receive(KNOWN[:-1])
    assert under_test.next_request() is None
    assert (under_test.progress, under_test.body_bytes, budget.used_bytes) == (ParseProgress.BODY, 1, 1)
    under_test.receive(KNOWN[-1:] + KNOWN[:20])
    request = under_test.next_request()
    assert request is not None
    assert request.body == b"{}"
    assert under_test.next_request() is None
    budget.used_bytes = 999
    under_test.receive(KNOWN[20:])
    with pytest.raises(Refusal, match="too many large requests"):
        under_test.next_request()


def test_a_whole_body_with_known_headers_gives_way_to_nobody() -> None:
    budget = BodyBudget(10)
    answered, other = RequestParser(HttpLimits(), budget), RequestParser(HttpLimits(), budget)
    assert len(feed(answered, [KNOWN])) == 1
    answered.receive(KNOWN)
    assert answered.next_request() is not None  # and it is being answered
    other.receive(post("/a", b"x" * 10))
    with pytest.raises(Refusal, match="too many large requests"):
        other.next_request()
    other.close()
    answered.release()
    assert len(feed(answered, [KNOWN])) == 1
    assert budget.used_bytes == 0


def test_few_headers_are_known_at_a_time() -> None:
    under_test = parser()
    for number in range(50):
        feed(under_test, [post("/a", b"x" * number)])
        assert len(under_test._known) <= 4


def test_a_chunked_body_may_be_cut_anywhere_twice() -> None:
    stream = chunked("/a", b"\r\n\r\n", b"0\r\n\r\n", b"\r\n") + get("/b")
    expected = parse(stream)
    assert [request.raw_path for request in expected] == [b"/a", b"/b"]
    assert expected[0].body == b"\r\n\r\n0\r\n\r\n\r\n"
    for places in itertools.combinations(range(len(stream)), 2):
        assert feed(parser(), cut(stream, list(places))) == expected


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_garbage_is_refused_or_waited_for(garbage: bytes, places: list[int]) -> None:
    try:
        requests = feed(parser(), cut(garbage, places))
    except Refusal:
        return
    assert requests == []


@settings(max_examples=600, deadline=None)
@given(
    st.lists(REQUESTS, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2_000), st.binary(max_size=3)), min_size=1, max_size=4),
    st.lists(st.integers(0, 2_000), max_size=4),
)
def test_a_damaged_stream_raises_nothing_but_refusals(
    requests: list[bytes], damages: list[tuple[int, bytes]], places: list[int]
) -> None:
    stream = bytearray(b"".join(requests))
    for place, damage in damages:
        at = place % len(stream)
        stream[at : at + len(damage)] = damage
    try:
        for request in feed(parser(), cut(bytes(stream), places)):
            assert request.raw_path.startswith(b"/") or request.raw_path == b"*"
    except Refusal:
        pass


# -- Upgrade offers


@pytest.mark.parametrize("connection", ["Upgrade, HTTP2-Settings", "keep-alive, Upgrade", "UPGRADE", "upgrade,close"])
@pytest.mark.parametrize("offer", ["Upgrade: h2c", "upgrade:h2c", "UPGRADE:   websocket  ", "Upgrade: TLS/1.0, h2c"])
@pytest.mark.parametrize("order", ["offer first", "connection first"])
def test_an_upgrade_offer_is_read_as_not_made(connection: str, offer: str, order: str) -> None:
    headers = [offer, f"Connection: {connection}"]
    if order == "connection first":
        headers.reverse()
    body = b"\r\nUpgrade: h2c\r\n\r\n"
    for data in (post("/x", body, *headers), chunked("/x", body, headers=tuple(headers))):
        first, *others = parse(data + (b"" if "close" in connection else get("/next")))
        assert first.body == body
        assert b"upgrade" not in dict(first.headers)
        assert first.keep_alive is ("close" not in connection)
        assert [other.raw_path for other in others] == ([b"/next"] if first.keep_alive else [])


def test_several_upgrade_lines_are_all_ignored() -> None:
    (request,) = parse(
        post("/x", b"body", "Upgrade: h2c", "X-Upgrade: stays", "Upgrade: websocket", "Connection: Upgrade")
    )
    assert request.body == b"body"
    assert (b"x-upgrade", b"stays") in request.headers


def test_an_upgrade_line_hides_nothing_malformed() -> None:
    for line in (
        "Upgrade: h2c\r\n folded",
        "Upgrade : h2c",
        "Upgrade: h2\x00c",
        "Upgrade: h2c\nX: y",
        "Upgrade: h2c\rX: y",
    ):
        assert refusal_of(post("/x", b"", line, "Connection: Upgrade")).status == 400


# -- what is refused


@pytest.mark.parametrize(
    ("status", "data"),
    [
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\nabc"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n"),
        (
            400,
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        (501, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\nContent-Length: 3\r\n\r\nabc"),
        (400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x3\r\n\r\nabc"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nX: a\r\n folded\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nX : a\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n"),
        (400, "GET / HTTP/1.1\nHost: a\n\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\n\r\n"),
        (400, "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, "GET /\xe4 HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, "GET a HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, "GET ftp://a/b HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, "get / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, "BREW / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, "GET /\r\n\r\n"),
        (400, "DESCRIBE / RTSP/1.0\r\nHost: a\r\n\r\n"),
        (400, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        (505, "GET / HTTP/0.9\r\nHost: a\r\n\r\n"),
        (505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        (505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n"),
        (501, "CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n"),
        (417, "POST / HTTP/1.1\r\nHost: a\r\nExpect: magic\r\nContent-Length: 3\r\n\r\n"),
    ],
)
def test_what_no_server_should_take_is_refused(status: int, data: str) -> None:
    assert refusal_of(data.encode("latin-1")).status == status


@pytest.mark.parametrize(
    "body",
    [
        "3\r\nabcd\r\n0\r\n\r\n",
        "4\r\nabc\r\n0\r\n\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
        "-3\r\nabc\r\n0\r\n\r\n",
        "3 \r\nabc\r\n0\r\n\r\n",
        "\r\n",
        "3\nabc\n0\n\n",
        "3\r\nabc\n0\r\n\r\n",
        "fffffffffffffffff\r\nabc",
        "0\r\nA: b\r\n folded\r\n\r\n",
        "0\r\nContent-Length: 4\r\n\r\n",
    ],
)
def test_a_badly_chunked_body_is_refused(body: str) -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert refusal_of(head + body.encode() + b"\r\n\r\n").status == 400


def test_trailers_and_chunk_extensions_are_read_over() -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    first, second = parse(head + b'3;a="b"\r\nabc\r\n0\r\nHost: evil\r\nX-Late: 1\r\n\r\n' + get("/next"))
    assert first.body == b"abc"
    assert dict(first.headers)[b"host"] == b"a"
    assert b"x-late" not in dict(first.headers)
    assert second.raw_path == b"/next"


def test_endless_trailers_and_extensions_are_refused() -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert refusal_of(head + b"1;" + b"e" * 2_000 + b"\r\nx\r\n", max_head_bytes=1_000).status == 400
    assert refusal_of(head + b"0\r\n" + b"X: y\r\n" * 300, max_head_bytes=1_000).status == 400


def test_the_smallest_chunks_are_taken() -> None:
    body = b"abc" * 2_000
    (request,) = parse(chunked("/x", *[body[i : i + 1] for i in range(len(body))]), max_head_bytes=1_000)
    assert request.body == body


# -- limits


def test_a_long_request_line_is_a_414_whole_or_not() -> None:
    line = b"GET /" + b"a" * 200
    assert refusal_of(line, max_request_line_bytes=100).status == 414
    assert refusal_of(line + b" HTTP/1.1\r\nHost: a\r\n\r\n", max_request_line_bytes=100).status == 414
    assert parse(get("/" + "a" * 50), max_request_line_bytes=100)


def test_too_many_or_too_large_headers_are_431() -> None:
    many = get("/", *[f"X-{n}: {n}" for n in range(20)])
    assert refusal_of(many, max_header_count=20).status == 431
    assert parse(many, max_header_count=21)
    large = get("/", "X: " + "y" * 2_000)
    assert refusal_of(large, max_head_bytes=2_000).status == 431
    assert refusal_of(large[:-20], max_head_bytes=2_000).status == 431
    assert parse(large, max_head_bytes=len(large))


def test_too_large_a_declared_length_is_refused_before_the_body() -> None:
    assert refusal_of(post("/", b"x" * 101)[:-101], max_body_bytes=100).status == 413


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="max_body_bytes must be above 0"):
        HttpLimits(max_body_bytes=0)


def test_chunks_too_large_together_are_refused() -> None:
    assert refusal_of(chunked("/", b"x" * 60, b"x" * 41), max_body_bytes=100).status == 413
    assert parse(chunked("/", b"x" * 60, b"x" * 40), max_body_bytes=100)


def test_many_headers_may_be_sent_byte_by_byte() -> None:
    data = get("/", *[f"X-{n}: {n}" for n in range(50)])
    (request,) = feed(parser(), [data[i : i + 1] for i in range(len(data))])
    assert (b"x-49", b"49") in request.headers


# -- the budget


def test_a_body_counts_until_it_is_released() -> None:
    budget = BodyBudget(1_000)
    under_test = RequestParser(HttpLimits(), budget)
    under_test.receive(post("/", b"x" * 400) + post("/", b"y" * 500))
    assert under_test.next_request()
    assert budget.used_bytes == 400
    under_test.release()
    assert budget.used_bytes == 0
    assert under_test.next_request()
    under_test.close()
    under_test.close()
    assert budget.used_bytes == 0


def test_a_closed_parser_holds_no_memory_of_refused_requests() -> None:
    budget = BodyBudget(100)
    under_test = RequestParser(HttpLimits(), budget)
    under_test.receive(chunked("/", b"x" * 90, b"x" * 90))
    with pytest.raises(Refusal) as refusal:
        under_test.next_request()
    assert refusal.value.status == 503
    under_test.close()
    assert budget.used_bytes == 0


def test_the_body_longest_on_its_way_gives_way() -> None:
    budget = BodyBudget(1_000)
    slow, slower, quick = (RequestParser(HttpLimits(), budget) for _ in range(3))
    for each in (slower, slow):
        each.receive(post("/", b"x" * 500)[:-50])
        assert each.next_request() is None
    assert budget.used_bytes == 900
    quick.receive(post("/", b"y" * 200))
    assert quick.next_request()
    assert budget.used_bytes == 650
    slow.receive(b"x" * 50)
    assert slow.next_request()
    slower.receive(b"x" * 50)
    with pytest.raises(Refusal) as refusal:
        slower.next_request()
    assert refusal.value.status == 503
    for each in (slow, slower, quick):
        each.close()
    assert budget.used_bytes == 0


def test_a_body_under_way_is_not_asked_for() -> None:
    under_test = parser()
    under_test.receive(post("/", b"abc", "Expect: 100-continue")[:-1])
    assert under_test.next_request() is None
    assert not under_test.take_expectation()


def test_progress_tells_what_is_waited_for() -> None:
    under_test = parser()
    assert under_test.progress is ParseProgress.NOTHING
    head, body = post("/", b"abc", "Expect: 100-continue").split(b"\r\n\r\n")
    under_test.receive(head)
    assert under_test.next_request() is None
    assert under_test.progress is ParseProgress.HEAD
    assert not under_test.take_expectation()
    under_test.receive(b"\r\n\r\n")
    assert under_test.next_request() is None
    assert under_test.progress is ParseProgress.BODY
    assert under_test.take_expectation()
    assert not under_test.take_expectation()
    under_test.receive(body)
    assert under_test.next_request()
    assert under_test.progress is ParseProgress.NOTHING


@pytest.mark.parametrize(
    "host", [b"a", b"a:80", b"A.example.:8080", b"[::1]", b"[::1]:8080", b"", b"127.0.0.1", b"a_b-c", b"a:"]
)
def test_a_host_that_may_be_one_is_taken(host: bytes) -> None:
    assert parse(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host)
    assert parse(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host)


@pytest.mark.parametrize(
    "host",
    [b"a b", b"a/b", b"http://a", b"a@b", b"a:b", b"a:123456", b"[::1", b"::1", b"a,b:c", b'a"b', b"a#", b"\xe9"],
)
def test_a_host_that_can_not_be_one_is_refused(host: bytes) -> None:
    refusal = refusal_of(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host)
    assert (refusal.status, refusal.reason) == (400, "the Host header is not a host and port")


@pytest.mark.parametrize("line", [b"GET  / HTTP/1.1", b"GET /  HTTP/1.1", b"GET / x HTTP/1.1", b" GET / HTTP/1.1"])
def test_a_request_line_of_other_than_three_words_is_refused(line: bytes) -> None:
    assert refusal_of(line + b"\r\nHost: a\r\n\r\n").status == 400


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n", b"GET /\r HTTP/1.1\r\nHost: a\r\n\r\n"]
)
def test_a_bare_carriage_return_is_refused(head: bytes) -> None:
    assert refusal_of(head + b"\r\n\r\n").status == 400
