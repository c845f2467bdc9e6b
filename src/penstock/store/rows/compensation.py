"""Compensation: which completed step executions are to be undone, by whom, and what is written of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from penstock.core.advance.completion import CompletionAnswer, DoneExecution, Question
from penstock.core.advance.effect import Compensation, Effects
from penstock.core.rules.state import InstanceStatus
from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL
from penstock.store.db.vault import Vault, offloaded
from penstock.store.rows.variables import opened


async def find(connection: TrioConnection, instance: int, question: Question) -> CompletionAnswer:
    """The answer to what `advance` asks of an instance that is locked. Raises KeyMissing."""
    params = (
        instance,
        arrays.ints(question.steps),
        question.after,
        arrays.ints(question.taken),
        arrays.ints(question.freed),
        arrays.ints(question.by_item),
    )
    rows = await connection.fetch(SQL["next_completion"], params)
    status, failure, code, failed_step, job, position, step, output, item = cast(Any, rows[0])
    undoing = None if status is None else Compensation(InstanceStatus(status), failure, code, failed_step, job)
    if position is None:
        return CompletionAnswer(None, undoing)
    text, vault = cast("str | None", output), connection.vault
    if text is not None:
        connection.remember_row_size(len(text))
    if text is not None and vault is not None:
        text = await offloaded(len(text), partial(vault.open, text))
    return CompletionAnswer(_done(position, step, text, item), undoing)


async def raw_result(connection: TrioConnection, instance: int, position: int) -> bytes | None:
    """What a step execution of an instance that is locked completed with, where that could not be mapped. Raises
    KeyMissing."""
    rows = cast(Any, await connection.fetch(SQL["raw_result"], (instance, position)))
    if not rows:
        return None
    text, vault = cast(str, rows[0][0]), connection.vault
    connection.remember_row_size(len(text))
    return (text if vault is None else await offloaded(len(text), partial(vault.open, text))).encode()


async def of_handlers(connection: TrioConnection, tokens: Sequence[int]) -> dict[int, DoneExecution]:
    """What the handlers on tokens are to undo. Left out: what can't be read for want of a key."""
    rows = cast(Any, await connection.fetch(SQL["completions_of_handlers"], (arrays.ints(tokens),)))
    connection.remember_row_size(max((len(output or "") for *_, output, _ in rows), default=0))
    vault = connection.vault
    if vault is None:
        return {token: _done(*about) for token, _, *about in rows}
    size_bytes = sum(len(output or "") for *_, output, _ in rows)
    return await offloaded(size_bytes, partial(_opened, rows, vault))


def _opened(rows: Sequence[Any], vault: Vault) -> dict[int, DoneExecution]:
    found: dict[int, DoneExecution] = {}
    for token, instance, position, step, output, item in rows:
        text = None if output is None else opened(vault, output, instance)
        if output is None or text is not None:
            found[token] = _done(position, step, text, item)
    return found


def _done(position: int, step: int, output: str | None, item: int | None) -> DoneExecution:
    return DoneExecution(position, step, None if output is None else output.encode(), item)


def write(outcomes: Sequence[Effects], add: Callable[..., None], vault: Vault | None) -> None:
    """The rows of outcomes."""
    ints, texts = arrays.ints, arrays.texts
    outputs = [(out.instance.id, *kept) for out in outcomes for kept in out.item_outputs]
    mapped = [(out.instance.id, position) for out in outcomes for position in out.mapped]
    add("delete_item_outputs", mapped, ints, ints)
    add("insert_item_outputs", outputs, ints, ints, partial(arrays.sealed, vault=vault))
    add("free_completions", [(token,) for out in outcomes for token in out.freed], ints)
    undone = [(out.instance.id, one.position, one.token_id) for out in outcomes for one in out.undone]
    add("insert_compensations", undone, ints, ints, ints)
    undoing = [
        (out.instance.id, how.status, how.failure, how.code, how.step, how.job)
        for out in outcomes
        if (how := out.undoing) is not None
    ]
    add("insert_undoing", undoing, ints, ints, texts, texts, ints, arrays.bools)
