"""Notices two programs that serve one workflow under no name: by the *origin* that each registers, module and function.

One program's runs would be finished by the other's code. On an embedded database, which all programs of a person share,
the second one is refused; on a PostgreSQL of the team a moved module must not stop a service, so it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.engine.definitions.definitions import CODE_PREFIX
from penstock.engine.requests.paging import NAME_MAX_CHARS
from penstock.engine.requests.payload import check_text
from penstock.engine.runs.code import Code, CodeWorkflow
from penstock.errors import Conflict, NotFound
from penstock.log.log import get_logger
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database, unavailable_when_away
from penstock.store.rows import definitions as definition_store
from penstock.store.rows import origins as store
from penstock.store.rows.origins import OriginRow, Registered, SharedType
from penstock.wire.attention import Attention

ORIGIN_MAX_CHARS: Final = 1_000
ORIGINS_MAX: Final = 20
"""Of one workflow; the latest are kept."""
SHARED_MAX: Final = 20
"""Workflows that are told of at a time."""

log = get_logger("penstock.engine.origins")


class Origins:
    """Registers origins, and hands runs over from one to another."""

    def __init__(self, database: Database, code: Code, engine_number: int) -> None:
        self._database = database
        self._code = code
        self._number = engine_number

    async def register(self, workflow: CodeWorkflow, origin: OriginRow, *, exclusive: bool, lives_here: bool) -> None:
        """Note which program serves a workflow. Does nothing for a named App, whose name says it.

        ``exclusive``: raises Conflict when another program has open runs of it, or is connected; else that is logged.
        ``lives_here``: the App lives with this engine. Raises Unavailable.
        """
        if workflow.app or not origin.name:
            return
        origin = OriginRow(origin.name[:ORIGIN_MAX_CHARS], origin.folder[:ORIGIN_MAX_CHARS] if exclusive else "")
        version = await self._code.register(workflow)
        with unavailable_when_away():
            async with self._database.connection() as connection, connection.transaction():
                await store.lock(connection)
                why = await self._find_other(connection, workflow, origin, version)
                if why is not None and exclusive:
                    raise Conflict(f"{why}: {_advice(workflow)}")
                await store.write(connection, workflow.job_type, origin, self._number if lives_here else None)
        if why is not None:
            log.error("two programs serve one workflow", workflow=workflow.name, detail=f"{why}: {_advice(workflow)}")

    async def _find_other(
        self, connection: TrioConnection, workflow: CodeWorkflow, origin: OriginRow, version: int
    ) -> str | None:
        """What another program has of the workflow, in words; where it has nothing, it is forgotten."""
        found = await store.read(connection, workflow.job_type)
        others = [each for each in found if not _is_same(each.origin, origin)]
        if not others:
            return None
        first = others[0]
        is_open = first.connected or await definition_store.has_open_instances(
            connection, workflow.definition_id, version
        )
        if not is_open:
            await store.delete(connection, workflow.job_type, [each.origin for each in others])
            return None
        if too_many := [each.origin for each in others[ORIGINS_MAX - 1 :] if not each.connected]:
            await store.delete(connection, workflow.job_type, too_many)
        what = "is connected" if first.connected else "has open runs"
        name = f"{workflow.name}@{workflow.version}"
        return f"{first.origin} serves {name} here and {what}, and this program has {origin}"

    async def adopt(self, name: str) -> list[str]:
        """Let whichever program serves a workflow next have its runs: forget the origins of programs that are not
        connected. Gives the job types. Raises BadRequest, NotFound where none is known, and Conflict while several are
        connected."""
        check_text(name, "workflow", NAME_MAX_CHARS)
        async with self._database.connection() as connection, connection.transaction():
            await store.lock(connection)
            types = await store.types_of(connection, f"{CODE_PREFIX}{name}@")
            if not types:
                raise NotFound(f"no App without a name has served a workflow '{name}' on this database")
            for job_type in types:
                found = await store.read(connection, job_type)
                connected = _distinct(found)
                if len(connected) > 1 or (connected and len(found) == 1):
                    raise Conflict(f"{' and '.join(map(str, connected))} serves '{name}' now: stop that program first")
                gone = [each.origin for each in found if not each.connected]
                await store.delete(connection, job_type, gone)
        return types

    async def attention(self, connection: TrioConnection) -> list[Attention]:
        """Workflows that several programs serve, for people."""
        return of_shared(await store.shared(connection, SHARED_MAX))


def of_shared(shared: Sequence[SharedType]) -> list[Attention]:
    """Return one for each workflow; of what a program has under two names none."""
    found: list[Attention] = []
    for job_type, names, since in shared:
        distinct: list[OriginRow] = []
        for name in sorted(names, key=len, reverse=True):
            if not any(_is_same(OriginRow(name), other) for other in distinct):
                distinct.append(OriginRow(name))
        if len(distinct) > 1:
            name = job_type.removeprefix(CODE_PREFIX)
            text = f"{len(distinct)} programs serve {name} under no name"
            origins = ", ".join(sorted(map(str, distinct)))
            detail = f'{origins}. Name their Apps (name="…"), or, if it moved: penstock runs adopt {name.split("@")[0]}'
            found.append(
                Attention(
                    "two-origins",
                    "critical",
                    text,
                    detail,
                    len(distinct),
                    since,
                    job_type=job_type,
                    key=f"two-origins:{job_type}",
                )
            )
    return found


def _is_same(one: OriginRow, other: OriginRow) -> bool:
    """Return whether both are one program's: ``worker.order`` of a script is ``shop.worker.order`` where that is
    imported."""
    if one.folder and other.folder and one.folder != other.folder:
        return False
    return one.name == other.name or one.name.endswith(f".{other.name}") or other.name.endswith(f".{one.name}")


def _distinct(found: Sequence[Registered]) -> list[OriginRow]:
    connected: list[OriginRow] = []
    for each in found:
        if each.connected and not any(_is_same(each.origin, other) for other in connected):
            connected.append(each.origin)
    return connected


def _advice(workflow: CodeWorkflow) -> str:
    return (
        f'name this App, as in App({workflow.name}, name="my-project"), or, if its file has moved, let it have the runs'
        f" by: penstock runs adopt {workflow.name}"
    )
