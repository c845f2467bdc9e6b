"""A scripted engine behind the REST application."""

from __future__ import annotations

import pytest

from tests.rest.scripted import Rest, ScriptedEngine


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def rest(engine: ScriptedEngine) -> Rest:
    return Rest(engine)
