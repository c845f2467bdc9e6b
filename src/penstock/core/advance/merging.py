"""Several outcomes of one instance, one after the other, as one: what is to be written of all of them together.

Pure. How a field is merged stands at the field (`effect.Merge`); one without a rule is a TypeError when this is
imported. Rows that come and go between the first and the last are not written at all. No outcome but the last one may
end the instance or begin to undo it, and none but the first may reopen it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from penstock.core.advance.effect import Effects, JobRef, MapEffects, MessageWait, TaskRef, Timer
from penstock.core.rules.state import Token

T = TypeVar("T")


def merged(outcomes: Sequence[Effects]) -> Effects:
    """Return one outcome with the instance as the last one left it."""
    if len(outcomes) == 1:
        return outcomes[0]
    last = outcomes[-1]
    out = Effects(last.instance, ended=last.ended, dead_end=last.dead_end, chain=last.chain, snapshot=last.snapshot)
    out.undoing, out.ended_as = last.undoing, last.ended_as
    out.reopened = outcomes[0].reopened
    out.turned = any(one.turned for one in outcomes)
    inserted: dict[int, Token] = {}
    updated: dict[int, Token] = {}
    for one in outcomes:
        assert one is last or not (one.ended or one.undoing)
        inserted |= {token.id: token for token in one.inserted}
        for token in one.updated:
            (inserted if token.id in inserted else updated)[token.id] = token
        for id in one.deleted:
            updated.pop(id, None)
            if inserted.pop(id, None) is None:
                out.deleted.append(id)
        out.history += one.history
        out.released += one.released
        out.audit += one.audit
        out.consumed_signals += one.consumed_signals
        out.calls += one.calls
        out.abandoned += one.abandoned
        out.received += one.received
        out.item_outputs += one.item_outputs
        out.mapped += one.mapped
        out.raw_kept = out.raw_kept or one.raw_kept
        out.undone += one.undone
        out.freed += one.freed
        out.steps_run += one.steps_run
        if one.maps is not None:
            out.maps = out.maps or MapEffects()
            out.maps.follow(one.maps)
    out.inserted, out.updated = [*inserted.values()], [*updated.values()]
    out.dequeued, out.queued = _net([(one.dequeued, one.queued) for one in outcomes], _job)
    out.closed, out.opened = _net([(one.closed, one.opened) for one in outcomes], _task)
    out.unparked, out.parked = _net([(one.unparked, one.parked) for one in outcomes], int)
    _subscriptions(out, outcomes)
    _timers(out, outcomes)
    return out


def token_states(tokens: Iterable[Token], effects: Effects) -> list[Token]:
    """All tokens of an instance after an outcome, in order of id."""
    after = {token.id: token for token in tokens}
    after |= {token.id: token for token in (*effects.inserted, *effects.updated)}
    for id in effects.deleted:
        del after[id]
    return [after[id] for id in sorted(after)]


def _job(job: JobRef) -> Hashable:
    return job.token_id, job.place


def _task(task: TaskRef) -> Hashable:
    return task.token_id, task.seq


def _net(steps: Iterable[tuple[list[T], list[T]]], key: Callable[[T], Hashable]) -> tuple[list[T], list[T]]:
    """What is gone and what has come, of what each outcome took away and then brought."""
    gone: dict[Hashable, T] = {}
    come: dict[Hashable, T] = {}
    for taken, brought in steps:
        gone |= {key(row): row for row in taken if come.pop(key(row), None) is None}
        come |= {key(row): row for row in brought if gone.pop(key(row), None) is None}
    return [*gone.values()], [*come.values()]


def _subscriptions(out: Effects, outcomes: Sequence[Effects]) -> None:
    come: dict[tuple[int, int], MessageWait] = {}
    for one in outcomes:
        out.unsubscribed += [key for key in one.unsubscribed if come.pop(key, None) is None]
        come |= {(each.token_id, each.seq): each for each in one.subscribed}
    out.subscribed = [*come.values()]


def _timers(out: Effects, outcomes: Sequence[Effects]) -> None:
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
