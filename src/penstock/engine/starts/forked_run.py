"""A durable run that begins with a part of another run's journal: what is written with its start.

The new run replays that part as the other run had it. So its time began when the other one's did, and what the function
draws by `uuid4` and `rng` is the same up to there. From there on it draws its own, and the keys of all of its steps
are its own.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from penstock.engine.queues.journal_items import DONE_KINDS, FAILED_KINDS, RecordKind
from penstock.engine.requests.ids import read_instance, show_instance
from penstock.errors import BadRequest, Conflict, NotFound
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import Statement
from penstock.store.rows import audit
from penstock.store.rows import forks as store
from penstock.store.rows import journal_cuts as cuts
from penstock.wire.model import ForkedFrom

FROM_START: Final = "start"
FROM_END: Final = "end"
FORKS_MAX: Final = 100
"""Runs that were forked from one another in a row: the journal names all of them."""
PATH_SHOWN_MAX: Final = 256
FORKED: Final = "FORKED"
"""The kind of the audit record."""


class Fork(NamedTuple):
    """A run to begin with the journal of an ``instance``, up to the operation with a ``path``; or `FROM_START`, or
    `FROM_END`. ``later_messages``: those that came after that, too."""

    instance: int
    path: str
    later_messages: bool = False


class Forking(NamedTuple):
    """What is written with the start of such a run. ``began_at``: when its time began."""

    fork: Fork
    before: int
    began_at: datetime
    name: str
    payload: str
    at: datetime

    def copy(self, connection: TrioConnection, new: int) -> Statement:
        """Return the statement that writes its journal."""
        path = "" if self.fork.path in (FROM_START, FROM_END) else self.fork.path
        return store.copy(
            connection,
            new,
            self.fork.instance,
            self.before,
            path,
            later_messages=self.fork.later_messages,
            name=self.name,
            payload=self.payload,
            at=self.at,
        )

    def audit(self, new: int, by: str | None) -> Statement:
        """Return the statement that records the act, with the run that was forked: who did it, where, and as which run.
        What the new run has of it is in that one's journal."""
        later = ", with later messages" if self.fork.later_messages else ""
        detail = f"at {self.fork.path[:PATH_SHOWN_MAX]} as {show_instance(new)}{later}"
        return audit.add(self.fork.instance, None, FORKED, by, detail)


class _Origin(msgspec.Struct, rename="camel"):
    """How a run was forked."""

    id: str
    path: str
    later_messages: bool = False


class _Begun(msgspec.Struct, rename="camel"):
    """The record that the journal of a continued or forked run begins with (`durable.activation`). ``forked_from``:
    where it was forked, also if it has continued since."""

    arguments: msgspec.Raw
    continuation: int = 0
    view: str | None = None
    forks: list[dict[str, Any]] = []
    forked_from: _Origin | None = None


async def prepare_fork(connection: TrioConnection, fork: Fork, arguments: bytes) -> Forking:
    """Keep a run as it is until the transaction ends, and find what another one has of it. ``arguments`` are those of
    its start.

    Raises NotFound, BadRequest (its journal has no such operation), Conflict (too many forks in a row), KeyMissing.
    """
    id = show_instance(fork.instance)
    found = await store.lock_forked(connection, fork.instance)
    if found is None:
        raise NotFound(f"instance '{id}' is unknown")
    begun, at = _Begun(msgspec.Raw(arguments)), found.began_at
    if found.kind == RecordKind.BEGUN and found.payload is not None and found.at is not None:
        begun, at = msgspec.json.decode(found.payload, type=_Begun), found.at
    last = found.last or 0
    if fork.path == FROM_START:
        before, until = 0, 0
    elif fork.path == FROM_END:
        before, until = cuts.BEYOND_ALL, last
    else:
        pos = await cuts.find_path(connection, fork.instance, fork.path, (*DONE_KINDS, *FAILED_KINDS))
        if pos is None:
            shown = fork.path[:PATH_SHOWN_MAX]
            raise BadRequest(
                f"path: nothing with the path '{shown}' is in the journal of run '{id}'. '{FROM_END}' forks it where"
                " its journal ends"
            )
        before, until = pos, pos - 1
    forks = [each for each in begun.forks if each["until"] < until]
    forks += [{**each, "until": until} for each in begun.forks if each["until"] >= until][:1]
    if len(begun.forks) >= FORKS_MAX:
        raise Conflict(f"run '{id}' was forked {FORKS_MAX} times in a row: fork the first of these runs")
    if not forks or forks[-1]["until"] < until:
        key = f"{id}~{begun.continuation}" if begun.continuation else id
        forks.append({"until": until, "key": key})
    origin = _Origin(id, fork.path, fork.later_messages)
    payload = msgspec.structs.replace(begun, forks=forks, forked_from=origin)
    return Forking(fork, before, found.began_at, str(begun.continuation), msgspec.json.encode(payload).decode(), at)


async def forked_as(connection: TrioConnection, instance: int) -> Fork | None:
    """Return what a run was forked from, and how; None for one that was started. Raises KeyMissing."""
    payload = await store.begun_with(connection, instance, RecordKind.BEGUN)
    if payload is not None:
        with suppress(msgspec.MsgspecError):  # of another version
            origin = msgspec.json.decode(payload, type=_Begun).forked_from
            if origin is not None:
                return Fork(read_instance(origin.id), origin.path, origin.later_messages)
    return None


async def forked_from(connection: TrioConnection, instance: int) -> ForkedFrom | None:
    """Return the run that a run was forked from, and where, for people. As `forked_as`."""
    fork = await forked_as(connection, instance)
    return None if fork is None else ForkedFrom(id=show_instance(fork.instance), path=fork.path)
