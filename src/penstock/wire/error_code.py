"""Codes of errors: how a step says what went wrong, for error boundaries and retries to go by. Pure."""

from __future__ import annotations

import re
from typing import Final

CODE_MAX_CHARS: Final = 100
BETWEEN: Final = " · "
"""Between an error code and a reason, in the text of a failure. No code has a space."""
OWN_PREFIX: Final = "Penstock."
"""Of codes that only the engine gives."""
RETRIES_EXHAUSTED: Final = "Penstock.RetriesExhausted"
"""A job failed for good as it has no retries left, and its worker gave no code."""
NOT_RETRYABLE: Final = "Penstock.NotRetryable"
"""A job failed for good though retries were left, or its worker said that none helps, and it gave no code. Boundaries
take it by the name `RETRIES_EXHAUSTED`, which it had before."""
LEASE_EXPIRED: Final = "Penstock.LeaseExpired"
CHILD_FAILED: Final = "Penstock.ChildFailed"
"""The instance that a call started failed, with no code of a worker or a definition."""
CHILD_CANCELLED: Final = "Penstock.ChildCancelled"
DEFINITION_NOT_FOUND: Final = "Penstock.DefinitionNotFound"
"""A call names a definition that is not there."""
BAD_ITEMS: Final = "Penstock.BadItems"
"""What a forEach is to go over is no list, or too long a one."""
OWN_CODES: Final = frozenset(
    {RETRIES_EXHAUSTED, LEASE_EXPIRED, CHILD_FAILED, CHILD_CANCELLED, DEFINITION_NOT_FOUND, BAD_ITEMS}
)

_CODE: Final = re.compile(rf"[A-Za-z0-9_.\-]{{1,{CODE_MAX_CHARS}}}")


def code_problem(code: str, *, own: bool = False) -> str | None:
    """Why this is no code that a worker or a definition may give; None when it is one. ``own``: the engine's may be
    named."""
    if _CODE.fullmatch(code) is None:
        return f"must be 1 to {CODE_MAX_CHARS} of letters, digits, '_', '.' and '-'"
    if not code.startswith(OWN_PREFIX) or (own and code in OWN_CODES):
        return None
    named = f"; those are {', '.join(sorted(OWN_CODES))}" if own else ""
    return f"codes that begin with '{OWN_PREFIX}' are the engine's{named}"


def failure_text(reason: str | None, code: str | None) -> str:
    """Return the text by which a failure is found: the ``code`` that its worker gave, then the ``reason``.

    A code of the engine's own is left out. `fill_causes` in `store/queries/instances.sql` makes the same of a row.
    """
    if code is None or code.startswith(OWN_PREFIX):
        return reason or ""
    return f"{code}{BETWEEN}{reason or ''}"
