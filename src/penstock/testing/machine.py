"""Holds a test database to the machine: a trigger refuses every change of state that `core.rules.state` does not have.

So the tables there are the machine, also for what SQL does without asking Python, over the whole suite. A condition of
the trigger decides, so that a legal change calls no function.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from penstock.core.rules.state import (
    BIRTH_STATES,
    ENTERING,
    INSTANCE_TRANSITIONS,
    TOKEN_TRANSITIONS,
    InstanceStatus,
    TokenState,
    Trigger,
)

REFUSED = "XX901"
"""SQLSTATE of a transition that the tables lack."""


def guard_sql() -> str:
    """Makes the triggers, in a database that has the engine's tables."""
    entering = _transitions({*ENTERING, Trigger.END})
    within = _transitions(set(Trigger) - ENTERING)
    ending = {(source, target) for source, targets in INSTANCE_TRANSITIONS.items() for target in targets}
    return f"""
CREATE FUNCTION refuse_transition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% % may not go from % to %',
      TG_TABLE_NAME, NEW.id, to_jsonb(OLD) -> TG_ARGV[0], to_jsonb(NEW) -> TG_ARGV[0]
    USING ERRCODE = '{REFUSED}', DETAIL = concat(to_jsonb(OLD), ' to ', to_jsonb(NEW));
END $$;
CREATE TRIGGER token_birth BEFORE INSERT ON token FOR EACH ROW
  WHEN (NEW.state NOT IN ({", ".join(str(int(state)) for state in sorted(BIRTH_STATES))}))
  EXECUTE FUNCTION refuse_transition('state');
CREATE TRIGGER token_machine BEFORE UPDATE OF state, seq ON token FOR EACH ROW
  WHEN (NOT CASE WHEN OLD.seq = NEW.seq
                 THEN OLD.state = NEW.state OR (OLD.state, NEW.state) IN ({_pairs(within)})
                 ELSE (OLD.state, NEW.state) IN ({_pairs(entering)}) END)
  EXECUTE FUNCTION refuse_transition('state');
CREATE TRIGGER instance_birth BEFORE INSERT ON instance FOR EACH ROW
  WHEN (NEW.status <> {int(InstanceStatus.ACTIVE)})
  EXECUTE FUNCTION refuse_transition('status');
CREATE TRIGGER instance_machine BEFORE UPDATE OF status ON instance FOR EACH ROW
  WHEN (OLD.status <> NEW.status AND (OLD.status, NEW.status) NOT IN ({_pairs(ending)}))
  EXECUTE FUNCTION refuse_transition('status');
"""


def _transitions(triggers: Collection[Trigger]) -> set[tuple[TokenState, TokenState]]:
    """From and to."""
    rows = (TOKEN_TRANSITIONS[trigger] for trigger in triggers)
    return {(source, row.target) for row in rows for source in row.sources}


def _pairs(pairs: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"({int(source)}, {int(target)})" for source, target in sorted(pairs))
