"""forEach: what is kept of its items, one function per statement of ``queries/for_each.sql``. `full_path` writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from penstock.core.advance.effect import Effects, MapState
from penstock.core.advance.for_each import KeptItems
from penstock.core.graph.definition import StepType
from penstock.core.rules.state import InstanceStatus, Token
from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL
from penstock.store.db.vault import ITEM, Vault, offloaded
from penstock.store.rows.variables import opened

READ_AHEAD_COUNT: Final = 100
"""Items that are read together: what one advance begins."""
READ_AHEAD_BYTES: Final = 1_048_576

ItemKey = tuple[int, int, int]
"""Instance, token of the forEach, item."""


async def read(connection: TrioConnection, instances: Sequence[int], items: Sequence[ItemKey]) -> dict[int, KeptItems]:
    """What is kept for instances, which are locked; of the variables those of ``items``."""
    columns = list(zip(*items, strict=True)) or [(), (), ()]
    state_rows, item_rows = cast(
        Any,
        await connection.roundtrip(
            [
                (SQL["read_maps"], (arrays.ints(instances),)),
                (SQL["read_items"], tuple(arrays.ints(column) for column in columns)),
            ]
        ),
    )
    owner = {token: instance for instance, token, *_ in state_rows}
    found = {instance: KeptItems({}, {}, {}) for instance in instances}
    for instance, token, *about in state_rows:
        found[instance].states[token] = MapState(*about)
    texts = {(owner[token], token, item): text for token, item, text in item_rows}
    for (instance, token, item), text in (await _clear(connection, texts, lambda key: key[0])).items():
        found[instance].items[token, item] = text.encode()
    return found


async def next_items(connection: TrioConnection, instance: int, token: int, first: int) -> dict[tuple[int, int], bytes]:
    """Return the variables of the next items of a forEach, by its token and item. One that can't be read is left
    out."""
    params = (instance, token, first, READ_AHEAD_COUNT, READ_AHEAD_BYTES)
    rows = cast(Any, await connection.fetch(SQL["read_next_items"], params))
    texts = {(token, item): text for item, text in rows}
    return {key: text.encode() for key, text in (await _clear(connection, texts, lambda _: instance)).items()}


async def of_tokens(connection: TrioConnection, tokens: Sequence[int]) -> dict[int, bytes]:
    """The variables of the items that tokens are for. Left out: what can't be read, or is no item any more."""
    rows = cast(Any, await connection.fetch(SQL["read_items_of_tokens"], (arrays.ints(tokens),)))
    texts = {(token, instance): text for token, instance, text in rows}
    return {key[0]: text.encode() for key, text in (await _clear(connection, texts, lambda key: key[1])).items()}


async def results(connection: TrioConnection, instance: int, token: int) -> dict[int, bytes]:
    """What is collected of a forEach, by item. Raises KeyMissing."""
    rows = cast(Any, await connection.fetch(SQL["read_map_results"], (instance, token)))
    vault = connection.vault
    if vault is None:
        return {item: text.encode() for item, text in rows}
    size_bytes = sum(len(text) for _, text in rows)
    return await offloaded(size_bytes, lambda: {item: vault.open_value(text, ITEM).encode() for item, text in rows})


async def failed_when_done(
    connection: TrioConnection, instance: int, items: Sequence[Token], types: Sequence[StepType]
) -> Token | None:
    """Return the first of the items, with the types of their steps, that failed by no error of its own: whoever had it
    did the work."""
    if not items:
        return None
    columns = (
        arrays.ints([token.id for token in items]),
        arrays.ints([token.seq for token in items]),
        arrays.bools([each is StepType.USER_TASK for each in types]),
    )
    rows = cast(Any, await connection.fetch(SQL["failed_when_done"], (instance, *columns)))
    return next((token for token in items if (token.id,) in rows), None)


async def _clear(
    connection: TrioConnection, texts: Mapping[Any, str], instance_of: Callable[[Any], int]
) -> dict[Any, str]:
    vault = connection.vault
    if vault is None or not texts:
        return dict(texts)
    clear = await offloaded(
        sum(map(len, texts.values())),
        lambda: {key: opened(vault, text, instance_of(key)) for key, text in texts.items()},
    )
    return {key: text for key, text in clear.items() if text is not None}


def write(outcomes: Iterable[tuple[Effects, bool]], add: Callable[..., None], vault: Vault | None) -> None:
    """The rows of outcomes, each with whether its definition has such steps. Nothing is kept of what ended, but for a
    failed instance's retry."""
    ints = arrays.ints
    variables = partial(arrays.sealed, vault=vault)
    over: list[tuple[int]] = []
    ended: list[tuple[int, int]] = []
    begun: list[tuple[int, ...]] = []
    changed: list[tuple[int, ...]] = []
    items: list[tuple[int, int, int, bytes]] = []
    written: list[tuple[int, int, int, bytes]] = []
    collected: list[tuple[int, int, int, bytes]] = []
    for out, has_maps in outcomes:
        id, maps = out.instance.id, out.maps
        if out.ended and out.instance.status is not InstanceStatus.FAILED:
            if has_maps:
                over.append((id,))
        elif maps is not None:
            ended += [(id, token) for token in maps.ended]
            for token, state in maps.states.items():
                rest = (state.next, state.done, state.failed, state.kept_bytes)
                if token in maps.begun:
                    begun.append((id, token, state.total, *rest))
                else:
                    changed.append((id, token, *rest))
            items += [(id, token, n, row) for token, rows in maps.begun.items() for n, row in enumerate(rows)]
            written += [(id, *key, row) for key, row in maps.variables.items()]
            collected += [(id, *key, value) for key, value in maps.results.items()]
    add("remove_maps", over, ints)
    add("end_maps", ended, ints, ints)
    add("begin_maps", begun, ints, ints, ints, ints, ints, ints, ints)
    add("insert_items", items, ints, ints, ints, variables)
    add("update_maps", changed, ints, ints, ints, ints, ints, ints)
    add("update_items", written, ints, ints, ints, variables)
    add(
        "insert_map_results",
        collected,
        ints,
        ints,
        ints,
        partial(arrays.sealed_values, vault=vault, name=ITEM),
    )
