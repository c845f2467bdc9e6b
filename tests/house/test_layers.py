"""The layers hold, and the check that says so can fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.sources import SRC, TOP

LINTER = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]


def lint(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        LINTER, cwd=directory, capture_output=True, text=True, env={"PYTHONPATH": str(directory / "src")}
    )


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(SRC / "penstock", tmp_path / "src" / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TOP / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_layers_hold():
    result = lint(TOP)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("module", "statement", "said"),
    [
        ("core/rules/state.py", "import time", "penstock.core is not allowed to import time"),
        ("core/rules/state.py", "from random import random", "penstock.core is not allowed to import random"),
        ("core/rules/state.py", "import logging.handlers", "penstock.core is not allowed to import logging"),
        (
            "core/rules/state.py",
            "import penstock.store.db.schema",
            "penstock.core is not allowed to import penstock.store",
        ),
        ("core/rules/state.py", "def f() -> None:\n    import trio", "penstock.core is not allowed to import trio"),
        ("errors.py", "import penstock.settings", "penstock.errors is not allowed to import penstock.settings"),
        ("settings/model.py", "import penstock.core", "penstock.settings is not allowed to import penstock.core"),
        ("client/model.py", "import penstock.errors", "penstock.client is not allowed to import penstock.errors"),
        (
            "client/model.py",
            "import penstock.core.rules.state",
            "penstock.client is not allowed to import penstock.core",
        ),
        ("worker/errors.py", "import trio", "penstock.worker is not allowed to import trio"),
        ("store/db/schema.py", "import penstock.cli", "penstock.store is not allowed to import penstock.cli"),
        ("cli/app.py", "import psycopg", "penstock.cli is not allowed to import psycopg"),
        ("kernel/drive.py", "import time", "penstock.kernel is not allowed to import time"),
        ("kernel/drive.py", "import penstock.errors", "penstock.kernel is not allowed to import penstock.errors"),
        ("durable/step.py", "import trio", "penstock.durable.step is not allowed to import trio"),
        ("engine/engine.py", "import penstock.kernel", "penstock.engine is not allowed to import penstock.kernel"),
        (
            "engine/queues/claims.py",
            "import penstock.engine.status",
            "penstock.engine.queues is not allowed to import penstock.engine.status",
        ),
        (
            "core/rules/state.py",
            "import penstock.core.advance",
            "penstock.core.rules is not allowed to import penstock.core.advance",
        ),
        (
            "store/db/pool.py",
            "import penstock.store.rows",
            "penstock.store.db is not allowed to import penstock.store.rows",
        ),
        ("loop/poller.py", "import penstock.net", "penstock.loop is not allowed to import penstock.net"),
        ("store/db/schema.py", "import penstock.testing", "penstock.store is not allowed to import penstock.testing"),
    ],
)
@pytest.mark.slow(reason="checks the layers of a copy")
def test_an_import_that_points_up_fails_the_check(copy, module, statement, said):
    with (copy / "src" / "penstock" / module).open("a") as file:
        file.write(f"\n{statement}\n")
    result = lint(copy)
    assert result.returncode == 1, result.stdout
    assert said in " ".join(result.stdout.split())
