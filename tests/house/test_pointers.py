"""What comments, docstrings and pages point to is there: modules and names in them, files, tests."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.house.sources import PACKAGE, TOP, all_python, name, tree

FOLDERS = (TOP, PACKAGE, PACKAGE / "store", TOP / "src", TOP / "docs")
"""From where a path is meant."""
QUOTED = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FILE = re.compile(r"(?:[\w.-]+/)+[\w.-]+\.(?:py|sql|md|proto)|test_\w+\.py")
DOTTED = re.compile(r"[a-z_]\w*(?:\.\w+)+")
ROOM = re.compile(r"(?:[a-z_]+/)+[a-z_]+")
NOT_OURS = {"v1"}
"""`penstock.v1` is a package of protobuf."""
PACKAGES = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}


@cache
def module(parts: tuple[str, ...]) -> Path | None:
    """The file of a module, or of a package's `__init__`."""
    path = PACKAGE.joinpath(*parts)
    for found in (path.with_suffix(".py"), path / "__init__.py"):
        if found.exists():
            return found
    return None


@cache
def names_in(path: Path) -> frozenset[str]:
    """Whatever a module defines or imports, at its top or in its classes."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name | ast.arg | ast.Attribute):
            found.add(getattr(node, "id", None) or getattr(node, "arg", None) or getattr(node, "attr", ""))
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).rpartition(".")[2])
    return frozenset(found)


def resolves(dotted: str) -> bool:
    """Whether there is such a module, or the rest is a name in it."""
    parts = tuple(dotted.removeprefix("penstock.").split("."))
    for length in range(len(parts), 0, -1):
        found = module(parts[:length])
        if found is not None:
            return all(part in names_in(found) for part in parts[length:]) or len(parts) == length
    return False


def stale(text: str) -> list[str]:
    found: list[str] = []
    for quoted in QUOTED.findall(text):
        pointer = quoted.strip()
        if FILE.fullmatch(pointer):
            there = "NNNN" in pointer or any((folder / pointer).exists() for folder in FOLDERS)
            if not there and not list(TOP.glob(f"tests/**/{Path(pointer).name}")):
                found.append(pointer)
        elif ROOM.fullmatch(pointer) and pointer.split("/")[0] in PACKAGES:
            if not (module(tuple(pointer.split("/"))) or (PACKAGE / pointer).is_dir()):
                found.append(pointer)
        elif DOTTED.fullmatch(pointer) and not pointer.endswith(".py"):
            parts = pointer.removeprefix("penstock.").split(".")
            points_here = pointer.startswith("penstock.") or (parts[0] in PACKAGES and parts[1].islower())
            if points_here and parts[0] not in NOT_OURS and not resolves(pointer):
                found.append(pointer)
    return found


def test_what_sources_point_to_is_there() -> None:
    others = [path for path in all_python() if path != Path(__file__)]
    found = [f"{name(path)}: {pointer}" for path in others for pointer in stale(path.read_text())]
    found += [f"{name(path)}: {pointer}" for path in PACKAGE.rglob("*.sql") for pointer in stale(path.read_text())]
    assert found == []


def test_what_pages_point_to_is_there() -> None:
    pages = [TOP / "ARCHITECTURE.md", TOP / "CONTRIBUTING.md", TOP / "README.md", *(TOP / "docs").glob("*.md")]
    assert [f"{name(path)}: {pointer}" for path in pages for pointer in stale(path.read_text())] == []


def test_a_pointer_to_nowhere_would_be_found() -> None:
    text = "`engine.nowhere` `core.rules.fencing.decide_fence` `tests/engine/test_nothing.py` `store/nothing.py`"
    text += " `core.rules.fencing.jury`"
    assert stale(text) == [
        "engine.nowhere",
        "tests/engine/test_nothing.py",
        "store/nothing.py",
        "core.rules.fencing.jury",
    ]
