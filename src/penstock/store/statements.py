"""Loads the named statements of ``queries/*.sql`` once, as bytes.

A statement begins at a line ``-- name: NAME``; the comment lines after it are its promise. Names are unique over all
files. A number of a state, status or kind has its name behind it, as ``0 /* READY */``. Must not format, glue or
otherwise change SQL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType

Statement = tuple[bytes, tuple[object, ...]]
"""A statement and its parameters."""

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n?| /\* \w+ \*/", re.MULTILINE)


def _load() -> Mapping[str, bytes]:
    found: dict[str, bytes] = {}
    for file in sorted(resources.files("penstock.store").joinpath("queries").iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".sql"):
            continue
        _, *parts = _NAME.split(file.read_text(encoding="utf-8"))
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            if name in found:
                raise ValueError(f"{file.name}: statement {name} exists already")
            found[name] = _COMMENT.sub("", body).strip().encode()
    return MappingProxyType(found)


SQL: Mapping[str, bytes] = _load()
"""Statement texts by name. Comments are stripped: they would be sent and parsed again with each new connection."""
