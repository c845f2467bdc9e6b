"""Writes locks/: what bootstrap.py installs on this kind of machine, every file by its hash.

    .venv/bin/python tools/lock.py [--release] [python3.11 python3.12 …]

Asks pip (of each of these Pythons; by default of every one that bootstrap.py can run under and this machine has) what
it would install, and writes names, versions and hashes; no address of a registry. Run it after a change of the
dependencies in pyproject.toml, which `tests/house/test_locks.py` notices, and now and then for newer versions.
With --release it writes the lock of the tools that make a release (the group `release`), and no other.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

TOP = Path(__file__).resolve().parents[1]
EDITABLE = ["editables"]  # what hatchling needs for `pip install -e` and says only when asked

Files = dict[tuple[str, str], dict[str, set[str]]]
"""Of (name, version): by the Python that takes it, the hashes."""


def main(pythons: list[str]) -> None:
    bootstrap = load_bootstrap()
    project = tomllib.loads((TOP / "pyproject.toml").read_text())
    builds = [*project["build-system"]["requires"], *EDITABLE]
    plain = [*builds, *requirements(project["project"], "engine")]
    full = [*builds, *requirements(project["project"], "engine", "dev")]
    found: dict[str, Files] = {"[engine]": {}, "[dev]": {}}
    versions: set[str] = set()
    glibc = (0, 0)
    for python in pythons:
        with tempfile.TemporaryDirectory() as directory:
            version, pip = make_pip(python, Path(directory))
            versions.add(version)
            every = resolve(pip, full, Path(directory))
            constraints = [f"{name}=={number}" for name, number, _, _ in every]
            few = {name for name, _, _, _ in resolve(pip, plain, Path(directory), constraints)}
        for name, number, sha256, file in every:
            glibc = max(glibc, glibc_of(file))
            for extra in ("[dev]", "[engine]") if name in few else ("[dev]",):
                found[extra].setdefault((name, number), {}).setdefault(version, set()).add(sha256)
    for extra, files in found.items():
        write(TOP / bootstrap.lock_path(extra), files, versions, glibc, bootstrap.dependencies_state())


def write(path: Path, files: Files, versions: set[str], glibc: tuple[int, int], state: str) -> None:
    """Write a lock, and say what is in it."""
    ordered = sorted(versions, key=number_of)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text_of(files, ordered, glibc, state))
    print(f"{path.relative_to(TOP)}: {len(files)} packages for Python {', '.join(ordered)}")


def release_lock() -> Path:
    """Where the lock of the tools that make a release is."""
    return TOP / "locks" / "release" / f"{sys.platform}-{platform.machine()}.txt"


def release_state() -> str:
    """A hash of what pyproject.toml asks for to make a release."""
    return hashlib.sha256(json.dumps(_release_tools()).encode()).hexdigest()


def _release_tools() -> list[str]:
    return tomllib.loads((TOP / "pyproject.toml").read_text())["dependency-groups"]["release"]


def lock_release(pythons: list[str]) -> None:
    """Write that lock."""
    files: Files = {}
    versions: set[str] = set()
    glibc = (0, 0)
    for python in pythons:
        with tempfile.TemporaryDirectory() as directory:
            version, pip = make_pip(python, Path(directory))
            every = resolve(pip, _release_tools(), Path(directory))
        versions.add(version)
        for name, number, sha256, file in every:
            glibc = max(glibc, glibc_of(file))
            files.setdefault((name, number), {}).setdefault(version, set()).add(sha256)
    write(release_lock(), files, versions, glibc, release_state())


def requirements(project: dict[str, Any], *extras: str) -> list[str]:
    """What a table `[project]` asks for with these extras, those that name others of its own resolved."""
    found = dict.fromkeys(project["dependencies"])
    waiting = list(extras)
    for extra in waiting:
        for text in project["optional-dependencies"][extra]:
            if own := re.fullmatch(rf"{project['name']}\[(.+)\]", text):
                waiting += [name for name in own[1].split(",") if name not in waiting]
            else:
                found[text] = None
    return list(found)


def load_bootstrap() -> ModuleType:
    """bootstrap.py, which says where locks are and what they are for."""
    spec = importlib.util.spec_from_file_location("bootstrap", TOP / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def known_pythons() -> list[str]:
    """Of each version one."""
    found: dict[str, str] = {}
    candidates = [path for place in os.environ["PATH"].split(":") for path in glob.glob(f"{place}/python3.[0-9]*")]
    candidates += glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python3.[0-9]*"))
    for path in candidates:
        name = os.path.basename(path)
        if not re.fullmatch(r"python3\.\d+", name) or number_of(name[6:]) < (3, 11) or name in found:
            continue
        if subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            found[name] = path
    return list(found.values())


def make_pip(python: str, directory: Path) -> tuple[str, list[str]]:
    subprocess.run([python, "-m", "venv", directory / "venv"], check=True)
    executable = str(directory / "venv" / "bin" / "python")
    subprocess.run([executable, "-m", "pip", "install", "-q", "--upgrade", "pip"], check=True)
    shown = subprocess.run([executable, "--version"], capture_output=True, text=True, check=True).stdout
    return ".".join(shown.split()[1].split(".")[:2]), [executable, "-m", "pip"]


def resolve(
    pip: list[str], wanted: list[str], directory: Path, constraints: list[str] | None = None
) -> list[tuple[str, str, str, str]]:
    """(name, version, SHA-256, file) of all that pip would install."""
    limits = directory / "constraints.txt"
    limits.write_text("\n".join(constraints or []))
    report = directory / "report.json"
    options = ["--dry-run", "--ignore-installed", "--only-binary=:all:", "--no-cache-dir", "--report", str(report)]
    subprocess.run([*pip, "install", "-q", *options, "-c", str(limits), *wanted], check=True)
    found: list[tuple[str, str, str, str]] = []
    for item in json.loads(report.read_text())["install"]:
        about: dict[str, Any] = item["download_info"]
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        file = about["url"].rsplit("/", 1)[-1]
        found.append((name, item["metadata"]["version"], about["archive_info"]["hashes"]["sha256"], file))
    return found


def glibc_of(file: str) -> tuple[int, int]:
    """The least glibc that a wheel runs on; of several the most modest."""
    named = re.findall(r"manylinux_(\d+)_(\d+)_", file)
    return min(((int(major), int(minor)) for major, minor in named), default=(0, 0))


def number_of(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def text_of(files: Files, versions: list[str], glibc: tuple[int, int], state: str) -> str:
    lines = [
        "# Written by tools/lock.py. What bootstrap.py installs; every file by its hash.",
        f"# python: {' '.join(versions)}",
        f"# glibc: {glibc[0]}.{glibc[1]}",
        f"# dependencies: {state}",
    ]
    for (name, version), by_python in sorted(files.items()):
        some = [f'python_version == "{python}"' for python in versions if python in by_python]
        marker = "" if len(some) == len(versions) else f" ; {' or '.join(some)}"
        hashes = sorted({sha256 for every in by_python.values() for sha256 in every})
        lines.append(f"{name}=={version}{marker} \\")
        lines.append(" \\\n".join(f"    --hash=sha256:{sha256}" for sha256 in hashes))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.platform != "linux" or platform.machine() != "x86_64":
        sys.exit("locks are made on linux x86_64 so far: see lock_path in bootstrap.py")
    if "--release" in sys.argv[1:]:
        lock_release([word for word in sys.argv[1:] if word != "--release"] or known_pythons())
    else:
        main(sys.argv[1:] or known_pythons())
