"""What the modeller leaves alone stays byte for byte; its picture has the ways that `penstock draw` has."""

from __future__ import annotations

import json

from penstock.testing.definitions import linear
from tests.console.round_trip import differences, other_ways, randomly, written

RANDOM = 150
"""`python -m tests.console.round_trip 1000 --tests tests/core` is the whole."""


def test_definitions_keep_every_byte_that_no_edit_is_about() -> None:
    nothing_said: list[object] = ["", None, {}]
    empty = [json.dumps(linear(2, definition_id="few") | {"metadata": each}) for each in nothing_said]
    texts = [*written(), *empty, *randomly(RANDOM)]
    assert len(texts) > RANDOM + 10
    assert differences(texts) == []


def test_what_differs_is_reported() -> None:
    """The check itself sees a way that is missing."""
    (text,) = randomly(1)
    assert other_ways(text, []) != []
