"""docs/durable*.md: named blocks are files that pytest runs, fragments parse, and lint finds what is bad."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap

import pytest

import penstock.durable
from penstock.durable.lint import lint
from tests.house.sources import SRC, TOP

PAGES = {path.stem: path.read_text() for path in sorted((TOP / "docs").glob("durable*.md"))}
PAGE = PAGES["durable"]
BLOCK = re.compile(r"^```python ?(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "passed"),
    [
        ("durable-quickstart", 1),
        pytest.param("durable-testing", 3, marks=pytest.mark.slow(reason="runs the page's programs")),
    ],
)
def test_the_files_of_a_page_run(tmp_path, page, passed):
    for name, text in BLOCK.findall(PAGE) + BLOCK.findall(PAGES[page]):
        if name:
            (tmp_path / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": f"{SRC}:{tmp_path}"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:trio", "-W", "error"]
    command += ["-o", "asyncio_default_fixture_loop_scope=function"]
    run = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{passed} passed" in run.stdout


@pytest.mark.parametrize("page", PAGES)
def test_every_block_parses_and_lint_finds_what_is_called_bad(page):
    for _, text in BLOCK.findall(PAGES[page]):
        code = textwrap.dedent(text)
        ast.parse(code)
        assert bool(lint(code)) == ("# bad" in code), code


def test_what_the_page_says_is_there_is_there():
    table = PAGE.split("## In a workflow function")[1].split("##")[0]
    named = {name for name in re.findall(r"\b([A-Za-z_]\w+)\(", table) if name not in ("timedelta", "start_soon")}
    named -= {"charge", "using", "pack", "print", "view"}  # `run.view`
    assert sorted(name for name in named if not hasattr(penstock.durable, name)) == []
    assert all(hasattr(penstock.durable, name) for name in ("Event", "Semaphore", "open_memory_channel"))


def test_what_the_page_says_is_missing_is_missing():
    missing = re.findall(r"`(\w+)`", PAGE.split("## What of Trio is missing")[1].split("A scope's")[0])
    assert len(missing) > 4
    assert [name for name in missing if hasattr(penstock.durable, name)] == []


def test_the_page_of_agents_quotes_the_example():
    def lines(text: str) -> str:
        return "\n".join(line.strip() for line in text.splitlines() if line.strip() and '"""' not in line)

    sources = [TOP / "examples" / "durable_agent.py", TOP / "examples" / "tests" / "test_durable_agent.py"]
    example = "\n".join(lines(path.read_text()) for path in sources)
    blocks = [lines(text) for _, text in BLOCK.findall(PAGES["durable-agents"])]
    quoted = [block for block in blocks if block in example]
    assert len(quoted) == len(blocks) - 2, "all but how to decide, and how to test"
