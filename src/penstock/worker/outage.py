"""A worker's time without its engine: what its log says of it, and when to ask again.

A token that is refused is no outage, and reads otherwise: somebody has to do something. It is told clearly, at once and
then every minute, and asked for again in longer pauses.
"""

from __future__ import annotations

import logging
import math
from typing import Final

import anyio

from penstock.client.backoff import RetryPauses
from penstock.client.errors import ClientError, Unauthenticated, Unavailable
from penstock.worker.held import LOGGER

REFUSED_PAUSE_MAX_S: Final = 30.0
REFUSED_LOG_INTERVAL_S: Final = 60.0


class Outage:
    """One loop's view of it. ``what`` the engine does not do meanwhile, such as "no jobs from the engine"."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._pauses = RetryPauses()
        self._refusals = RetryPauses(max_s=REFUSED_PAUSE_MAX_S)
        self._log_at = -math.inf
        self.away = False

    def note(self, error: ClientError) -> float:
        """Another try has failed; after how many seconds there is to be one more."""
        if isinstance(error, Unauthenticated):
            now = anyio.current_time()
            if now >= self._log_at:
                self._log_at = now + REFUSED_LOG_INTERVAL_S
                text = "the engine REFUSES THIS WORKER'S TOKEN, %s: %s. It is tried again every %g s; results are kept"
                LOGGER.error(text, self._what, error, REFUSED_PAUSE_MAX_S)
            pause_s = self._refusals.next_pause_s()
        else:
            LOGGER.log(logging.DEBUG if self.away else logging.WARNING, "%s: %s", self._what, error)
            pause_s = self._pauses.next_pause_s(error if isinstance(error, Unavailable) else None)
        self.away = True
        return pause_s

    def over(self, message: str = "") -> None:
        """The engine has answered; ``news`` for the log, if it had not before."""
        if self.away and message:
            LOGGER.info(message)
        self.away = False
        self._log_at = -math.inf
        self._pauses.reset()
        self._refusals.reset()
