"""What durable workflows take, as their programs publish it: arguments are checked before a run begins.

A workflow of which nothing is published is started as it is asked for, and its program says what is wrong. A program
may be deployed at any moment, so what this engine remembers counts for `KNOWN_S`, and nothing is refused by it alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, cast

import msgspec
import trio

from penstock.core.graph.definition import Problem
from penstock.engine.definitions.json_schema import DEPTH_MAX, WrongValue, find_constant_problem, find_problem
from penstock.engine.requests.payload import is_deeper
from penstock.errors import BadRequest
from penstock.loop.offload import run_sized
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.rows import signatures as store

KNOWN_S: Final = 5.0
"""Seconds for which a schema is remembered."""
KNOWN_MAX: Final = 1_000
SIGNATURE_MAX_BYTES: Final = 65_536
OWN_PREFIX: Final = "$"
"""Of names among the arguments that are Penstock's, as no parameter is called so."""


class _Known(NamedTuple):
    schema: dict[str, object] | None
    at: float


class Signatures:
    """Keeps them, and checks arguments by them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def publish(self, job_type: str, arguments: bytes | None) -> None:
        """A program serves a workflow that takes these arguments: a JSON schema of an object; None: it does not say.
        Raises BadRequest for what is none, and the database's errors."""
        text = None if arguments is None else _checked(arguments)
        async with self._database.connection() as connection:
            if text is None:
                await store.delete(connection, job_type)
            else:
                await store.write(connection, job_type, text)
        self._known.pop(job_type, None)

    async def problem_of(
        self, connection: TrioConnection, job_type: str | None, variables: bytes, *, added: str | None = None
    ) -> WrongValue | None:
        """What is wrong with the arguments of a run that is to begin; None where nothing is known to be, and of
        instances of graphs, which have no ``job_type``. ``added``: an argument that the engine adds itself."""
        if job_type is None:
            return None
        known = self._known.get(job_type)
        now = trio.current_time()
        if known is None or now >= known.at + KNOWN_S:
            known = await self._read(connection, job_type)
        if known.schema is None:
            return None
        found = await _find(known.schema, variables, added)
        if found is not None and known.at < now:  # it may be another one by now
            known = await self._read(connection, job_type)
            found = None if known.schema is None else await _find(known.schema, variables, added)
        if found is None or known.schema is None:
            return None
        takes = f"It takes {known.schema.get('title', job_type.partition(':')[2])}"
        return WrongValue(f"arguments: {found}. {takes}", [found], takes)

    async def constant_problem(
        self, connection: TrioConnection, job_type: str, constants: Mapping[str, object], evaluated: Collection[str]
    ) -> Problem | None:
        """What is wrong with what a definition is going to call a workflow with: ``constants``, and what is
        ``evaluated`` then."""
        schema = (await self._read(connection, job_type)).schema
        if schema is None:
            return None
        try:
            own = {name: value for name, value in constants.items() if not name.startswith(OWN_PREFIX)}
            return find_constant_problem(schema, own, [each for each in evaluated if not each.startswith(OWN_PREFIX)])
        except (TypeError, ValueError, AttributeError):  # a schema of no form that we know says nothing
            return None

    async def _read(self, connection: TrioConnection, job_type: str) -> _Known:
        text = await store.read(connection, job_type)
        schema = None if text is None else msgspec.json.decode(text, type=dict[str, object])
        known = self._known[job_type] = _Known(schema, trio.current_time())
        self._known.move_to_end(job_type)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return known


def _checked(arguments: bytes) -> str:
    """Raises BadRequest."""
    if len(arguments) > SIGNATURE_MAX_BYTES:
        raise BadRequest(f"arguments_schema: has more than {SIGNATURE_MAX_BYTES:,} bytes")
    try:
        schema = msgspec.json.decode(arguments, type=dict[str, object])
        text = arguments.decode()
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadRequest(f"arguments_schema: is not a JSON object: {error}") from None
    # values stand in the innermost object, a level deeper
    if schema.get("type") != "object" or "\\u0000" in text or is_deeper(schema, DEPTH_MAX - 1):
        raise BadRequest("arguments_schema: must be the JSON schema of an object")
    return text


async def _find(schema: dict[str, object], variables: bytes, added: str | None) -> Problem | None:
    def find() -> Problem | None:
        try:
            return check()
        except (TypeError, ValueError, AttributeError):  # a schema of no form that we know says nothing
            return None

    def check() -> Problem | None:
        value = msgspec.json.decode(variables, type=dict[str, object])
        own = {name: each for name, each in value.items() if not name.startswith(OWN_PREFIX)}
        required = [name for name in cast("list[str]", schema.get("required", [])) if name != added]
        return find_problem({**schema, "required": required}, own)

    return await run_sized(len(variables), find)
