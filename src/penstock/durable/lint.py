"""What in the source of a body would make its replay differ: found without running it. `penstock lint` prints it.

Looks at functions under `workflow`, at those that use verbs of bodies, and at what these call in the same file. Finds
the usual; what it can't see (a helper of another file, a method), replay and the journal's own check do.

``# penstock: ignore[rule]`` at a line's end leaves that line alone.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from typing import Final

import msgspec

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

RULES: Final[dict[str, str]] = {
    "clock": "the time is different at replay: use penstock.durable.now()",
    "random": "random numbers are different at replay: use penstock.durable.rng() or uuid4()",
    "environment": "the environment may be different at replay: pass it as an argument, or read it in a step",
    "io": "a body does no I/O: move it into a step",
    "thread": "a body has no threads: move it into a step, or use branches of a nursery",
    "loop": "a body is not a task of this loop: use penstock.durable's own",
    "hash": "it is different in another process: use a key of your own",
    "set-order": "the order of a set is different in another process: sort it",
    "cancelled": "a body is cancelled by penstock.durable.Cancelled",
    "clean-up": "after a cancel this await raises at once: put it under `with move_on_after(…, shield=True)`",
    "not-awaited": "nothing happens without `await`: write `await` before it",
    "undeclared": "it is not among the step's raises, so it comes as StepFailed: declare it, or catch StepFailed",
}
"""What to write instead, by rule."""

_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "clock": (
        "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns",
        "time.localtime", "time.gmtime", "time.ctime", "datetime.now", "datetime.utcnow", "datetime.today",
        "date.today", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today",
        "datetime.date.today",
    ),
    "random": ("uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7", "os.urandom", "os.getrandom"),
    "environment": ("os.environ", "os.getenv", "os.getcwd", "os.getpid", "os.uname", "os.cpu_count"),
    "io": ("open", "input", "print", "time.sleep"),
    "hash": ("hash", "id"),
}  # fmt: skip
_MODULES: Final[dict[str, tuple[str, ...]]] = {
    "random": ("random", "secrets"),
    "io": (
        "os", "io", "socket", "subprocess", "requests", "httpx", "urllib", "aiohttp", "psycopg", "asyncpg", "sqlite3",
        "sqlalchemy", "boto3", "shutil", "tempfile", "smtplib", "ftplib", "redis",
    ),
    "thread": ("threading", "concurrent", "multiprocessing", "_thread"),
    "loop": ("trio", "anyio", "asyncio", "curio"),
}  # fmt: skip
_PURE: Final = ("os.path.", "os.fspath", "os.PathLike", "urllib.parse.", "random.Random", "io.StringIO", "io.BytesIO")
_DISK: Final = ("exists", "isfile", "isdir", "getsize", "getmtime", "realpath", "abspath", "islink", "expanduser")
_FILES: Final = ("read_text", "read_bytes", "write_text", "write_bytes", "unlink", "mkdir", "iterdir", "touch", "rglob")
_DURABLE: Final = "penstock.durable."
_WORKFLOW: Final = ("workflow", "durable.workflow", "penstock.durable.workflow")
_VERBS: Final = (
    "receive", "first", "open_nursery", "move_on_after", "fail_after", "set_view", "now", "rng", "uuid4", "sleep",
    "CancelScope", "run_info", "patched", "start", "each",
)  # fmt: skip
_AWAITED: Final = ("sleep", "receive", "send", "start", "child", "each", "first")
_FOREIGN_CANCELLED: Final = (
    "trio.Cancelled", "asyncio.CancelledError", "concurrent.futures.CancelledError", "anyio.get_cancelled_exc_class",
)  # fmt: skip
_MEETS_ALL: Final = ("BaseException", "Exception", "BaseExceptionGroup", "ExceptionGroup")
_LINE_ENDS: Final = re.compile(r"\r\n|\r|\n")
"""Those of Python; `str.splitlines` knows more."""
_IGNORED: Final = re.compile(r"#\s*penstock:\s*ignore\[([\w\-, ]+)\]")


class LintFinding(msgspec.Struct, frozen=True, order=True):
    """A place, the rule, and what is wrong there."""

    line: int
    rule: str
    text: str


def lint(source: str) -> list[LintFinding]:
    """What is wrong in the bodies of this source, by line. Raises SyntaxError when it does not parse."""
    module = _Module(ast.parse(source))
    lines = _LINE_ENDS.split(source)
    found = {finding for function in module.bodies() for finding in _Body(module, function).findings()}
    return sorted(finding for finding in found if finding.rule not in _ignored(lines[finding.line - 1]))


def _ignored(line: str) -> list[str]:
    match = _IGNORED.search(line)
    return [rule.strip() for rule in match[1].split(",")] if match else []


class _Module:
    """One file: what its names stand for, its steps, its exception classes, and which functions are bodies."""

    def __init__(self, tree: ast.Module) -> None:
        self._imported: dict[str, str] = {}
        self.classes: dict[str, list[str]] = {}  # bases, by name
        self._functions: dict[str, FunctionNode] = {}
        self.steps: dict[str, list[str]] = {}  # names in `raises`, by the step's name
        for node in ast.walk(tree):
            match node:
                case ast.Import():
                    for alias in node.names:
                        self._imported[alias.asname or alias.name.split(".")[0]] = (
                            alias.name if alias.asname else alias.name.split(".")[0]
                        )
                case ast.ImportFrom(module=str(origin)):
                    for alias in node.names:
                        self._imported[alias.asname or alias.name] = f"{origin}.{alias.name}"
                case ast.ClassDef():
                    self.classes[node.name] = [self.name(base) for base in node.bases]
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._functions[node.name] = node
                case _:
                    pass
        for name, function in self._functions.items():
            if (raises := self._raises(function)) is not None:
                self.steps[name] = raises

    def name(self, node: ast.expr) -> str:
        """The dotted name as it was defined, whatever it was imported as; '' for what is no name."""
        if isinstance(node, ast.Call):
            return self.name(node.func)
        if isinstance(node, ast.Attribute):
            owner = self.name(node.value)
            return f"{owner}.{node.attr}" if owner else ""
        return self._imported.get(node.id, node.id) if isinstance(node, ast.Name) else ""

    def bodies(self) -> list[FunctionNode]:
        """Functions whose code runs in a body: decorated ones, users of verbs, and what they name, in turn."""
        todo = [function for function in self._functions.values() if self._is_body(function)]
        found: dict[str, FunctionNode] = {}
        while todo:
            function = todo.pop()
            if function.name in found or function.name in self.steps:
                continue
            found[function.name] = function
            names = (node.id for node in ast.walk(function) if isinstance(node, ast.Name))
            todo.extend(self._functions[name] for name in names if name in self._functions)
        return list(found.values())

    def awaited(self, node: ast.expr) -> str | None:
        """The name of what is called, if it does nothing until it is awaited: a step, an async def, a verb."""
        name = self.name(node).removesuffix(".using")
        own = self._functions.get(name)
        is_verb = name.startswith(_DURABLE) and name.removeprefix(_DURABLE) in _AWAITED
        return name if is_verb or name in self.steps or isinstance(own, ast.AsyncFunctionDef) else None

    def may_catch(self, wanted: str, declared: list[str]) -> bool:
        """Return whether a handler for this class can meet an error of a step with these `raises`: one of them, or one
        of the file's own. What was imported may derive from anything."""
        own = [name for name in self.classes if self._derives(name, wanted)]
        return bool(own) or any(self._derives(name, wanted) for name in declared)

    def _derives(self, name: str, wanted: str) -> bool:
        if name == wanted:
            return True
        if name in self.classes:
            return any(self._derives(base, wanted) for base in self.classes[name] if base != name)
        one, other = getattr(builtins, name, None), getattr(builtins, wanted, None)
        if isinstance(one, type) and isinstance(other, type):
            return issubclass(one, other)
        return not isinstance(one, type)  # imported: nobody knows

    def _is_body(self, function: FunctionNode) -> bool:
        decorators = (
            self.name(part).removeprefix(_DURABLE).removeprefix("durable.") for part in function.decorator_list
        )
        if "workflow" in decorators:
            return True
        calls = (self.name(node.func) for node in ast.walk(function) if isinstance(node, ast.Call))
        return any(name.startswith(_DURABLE) and name.removeprefix(_DURABLE) in _VERBS for name in calls)

    def _raises(self, function: FunctionNode) -> list[str] | None:
        """What a step declares; None for what is no step."""
        for part in function.decorator_list:
            if self.name(part).removesuffix(".transaction").split(".")[-1] == "step":
                keywords = part.keywords if isinstance(part, ast.Call) else []
                return [name for keyword in keywords if keyword.arg == "raises" for name in self._listed(keyword.value)]
        return None

    def _listed(self, node: ast.expr) -> list[str]:
        elements = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
        return [self.name(element) or "?" for element in elements]


class _Body:
    """One function whose code runs in bodies."""

    def __init__(self, module: _Module, function: FunctionNode) -> None:
        self._module, self._function = module, function
        self._name = module.name
        self._sets = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and self._is_set(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def findings(self) -> Iterator[LintFinding]:
        for node in _code_of(self._function, self._module.steps):
            match node:
                case ast.Call():
                    yield from self._of_call(node)
                case ast.Expr(value=ast.Call()) if (what := self._module.awaited(node.value)) is not None:
                    yield _finding(node.value, "not-awaited", f"{what}()")
                case ast.Subscript() if self._name(node.value) == "os.environ":
                    yield _finding(node, "environment", "os.environ")
                case ast.For() | ast.AsyncFor() | ast.comprehension() if self._is_set(node.iter):
                    yield _finding(node.iter, "set-order", "")
                case ast.ExceptHandler() if node.type is not None and self._name(node.type) in _FOREIGN_CANCELLED:
                    yield _finding(node, "cancelled", f"except {self._name(node.type)}")
                case ast.Try() | ast.TryStar():
                    yield from self._of_try(node)
                case _:
                    pass

    def _of_call(self, node: ast.Call) -> Iterator[LintFinding]:
        name = self._name(node.func)
        if name in ("list", "tuple", "enumerate", "iter", "next") and any(self._is_set(part) for part in node.args):
            yield _finding(node, "set-order", f"{name}()")
        elif rule := _rule_of(name):
            yield _finding(node, rule, f"{name}()")

    def _of_try(self, node: ast.Try | ast.TryStar) -> Iterator[LintFinding]:
        """Awaits in clean-up, and handlers that never meet what they are for."""
        clean_up = [node.finalbody]
        clean_up += [handler.body for handler in node.handlers if self._catches_cancelled(handler)]
        for body in clean_up:
            yield from (_finding(found, "clean-up", "") for found in _bare_awaits(body))
        called = [name for name in map(self._awaited_step, _within(node.body)) if name is not None]
        for handler in node.handlers:
            for wanted in self._caught(handler):
                for step in called:
                    if not self._module.may_catch(wanted, self._module.steps[step]):
                        yield _finding(handler, "undeclared", f"except {wanted} around {step}()")

    def _catches_cancelled(self, handler: ast.ExceptHandler) -> bool:
        names = self._caught(handler, all_of_them=True)
        return handler.type is None or any(name.split(".")[-1] in ("BaseException", "Cancelled") for name in names)

    def _caught(self, handler: ast.ExceptHandler, *, all_of_them: bool = False) -> list[str]:
        """Return the built-in classes that a handler names; those that meet whatever comes are left out."""
        if handler.type is None:
            return []
        parts = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        names = [self._name(part) for part in parts]
        if all_of_them:
            return names
        return [name for name in names if isinstance(getattr(builtins, name, None), type) and name not in _MEETS_ALL]

    def _awaited_step(self, node: ast.AST) -> str | None:
        """The step that is awaited here, plain or by `using`."""
        if not isinstance(node, ast.Await) or not isinstance(node.value, ast.Call):
            return None
        name = self._name(node.value.func).removesuffix(".using")
        return name if name in self._module.steps else None

    def _is_set(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return node.id in getattr(self, "_sets", ())
        return isinstance(node, ast.Set | ast.SetComp) or (
            isinstance(node, ast.Call) and self._name(node.func) in ("set", "frozenset")
        )


def _finding(node: ast.expr | ast.ExceptHandler, rule: str, what: str) -> LintFinding:
    return LintFinding(node.lineno, rule, f"{what}: {RULES[rule]}" if what else RULES[rule])


def _rule_of(name: str) -> str | None:
    for rule, names in _NAMES.items():
        if name in names or (rule == "environment" and name.startswith("os.environ.")):
            return rule
    if name.startswith("os.path.") and name.removeprefix("os.path.") in _DISK:
        return "io"
    if name.startswith(_PURE):
        return None
    module, _, rest = name.partition(".")
    if not rest:
        return None
    if name.rpartition(".")[2] in _FILES:
        return "io"
    return next((rule for rule, modules in _MODULES.items() if module in modules), None)


def _code_of(function: FunctionNode, steps: dict[str, list[str]]) -> Iterator[ast.AST]:
    """All that runs with it: its nested functions too, but for steps; no decorators, no annotations."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, FunctionNode):
            if node.name not in steps:
                todo.extend(node.body)
            continue
        yield node
        todo.extend(ast.iter_child_nodes(node))


def _within(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for statement in body:
        yield from ast.walk(statement)


def _bare_awaits(body: list[ast.stmt]) -> Iterator[ast.Await]:
    """Awaits that no shield protects."""
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, FunctionNode | ast.Lambda):
            continue
        if isinstance(node, ast.With | ast.AsyncWith) and any(_shields(item) for item in node.items):
            continue
        if isinstance(node, ast.Await):
            yield node
        todo.extend(ast.iter_child_nodes(node))


def _shields(item: ast.withitem) -> bool:
    call = item.context_expr
    return isinstance(call, ast.Call) and any(
        keyword.arg == "shield" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in call.keywords
    )
