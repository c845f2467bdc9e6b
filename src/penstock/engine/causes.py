"""What failures of one cause have in common."""

from __future__ import annotations

import re
from typing import Final

_CAUSE_MAX_CHARS: Final = 200
_PIECE: Final = re.compile(r"""([0-9]+|'[^']*'|"[^"]*")|[^0-9'"]{1,200}|['"]""")


def cause_of(reason: str) -> str:
    """The reason without its numbers and quoted parts; `failure_cause` in schema.sql is a hash of it. It reads no more
    of a long one than it takes: a thousand of them are looked at for one answer."""
    cause = ""
    for piece in _PIECE.finditer(reason):
        cause += "…" if piece[1] else piece[0]
        if len(cause) >= _CAUSE_MAX_CHARS:
            break
    return cause[:_CAUSE_MAX_CHARS]
