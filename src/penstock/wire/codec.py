"""Messages to bytes and back, by a table compiled from the annotations of the message structs.

The one protobuf codec: of the gRPC server and client, the Work stream and the values of Kafka records. It reads
variables as JSON text without ever making a ``Struct``, bounds what a few bytes can stand for, and refuses what
google.protobuf refuses, no matter the bytes. The loser is betterproto2 with its Rust codec: it reads plain messages
three times as fast, but a ``Struct`` or JSON 4 to 700 times as slow, and its codec knows no betterproto2 beyond 0.4.0
(docs/performance.md; ``python -m benchmarks.wire_codecs``).
Relies on ``protobuf`` and ``struct_codec``. ``decode_message`` raises ``DecodeError`` only.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Any, Generic, TypeVar, cast

import msgspec

from penstock.wire.protobuf import (
    BYTES,
    MAX_DEPTH,
    TRUNCATED,
    VARINT,
    DecodeError,
    budget,
    read_bytes,
    read_tag,
    read_varint,
    skip_field,
    to_int32,
    to_int64,
    write_tag,
    write_varint,
)
from penstock.wire.struct_codec import merged_struct, merged_value, struct_from_json, value_from_json

MessageT = TypeVar("MessageT", bound=msgspec.Struct)


class Proto(msgspec.Struct, frozen=True):
    """A field's number, and its protobuf type where the Python type does not say it."""

    number: int
    kind: str = ""


STRUCT, VALUE, UINT32 = "struct", "value", "uint32"

# What a decoder does with a field: ``values`` are the constructor's arguments so far.
_Values = dict[str, Any]
_TakeBytes = Callable[[_Values, bytes, int], None]
_TakeNumber = Callable[[_Values, int], None]
_ReadParts = Callable[[Sequence[bytes], int], Any]
_Put = Callable[[list[bytes], Any], None]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_1_S, _YEAR_9999_S = -62_135_596_800, 253_402_300_799
_NANOS = 1_000_000_000
_TIMES_KEPT = 1_024


class MessageCodec(Generic[MessageT]):
    """Encodes and decodes one class of messages."""

    def __init__(self, cls: type[MessageT]) -> None:
        self._cls = cls
        self._bytes: dict[int, _TakeBytes] = {}
        self._numbers: dict[int, _TakeNumber] = {}
        self._writers: list[tuple[str, _Put]] = []
        self._joined: dict[str, _ReadParts] = {}
        self._present: set[str] = set()  # fields of which "empty" and "not there" are two things
        for name, python_type, proto in fields_of(cls):
            self._add(name, python_type, proto)

    def encode(self, message: MessageT) -> bytes:
        """The bytes, fields in the order of their numbers, defaults left out."""
        out: list[bytes] = []
        for name, put in self._writers:
            value = getattr(message, name)
            if value or (value is not None and name in self._present):
                put(out, value)
        return b"".join(out)

    def decode(self, parts: Sequence[bytes], depth: int = MAX_DEPTH) -> MessageT:
        """The message that ``parts`` are together (a message field given twice is one message), each read once.

        Raises DecodeError, or IndexError for the outermost ``decode_message`` to translate.
        """
        if depth <= 0:
            raise DecodeError("the message is nested too deeply")
        values: _Values = {}
        for part in parts:
            self._read(part, values, depth)
        for name, read in self._joined.items():
            if name in values:
                values[name] = read(values[name], depth - 1)
        return self._cls(**values)

    def _read(self, data: bytes, values: _Values, depth: int) -> None:
        take_bytes, take_number = self._bytes, self._numbers
        pos, end = 0, len(data)
        while pos < end:
            tag = data[pos]
            pos += 1
            if tag > 0x7F:
                tag, pos = read_tag(data, pos - 1)
            taker = take_bytes.get(tag)
            if taker is not None:
                part, pos = read_bytes(data, pos)
                taker(values, part, depth)
                continue
            number_taker = take_number.get(tag)
            if number_taker is not None:
                number, pos = read_varint(data, pos)
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
            self._bytes[tag] = _take_blobs(name)
            self._writers.append((name, _put_blobs(prefix)))
        elif origin is list and args[0] is str:
            self._bytes[tag] = _take_texts(name)
            self._writers.append((name, _put_texts(prefix)))
        elif origin is list:
            inner = codec_of(args[0])
            self._bytes[tag] = _take_messages(name, inner)
            self._writers.append((name, _put_messages(prefix, inner)))
        elif origin is dict:
            as_json = proto.kind == VALUE
            self._bytes[tag] = _take_entry(name, as_json)
            self._writers.append((name, _put_entries(prefix, as_json)))
        elif origin is types.UnionType:
            self._add_optional(name, tag, prefix, args[0])
        elif python_type is str:
            self._bytes[tag] = _take_text(name)
            self._writers.append((name, _put_text(prefix)))
        elif python_type is bytes:
            self._bytes[tag] = _take_blob(name)
            self._writers.append((name, _put_blob(prefix)))
        else:
            self._add_number(name, proto, python_type)

    def _add_optional(self, name: str, tag: int, prefix: bytes, inner_type: Any) -> None:
        if inner_type is str:
            self._present.add(name)
            self._bytes[tag] = _take_text(name)
            self._writers.append((name, _put_text(prefix)))
        elif inner_type is datetime:
            self._add_message(name, tag, prefix, _read_timestamp, _write_timestamp)
        else:
            inner = codec_of(inner_type)
            self._add_message(name, tag, prefix, inner.decode, inner.encode)

    def _add_message(self, name: str, tag: int, prefix: bytes, read: _ReadParts, write: Callable[[Any], bytes]) -> None:
        def take(values: _Values, part: bytes, _depth: int) -> None:
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
        self._joined[name] = read
        self._writers.append((name, put))

    def _add_number(self, name: str, proto: Proto, python_type: Any) -> None:
        prefix = write_tag(proto.number, VARINT)
        if python_type is bool:

            def take(values: _Values, number: int) -> None:
                if name in values:
                    budget.spend()
                values[name] = number != 0
        elif proto.kind == UINT32:

            def take(values: _Values, number: int) -> None:
                if name in values:
                    budget.spend()
                values[name] = number & 0xFFFF_FFFF
        else:
            assert python_type is int

            def take(values: _Values, number: int) -> None:
                if name in values:
                    budget.spend()
                values[name] = to_int32(number)

        def put(out: list[bytes], value: int) -> None:
            out += (prefix, write_varint(value if value > 0 else value & 0xFFFF_FFFF_FFFF_FFFF))

        self._numbers[proto.number << 3 | VARINT] = take
        self._writers.append((name, put))


def _take_text(name: str) -> _TakeBytes:
    def take(values: _Values, part: bytes, _depth: int) -> None:
        if name in values:
            budget.spend()
        values[name] = part.decode()

    return take


def _take_blob(name: str) -> _TakeBytes:
    def take(values: _Values, part: bytes, _depth: int) -> None:
        if name in values:
            budget.spend()
        values[name] = part

    return take


def _take_blobs(name: str) -> _TakeBytes:
    def take(values: _Values, part: bytes, _depth: int) -> None:
        budget.spend()
        values.setdefault(name, []).append(part)

    return take


def _take_texts(name: str) -> _TakeBytes:
    def take(values: _Values, part: bytes, _depth: int) -> None:
        budget.spend()
        values.setdefault(name, []).append(part.decode())

    return take


def _take_messages(name: str, inner: MessageCodec[Any]) -> _TakeBytes:
    def take(values: _Values, part: bytes, depth: int) -> None:
        budget.spend()
        values.setdefault(name, []).append(inner.decode((part,), depth - 1))

    return take


def _take_entry(name: str, as_json: bool) -> _TakeBytes:
    def take(values: _Values, part: bytes, depth: int) -> None:
        budget.spend()
        key, parts = _read_entry(part, depth - 1)
        texts = None if as_json else [text.decode() for text in parts]
        # of texts the last one counts, messages are merged
        item = merged_value(parts) if texts is None else texts[-1] if texts else ""
        values.setdefault(name, {})[key] = item

    return take


def _read_entry(data: bytes, depth: int) -> tuple[str, list[bytes]]:
    key = ""
    parts: list[bytes] = []
    pos, end = 0, len(data)
    free = 2  # key and value
    while pos < end:
        free -= 1
        if free < 0:
            budget.spend()
        tag, pos = read_tag(data, pos)
        if tag == 0x0A:
            text, pos = read_bytes(data, pos)
            key = text.decode()
        elif tag == 0x12:
            part, pos = read_bytes(data, pos)
            parts.append(part)
        else:
            pos = skip_field(data, pos, tag, depth)
    return key, parts


def _put_text(prefix: bytes) -> _Put:
    def put(out: list[bytes], value: str) -> None:
        text = value.encode()
        out += (prefix, write_varint(len(text)), text)

    return put


def _put_blob(prefix: bytes) -> _Put:
    def put(out: list[bytes], value: bytes) -> None:
        out += (prefix, write_varint(len(value)), value)

    return put


def _put_texts(prefix: bytes) -> _Put:
    def put(out: list[bytes], value: Sequence[str]) -> None:
        for item in value:
            text = item.encode()
            out += (prefix, write_varint(len(text)), text)

    return put


def _put_blobs(prefix: bytes) -> _Put:
    def put(out: list[bytes], value: Sequence[bytes]) -> None:
        for item in value:
            out += (prefix, write_varint(len(item)), item)

    return put


def _put_messages(prefix: bytes, inner: MessageCodec[Any]) -> _Put:
    def put(out: list[bytes], value: Sequence[Any]) -> None:
        for item in value:
            body = inner.encode(item)
            out += (prefix, write_varint(len(body)), body)

    return put


def _put_entries(prefix: bytes, as_json: bool) -> _Put:
    def put(out: list[bytes], value: Mapping[str, Any]) -> None:
        for key, item in value.items():
            text = key.encode()
            body = value_from_json(item) if as_json else item.encode()
            entry = b"".join((b"\x0a", write_varint(len(text)), text, b"\x12", write_varint(len(body)), body))
            out += (prefix, write_varint(len(entry)), entry)

    return put


# ---------------------------------------------------------------------------------------------------- timestamps


@lru_cache(_TIMES_KEPT)
def _write_timestamp(when: datetime) -> bytes:
    """Jobs of one batch have the same times, to the microsecond: half of what a job costs to write."""
    passed = when - _EPOCH
    seconds = passed.days * 86_400 + passed.seconds
    out = b"\x08" + write_varint(seconds & 0xFFFF_FFFF_FFFF_FFFF) if seconds else b""
    if passed.microseconds:
        out += b"\x10" + write_varint(passed.microseconds * 1_000)
    return out


def _read_timestamp(parts: Sequence[bytes], depth: int) -> datetime:
    seconds = nanos = 0
    for data in parts:
        pos, end = 0, len(data)
        free = 2
        while pos < end:
            free -= 1
            if free < 0:
                budget.spend()
            tag, pos = read_tag(data, pos)
            if tag == 0x08:
                number, pos = read_varint(data, pos)
                seconds = to_int64(number)
            elif tag == 0x10:
                number, pos = read_varint(data, pos)
                nanos = to_int32(number)
            else:
                pos = skip_field(data, pos, tag, depth)
    if not (_YEAR_1_S <= seconds <= _YEAR_9999_S and 0 <= nanos < _NANOS):
        raise DecodeError("a Timestamp is out of range")
    return _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1_000)


# ---------------------------------------------------------------------------------------------------- entrances


def fields_of(cls: type[msgspec.Struct]) -> list[tuple[str, Any, Proto]]:
    """Name, Python type and protobuf field of every field of a message class, in the order of the numbers."""
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = [(name, *cast(tuple[Any, Proto], typing.get_args(hint))) for name, hint in hints.items()]
    return sorted(fields, key=lambda field: field[2].number)


@cache
def codec_of(cls: type[MessageT]) -> MessageCodec[MessageT]:
    """The codec of a class, made at its first use."""
    return MessageCodec(cls)


def encode_message(message: msgspec.Struct) -> bytes:
    """A message's bytes. Raises UnicodeEncodeError for lone surrogates."""
    return codec_of(type(message)).encode(message)


def decode_message(data: bytes, cls: type[MessageT]) -> MessageT:
    """A message from its bytes. Raises DecodeError."""
    budget.begin()
    try:
        codec: MessageCodec[MessageT] = codec_of(cls)
        return codec.decode((data,))
    except IndexError:
        raise DecodeError(TRUNCATED) from None
    except UnicodeDecodeError:
        raise DecodeError("the message has text that is not UTF-8") from None
