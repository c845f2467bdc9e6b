"""How many connections each listener may hold, so that none takes the open files of the others or of the database.

Pure: the limit of the process comes in as a number.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.settings import Settings

OTHER_FILES = 64
"""Of the process itself: log, epoll, wake-up pipes, listening sockets, Kafka."""
DATABASE_FILES = 8
"""Connections beside the pool: the listening one, cancels under way."""
METRICS_MAX_CONNECTIONS = 2_000
LEAST_CONNECTIONS = 8


class Shares(NamedTuple):
    """Connections of each listener, at most."""

    rest: int
    grpc: int
    metrics: int


def share_files(settings: Settings, open_files_max: int) -> Shares:
    """What the settings say, or less of it where the system allows fewer open files: both by the same part."""
    free = open_files_max - settings.db_max_conns - DATABASE_FILES - OTHER_FILES
    metrics = max(min(METRICS_MAX_CONNECTIONS, free // 10), LEAST_CONNECTIONS)
    wanted = settings.http_max_connections + settings.grpc_max_connections
    part = min(max(free - metrics, 0) / wanted, 1.0)
    rest, grpc = (
        max(int(number * part), min(number, LEAST_CONNECTIONS))
        for number in (settings.http_max_connections, settings.grpc_max_connections)
    )
    return Shares(rest, grpc, metrics)
