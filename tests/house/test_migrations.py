"""A migration lands with what an engine of the version before has left in its database, for it to bring over."""

from __future__ import annotations

import gzip
import re

from tests.house.sources import PACKAGE, TOP

KEPT = TOP / "tests" / "store" / "versions"


def test_each_version_before_the_newest_has_left_a_database() -> None:
    """If not: `.venv/bin/python -m tests.store.populate` in a checkout of the last commit with that version."""
    newest = max(int(path.name[:4]) for path in (PACKAGE / "store" / "migrations").glob("*.sql"))
    left = {int(path.name.removesuffix(".sql.gz")) for path in KEPT.iterdir()}
    missing = sorted(set(range(2, newest)) - left)  # version 1 has its own folder
    assert missing == []


def test_what_a_version_left_says_which_it_was() -> None:
    for path in KEPT.iterdir():
        text = gzip.decompress(path.read_bytes()).decode()
        found = re.findall(r"^INSERT INTO penstock_schema \(version\) VALUES \((\d+)\)", text, re.MULTILINE)
        assert found == [path.name.removesuffix(".sql.gz")], path.name
        assert "INSERT INTO public.token " in text, f"{path.name} holds no work"
