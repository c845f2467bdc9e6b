"""Rules of the sources that no linter checks: sizes, docstrings, exports, names, what may not be left lying around."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.sources import PACKAGE, TOP, all_python, modules, name, tree

MAX_FUNCTION_LINES = 70
MAX_PARAMETERS = 12
MAX_ATTRIBUTES = 24
MANY_PARAMETERS = {
    "client/builder.py: service_task": "a parameter is a field of the step",
    "client/builder.py: call": "a parameter is a field of the step",
    "client/instances.py: start_instance": "a parameter is a field of the call",
    "engine/queues/deliveries.py: __init__": "gets the parts of the engine that a delivery needs",
}
"""Functions that take more, and why. Those of `cli/` are left out: a parameter there is an option."""
MANY_ATTRIBUTES = {
    "core/advance/recorder.py: AdvanceState": "the state of one advance, which the functions of the package share",
    "core/advance/simulation.py: Simulation": "the state of a simulated instance",
    "durable/loaded_run.py: LoadedRun": "the state of a run that is executed",
    "engine/engine.py: Engine": "the one place where the engine's parts are put together",
    "http/connection.py: HttpConnection": "the state of a connection, one object each for memory's sake",
    "http/parser.py: RequestParser": "the state of a parser, one object each for memory's sake",
    "kernel/drive.py: Kernel": "the state of a run that is replayed",
    "telemetry/metrics/registry.py: Metrics": "a metric is an attribute",
    "rpc/server.py: GrpcServer": "a limit is an attribute",
    "rpc/transport.py: RpcConnection": "the state of a connection, one object each for memory's sake",
    "store/db/pool.py: Pool": "a limit is an attribute",
}
"""Classes that have more, and why."""
MIN_DOCSTRING_CHARS = 30
FORBIDDEN_NAMES = {"base", "common", "constants", "helper", "helpers", "misc", "shared", "types", "util", "utils"}

VIRTUAL_CLOCKS = {"autojump_clock", "mock_clock"}
# Where tests sleep on the real clock, and why nothing can be waited on there.
SLEEPS = {
    "tests/durable/programs.py": "polls what users' programs do, which nothing announces",
    "tests/durable/test_crashes.py": "everything there runs on a virtual clock",
    "tests/durable/films.py": "a step that takes long, while PostgreSQL is restarted",
    "tests/durable/dying_executor.py": "a step that takes a moment",
    "tests/durable/test_kills.py": "polls what processes that are killed have done, which nothing announces",
    "tests/durable/test_over_rest.py": "polls a run over REST, as its user would",
    "tests/durable/test_results.py": "everything there runs on a virtual clock",
    "tests/durable/test_isolation.py": "a sleep in a body, which is refused",
    "tests/durable/test_step_loops.py": "steps that take a moment, or wait to be cancelled",
    "tests/engine/test_gathering.py": "everything there runs on a virtual clock",
    "tests/engine/test_terminated.py": "pauses between faults, for some seconds",
    "tests/http/conftest.py": "polls the server's counters, which announce nothing",
    "tests/runtime/waiting.py": "polls what processes and threads do, which nothing announces",
    "tests/kafka/broker.py": "polls a broker that starts, which announces nothing",
    "tests/kafka/test_loop_scope.py": "tasks that are to be cancelled",
    "tests/kafka/topics.py": "polls brokers until they know of a topic, which nothing announces",
    "tests/kafka/fleet.py": "polls what engines, brokers and workers do, which nothing announces",
    "tests/kafka/test_chaos.py": "random pauses between faults",
    "tests/kafka/test_end_to_end.py": "a broker that is slow for so long",
    "tests/kafka/test_producer.py": "a broker that is slow for so long",
    "tests/kernel/oracle.py": "everything there runs on a virtual clock",
    "tests/kafka/test_starts.py": "a handler that takes a moment",
    "tests/reports/test_retention_spares_what_changed.py": "polls for a lock that somebody waits for",
    "tests/reports/test_asyncio_in_workflow_functions.py": "sleeps in a workflow function, which are refused",
    "tests/reports/test_attempts_across_restarts.py": "everything there runs on a virtual clock",
    "tests/reports/test_cancel_other_never_two.py": "looks again until a schedule has fired, which nothing announces",
    "tests/reports/test_steps_that_block_their_loop.py": "the fault itself: a step that blocks its loop",
    "tests/rpc/services.py": "a handler that takes as long as the request says",
    "tests/rpc/stress.py": "cancels at random moments",
    "tests/rpc/test_run_stream.py": "polls what a stream has taken",
    "tests/rpc/test_hostile.py": "cancels at random moments",
    "tests/rpc/test_taskless.py": "on a virtual clock, and a handler that sleeps",
    "tests/sdk/loops.py": "polls what workers and connections do, which nothing announces",
    "tests/sdk/test_both_wires.py": "handlers that take as long; pauses between faults",
    "tests/sdk/test_handlers.py": "handlers that outlast their time limit",
    "tests/sdk/test_pages.py": "polls an instance, as the page's reader would",
    "tests/sdk/test_work_stream.py": "polls what no event of the stream tells",
    "tests/testing/test_virtual_loops.py": "steps that sleep on a virtual clock",
}


def inside(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def attributes(of: ast.ClassDef) -> int:
    stored = (node for node in ast.walk(of) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    return len({node.attr for node in stored if isinstance(node.value, ast.Name) and node.value.id == "self"})


def test_a_function_takes_no_more_than_a_call_can_show():
    found = {
        f"{inside(path)}: {node.name}"
        for path in modules()
        if not inside(path).startswith("cli/")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and parameters(node) > MAX_PARAMETERS
    }
    assert found == set(MANY_PARAMETERS)


def test_a_class_keeps_no_more_than_a_reader_can():
    found = {
        f"{inside(path)}: {node.name}"
        for path in modules()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef) and attributes(node) > MAX_ATTRIBUTES
    }
    assert found == set(MANY_ATTRIBUTES)


def test_no_function_is_longer_than_70_lines():
    long = {
        f"{name(path)}:{node.lineno} {node.name}": lines
        for path in modules()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and (lines := node.end_lineno - node.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert long == {}


def test_every_module_says_what_it_is_for():
    silent = [name(path) for path in modules() if len(ast.get_docstring(tree(path)) or "") < MIN_DOCSTRING_CHARS]
    assert silent == []


def test_no_module_is_called_after_nothing():
    found = [
        name(path)
        for path in PACKAGE.rglob("*")
        if (path.is_dir() or path.suffix == ".py") and path.stem in FORBIDDEN_NAMES
    ]
    assert found == []


def test_every_package_is_one():
    folders = {path.parent for path in modules()}
    assert [name(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def exported(module: ast.Module) -> list[str] | None:
    for node in module.body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in node.targets):
            return list(ast.literal_eval(node.value))
    return None


def defined(module: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_what_a_module_exports_it_has_once():
    wrong = {
        name(path): bad
        for path in modules()
        if (names := exported(tree(path))) is not None
        and (
            bad := sorted(set(names) - defined(tree(path))) or sorted({each for each in names if names.count(each) > 1})
        )
    }
    assert wrong == {}


def test_a_package_that_gathers_names_exports_them_all():
    wrong = {}
    for path in modules():
        if path.name != "__init__.py":
            continue
        gathered = {
            alias.asname or alias.name
            for node in tree(path).body
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock")
            for alias in node.names
        }
        if missing := gathered - set(exported(tree(path)) or ()):
            wrong[name(path)] = sorted(missing)
    assert wrong == {}


def test_nobody_imports_a_private_name_of_another_package():
    wrong = [
        f"{name(path)}:{node.lineno} {node.module}.{alias.name}"
        for path in modules()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock")
        for alias in node.names
        if alias.name.startswith("_") and alias.name != "__version__"
    ]
    assert wrong == []


def lines_with(pattern: str, paths) -> list[str]:
    expression = re.compile(pattern)
    return [
        f"{name(path)}:{number} {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if expression.search(line)
    ]


def test_nothing_is_left_for_later():
    marks = "|".join(["TO" + "DO", "FIX" + "ME", r"\bXX" + r"X\b", "raise NotImplemented" + r"Error\b"])
    found = lines_with(marks, [*all_python(), *PACKAGE.rglob("*.sql"), TOP / "schema.sql"])
    assert found == []


def test_every_ignore_names_its_code_and_the_reason():
    bare = r"#\s*(noqa|type: ignore|pyright: ignore)\b"
    full = re.compile(
        r"#\s*(noqa: [A-Z]+\d+(, ?[A-Z]+\d+)*|type: ignore\[[\w, -]+\]|pyright: ignore\[[\w, ]+\])\s*(-|–|#)\s*\w+"
    )
    found = [line for line in lines_with(bare, modules()) if not full.search(line)]
    assert found == []


def sleeps(node: ast.AST) -> Iterator[ast.Call]:
    """Calls of a sleep, but for sleep(0) and for functions that run on a virtual clock."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
        if arguments & VIRTUAL_CLOCKS:
            return
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sleep"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in ("trio", "anyio", "asyncio", "time")
        and not (isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
    ):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from sleeps(child)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("async def test_a():\n    await trio.sleep(0.1)", 1),
        ("def test_a():\n    def f():\n        time.sleep(x)", 1),
        ("async def test_a():\n    await trio.sleep(0)", 0),
        ("async def test_a(autojump_clock):\n    await trio.sleep(60)", 0),
    ],
)
def test_a_sleep_in_a_test_would_be_found(source, found):
    assert len(list(sleeps(ast.parse(source)))) == found


def test_no_test_sleeps_to_wait():
    tests = [path for path in all_python() if path.is_relative_to(TOP / "tests") and "sleep" in path.read_text()]
    found = {name(path) for path in tests if list(sleeps(tree(path)))}
    assert found == SLEEPS.keys()


def test_the_script_for_old_pythons_parses_on_them():
    ast.parse((TOP / "bootstrap.py").read_text(), feature_version=(3, 7))


def calls_of_clocks(module: ast.Module) -> list[str]:
    return [
        ast.unparse(node)
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute)
        and node.attr in ("now", "utcnow", "today")
        and isinstance(node.value, ast.Name)
        and node.value.id in ("datetime", "date", "dt")
    ]


@pytest.mark.parametrize("source", ["datetime.now(UTC)", "date.today()", "f = datetime.utcnow"])
def test_a_clock_in_the_heart_would_be_found(source):
    assert calls_of_clocks(ast.parse(source))


def test_the_heart_asks_no_clock():
    found = {
        name(path): calls
        for path in modules()
        if path.is_relative_to(PACKAGE / "core") and (calls := calls_of_clocks(tree(path)))
    }
    assert found == {}
