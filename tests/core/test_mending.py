"""What people do to an instance, within one advance; their commands are in tests/engine/test_mending.py."""

from __future__ import annotations

from penstock.core.advance.event import StepSkipped
from penstock.core.rules.state import TokenState
from penstock.testing.definitions import definition, end, timer
from tests.core.machine import Machine
from tests.shapes import task


def test_a_parked_job_that_is_skipped_waits_for_nothing() -> None:
    """Also where it leads nowhere, and its token is kept."""
    machine = Machine(definition(task("a", None, boundaryEvents=[timer("end", "PT1H")]), end()))
    machine.park("a", signal="paid")
    machine.apply(StepSkipped(machine.at("a").id, "by hand", None))
    [token] = machine.tokens.values()
    assert (token.state, token.waits_for) == (TokenState.ENDED, None)
