"""Everything that is written has a user: functions, classes, constants, statements, metrics and settings.

By name, over all modules: a name that nothing says but where it is defined. What programs of users call may have its
only user in a test, an example or a page.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from penstock.settings import SETTINGS
from penstock.store.db.statements import SQL
from penstock.telemetry.metrics import Metrics
from tests.house.sources import PACKAGE, TOP, all_python, modules, tree

FOR_USERS = ("client", "worker", "durable", "testing", "kernel")
"""Packages for programs of users."""
CALLED_FROM_OUTSIDE = {
    "to_python": "werkzeug",
    "get_exemplar": "prometheus_client",
    "emit": "logging",
    "on_url": "httptools",
    "on_header": "httptools",
    "on_message_complete": "httptools",
    "_read_data": "hypercorn",
    "_compile_builder": "werkzeug",
    "before_task_step": "trio",
    "after_task_step": "trio",
    "before_io_wait": "trio",
    "after_io_wait": "trio",
    "handle_async_request": "httpx",
    "pytest_configure": "pytest",
    "pytest_assertrepr_compare": "pytest",
    "clone": "workflows, as of trio's channels",
    "new_cancel_scope": "workflows, as `CancelScope`",
    "serve_until_unused": "a program of its own, from its text",
}
ONLY_FOR_TESTS = {
    "receive_window_bytes": "the storm accounts for every byte of flow control",
    "serve_stream": "serves gRPC on a stream that is not a socket",
    "struct_to_json": "reads what the codec wrote, for its property tests",
    "value_to_json": "the same",
}


def defined(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if not any(isinstance(each, ast.Call | ast.Attribute) for each in node.decorator_list):
            yield node.name  # what a call or a module's attribute decorates is registered with it, or a property
    for node in tree(path).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def said(path: Path) -> Iterator[str]:
    """Names that are read, called, imported or given."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias) and path.name != "__init__.py":
            yield node.name.rpartition(".")[2]
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.value


@cache
def said_in_the_package() -> Counter[str]:
    return Counter(name for path in modules() for name in said(path))


@cache
def said_by_users() -> set[str]:
    code = {name for path in all_python() if path.is_relative_to(TOP / "src") is False for name in said(path)}
    pages = [*TOP.glob("*.md"), *(TOP / "docs").glob("*.md")]
    return code | {word for page in pages for word in re.findall(r"\w+", page.read_text())}


def test_everything_that_is_defined_has_a_user() -> None:
    known = CALLED_FROM_OUTSIDE | ONLY_FOR_TESTS
    idle = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in modules()
        for name in defined(path)
        if not name.startswith("__") and name not in said_in_the_package() and name not in known
        if path.relative_to(PACKAGE).parts[0] not in FOR_USERS or name not in said_by_users()
    ]
    assert idle == []


def test_every_exception_from_that_is_still_one() -> None:
    names = {name for path in modules() for name in defined(path)}
    known = CALLED_FROM_OUTSIDE | ONLY_FOR_TESTS
    assert [name for name in known if name not in names or name in said_in_the_package()] == []


def test_every_statement_is_sent_somewhere() -> None:
    assert [name for name in SQL if name not in said_in_the_package()] == []


def test_steps_of_statements_have_several_users() -> None:
    text = "".join(path.read_text() for path in (PACKAGE / "store" / "queries").glob("*.sql"))
    used = Counter(re.findall(r"^-- steps of: (\w+)$", text, re.MULTILINE))
    assert [name for name in re.findall(r"^-- steps: (\w+)$", text, re.MULTILINE) if used[name] < 2] == []


def test_every_metric_is_set_somewhere() -> None:
    registry = PACKAGE / "telemetry" / "metrics" / "registry.py"
    elsewhere = {name for path in modules() if path != registry for name in said(path)}
    own = Counter(said(registry))
    idle = [name for name in vars(Metrics()) if name not in elsewhere and own[name] < 2]  # once where it is made
    assert idle == []


def test_every_setting_is_read_somewhere() -> None:
    settings = PACKAGE / "settings"
    used = {name for path in modules() if not path.is_relative_to(settings) for name in said(path)}
    model = ast.parse((settings / "model.py").read_text())
    used |= {node.attr for node in ast.walk(model) if isinstance(node, ast.Attribute)}  # its properties and checks
    assert [name for name in SETTINGS if name not in used] == []
