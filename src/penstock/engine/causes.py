"""What failures of one cause have in common."""

from __future__ import annotations

import re
from typing import Final

_VARYING: Final = re.compile(r"[0-9]+|'[^']*'|\"[^\"]*\"")
_CAUSE_MAX_CHARS: Final = 200


def cause_of(reason: str) -> str:
    """The reason without its numbers and quoted parts; `failure_cause` in schema.sql is a hash of it."""
    return _VARYING.sub("…", reason)[:_CAUSE_MAX_CHARS]
