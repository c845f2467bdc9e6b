"""What of a client's JSON is kept, and what is refused with which words."""

from __future__ import annotations

import json
import math
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.requests.payload import PayloadLimits, check_json_value, check_text, check_variables, clean_text
from penstock.errors import BadRequest, PayloadTooLarge
from penstock.settings import Settings
from tests.shares import in_shares

LIMITS = PayloadLimits(variables_max_bytes=100_000, checkpoint_max_bytes=200, max_depth=10)


def refusal(raw: bytes, field: str = "variables") -> str:
    with pytest.raises(BadRequest) as caught:
        check_variables(raw, LIMITS, field)
    return caught.value.reason


def nested(levels: int) -> bytes:
    """An object with arrays in it, ``levels`` deep altogether."""
    return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


@pytest.mark.parametrize("raw", [None, b"null", b" null\n", b"{}", b" {} "])
def test_no_variables_are_the_empty_object(raw: bytes | None) -> None:
    assert check_variables(raw, LIMITS) == b"{}"


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":1,"a":2}',
        b'{"":null}',
        '{"name":"Jörg 😀","\U0010ffff":"\ufffe"}'.encode(),
        b'{"a":"\\ud83d\\ude00","b":"\\u00e9"}',
        b'{"text":"the escape \\\\u0000 in words"}',
        b'{"a":-0,"b":0.0,"c":1.5e10,"d":1E-7,"e":5e-324,"f":1.7976931348623157e308}',
        b'{"zero":0e10,"long":1e0000000000000001}',
        b'{"max64":18446744073709551615,"beyond":18446744073709551616,"min":-9223372036854775809}',
        b'{"id":"3f2e5a10-77e1-4b2e-8e12-1a2b3c4d5e6f","digits":"' + b"7" * 2_000 + b'"}',
        b'{"brackets":"' + b"[{" * 50 + b'"}',
    ],
)
def test_text_that_can_be_kept_comes_back_as_it_was(raw: bytes) -> None:
    assert check_variables(raw, LIMITS) == raw


def test_only_white_space_around_the_object_is_dropped() -> None:
    assert check_variables(b'\r\n\t {"a": [1, 2]} \n', LIMITS) == b'{"a": [1, 2]}'


@pytest.mark.parametrize("raw", [b"[]", b"1", b'"{}"', b"true", b"[{}]"])
def test_variables_must_be_objects_and_checkpoints_may_be_anything(raw: bytes) -> None:
    assert refusal(raw, "result") == "result: must be a JSON object"
    assert check_json_value(raw, LIMITS, "checkpoint") == raw


def test_null_is_a_checkpoint_like_any_other() -> None:
    assert check_json_value(b"null", LIMITS, "checkpoint") == b"null"


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"{a:1}", b'{"a":1,}', b"{'a':1}", b'{"a":01}', b'{"a":NaN}', b'{"a":"\t"}', b'{"a":"\x00"}', b"{}{}"],
)
def test_what_is_not_json_is_refused_with_the_field(raw: bytes) -> None:
    assert refusal(raw, "result").startswith("result: not JSON: ")


@pytest.mark.parametrize("raw", [b'{"a":"\xff"}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\xc0\x80"}', b'{"\x80":1}'])
def test_invalid_utf8_is_refused(raw: bytes) -> None:
    assert refusal(raw) == "variables: not UTF-8"


@pytest.mark.parametrize(
    "text", ["\\ud800", "\\udc00", "x\\ud800yyyyyyyyyy", "\\ud800\\u0041", "\\ud83d\\ud83d\\ude00", "\\uDFFFzzzzzzzz"]
)
def test_a_lone_surrogate_is_refused(text: str) -> None:
    assert refusal(f'{{"a":"{text}"}}'.encode()).startswith("variables: not JSON, or with a lone surrogate: ")
    assert refusal(f'{{"{text}":1}}'.encode()).startswith("variables: not JSON, or with a lone surrogate: ")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"a":"x\\u0000"}', "variables.a: has a NUL character"),
        (b'{"a":[1,{"b":"\\u0000"}]}', "variables.a[1].b: has a NUL character"),
        (b'{"a":{"\\u0000":1}}', "variables.a: has a NUL character"),
        (b'{"\\u0000":1}', "variables: has a NUL character"),
        (b'{"a":"\\\\\\u0000"}', "variables.a: has a NUL character"),
        (b'{"a":"' + b"x" * 70_000 + b'\\u0000"}', "variables: has a NUL character"),
        (b'{"a b":"\\u0000"}', 'variables["a b"]: has a NUL character'),
    ],
)
def test_a_nul_is_refused_with_its_place(raw: bytes, reason: str) -> None:
    assert refusal(raw) == reason


def test_whole_numbers_are_exact_up_to_1000_digits() -> None:
    longest = b'{"a":-' + b"9" * 1_000 + b"}"
    assert check_variables(longest, LIMITS) == longest
    assert refusal(b'{"a":1' + b"0" * 1_000 + b"}") == "variables.a: has a whole number of more than 1000 digits"
    assert refusal(b'{"a":' + b"9" * 20_000 + b"}") == "variables: has a whole number of more than 1000 digits"


@pytest.mark.parametrize(
    "number",
    [
        "1e309",
        "-1e309",
        "1E+400",
        "2e308",
        "1e-400",
        "0.1e-323",
        "1e99999999999999999999",
        "9" * 309 + ".5",
        f"0.{'0' * 330}1",
    ],
)
def test_a_decimal_that_no_double_holds_is_refused(number: str) -> None:
    assert refusal(f'{{"a":[{number}]}}'.encode()).endswith("is outside what an IEEE double can hold")


@pytest.mark.parametrize("number", ["0e-20000", "0.0e20000", "0e00000000000000000020000"])
def test_a_zero_that_jsonb_can_not_read_is_refused(number: str) -> None:
    assert refusal(f'{{"a":{number}}}'.encode()).endswith("is outside what an IEEE double can hold")


def test_a_decimal_of_more_digits_than_jsonb_keeps_is_refused() -> None:
    kept = b'{"a":0.' + b"1" * 1_000 + b"}"
    assert check_variables(kept, LIMITS) == kept
    assert refusal(b'{"a":0.' + b"1" * 1_001 + b"}").endswith("has more than 1000 digits")


def test_exponents_count_with_the_size_that_jsonb_gives_them() -> None:
    raw = b'{"a":[' + b",".join([b"1e300"] * 400) + b"]}"
    assert len(raw) < LIMITS.variables_max_bytes / 40
    with pytest.raises(PayloadTooLarge, match="exponents written out"):
        check_variables(raw, LIMITS)


@pytest.mark.parametrize("outer", [b"%b", b'{"wide":[[],[],[],[],[],[],[],[],[],[],[],[]],"deep":%b}'])
def test_nesting_is_bounded_and_width_is_not(outer: bytes) -> None:
    extra = 0 if outer == b"%b" else 1
    allowed = outer % nested(LIMITS.max_depth - extra)
    assert check_variables(allowed, LIMITS) == allowed
    assert refusal(outer % nested(LIMITS.max_depth - extra + 1)) == "variables: nested more than 10 levels deep"


def test_endless_nesting_is_refused_like_any_other() -> None:
    assert refusal(nested(40_000)) == "variables: nested more than 10 levels deep"


def test_the_size_is_bounded_before_anything_is_read() -> None:
    with pytest.raises(PayloadTooLarge, match=r"^variables: has 100001 bytes, more than 100000$"):
        check_variables(b"\xff" * 100_001, LIMITS)
    with pytest.raises(PayloadTooLarge, match=r"^progress: has 201 bytes, more than 200$"):
        check_json_value(b"1" * 201, LIMITS, "progress")


def test_the_limits_are_those_of_the_settings() -> None:
    settings = Settings(variables_max_bytes=2_000, checkpoint_max_bytes=3_000, variables_max_depth=17)
    assert PayloadLimits.of(settings) == PayloadLimits(
        variables_max_bytes=2_000, checkpoint_max_bytes=3_000, max_depth=17
    )
    assert PayloadLimits.of(Settings()) == PayloadLimits()


# -- against an independent judgement


def keepable(raw: bytes) -> bool:
    """What the rules say, by Python's own json and nothing of the code under test."""

    def check_number(text: str) -> float:
        digits = re.sub(r"[eE].*", "", text)
        if math.isinf(float(text)) or (float(text) == 0 and re.search("[1-9]", digits)):
            raise ValueError
        return float(text)

    def depth(value: object) -> int:
        children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if children is None else 1 + max(map(depth, children), default=0)

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        tree = json.loads(raw.decode(), parse_float=check_number, parse_constant=refuse)
        text = json.dumps(tree, ensure_ascii=False)
        text.encode()
    except ValueError:
        return False
    return isinstance(tree, dict) and "\\u0000" not in text.replace("\\\\", "") and depth(tree) <= LIMITS.max_depth


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)
PUNCTUATION = [bytes([byte]) for byte in b'{}[]":,.-+10eEa\\ ']
FRAGMENTS = st.sampled_from(
    [
        *PUNCTUATION,
        b"null",
        b"\\n",
        b"\\u0000",
        b"\\ud83d",
        b"\\ude00",
        b"400",
        b"1e3",
        b"[[[[",
        b'{"a":',
        b"\xc3",
        b"\xff",
    ]
)


@pytest.mark.hypothesis
@in_shares
def test_any_object_is_judged_as_the_rules_say(share: int) -> None:
    @settings(max_examples=100 // share)
    @given(st.dictionaries(st.text(), JSON_VALUES), st.booleans(), st.sampled_from([None, 1]))
    def check(value: dict[str, object], escaped: bool, indent: int | None) -> None:
        raw = json.dumps(value, ensure_ascii=escaped, indent=indent).encode("utf-8", "surrogatepass")
        if keepable(raw):
            assert json.loads(check_variables(raw, LIMITS)) == value
        else:
            refusal(raw)

    check()


@given(st.lists(FRAGMENTS, max_size=25))
def test_any_bytes_are_judged_as_the_rules_say(parts: list[bytes]) -> None:
    raw = b'{"a":' + b"".join(parts) + b"}"
    if keepable(raw):
        assert check_variables(raw, LIMITS) == raw
    else:
        refusal(raw)


@given(st.lists(st.sampled_from("0019.eE+-"), min_size=1, max_size=9), st.sampled_from(["", "0" * 320]))
def test_any_number_is_judged_as_the_rules_say(parts: list[str], run: str) -> None:
    number = "".join(parts).replace(".", f".{run}", 1)
    raw = f'{{"n":{number}}}'.encode()
    huge_exponent = re.search(r"[eE][+-]?0*[1-9]\d{3,}", number)
    if keepable(raw) and not huge_exponent:
        assert check_variables(raw, LIMITS) == raw
    else:
        refusal(raw)


# -- texts


@given(st.text(st.characters() | st.sampled_from(["\0", "\ud800", "\udfff", "é", "😀"])), st.integers(1, 40))
def test_a_cleaned_text_is_valid_and_as_similar_as_possible(text: str, max_bytes: int) -> None:
    cleaned = clean_text(text, max_bytes)
    encoded = cleaned.encode()
    assert len(encoded) <= max_bytes
    assert "\0" not in cleaned
    replaced = re.sub("[\0\ud800-\udfff]", "\ufffd", text)
    assert replaced.startswith(cleaned)
    assert cleaned == replaced or len(encoded) > max_bytes - 4


def test_a_text_is_accepted_or_refused_by_its_field() -> None:
    assert check_text("Jörg 😀", "businessKey", 6) == "Jörg 😀"
    for value, reason in [
        ("1234567", "businessKey: has 7 characters, more than 6"),
        ("a\0", "businessKey: has a NUL character"),
        ("\udc80", "businessKey: has a lone surrogate"),
    ]:
        with pytest.raises(BadRequest) as caught:
            check_text(value, "businessKey", 6)
        assert caught.value.reason == reason


def test_raw_json_of_another_decoder_is_taken_as_it_is() -> None:
    body = msgspec.json.decode(b'{"variables": {"a": 1} }', type=dict[str, msgspec.Raw])
    assert check_variables(bytes(body["variables"]), LIMITS) == b'{"a": 1}'
