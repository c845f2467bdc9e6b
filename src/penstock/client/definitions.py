"""The client's calls about workflow definitions."""

from __future__ import annotations

import os
from typing import Any, cast

import anyio
import anyio.to_thread

from penstock.api import definitions as api
from penstock.client.call import RowCall, pages_of
from penstock.client.caller import Caller
from penstock.client.validation import Document, check, document_of
from penstock.wire import repair_v1 as w
from penstock.wire.model import DefinitionSummary
from penstock.wire.page import Page
from penstock.wire.repair import ImpactView

# About 10 ms of checking; larger documents are checked in a thread.
CHECKED_INLINE_BYTES = 64 * 1024


class DefinitionCalls(Caller):
    """Upload, read and list definitions."""

    async def upload_definition(self, definition: Document, *, validate: bool = True) -> DefinitionSummary:
        """Upload a definition: a file's path, JSON bytes, a mapping, a struct or a builder. Its order of keys is kept.

        Idempotent: the same content again gives the version that exists. New starts use it from then on, also where it
        is a former one: ``active`` says so. The engine's validator runs here first
        (see ``validate_definition``), so a definition with problems is refused without a call; ``validate=False``
        leaves it to the engine, for one that is newer than this package.

        Raises:
            BadRequest: the definition is refused; ``problems`` lists everything that is wrong with it.
            NotOverGrpc: over gRPC it would mean something else (the order of conditions, fields without a form).
        """
        document = await _read(definition)
        if validate:
            if len(document) <= CHECKED_INLINE_BYTES:
                check(document)
            else:
                await anyio.to_thread.run_sync(check, document)
        return await self.call(RowCall(api.UPLOAD_DEFINITION, api.UploadDefinition(document)))

    async def get_definition(self, definition_id: str, version: int | None = None) -> dict[str, Any]:
        """Return the definition as JSON, with its ``version``; the active one by default.

        Over gRPC without ``retryBackoff``, ``timeout``, ``duration`` and ``until``, which its message lacks.

        Raises:
            NotFound: no such definition or version.
        """
        if version is None:
            found = await self.call(RowCall(api.GET_DEFINITION, api.GetDefinition(definition_id), dict[str, Any]))
        else:
            wanted = api.GetDefinitionVersion(definition_id, version)
            found = await self.call(RowCall(api.GET_DEFINITION_VERSION, wanted, dict[str, Any]))
        return cast("dict[str, Any]", found)  # what is read of the text, as `part` says

    async def activate_version(self, definition_id: str, version: int) -> DefinitionSummary:
        """Let new starts use a version: those of schedules, calls and chains that name none, too. Instances that are
        open stay on theirs. Idempotent.

        Raises:
            NotFound: no such definition or version.
            Conflict: a durable workflow; or an engine of an older version still lives.
        """
        return await self.call(RowCall(api.ACTIVATE_VERSION, w.ActivateVersionRequest(definition_id, version)))

    async def delete_definition(self, definition_id: str) -> None:
        """Delete a durable workflow that no program serves, in all versions: it is in no list, can't be
        started, and its id is free. Runs that have ended stay. A program that registers it again brings it back.

        Raises:
            NotFound: no such definition.
            Conflict: another definition, one that a program serves (within half a minute), or one with open runs.
        """
        await self.call(RowCall(api.DELETE_DEFINITION, w.DeleteDefinitionRequest(definition_id)))

    async def get_impact(
        self, definition_id: str, definition: Document | None = None, *, version: int | None = None
    ) -> ImpactView:
        """Find the open instances that a version would not fit: the definition given as the next one, or a version that
        was uploaded, by default the latest. By version and step how many stand there, and what keeps them from going on
        in it; ``refusals`` are of the newest 1,000, each with every reason. Nothing is stored, and nothing changes for
        instances: they stay on their version until they are migrated.

        Raises:
            NotFound: no such definition or version.
            BadRequest: the definition is refused.
            Conflict: a durable workflow.
        """
        document = b"" if definition is None else await _read(definition)
        return await self.call(RowCall(api.GET_IMPACT, w.GetImpactRequest(definition_id, version, document)))

    async def list_definitions(
        self,
        *,
        keyword: str | None = None,
        page: int = 0,
        page_size: int = 20,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> Page[DefinitionSummary]:
        """List one page of the active versions whose id or name contains the keyword, in order of id.

        ``page``, ``limit`` and ``cursor`` as with ``list_instances``.
        """
        wanted = api.ListDefinitions(keyword, *pages_of(page, page_size, cursor, limit), cursor, limit)
        return await self.call(RowCall(api.LIST_DEFINITIONS, wanted))


async def _read(definition: Document) -> bytes:
    if isinstance(definition, str | os.PathLike):
        return await anyio.Path(definition).read_bytes()
    return document_of(definition)
