"""The wheel carries all that a run needs, and what it carries works without the repository."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import psycopg
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from penstock import __version__
from penstock.store import PSYCOPG_FROM, check_psycopg, psycopg_range
from tests.house.sources import PACKAGE, TOP
from tests.installation import build_wheel, install
from tools.psycopg_versions import NOT_INSTALLED


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def wheel(built, tmp_path_factory):
    unpacked = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(unpacked)
    return unpacked


@pytest.mark.slow(reason="builds and installs the wheel")
def test_the_wheel_carries_package_files_schema_and_examples(wheel):
    expected = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*") if path.is_file()}
    expected = {path for path in expected if "__pycache__" not in path}
    expected |= {"schema.sql", *(str(path.relative_to(TOP)) for path in (TOP / "examples").rglob("*.*"))}
    expected = {path for path in expected if "__pycache__" not in path}
    carried = {str(path.relative_to(wheel / "penstock")) for path in (wheel / "penstock").rglob("*") if path.is_file()}
    assert expected - carried == set()
    assert {path for path in carried - expected if not path.startswith("examples/")} == set()


@pytest.mark.slow(reason="builds and installs the wheel")
def test_bench_in_the_wheel_is_a_load_generator_and_says_so(wheel, tmp_path):
    shown, refused = (
        subprocess.run(
            [sys.executable, "-m", "penstock", "bench", word],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env={"PYTHONPATH": str(wheel), "COLUMNS": "120"},
        )
        for word in ("--help", "list")
    )
    assert (shown.returncode, "A load generator, not the harness" in shown.stdout) == (0, True), shown
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "there is no `list` here. This is a load generator, not the harness" in refused.stderr
    carried = [path.name for path in (wheel / "penstock").rglob("*.py") if "bench" in str(path.relative_to(wheel))]
    assert carried == ["bench.py"]


def test_the_load_generator_stays_small():
    assert len((PACKAGE / "cli" / "load.py").read_text().splitlines()) <= 600


@pytest.mark.slow(reason="builds and installs the wheel")
def test_schema_and_examples_are_found_in_the_wheel(wheel):
    code = (
        "from penstock.cli.examples import example\n"
        "from penstock.store.db.schema import schema_sql\n"
        "print(example('order-fulfilment.json'))\n"
        f"print(schema_sql() == open({str(TOP / 'schema.sql')!r}).read())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(wheel)},
    )
    assert run.stdout.splitlines() == [str(wheel / "penstock" / "examples" / "order-fulfilment.json"), "True"]


@pytest.mark.slow(reason="builds and installs the wheel")
def test_the_wheel_has_the_command_and_the_licence(wheel):
    [metadata] = wheel.glob("penstock_workflow-*.dist-info")
    assert "penstock = penstock.cli:main" in (metadata / "entry_points.txt").read_text()
    assert "Apache License" in (metadata / "licenses" / "LICENSE").read_text()


@pytest.fixture(scope="module")
def plain(built, tmp_path_factory) -> Path:
    """The `bin` of a new virtual environment after `pip install penstock-workflow`."""
    venv = tmp_path_factory.mktemp("plain") / "venv"
    needed = install(built, venv)
    assert len(needed) <= 15, needed
    return venv / "bin"


def run_plain(plain: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [plain / words[0], *words[1:]], capture_output=True, text=True, cwd="/", env={}, timeout=120, check=False
    )


@pytest.mark.slow(reason="builds and installs the wheel")
def test_a_plain_installation_has_client_and_worker_without_the_engine(plain):
    code = """
import importlib.util, json
from penstock.client import BadRequest, ConnectionFailed, SyncClient, validate_definition
from penstock.client.builder import WorkflowBuilder
from penstock.worker import JobContext, Worker

for url in ("http://127.0.0.1:9", "grpc://127.0.0.1:9"):
    Worker(url)
    with SyncClient(url, timeout_s=1) as client:
        try:
            client.get_instance("1")
        except ConnectionFailed:
            print("no engine at", url)
definition = {"id": "d", "name": "d", "steps": [
    {"id": "a", "name": "a", "type": "DECISION", "conditionalNextSteps": {"x matches '^[ab]+$'": "b"}},
    {"id": "b", "name": "b", "type": "END"}]}
validate_definition(definition)
definition["steps"][0]["conditionalNextSteps"] = {"x matches": "nowhere"}
try:
    validate_definition(definition)
except BadRequest as error:
    print("refused:", error.problems[0].path)
engine = ("trio", "psycopg", "quart", "hypercorn", "grpclib", "typer", "re2", "aiokafka", "pytest", "yaml")
print([name for name in engine if importlib.util.find_spec(name)])
"""
    run = run_plain(plain, "python", "-W", "error", "-c", code)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines() == [
        "no engine at http://127.0.0.1:9",
        "no engine at grpc://127.0.0.1:9",
        'refused: steps[0].conditionalNextSteps["x matches"]',
        "[]",
    ]


@pytest.mark.slow(reason="builds and installs the wheel")
@pytest.mark.parametrize("words", [["serve"], ["demo"], ["--help"], ["bench", "list"], []])
def test_a_plain_installations_command_says_what_to_install(plain, words):
    run = run_plain(plain, "penstock", *words)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == (
        "penstock: typer is not installed; this needs more than the client and the worker: "
        "pip install 'penstock-workflow[engine]'\n"
    )


@pytest.mark.slow(reason="builds and installs the wheel")
@pytest.mark.parametrize("word", ["version", "--version"])
def test_the_command_of_a_plain_installation_knows_its_version(plain, word):
    run = run_plain(plain, "penstock", word)
    assert (run.returncode, run.stdout, run.stderr) == (0, f"penstock {__version__}\n", "")


def test_no_requirement_of_users_is_exact():
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    extras = {name: asked for name, asked in project["optional-dependencies"].items() if name != "dev"}
    every = [*project["dependencies"], *(text for asked in extras.values() for text in asked)]
    assert [text for text in every if "==" in text] == []
    assert [text for text in every if "<" not in text and not text.startswith("penstock-workflow[")] == []
    assert set(extras) >= {"engine", "kafka", "testing"}


def test_psycopg_is_refused_outside_of_the_versions_that_were_tested():
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    [asked] = [Requirement(text) for text in project["optional-dependencies"]["engine"] if text.startswith("psycopg[")]
    assert asked.specifier == SpecifierSet(psycopg_range())
    for version in ("3.2.13", "3.3.1", psycopg.__version__):
        check_psycopg(version)
        assert asked.specifier.contains(version)
    for version in ("2.9", "3.2.12", "3.3.0", "3.4", "3.4.0.dev1", "4.0"):
        with pytest.raises(ImportError, match=f"psycopg {psycopg_range()}, this is {version}: pip install") as raised:
            check_psycopg(version)
        assert raised.value.name == "psycopg"
        assert not asked.specifier.contains(version)


def test_another_psycopg_ends_the_command_with_a_sentence(tmp_path):
    other = tmp_path / "psycopg"
    other.mkdir()
    (other / "__init__.py").write_text("__version__ = '3.9.1'\n")
    run = subprocess.run(
        [sys.executable, "-m", "penstock", "serve"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{TOP / 'src'}"},
    )
    assert run.returncode == 2
    assert run.stderr.startswith("penstock: the engine runs on psycopg >=")
    assert run.stderr.count("\n") == 1


@pytest.mark.slow(reason="builds and installs the wheel")
def test_the_oldest_psycopg_that_is_allowed_keeps_the_contract(leave_out):
    """A slice of `make psycopg`, which runs all suites over every minor version."""
    oldest = ".".join(map(str, PSYCOPG_FROM))
    run = subprocess.run(
        [sys.executable, TOP / "tools" / "psycopg_versions.py", "--slice", oldest],
        capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip
    if run.returncode == NOT_INSTALLED:
        leave_out(f"network: pip could not get psycopg {oldest}; make psycopg needs it")
    assert (run.returncode, f"psycopg {oldest}\n" in run.stdout) == (0, True), run.stdout[-4000:] + run.stderr[-1000:]
