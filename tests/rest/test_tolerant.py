"""Bodies cut into parts: the parts are what stands there, and no text makes it slow."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.rest.tolerant import TOKENS_MAX_COUNT, Unsplittable, bytes_of, split_object, text_of, value_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
DEEP = "[" * 3_000 + '"]\\\\\\""' + "]" * 3_000


@given(st.dictionaries(st.text(), VALUES), st.lists(VALUES), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_the_parts_are_the_values(
    fields: dict[str, object], items: list[object], indent: int | None, escaped: bool
) -> None:
    fields.pop("items", None)
    text = json.dumps({**fields, "items": items}, indent=indent, ensure_ascii=escaped)
    parts, found = split_object(text, "items")
    assert {name: value_of(part) for name, part in parts.items()} == fields
    assert found is not None
    assert [value_of(part) for part in found] == items


@given(st.dictionaries(st.text(), VALUES), st.integers(0, 3), st.integers(0, 3))
def test_parts_that_no_parser_takes_are_found_whole(fields: dict[str, object], before: int, after: int) -> None:
    fields.pop("items", None)
    others = json.dumps(list(fields.values()))[1:-1]
    hard = [DEEP, "9" * 5_000, '{"a":' + DEEP + ',"b":{"c":"["}}']
    text = "{" + "".join(f"{json.dumps(name)}: {json.dumps(value)} ," for name, value in fields.items())
    text += '"items" : [ ' + ", ".join([*([others] if others else []), *hard]) + " ], \n" + f'"deep":{DEEP}' + "}"
    parts, found = split_object(text, "items")
    assert found is not None
    assert found[-3:] == hard
    assert parts["deep"] == DEEP
    assert set(parts) == {*fields, "deep"}


@given(st.binary())
def test_bytes_of_any_kind_come_back(body: bytes) -> None:
    assert bytes_of(text_of(body)) == body


@given(st.text('{}[]",:\\ 1a', max_size=40))
def test_what_is_no_json_is_not_cut(text: str) -> None:
    try:
        expected = json.loads(text, strict=False)
    except ValueError:
        expected = None
    if isinstance(expected, dict):
        assert {name: value_of(part) for name, part in split_object(text)[0].items()} == expected
    else:
        with pytest.raises(Unsplittable):
            split_object(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":' + "[" * 3_000 + '"' + '\\"' * 1_000_000,
        '{"a":' + "[" * 3_000 + '"x"' * 1_000_000,
        '{"a":' + "[" * 3_000 + "[]" * 1_000_000 + "]" * 3_000 + "}",
        '{"a":' + "[" * 4_000_000,
        '{"a":' + DEEP + " " * 1_000_000,
        "{" * 1_000_000,
    ],
    ids=["escapes", "texts", "pairs", "open", "space", "names"],
)
def test_no_text_takes_long(text: str) -> None:
    started = time.process_time()
    with pytest.raises(Unsplittable):
        split_object(text)
    assert time.process_time() - started < 0.5


def test_the_walk_over_hard_parts_is_bounded() -> None:
    hard = "[" * 2_000 + "]" * 2_000
    most = TOKENS_MAX_COUNT // 4_000
    assert split_object('{"l":[' + ",".join([hard] * (most - 1)) + "]}", "l")[1] == [hard] * (most - 1)
    with pytest.raises(Unsplittable):
        split_object('{"l":[' + ",".join([hard] * (most + 1)) + "]}", "l")
