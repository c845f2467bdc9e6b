"""The client's calls about workflow definitions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import anyio
import msgspec

from penstock.client.caller import Caller
from penstock.client.encoding import to_json_object
from penstock.client.model import DefinitionSummary, Page
from penstock.client.operation import GetDefinition, ListDefinitions, UploadDefinition

Document = str | os.PathLike[str] | bytes | Mapping[str, Any] | msgspec.Struct


class DefinitionCalls(Caller):
    """Upload, read and list definitions."""

    async def upload_definition(self, definition: Document) -> DefinitionSummary:
        """Upload a definition: a file's path, JSON bytes, a mapping or a struct. Its order of keys is kept.

        Idempotent: the same content again gives the version that exists.

        Raises:
            BadRequest: the definition is refused; ``problems`` lists everything that is wrong with it.
        """
        return await self.call(UploadDefinition(document=await _document(definition)))

    async def get_definition(self, definition_id: str, version: int | None = None) -> dict[str, Any]:
        """The definition as JSON, with its ``version``; the latest when no version is given.

        Raises:
            NotFound: no such definition or version.
        """
        return await self.call(GetDefinition(id=definition_id, version=version))

    async def list_definitions(
        self, *, keyword: str | None = None, page: int = 0, page_size: int = 20
    ) -> Page[DefinitionSummary]:
        """One page of the latest versions whose id or name contains the keyword. Pages count from 0."""
        return await self.call(ListDefinitions(keyword=keyword, page=page, page_size=page_size))


async def _document(definition: Document) -> bytes:
    if isinstance(definition, bytes):
        return definition
    if isinstance(definition, str | os.PathLike):
        return await anyio.Path(definition).read_bytes()
    return to_json_object(definition)
