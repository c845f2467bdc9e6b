"""What is written about the project is true: README commands, generated pages, changelog, make targets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from typing import Any

from penstock.settings import SETTINGS
from tests.house.sources import PACKAGE, TOP
from tools import states

WORKER_METRICS = PACKAGE / "worker" / "metrics.py"


def sh_blocks() -> list[list[str]]:
    text = (TOP / "README.md").read_text()
    return [block.strip().splitlines() for block in re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)]


def test_the_readmes_first_two_commands_are_short_and_need_python():
    demo, test = sh_blocks()[:2]
    assert demo == ["python3 bootstrap.py demo"]
    assert test == ["python3 bootstrap.py test -q"]


def test_diagrams_of_states_are_drawn_from_their_tables():
    page = states.PAGE.read_text()
    assert states.with_diagrams(page) == page, "make docs"
    assert "CALLING --> STUCK" in page


def test_ci_runs_the_readmes_second_command():
    script = TOP / ".ci" / "run"
    assert os.access(script, os.X_OK)
    awk = re.search(r"awk '([^']+)' README\.md", script.read_text())
    assert awk
    taken = subprocess.run(["awk", awk[1], "README.md"], cwd=TOP, capture_output=True, text=True, check=True).stdout
    assert taken.splitlines() == sh_blocks()[1]


def test_pages_that_come_from_the_code_are_not_stale():
    check = subprocess.run([sys.executable, "tools/docs.py", "--check"], cwd=TOP, capture_output=True, text=True)
    assert (check.returncode, check.stdout) == (0, "")


def test_the_changelog_starts_with_what_is_not_released():
    headings = re.findall(r"^## (.+)$", (TOP / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"


def test_make_help_lists_every_target():
    makefile = (TOP / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert targets
    shown = subprocess.run(["make", "help"], cwd=TOP, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"make (\w+)", shown) == targets[1].split()


def test_links_between_pages_lead_somewhere():
    broken = [
        f"{page.name}: {target}"
        for page in [*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md")]
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        if not target.startswith("http") and not (page.parent / target).exists()
    ]
    assert broken == []


METRIC = re.compile(r"`((?:penstock|workflow|engine|job|http|grpc)_[a-z_]+_(?:total|seconds|items|bytes))\b")


OF_OTHERS = re.compile("workflow_sdk_|workflow_engine_kafka_consumer_lag_")
"""Metrics of the engine that docs/moving.md is about."""


def test_every_metric_that_a_page_names_is_one():
    known = set(re.findall(r"^\| `(\w+)`", (TOP / "docs" / "metrics.md").read_text(), re.MULTILINE))
    known |= {f"penstock_worker_{part}" for part in re.findall(r'"penstock_worker_(\w+)"', WORKER_METRICS.read_text())}
    families = {name.removesuffix("_total") for name in known}
    unknown = {
        f"{page.name}: {name}"
        for page in [*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md")]
        for name in METRIC.findall(page.read_text())
        if not OF_OTHERS.match(name)
        and name not in known
        and name.removesuffix("_total") not in families
        and name not in SETTINGS
    }
    assert unknown == set()


def test_every_extra_that_a_page_tells_to_install_is_one():
    extras = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    reported = {
        extra
        for page in [*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md"), *PACKAGE.rglob("*.py")]
        for named in re.findall(r"penstock-workflow\[([a-z,]+)\]", page.read_text())
        for extra in named.split(",")
    }
    assert reported - extras == set()
    assert reported >= {"engine", "kafka", "testing"}


def test_the_quickstart_is_python_that_runs_without_the_engines_packages():
    text = (TOP / "docs" / "quickstart.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": "quickstart"}
    exec(compile(program.replace("anyio.run(main)", ""), "quickstart.md", "exec"), names)
    assert "greeting.say" in names["worker"].handlers


def test_each_report_of_the_log_stands_once_and_has_a_test_that_is_there():
    log = (TOP / "tests" / "reports" / "LOG.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\| .*`$|^\| .*\|$", log, re.MULTILINE)
    ]
    reports = [row for row in rows if row[-1].startswith("`")]
    assert len(reports) >= 64
    missing = [row for row in reports if not (TOP / "tests" / "reports" / row[-1].strip("`")).is_file()]
    assert missing == []
    for row in reports:  # of "Prefect 8880" the number is told where it is tried
        number = re.search(r"\d+$", row[0])
        assert number is None or number[0] in (TOP / "tests" / "reports" / row[-1].strip("`")).read_text(), row
    sources = [row[0] for row in reports if len(row) == 5]
    assert sorted(sources) == sorted(set(sources))
