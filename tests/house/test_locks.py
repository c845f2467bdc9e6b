"""The locks that bootstrap.py installs from fit pyproject.toml, and are used only where they fit."""

from __future__ import annotations

import platform
import re
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house.sources import TOP
from tools.lock import load_bootstrap
from tools.lock import requirements as asked_for

LOCKS = sorted((TOP / "locks").glob("*.txt"))
PIN = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>\S+)(?: ; python_version [^\\]+)? \\")
HASH = re.compile(r" {4}--hash=sha256:[0-9a-f]{64}(?: \\)?")
bootstrap = load_bootstrap()


def pins(path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in path.read_text().splitlines():
        if line.startswith("#") or HASH.fullmatch(line):
            continue
        match = PIN.fullmatch(line)
        assert match is not None, f"neither a pin nor a hash: {line!r}"
        found.setdefault(match["name"], set()).add(match["version"])
    return found


def requirements(extra: str) -> list[Requirement]:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())
    asked = [*project["build-system"]["requires"], *asked_for(project["project"], extra)]
    return [Requirement(text) for text in asked]


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_is_not_older_than_pyproject(path):
    """Else bootstrap.py installs without it: run `make lock`."""
    assert f"# dependencies: {bootstrap.dependencies_state()}\n" in path.read_text(), "stale: run `make lock`"


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_has_fitting_versions_and_no_address(path):
    found = pins(path)
    for requirement in requirements("dev" if path.stem.endswith("-dev") else "engine"):
        versions = found[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(version, prereleases=True) for version in versions), requirement
    assert "://" not in path.read_text()


def test_both_locks_of_a_machine_have_the_same_versions():
    assert LOCKS
    for path in LOCKS:
        if not path.stem.endswith("-dev"):
            every = pins(path.with_name(f"{path.stem}-dev.txt"))
            assert {name: every.get(name) for name in pins(path)} == pins(path)


@pytest.fixture
def here(monkeypatch):
    """A machine that the lock is for."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.41"))
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    return monkeypatch


def test_a_lock_is_used_where_it_fits(here):
    assert bootstrap.find_lock("[engine]") == str(TOP / "locks" / "linux-x86_64.txt")
    assert bootstrap.find_lock("[dev]") == str(TOP / "locks" / "linux-x86_64-dev.txt")


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (sys, "platform", "darwin"),
        (sys, "version_info", (3, 99, 0)),
        (platform, "machine", lambda: "riscv64"),
        (platform, "libc_ver", lambda: ("", "")),  # musl
        (platform, "libc_ver", lambda: ("glibc", "2.5")),
    ],
)
def test_a_lock_with_unfit_files_is_not_used(here, owner, name, value):
    here.setattr(owner, name, value)
    assert bootstrap.find_lock("[engine]") is None


def test_a_stale_lock_is_reported_and_not_used(here, capsys):
    here.setattr(bootstrap, "dependencies_state", lambda: "other")
    assert bootstrap.find_lock("[engine]") is None
    assert "older than pyproject.toml" in capsys.readouterr().out
