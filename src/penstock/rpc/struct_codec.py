"""``google.protobuf.Struct`` and ``Value`` straight to and from Python values and JSON text.

The generated class costs 0.4 ms for ten keys and google.protobuf's 26 µs; this costs about 10 (spikes/runtime.md,
B). The rules:

- whole numbers come back whole: 3.0 is ``3``. Beyond 2**53 a double has no exact value for each of them, so they
  were rounded where they were written; up to 1e21 they are still shown as whole numbers, as JavaScript does.
- NaN and the infinities are no JSON: refused.
- a key given twice: the last one counts, whole (maps don't merge); a ``Value`` with nothing in it is null.
- nesting and the number of values are bounded (``DecodeError``), because a few bytes can stand for many values. JSON
  that is nested deeper (the engine takes 100 levels through REST) is written with what is below the bound as JSON text:
  a client's library would refuse the whole message, and with it every other job in it.

Agrees with google.protobuf on any bytes, by property test. No I/O; arbitrary bytes raise ``DecodeError`` only.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import cast

import msgspec

from penstock.rpc.wire import DecodeError, read_bytes, read_tag, read_varint, skip_field, write_varint

MAX_LEVELS = 32
"""How deep objects and lists may nest. A level is three messages, so google.protobuf's own 100 stops there too."""
MAX_VALUES = 200_000
"""How many values a Struct may hold: at 0.5 µs each the loop stands still for 0.1 s at worst."""
_WHOLE_MAX = 1e21
_KEY_CACHE = 4_096
_KEY_CACHE_MAX_CHARS = 64

_double = struct.Struct("<d")
_pack, _unpack = _double.pack, _double.unpack_from

# Tags. Struct.fields and an entry's key are field 1, an entry's value field 2.
_FIELDS, _KEY, _VALUE = 0x0A, 0x0A, 0x12
_NULL, _NUMBER, _STRING, _BOOL, _STRUCT, _LIST = 0x08, 0x11, 0x1A, 0x20, 0x2A, 0x32
_KINDS = frozenset((_NULL, _NUMBER, _STRING, _BOOL, _STRUCT, _LIST))
_LIST_VALUES = 0x0A
_NO_PARTS: list[bytes] = []

_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder().decode


# ---------------------------------------------------------------------------------------------------- writing


def encode_struct(fields: Mapping[str, object]) -> bytes:
    """A JSON object as a Struct.

    Raises TypeError for what is no JSON value, UnicodeEncodeError for lone surrogates. A whole number too large for
    a double is written as a string of its digits: rounding it to "infinite" would lose it.
    """
    out: list[bytes] = []
    for key, value in fields.items():
        encoded = encode_value(value)
        head = _key(key) if len(key) <= _KEY_CACHE_MAX_CHARS else _write_key(key)
        size = len(encoded)
        out += (b"\x0a", write_varint(len(head) + 1 + len(write_varint(size)) + size), head, b"\x12")
        out += (write_varint(size), encoded)
    return b"".join(out)


def encode_value(value: object) -> bytes:
    """A JSON value as a Value. Raises like ``encode_struct``."""
    kind = type(value)
    if kind is str:
        text = cast(str, value).encode()
        return b"\x1a" + write_varint(len(text)) + text
    if kind is float:
        return b"\x11" + _pack(value)
    if kind is int:
        try:
            return b"\x11" + _pack(value)
        except (OverflowError, struct.error):
            return encode_value(msgspec.json.encode(value).decode())
    if kind is bool:
        return b"\x20\x01" if value else b"\x20\x00"
    if value is None:
        return b"\x08\x00"
    if isinstance(value, Mapping):
        inner = encode_struct(cast(Mapping[str, object], value))
        return b"\x2a" + write_varint(len(inner)) + inner
    if isinstance(value, (list, tuple)):
        parts: list[bytes] = []
        for item in cast(Sequence[object], value):
            encoded = encode_value(item)
            parts += (b"\x0a", write_varint(len(encoded)), encoded)
        inner = b"".join(parts)
        return b"\x32" + write_varint(len(inner)) + inner
    raise TypeError(f"{kind.__name__} is no JSON value")


def _write_key(key: str) -> bytes:
    text = key.encode()
    return b"\x0a" + write_varint(len(text)) + text


# The same few names come with every job; a client can fill it, up to 4,096 short names.
_key = lru_cache(_KEY_CACHE)(_write_key)


# ---------------------------------------------------------------------------------------------------- reading


def decode_struct(data: bytes) -> dict[str, object]:
    """A Struct as a JSON object. Raises DecodeError."""
    try:
        return _Reader().struct(data, MAX_LEVELS)
    except IndexError:
        raise DecodeError("a Struct ends too early") from None
    except UnicodeDecodeError:
        raise DecodeError("a Struct has text that is not UTF-8") from None


def decode_value(data: bytes) -> object:
    """A Value as a JSON value. Raises DecodeError."""
    try:
        return _Reader().value(data, MAX_LEVELS + 1)
    except IndexError:
        raise DecodeError("a Value ends too early") from None
    except UnicodeDecodeError:
        raise DecodeError("a Value has text that is not UTF-8") from None


class _Reader:
    """One decoding: counts what it has read."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_VALUES

    def count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise DecodeError(f"a Struct has more than {MAX_VALUES} values")

    def struct(self, data: bytes, levels: int) -> dict[str, object]:
        if levels <= 0:
            raise DecodeError(f"a Struct is nested deeper than {MAX_LEVELS} levels")
        found: dict[str, object] = {}
        pos, end = 0, len(data)
        while pos < end:
            tag = data[pos]
            if tag == _FIELDS:
                entry, pos = read_bytes(data, pos + 1)
                self._entry(entry, found, levels)
            else:
                tag, pos = read_tag(data, pos)
                pos = skip_field(data, pos, tag, 3 * levels)
        return found

    def _entry(self, data: bytes, found: dict[str, object], levels: int) -> None:
        self.count()
        key = ""
        parts: list[bytes] = []
        pos, end = 0, len(data)
        while pos < end:
            tag = data[pos]
            if tag == _KEY:
                text, pos = read_bytes(data, pos + 1)
                key = text.decode()
            elif tag == _VALUE:
                part, pos = read_bytes(data, pos + 1)
                parts.append(part)
            else:
                tag, pos = read_tag(data, pos)
                pos = skip_field(data, pos, tag, 3 * levels)
        if len(parts) == 1:
            found[key] = self.value(parts[0], levels)
        else:
            for part in parts:
                self.value(part, levels)  # each must be right on its own
            found[key] = self.value(b"".join(parts), levels)  # a message given twice is one message

    def value(self, data: bytes, levels: int) -> object:
        """``levels`` is how many the struct around it has; what is inside has one less."""
        found: object = None
        pos, end = 0, len(data)
        # A Struct or a list given twice without another kind between is one message.
        nested, parts = 0, _NO_PARTS
        while pos < end:
            tag = data[pos]
            if nested and tag != nested and tag in _KINDS:
                self._nested(nested, parts, levels - 1)  # it must be right although another kind replaces it
                nested = 0
            if tag == _STRING:
                text, pos = read_bytes(data, pos + 1)
                found = text.decode()
            elif tag == _NUMBER:
                if pos + 9 > end:
                    raise DecodeError("a Struct ends too early")
                found = _number(_unpack(data, pos + 1)[0])
                pos += 9
            elif tag in (_STRUCT, _LIST):
                part, pos = read_bytes(data, pos + 1)
                if nested:
                    parts.append(part)
                else:
                    nested, parts = tag, [part]
            elif tag == _BOOL:
                number, pos = read_varint(data, pos + 1)
                found = number != 0
            elif tag == _NULL:
                _, pos = read_varint(data, pos + 1)
                found = None
            else:
                tag, pos = read_tag(data, pos)
                pos = skip_field(data, pos, tag, 3 * levels)
        return self._nested(nested, parts, levels - 1) if nested else found

    def _nested(self, kind: int, parts: list[bytes], levels: int) -> object:
        read = self.struct if kind == _STRUCT else self._list
        if len(parts) == 1:
            return read(parts[0], levels)
        for part in parts:
            read(part, levels)  # each must be right on its own
        return read(b"".join(parts), levels)

    def _list(self, data: bytes, levels: int) -> list[object]:
        if levels <= 0:
            raise DecodeError(f"a Struct is nested deeper than {MAX_LEVELS} levels")
        found: list[object] = []
        pos, end = 0, len(data)
        while pos < end:
            tag = data[pos]
            if tag == _LIST_VALUES:
                item, pos = read_bytes(data, pos + 1)
                self.count()
                found.append(self.value(item, levels))
            else:
                tag, pos = read_tag(data, pos)
                pos = skip_field(data, pos, tag, 3 * levels)
        return found


def _number(value: float) -> float | int:
    if value.is_integer():
        return int(value) if -_WHOLE_MAX < value < _WHOLE_MAX else value
    if not math.isfinite(value):
        raise DecodeError("a Struct has a number that JSON can't hold")
    return value


# ---------------------------------------------------------------------------------------------------- JSON text


def struct_from_json(text: bytes) -> bytes:
    """The text of a JSON object as a Struct. The engine's own text: anything else raises ValueError."""
    fields = _decode_json(text)
    if not isinstance(fields, dict):
        raise TypeError("not a JSON object")
    known = cast("dict[str, object]", fields)
    if _may_be_deep(text):
        known = cast("dict[str, object]", _cut(known, MAX_LEVELS))
    return encode_struct(known)


def struct_to_json(data: bytes) -> bytes:
    """A Struct as compact JSON text in UTF-8. Raises DecodeError."""
    return _encode_json(decode_struct(data))


def value_from_json(text: bytes) -> bytes:
    """The text of a JSON value as a Value."""
    value = _decode_json(text)
    return encode_value(_cut(value, MAX_LEVELS) if _may_be_deep(text) else value)


def _may_be_deep(text: bytes) -> bool:
    return text.count(b"{") + text.count(b"[") > MAX_LEVELS


def _cut(value: object, levels: int) -> object:
    """The same with every object and list below so many levels as its JSON text."""
    if isinstance(value, dict):
        if levels == 0:
            return _encode_json(cast("object", value)).decode()
        return {name: _cut(inner, levels - 1) for name, inner in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        if levels == 0:
            return _encode_json(cast("object", value)).decode()
        return [_cut(inner, levels - 1) for inner in cast("list[object]", value)]
    return value


def value_to_json(data: bytes) -> bytes:
    """A Value as compact JSON text in UTF-8. Raises DecodeError."""
    return _encode_json(decode_value(data))
