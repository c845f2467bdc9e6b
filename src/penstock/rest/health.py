"""Whether the process lives, and whether it can serve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import trio
from quart import Response

from penstock.engine.engine import Engine
from penstock.errors import Unavailable
from penstock.rest.exchange import Reply
from penstock.rest.reading import respond

READY_TIMEOUT_SECONDS: Final = 2.0
"""Probes of orchestrators give up after 1 to 5 s: an answer that comes later says nothing."""

LIVE_PATH: Final = "/healthz"
ALIVE: Final = Reply(200, b"", content_type=b"text/plain")


class Readiness(msgspec.Struct, rename="camel", omit_defaults=True):
    """The body of `/readyz` when it is 200."""

    status: str
    degraded: list[str] | None = None
    quarantined_rows: dict[str, int] | None = msgspec.field(default=None, name="rowsAside")
    """How many rows wait aside that the database refused, by service: the log and `penstock_quarantined_row` say
    which."""
    insecure: bool = False
    """The engine has no authentication, and was told to let everybody in all the same."""


class HealthRoutes:
    """``degraded`` names what is away although the engine serves."""

    def __init__(self, engine: Engine, degraded: Callable[[], Sequence[str]]) -> None:
        self._engine = engine
        self._degraded = degraded

    async def live(self) -> Response:
        """``GET /healthz``"""
        return respond(ALIVE)

    async def ready(self) -> Response:
        """``GET /readyz``"""
        answered = False
        with trio.move_on_after(READY_TIMEOUT_SECONDS):
            await self._engine.ready()
            answered = True
        if not answered:
            raise Unavailable(f"the database did not answer within {READY_TIMEOUT_SECONDS:g} s")
        away = list(self._degraded())
        quarantine = Counter(about.service for about in self._engine.quarantine.listing())
        readiness = Readiness("ready", away or None, quarantine or None, self._engine.settings.insecure)
        return respond(Reply(200, msgspec.json.encode(readiness)))
