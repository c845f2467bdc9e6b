"""The hot path as C: mypyc over the modules of `MODULES`, which stay the Python that they are.

    PENSTOCK_COMPILED=1 python -m build --wheel      # a wheel of this machine's kind, with them beside the sources
    python tools/compiled.py DIRECTORY               # the package with them in it, for tests:
    python -m pytest -o pythonpath='DIRECTORY .' tests/http

Needs a C compiler. Where a compiled module is there Python takes it, else the source beside it: the same code, slower.
An editable installation is never compiled: nothing stale can be taken for a source that was changed. Left out is
what subclasses a class of C's or of a module that stays Python (psycopg's cursors, metrics: they end the process with a
segmentation fault) and methods that are found by their names (handlers of routes).

What mypyc does otherwise than Python, and so must not stand in them: a slice of bytes whose end may lie before its
start is a SystemError, not empty; a value of another type than its annotation says is a TypeError; a field of a Struct
whose annotation names a class that stands further down ends the process with a segmentation fault at the import.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TOP: Final = Path(__file__).resolve().parents[1]
WANTED: Final = "PENSTOCK_COMPILED"
"""Of the environment: 1 compiles."""
REQUIRES: Final = ("mypy>=2.4,<3", "setuptools>=77")
"""At build time, beside what the engine runs on: types that are not known are compiled to slower code."""
MODULES: Final = (
    "penstock/core/graph/fast_path.py",
    "penstock/core/rules/fencing.py",
    "penstock/engine/queues/activity.py",
    "penstock/engine/requests/answers.py",
    "penstock/engine/definitions/definitions.py",
    "penstock/engine/queues/deliveries.py",
    "penstock/engine/jobs/inline_jobs.py",
    "penstock/engine/requests/ids.py",
    "penstock/engine/queues/job_sizes.py",
    "penstock/engine/group_commit/batcher.py",
    "penstock/engine/queues/claims.py",
    "penstock/engine/queues/fast_path.py",
    "penstock/engine/queues/held.py",
    "penstock/engine/group_commit/item.py",
    "penstock/engine/group_commit/queue.py",
    "penstock/engine/queues/releases.py",
    "penstock/engine/queues/lease_book.py",
    "penstock/engine/requests/payload.py",
    "penstock/engine/queues/polls.py",
    "penstock/engine/queues/queue_counts.py",
    "penstock/engine/queues/low_water_marks.py",
    "penstock/engine/queues/queues.py",
    "penstock/engine/queues/variables.py",
    "penstock/engine/queues/waiters.py",
    "penstock/http/connection.py",
    "penstock/http/cycle.py",
    "penstock/http/inline_connection.py",
    "penstock/http/limits.py",
    "penstock/http/parser.py",
    "penstock/http/request.py",
    "penstock/http/response.py",
    "penstock/http/server.py",
    "penstock/telemetry/metrics/numbers.py",
    "penstock/loop/poller.py",
    "penstock/rest/inline_handler.py",
    "penstock/store/db/arrays.py",
    "penstock/store/rows/jobs.py",
    "penstock/store/db/statement_watchdog.py",
    "penstock/store/db/pool.py",
    "penstock/store/db/wait.py",
    "penstock/loop/waking.py",
)
INHERITED: Final = {
    "penstock/engine/group_commit/item.py": ("Item",),
    "penstock/engine/group_commit/batcher.py": ("Batcher",),
    "penstock/engine/group_commit/queue.py": ("GroupCommitQueue",),
    "penstock/engine/queues/claims.py": ("ClaimItem",),
    "penstock/engine/queues/waiters.py": ("Waiter",),
}
"""Classes of those that modules which stay Python inherit from: mypyc has to be told."""
_SETUP: Final = """
import sys
from mypyc.build import mypycify
from setuptools import setup

level, processes, *modules = sys.argv[1:]
extensions = mypycify(
    ["--config-file=mypy.ini", *modules], opt_level=level, debug_level="0", multi_file=True, group_name="penstock"
)
setup(name="penstock", ext_modules=extensions, script_args=["-q", "build_ext", "--inplace", "--parallel", processes])
"""
_FUTURE: Final = "from __future__ import annotations\n"
_MARK: Final = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:  # nothing is imported when it runs
    from mypy_extensions import mypyc_attr
"""
_MYPY: Final = """
[mypy]
explicit_package_bases = true
mypy_path = .
follow_imports = silent
ignore_missing_imports = true
"""


def compile_into(directory: Path, modules: Sequence[str] = MODULES, *, optimize: int = 2) -> list[Path]:
    """Compile modules; the files, relative to ``directory``, where they stand as in site-packages. Raises
    CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="penstock-compiled-") as work:
        source = Path(work) / "src"
        shutil.copytree(TOP / "src", source, ignore=shutil.ignore_patterns("__pycache__", "static", "*.so"))
        (source / "mypy.ini").write_text(_MYPY)
        for module in INHERITED.keys() & set(modules):
            path = source / module
            path.write_text(_may_be_inherited(path.read_text(), INHERITED[module]))
        command = [sys.executable, "-c", _SETUP, str(optimize), str(os.cpu_count() or 1), *modules]
        subprocess.run(command, cwd=source, check=True)
        shutil.rmtree(source / "build")
        found = [path.relative_to(source) for path in sorted(source.rglob("*.so"))]
        for path in found:
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / path, directory / path)
    return found


def _may_be_inherited(text: str, classes: Sequence[str]) -> str:
    """A module with mypyc's mark at its classes."""
    for name in classes:
        found = re.search(rf"^class {name}\b", text, re.MULTILINE)
        assert found is not None, name
        text = f"{text[: found.start()]}@mypyc_attr(allow_interpreted_subclasses=True)\n{text[found.start() :]}"
    before, future, behind = text.partition(_FUTURE)
    assert future
    return before + future + _MARK + behind


class CompiledHook(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel, where the environment asks for it."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What is needed for that."""
        if os.environ.get(WANTED) != "1":
            return []
        core: Any = self.metadata.core  # pyright: ignore[reportUnknownMemberType] - hatchling says no types
        return [*REQUIRES, *core.dependencies, *core.optional_dependencies["engine"]]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the wheel is made."""
        if os.environ.get(WANTED) != "1" or version == "editable":
            return
        self._made = tempfile.TemporaryDirectory(prefix="penstock-wheel-")
        for path in compile_into(Path(self._made.name)):
            build_data["force_include"][str(Path(self._made.name) / path)] = str(path)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """After it was made."""
        if hasattr(self, "_made"):
            self._made.cleanup()


def main() -> int:
    parser = argparse.ArgumentParser(description="Compiles the hot path.")
    parser.add_argument("directory", type=Path, help="a new one")
    parser.add_argument("--optimize", type=int, default=2, help="of the C compiler [2]")
    options = parser.parse_args()
    package = options.directory / "penstock"
    shutil.copytree(TOP / "src" / "penstock", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TOP / "schema.sql", package)  # where it stands in a wheel
    for path in compile_into(options.directory, optimize=options.optimize):
        print(options.directory / path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
