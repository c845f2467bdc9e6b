"""What of conditions, and of expressions that have to give a certain type, can never be as it is meant.

Old definitions run unchanged, so none of it is refused: a condition that fails is harmless as long as nothing comes to
it. Relies on `expression.forecast`, which is right for all variables. Must not say what may be true for some of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal

from penstock.core.expression import Expression, Foreseen, any_of
from penstock.core.graph.definition import LateBackoff, Step
from penstock.core.parsing.strict_json import join_path

ConditionKind = Literal["NEVER_TRUE", "NO_OTHERWISE", "NEVER_REACHED", "FAILS"]
FoundHints = tuple[str, str, ConditionKind]
"""The path, the words and the kind of a hint."""
_SHOWN_CHARS: Final = 60
_FAILS: Final = "the instance fails where it is evaluated"
_TIME: Final = frozenset({"a string", "a date"})
_TEXT: Final = frozenset({"a string", "a date", "a duration", "a decimal"})
"""What leaves an expression as text."""
_LASTING: Final = frozenset({"a string", "a number", "a duration"})


class ConditionHints:
    """Of all steps of one definition. Each different expression is looked at once."""

    def __init__(self) -> None:
        self._foreseen: dict[str, Foreseen] = {}

    def of(self, step: Step) -> Iterator[FoundHints]:
        """In the order of the step's fields."""
        yield from self._of_conditions(step)
        for place, source, kinds, wanted in _typed(step):
            if source.is_template:
                continue
            forecast = self._of(source).forecast
            path = f"steps[{step.index}].{place}"
            if not forecast.kinds:
                yield path, f"always fails: {forecast.fails}; {_FAILS}", "FAILS"
            elif not forecast.kinds & kinds:
                yield path, f"gives {any_of(forecast.kinds)}, and {wanted} is needed: {_FAILS}", "FAILS"

    def _of(self, source: Expression) -> Foreseen:
        found = self._foreseen.get(source.source)
        if found is None:
            found = self._foreseen[source.source] = Foreseen(source.source)
        return found

    def _of_conditions(self, step: Step) -> Iterator[FoundHints]:
        field = f"steps[{step.index}].conditionalNextSteps"
        before: dict[object, str] = {}
        over: str | None = None
        reported: ConditionKind | None = None
        for condition, _ in step.conditions:
            path, shown = join_path(field, condition.source), _shown(condition.source)
            if over is not None:
                yield path, f"never reached: {over}", "NEVER_REACHED"
                continue
            foreseen = self._of(condition)
            forecast, reported = foreseen.forecast, None
            if not forecast.kinds:
                over, reported = f"{shown} before it always fails", "FAILS"
                yield path, f"always fails: {forecast.fails}; {_FAILS}", reported
            elif not forecast.may_be_bool:
                over, reported = f"{shown} before it is never true or false", "FAILS"
                yield path, f"gives {any_of(forecast.kinds)}, never true or false: {_FAILS}", reported
            elif forecast.is_always(False):
                reported = "NEVER_TRUE"
                until = "" if condition.names else " until it has a condition"
                yield path, f"never true: nothing goes this way{until}", reported
            elif forecast.is_always(True):
                over = f"{shown} before it is always true"
            elif foreseen.form in before:
                reported = "NEVER_REACHED"
                yield path, f"never reached: {before[foreseen.form]} before it is the same condition", reported
            elif foreseen.opposite in before:
                over = f"one of {before[foreseen.opposite]} and {shown} before it is always true"
            before.setdefault(foreseen.form, shown)
        if step.conditions and over is None and reported is None:
            text = "where no condition is true the instance fails; a last one that is `true` takes the rest"
            yield field, text, "NO_OTHERWISE"


def _typed(step: Step) -> Iterable[tuple[str, Expression, frozenset[str], str]]:
    """Where expressions have to give values of certain types, which these are, and in words."""
    found: list[tuple[str, object, frozenset[str], str]] = [
        ("duration", step.duration, _LASTING, "a duration"),
        ("until", step.until, _TIME, "a time"),
    ]
    found += [(f"boundaryEvents[{at}].duration", one.seconds, _LASTING, "a duration") for at, one in step.timers]
    found.append(("timeout", step.timeout_s, _LASTING, "a duration"))
    if isinstance(step.backoff, LateBackoff):
        found.append(("retryBackoff.initial", step.backoff.initial, _LASTING, "a duration"))
        found.append(("retryBackoff.max", step.backoff.longest, _LASTING, "a duration"))
    if step.message is not None:
        found.append(("message.correlationKey", step.message.key, _TEXT | {"a number"}, "a text"))
    if step.callee is not None:
        found.append(("businessKey", step.callee.business_key, _TEXT | {"nil"}, "a text"))
    if step.turn is not None:
        found.append(("flowKey", step.turn.key, _TEXT, "a text"))
        found.append(("priority", step.turn.priority, frozenset({"a number"}), "a number"))
    if step.for_each is not None:
        found.append(("forEach.items", step.for_each.items, frozenset({"an array"}), "an array"))
        found.append(("forEach.until", step.for_each.until, frozenset({"a bool"}), "true or false"))
    return [(place, source, kinds, wanted) for place, source, kinds, wanted in found if isinstance(source, Expression)]


def _shown(source: str) -> str:
    return f"`{source if len(source) <= _SHOWN_CHARS else source[: _SHOWN_CHARS - 1] + '…'}`"
