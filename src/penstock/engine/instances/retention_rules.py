"""How long instances are kept after their end: `retention_rules` over `retention_days`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.core.rules.state import InstanceStatus
from penstock.errors import BadRequest

NEVER_DAYS: Final = 36_500.0
ENDS: Final = (InstanceStatus.COMPLETED, InstanceStatus.FAILED, InstanceStatus.CANCELLED)
_RULE: Final = re.compile(
    r"(?P<definition>.+?)(?::(?P<status>COMPLETED|FAILED|CANCELLED))?=(?P<days>never|[0-9]+(?:\.[0-9]+)?)"
)


class KeptDays(NamedTuple):
    """Days that ended instances of one version of a definition are kept, by how they ended (`ENDS`)."""

    definition: int
    days: tuple[float, ...]


class RetentionRules:
    """The rules: of a definition and status, of a definition, of a status (``*:FAILED=365``), and ``retention_days``
    for all others. The one that says more counts."""

    def __init__(self, rules: Iterable[str], retention_days: float | None) -> None:
        """Raises BadRequest for a rule that can't be read, or stands twice."""
        self.otherwise = NEVER_DAYS if retention_days is None else retention_days
        self._rules: dict[tuple[str, InstanceStatus | None], float] = {}
        for text in rules:
            match = _RULE.fullmatch(text)
            if match is None or (match["definition"] == "*" and match["status"] is None):
                raise BadRequest(
                    f"retention_rules: '{text}' is not one of definition=days, definition:STATUS=days, *:STATUS=days"
                    " (COMPLETED, FAILED or CANCELLED; days may be `never`)"
                )
            place = match["definition"], None if match["status"] is None else InstanceStatus[match["status"]]
            days = NEVER_DAYS if match["days"] == "never" else float(match["days"])
            if not 0.01 <= days <= NEVER_DAYS:
                raise BadRequest(f"retention_rules: '{text}': from 0.01 to {NEVER_DAYS:g} days, or never")
            if place in self._rules:
                raise BadRequest(f"retention_rules: '{text}': there is another rule for the same")
            self._rules[place] = days

    def __bool__(self) -> bool:
        return bool(self._rules)

    def days(self, definition: str) -> tuple[float, ...]:
        """Of a definition, by how its instances end (`ENDS`)."""
        return tuple(self._days(definition, status) for status in ENDS)

    def _days(self, definition: str, status: InstanceStatus) -> float:
        for place in ((definition, status), (definition, None), ("*", status)):
            if place in self._rules:
                return self._rules[place]
        return self.otherwise

    def of(self, definitions: Mapping[int, str]) -> list[KeptDays]:
        """Those of the versions (by key, with their definitions' ids) that are kept for another time than others."""
        found = [KeptDays(key, self.days(id)) for key, id in definitions.items()] if self else []
        return [kept for kept in found if any(days != self.otherwise for days in kept.days)]


def shorter(kept: Sequence[KeptDays], otherwise: float) -> list[KeptDays]:
    """Those of which some go before the partition of their time does; the others of them never, by this."""
    early = [
        KeptDays(each.definition, tuple(days if days < otherwise else NEVER_DAYS for days in each.days))
        for each in kept
    ]
    return [each for each in early if min(each.days) < NEVER_DAYS]
