"""Messages to bytes and back, by a table compiled from the annotations of the message structs.

The one protobuf codec: of the gRPC server and client, the Work stream and the values of Kafka records. It reads
variables as JSON text without ever making a ``Struct``, bounds what a few bytes can stand for, and refuses what
google.protobuf refuses, no matter the bytes. The loser is betterproto2 with its Rust codec: it reads plain messages
three times as fast, but a ``Struct`` or JSON 4 to 700 times as slow, and its codec knows no betterproto2 beyond 0.4.0
(benchmarks/results/notebook.md; ``python -m benchmarks.wire_codecs``).
Relies on ``protobuf`` and ``struct_codec``. ``decode_message`` raises ``DecodeError`` only.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from penstock.wire.fields import (
    Put,
    ReadParts,
    TakeBytes,
    TakeNumber,
    Values,
    json_text,
    put_blob,
    put_blobs,
    put_entries,
    put_json,
    put_messages,
    put_millis,
    put_number,
    put_text,
    put_texts,
    put_word,
    read_timestamp,
    struct_text,
    take_blob,
    take_blobs,
    take_entry,
    take_flag,
    take_int32,
    take_json,
    take_messages,
    take_millis,
    take_text,
    take_texts,
    take_uint32,
    take_word,
    values_of_struct,
    write_timestamp,
)
from penstock.wire.protobuf import (
    BYTES,
    MAX_DEPTH,
    SMALL,
    TRUNCATED,
    VARINT,
    DecodeError,
    budget,
    read_tag,
    read_varint,
    skip_field,
    write_tag,
    write_varint,
)
from penstock.wire.struct_codec import merged_struct, struct_from_json

MessageT = TypeVar("MessageT", bound=msgspec.Struct)


class Proto(msgspec.Struct, frozen=True):
    """A field's number, and its protobuf type where the Python type does not say it.

    A class that is a message of several packages has one for each, with the package's name.
    """

    number: int
    kind: str = ""
    package: str = ""
    words: tuple[str, ...] = ()


STRUCT, VALUE, UINT32 = "struct", "value", "uint32"
JSON = "json"
"""Bytes that are JSON text; as a value of a noun they may be a Python value, too."""
TEXT, INT32, BOOL = "string", "int32", "bool"
OPTIONAL_INT32, OPTIONAL_BOOL = "int32 or none", "bool or none"
"""Of which 0 and "not given" are two things."""
WORDS = "enum"
"""An enum's number for its word in ``words``, which is empty for 0; a number without a word is shown as it is."""
MILLIS = "millis"
"""uint32 milliseconds for seconds; 0 is "not given", and less than one is one."""

_BY_CALL, _IS_TEXT, _IS_NUMBER, _IS_MESSAGE = range(4)
"""How a field is read or written: by its ``take`` or ``put``, or without a call."""
_SHORT_COUNT: Final = 128
"""Lengths and numbers of one byte."""
_NOUN_KINDS = frozenset({STRUCT, JSON, TEXT, INT32, OPTIONAL_INT32, BOOL, OPTIONAL_BOOL, MILLIS, WORDS})


class MessageCodec(Generic[MessageT]):
    """Encodes and decodes one class of messages, as the one that it is in a package.

    With ``as_values`` JSON values of nouns are decoded to Python values, else they stay text.
    """

    def __init__(self, cls: type[MessageT], package: str, *, as_values: bool = False) -> None:
        self._cls = cls
        self._package = package
        self._as_values = as_values
        self._bytes: dict[int, TakeBytes] = {}
        self._short: dict[int, tuple[int, str]] = {}  # of fields that `_read` mostly reads itself
        self._numbers: dict[int, TakeNumber] = {}
        self._writers: list[tuple[str, Put]] = []
        self._heads: dict[str, tuple[int, dict[int, bytes]]] = {}  # of fields that `encode` mostly writes itself
        self._joined: dict[str, ReadParts] = {}
        self._present: set[str] = set()  # fields of which "empty" and "not there" are two things
        for name, python_type, proto in fields_of(cls, package):
            if proto.kind in _NOUN_KINDS and python_type is not bytes:
                self._add_of_noun(name, proto)
            else:
                self._add(name, python_type, proto)
        self._takers = {tag: (*self._short.get(tag, (_BY_CALL, "")), take) for tag, take in self._bytes.items()}
        self._plan: list[tuple[int, dict[int, bytes], bool, Put]] = [
            (*self._heads.get(name, (_BY_CALL, {})), name in self._present, put) for name, put in self._writers
        ]
        # of two names and more a tuple is got, of one the value: two that are not looked at make it one always
        self._values: Callable[[MessageT], tuple[Any, ...]] = attrgetter(
            *(name for name, _ in self._writers), "__class__", "__class__"
        )

    def encode(self, message: MessageT) -> bytes:
        """Return the bytes, fields in the order of their numbers, defaults left out."""
        out: list[bytes] = []
        for (kind, heads, present, put), value in zip(self._plan, self._values(message), strict=False):
            if not value and (value is None or not present):
                continue
            if kind == _IS_TEXT:
                text = value.encode()
                if len(text) < _SHORT_COUNT:
                    out += (heads[len(text)], text)
                    continue
            elif kind == _IS_NUMBER and 0 <= value < _SHORT_COUNT:
                out.append(heads[value])
                continue
            put(out, value)
        return b"".join(out)

    def decode(self, parts: Sequence[bytes], depth: int = MAX_DEPTH) -> MessageT:
        """The message that ``parts`` are together (a message field given twice is one message), each read once.

        Raises DecodeError, or IndexError for the outermost ``decode_message`` to translate.
        """
        if depth <= 0:
            raise DecodeError("the message is nested too deeply")
        values: Values = {}
        for part in parts:
            self._read(part, values, depth)
        for name, read in self._joined.items():
            if name in values:
                values[name] = read(values[name], depth - 1)
        return self._cls(**values)

    def _read(self, data: bytes, values: Values, depth: int) -> None:
        take_bytes = self._takers
        pos, end = 0, len(data)
        while pos < end:
            tag = data[pos]
            pos += 1
            if tag > 0x7F:
                tag, pos = read_tag(data, pos - 1)
            taker = take_bytes.get(tag)
            if taker is not None:  # `read_bytes` and `read_varint`, without a call for what is short
                size = data[pos]
                pos += 1
                if size > 0x7F:
                    size, pos = read_varint(data, pos - 1)
                if pos + size > end:
                    raise DecodeError(TRUNCATED)
                part = data[pos : pos + size]
                pos += size
                kind, name, take = taker
                if kind == _BY_CALL or name in values:
                    take(values, part, depth)
                else:
                    values[name] = part.decode() if kind == _IS_TEXT else [part]
                continue
            number_taker = self._numbers.get(tag)
            if number_taker is not None:
                number = data[pos]
                pos += 1
                if number > 0x7F:
                    number, pos = read_varint(data, pos - 1)
                number_taker(values, number)
            else:
                pos = skip_field(data, pos, tag, depth)

    # ------------------------------------------------------------------------------------------ the table

    def _add(self, name: str, python_type: Any, proto: Proto) -> None:
        origin, args = typing.get_origin(python_type), typing.get_args(python_type)
        tag, prefix = proto.number << 3 | BYTES, write_tag(proto.number, BYTES)
        if proto.kind == STRUCT:
            self._add_message(name, tag, prefix, lambda parts, _: merged_struct(parts), struct_from_json)
        elif origin is list and args[0] is bytes:
            self._bytes[tag] = take_blobs(name)
            self._writers.append((name, put_blobs(prefix)))
        elif origin is list and args[0] is str:
            self._bytes[tag] = take_texts(name)
            self._writers.append((name, put_texts(prefix)))
        elif origin is list:
            inner = self._codec_of(args[0])
            self._bytes[tag] = take_messages(name, inner)
            self._writers.append((name, put_messages(prefix, inner)))
        elif origin is dict:
            as_json = proto.kind == VALUE
            self._bytes[tag] = take_entry(name, as_json)
            self._writers.append((name, put_entries(prefix, as_json)))
        elif origin is types.UnionType:
            self._add_optional(name, tag, prefix, args[0], proto)
        elif python_type is str:
            self._add_text(name, tag, prefix)
        elif python_type is bytes:
            self._bytes[tag] = take_blob(name)
            self._writers.append((name, put_blob(prefix)))
        else:
            self._add_number(name, proto, python_type)

    def _add_optional(self, name: str, tag: int, prefix: bytes, inner_type: Any, proto: Proto) -> None:
        if inner_type in (int, bool):
            self._present.add(name)
            self._add_number(name, proto, inner_type)
        elif inner_type is str:
            self._present.add(name)
            self._add_text(name, tag, prefix)
        elif inner_type is datetime:
            self._add_message(name, tag, prefix, read_timestamp, write_timestamp)
        else:
            inner = self._codec_of(inner_type)
            self._add_message(name, tag, prefix, inner.decode, inner.encode)

    def _codec_of(self, cls: type[msgspec.Struct]) -> MessageCodec[Any]:
        if cls is self._cls:  # a tree
            return self
        return codec_of(cls, self._package, as_values=self._as_values)

    def _add_of_noun(self, name: str, proto: Proto) -> None:
        """A field whose Python type is that of all packages, and of JSON."""
        tag, prefix = proto.number << 3 | BYTES, write_tag(proto.number, BYTES)
        if proto.kind == STRUCT:
            read: ReadParts = values_of_struct if self._as_values else struct_text
            self._add_message(name, tag, prefix, read, lambda value: struct_from_json(json_text(value)))
        elif proto.kind == JSON:
            self._bytes[tag] = take_json(name) if self._as_values else take_blob(name)
            self._writers.append((name, put_json(prefix)))
        elif proto.kind == TEXT:
            self._add_text(name, tag, prefix)
        elif proto.kind == MILLIS:
            self._numbers[proto.number << 3 | VARINT] = take_millis(name)
            self._writers.append((name, put_millis(write_tag(proto.number, VARINT))))
        elif proto.kind == WORDS:
            self._numbers[proto.number << 3 | VARINT] = take_word(name, proto.words)
            self._writers.append((name, put_word(write_tag(proto.number, VARINT), proto.words)))
        else:
            if proto.kind in (OPTIONAL_INT32, OPTIONAL_BOOL):
                self._present.add(name)
            self._add_number(name, proto, bool if proto.kind in (BOOL, OPTIONAL_BOOL) else int)

    def _add_text(self, name: str, tag: int, prefix: bytes) -> None:
        self._bytes[tag] = take_text(name)
        self._short[tag] = (_IS_TEXT, name)
        self._heads[name] = (_IS_TEXT, _heads_of(prefix))
        self._writers.append((name, put_text(prefix)))

    def _add_message(self, name: str, tag: int, prefix: bytes, read: ReadParts, write: Callable[[Any], bytes]) -> None:
        def take(values: Values, part: bytes, _depth: int) -> None:
            parts = values.get(name)
            if parts is None:
                values[name] = [part]
            else:
                budget.spend()
                parts.append(part)

        def put(out: list[bytes], value: Any) -> None:
            body = write(value)
            out += (prefix, write_varint(len(body)), body)

        self._bytes[tag] = take
        self._short[tag] = (_IS_MESSAGE, name)
        self._joined[name] = read
        self._writers.append((name, put))

    def _add_number(self, name: str, proto: Proto, python_type: Any) -> None:
        assert python_type in (bool, int)
        take = take_flag if python_type is bool else take_uint32 if proto.kind == UINT32 else take_int32
        self._numbers[proto.number << 3 | VARINT] = take(name)
        prefix = write_tag(proto.number, VARINT)
        self._heads[name] = (_IS_NUMBER, _heads_of(prefix))
        self._writers.append((name, put_number(prefix)))


@cache
def _heads_of(prefix: bytes) -> dict[int, bytes]:
    """Return the tag with each short length or number behind it."""
    return {number: prefix + SMALL[number] for number in range(_SHORT_COUNT)}


# ---------------------------------------------------------------------------------------------------- entrances


def fields_of(cls: type[msgspec.Struct], package: str = "") -> list[tuple[str, Any, Proto]]:
    """Name, Python type and protobuf field of each field that a class has in a package, in the order of the numbers."""
    package = package or package_of(cls)
    if not package:
        raise TypeError(f"{cls.__name__} is a message of several packages: name the one that is meant")
    fields: list[tuple[str, Any, Proto]] = []
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        if typing.get_origin(hint) is not typing.Annotated:  # in JSON only
            continue
        python_type, *protos = typing.get_args(hint)
        first = next(iter(typing.get_args(python_type)), None)
        if typing.get_origin(first) is list:  # a request's list, which may be null in JSON
            python_type = first
        fields += [
            (name, python_type, proto)
            for proto in protos
            if isinstance(proto, Proto) and proto.package in (package, "")
        ]
    return sorted(fields, key=lambda field: field[2].number)


def package_of(cls: type[msgspec.Struct]) -> str:
    """The package of a class that is a message of one only; empty for the others."""
    package = cast(str, getattr(sys.modules[cls.__module__], "PACKAGE", ""))
    if package:
        return package
    hints = typing.get_type_hints(cls, include_extras=True).values()
    named = {proto.package for hint in hints for proto in getattr(hint, "__metadata__", ()) if isinstance(proto, Proto)}
    return named.pop() if len(named) == 1 else ""


@cache
def package_at(path: str) -> str:
    """Return the package of a method, such as `/package.Service/Method`: the one whose message a noun is there."""
    return path[1:].partition("/")[0].rpartition(".")[0]


@cache
def codec_of(cls: type[MessageT], package: str = "", *, as_values: bool = False) -> MessageCodec[MessageT]:
    """Return the codec of a class, made at its first use. ``package`` counts for classes that are messages of
    several."""
    return MessageCodec(cls, package_of(cls) or package, as_values=as_values)


def encode_message(message: msgspec.Struct, package: str = "") -> bytes:
    """Return a message's bytes; of a noun as it is in ``package``. Raises UnicodeEncodeError for lone surrogates."""
    return codec_of(type(message), package).encode(message)


def decode_message(data: bytes, cls: type[MessageT], package: str = "", *, as_values: bool = False) -> MessageT:
    """Return a message from its bytes; JSON values of nouns as text or as values. Raises DecodeError."""
    budget.begin()
    try:
        codec: MessageCodec[MessageT] = codec_of(cls, package, as_values=as_values)
        return codec.decode((data,))
    except IndexError:
        raise DecodeError(TRUNCATED) from None
    except UnicodeDecodeError:
        raise DecodeError("the message has text that is not UTF-8") from None
