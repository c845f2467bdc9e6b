"""`penstock validate`, `draw` and `expr`: what the engine would say of a definition or an expression, without one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import cast

import msgspec

from penstock.cli.drawing import mermaid
from penstock.cli.engine import JSON_MAX_BYTES
from penstock.cli.layout import TooLarge
from penstock.cli.options import print_done, print_json, read_bytes
from penstock.cli.plain import echo, echo_lines
from penstock.cli.svg import svg
from penstock.core.expression import ExpressionError, parse
from penstock.core.graph.definition import Definition, DefinitionLimits, InvalidDefinition, Problem
from penstock.core.parsing.child_hints import Called
from penstock.core.parsing.hints import Hint, hints
from penstock.core.parsing.parsing import parse_definition, readable_part
from penstock.core.parsing.strict_json import BadJson, find_flaws, read_json
from penstock.errors import PenstockError

INVALID, NOT_READ = 1, 2


class FileProblem(Problem, frozen=True):
    """What is wrong with the definition in a file."""

    file: str


class FileHint(Hint, frozen=True):
    """What the definition in a file may mean otherwise."""

    file: str


def run_validate(files: list[Path], limits: DefinitionLimits, *, as_json: bool) -> int:
    """Tells every problem and hint of every file. 0: all are valid; 1: one is not; 2: one can't be read."""
    problems: list[FileProblem] = []
    hinted: list[FileHint] = []
    unread = False
    valid: dict[Path, Definition] = {}
    for file in files:
        try:
            body = read_bytes(file, limits.body_max_bytes)
        except OSError as error:
            echo(f"{file}: {error.strerror}", err=True)
            unread = True
            continue
        try:
            valid[file] = parse_definition(body, limits=limits)
        except InvalidDefinition as error:
            problems += [FileProblem(each.path, each.reason, str(file)) for each in error.problems]
            hinted += _hints_of(file, readable_part(body, limits=limits))
        except PenstockError as error:
            problems.append(FileProblem("", error.reason, str(file)))
    called: dict[Called, Definition] = {(each.id, 0): each for each in valid.values()}
    for file, definition in valid.items():
        hinted += _hints_of(file, definition, called)
    if as_json:
        verdict = {"valid": not problems and not unread, "problems": problems}
        print_json({**verdict, "hints": hinted} if hinted else verdict)
    else:
        for each in problems:
            echo(f"{each.file}: {each}")
        for hint in hinted:
            echo(f"{hint.file}: hint: {hint}")
    if unread:
        return NOT_READ
    return INVALID if problems else 0


def _hints_of(
    file: Path, definition: Definition | None, called: Mapping[Called, Definition] | None = None
) -> list[FileHint]:
    """``called``: the definitions of all files, which it may call."""
    found = hints(definition, called) if definition else ()
    return [FileHint(each.path, each.text, each.kind, str(file)) for each in found]


class PictureFormat(StrEnum):
    """What `penstock draw` prints."""

    MERMAID = "mermaid"
    SVG = "svg"


def run_draw(file: Path, form: PictureFormat, *, as_json: bool) -> int:
    """Prints the picture. 1: the definition is not valid, or too large for SVG; 2: it can't be read."""
    draw = svg if form is PictureFormat.SVG else mermaid
    try:
        picture = draw(_read(file, DefinitionLimits()))
    except TooLarge:
        echo(f"{file}: too large to be laid out as SVG; --format mermaid prints it", err=True)
        return INVALID
    except OSError as error:
        echo(f"{file}: {error.strerror}", err=True)
        return NOT_READ
    except PenstockError as error:
        echo(f"{file}: {error.reason}", err=True)
        return INVALID
    if as_json:
        print_done({"format": form, "picture": picture}, None, as_json=True)
    else:
        echo_lines(picture.split("\n"))
    return 0


def _read(file: Path, limits: DefinitionLimits) -> Definition:
    """`-` is standard input. Raises OSError, InvalidDefinition and PayloadTooLarge."""
    return parse_definition(read_bytes(file, limits.body_max_bytes), limits=limits)


def run_expression(source: str, variables: str, file: Path | None) -> int:
    """Prints the result as JSON. 1: the expression fails, with the place; 2: the variables are no JSON object."""
    try:
        body = variables.encode() if file is None else read_bytes(file, JSON_MAX_BYTES)
        tree = read_json(body)
    except (OSError, BadJson) as error:
        echo(f"variables: {getattr(error, 'strerror', None) or error}", err=True)
        return NOT_READ
    if not isinstance(tree, dict):
        echo("variables: must be a JSON object", err=True)
        return NOT_READ
    known = cast("dict[str, object]", tree)
    limits = DefinitionLimits()
    flaws = find_flaws(known, nesting_max_levels=limits.nesting_max_levels, number_max_digits=limits.number_max_digits)
    if flaw := next(flaws, None):
        echo(f"variables: {Problem(*flaw)}", err=True)
        return NOT_READ
    try:
        result = parse(source).evaluate(known, datetime.now(UTC))
    except ExpressionError as error:
        echo_lines(str(error).splitlines(), err=True)
        return INVALID
    print(msgspec.json.encode(result).decode())
    return 0
