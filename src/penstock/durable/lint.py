"""What in the source of a body would make its replay differ: found without running it.

Looks at functions under `workflow` and at the async functions beside them that await durable verbs. Finds the usual;
what it can't see, replay and the journal's own check do.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import msgspec

_CLOCK = "the time is different at replay: use penstock.durable.now()"
_CHANCE = "random numbers are different at replay: use penstock.durable.rng() or uuid4()"
_ENVIRONMENT = "the environment may be different at replay: pass it as an argument, or read it in a step"
_WORLD = "a body does no I/O: move it into a step"
_LOOP = "a body is not a task of this loop: use penstock.durable's own"
_CALLS = {
    "time.time": _CLOCK, "time.monotonic": _CLOCK, "time.perf_counter": _CLOCK, "datetime.now": _CLOCK,
    "datetime.utcnow": _CLOCK, "datetime.today": _CLOCK, "date.today": _CLOCK, "datetime.datetime.now": _CLOCK,
    "datetime.date.today": _CLOCK, "uuid.uuid1": _CHANCE, "uuid.uuid4": _CHANCE, "os.urandom": _CHANCE,
    "os.getenv": _ENVIRONMENT, "open": _WORLD, "input": _WORLD, "print": _WORLD, "time.sleep": _WORLD,
}  # fmt: skip
_MODULES = {
    "random": _CHANCE, "secrets": _CHANCE, "socket": _WORLD, "subprocess": _WORLD, "requests": _WORLD, "httpx": _WORLD,
    "urllib": _WORLD, "threading": _WORLD, "trio": _LOOP, "anyio": _LOOP, "asyncio": _LOOP,
}  # fmt: skip
_CLEAN_UP = "after a cancel this await raises at once: put it under `with move_on_after(…, shield=True)`"
_SET = "the order of a set is different in another process: sort it"


class Finding(msgspec.Struct, frozen=True, order=True):
    """A place and what is wrong there."""

    line: int
    text: str


def lint(source: str) -> list[Finding]:
    """What is wrong in the bodies of this source, by line. Raises SyntaxError when it does not parse."""
    found: set[Finding] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AsyncFunctionDef) and not _is_step(node):
            found.update(_in_body(node))
    return sorted(found)


def _is_step(function: ast.AsyncFunctionDef) -> bool:
    return any(_name(part).split(".")[0] in ("step", "durable.step") for part in function.decorator_list)


def _in_body(function: ast.AsyncFunctionDef) -> Iterator[Finding]:
    decorated = any(_name(part).split(".")[-1] == "workflow" for part in function.decorator_list)
    if not decorated and not _is_durable(function):
        return
    for node in ast.walk(function):
        match node:
            case ast.Call():
                if text := _of_call(_name(node.func)):
                    yield Finding(node.lineno, f"{_name(node.func)}(): {text}")
            case ast.Subscript() if _name(node.value) == "os.environ":
                yield Finding(node.lineno, f"os.environ: {_ENVIRONMENT}")
            case ast.For() | ast.AsyncFor() if _is_set(node.iter):
                yield Finding(node.lineno, _SET)
            case ast.ExceptHandler() if node.type is not None and _name(node.type) == "trio.Cancelled":
                yield Finding(node.lineno, "except trio.Cancelled: a body is cancelled by penstock.durable.Cancelled")
            case ast.Try():
                yield from (Finding(line, _CLEAN_UP) for line in _bare_awaits(node.finalbody))
            case _:
                pass


def _is_durable(function: ast.AsyncFunctionDef) -> bool:
    """Whether it awaits or opens what only bodies have, by the names that they are imported under."""
    names = {"receive", "first", "open_nursery", "move_on_after", "fail_after"}
    return any(isinstance(node, ast.Call) and _name(node.func) in names for node in ast.walk(function))


def _of_call(name: str) -> str | None:
    return _CALLS.get(name) or (_MODULES.get(name.split(".", maxsplit=1)[0]) if "." in name else None)


def _is_set(node: ast.expr) -> bool:
    return isinstance(node, ast.Set | ast.SetComp) or (
        isinstance(node, ast.Call) and _name(node.func) in ("set", "frozenset")
    )


def _bare_awaits(body: list[ast.stmt]) -> Iterator[int]:
    """Lines of awaits that no shield protects."""
    for statement in body:
        if isinstance(statement, ast.With | ast.AsyncWith) and any(_shields(item) for item in statement.items):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Await):
                yield node.lineno


def _shields(item: ast.withitem) -> bool:
    call = item.context_expr
    return isinstance(call, ast.Call) and any(
        keyword.arg == "shield" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in call.keywords
    )


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _name(node.func)
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
