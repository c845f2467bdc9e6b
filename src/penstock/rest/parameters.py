"""Parameters of the query that a route does not have, or that are given twice.

An application that mistypes a filter shall not act on everything. The additions refuse a parameter that they don't
have. The calls of the contract ignore it, as old clients rely on that: there it is counted, and each route logs it
once. Every call refuses a parameter with two values, as it could only obey one of them.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

from penstock.errors import BadRequest
from penstock.log.log import get_logger
from penstock.rest.operation import RestOperation
from penstock.telemetry.metrics import Metrics

SHOWN_MAX_CHARS: Final = 64

log = get_logger(__name__)


class UnknownParameters:
    """Of one engine."""

    def __init__(self, metrics: Metrics) -> None:
        self._ignored = metrics.http_ignored_parameters
        self._reported: set[str] = set()

    def check(self, operation: RestOperation, query: bytes | None) -> None:
        """Look at the query of a call before anything is done. Raises BadRequest, which names the parameter."""
        if not query:
            return
        known = operation.query_names
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        given = [name for name, _ in pairs]
        seen: dict[str, str] = {}
        for name, value in pairs:
            if name in known and seen.setdefault(name, value) != value:
                raise BadRequest(f"{name}: is given twice, with different values; give it once")
        families = tuple(name.removesuffix("*") for name in known if name.endswith("*"))
        unknown = [name for name in given if name not in known and not name.startswith(families)]
        if not unknown:
            return
        name = unknown[0][:SHOWN_MAX_CHARS]
        if operation.refuses_unknown_parameters:
            there = f"it has {', '.join(sorted(known))}" if known else "it has none"
            raise BadRequest(f"{name}: {operation.path} has no such parameter in its query; {there}")
        self._ignored[operation.path].inc(len(unknown))
        if operation.id not in self._reported:  # names are made by clients: once per route, not per name
            self._reported.add(operation.id)
            log.warning("an unknown query parameter is ignored", path=operation.path, name=name)
