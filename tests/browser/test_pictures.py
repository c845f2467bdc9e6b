"""The pages that README and docs/console.md show can be made, wide and narrow, and their pictures are there."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests import postgres
from tests.browser.pictures import FOLDER, PAGES, SIZES, THEMES, name_of, show, take
from tests.browser.stage import Furnished, furnish
from tests.browser.test_console import Visitor, violations
from tests.runtime.engine_process import EngineProcess

TOP = Path(__file__).resolve().parents[2]
ALL_MAX_BYTES = 3_000_000
REFERENCE = re.compile(r'(?:\]\(|src="|srcset=")([^")]*\.webp)')


@pytest.fixture(scope="module")
def stage(postgres_server: postgres.PostgresServer) -> Generator[tuple[EngineProcess, Furnished]]:
    with postgres_server.database(postgres.apply_schema) as dsn, EngineProcess(dsn) as engine:
        engine.wait_ready()
        with furnish(engine) as made:
            yield engine, made


@pytest.mark.browser
@pytest.mark.slow(reason="takes a picture of every page")
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("width", "height"), SIZES.items())
def test_every_pictured_page_is_whole_and_keeps_nobody_out(
    page: Any, stage: tuple[EngineProcess, Furnished], width: int, height: int, theme: str
) -> None:
    engine, made = stage
    visitor = Visitor(page, engine)
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": width, "height": height})
    for name in PAGES:
        show(page, visitor.home, name, made)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width, name
        if width == max(SIZES):
            assert violations(page) == [], name
        assert take(page)[8:12] == b"WEBP"
    assert visitor.complaints == []


def test_pictures_are_shown_once_each_and_small() -> None:
    pages = {TOP / "docs/console.md", TOP / "README.md"}
    shown = {(page.parent / name).resolve() for page in pages for name in REFERENCE.findall(page.read_text())}
    expected = {FOLDER / name_of(name, width, theme) for name in PAGES for width in SIZES for theme in THEMES}
    assert shown == expected == set(FOLDER.glob("*"))
    assert sum(path.stat().st_size for path in expected) <= ALL_MAX_BYTES
