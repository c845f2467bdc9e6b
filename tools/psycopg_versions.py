"""Runs the contract and the cancellation suites over psycopg's versions; `make psycopg` runs it.

    .venv/bin/python tools/psycopg_versions.py [--slice] [VERSION …]

The engine's connection overrides private methods of psycopg (src/penstock/store/db/connection.py), so each minor
version in the range of `penstock.store` is run over before it is in it: by default the oldest that is allowed, and the
newest of each minor version. Each is installed by pip into a directory of its own, which goes before `.venv` on the
path. ``--slice`` is what CI runs, over the oldest: the contract test. Needs a package index, and a minute or two per
version.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock.store import PSYCOPG_BELOW, PSYCOPG_FROM

TOP = Path(__file__).parents[1]
CONTRACT = ("tests/store/test_connection.py",)
SUITES = (
    *CONTRACT,
    "tests/store/test_cancellation.py",
    "tests/store/test_outcome.py",
    "tests/store/test_pool.py",
    "tests/store/test_roundtrip.py",
    "tests/engine/test_cancellation.py",
)
NOT_INSTALLED = 3
"""Exit code when pip could not install a version: there may be no network."""


def versions() -> list[str]:
    """What pip is asked for: the oldest version, and the newest of each minor version."""
    oldest = ".".join(map(str, PSYCOPG_FROM))
    return [oldest, *(f"{PSYCOPG_FROM[0]}.{minor}.*" for minor in range(PSYCOPG_FROM[1], PSYCOPG_BELOW[1]))]


def install(version: str, directory: Path) -> str | None:
    """The version that pip chose; None when it could not get one."""
    asked = [f"{name}=={version}" for name in ("psycopg", "psycopg-binary")]
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
    ]
    if subprocess.run([*pip, "--target", directory, *asked]).returncode != 0:
        return None
    [metadata] = directory.glob("psycopg-*.dist-info")
    return metadata.name.removeprefix("psycopg-").removesuffix(".dist-info")


def run(directory: Path, suites: tuple[str, ...]) -> int:
    environ = {**os.environ, "PYTHONPATH": str(directory)}
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-n0", *suites], cwd=TOP, env=environ).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the cancellation suites over psycopg's versions.")
    parser.add_argument("--slice", action="store_true", help="only the contract test")
    parser.add_argument("versions", nargs="*", default=versions(), help="[%(default)s]")
    chosen = parser.parse_args()
    failed: list[str] = []
    for asked in chosen.versions:
        with tempfile.TemporaryDirectory(prefix="penstock-psycopg-") as directory:
            version = install(asked, Path(directory))
            if version is None:
                return NOT_INSTALLED
            print(f"psycopg {version}", flush=True)
            if run(Path(directory), CONTRACT if chosen.slice else SUITES) != 0:
                failed.append(version)
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
