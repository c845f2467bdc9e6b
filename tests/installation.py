"""What users install: the wheel, in a new virtual environment, without a network."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

from tests.house.sources import TOP
from tools.sizes import needed_by


def build_wheel(source: Path) -> Path:
    """Of a copy of the repository, in this new directory."""
    for folder in ("src", "examples"):
        shutil.copytree(TOP / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "tools").mkdir()
    shutil.copy(TOP / "tools" / "compiled.py", source / "tools")
    for file in ("pyproject.toml", "README.md", "LICENSE", "schema.sql"):
        shutil.copy(TOP / file, source)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(source / "dist"), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    [built] = (source / "dist").glob("penstock_workflow-*.whl")
    return built


def install(built: Path, venv: Path, extra: str = "") -> set[str]:
    """``pip install penstock-workflow[extra]`` into a new virtual environment: what the wheel says that it needs is
    linked from the environment of this test run, where it is in the versions of the lock. The names of that."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    [site] = (venv / "lib").glob("python3*/site-packages")
    with zipfile.ZipFile(built) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(metadata).decode().splitlines()
    wanted = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    needed = needed_by(wanted, extra)
    for name in needed:
        files = distribution(name).files or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            (site / top).symlink_to(str(distribution(name).locate_file(top)))
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "--disable-pip-version-check"]
    # --no-deps would hide a requirement that is not there: --no-index makes pip fail on it instead.
    package = f"{built}[{extra}]" if extra else str(built)
    subprocess.run(
        [*pip, "install", "-q", "--no-compile", "--no-index", package], check=True, capture_output=True, env={}
    )
    subprocess.run([*pip, "check"], check=True, capture_output=True, env={})
    return needed
