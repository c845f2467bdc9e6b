"""A docstring begins with a sentence that has a verb: "Return the next due timer.", not "Of one engine."."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from tests.house.sources import PACKAGE, TOP, modules, tree

NO_VERB = re.compile(
    r"(A|After|All|An|As|At|Before|Both|By|Each|False|For|From|How|In|Its?|None|Not|Of|On|One|Only|Since|So|Some|That|The"
    r"|Those|To|True|What|When|Where|Whether|Which|Who|Whoever|Whom|Whose|With|Without|``\w)\b"
)
"""How a first line begins that is a phrase."""
PHRASES = {
    "access": 35,
    "api": 7,
    "build.py": 1,
    "cli": 48,
    "client": 41,
    "core": 191,
    "durable": 223,
    "engine": 419,
    "http": 60,
    "kafka": 21,
    "kernel": 48,
    "log": 5,
    "loop": 17,
    "net": 12,
    "plain.py": 2,
    "rest": 82,
    "rpc": 77,
    "runtime": 46,
    "settings": 7,
    "store": 218,
    "telemetry": 14,
    "testing": 72,
    "wire": 44,
    "worker": 32,
}
"""How many functions of a package still begin so. Only ever lower one."""


def docs() -> ModuleType:
    sys.path.insert(0, str(TOP / "tools"))
    try:
        return import_module("docs")
    finally:
        sys.path.remove(str(TOP / "tools"))


def public() -> Iterator[tuple[str, str]]:
    """The functions and methods that users call, with the first lines of their docstrings."""
    for module, names in docs().public_names().items():
        for name in names:
            found = getattr(import_module(module), name)
            if inspect.isfunction(found):
                yield f"{module}.{name}", found.__doc__ or ""
            elif inspect.isclass(found) and found.__module__.startswith("penstock"):
                for method, function in vars(found).items():
                    if inspect.isfunction(function) and not method.startswith("_"):
                        yield f"{module}.{name}.{method}", function.__doc__ or ""


def test_public_functions_say_what_they_do() -> None:
    assert NO_VERB.match("Of one engine.")
    assert not NO_VERB.match("Return the next due timer.")
    assert [name for name, text in public() if NO_VERB.match(text.lstrip())] == []


def test_a_call_of_a_workflow_function_lists_its_arguments_and_errors() -> None:
    durable = import_module("penstock.durable")
    missing = [
        name
        for name in durable.__all__
        if inspect.isfunction(function := getattr(durable, name))
        if inspect.signature(function).parameters and "Args:" not in (function.__doc__ or "")
    ]
    assert missing == []


def test_phrases_become_fewer() -> None:
    found: Counter[str] = Counter()
    for path in modules():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                found[path.relative_to(PACKAGE).parts[0]] += text is not None and bool(NO_VERB.match(text))
    assert {package: count for package, count in found.items() if count > PHRASES.get(package, 0)} == {}
