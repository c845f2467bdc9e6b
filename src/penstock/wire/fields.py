"""The fields of messages, one function for each way to read or write one. `codec` puts them into its tables.

A ``take`` adds what it read to the constructor's arguments so far, a ``put`` appends a field's bytes. Raises
``DecodeError``, ``IndexError`` or ``UnicodeDecodeError`` only, which `codec` turns into the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Protocol

import msgspec

from penstock.wire.protobuf import (
    DecodeError,
    budget,
    read_bytes,
    read_tag,
    read_varint,
    skip_field,
    to_int32,
    to_int64,
    write_varint,
)
from penstock.wire.struct_codec import merged_struct, merged_value, struct_values, value_from_json

# What a decoder does with a field: ``values`` are the constructor's arguments so far.
Values = dict[str, Any]
TakeBytes = Callable[[Values, bytes, int], None]
TakeNumber = Callable[[Values, int], None]
ReadParts = Callable[[Sequence[bytes], int], Any]
Put = Callable[[list[bytes], Any], None]

_UINT32 = 2**32 - 1
_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder().decode
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_1_S, _YEAR_9999_S = -62_135_596_800, 253_402_300_799
_NANOS = 1_000_000_000
_TIMES_KEPT = 1_024


class Codec(Protocol):
    """What reads and writes one class of messages."""

    def encode(self, message: Any) -> bytes: ...

    def decode(self, parts: Sequence[bytes], depth: int) -> Any: ...


def take_text(name: str) -> TakeBytes:
    def take(values: Values, part: bytes, _depth: int) -> None:
        if name in values:
            budget.spend()
        values[name] = part.decode()

    return take


def take_blob(name: str) -> TakeBytes:
    def take(values: Values, part: bytes, _depth: int) -> None:
        if name in values:
            budget.spend()
        values[name] = part

    return take


def take_json(name: str) -> TakeBytes:
    def take(values: Values, part: bytes, _depth: int) -> None:
        if name in values:
            budget.spend()
        try:
            values[name] = _decode_json(part) if part else None
        except (msgspec.DecodeError, RecursionError) as error:
            raise DecodeError(f"{name} is not JSON: {error}") from None

    return take


def struct_text(parts: Sequence[bytes], _depth: int) -> bytes:
    return merged_struct(parts)


def values_of_struct(parts: Sequence[bytes], _depth: int) -> dict[str, object]:
    return struct_values(parts)


def json_text(value: object) -> bytes:
    """The text of a JSON value that is held as text, or is a Python value."""
    if isinstance(value, bytes):
        return value
    return bytes(value) if isinstance(value, msgspec.Raw) else _encode_json(value)


def take_blobs(name: str) -> TakeBytes:
    def take(values: Values, part: bytes, _depth: int) -> None:
        budget.spend()
        values.setdefault(name, []).append(part)

    return take


def take_texts(name: str) -> TakeBytes:
    def take(values: Values, part: bytes, _depth: int) -> None:
        budget.spend()
        values.setdefault(name, []).append(part.decode())

    return take


def take_messages(name: str, inner: Codec) -> TakeBytes:
    def take(values: Values, part: bytes, depth: int) -> None:
        budget.spend()
        values.setdefault(name, []).append(inner.decode((part,), depth - 1))

    return take


def take_entry(name: str, as_json: bool) -> TakeBytes:
    def take(values: Values, part: bytes, depth: int) -> None:
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


def put_text(prefix: bytes) -> Put:
    def put(out: list[bytes], value: str) -> None:
        text = value.encode()
        out += (prefix, write_varint(len(text)), text)

    return put


def put_blob(prefix: bytes) -> Put:
    def put(out: list[bytes], value: bytes) -> None:
        out += (prefix, write_varint(len(value)), value)

    return put


def put_json(prefix: bytes) -> Put:
    def put(out: list[bytes], value: object) -> None:
        text = value if isinstance(value, bytes) else json_text(value)
        out += (prefix, write_varint(len(text)), text)

    return put


def put_texts(prefix: bytes) -> Put:
    def put(out: list[bytes], value: Sequence[str]) -> None:
        for item in value:
            text = item.encode()
            out += (prefix, write_varint(len(text)), text)

    return put


def put_blobs(prefix: bytes) -> Put:
    def put(out: list[bytes], value: Sequence[bytes]) -> None:
        for item in value:
            out += (prefix, write_varint(len(item)), item)

    return put


def put_messages(prefix: bytes, inner: Codec) -> Put:
    def put(out: list[bytes], value: Sequence[Any]) -> None:
        for item in value:
            body = inner.encode(item)
            out += (prefix, write_varint(len(body)), body)

    return put


def put_entries(prefix: bytes, as_json: bool) -> Put:
    def put(out: list[bytes], value: Mapping[str, Any]) -> None:
        for key, item in value.items():
            text = key.encode()
            body = value_from_json(item) if as_json else item.encode()
            entry = b"".join((b"\x0a", write_varint(len(text)), text, b"\x12", write_varint(len(body)), body))
            out += (prefix, write_varint(len(entry)), entry)

    return put


def take_int32(name: str) -> TakeNumber:
    def take(values: Values, number: int) -> None:
        if name in values:
            budget.spend()
        values[name] = to_int32(number)

    return take


def take_uint32(name: str) -> TakeNumber:
    def take(values: Values, number: int) -> None:
        if name in values:
            budget.spend()
        values[name] = number & _UINT32

    return take


def take_flag(name: str) -> TakeNumber:
    def take(values: Values, number: int) -> None:
        if name in values:
            budget.spend()
        values[name] = number != 0

    return take


def take_millis(name: str) -> TakeNumber:
    def take(values: Values, number: int) -> None:
        if name in values:
            budget.spend()
        values[name] = (number & _UINT32) / 1_000 or None

    return take


def take_word(name: str, words: Sequence[str]) -> TakeNumber:
    def take(values: Values, number: int) -> None:
        if name in values:
            budget.spend()
        number = to_int32(number)
        values[name] = words[number] if 0 <= number < len(words) else str(number)

    return take


def put_word(prefix: bytes, words: Sequence[str]) -> Put:
    numbers = {word: write_varint(number) for number, word in enumerate(words)}

    def put(out: list[bytes], word: str) -> None:
        out += (prefix, numbers[word])

    return put


def put_number(prefix: bytes) -> Put:
    def put(out: list[bytes], value: int) -> None:
        out += (prefix, write_varint(value if value > 0 else value & 0xFFFF_FFFF_FFFF_FFFF))

    return put


def put_millis(prefix: bytes) -> Put:
    def put(out: list[bytes], seconds: float) -> None:
        if seconds > 0:
            out += (prefix, write_varint(max(1, round(min(seconds * 1_000, _UINT32)))))

    return put


# ---------------------------------------------------------------------------------------------------- timestamps


@lru_cache(_TIMES_KEPT)
def write_timestamp(when: datetime) -> bytes:
    """Jobs of one batch have the same times, to the microsecond: half of what a job costs to write."""
    passed = when - _EPOCH
    seconds = passed.days * 86_400 + passed.seconds
    out = _write_seconds(seconds) if seconds else b""
    if passed.microseconds:
        out += b"\x10" + write_varint(passed.microseconds * 1_000)
    return out


@lru_cache(_TIMES_KEPT)
def _write_seconds(seconds: int) -> bytes:
    return b"\x08" + write_varint(seconds & 0xFFFF_FFFF_FFFF_FFFF)


def read_timestamp(parts: Sequence[bytes], depth: int) -> datetime:
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
