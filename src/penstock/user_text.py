"""Asks objects of users for a text, and their types for a method, so that no answer of theirs does harm.

A leaf. ``str(error)`` and ``repr(value)`` run a user's code: it may raise, end the program, or give no text. An
attribute that an instance is asked for may be invented (`unittest.mock.Mock`, proxies), so types are asked instead.
Every text of an object that a user made goes through `text_of` or `repr_of`.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

_TRACEBACK: Final = BaseException.__dict__["__traceback__"]
_CAUSE: Final = BaseException.__dict__["__cause__"]
_CONTEXT: Final = BaseException.__dict__["__context__"]
_EXCEPTIONS: Final = BaseExceptionGroup.__dict__["exceptions"]  # of Python, whatever a class defines

MAX_CHARS: Final = 32_768
"""Of one text; what is longer is cut."""
MAX_FRAMES: Final = 100
"""Of an error's traceback the innermost ones are told."""
MAX_ERRORS: Final = 1_000
"""Of causes, contexts and groups around an error."""


def text_of(value: object, max_chars: int = MAX_CHARS) -> str:
    """Return ``str(value)``, or why there is none. Raises nothing but KeyboardInterrupt."""
    return _asked(str, value, max_chars)


def repr_of(value: object, max_chars: int = MAX_CHARS) -> str:
    """Return ``repr(value)``, or why there is none. Raises nothing but KeyboardInterrupt."""
    return _asked(repr, value, max_chars)


def said(say: Callable[[], str], max_chars: int = MAX_CHARS) -> str:
    """Return the text that a function of ours makes of a user's object, or why there is none."""
    return _asked(lambda _: say(), None, max_chars)


def with_short_tracebacks(error: BaseException) -> BaseException:
    """Return the error, whose traceback keeps its innermost frames only, and so for all errors behind it.

    One that is raised again and again (of a module, say) keeps the frames of each time. Python's `traceback` looks at
    all of them before it leaves any out: 30 s for some 100,000.
    """
    todo, seen = [error], set[int]()
    while todo and len(seen) < MAX_ERRORS:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        frames = deque[TracebackType](maxlen=MAX_FRAMES)
        at, count = _TRACEBACK.__get__(each), 0
        while at is not None:
            frames.append(at)
            at, count = at.tb_next, count + 1
        if count > MAX_FRAMES:
            _TRACEBACK.__set__(each, frames[0])
        todo += [other for other in (_CAUSE.__get__(each), _CONTEXT.__get__(each)) if other is not None]
        todo += errors_of(each)
    return error


def errors_of(error: BaseException) -> tuple[BaseException, ...]:
    """Return the errors in a group; none of others."""
    return _EXCEPTIONS.__get__(error) if issubclass(type(error), BaseExceptionGroup) else ()


def traceback_text(error: BaseException) -> str:
    """Return an error as Python tells it, with short tracebacks. What the user's class raises meanwhile goes on."""
    return "".join(traceback.format_exception(with_short_tracebacks(error)))


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
