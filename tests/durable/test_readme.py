"""The first example of the README, as a new user has it: a clean virtual environment, and kill -9 in the middle."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.durable.programs import JOURNAL, own_directory, rows, until
from tests.house.sources import TOP
from tests.installation import build_wheel, install


@pytest.fixture
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    venv = tmp_path_factory.mktemp("engine") / "venv"
    install(build_wheel(tmp_path_factory.mktemp("source")), venv, "engine")
    return venv / "bin" / "python"


@pytest.fixture
def directory() -> Generator[Path]:
    yield from own_directory()


def first_example() -> str:
    found = re.search(r"```python\n(.*?)```", (TOP / "README.md").read_text(), re.DOTALL)
    assert found is not None
    text = found[1]
    assert len([line for line in text.splitlines() if line]) <= 12
    assert 'sleep("2s")' in text
    return text.replace('sleep("2s")', 'sleep("10s")')  # so that the kill comes before its end


@pytest.mark.slow(reason="kills a program and starts it again")
def test_the_first_example_goes_on_after_a_kill(python: Path, directory: Path):
    (directory / "hello.py").write_text(first_example())
    environment = {"WE_DATA_DIR": str(directory / "data"), "HOME": str(directory), "PATH": "/usr/bin:/bin"}
    first = subprocess.Popen([python, "hello.py"], cwd=directory, env=environment, stdout=subprocess.PIPE, text=True)
    with first:
        until(lambda: rows(directory, JOURNAL) == [(1, "/0", "greet")], first)
        first.send_signal(signal.SIGKILL)
        said, _ = first.communicate()
    assert said == ""
    again = subprocess.run(
        [python, "hello.py"], cwd=directory, env=environment, capture_output=True, text=True, timeout=55, check=False
    )
    assert again.stdout == "Hello, Ada!\n", again.stderr
    assert "penstock: run ada goes on" in again.stderr
    assert again.returncode == 0
