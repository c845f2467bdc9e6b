"""Blocks of header fields (HPACK, RFC 7541).

Reading keeps the dynamic table that the peer fills, of at most 4,096 bytes, and remembers what blocks said while the
table has not changed since: a client repeats itself. Writing uses no dynamic table, so that a block is the same bytes
each time and can be kept as such, here and by whoever reads it; a token is marked as never to be indexed. Huffman codes
and the static table are those of the hpack package. Does no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from penstock.wire.http2_frames import HPACK_TABLE_BYTES, BrokenConnection, ErrorCodes, Headers

_STATIC: Final = HeaderTable.STATIC_TABLE
_STATIC_COUNT: Final = len(_STATIC)
_ENTRY_BYTES: Final = 32  # what an entry counts beside its texts
_INTEGER_MAX_BITS: Final = 28
KEPT_MAX_BYTES: Final = 16 * 1024
"""Of the blocks that are remembered with what they said, as HPACK counts and with `KEPT_BLOCK_BYTES` for each."""
KEPT_BLOCK_BYTES: Final = 512
"""What one takes beside its texts: tuples, and what its reader made of it."""
EMPTY_TABLE: Final = b"\x20"
"""At the begin of a block: the table holds nothing from now on."""


class Block(NamedTuple):
    """What a block said."""

    headers: Headers
    content_length: int | None
    request: Any


class HeaderReader:
    """Of one connection. ``read`` makes of the headers of a block what is remembered with them."""

    __slots__ = ("_entries", "_kept_bytes", "_list_max_bytes", "_read", "_size", "_size_max", "kept")

    def __init__(self, list_max_bytes: int, read: Callable[[Headers], Any]) -> None:
        self._list_max_bytes = list_max_bytes
        self._read = read
        self._entries: deque[tuple[bytes, bytes]] = deque()  # the youngest first
        self._size = 0
        self._size_max = HPACK_TABLE_BYTES
        self.kept: dict[bytes, Block] = {}
        """What blocks say, as long as the table is as it is."""
        self._kept_bytes = 0

    def read(self, block: bytes) -> Block:
        """What a block says. Raises BrokenConnection, as the table is not that of the peer any more."""
        known = self.kept.get(block)
        if known is not None:
            return known
        try:
            headers, size, changes = self._decode(block)
        except IndexError:
            raise _corrupt("a block of headers ends within a field") from None
        except HPACKDecodingError:
            raise _corrupt("a Huffman code that is none") from None
        found = Block(headers, _content_length(headers), self._read(headers))
        size += len(block) + KEPT_BLOCK_BYTES
        if changes or self._kept_bytes + size > KEPT_MAX_BYTES:
            self.kept.clear()
            self._kept_bytes = 0
        if not changes and size <= KEPT_MAX_BYTES:
            self._kept_bytes += size
            self.kept[block] = found
        return found

    def _decode(self, block: bytes) -> tuple[Headers, int, bool]:
        """The fields, their size, and whether the table has changed."""
        fields: list[tuple[bytes, bytes]] = []
        pos, end, size, changes = 0, len(block), 0, False
        while pos < end:
            first = block[pos]
            if first & 0x80:
                index, pos = _integer(block, pos, 0x7F)
                field = self._at(index)
            elif first & 0xE0 == 0x20:
                if fields:
                    raise _corrupt("a table's size behind a field")
                most, pos = _integer(block, pos, 0x1F)
                self._resize(most)
                changes = True
                continue
            else:
                index, pos = _integer(block, pos, 0x3F if first & 0x40 else 0x0F)
                if index:
                    name = self._at(index)[0]
                else:
                    name, pos = _text(block, pos)
                value, pos = _text(block, pos)
                field = (name, value)
                if first & 0x40:
                    self._add(field)
                    changes = True
            fields.append(field)
            size += _ENTRY_BYTES + len(field[0]) + len(field[1])
            if size > self._list_max_bytes:
                reason = f"headers of more than {self._list_max_bytes} bytes"
                raise BrokenConnection(ErrorCodes.ENHANCE_YOUR_CALM, reason)
        return tuple(fields), size, changes

    def _at(self, index: int) -> tuple[bytes, bytes]:
        if 0 < index <= _STATIC_COUNT:
            return _STATIC[index - 1]
        index -= _STATIC_COUNT + 1
        if not 0 <= index < len(self._entries):
            raise _corrupt("an index that the table of headers does not have")
        return self._entries[index]

    def _add(self, field: tuple[bytes, bytes]) -> None:
        self._entries.appendleft(field)
        self._size += _ENTRY_BYTES + len(field[0]) + len(field[1])
        self._shrink()

    def _resize(self, most: int) -> None:
        if most > HPACK_TABLE_BYTES:
            raise _corrupt(f"a table of headers of more than {HPACK_TABLE_BYTES} bytes")
        self._size_max = most
        self._shrink()

    def _shrink(self) -> None:
        while self._size > self._size_max:
            name, value = self._entries.pop()
            self._size -= _ENTRY_BYTES + len(name) + len(value)


def _corrupt(reason: str) -> BrokenConnection:
    return BrokenConnection(ErrorCodes.COMPRESSION_ERROR, reason)


def _integer(block: bytes, pos: int, mask: int) -> tuple[int, int]:
    """A number whose first bits are those under the mask, and where the next begins. Raises IndexError at the end."""
    value = block[pos] & mask
    pos += 1
    if value < mask:
        return value, pos
    shift = 0
    while True:
        byte = block[pos]
        pos += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
        if shift > _INTEGER_MAX_BITS:
            raise _corrupt("a number that is too large")


def _text(block: bytes, pos: int) -> tuple[bytes, int]:
    coded = block[pos] & 0x80
    size, pos = _integer(block, pos, 0x7F)
    end = pos + size
    if end > len(block):
        raise _corrupt("a block of headers ends within a text")
    text = block[pos:end]
    return (decode_huffman(text) if coded else text), end


def _content_length(headers: Headers) -> int | None:
    found: int | None = None
    for name, value in headers:
        if name == b"content-length":
            if not value.isdigit() or len(value) > 19 or found not in (None, int(value)):
                raise BrokenConnection(ErrorCodes.PROTOCOL_ERROR, "a content-length that is not a number")
            found = int(value)
    return found


# ---------------------------------------------------------------------------------- writing

_WHOLE: Final = {field: index for index, field in reversed(list(enumerate(_STATIC, 1)))}
_NAMES: Final = {name: index for index, (name, _) in reversed(list(enumerate(_STATIC, 1)))}
_SECRET: Final = frozenset({b"authorization"})


def block_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the bytes of a block. That of a tuple is remembered: for headers that are always the same."""
    if isinstance(headers, tuple):
        return _kept_block_of(headers)
    return b"".join([_field(name, value) for name, value in headers])


@lru_cache(maxsize=64)
def _kept_block_of(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return b"".join([_field(name, value) for name, value in headers])


def _field(name: bytes, value: bytes) -> bytes:
    """An entry of the static table, or a literal that nobody keeps."""
    whole = _WHOLE.get((name, value))
    if whole is not None:
        return bytes((0x80 | whole,))
    kind = 0x10 if name in _SECRET else 0
    index = _NAMES.get(name)
    head = bytes((kind,)) + _sized(name) if index is None else _number(index, 0x0F, kind)
    return head + _sized(value)


def _sized(text: bytes) -> bytes:
    return _number(len(text), 0x7F, 0) + text


def _number(value: int, mask: int, kind: int) -> bytes:
    if value < mask:
        return bytes((kind | value,))
    out = bytearray((kind | mask,))
    value -= mask
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
