"""Variables whose values people's pages are not shown: those whose names match one of the patterns of a setting.

Pure. Must not be taken for protection of what is stored: whoever may call the interface as a program reads them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate

import msgspec

from penstock.log.masking import MASK

_HIDDEN = msgspec.Raw(msgspec.json.encode(MASK))


class Hiding:
    """Of one engine. ``patterns``: names, in which ``*`` is anything and ``?`` any character; case counts."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._matches = re.compile("|".join(map(translate, patterns))).match if patterns else None

    @property
    def is_on(self) -> bool:
        """Return whether anything may be hidden."""
        return self._matches is not None

    def hides(self, name: str) -> bool:
        """Return whether a variable's value is not shown."""
        return self._matches is not None and self._matches(name) is not None

    def mask(self, variables: bytes) -> bytes:
        """A JSON object with a mask in place of each hidden value. Anything else stays."""
        if self._matches is None or variables[:1] != b"{":
            return variables
        found = msgspec.json.decode(variables, type=dict[str, msgspec.Raw])
        if not any(map(self.hides, found)):
            return variables
        return msgspec.json.encode({name: _HIDDEN if self.hides(name) else value for name, value in found.items()})

    def drop(self, variables: bytes) -> bytes:
        """A JSON object without what is hidden."""
        if self._matches is None:
            return variables
        found = msgspec.json.decode(variables, type=dict[str, msgspec.Raw])
        return msgspec.json.encode({name: value for name, value in found.items() if not self.hides(name)})
