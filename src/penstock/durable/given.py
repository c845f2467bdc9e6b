"""Checks what a caller gave for an option, before anything is done with it.

An error names the option, the value and what is allowed: TypeError for a value of another kind, ValueError for one that
is out of bounds.
"""

from __future__ import annotations

import re
from typing import Any, Final

from penstock.durable.duration import Duration, seconds_of
from penstock.durable.errors import BadDuration
from penstock.user_text import repr_of

ID_MAX_CHARS: Final = 256
NAME_MAX_CHARS: Final = 100
SHOWN_MAX_CHARS: Final = 100
PRIORITY_MAX: Final = 9
DSN_MAX_CHARS: Final = 4_096
DATABASES: Final = ("postgresql://", "postgres://")
ENGINES: Final = ("grpc://", "grpcs://")
_NAME: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{NAME_MAX_CHARS}}}")
_NAME_WORDS: Final = f"1 to {NAME_MAX_CHARS} letters (a-z, A-Z), digits, '_' and '-'"
_UNFIT: Final = re.compile("[\0\ud800-\udfff]")
"""What PostgreSQL does not keep."""


def wrong(option: str, value: object, allowed: str) -> str:
    """Return the text of an error: ``id is 17: give text, such as "17"``."""
    text = repr_of(value)
    return f"{option} is {text if len(text) <= SHOWN_MAX_CHARS else text[:SHOWN_MAX_CHARS] + '…'}: give {allowed}"


def check_text(option: str, value: object, max_chars: int = ID_MAX_CHARS, *, needed: bool = False) -> None:
    """Of 1 to ``max_chars`` characters, which PostgreSQL keeps. None is one that was not given, unless it is needed."""
    if value is None and not needed:
        return
    allowed = f"text of 1 to {max_chars} characters"
    if not isinstance(value, str):
        such = f", such as {str(value)!r}" if type(value) in (int, float) else ""
        raise TypeError(wrong(option, value, allowed + such))
    if not 0 < len(value) <= max_chars or _UNFIT.search(value) is not None:
        raise ValueError(wrong(option, value, f"{allowed}, none of them NUL or a lone surrogate"))


def check_id(id: object, *, needed: bool = False) -> None:
    """Of a run. An empty one would be every run's whose id was not filled in."""
    if isinstance(id, str) and not id:
        raise ValueError("id is empty: give an id of yours for the run, such as an order's number, or leave it out")
    check_text("id", id, needed=needed)


def check_name(option: str, value: object, *, empty: bool = False, instead: str = "") -> None:
    """A name of a workflow or an App, part of ids and job types. ``instead``: what else may be written."""
    if empty and value == "" and isinstance(value, str):
        return
    if not isinstance(value, str):
        raise TypeError(wrong(option, value, f"text of {_NAME_WORDS}{instead}"))
    if _NAME.fullmatch(value) is None:
        raise ValueError(wrong(option, value, f"{_NAME_WORDS}{instead}"))


def check_int(option: str, value: object, least: int, most: int | None = None) -> None:
    """An integer in these bounds. None is one that was not given."""
    if value is None:
        return
    allowed = f"an integer of {least:,} or more" if most is None else f"an integer from {least:,} to {most:,}"
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(wrong(option, value, allowed))
    if value < least or (most is not None and value > most):
        raise ValueError(wrong(option, value, allowed))


def check_priority(value: object) -> None:
    """An integer; the engine says which. None is one that was not given."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise TypeError(wrong("priority", value, f"an integer from 0 to {PRIORITY_MAX}"))


def check_flag(option: str, value: object) -> None:
    """True or False: of others it would be guessed what they mean."""
    if not isinstance(value, bool):
        raise TypeError(wrong(option, value, "True or False"))


def check_kind(option: str, value: object, kind: type[Any] | tuple[type[Any], ...], such: str) -> None:
    """An object of a class. None is one that was not given."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(wrong(option, value, such))


def check_callable(option: str, value: object, such: str) -> None:
    """What is called. None is one that was not given."""
    if value is not None and not callable(value):
        raise TypeError(wrong(option, value, such))


def check_at(value: object) -> None:
    """Where a database or an engine is: text that begins with what is known, or a connection string of libpq."""
    check_text("at", value, DSN_MAX_CHARS)
    if isinstance(value, str) and "://" in value and not value.startswith((*DATABASES, *ENGINES)):
        scheme = value.split("://")[0]
        raise ValueError(f"at: {scheme}://… can't be used; a PostgreSQL is postgresql://…, an engine grpc://host:port")


def check_database(value: object) -> None:
    """Where a database is, and no engine."""
    check_at(value)
    if isinstance(value, str) and value.startswith(ENGINES):
        raise ValueError("at: a transaction needs a PostgreSQL (postgresql://…), not an engine")


def seconds_given(option: str, value: Duration, *, positive: bool = False) -> float:
    """Return a length of time; ``positive``: more than none. Raises `BadDuration`."""
    try:
        seconds = seconds_of(value)
    except BadDuration as error:
        raise BadDuration(f"{option}: {error}") from None
    if positive and not seconds:
        raise BadDuration(f"{option}: {repr_of(value)} is not a length of time: give more than 0, or leave it out")
    return seconds
