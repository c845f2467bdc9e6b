"""Holds a test database to the machine: a trigger refuses every change of state that `core.state` does not have.

So the tables there are the machine, also for what SQL does without asking Python, over the whole suite. A condition of
the trigger decides, so that a legal change calls no function.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.state import ENTERING, INSTANCE_TRANSITIONS, TOKEN_TRANSITIONS, TokenState

REFUSED = "XX901"
"""SQLSTATE of a transition that the tables lack."""


def guard_sql() -> str:
    """Makes the triggers, in a database that has the engine's tables."""
    within, entering = _transitions(entering=False), _transitions(entering=True)
    # what comes to READY may be leased in the same statement: dispatched directly
    within |= {(source, TokenState.LOCKED) for source, target in within if target is TokenState.READY}
    within |= {(source, target) for source, target in entering if target is TokenState.ENDED}
    ending = {(source, target) for source, targets in INSTANCE_TRANSITIONS.items() for target in targets}
    return f"""
CREATE FUNCTION refuse_transition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% % may not go from % to %',
      TG_TABLE_NAME, OLD.id, to_jsonb(OLD) -> TG_ARGV[0], to_jsonb(NEW) -> TG_ARGV[0]
    USING ERRCODE = '{REFUSED}', DETAIL = to_jsonb(OLD)::text || ' to ' || to_jsonb(NEW)::text;
END $$;
CREATE TRIGGER token_machine BEFORE UPDATE OF state, seq ON token FOR EACH ROW
  WHEN (NOT CASE WHEN OLD.seq = NEW.seq
                 THEN OLD.state = NEW.state OR (OLD.state, NEW.state) IN ({_pairs(within)})
                 ELSE (OLD.state, NEW.state) IN ({_pairs(entering)}) END)
  EXECUTE FUNCTION refuse_transition('state');
CREATE TRIGGER instance_machine BEFORE UPDATE OF status ON instance FOR EACH ROW
  WHEN (OLD.status <> NEW.status AND (OLD.status, NEW.status) NOT IN ({_pairs(ending)}))
  EXECUTE FUNCTION refuse_transition('status');
"""


def _transitions(*, entering: bool) -> set[tuple[TokenState, TokenState]]:
    """From and to, of those that begin or end a step execution, or of the others."""
    return {
        (source, target)
        for trigger, (sources, target) in TOKEN_TRANSITIONS.items()
        if (trigger in ENTERING) is entering
        for source in sources
    }


def _pairs(pairs: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"({int(source)}, {int(target)})" for source, target in sorted(pairs))
