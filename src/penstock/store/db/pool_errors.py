"""Why the pool gives no connection; nothing was sent. Apart from `pool`, as that is compiled and psycopg is not."""

from __future__ import annotations

import psycopg


class PoolTimeout(psycopg.OperationalError):
    """No connection could be had within the time. ``all_in_use``: there were as many as may be, and all at work; else
    the server gave none."""

    def __init__(self, text: str, *, all_in_use: bool = False) -> None:
        super().__init__(text)
        self.all_in_use = all_in_use


class PoolClosed(psycopg.OperationalError):
    """The pool is closed or about to be."""
