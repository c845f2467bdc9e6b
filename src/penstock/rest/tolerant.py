"""JSON objects that strict readers refuse, cut into parts, so that one bad part can be told from its neighbours.

A part is text, and is looked at no further than its end: values nested too deep for any parser and numbers of more
digits than Python reads are found whole, too. What is wrong with a part stays wrong in it: bytes that are not UTF-8
are lone surrogates there. Must not know what parts mean.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, cast

TOKENS_MAX_COUNT: Final = 100_000
"""Brackets and texts walked over in the values of one text that no parser takes: 0.3 µs each."""

_SPACE: Final = re.compile(r"[ \t\n\r]*")
# Never goes back: a text without an end is one token too, or a hostile one would be looked at from each of its quotes.
_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_SCALAR: Final = re.compile(r"[^\s,\[\]{}]+")
_LEVELS: Final = {"[": 1, "{": 1, "]": -1, "}": -1}
_decoder: Final = json.JSONDecoder(strict=False)


class Unsplittable(ValueError):
    """It is no JSON object, or would take too long to cut."""


def text_of(body: bytes) -> str:
    """Return the text of a body, good or bad."""
    return body.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """What `text_of` was given."""
    return text.encode("utf-8", "surrogateescape")


def value_of(part: str) -> object:
    """The value of a part, None when no parser takes it."""
    try:
        return cast(object, _decoder.decode(part))
    except (ValueError, RecursionError):
        return None


def split_object(text: str, list_name: str = "") -> tuple[dict[str, str], list[str] | None]:
    """Return the values of a JSON object by their names; apart from them the items of the array called ``list_name``,
    None when there is none. Raises Unsplittable."""
    fields: dict[str, str] = {}
    items: list[str] | None = None
    cutter = _Cutter(text)
    for _ in cutter.parts("{", "}"):
        name = cutter.read_name()
        if name == list_name and cutter.at("["):
            items = [cutter.read_part() for _ in cutter.parts("[", "]")]
            fields.pop(name, None)
        else:
            fields[name] = cutter.read_part()
            items = None if name == list_name else items
    cutter.end()
    return fields, items


class _Cutter:
    """A place in a text, which goes forward only."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._tokens_left = TOKENS_MAX_COUNT
        self._skip_space()

    def at(self, sign: str) -> bool:
        """Return whether this is the next character."""
        return self._text.startswith(sign, self._place)

    def parts(self, first: str, last: str) -> Iterator[None]:
        """Stops before each part of what stands between these brackets; the caller reads it."""
        self._take(first)
        if self.at(last):
            self._take(last)
            return
        while True:
            yield
            if self.at(last):
                self._take(last)
                return
            self._take(",")

    def read_name(self) -> str:
        """Return the name of a field, with its colon."""
        if not self.at('"'):
            raise Unsplittable
        name = value_of(self.read_part())
        self._take(":")
        if not isinstance(name, str):
            raise Unsplittable
        return name

    def read_part(self) -> str:
        """A value of any kind, as it stands there."""
        start = self._place
        try:
            self._place = _decoder.raw_decode(self._text, start)[1]
        except RecursionError:
            self._place = self._end_of_value()
        except json.JSONDecodeError as error:
            raise Unsplittable from error
        except ValueError:  # more digits than Python reads
            self._place = self._end_of_value()
        part = self._text[start : self._place]
        self._skip_space()
        return part

    def end(self) -> None:
        if self._place != len(self._text):
            raise Unsplittable

    def _end_of_value(self) -> int:
        level = 0
        scalar = _SCALAR.match(self._text, self._place)
        if scalar is not None:
            return scalar.end()
        for token in _TOKEN.finditer(self._text, self._place):
            self._tokens_left -= 1
            level += _LEVELS.get(token.group(), 0)
            if not level:
                return token.end()
            if self._tokens_left <= 0:
                break
        raise Unsplittable

    def _take(self, sign: str) -> None:
        if not self.at(sign):
            raise Unsplittable
        self._place += 1
        self._skip_space()

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._place)
        self._place = match.end() if match is not None else self._place
