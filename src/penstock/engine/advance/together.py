"""Which items of one instance are decided in one transaction, one after the other, and on what.

What the first one did to the instance is what the next one is decided on, as if it had been written and read again.
That holds where the next one is about an execution that none before has touched: what is known of it from the database
is still true. All others, and what comes behind them, are left for the next transaction, so that the order stays.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.core.advance.effect import Effects
from penstock.core.advance.merging import token_states
from penstock.engine.advance.command import Command
from penstock.store.rows.full_path import LockedInstance

VARIABLES_MAX_BYTES: Final = 65_536
"""Larger ones are not written over here: 0.3 ms each time."""


class Together:
    """``instances`` and ``variables`` (JSON text) are kept as what has been decided leaves them."""

    def __init__(self, instances: dict[int, LockedInstance], variables: dict[int, str]) -> None:
        self._instances = instances
        self._variables = variables
        self._touched: dict[int, set[int]] = {}
        self._closed: set[int] = set()

    def may_join(self, item: Command) -> bool:
        """Return whether the item is to be decided now. If not, no later one of its instance is."""
        instance = item.instance
        touched = self._touched.get(instance)
        if instance not in self._closed and (touched is None or (item.token is not None and item.token not in touched)):
            return True
        self._closed.add(instance)
        return False

    def is_first(self, instance: int) -> bool:
        """Return whether nothing of the instance has been decided yet."""
        return instance not in self._touched

    def put_off(self, item: Command) -> None:
        """The item has to read what is decided and not written: it comes in the next transaction."""
        self._closed.add(item.instance)

    def go_on(self, item: Command, effects: Effects | None) -> None:
        """The item was decided; ``effects`` None: it writes something else than an advance does."""
        instance = item.instance
        if effects is None or effects.ended or effects.reopened or not self._write_over(instance, effects):
            self._closed.add(instance)
            return
        locked = self._instances[instance]
        used = set(effects.consumed_signals)
        signals = {step: [signal for signal in kept if signal[0] not in used] for step, kept in locked.signals.items()}
        tokens = token_states(locked.tokens, effects)
        kept = locked.kept if effects.maps is None else locked.kept.after(effects.maps)
        self._instances[instance] = locked._replace(
            instance=effects.instance, tokens=tokens, signals=signals, kept=kept
        )
        touched = self._touched.setdefault(instance, set())
        touched |= {token.id for token in (*effects.inserted, *effects.updated)}
        touched.update(effects.deleted)

    def _write_over(self, instance: int, effects: Effects) -> bool:
        """Return whether the variables are now what they are after it."""
        text = self._variables.get(instance)
        outputs = [row.output for row in effects.history if row.output is not None]
        if text is None or not outputs:
            return True
        if len(text) + sum(map(len, outputs)) > VARIABLES_MAX_BYTES:
            return False
        values: dict[str, Any] = msgspec.json.decode(text)
        for output in outputs:
            values.update(msgspec.json.decode(output))
        self._variables[instance] = msgspec.json.encode(values).decode()
        return True
