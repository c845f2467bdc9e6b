"""A checkout whose hot path is compiled, as in its wheel (tools/compiled.py), for `pair` and `instructions`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def compiled(checkout: Path, directory: Path) -> Path:
    """``directory`` with `src` as of the checkout and its compiled modules in it; what is there already stays: name it
    by the commit. Minutes. Raises CalledProcessError."""
    if not directory.exists():
        new = directory.with_name(directory.name + ".new")
        shutil.rmtree(new, ignore_errors=True)  # of a build that was broken off
        subprocess.run([sys.executable, str(checkout / "tools" / "compiled.py"), str(new / "src")], check=True)
        new.rename(directory)
    return directory.resolve()
