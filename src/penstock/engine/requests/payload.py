"""Whether JSON and texts from clients can be kept: the check between every edge and the store.

Callers pass bytes that nobody has looked at. What comes back is JSON that PostgreSQL's jsonb takes and gives back
unchanged: UTF-8, no NUL, no lone surrogate, whole numbers of at most 1,000 digits, decimals within an IEEE double, and
bounded in size and depth. The bytes stay bytes: most calls only pass them on.

Two paths. Text that is JSON and UTF-8 is good unless byte searches find in it what may be an exponent, a long run of
digits, the escape of NUL, or many brackets; only then it is decoded and looked at. 1.1 µs at 45 bytes, 1.6 at 200,
33 at 16 kB; 6 µs (200 bytes) and 130 (16 kB) on the second path. Decoding always lost (16 kB: 36 µs for the decoding
alone), and so did one regular expression for all suspicions (300 µs).
Must not do I/O, nor know what the values mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, cast

import msgspec

from penstock.core.parsing.strict_json import find_flaws
from penstock.errors import BadRequest, PayloadTooLarge
from penstock.settings import Settings
from penstock.wire.error_code import code_problem

EMPTY_OBJECT: Final = b"{}"
NUMBER_MAX_DIGITS: Final = 1_000
"""Of a whole number, and of each side of a decimal point."""
EXPONENT_MAX: Final = 1_000
"""Far beyond any double (1e308, 5e-324), and within what jsonb takes for a zero: `0e-20000` is an error there."""
ITEMS_MAX_COUNT: Final = 10_000
"""Of one batch call. Half of what may wait for all batches together."""
ERROR_MESSAGE_MAX_BYTES: Final = 4_096
"""Of the text of a failure; what is longer is cut."""
_SHOWN_MAX_CHARS: Final = 40

_SEARCHED_MAX_BYTES: Final = 65_536
"""Texts up to here are walked again for the place of a flaw (12 ms), longer ones are refused without it."""

# Below 300 digits and without an exponent, no number leaves the range of a double at either end.
_LONG_RUN: Final = b"0" * 300
_TOO_LONG_RUN: Final = b"0" * (NUMBER_MAX_DIGITS + 1)
_BOUND: Final = 10**NUMBER_MAX_DIGITS
# Signs too: `0e0` is then all that an exponent can look like. Hexadecimal text looks like it too, now and then.
_MARKS: Final = bytes.maketrans(b"123456789+-E[", b"00000000000e{")
# The escape, unless its backslash is itself escaped.
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_UNFIT: Final = re.compile(r"[\x00\ud800-\udfff]")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_MANTISSA_DIGIT: Final = re.compile(r"[1-9]")

_CONTAINERS: Final[frozenset[object]] = frozenset({dict, list})

_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode
_decode_tree = msgspec.json.Decoder().decode


class PayloadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How large a client's JSON may be."""

    variables_max_bytes: int = 4_194_304
    checkpoint_max_bytes: int = 262_144
    """Also of a progress value."""
    max_depth: int = 100
    """Objects and arrays inside each other, the outermost counted."""

    @classmethod
    def of(cls, settings: Settings) -> PayloadLimits:
        """Return the limits of an engine with these settings."""
        return cls(
            variables_max_bytes=settings.variables_max_bytes,
            checkpoint_max_bytes=settings.checkpoint_max_bytes,
            max_depth=settings.variables_max_depth,
        )


def check_variables(raw: bytes | None, limits: PayloadLimits, field: str = "variables") -> bytes:
    """The JSON object in ``raw``, without white space around it; ``{}`` for None and ``null``.

    Raises BadRequest, which names ``field``, when it is no JSON object or holds what can't be kept, and PayloadTooLarge
    above ``limits.variables_max_bytes``.
    """
    if raw is None:
        return b"{}"
    checked = _check(raw, limits.variables_max_bytes, limits.max_depth, field)
    if checked[:1] == b"{":
        return checked
    if checked == b"null":
        return b"{}"
    raise BadRequest(f"{field}: must be a JSON object")


def is_plain_object(raw: bytes, limits: PayloadLimits) -> bool:
    """Return whether a JSON value without white space around it, well-formed and of UTF-8, is an object that
    `check_variables` takes at the first look."""
    # `find`, as `in` first tries whether what it looks for is a number: 250 ns for 70
    if raw[:1] != b"{" or len(raw) > limits.variables_max_bytes or raw.find(b"\\") >= 0:
        return False
    marks = raw.translate(_MARKS)
    return marks.find(b"0e0") < 0 and marks.find(_LONG_RUN) < 0 and marks.count(b"{") <= limits.max_depth


def given_variables(value: bytes | msgspec.Raw | None, limits: PayloadLimits, field: str = "variables") -> bytes | None:
    """Return a variable map, None when it is absent, empty or null. Raises BadRequest, PayloadTooLarge."""
    raw = b"" if value is None else bytes(value)
    return None if raw in (b"", b"null") else check_variables(raw, limits, field)


def check_json_value(raw: bytes, limits: PayloadLimits, field: str) -> bytes:
    """The JSON value of any kind in ``raw`` (a checkpoint, a progress). Raises as ``check_variables`` does, the size
    being ``limits.checkpoint_max_bytes``."""
    return _check(raw, limits.checkpoint_max_bytes, limits.max_depth, field)


def given_value(value: bytes | msgspec.Raw | None, limits: PayloadLimits, field: str) -> bytes | None:
    """Return a JSON value, None when it is not given. Raises as `check_json_value`."""
    raw = b"" if value is None else bytes(value)
    return None if raw in (b"", b"null") else check_json_value(raw, limits, field)


def check_text(value: str, field: str, max_chars: int) -> str:
    """``value`` itself. Raises BadRequest, which names ``field``, when it is longer or PostgreSQL can't hold it."""
    if len(value) > max_chars:
        raise BadRequest(f"{field}: has {len(value)} characters, more than {max_chars}")
    if "\0" in value:
        raise BadRequest(f"{field}: has a NUL character")
    if not value.isascii() and _UNFIT.search(value) is not None:
        raise BadRequest(f"{field}: has a lone surrogate")
    return value


def unknown_field(kind: type[msgspec.Struct], said: Iterable[str]) -> str | None:
    """The first name that a class has no field for: a mistyped one would be an object without it."""
    fields = {field.encode_name for field in msgspec.structs.fields(kind)}
    return min((str(name) for name in said if name not in fields), default=None)


def check_count(count: int, field: str) -> None:
    """A list is not longer than one call may bring. Raises BadRequest."""
    if count > ITEMS_MAX_COUNT:
        raise BadRequest(f"{field}: has {count} items, more than {ITEMS_MAX_COUNT}")


def clean_text(text: str, max_bytes: int) -> str:
    """``text`` with NUL and lone surrogates replaced by U+FFFD, cut to ``max_bytes`` of UTF-8. Never refuses."""
    text = _UNFIT.sub(_REPLACEMENT, text[:max_bytes])
    if len(text) * 4 <= max_bytes:
        return text
    return text.encode()[:max_bytes].decode(errors="ignore")


def _check(raw: bytes, max_bytes: int, max_depth: int, field: str) -> bytes:
    if len(raw) > max_bytes:
        raise PayloadTooLarge(f"{field}: has {len(raw)} bytes, more than {max_bytes}")
    try:
        checked = bytes(_decode_raw(raw))
        checked.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"{field}: not UTF-8") from None
    except msgspec.DecodeError as error:
        # msgspec has several words for a lone surrogate, "truncated" among them.
        what = "not JSON, or with a lone surrogate" if b"\\ud" in raw.lower() else "not JSON"
        raise BadRequest(f"{field}: {what}: {str(error).removeprefix('JSON is malformed: ')}") from None
    except RecursionError:
        raise BadRequest(f"{field}: nested more than {max_depth} levels deep") from None
    # One byte is found 30 times faster than two, and most texts have no backslash at all.
    if b"\\" in checked and b"\\u0000" in checked and _NUL.search(checked) is not None:
        raise BadRequest(f"{field}{_place_of_flaw(_decode_tree(checked), checked, max_depth)}: has a NUL character")
    marks = checked.translate(_MARKS)
    if b"0e0" in marks or _LONG_RUN in marks:
        tree = _check_numbers(checked, max_bytes, max_depth, field)
    elif marks.count(b"{") > max_depth:
        tree = _decode_tree(checked)
    else:
        return checked
    if is_deeper(tree, max_depth):
        raise BadRequest(f"{field}: nested more than {max_depth} levels deep")
    return checked


def _check_numbers(raw: bytes, max_bytes: int, max_depth: int, field: str) -> object:
    """The tree, whose numbers have all been looked at: decimals as text while they are decoded, 0.6 µs each."""
    decimals = _Decimals()
    try:
        tree = cast(object, msgspec.json.Decoder(float_hook=decimals.check).decode(raw))
    except _OddNumber as error:
        raise BadRequest(f"{field}: {error}") from None
    except msgspec.ValidationError:  # above 4,300 digits
        raise BadRequest(f"{field}: has a whole number of more than {NUMBER_MAX_DIGITS} digits") from None
    if len(raw) + decimals.expansion_bytes > max_bytes:
        raise PayloadTooLarge(f"{field}: has more than {max_bytes} bytes with its exponents written out")
    if _TOO_LONG_RUN in raw.translate(_MARKS) and _has_too_long_integer(tree):
        place = _place_of_flaw(tree, raw, max_depth)
        raise BadRequest(f"{field}{place}: has a whole number of more than {NUMBER_MAX_DIGITS} digits")
    return tree


def _place_of_flaw(tree: object, raw: bytes, max_depth: int) -> str:
    """Where the first flaw is, as `.a.b[3]`; nothing for long texts, in which looking would take too long."""
    if len(raw) > _SEARCHED_MAX_BYTES:
        return ""
    flaws = find_flaws(tree, nesting_max_levels=max_depth, number_max_digits=NUMBER_MAX_DIGITS)
    path, _ = next(flaws, ("", ""))
    return path if path.startswith("[") or not path else f".{path}"


def is_deeper(tree: object, max_depth: int) -> bool:
    """Return whether containers stand in each other more than ``max_depth`` deep."""
    deepest = islice(_levels(tree), max_depth, max_depth + 1)
    return any(value.__class__ in _CONTAINERS for level in deepest for value in level)


def _has_too_long_integer(tree: object) -> bool:
    return any(value.__class__ is int and not -_BOUND < value < _BOUND for level in _levels(tree) for value in level)


def _levels(tree: object) -> Iterator[list[Any]]:
    """All values of the tree by their depth, itself first. Level by level costs 50 ns a value, value by value 500."""
    level: list[Any] = [tree]
    while level:
        yield level
        level = [
            child
            for value in level
            if value.__class__ in _CONTAINERS
            for child in (value.values() if value.__class__ is dict else value)
        ]


class _OddNumber(Exception):
    """A decimal number that can't be kept."""


class _Decimals:
    """Judges the decimal numbers of one text. jsonb writes exponents out: six bytes of `1e300` come back as 301, and
    ``expansion_bytes`` counts that, so that a small body can't become a large answer."""

    def __init__(self) -> None:
        self.expansion_bytes = 0

    def check(self, text: str) -> float:
        mantissa, _, exponent = text.lower().partition("e")
        if max(map(len, mantissa.lstrip("-").split("."))) > NUMBER_MAX_DIGITS:
            raise _OddNumber(f"the number {_shorten(text)} has more than {NUMBER_MAX_DIGITS} digits")
        # An exponent may itself have more digits than int() reads.
        size = int(exponent.lstrip("+-").lstrip("0")[:6] or "0")
        value = float(text)
        vanished = value == 0 and _MANTISSA_DIGIT.search(mantissa) is not None
        if size > EXPONENT_MAX or value in (float("inf"), float("-inf")) or vanished:
            raise _OddNumber(f"the number {_shorten(text)} is outside what an IEEE double can hold")
        self.expansion_bytes += size
        return value


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX_CHARS else text[:_SHOWN_MAX_CHARS] + "…"


def checked_code(code: str | None) -> str | None:
    """The code of a failure, None when there is none. Raises BadRequest."""
    if code and (problem := code_problem(code)) is not None:
        raise BadRequest(f"errorCode: {problem}")
    return code or None


def checked_until(until: datetime | None) -> datetime | None:
    """A time in UTC, which the database can hold. Raises BadRequest."""
    if until is None:
        return None
    if until.tzinfo is None:
        raise BadRequest("until: needs an offset, such as Z")
    try:
        return until.astimezone(UTC)
    except OverflowError:
        raise BadRequest("until: is not between the years 1 and 9999 in UTC") from None
