"""The codec against google.protobuf: on any message, and on any bytes."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from datetime import UTC, datetime, timedelta
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.wire import batch, model, repair, schedule, update
from penstock.wire import penstock_v1 as w
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import (
    BOOL,
    INT32,
    JSON,
    MILLIS,
    STRUCT,
    TEXT,
    UINT32,
    VALUE,
    WORDS,
    Proto,
    decode_message,
    encode_message,
    fields_of,
    package_of,
)
from penstock.wire.model import Completion, Failure, PollRequest, StartRequest
from penstock.wire.protobuf import DecodeError
from penstock.wire.struct_codec import (
    decode_struct,
    encode_struct,
    encode_value,
    struct_from_json,
    struct_to_json,
    value_from_json,
    value_to_json,
)
from tests.rpc.conftest import Google
from tests.rpc.test_generated import structs
from tests.shares import in_shares, mostly_slow

KINDS = [
    (name, kind, module.PACKAGE) for module in (m, w) for name, kind in structs(module).items()
]  # fmt: skip
A_TENTH = 10
SOME = [(*case, A_TENTH) for case in KINDS[::6]]
EACH = [*SOME, *((*case, 1) for case in KINDS)]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
doubles = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | doubles | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
json_objects = st.dictionaries(texts, json_values, max_size=5)
int32s = st.integers(-(2**31), 2**31 - 1)
times = st.datetimes(timezones=st.just(UTC))


def whole(value: Any) -> Any:
    """What a Struct makes of a JSON value: numbers are doubles, shown whole where they are."""
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = float(value)
        return int(value) if value.is_integer() and abs(value) < 1e21 else value
    return value


NONZERO: dict[str, st.SearchStrategy[Any]] = {
    TEXT: texts.filter(bool),
    INT32: int32s.filter(bool),
    BOOL: st.just(True),
    JSON: st.binary(min_size=1, max_size=12),
    MILLIS: st.integers(1, 2**32 - 1).map(lambda number: number / 1_000),
}
"""Of classes that are messages of several packages: what is empty there is not given."""


def field_values(python_type: Any, proto: Proto, package: str = "") -> st.SearchStrategy[Any]:
    origin, args = get_origin(python_type), get_args(python_type)
    if proto.kind == WORDS:
        return st.sampled_from(proto.words[1:])
    if proto.kind in NONZERO:
        return NONZERO[proto.kind]
    if proto.kind == STRUCT:
        return st.just(b"") | json_objects.map(lambda value: msgspec.json.encode(whole(value)))
    if proto.kind == UINT32:
        return st.integers(0, 2**32 - 1)
    if origin is dict:
        values = json_values.map(lambda value: msgspec.json.encode(whole(value))) if proto.kind == VALUE else texts
        return st.dictionaries(texts, values, max_size=3)
    if origin is list and args[0] is model.Branch:  # of a tree: a little of it
        return st.lists(st.deferred(lambda: whole_messages(model.Branch, package)), max_size=1)
    if origin is list:
        return st.lists(field_values(args[0], Proto(0), package), max_size=3)
    if origin is UnionType:
        return st.none() | (times if args[0] is datetime else field_values(args[0], Proto(0), package))
    if isinstance(python_type, type) and issubclass(python_type, msgspec.Struct):
        return whole_messages(python_type, package)
    return {str: texts, bytes: st.binary(max_size=12), int: int32s, bool: st.booleans()}[python_type]


def whole_messages(kind: type[msgspec.Struct], package: str) -> st.SearchStrategy[Any]:
    values = {name: field_values(python_type, proto, package) for name, python_type, proto in fields_of(kind, package)}
    if is_shared(kind):
        for name, _, proto in fields_of(kind, package):
            if proto.kind == STRUCT:
                values[name] = json_objects.map(lambda value: msgspec.json.encode(whole(value)))
        return st.fixed_dictionaries({}, optional=values).map(lambda given: kind(**given))
    return st.builds(kind, **values)


def is_shared(kind: type[msgspec.Struct]) -> bool:
    return kind.__module__ in (model.__name__, schedule.__name__, repair.__name__, batch.__name__, update.__name__)


def google_class(google: Google, name: str, package: str) -> Any:
    if package == m.PACKAGE:
        return getattr(google.workflow, name)
    files = (google.penstock, google.schedules, google.updates, google.repair, google.batches, google.runs)
    return next(vars(file)[name] for file in files if name in vars(file))


# --------------------------------------------------------------------------- what google.protobuf read, as we show it


class NoJson(Exception):
    """google.protobuf takes it, JSON (or Python's datetime) can't hold it."""


class SetAside(Exception):
    """upb takes a map's entry that holds a field it doesn't know out of the map, as Java and C++ don't."""


def check_entries(message: Any, *map_fields: int) -> None:
    for unknown in UnknownFieldSet(message):
        if unknown.field_number in map_fields and unknown.wire_type == 2:
            raise SetAside


def from_value(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return from_struct(value.struct_value)
    if kind == "list_value":
        return [from_value(item) for item in value.list_value.values]
    if kind in (None, "null_value"):
        return None
    found = getattr(value, kind)
    if isinstance(found, float):
        if not math.isfinite(found):
            raise NoJson
        return whole(found)
    return found


def from_struct(struct: Any) -> dict[str, Any]:
    check_entries(struct, 1)
    return {key: from_value(item) for key, item in struct.fields.items()}


def from_google(theirs: Any, kind: type[msgspec.Struct], package: str) -> dict[str, Any]:
    """The message with JSON texts parsed (the order of their keys is google's)."""
    found: dict[str, Any] = {}
    if kind is m.WorkflowStep:
        check_entries(theirs, 20, 30)
    for name, python_type, proto in fields_of(kind, package):
        theirs_name = theirs.DESCRIPTOR.fields_by_number[proto.number].name
        value, origin, args = getattr(theirs, theirs_name), get_origin(python_type), get_args(python_type)
        if proto.kind in NONZERO or proto.kind == WORDS:
            found[name] = value
        elif proto.kind == STRUCT:
            found[name] = from_struct(value) if theirs.HasField(theirs_name) else None
        elif origin is dict:
            found[name] = {key: from_value(item) if proto.kind == VALUE else item for key, item in value.items()}
        elif origin is list:
            found[name] = [from_google(item, args[0], package) if args[0] is not str else item for item in value]
        elif origin is UnionType and not theirs.HasField(name):
            found[name] = None
        elif origin is UnionType and args[0] is datetime:
            if not (-62_135_596_800 <= value.seconds <= 253_402_300_799 and 0 <= value.nanos < 10**9):
                raise NoJson
            found[name] = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
                seconds=value.seconds, microseconds=value.nanos // 1000
            )
        elif origin is UnionType:
            found[name] = from_google(value, args[0], package)
        else:
            found[name] = value
    return found


def from_ours(ours: Any, kind: Any, package: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, python_type, proto in fields_of(kind, package):
        value, origin, args = getattr(ours, name), get_origin(python_type), get_args(python_type)
        if proto.kind == MILLIS:
            found[name] = round((value or 0) * 1_000)
        elif proto.kind == JSON:
            found[name] = bytes(value or b"")
        elif proto.kind == WORDS:
            found[name] = proto.words.index(value) if value in proto.words else int(value)
        elif proto.kind in NONZERO:
            found[name] = value or {TEXT: "", INT32: 0, BOOL: False}[proto.kind]
        elif proto.kind == STRUCT:
            found[name] = json.loads(value) if value else None
        elif origin is dict and proto.kind == VALUE:
            found[name] = {key: json.loads(item) for key, item in value.items()}
        elif origin is list and args[0] is not str:
            found[name] = [from_ours(item, args[0], package) for item in value]
        elif origin is UnionType and value is not None and args[0] is not datetime:
            found[name] = from_ours(value, args[0], package)
        else:
            found[name] = value
    return found


# ------------------------------------------------------------------------------------------------------- any message


@pytest.mark.hypothesis
@pytest.mark.parametrize(
    ("name", "kind", "package", "share"),
    mostly_slow(EACH, quick=SOME, reason="thousands of random messages"),
    ids=[f"{package}.{name}-{'all' if share == 1 else 'a-tenth'}" for name, _, package, share in EACH],
)
def test_any_message_is_the_same_to_google(
    google: Google, name: str, kind: type[msgspec.Struct], package: str, share: int
) -> None:
    theirs_of = google_class(google, name, package)

    @settings(max_examples=40 // share, deadline=None)
    @given(whole_messages(kind, package))
    def check(ours: Any) -> None:
        data = encode_message(ours, package)
        assert decode_message(data, kind, package) == ours
        theirs = theirs_of.FromString(data)
        assert from_google(theirs, kind, package) == from_ours(ours, kind, package)
        assert from_ours(decode_message(theirs.SerializeToString(), kind, package), kind, package) == from_ours(
            ours, kind, package
        )

    check()


# --------------------------------------------------------------------------------------------------------- any bytes

mutations = st.lists(st.tuples(st.integers(0, 200), st.sampled_from("tdix"), st.binary(max_size=6)), max_size=4)


def mutated(data: bytes, changes: list[tuple[int, str, bytes]]) -> bytes:
    for at, how, junk in changes:
        at = at % (len(data) + 1)
        if how == "t":
            data = data[:at]
        elif how == "d":
            data = data[:at] + data[at + 1 :]
        elif how == "i":
            data = data[:at] + junk + data[at:]
        else:
            data = data + data[at:]  # fields given twice, or halves of them
    return data


FUZZED = [
    ("CompleteJobRequest", Completion), ("StartInstanceRequest", StartRequest), ("PollJobsRequest", PollRequest),
    ("FailJobRequest", Failure), ("PollJobsResponse", m.PollJobsResponse),
    ("UploadDefinitionRequest", m.UploadDefinitionRequest), ("JobDispatchEvent", m.JobDispatchEvent),
    ("WorkRequest", w.WorkRequest), ("WorkResponse", w.WorkResponse),
    ("StartInstancesRequest", w.StartInstancesRequest),
]  # fmt: skip
FUZZED_A_TENTH = [("CompleteJobRequest", Completion, A_TENTH), ("PollJobsRequest", PollRequest, A_TENTH)]


@pytest.mark.hypothesis
@pytest.mark.parametrize(
    ("name", "kind", "share"),
    mostly_slow(
        [*FUZZED_A_TENTH, *((*case, 1) for case in FUZZED)],
        quick=FUZZED_A_TENTH,
        reason="thousands of random messages",
    ),
    ids=lambda given: given if isinstance(given, str) else {1: "all", A_TENTH: "a-tenth"}.get(given, ""),
)
def test_any_bytes_are_taken_or_refused_as_google_does(
    google: Google, name: str, kind: type[msgspec.Struct], share: int
) -> None:
    from google.protobuf.message import DecodeError as TheirError

    package = package_of(kind) or m.PACKAGE
    theirs_of = google_class(google, name, package)
    encoded = whole_messages(kind, package).map(lambda made: encode_message(made, package))

    @settings(max_examples=300 // share, deadline=None)
    @given(st.builds(mutated, encoded, mutations) | st.binary(max_size=60))
    @example(b"\x0b\x0c")
    @example(b"\x1a\x01\x0a\x1a\x01\x00")  # a message in two halves that only together are one
    @example(b"\x1a\x07\x0a\x05\x0a\x01k\x12\x00\x1a\x09\x0a\x07\x0a\x01k\x12\x02\x20\x01")
    @example(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
    @example(b"\x88\x80\x80\x80\x80\x00\x01")
    @example(b"\x80\x80\x80\x80\x10\x01")
    def check(data: bytes) -> None:
        try:
            theirs = theirs_of.FromString(data)
        except TheirError:
            with pytest.raises(DecodeError):
                decode_message(data, kind, package)
            return
        try:
            expected = from_google(theirs, kind, package)
        except NoJson:
            with pytest.raises(DecodeError):
                decode_message(data, kind, package)
            return
        except SetAside:
            with contextlib.suppress(DecodeError):
                decode_message(data, kind, package)
            return
        try:
            ours = decode_message(data, kind, package)
        except DecodeError as error:
            check_replaced(error)
            return
        assert from_ours(ours, kind, package) == expected

    check()


def check_replaced(error: DecodeError) -> None:
    """What google.protobuf takes and we don't is of one kind: no JSON, in a value that another one replaces later."""
    assert "number that JSON" in str(error) or "Timestamp" in str(error)


@pytest.mark.hypothesis
@in_shares
def test_arbitrary_bytes_raise_nothing_but_decode_error(share: int) -> None:
    @settings(max_examples=300 // share)
    @given(st.binary(max_size=80))
    def check(data: bytes) -> None:
        for _, kind, package in KINDS:
            for as_values in (False, True):
                with contextlib.suppress(DecodeError):
                    decode_message(data, kind, package, as_values=as_values)

    check()


# ------------------------------------------------------------------------------------------------------------ Structs


@pytest.mark.hypothesis
@in_shares
def test_a_struct_is_what_google_makes_of_it(share: int) -> None:
    from google.protobuf.struct_pb2 import Struct

    @settings(max_examples=300 // share)
    @given(json_objects)
    def check(value: dict[str, Any]) -> None:
        ours = encode_struct(value)
        assert from_struct(Struct.FromString(ours)) == whole(value)
        theirs = Struct()
        theirs.update(value)
        assert decode_struct(theirs.SerializeToString()) == whole(value)
        assert json.loads(struct_to_json(ours)) == whole(value)
        assert struct_from_json(json.dumps(value).encode()) == ours

    check()


@pytest.mark.hypothesis
@in_shares
def test_any_bytes_are_the_struct_that_google_reads(share: int) -> None:
    @settings(max_examples=800 // share)
    @given(st.builds(mutated, json_objects.map(encode_struct), mutations) | st.binary(max_size=60))
    def check(data: bytes) -> None:
        check_struct(data)

    check()


def check_struct(data: bytes) -> None:
    from google.protobuf.message import DecodeError as TheirError
    from google.protobuf.struct_pb2 import Struct

    try:
        expected: Any = from_struct(Struct.FromString(data))
    except (TheirError, NoJson):
        with pytest.raises(DecodeError):
            decode_struct(data)
        return
    except SetAside:
        with contextlib.suppress(DecodeError):
            decode_struct(data)
        return
    try:
        assert decode_struct(data) == expected
    except DecodeError as error:
        check_replaced(error)


def test_a_struct_is_the_same_at_each_length() -> None:
    """Lengths of a key, a text, a value and an entry that take one byte, two, and three."""
    from google.protobuf.struct_pb2 import Struct

    for key_chars in (0, 1, 63, 64, 65, 115, 116, 117, 124, 125, 126, 128, 300):
        for value in (
            0,
            -(2**64),
            2**64,
            1.5,
            True,
            None,
            [],
            {},
            *("ü" * n for n in (0, 57, 62, 63, 64, 8_192)),
            "x" * 125,
        ):
            given = {"k" * key_chars: value}
            assert from_struct(Struct.FromString(encode_struct(given))) == whole(given)
    for size in range(110, 132):
        given = {"k": "x" * size, "inner": {"k": ["x" * size, size]}}
        assert from_struct(Struct.FromString(encode_struct(given))) == whole(given)


def test_more_keys_and_lengths_than_are_remembered() -> None:
    """What stands before a value is kept for short ones, up to a number of them; long ones are made each time."""
    from google.protobuf.struct_pb2 import Struct

    from penstock.wire.struct_codec import _HEADS_KEPT, _SIZES_KEPT

    many = {f"k{n}": n if n % 2 else "x" * (n % 7) for n in range(2 * _HEADS_KEPT + 10)}
    near = {
        f"l{size}": [{"a": "x" * (size - 13)}, {"b": ["y" * (size - 9), {"c": "z" * size}]}, "w" * size]
        for size in range(_SIZES_KEPT - 20, _SIZES_KEPT + 20)
    }
    for _ in range(2):
        for fields in (many, near):
            assert from_struct(Struct.FromString(encode_struct(fields))) == whole(fields)


def test_whole_numbers_come_back_whole() -> None:
    cases = {
        "3": "3",
        "3.0": "3",
        "-0.0": "0",
        "2.5": "2.5",
        "9007199254740993": "9007199254740992",
        "1e20": "1" + "0" * 20,
        "1e300": "1e300",
    }
    for given_text, shown in cases.items():
        assert value_to_json(value_from_json(given_text.encode())).decode() == shown


def test_a_whole_number_beyond_any_double_is_its_digits() -> None:
    digits = "1" + "0" * 400
    assert value_to_json(value_from_json(digits.encode())) == b'"%s"' % digits.encode()


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_are_no_json_are_refused(value: float) -> None:
    with pytest.raises(DecodeError, match="JSON"):
        decode_struct(b"\x0a\x0e\x0a\x01k\x12\x09" + encode_value(value))


def test_nesting_is_taken_to_the_limit_and_not_beyond() -> None:
    from google.protobuf.struct_pb2 import Struct

    def nested(levels: int) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for _ in range(levels - 1):
            value = {"k": value}
        return value

    assert decode_struct(encode_struct(nested(32))) == nested(32)
    Struct.FromString(encode_struct(nested(32)))  # google reads it as well
    with pytest.raises(DecodeError, match="nested"):
        decode_struct(encode_struct(nested(33)))


@pytest.mark.parametrize("kind", [dict, list])
def test_what_the_engine_nests_deeper_is_written_as_text(google: Google, kind: type) -> None:
    """REST takes 100 levels; a client's library would refuse the whole answer."""
    for levels in (5, 31, 32, 33, 60, 99):
        value: Any = 7
        for _ in range(levels - 1):
            value = {"k": value} if kind is dict else [value]
        variables = {"deep": value, "other": [1]}
        job = m.Job(id="1-2-3", variables=msgspec.json.encode(variables))  # pyright: ignore[reportArgumentType] - a stand-in
        data = encode_message(m.PollJobsResponse([job]))
        read = from_struct(google.workflow.PollJobsResponse.FromString(data).jobs[0].variables)
        assert json.loads(decode_message(data, m.PollJobsResponse).jobs[0].variables) == read  # pyright: ignore[reportArgumentType] - a stand-in
        assert read["other"] == [1]
        assert (read == variables) == (levels <= 32)
        inner = read["deep"]
        while not isinstance(inner, (int, str)):
            (inner,) = inner.values() if isinstance(inner, dict) else inner
        if isinstance(inner, str):
            inner = json.loads(inner)
            while not isinstance(inner, int):
                (inner,) = inner.values() if isinstance(inner, dict) else inner
        assert inner == 7


def test_what_is_no_json_is_a_programmers_error() -> None:
    with pytest.raises(TypeError):
        encode_struct({"k": object()})
    with pytest.raises(TypeError):
        struct_from_json(b"[]")


def halves(levels: int, leaf: bytes) -> bytes:
    """A Struct, nested, in which each Value comes in two parts, the second one empty."""
    value = leaf
    for _ in range(levels):
        value = b"\x2a" + length(b"\x0a" + length(b"\x0a\x01k\x12" + length(value) + b"\x12\x00")) + b"\x2a\x00"
    return b"\x0a" + length(b"\x0a\x01k\x12" + length(value))


def steps_of(data: bytes) -> int:
    """The lines of Python that decoding runs: a measure of its work that no clock disturbs."""
    count = 0

    def tick(_frame: Any, event: str, _arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return tick

    sys.settrace(tick)
    try:
        decode_struct(data)
    finally:
        sys.settrace(None)
    return count


def test_halves_of_halves_are_read_once_at_every_level() -> None:
    """Each message in two parts was read twice more: 258 bytes took 3.9 s."""
    few, many = halves(6, b"\x20\x01"), halves(24, b"\x20\x01")
    assert steps_of(many) < 5 * steps_of(few)
    assert json.dumps(decode_struct(many)).count("k") == 25


@pytest.mark.parametrize(
    "field",
    [
        pytest.param(b"\x78\x01", id="unknown number"),
        pytest.param(b"\x7a\x00", id="unknown bytes"),
        pytest.param(b"\x7b\x7c", id="unknown group"),
        pytest.param(b"\x0a\x00", id="text given again"),
        pytest.param(b"\x18\x01", id="number of another wire type"),
        pytest.param(b"\x1a\x00", id="Struct given again"),
        pytest.param(b"\x1a\x02\x78\x01", id="unknown in a Struct"),
        pytest.param(b"\x1a\x04\x0a\x02\x78\x01", id="unknown in an entry"),
    ],
)
def test_fields_that_add_nothing_are_bounded(field: bytes) -> None:
    """8 MiB of them took up to 7.6 s."""
    with pytest.raises(DecodeError, match="more than"):
        decode_message(field * 250_000, Completion, m.PACKAGE)


def test_a_messages_structs_share_one_bound_of_values() -> None:
    """A map of Values had as many as one Value may have, for each of its entries."""
    many = b"\x32" + length(b"\x0a\x00" * 50_000)
    entry = b"\xf2\x01" + length(b"\x0a\x01k\x12" + length(many))
    step = b"\x3a" + length(entry * 5)
    with pytest.raises(DecodeError, match="values"):
        decode_message(b"\x0a" + length(step), m.UploadDefinitionRequest)


def length(body: bytes) -> bytes:
    from penstock.wire.protobuf import write_varint

    return write_varint(len(body)) + body


def test_a_million_tags_of_one_field_take_linear_time() -> None:
    pieces = b"\x1a\x02\x0a\x00" * 60_000
    assert decode_message(pieces, Completion, m.PACKAGE).variables == b'{"":null}'
