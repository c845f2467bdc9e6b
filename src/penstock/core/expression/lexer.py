"""Source text to tokens.

Relies on Python's `re` with one pattern that never backtracks over more than a token. Must not know precedence or
names of functions: words that are operators are marked here, their meaning is the parser's.

The contract's rewriting before parsing happens here and in the parser, on tokens and never on text, so that a
`${` or a `#` inside a string stays what it is and every position points into the text that the author wrote.
"""

from __future__ import annotations

import enum
import math
import re
from typing import NamedTuple

from penstock.core.expression.failure import Fault
from penstock.core.expression.limits import ExpressionLimits


class TokenKind(enum.Enum):
    """What a token is. ``OPERATOR`` holds symbols, brackets and the words in `OPERATOR_WORDS`."""

    NUMBER = enum.auto()
    TEXT = enum.auto()
    BYTES = enum.auto()
    NAME = enum.auto()
    OPERATOR = enum.auto()
    END = enum.auto()


NUMBER, TEXT, BYTES, NAME, OPERATOR, END = TokenKind
"""For the lexer and the parser, which compare kinds all the time: an attribute of an enum takes as long as a call."""


class LexerToken(NamedTuple):
    """``value`` is the number or string of a literal, and None for the others."""

    kind: TokenKind
    text: str
    position: int
    value: object = None


OPERATOR_WORDS = frozenset({"in", "not", "and", "or", "matches", "contains", "startsWith", "endsWith", "let"})
NAMED_WORDS = frozenset({"if", "else"})
"""Words of `if … { } else { }`. They are names elsewhere, so that a variable or a key may be called `if`."""

_TOKEN = re.compile(
    r"""
      (?P<space>\s+|//[^\n]*)
    | (?P<number>0[xX][0-9a-fA-F_]*|0[bB][01_]*|0[oO][0-7_]*
        |(?:[0-9][0-9_]*(?:\.(?!\.)[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9_]*)?)
    | (?P<symbol>\$\{|\*\*|==|!=|<=|>=|&&|\|\||\?\?|\?\.|\.\.|::|[-+*/%^!<>?:.,|\#()\[\]{};=])
    | (?P<bytes>[bB](?:"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"|'[^'\\\n]*(?:\\[^\n][^'\\\n]*)*'))
    | (?P<name>(?:[^\W\d]|\$)[\w$]*)
    | (?P<text>"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"|'[^'\\\n]*(?:\\[^\n][^'\\\n]*)*')
    | (?P<raw>`[^`]*(?:``[^`]*)*`)
    """,
    re.VERBOSE,
)
_ESCAPE = re.compile(
    r"\\(?:([abfnrtv\\'\"])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}|U([0-9a-fA-F]{8})|([0-7]{3}))?"
)
_SIMPLE_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"',
}  # fmt: skip
_BASES = {"x": 16, "X": 16, "b": 2, "B": 2, "o": 8, "O": 8}
_SURROGATES = range(0xD800, 0xE000)
_MAX_CODE_POINT = 0x10FFFF
_MAX_BYTE = 0xFF
_OPENING = frozenset({"{", "${"})


def tokenize(source: str, limits: ExpressionLimits, start: int | None = None) -> list[LexerToken]:
    """Return the tokens of ``source``, the last of kind ``END``. With ``start``, those from there to the `}` that
    closes what was opened before it. Raises `Fault` with the position of what is wrong."""
    if len(source) > limits.source_chars:
        raise Fault(f"the expression has {len(source)} characters, more than {limits.source_chars}", 0)
    tokens: list[LexerToken] = []
    position = start or 0
    end = len(source)
    opened = 0
    has_comments = "/*" in source
    while position < end:
        if has_comments and source.startswith("/*", position):
            position = _after_comment(source, position)
            continue
        match = _TOKEN.match(source, position)
        if match is None:
            raise Fault(_unreadable(source, position), position)
        group = match.lastgroup
        if group != "space":
            if len(tokens) >= limits.tokens:
                raise Fault(f"the expression has more than {limits.tokens} tokens", position)
            text = match.group()
            if group == "symbol":
                token = LexerToken(OPERATOR, text, position)
            elif group == "name":
                token = LexerToken(OPERATOR if text in OPERATOR_WORDS else NAME, text, position)
            else:
                token = _literal(match, limits)
            if start is not None and token.kind is OPERATOR:
                opened += token.text in _OPENING
                opened -= token.text == "}"
                if opened < 0:
                    return [*tokens, LexerToken(END, "", position)]
            tokens.append(token)
        position = match.end()
    if start is not None:
        raise Fault("${ is not closed by }", start - len("${"))
    tokens.append(LexerToken(END, "", end))
    return tokens


def _literal(match: re.Match[str], limits: ExpressionLimits) -> LexerToken:
    text = match.group()
    position = match.start()
    group = match.lastgroup
    if group == "number":
        following = match.string[match.end() : match.end() + 1]
        if following.isalnum() or following in {"_", "$"}:
            raise Fault(f"bad number: {text}{following}", position)
        return LexerToken(NUMBER, text, position, _number(text, position, limits))
    if group == "raw":
        return LexerToken(TEXT, text, position, text[1:-1].replace("``", "`"))
    if group == "bytes":
        return LexerToken(BYTES, text, position, _unescape_bytes(text[2:-1], position + 2))
    return LexerToken(TEXT, text, position, _unescape(text[1:-1], position + 1))


def _number(text: str, position: int, limits: ExpressionLimits) -> int | float:
    digits = text.replace("_", "")
    base = _BASES.get(digits[1:2], 10) if digits[0] == "0" else 10
    # A digit of base 16 holds four bits: what is longer than this can't fit, and int() of it would be slow.
    if len(digits) > limits.integer_bits + 2:
        raise Fault("the number is too long", position)
    try:
        if base != 10:
            whole = int(digits[2:], base)
        elif digits.isdigit():
            whole = int(digits)
        else:
            return _decimal(digits, position)
    except ValueError:
        raise Fault(f"bad number: {text[:40]}", position) from None
    if whole.bit_length() > limits.integer_bits:
        raise Fault(f"a whole number of more than {limits.integer_bits} bits", position)
    return whole


def _decimal(digits: str, position: int) -> float:
    value = float(digits)
    if math.isinf(value):
        raise Fault("the number is too large", position)
    return value


def _unescape(body: str, position: int) -> str:
    if "\r" in body:  # as in expr, the end of a line is one character on every system
        body = body.replace("\r\n", "\n").replace("\r", "\n")
    if "\\" not in body:
        return body
    pieces: list[str] = []
    done = 0
    while (at := body.find("\\", done)) >= 0:
        match = _ESCAPE.match(body, at)
        assert match is not None  # the pattern's tail is optional: a backslash always matches
        pieces.append(body[done:at])
        pieces.append(_escaped(match, position + at))
        done = match.end()
    pieces.append(body[done:])
    return "".join(pieces)


def _unescape_bytes(body: str, position: int) -> list[object]:
    """Return the numbers of the bytes: of a character those of its UTF-8; `\xff` and `\377` are bytes themselves.s."""
    body = body.replace("\r\n", "\n").replace("\r", "\n")
    found: list[object] = []
    done = 0
    while done < len(body):
        if body[done] != "\\":
            try:
                found.extend(body[done].encode())
            except UnicodeEncodeError:
                raise Fault("half a character has no bytes", position + done) from None
            done += 1
            continue
        match = _ESCAPE.match(body, done)
        assert match is not None  # the pattern's tail is optional: a backslash always matches
        _, two, *wider, octal = match.groups()
        if any(wider):
            raise Fault("bytes have no \\u: write \\x and two digits", position + done)
        code = int(octal, 8) if octal else int(two, 16) if two else ord(_escaped(match, position + done))
        if code > _MAX_BYTE:
            raise Fault("an escape sequence is not a byte", position + done)
        found.append(code)
        done = match.end()
    return found


def _escaped(match: re.Match[str], position: int) -> str:
    simple, *codes = match.groups()
    if simple is not None:
        return _SIMPLE_ESCAPES[simple]
    two, four, braced, eight, octal = codes
    if octal is not None:
        code = int(octal, 8)
    else:
        digits = two or four or braced or eight
        if digits is None:
            raise Fault("unknown escape in a string", position)
        code = int(digits, 16)
    if code in _SURROGATES or code > _MAX_CODE_POINT:
        raise Fault("an escape sequence is not a character", position)
    return chr(code)


def _after_comment(source: str, position: int) -> int:
    close = source.find("*/", position + 2)
    if close < 0:
        raise Fault("the comment is not closed", position)
    return close + 2


def _unreadable(source: str, position: int) -> str:
    character = source[position]
    if character in "\"'`":
        return "the string is not closed"
    shown = character if character.isprintable() else f"U+{ord(character):04X}"
    return f"unexpected character {shown}"
