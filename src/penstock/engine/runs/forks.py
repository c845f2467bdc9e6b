"""Forks: a new durable run with another run's journal up to an operation, from which on it goes its own way.

It is a start as any other: with an id, a place in the workflow's queue, and a turn. The run that is forked stays as it
is, open or ended.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from penstock.api import runs as api
from penstock.core.graph.definition import BUSINESS_KEY_MAX_CHARS
from penstock.core.parsing.turns import shown_priority
from penstock.engine.definitions.definitions import Definitions
from penstock.engine.instances.instances import Instances
from penstock.engine.queues.journal_items import PATH_MAX_CHARS
from penstock.engine.requests import ids
from penstock.engine.requests.bound import Binding, bind, needed
from penstock.engine.requests.payload import EMPTY_OBJECT, check_text
from penstock.engine.runs.journal import CONTINUE_VERSION
from penstock.engine.starts.forked_run import Fork, forked_as
from penstock.errors import BadRequest, Conflict, IdempotencyConflict, NotFound
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database, unavailable_when_away
from penstock.store.rows import engines as engine_store
from penstock.store.rows import forks as fork_store
from penstock.store.rows import instances as instance_store
from penstock.wire.model import Instance, StartRequest

SCHEDULED: Final = "schedule"
"""What a schedule adds to the arguments after they were checked (`schedules.firings`)."""


class Forks:
    """Starts runs with the journals of others."""

    def __init__(self, database: Database, definitions: Definitions, instances: Instances) -> None:
        self._database = database
        self._definitions = definitions
        self._instances = instances

    async def fork(self, id: str, path: str, *, fork_id: str | None = None, later_messages: bool = False) -> Instance:
        """Start a run with the journal of another one.

        Args:
            id: of the instance that is forked.
            path: the operation that the new run does again: it has what came before. Or ``start``, or ``end``.
            fork_id: the id of the new run, which is started once under it.
            later_messages: the new run gets the messages that came after that, too.

        Raises:
            NotFound: there is no such run.
            BadRequest: the journal has no such operation, or the workflow does not take its arguments any more.
            Conflict: it is no durable run; or an older engine lives.
            IdempotencyConflict: another run has the id, or a fork that was asked for otherwise.
            Unavailable: the database is away, or a key of the journal is missing.
        """
        check_text(path, "path", PATH_MAX_CHARS)
        if not path:
            raise BadRequest("path: is required: the path of an operation, as the journal has it, or 'start', or 'end'")
        if fork_id is not None:
            check_text(fork_id, "forkId", BUSINESS_KEY_MAX_CHARS)
        number = ids.read_instance(id)
        async with self._connection() as connection:
            request = await self._request(connection, number, id, fork_id)
            await engine_store.require_version(connection, CONTINUE_VERSION)
        asked = Fork(number, path, later_messages)
        view, found = await self._instances.start_forked(request, asked)
        if found:
            async with self._connection() as connection:
                there = await forked_as(connection, ids.read_instance(view.id))
            if there is None or there.instance != number:
                raise IdempotencyConflict(f"forkId: '{fork_id}' is the id of another run. Give another id")
            if there != asked:
                text = f"forkId: '{fork_id}' is the id of a run that was forked otherwise: {_difference(there, asked)}"
                raise IdempotencyConflict(f"{text}. Ask for the same, or give another id")
        return view

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[TrioConnection]:
        """Raises Unavailable, also while it is used."""
        with unavailable_when_away():
            async with self._database.connection() as connection:
                yield connection

    async def _request(self, connection: TrioConnection, number: int, id: str, fork_id: str | None) -> StartRequest:
        """Return what starts a run like this one: its workflow and version, arguments, priority and flow key."""
        rows = await instance_store.view(connection, [number], None)
        if not rows:
            raise NotFound(f"instance '{id}' is unknown")
        row, loaded = rows[0], await self._definitions.by_key(connection, rows[0].definition)
        if not loaded.code:
            raise Conflict(f"instance '{id}' is not a durable run: it has a history, no journal")
        arguments = (await fork_store.arguments(connection, number) or "").encode() or EMPTY_OBJECT
        signatures = self._definitions.signatures
        if row.schedule is not None and await signatures.problem_of(connection, loaded.code_type, arguments):
            arguments = _without(SCHEDULED, arguments)
        return StartRequest(
            definition_id=loaded.definition.id,
            definition_version=loaded.version,
            variables=arguments,
            business_key=fork_id,
            instance_key=fork_id,
            keep_instance_key=fork_id is not None,
            priority=shown_priority(row.priority),
            flow_key=row.flow_key,
        )


def _difference(there: Fork, asked: Fork) -> str:
    if there.path != asked.path:
        return f"path is '{asked.path}' and was '{there.path}'"
    return f"laterMessages is {str(asked.later_messages).lower()} and was {str(there.later_messages).lower()}"


def _without(name: str, arguments: bytes) -> bytes:
    found: dict[str, Any] = msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    found.pop(name, None)
    return msgspec.json.encode(found)


def bindings(forks: Forks) -> tuple[Binding, ...]:
    """Return what serves the operation."""
    return (
        bind(
            api.FORK_RUN,
            lambda ask: forks.fork(
                ask.id, needed(ask.path, "path"), fork_id=ask.fork_id, later_messages=bool(ask.later_messages)
            ),
        ),
    )
