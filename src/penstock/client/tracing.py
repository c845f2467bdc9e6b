"""W3C trace context: the ``traceparent`` that goes with every call made inside the block.

::

    with traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"):
        await client.start_instance("order", {...})

Holds a context variable, so concurrent tasks have their own. Both transports read it; the engine carries it into its
logs.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_CURRENT: ContextVar[str | None] = ContextVar("penstock_traceparent", default=None)
_FORM = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


@contextmanager
def traceparent(value: str | None) -> Generator[None]:
    """Send this ``traceparent`` with every call made inside the block; None sends none.

    Raises:
        ValueError: it does not have the form of the W3C's header.
    """
    if value is not None and _FORM.fullmatch(value) is None:
        raise ValueError(f"not a traceparent: {value!r}")
    token = _CURRENT.set(value)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_traceparent() -> str | None:
    """The ``traceparent`` of the current task; None when there is none."""
    return _CURRENT.get()
