"""A release can be made: the short form of `make release`, and what holds of its lock, its workflow and its version."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from penstock import __version__
from tests.house.sources import TOP
from tools import release
from tools.lock import release_lock, release_state
from tools.release import NO_TOOLS, Wrong, version_of

COMMAND = [sys.executable, str(TOP / "tools" / "release.py")]
WORKFLOW = TOP / ".github" / "workflows" / "release.yml"


@pytest.mark.slow(reason="builds and installs the wheel and the source archive")
@pytest.mark.timeout(600)  # installs from a registry, which may be slow
def test_the_short_form_builds_checks_and_installs(tmp_path, leave_out):
    done = subprocess.run([*COMMAND, "--short", "--dist", str(tmp_path / "dist")], capture_output=True, text=True)
    if done.returncode == NO_TOOLS:
        leave_out("the tools that make a release can't be installed here: no registry")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "twine and check-wheel-contents find nothing" in done.stdout
    made = {path.name: path for path in (tmp_path / "dist").iterdir()}
    source = f"penstock_workflow-{__version__}.tar.gz"
    assert made.keys() == {source, f"penstock_workflow-{__version__}-py3-none-any.whl", "SHA256SUMS"}
    sums = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path / "dist", capture_output=True, text=True)
    assert (sums.returncode, sums.stdout.count(": OK")) == (0, 2)
    with tarfile.open(made[source]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "schema.sql", "src/penstock/__init__.py", "tools/compiled.py"} <= names
    assert not [name for name in names if "node_modules" in name or name.startswith((".venv", "build/"))]


def test_a_tag_of_another_version_is_refused():
    done = subprocess.run([*COMMAND, "--tag", "v9.9.9"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (
        1,
        f"release: the tag v9.9.9 is not v{__version__}, the version of this folder\n",
    )


def test_a_version_without_its_heading_in_the_changelog_is_refused(tmp_path):
    (tmp_path / "src" / "penstock").mkdir(parents=True)
    (tmp_path / "src" / "penstock" / "__init__.py").write_text('__version__ = "0.3.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("## Unreleased\n\n## 0.2.0 – 2026-11-30\n")
    with pytest.raises(Wrong, match=r"CHANGELOG.md has no heading `## 0\.3\.0 – DATE`"):
        version_of(tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("## Unreleased\n\n## 0.3.0 – 2027-01-31\n")
    assert version_of(tmp_path) == "0.3.0"
    assert version_of(TOP) == __version__


def test_the_lock_of_the_tools_fits_what_is_asked_for():
    text = release_lock().read_text()
    assert f"# dependencies: {release_state()}\n" in text, "stale: tools/lock.py --release"
    assert "://" not in text
    found = dict(re.findall(r"(?m)^([a-z0-9-]+)==(\S+)", text))
    group = tomllib.loads((TOP / "pyproject.toml").read_text())["dependency-groups"]["release"]
    for asked in map(Requirement, group):
        assert asked.specifier.contains(found[canonicalize_name(asked.name)]), asked


def test_the_workflow_makes_the_release_by_the_same_command_and_stores_no_password():
    text = WORKFLOW.read_text()
    jobs = yaml.safe_load(text)["jobs"]
    commands = [step.get("run", "") for step in jobs["build"]["steps"]]
    assert '.venv/bin/python tools/release.py --tag "$GITHUB_REF_NAME"' in commands
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in text
    assert "password" not in text
    named = {text.rpartition(" :: ")[2] for text in classifiers() if "Python :: 3." in text}
    assert set(re.findall(r"(?m)^ +(3\.\d+)$", text)) == named


def test_compiled_wheels_are_for_the_pythons_of_the_classifiers():
    named = {text.rpartition(" :: ")[2] for text in classifiers() if "Python :: 3." in text}
    assert {path.rpartition("python")[2] for path in release.tested_pythons()} <= named


def classifiers() -> list[str]:
    return tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["classifiers"]
