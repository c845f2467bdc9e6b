"""The documentation as a site: it is built without a warning, and its links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.sources import TOP

pytestmark = [pytest.mark.site, pytest.mark.slow(reason="builds the whole site")]

LANGUAGE = (TOP / "docs" / "definitions.md").read_text(encoding="utf-8")
LOCAL = re.compile(r'(?:href|src)="(?!https?:|#|data:|mailto:)([^"#?]+)')


def test_the_site_is_built_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", tmp_path],
        cwd=TOP, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert (made.returncode, made.stderr) == (0, "")
    pages = {path for path in tmp_path.rglob("*.html") if path.name != "404.html"}
    assert {tmp_path / name for name in ("index.html", "ARCHITECTURE.html", "rest.html", "choosing.html")} <= pages
    broken = {
        f"{page.name}: {link}"
        for page in pages
        for link in LOCAL.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists()
    }
    assert broken == set()
    assert {page.name for page in pages if "```" in page.read_text(encoding="utf-8")} == set()
    named = re.findall(r"^```json ([\w-]+)\.json$", LANGUAGE, re.MULTILINE)
    pictured = re.findall(r'src="images/language/([\w-]+)\.svg"', (tmp_path / "definitions.html").read_text())
    assert (pictured, len(named) > 5) == (named, True)
