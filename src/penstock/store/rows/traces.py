"""The traces that instances were started in. Hints: a reader goes on without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement


def keep(traces: Mapping[int, str]) -> Statement:
    """Write them, by instance; a second time changes nothing."""
    return SQL["keep_traces"], (arrays.ints(traces), arrays.texts(list(traces.values())))


def inherit(parents: Mapping[int, int]) -> Statement:
    """Let instances (the keys) go on with the traces of those that started them."""
    return SQL["inherit_traces"], (arrays.ints(parents), arrays.ints(parents.values()))


async def find(connection: TrioConnection, instances: Sequence[int]) -> dict[int, str]:
    """Of those that have one."""
    rows = cast(Any, await connection.fetch(SQL["traces_of"], (arrays.ints(instances),)))
    return dict(rows)
