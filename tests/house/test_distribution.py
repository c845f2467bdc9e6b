"""The distribution is `penstock-workflow`: no file says to install the other project named `penstock`, and an import
beside that one says so."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from penstock import DISTRIBUTION
from penstock.distribution import NAME, find_other
from penstock.runtime.doctor import CheckLevel, check_distribution
from tests.house.sources import PACKAGE, TOP

EXTRA_OF_THE_OTHER = r"(?<![\w-])penstock\\?\[\s*[a-z]+\\?[\],]"
INSTALLING = r"\b(?:pip3?|uv|uvx|pipx|poetry|pdm|conda)\b[^\n|;]*\b(?:install|add|download|wheel|run --with)\b[^\n|;]*"
NAMED = r"(?<![\w./$-])penstock(?![\w./-]|\s+(?:serve|demo|version)\b)"
FILE = r"(?<![\w-])penstock-(?:\*|VERSION|\{version\}|\d)[^\s]*\.(?:whl|tar\.gz)|(?<![\w-])penstock[=~]="
OLD_LINES = re.compile(f"{EXTRA_OF_THE_OTHER}|{INSTALLING}{NAMED}|{FILE}")
REMOVING = re.compile(r"pip uninstall penstock penstock-workflow")
NOT_TEXT = {".webp", ".png", ".gz", ".woff2", ".ico", ".jpg", ".jar"}


def old_lines(text: str) -> list[str]:
    return [line.strip() for line in REMOVING.sub("", text).splitlines() if OLD_LINES.search(line)]


def written() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=TOP, capture_output=True, text=True, check=False)
    if listed.returncode:  # an archive of the sources
        folders = ("src", "docs", "deploy", "examples", "tools", "tests")
        return [path for folder in folders for path in (TOP / folder).rglob("*") if path.is_file()]
    names = listed.stdout.split("\0")
    return [path for name in names if name and (path := TOP / name).is_file() and path.suffix not in NOT_TEXT]


def test_no_file_says_to_install_the_other_project():
    files = [path for path in written() if path != Path(__file__) and "__pycache__" not in path.parts]
    assert len(files) > 500
    found = {str(path.relative_to(TOP)): old_lines(path.read_text(errors="replace")) for path in files}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "pip install penstock",
        "pip install -q 'penstock[engine]'",
        'pip install "penstock"',
        "python3 -m pip install --upgrade penstock",
        "uv add penstock",
        "uv tool install penstock[engine]",
        "pipx install penstock==0.2.0",
        "poetry add penstock",
        "an application needs `pip install penstock` only.",
        "penstock[engine,kafka]",
        r"match=r'penstock\[kafka\]'",
        "pip install './penstock-VERSION-py3-none-any.whl[engine]'",
        "RUN pip install --no-deps /wheels/penstock-*.whl",
        'subprocess.run(["pip", "install", "-q", "penstock"])',
        "penstock==0.2.0",
    ],
)
def test_the_check_finds_the_old_line(line):
    assert old_lines(line) == [line]


@pytest.mark.parametrize(
    "line",
    [
        "pip install penstock-workflow",
        "pip install 'penstock-workflow[engine]' && penstock serve",
        "pip install ./dist/penstock_workflow-0.2.0-py3-none-any.whl",
        "uv run penstock demo",
        "from penstock import App",
        "docker build -t penstock .",
        "pip uninstall penstock penstock-workflow, then install penstock-workflow again",
    ],
)
def test_the_check_lets_the_right_line_pass(line):
    assert old_lines(line) == []


def test_the_distribution_has_one_name():
    assert tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["name"] == NAME == DISTRIBUTION


@pytest.fixture
def site(tmp_path) -> Path:
    """A folder as site-packages, with those of our modules that stand alone."""
    package = tmp_path / "penstock"
    package.mkdir()
    for name in ("__init__.py", "distribution.py"):
        shutil.copy(PACKAGE / name, package)
    for name in ("client", "worker", "durable", "testing", "cli"):
        (package / name).mkdir()
        shutil.copy(PACKAGE / name / "__init__.py", package / name)
    return tmp_path


def run(site: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(site)}, check=False
    )


def test_an_import_is_silent_where_ours_is_alone(site):
    (site / "penstock_workflow-0.2.0.dist-info").mkdir()
    (site / "penstock-0.2.0.txt").touch()
    done = run(site, "import penstock")
    assert (done.returncode, done.stderr) == (0, "")
    assert find_other(str(site / "penstock")) is None
    assert list(check_distribution(str(site / "penstock"))) == []


@pytest.mark.parametrize("metadata", ["penstock-3.1.dist-info", "penstock-3.1-py3.11.egg-info"])
def test_an_import_and_doctor_say_that_the_other_is_installed_too(site, metadata):
    (site / metadata).mkdir()
    done = run(site, "import penstock; print(penstock.DISTRIBUTION)")
    assert (done.returncode, done.stdout) == (0, "penstock-workflow\n")
    assert (
        f"UserWarning: the distribution `penstock` is another project, and is installed too ({site}/{metadata})"
        in done.stderr
    )
    assert "pip uninstall penstock penstock-workflow, then install penstock-workflow again" in done.stderr
    [finding] = check_distribution(str(site / "penstock"))
    assert (finding.verdict, finding.subject) == (CheckLevel.PROBLEM, "installation")
    assert metadata in finding.found
    assert finding.todo.startswith("pip uninstall penstock penstock-workflow")


@pytest.mark.parametrize("package", ["client", "worker", "durable", "testing", "cli"])
def test_ours_refuses_where_the_other_has_replaced_the_first_file(site, package):
    (site / "penstock" / "__init__.py").write_text("__version__ = '3.1'\n")
    done = run(site, f"import penstock.{package}")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {site}/penstock/__init__.py does not belong to penstock-workflow")
    assert last.endswith("pip uninstall penstock penstock-workflow, then install penstock-workflow again")
