"""Why the pool gives no connection; nothing was sent. Apart from `pool`, as that is compiled and psycopg is not."""

from __future__ import annotations

import psycopg


class PoolTimeout(psycopg.OperationalError):
    """No connection could be had within the time."""


class PoolClosed(psycopg.OperationalError):
    """The pool is closed or about to be."""
