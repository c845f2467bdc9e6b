"""docs/durable.md: its named blocks are files that pytest runs, its fragments parse, and lint finds nothing in them."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap

import penstock.durable
from penstock.durable.lint import lint
from tests.house.sources import SRC, TOP

PAGE = (TOP / "docs" / "durable.md").read_text()
BLOCKS = re.findall(r"^```python ?(\S*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_files_of_the_page_run(tmp_path):
    for name, text in BLOCKS:
        if name:
            (tmp_path / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": f"{SRC}:{tmp_path}"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    assert "2 passed" in run.stdout


def test_every_block_parses_and_lint_has_nothing_against_it():
    assert len(BLOCKS) > 3
    for _, text in BLOCKS:
        assert lint(textwrap.dedent(text).replace("    try:", "try:") if text.startswith("    ") else text) == []
        ast.parse(textwrap.dedent(text))


def test_what_the_page_says_is_there_is_there():
    table = PAGE.split("## In a body")[1].split("##")[0]
    named = {name for name in re.findall(r"\b([A-Za-z_]\w+)\(", table) if name not in ("timedelta", "start_soon")}
    named -= {"charge", "using", "pack", "print"}
    assert sorted(name for name in named if not hasattr(penstock.durable, name)) == []
    assert all(hasattr(penstock.durable, name) for name in ("Event", "Semaphore", "open_memory_channel"))


def test_what_the_page_says_is_missing_is_missing():
    missing = re.findall(r"`(\w+)`", PAGE.split("## What of Trio is missing")[1].split("A scope's")[0])
    assert len(missing) > 4
    assert [name for name in missing if hasattr(penstock.durable, name)] == []
