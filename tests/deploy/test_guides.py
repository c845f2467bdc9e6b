"""Pages that say that they run (`make guides`): what they say is understood, and the shell can read it."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.house.sources import TOP


@pytest.fixture(scope="module")
def guides() -> ModuleType:
    spec = importlib.util.spec_from_file_location("guides", TOP / "tools" / "guides.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_that_runs_is_a_program(guides: ModuleType) -> None:
    pages = {page.stem: page for page in guides.guides()}
    assert pages.keys() >= {
        "quickstart",
        "walkthrough",
        "kafka",
        "moving",
        "scaling",
        "upgrade-rehearsal",
        "other-languages",
    }
    for page in pages.values():
        said = page.read_text().count("\n<!-- runs")
        assert said == len(list(guides.blocks(page))), f"{page.name}: a comment that stands before no block"
        read = subprocess.run(["bash", "-n"], input=guides.script(page), capture_output=True, text=True, check=False)
        assert (read.returncode, read.stderr) == (0, ""), page.name


def run(script: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script], cwd=directory, capture_output=True, text=True, check=False, timeout=60
    )


def test_blocks_are_one_shell_that_ends_at_the_first_failure(guides: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '<!-- runs: background until "up" -->\n```sh\necho up\nsleep 60\n```\n\n'
        "<!-- runs -->\n```sh\nname=Ada\n```\n\n"
        '<!-- runs: as told.py prints "Ada 3" -->\n```python\nprint("Ada", 1 + 2)\n```\n\n'
        '<!-- runs: prints "Hello, Ada" -->\n```sh\necho "Hello, $name"\n```\n\n'
        '<!-- runs: saved as kept.mjs -->\n```js\nimport { nothing } from "nowhere";\n```\n\n'
        '<!-- runs: prints "nowhere" -->\n```sh\ncat kept.mjs\n```\n\n'
        "```sh\nfalse\n```\n"
    )
    done = run(guides.script(page), tmp_path)
    said = [
        "== page.md:1",
        "up",
        "== page.md:7",
        "== page.md:12",
        "Ada 3",
        "== page.md:17",
        "Hello, Ada",
        "== page.md:22",
        "== page.md:27",
        'import { nothing } from "nowhere";',
        "== page.md: done",
    ]
    assert (done.returncode, done.stdout.splitlines()) == (0, said), done.stderr
    page.write_text(page.read_text() + '\n<!-- runs: prints "no" -->\n```sh\necho yes\n```\n')
    assert run(guides.script(page), tmp_path).returncode == 1
    page.write_text("<!-- runs -->\n```sh\nfalse\n```\n\n<!-- runs -->\n```sh\necho on\n```\n")
    failed = run(guides.script(page), tmp_path)
    assert (failed.returncode, "on" in failed.stdout.split()) == (1, False)


@pytest.mark.parametrize("said", ["print", "as x.py", 'prints "a" until "b"', 'saved as x prints "a"'])
def test_what_is_not_understood_is_reported(guides: ModuleType, tmp_path: Path, said: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"<!-- runs: {said} -->\n```sh\ntrue\n```\n")
    with pytest.raises(guides.Wrong, match=r"page\.md:1"):
        guides.script(page)
