"""The file of queues that is applied at a start: each as a PUT would. Queues that it does not name are left alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec
import trio
import yaml

from penstock.engine.queues.queues import Queues
from penstock.errors import BadRequest
from penstock.log.log import get_logger
from penstock.wire.queue import QueuePolicy

FILE_MAX_BYTES: Final = 1_048_576

log = get_logger(__name__)


async def apply_queues(queues: Queues, file: str) -> int:
    """Put the queues of a file; how many there are. Raises BadRequest, and what `Queues.put` raises."""
    found = await _read(file)
    for name, policy in found.items():
        await queues.put(name, policy)
    log.info("queues applied", file=file, queues=len(found))
    return len(found)


async def _read(file: str) -> Mapping[str, QueuePolicy]:
    policies: dict[str, QueuePolicy] = {}
    for name, policy in (await read_named(file, "queues_file", "names of queues to policies")).items():
        try:
            policies[name] = msgspec.convert(policy, QueuePolicy)
        except msgspec.ValidationError as error:
            raise BadRequest(f"queues_file: {file}: {name}: {error}") from None
    return policies


async def read_named(file: str, setting: str, what: str) -> dict[str, object]:
    """Return the objects of a YAML or JSON file by their names. Raises BadRequest, which names the setting."""
    try:
        async with await trio.open_file(file, "rb") as stream:
            content = await stream.read(FILE_MAX_BYTES + 1)
        if len(content) > FILE_MAX_BYTES:
            raise BadRequest(f"{setting}: {file} has more than {FILE_MAX_BYTES} bytes")
        named: Any = yaml.safe_load(content)
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadRequest(f"{setting}: {file} can't be read: {error}") from None
    if not isinstance(named, dict):
        raise BadRequest(f"{setting}: {file} must map {what}")
    return {str(name): said for name, said in cast("dict[object, object]", named).items()}
