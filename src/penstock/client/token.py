"""The token that proves who calls: a text, or a function that gives one.

A function is asked for every exchange (and for every Work stream), so that what it gives may change: it should keep
what it has until that is about to expire. It may be async, and runs in the event loop: it must not block.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, cast

from penstock.client.errors import BadRequest, Unavailable
from penstock.user_text import repr_of

Token: TypeAlias = str | Callable[[], str] | Callable[[], Awaitable[str]]

_TEXT: Final = re.compile(r"[\x21-\x7e]+")


def check_token(token: Token | None) -> None:
    """Raises ValueError for a text that can't be a token; the text is not shown."""
    if isinstance(token, str) and _TEXT.fullmatch(token) is None:
        raise ValueError("token: must be printable ASCII without blanks; does it end with a line break?")


async def bearer_of(token: Token) -> str:
    """Return the value of the header. Raises BadRequest for what can't be one, Unavailable when the function fails."""
    if isinstance(token, str):
        return f"Bearer {token}"
    try:
        found = cast(object, token())
        text = await found if inspect.isawaitable(found) else found
    except Exception as error:
        raise Unavailable(f"the token function failed: {repr_of(error)}", maybe_applied=False) from error
    if not isinstance(text, str) or _TEXT.fullmatch(text) is None:
        raise BadRequest("token: the function must return printable ASCII without blanks")
    return f"Bearer {text}"
