"""Text of a given width, and numbers as people of a country write them. Named as in JSONata; not expr's.

Relies on `decimals`, so that a number is rounded by the digits that it is written with.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from penstock.core.expression import decimals
from penstock.core.expression.failure import Fault
from penstock.core.expression.frame import Frame
from penstock.core.expression.values import kind, mapping, text, whole

PICTURE_MAX_CHARS: Final = 64
SEPARATOR_MAX_CHARS: Final = 4
FORMAT_STEPS: Final = 60
"""What writing a number costs: up to 6 µs."""
_PICTURE: Final = re.compile(r"(?P<before>[^#0.,;]*)(?P<whole>[#,]*[0,]*)(?:\.(?P<fraction>0*#*))?(?P<after>[^#0.,;]*)")
_TIMES: Final = {"%": 100, "‰": 1_000}
DECIMAL_SEPARATOR: Final = "decimal-separator"
GROUPING_SEPARATOR: Final = "grouping-separator"


def pad(frame: Frame, value: object, width: object, filler: object = " ") -> object:
    """`pad(text, width[, filler])`: filled up at its end, or at its beginning where the width is negative."""
    source, wanted = text(value, "the first argument of pad"), whole(width, "the second argument of pad")
    fill = text(filler, "the third argument of pad")
    if not fill:
        raise Fault("the third argument of pad must not be empty")
    missing = abs(wanted) - len(source)
    if missing <= 0:
        return source
    frame.new_text_chars(abs(wanted))
    frame.charge_chars(len(fill))
    filling = (fill * (missing // len(fill) + 1))[:missing]
    return filling + source if wanted < 0 else source + filling


def format_number(frame: Frame, value: object, picture: object, options: object = None) -> object:
    """`formatNumber(n, "#,##0.00"[, options])`: `0` is a digit that is always there, `#` one where there is one."""
    frame.charge(FORMAT_STEPS)
    number = decimals.decimal_of(frame, value)
    if number is None:
        raise Fault(f"the first argument of formatNumber must be a number, not {kind(value)}")
    shown = text(picture, "the second argument of formatNumber")
    if len(shown) > PICTURE_MAX_CHARS:
        raise Fault(f"a picture is longer than {PICTURE_MAX_CHARS} characters")
    separators = _separators(options)
    first, _, second = shown.partition(";")
    positive, negative = _picture(first), _picture(second or f"-{first}")
    rounded = _rounded(frame, number, positive)
    if rounded < 0:  # what is rounded to nothing has no sign
        return _written(frame, _rounded(frame, -number, negative), negative, *separators)
    return _written(frame, rounded, positive, *separators)


def _separators(options: object) -> tuple[str, str]:
    given = {} if options is None else mapping(options, "the third argument of formatNumber")
    for name in given:
        if name not in (DECIMAL_SEPARATOR, GROUPING_SEPARATOR):
            raise Fault(f"formatNumber has no option {name[:40]!a}: {DECIMAL_SEPARATOR} and {GROUPING_SEPARATOR}")
    found = [
        text(given.get(name, usual), name) for name, usual in ((DECIMAL_SEPARATOR, "."), (GROUPING_SEPARATOR, ","))
    ]
    if max(map(len, found)) > SEPARATOR_MAX_CHARS:
        raise Fault(f"a separator is longer than {SEPARATOR_MAX_CHARS} characters")
    return found[0], found[1]


def _picture(source: str) -> re.Match[str]:
    match = _PICTURE.fullmatch(source)
    if match is None or not (match["whole"].strip(",") or match["fraction"]):
        raise Fault(f"{source!a} is not a picture of a number such as #,##0.00")
    return match


def _rounded(frame: Frame, number: Decimal, picture: re.Match[str]) -> Decimal:
    for sign, times in _TIMES.items():
        if sign in picture["before"] + picture["after"]:
            number = decimals.operate(frame, "*", number, times) or Decimal(0)
    return decimals.rounded_to(frame, number, len(picture["fraction"] or ""))


def _written(frame: Frame, number: Decimal, picture: re.Match[str], point: str, group: str) -> str:
    before, whole_part, after = picture["before"], picture["whole"], picture["after"]
    digits = decimals.decimal_text(number)
    frame.charge_chars(8 * len(digits))
    integer, _, places = digits.partition(".")
    integer = integer.lstrip("0").rjust(whole_part.count("0"), "0")
    places = places.rstrip("0").ljust((picture["fraction"] or "").count("0"), "0")
    if not integer and not places:
        integer = "0"
    if "," in whole_part:
        integer = _grouped(integer, len(whole_part) - whole_part.rindex(",") - 1, group)
    return f"{before}{integer}{point + places if places else ''}{after}"


def _grouped(integer: str, size: int, separator: str) -> str:
    if size < 1:
        raise Fault("a picture of a number must not have a comma before its point")
    first = len(integer) % size
    groups = [integer[:first]] if first else []
    groups += [integer[at : at + size] for at in range(first, len(integer), size)]
    return separator.join(groups)
