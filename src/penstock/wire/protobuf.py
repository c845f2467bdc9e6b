"""Protobuf's wire format: numbers, lengths, and what to skip. The ground under ``struct_codec`` and ``codec``.

Follows what google.protobuf accepts and refuses, bit for bit (tests/rpc/test_codec_property.py compares them on
arbitrary bytes): varints of at most ten bytes, tags of at most 32 bits, unknown fields and fields of an unexpected
wire type skipped, groups skipped when they are balanced. Every reader raises ``DecodeError`` or ``IndexError`` (the
end of the data), never anything else; the codecs turn the latter into the former.
"""

from __future__ import annotations

import threading
from typing import Final

MAX_DEPTH = 100
"""How deep messages and groups may nest (the bound of google.protobuf and Java)."""

MAX_ITEMS = 100_000
"""List items, map items, fields that are not known and fields that are given once more, of one message together: two
bytes can be each of these, and one costs up to 8 µs and 400 bytes (8 MiB of empty steps stopped the loop for 33 s)."""
MAX_VALUES = 200_000
"""Values of all Structs of one message: at 0.5 µs each the loop stands still for 0.1 s at worst."""

VARINT, FIXED64, BYTES, START_GROUP, END_GROUP, FIXED32 = range(6)

_VARINT_MAX_BYTES = 10
_TAG_MAX = 2**32 - 1
_UINT64 = 2**64 - 1
_INT32_SIGN = 2**31
_UINT32 = 2**32 - 1


class DecodeError(ValueError):
    """The bytes are not the message they should be. The text is fit for a client."""


TRUNCATED = "the message ends too early"


class Budget(threading.local):
    """What is left for the message that is being decoded. One for each thread will do: decoding never waits."""

    items = MAX_ITEMS
    values = MAX_VALUES

    def begin(self) -> None:
        """A new message."""
        self.items, self.values = MAX_ITEMS, MAX_VALUES

    def spend(self) -> None:
        """Take one item."""
        self.items -= 1
        if self.items < 0:
            raise DecodeError(
                f"the message has more than {MAX_ITEMS} list items, map items, unknown and repeated fields"
            )


budget = Budget()


SMALL_COUNT: Final = 16_384
SMALL: Final = tuple(
    bytes((number,)) if number < 0x80 else bytes((number & 0x7F | 0x80, number >> 7)) for number in range(SMALL_COUNT)
)
"""The numbers of at most two bytes, encoded: lengths and tags are nearly all among them."""


def write_varint(number: int) -> bytes:
    """Return a number of 0 to 2**64 - 1."""
    if number < SMALL_COUNT:
        return SMALL[number]
    low = number & 0x7F | (number & 0x3F80) << 1 | 0x8080  # 14 bits in two bytes that say that more follow
    return low.to_bytes(2, "little") + write_varint(number >> 14)


def write_tag(number: int, wire_type: int) -> bytes:
    """Return the tag in front of a field."""
    return write_varint(number << 3 | wire_type)


def read_varint(data: bytes, pos: int) -> tuple[int, int]:
    """Return the number at ``pos`` (cut to 64 bits) and the position after it."""
    byte = data[pos]
    pos += 1
    if byte < 0x80:
        return byte, pos
    number = byte & 0x7F
    shift = 7
    while shift < 7 * _VARINT_MAX_BYTES:
        byte = data[pos]
        pos += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & _UINT64, pos
        shift += 7
    raise DecodeError("a number is longer than ten bytes")


def read_tag(data: bytes, pos: int) -> tuple[int, int]:
    """Return the tag at ``pos`` and the position after it."""
    tag, after = read_varint(data, pos)
    if tag > _TAG_MAX or after - pos > 5:
        raise DecodeError("a field's tag is too large")
    return tag, after


def read_bytes(data: bytes, pos: int) -> tuple[bytes, int]:
    """Return the bytes with a length in front at ``pos``, and the position after them."""
    size = data[pos]
    pos += 1
    if size > 0x7F:
        size, pos = read_varint(data, pos - 1)
    end = pos + size
    if end > len(data):
        raise DecodeError(TRUNCATED)
    return data[pos:end], end


def to_int32(number: int) -> int:
    """A varint as the int32 (or enum number) it stands for."""
    number &= _UINT32
    return number - 2 * _INT32_SIGN if number >= _INT32_SIGN else number


def to_int64(number: int) -> int:
    """A varint as the int64 it stands for."""
    return number - 2**64 if number >= 2**63 else number


def skip_field(data: bytes, pos: int, tag: int, depth: int) -> int:
    """The position after the value of a field that is not known. ``depth`` is how many groups may nest."""
    budget.spend()
    if tag < 8:
        raise DecodeError("there is no field 0")
    wire_type = tag & 7
    if wire_type == VARINT:
        return read_varint(data, pos)[1]
    if wire_type == BYTES:
        return read_bytes(data, pos)[1]
    if wire_type in (FIXED32, FIXED64):
        pos += 4 if wire_type == FIXED32 else 8
        if pos > len(data):
            raise DecodeError(TRUNCATED)
        return pos
    if wire_type == START_GROUP:
        return _skip_group(data, pos, tag, depth - 1)
    raise DecodeError("a field has no known wire type")


def _skip_group(data: bytes, pos: int, start: int, depth: int) -> int:
    if depth < 0:
        raise DecodeError("the message is nested too deeply")
    end = start + 1  # END_GROUP of the same number
    while True:
        tag, pos = read_tag(data, pos)
        if tag == end:
            return pos
        pos = skip_field(data, pos, tag, depth)
