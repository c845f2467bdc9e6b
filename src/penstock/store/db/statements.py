"""Loads the named statements of ``queries/*.sql`` once, as bytes.

A statement begins at a line ``-- name: NAME``; the comment lines after it are its promise. Names are unique over all
files. What several statements do in the same words stands once below ``-- steps: NAME``, and in each of them as a line
``-- steps of: NAME``, also in other steps. A number of a state, status or kind has its name
behind it, as ``0 /* READY */``. Must not format or otherwise change SQL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType

Statement = tuple[bytes, tuple[object, ...]]
"""A statement and its parameters."""

_BEGIN = re.compile(r"^-- (name|steps): (\w+)$", re.MULTILINE)
_STEPS_OF = re.compile(r"^-- steps of: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n?| /\* \w+ \*/", re.MULTILINE)


def _load() -> Mapping[str, bytes]:
    found: dict[str, dict[str, str]] = {"name": {}, "steps": {}}
    for file in resources.files("penstock.store").joinpath("queries").iterdir():
        if not file.name.endswith(".sql"):
            continue
        _, *parts = _BEGIN.split(file.read_text(encoding="utf-8"))
        for kind, name, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            if name in found[kind]:
                raise ValueError(f"{file.name}: {name} exists already")
            found[kind][name] = body.strip()
    statements, steps = found.values()

    def whole(body: str) -> str:
        return _STEPS_OF.sub(lambda line: whole(steps[line[1]]), body)

    return MappingProxyType({name: _COMMENT.sub("", whole(body)).strip().encode() for name, body in statements.items()})


SQL: Mapping[str, bytes] = _load()
"""Statement texts by name. Comments are stripped: they would be sent and parsed again with each new connection."""
