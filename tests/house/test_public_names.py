"""No public Python name of a release is gone, and docs/releases.md lists those of now."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from penstock import __version__
from tests.house.sources import TOP

RELEASED = sorted((TOP / "tests" / "house" / "public_names").glob("*.json"))
WITHDRAWN: dict[str, str] = {}
"""By name, as `penstock.client.Client`, the version that took it away, one minor version after a warning."""


def names(text: str) -> set[str]:
    """Of the page or of a release's file."""
    if text.startswith("{"):
        return {f"{module}.{name}" for module, found in json.loads(text).items() for name in found}
    section = text.partition("<!-- public names:")[2].partition("<!-- public names end -->")[0]
    found: set[str] = set()
    for paragraph in re.split(r"\n\n+", section):
        if module := re.match(r"\*\*`([\w.]+)`\*\*:", paragraph):
            found |= {f"{module[1]}.{name}" for name in re.findall(r"`(\w+)`", paragraph[module.end() :])}
    return found


@pytest.fixture(scope="module")
def now() -> set[str]:
    shown = [sys.executable, "-c", "import json, docs; print(json.dumps(docs.public_names()))"]
    environment = {"PYTHONPATH": str(TOP / "src")}
    done = subprocess.run(shown, cwd=TOP / "tools", env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return names(done.stdout)


def test_the_page_lists_the_public_names_of_now(now):
    assert names((TOP / "docs" / "releases.md").read_text()) == now
    assert {"penstock.client.Client", "penstock.worker.Worker", "penstock.durable.workflow"} <= now


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.stem)
def test_no_public_name_of_a_release_is_gone(path, now):
    gone = names(path.read_text()) - now
    assert gone - WITHDRAWN.keys() == set(), "a public name goes one minor version after a warning (docs/releases.md)"


def test_the_names_of_this_version_are_kept():
    """`make docs` does not write them: they are a promise."""
    assert f"{__version__}.json" in {path.name for path in RELEASED}
