"""Several outcomes of one instance, one after the other, as one: what is to be written of all of them together.

Pure. How a field is merged stands at the field (`effect.Merge`); one without a rule is a TypeError when this is
imported. Rows that come and go between the first and the last are not written at all. No outcome but the last one may
end the instance or begin to undo it, and none but the first may reopen it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final, get_type_hints

from penstock.core.advance.effect import Effects, JobRef, MapEffects, Merge, MessageWait, TaskRef, Timer
from penstock.core.rules.state import Token

Rule = Callable[[Effects, Sequence[Effects], Sequence[str]], None]
"""Writes the fields of these names into the first argument, of all outcomes."""


def merged(outcomes: Sequence[Effects]) -> Effects:
    """Return one outcome with the instance as the last one left it."""
    if len(outcomes) == 1:
        return outcomes[0]
    assert not any(one.ended or one.undoing for one in outcomes[:-1])
    out = Effects(outcomes[-1].instance)
    for rule, names in _NAMES.items():
        _RULES[rule](out, outcomes, names)
    return out


def token_states(tokens: Iterable[Token], effects: Effects) -> list[Token]:
    """Return all tokens of an instance after an outcome, in order of id."""
    after = {token.id: token for token in tokens}
    after |= {token.id: token for token in (*effects.inserted, *effects.updated)}
    for id in effects.deleted:
        del after[id]
    return [after[id] for id in sorted(after)]


def _names_by_rule() -> Mapping[Merge, Sequence[str]]:
    found: dict[Merge, list[str]] = {}
    for name, hint in get_type_hints(Effects, include_extras=True).items():
        rules = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Merge)]
        if len(rules) != 1:
            raise TypeError(f"Effects.{name} needs one rule for merging, as Annotated[..., Merge.JOINED]")
        found.setdefault(rules[0], []).append(name)
    return found


def _of(index: int) -> Rule:
    def take(out: Effects, outcomes: Sequence[Effects], names: Sequence[str]) -> None:
        for name in names:
            setattr(out, name, getattr(outcomes[index], name))

    return take


def _any(out: Effects, outcomes: Sequence[Effects], names: Sequence[str]) -> None:
    for name in names:
        setattr(out, name, any(getattr(one, name) for one in outcomes))


def _sum(out: Effects, outcomes: Sequence[Effects], names: Sequence[str]) -> None:
    for name in names:
        setattr(out, name, sum(getattr(one, name) for one in outcomes))


def _joined(out: Effects, outcomes: Sequence[Effects], names: Sequence[str]) -> None:
    for name in names:
        for one in outcomes:
            if rows := getattr(one, name):
                getattr(out, name).extend(rows)


def _maps(out: Effects, outcomes: Sequence[Effects], _: Sequence[str]) -> None:
    for one in outcomes:
        if one.maps is not None:
            out.maps = out.maps or MapEffects()
            out.maps.follow(one.maps)


def _tokens(out: Effects, outcomes: Sequence[Effects], _: Sequence[str]) -> None:
    inserted: dict[int, Token] = {}
    updated: dict[int, Token] = {}
    for one in outcomes:
        inserted |= {token.id: token for token in one.inserted}
        for token in one.updated:
            (inserted if token.id in inserted else updated)[token.id] = token
        for id in one.deleted:
            updated.pop(id, None)
            if inserted.pop(id, None) is None:
                out.deleted.append(id)
    out.inserted, out.updated = [*inserted.values()], [*updated.values()]


def _net(key: Callable[..., Hashable]) -> Rule:
    """For two fields: what has come, and what is gone, of what each outcome took away and then brought."""

    def balance(out: Effects, outcomes: Sequence[Effects], names: Sequence[str]) -> None:
        has_come, is_gone = names
        gone: dict[Hashable, object] = {}
        come: dict[Hashable, object] = {}
        for one in outcomes:
            gone |= {key(row): row for row in getattr(one, is_gone) if come.pop(key(row), None) is None}
            come |= {key(row): row for row in getattr(one, has_come) if gone.pop(key(row), None) is None}
        setattr(out, has_come, [*come.values()])
        setattr(out, is_gone, [*gone.values()])

    return balance


def _job(job: JobRef) -> Hashable:
    return job.token_id, job.place


def _task(task: TaskRef) -> Hashable:
    return task.token_id, task.seq


def _subscriptions(out: Effects, outcomes: Sequence[Effects], _: Sequence[str]) -> None:
    come: dict[tuple[int, int], MessageWait] = {}
    for one in outcomes:
        out.unsubscribed += [key for key in one.unsubscribed if come.pop(key, None) is None]
        come |= {(each.token_id, each.seq): each for each in one.subscribed}
    out.subscribed = [*come.values()]


def _timers(out: Effects, outcomes: Sequence[Effects], _: Sequence[str]) -> None:
    armed: dict[tuple[int, int, int], Timer] = {}
    for one in outcomes:
        gone = set(one.disarmed)
        out.disarmed += one.disarmed
        out.fired += one.fired
        for key in [key for key in armed if key[:2] in gone]:
            del armed[key]
        for timer in one.fired:
            armed.pop((timer.token_id, timer.seq, timer.index), None)
        armed |= {(timer.token_id, timer.seq, timer.index): timer for timer in one.armed}
    out.armed = [*armed.values()]


_RULES: Final[Mapping[Merge, Rule]] = {
    Merge.FIRST: _of(0),
    Merge.LAST: _of(-1),
    Merge.ANY: _any,
    Merge.SUM: _sum,
    Merge.JOINED: _joined,
    Merge.MAPS: _maps,
    Merge.TOKENS: _tokens,
    Merge.JOBS: _net(_job),
    Merge.PARKED: _net(int),
    Merge.TASKS: _net(_task),
    Merge.TIMERS: _timers,
    Merge.SUBSCRIPTIONS: _subscriptions,
}
_NAMES: Final = _names_by_rule()
