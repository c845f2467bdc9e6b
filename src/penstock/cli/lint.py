"""`penstock lint`: what in the bodies of durable workflows would differ at replay, with file, line and rule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from penstock.cli.options import print_json
from penstock.cli.plain import echo
from penstock.durable.lint import lint

SKIPPED = {".git", ".venv", "venv", "node_modules", "__pycache__", "build", "dist", ".tox", ".mypy_cache"}
FOUND, NOT_READ = 1, 2


def run_lint(paths: list[Path], *, as_json: bool) -> int:
    """Prints what it finds. 0: nothing; 1: something; 2: a file can't be read or is no Python."""
    found: list[dict[str, object]] = []
    unread = False
    for path in _sources(paths):
        try:
            findings = lint(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError, RecursionError) as error:
            line = getattr(error, "lineno", None)
            echo(f"{path}{f':{line}' if line else ''}: {getattr(error, 'msg', None) or error}", err=True)
            unread = True
            continue
        found.extend({"path": str(path), **msgspec.structs.asdict(finding)} for finding in findings)
    if as_json:
        print_json(found)
    else:
        for finding in found:
            echo("{path}:{line}: {rule}: {text}".format(**finding))
    if unread:
        return NOT_READ
    return FOUND if found else 0


def _sources(paths: list[Path]) -> Iterator[Path]:
    """The files named, and all Python below the directories named."""
    for path in paths:
        if path.is_dir():
            for file in sorted(path.rglob("*.py")):
                if not SKIPPED.intersection(file.relative_to(path).parts):
                    yield file
        else:
            yield path
