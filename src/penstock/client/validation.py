"""The engine's own validator, run before an upload: every problem at once, and no call for what can't succeed.

Uses ``penstock.core.parsing.parsing``, which is pure (no I/O, no clock): the same code that the engine runs, so what
passes here passes there, unless the engine is of another version or its settings are narrower.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.client.builder import WorkflowBuilder
from penstock.client.encoding import to_json_object
from penstock.client.errors import BadRequest, PayloadTooLarge, Problem

Document = str | os.PathLike[str] | bytes | Mapping[str, Any] | msgspec.Struct | WorkflowBuilder


def validate_definition(definition: Document) -> None:
    """Check a definition as an engine would: a file's path, JSON bytes, a mapping, a struct or a builder.

    Reads the file; sends nothing. 10,000 steps take about half a second.

    Raises:
        BadRequest: the definition can't run; ``problems`` lists everything that is wrong with it.
        PayloadTooLarge: it is larger than any engine takes.
    """
    check(Path(definition).read_bytes() if isinstance(definition, str | os.PathLike) else document_of(definition))


def document_of(definition: bytes | Mapping[str, Any] | msgspec.Struct | WorkflowBuilder) -> bytes:
    """The JSON of a definition, with its order of keys.

    Raises:
        BadRequest: it has no JSON form.
        ValueError: the builder's last step goes nowhere.
    """
    if isinstance(definition, bytes):
        return definition
    return to_json_object(definition.document() if isinstance(definition, WorkflowBuilder) else definition)


def check(document: bytes) -> None:
    """``validate_definition`` for JSON bytes."""
    # Loaded by who uploads: a worker need not pay for the expression language.
    from penstock.core.graph.definition import InvalidDefinition
    from penstock.core.parsing.parsing import parse_definition
    from penstock.errors import PenstockError

    try:
        parse_definition(document)
    except InvalidDefinition as error:
        problems = [Problem(problem.path, problem.reason) for problem in error.problems]
        raise BadRequest(error.reason, problems=problems) from error
    except PenstockError as error:
        raise PayloadTooLarge(error.reason) from error
