"""How a text of anybody's is shown to people, so that none commands the terminal or forges a line.

A leaf that imports nothing. JSON for programs is no matter of it: that stays as it is.
"""

from __future__ import annotations

from typing import Final

_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LINES: Final = "\u2028\u2029"
_BIDIRECTIONAL: Final = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_ESCAPED: Final = {
    ord(char): _NAMED.get(char) or (f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}")
    for char in (*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *_LINES, *_BIDIRECTIONAL)
}


def escaped(text: str) -> str:
    """A text in which nothing moves the cursor, rings, colours, ends the line or turns what follows around."""
    return text.translate(_ESCAPED)


def escaped_lines(text: str) -> str:
    """As `escaped`, of a text that has lines of its own, such as a traceback: these stay."""
    return "\n".join(map(escaped, text.split("\n")))
