"""docs/testing.md: every block of it is a file, and pytest runs them all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.sources import SRC, TOP
from tests.testing.test_plugin import run_pytest

PAGE = (TOP / "docs" / "testing.md").read_text()
BLOCKS = re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.slow(reason="runs the page's tests")
def test_the_page_is_true(tmp_path: Path) -> None:
    files = {name: text for language, name, text in BLOCKS if language in ("python", "json")}
    assert "" not in files
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    result = run_pytest(tmp_path, "-p", "no:xdist", "-p", "no:trio")
    assert result.returncode == 0, result.stdout
    tests = sum(text.count("def test_") for text in files.values()) + 1  # one of them twice, under asyncio and Trio
    assert f"{tests} passed" in result.stdout
    alone = subprocess.run(
        [sys.executable, "-W", "error", "without_pytest.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert alone.stdout == "COMPLETED after 30 days, 0:00:00\n", alone.stderr
