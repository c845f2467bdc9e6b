"""What of instances the console is shown (`engine/hiding`): in answers that programs get whole."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final, cast

import msgspec
from quart import Request

from penstock.engine.hiding import Hiding
from penstock.engine.standing import ShownExecution
from penstock.offload import run_sized
from penstock.rest.operation import CONSOLE_HEADER
from penstock.rest.sessions import has_session
from penstock.wire.model import Instance, JournalRecord, RecordedAttempt
from penstock.wire.noun import text_bytes

_VARIABLES_IN: Final = {"child": "result", "begun": "arguments"}
"""Where the payloads of a journal's records have variables of instances, by kind."""


def asked_by_console(request: Request) -> bool:
    """Whether the console asks, or somebody who is signed in at it."""
    return CONSOLE_HEADER in request.headers or has_session(request.cookies)


async def hide(hiding: Hiding, views: list[Instance]) -> list[Instance]:
    """The instances without what is hidden of their variables and results."""
    size = sum(text_bytes(view.variables) for view in views)
    return await run_sized(size, lambda: [_hidden(hiding, view) for view in views])


async def hide_pieces(hiding: Hiding, pieces: AsyncGenerator[list[Instance]]) -> AsyncGenerator[list[Instance]]:
    """As they come."""
    async with aclosing(pieces):
        async for piece in pieces:
            yield await hide(hiding, piece)


async def hide_outputs(hiding: Hiding, executions: list[ShownExecution]) -> list[ShownExecution]:
    """The executions without what is hidden of what they wrote."""
    size = sum(one.output_bytes or 0 for one in executions)
    return await run_sized(size, lambda: [_hidden_output(hiding, one) for one in executions])


async def hide_attempts(hiding: Hiding, attempts: list[RecordedAttempt]) -> list[RecordedAttempt]:
    """The attempts without what is hidden of what they were given and gave."""
    size = sum((one.parameters_bytes or 0) + (one.result_bytes or 0) for one in attempts)
    return await run_sized(size, lambda: [_hidden_attempt(hiding, one) for one in attempts])


async def hide_records(hiding: Hiding, records: list[JournalRecord]) -> list[JournalRecord]:
    """The records of a journal without what is hidden of what instances gave, or were given."""
    size = sum(len(bytes(one.payload)) for one in records if isinstance(one.payload, msgspec.Raw))
    return await run_sized(size, lambda: [_hidden_record(hiding, one) for one in records])


def _hidden_record(hiding: Hiding, one: JournalRecord) -> JournalRecord:
    name, payload = _VARIABLES_IN.get(one.kind), cast("object", one.payload)
    if name is None or one.codec is not None or not isinstance(payload, msgspec.Raw):
        return one
    found = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    shown = {key: _mask(hiding, value) if key == name else value for key, value in found.items()}
    return msgspec.structs.replace(one, payload=msgspec.Raw(msgspec.json.encode(shown)))


def _hidden_attempt(hiding: Hiding, one: RecordedAttempt) -> RecordedAttempt:
    parameters, result = _mask(hiding, one.parameters), _mask(hiding, one.result)
    return msgspec.structs.replace(one, parameters=parameters, result=result)


def _hidden(hiding: Hiding, view: Instance) -> Instance:
    variables, result = cast("object", view.variables), view.result
    return msgspec.structs.replace(view, variables=_mask(hiding, variables), result=_mask(hiding, result))


def _hidden_output(hiding: Hiding, one: ShownExecution) -> ShownExecution:
    return msgspec.structs.replace(one, output=_mask(hiding, one.output))


def _mask(hiding: Hiding, value: object) -> Any:
    return msgspec.Raw(hiding.mask(bytes(value))) if isinstance(value, msgspec.Raw) else value
