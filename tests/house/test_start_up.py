"""What a start imports, which is most of what it costs: `penstock serve` has a second until it is ready."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.house.sources import SRC


def imported_by(statement: str) -> set[str]:
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(SRC)}
    )
    return set(json.loads(run.stdout))


HEAVY = {"trio", "psycopg", "quart", "hypercorn", "httpx", "aiokafka", "grpclib", "betterproto2", "prometheus_client"}


def test_the_command_line_itself_imports_nothing_of_the_engine():
    loaded = imported_by("import penstock.cli.app")
    assert loaded & (HEAVY | {"asyncio", "structlog", "yaml", "msgspec"}) == set()
    assert len(loaded) <= 350  # 274 when this was written


def test_settings_cost_little():
    loaded = imported_by("from penstock.settings import load_settings; load_settings(environ={})")
    assert loaded & (HEAVY | {"asyncio", "structlog", "yaml", "pydantic", "typer"}) == set()
    assert len(loaded) <= 200


def test_the_sdk_imports_nothing_of_the_engine():
    loaded = imported_by("import penstock.client, penstock.worker")
    assert loaded & (HEAVY - {"httpx"}) == set()
    engine = {"cli", "runtime", "rest", "rpc", "http", "engine", "store", "core", "settings"}
    assert {module.split(".")[1] for module in loaded if module.startswith("penstock.")} & engine == set()
    assert loaded & {"penstock.telemetry.metrics", "penstock.log.log"} == set()


def test_the_engine_imports_neither_the_sdk_nor_tools_of_developers():
    loaded = imported_by("import penstock.runtime.service")
    unwanted = {"httpx", "aiokafka", "typer", "pytest", "hypothesis", "grpc", "google.protobuf", "IPython", "pydantic"}
    assert loaded & unwanted == set()
    assert {module for module in loaded if module.startswith(("penstock.client", "penstock.worker"))} == set()
    assert len(loaded) <= 1_400


WITHOUT_KAFKA = """
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "aiokafka" or (name + ".").startswith("penstock.kafka."):
            raise ImportError(f"{name} is imported")

sys.meta_path.insert(0, Absent())
import penstock

MODE = {"penstock.kafka", "penstock.runtime.dispatch"}
known = [each.name for each in pkgutil.walk_packages(penstock.__path__, "penstock.", onerror=lambda name: None)]
for name in known:
    if name not in MODE and not name.startswith("penstock.kafka.") and name != "penstock.__main__":
        importlib.import_module(name)
print(len(known), "penstock.runtime.node" in sys.modules)
"""


@pytest.mark.slow(reason="imports all modules")
def test_all_but_kafkas_own_mode_is_imported_without_it():
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_KAFKA], capture_output=True, text=True, env={"PYTHONPATH": str(SRC)}, check=False
    )
    assert run.stderr == ""
    count, has_node = run.stdout.split()
    assert int(count) > 600
    assert has_node == "True"


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["demo", "--help"], ["version"]])
def test_help_and_version_work_without_any_setting(arguments):
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "penstock", *arguments],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(SRC)},
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "penstock" in run.stdout
