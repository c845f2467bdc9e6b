"""Asks objects of users for a text, and their types for a method, so that no answer of theirs does harm.

A leaf. ``str(error)`` and ``repr(value)`` run a user's code: it may raise, end the program, or give no text. An
attribute that an instance is asked for may be invented (`unittest.mock.Mock`, proxies), so types are asked instead.
Every text of an object that a user made goes through `text_of` or `repr_of`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

MAX_CHARS: Final = 32_768
"""Of one text; what is longer is cut."""


def text_of(value: object, max_chars: int = MAX_CHARS) -> str:
    """Return ``str(value)``, or why there is none. Raises nothing but KeyboardInterrupt."""
    return _asked(str, value, max_chars)


def repr_of(value: object, max_chars: int = MAX_CHARS) -> str:
    """Return ``repr(value)``, or why there is none. Raises nothing but KeyboardInterrupt."""
    return _asked(repr, value, max_chars)


def said(say: Callable[[], str], max_chars: int = MAX_CHARS) -> str:
    """Return the text that a function of ours makes of a user's object, or why there is none."""
    return _asked(lambda _: say(), None, max_chars)


def static_attribute(type_: type[Any], name: str) -> Any:
    """Return what a class or one of its bases defines under that name, without asking a metaclass; else None."""
    for base in type_.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return None


def _asked(ask: Callable[[Any], str], value: object, max_chars: int) -> str:
    try:
        text = str.__str__(ask(value))  # of a subclass of str: its characters, by none of its own methods
        return text[:max_chars].encode(errors="backslashreplace").decode()  # names of files may be no UTF-8
    except KeyboardInterrupt:  # Ctrl-C is the program's
        raise
    except BaseException as error:  # SystemExit too
        return f"<not told: {type(error).__name__}>"
