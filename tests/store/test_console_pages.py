"""The console's pages keep to their buffers with 100,000 instances; `benchmarks.console_pages` has a million."""

from __future__ import annotations

import pytest

from benchmarks.console_pages import PAGES, measure

pytestmark = pytest.mark.slow(reason="large tables")


async def test_each_page_keeps_to_its_buffers(database_dsn: str) -> None:
    found = await measure(database_dsn, 100_000)
    assert found.keys() == PAGES.keys()
    assert {name: one for name, one in found.items() if not 0 < one.buffers <= PAGES[name].buffers} == {}
