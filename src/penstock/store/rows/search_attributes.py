"""The table of search attributes: what instances are found by. Definitions that declare none never come here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from penstock.core.rules.search_attributes import Indexed, SearchAttributes
from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement


def of_changes(changed: Iterable[tuple[int, SearchAttributes, Sequence[bytes]]]) -> list[Statement]:
    """Of instances: what they declare, and what was written to their variables, in order."""
    rows: dict[tuple[int, str], Indexed] = {}
    for instance, attributes, written in changed:
        for variables in written:
            rows |= {(instance, name): value for name, value in attributes.read(variables).items()}
    return _write(rows)


def of_edit(instance: int, changed: Mapping[str, Indexed], removed: Iterable[str]) -> list[Statement]:
    """Of an instance whose variables are edited by hand."""
    rows = {(instance, name): Indexed() for name in removed}
    return _write(rows | {(instance, name): value for name, value in changed.items()})


def forget(instance: int) -> list[Statement]:
    """All that an instance is found by."""
    return [(SQL["remove_search_attributes"], (arrays.ints([instance]),))]


async def undeclared(connection: TrioConnection, names: Sequence[str]) -> list[str]:
    """Those of the names by which no instance can be found."""
    return [cast(str, row[0]) for row in await connection.fetch(SQL["undeclared"], (arrays.texts(names),))]


def _write(rows: Mapping[tuple[int, str], Indexed]) -> list[Statement]:
    if not rows:
        return []
    instances, names = zip(*rows, strict=True)
    columns = (
        arrays.ints(instances),
        arrays.texts(names),
        arrays.texts([value.text for value in rows.values()]),
        arrays.floats([value.number for value in rows.values()]),
    )
    return [(SQL["set_search_attributes"], columns)]
