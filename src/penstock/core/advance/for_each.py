"""What a forEach does within one advance: its items, one after the other, and what is gathered of them.

The step's token waits as FORKED; each item under way has a token of its own, which goes on with the next item. Boundary
events are the whole step's. What an item is done with is no variable of the instance: only what `collect` makes of it
is kept, as a row of its own, and gathered once when all are done. Pure; `advance.py` says when.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property, partial
from typing import Final, NamedTuple, cast

import msgspec
from msgspec import structs

from penstock.core.advance.effect import MapEffects, MapState
from penstock.core.advance.evaluation import EvaluationFailed, Evaluator, shown
from penstock.core.expression import ExpressionError, ExpressionLimits
from penstock.core.expression.work import BYTES_PER_STEP, TooMuchWork
from penstock.core.graph.definition import ForEach, Step
from penstock.core.rules.state import CONTINUE_TIMER, HistoryKind, Token
from penstock.wire.error_code import BAD_ITEMS

ITEMS_MAX_COUNT: Final = 10_000
ITEMS_MAX_BYTES: Final = 4 * 1024 * 1024
"""Of their variables as JSON text."""
ITEMS_LIMITS: Final = ExpressionLimits(result_bytes=ITEMS_MAX_BYTES)
STARTED_MAX_COUNT: Final = 100
"""Items that one advance begins: further ones go on in an advance of their own."""
ITEM_WORK: Final = 5
"""Steps of work for each item of the list."""


class KeptItems(NamedTuple):
    """What is known of the forEach steps of an instance: how far each is, by its token; by token and item variables, as
    far as they were read, and what was collected in this transaction."""

    states: dict[int, MapState]
    items: dict[tuple[int, int], bytes]
    collected: dict[tuple[int, int], bytes]

    def after(self, maps: MapEffects) -> KeptItems:
        """What is known once that was done."""
        ended = set(maps.ended)
        states = {token: state for token, state in self.states.items() if token not in ended}
        collected = {key: value for key, value in self.collected.items() if key[0] not in ended}
        return KeptItems(states | maps.states, self.items | maps.variables, collected | maps.results)


NO_ITEMS: Final = KeptItems({}, {}, {})


class ItemsNeeded(Exception):
    """The variables of items from this one on have to be read: then advance again."""

    def __init__(self, token: int, first: int) -> None:
        super().__init__()
        self.token = token
        self.first = first


class ResultsNeeded(Exception):
    """What was collected for this token has to be read: then advance again."""

    def __init__(self, token: int) -> None:
        super().__init__()
        self.token = token


class RawNeeded(Exception):
    """The raw result of the row at this position has to be read: then advance again."""

    def __init__(self, position: int) -> None:
        super().__init__()
        self.position = position


class Items(Evaluator):
    """An `Evaluator` that knows the items of forEach steps."""

    _begun = 0  # items, in this advance

    @cached_property
    def _ended(self) -> dict[int, MapState]:
        """Those that this advance has ended, by token."""
        return {}

    def items_counted(self, token: Token) -> bytes | None:
        if not self.is_map(token):
            return None
        maps = self._maps()
        state = self._ended.get(token.id) or maps.states.get(token.id) or self.inputs.maps.get(token.id)
        if state is None:  # it had no list
            return None
        counts = {"total": state.total, "completed": state.done, "failed": state.failed, "running": 0}
        return msgspec.json.encode(counts)

    def forget_raw(self, token: Token) -> None:
        """Its raw result is mapped, or never will be. A handler is told it, where there is one."""
        if token.raw is not None and self.definition.steps[token.step].compensation is None:
            self.out.mapped.append(token.raw)
        token.raw = None

    def whole(self, token: Token) -> Token:
        """Of an item the token of its forEach; any other token itself."""
        if token.item is None:
            return token
        assert token.parent_id is not None
        return self.tokens[token.parent_id]

    # -- the whole

    def begin_map(self, token: Token, step: Step, each: ForEach) -> None:
        """Begin its first items. Raises StepFailed."""
        rows = self._read_items(step, each)
        delays_s = self.boundary_delays_s(token, step) if rows else {}
        if not rows:
            self.count_automatic(step)
        maps = self._maps()
        maps.begun[token.id] = rows
        maps.states[token.id] = MapState(len(rows))
        self._ended.pop(token.id, None)
        if not rows:
            self.finish_map(token)
            return
        self.arm_all(token, delays_s)
        self.begin_items(token)

    def begin_items(self, whole: Token) -> None:
        """As many as may be under way, and as this advance may begin."""
        each, state = self._each(whole), self._state(whole)
        while state.next < state.total and whole.pending - whole.arrived < each.parallel:
            if not self._may_begin():
                self._go_on_later(whole)
                break
            self._begin_item(whole, self.new_token(whole.step, parent_id=whole.id, side=whole.side), state)
        self.mark_changed(whole)

    def go_on(self, whole: Token) -> None:
        """Its CONTINUE_TIMER: further items, if those that were done since have not begun all of them."""
        whole.pending, whole.arrived = whole.pending - 1, 0
        self.begin_items(whole)
        if not whole.pending:
            self.finish_map(whole)

    def resume_map(self, whole: Token) -> None:
        """A `retry` came back to it: another execution of the step, with the items that it had. Raises StepFailed."""
        step = self.definition.steps[whole.step]
        self.reentering[whole.id] = whole.entry
        self.begin_execution(whole, step)
        self.arm_all(whole, self.boundary_delays_s(whole, step))
        if whole.arrived:
            self.arm(whole, CONTINUE_TIMER, 0)

    def finish_map(self, whole: Token) -> None:
        """All is done: what was collected becomes a list, with null for items that were skipped. All that is kept of it
        goes. Raises ResultsNeeded."""
        each, state, maps = self._each(whole), self._state(whole), self._maps()
        output = None
        if each.into is not None:
            kept = {item: value for (token, item), value in maps.results.items() if token == whole.id}
            if whole.id not in maps.begun:
                if whole.id not in self.inputs.results:
                    raise ResultsNeeded(whole.id)
                kept = {**self.inputs.results[whole.id], **kept}
            if whole.id not in maps.begun:  # as if it came now: once for each, and never too much
                self.work.begin_anew()
                self.work.spend(min(state.kept_bytes // BYTES_PER_STEP, self.work.limit // 2))
            values = b",".join(kept.get(item, b"null") for item in range(state.total))
            output = b"{%b:[%b]}" % (msgspec.json.encode(each.into), values)
        self.forget_map(whole)
        output = self.merge(whole, output)
        self.close(whole, HistoryKind.COMPLETED, output=output)
        whole.leaving = True
        self.entering.append((whole, whole.step))

    def close_map(self, whole: Token, reason: str | None, but: Token | None = None, *, closed: bool = False) -> None:
        """The items that are under way are skipped, but for one that is closed already, or all that are; nothing is
        gathered."""
        if closed:
            for token in self.items_of(whole):
                self.forget_raw(token)
                self.remove(token)
        else:
            self._skip_items(whole, reason, but)
        self.forget_map(whole)

    def forget_map(self, whole: Token) -> None:
        """All that is kept of it goes."""
        maps = self._maps()
        if whole.id in maps.begun or (whole.id in self.inputs.maps and whole.id not in maps.ended):
            self._ended[whole.id] = self._state(whole)
            maps.end(whole.id)
        whole.pending = whole.arrived = 0

    def items_of(self, whole: Token) -> list[Token]:
        """The tokens of its items."""
        return [token for token in self.tokens.values() if token.item is not None and token.parent_id == whole.id]

# -- within

    def judge_item(self, token: Token, output: bytes | None) -> tuple[bytes | None, bool]:
        """Of an item that is done: what is kept of it, and whether the step is done with it. Raises StepFailed."""
        whole = self.whole(token)
        step, each, state = self.definition.steps[token.step], self._each(whole), self._state(whole)
        if each.collect is None and each.until is None:
            return None, False
        given = output or b"{}"
        self.spend_on(step, len(given) // BYTES_PER_STEP)
        scope = self.scope_of(token)
        scope["result"] = self.work.keep(partial(msgspec.json.decode, given))
        kept = None
        if each.collect is not None:
            value = self.evaluate(step, each.collect, scope)
            kept = self.work.keep(partial(msgspec.json.encode, value))
            self._check_room(step, state, kept)
        if each.until is None:
            return kept, False
        running = whole.pending - whole.arrived - 1
        scope["items"] = {"total": state.total, "completed": state.done + 1, "failed": state.failed, "running": running}
        enough = self.evaluate(step, each.until, scope)
        if not isinstance(enough, bool):
            raise EvaluationFailed(
                f"step '{step.id}': until `{each.until.source}` gave {shown(enough)}, not true or false"
            )
        return kept, enough

    def error_of_item(self, token: Token, code: str, message: str) -> bytes | None:
        """What is kept of an item that failed. Raises StepFailed."""
        whole = self.whole(token)
        if self._each(whole).into is None:
            return None
        kept = msgspec.json.encode({"error": {"code": code, "message": message}})
        self._check_room(self.definition.steps[token.step], self._state(whole), kept)
        return kept

    def item_over(self, token: Token, kept: bytes | None, kind: HistoryKind, *, enough: bool = False) -> None:
        """An item was closed so: its token goes on with the next one, or the step is done."""
        whole = self.whole(token)
        state = self._state(whole)
        if kept is not None and token.item is not None:
            self._maps().results[whole.id, token.item] = kept
            state.kept_bytes += len(kept)
        state.done += kind is HistoryKind.COMPLETED
        state.failed += kind is HistoryKind.FAILED
        whole.pending -= 1
        whole.unfolded += 1  # its row, though it has no delta: reads of the variables walk over it until the next fold
        self.mark_changed(whole)
        if enough:
            self._skip_items(whole, None, token)
            self.finish_map(whole)
        elif state.next < state.total and self._may_begin():
            self._begin_item(whole, token, state)
        else:
            if state.next < state.total:
                self._go_on_later(whole)
            self.remove(token)
            if not whole.pending:
                self.finish_map(whole)

    def tell_item(self, token: Token, output: bytes | None) -> None:
        """What a signal brings to an item is its own."""
        if output is None or token.item is None:
            return
        known = msgspec.json.decode(self._variables(token), type=dict[str, msgspec.Raw])
        known.update(msgspec.json.decode(output, type=dict[str, msgspec.Raw]))
        self._maps().variables[self.whole(token).id, token.item] = msgspec.json.encode(known)

    def scope_of(self, token: Token) -> dict[str, object]:
        """What the expressions of the token's step know: of an item its own variables, too. Raises ItemsNeeded."""
        if token.item is None:
            return self.scope()
        own = self._variables(token)
        return {**self.scope(), **self.work.keep(partial(msgspec.json.decode, own, type=dict[str, object]))}

    def spend_on(self, step: Step, work: int) -> None:
        try:
            self.work.spend(work)
        except TooMuchWork as error:
            raise EvaluationFailed(f"step '{step.id}': {error}") from None


    def _read_items(self, step: Step, each: ForEach) -> list[bytes]:
        try:
            value = self.work.evaluate(each.items, self.scope(), self.inputs.now, ITEMS_LIMITS)
        except ExpressionError as error:
            raise EvaluationFailed(f"BadItems: step '{step.id}': {error}", BAD_ITEMS) from None
        except TooMuchWork as error:
            raise EvaluationFailed(f"step '{step.id}': {error}") from None
        source = f"step '{step.id}': forEach.items `{each.items.source}` gave"
        if not isinstance(value, list):
            raise EvaluationFailed(f"BadItems: {source} {shown(value)}, not an array", BAD_ITEMS)
        items = cast("list[object]", value)
        if len(items) > ITEMS_MAX_COUNT:
            raise EvaluationFailed(f"BadItems: {source} {len(items)} items, more than {ITEMS_MAX_COUNT}", BAD_ITEMS)
        self.spend_on(step, len(items) * ITEM_WORK)
        rows = self.work.keep(partial(_rows, each, items))
        size = sum(map(len, rows))
        self.spend_on(step, size // BYTES_PER_STEP)
        if size > ITEMS_MAX_BYTES:
            raise EvaluationFailed(f"BadItems: {source} {size} bytes of items, more than {ITEMS_MAX_BYTES}", BAD_ITEMS)
        return rows

    def _maps(self) -> MapEffects:
        if self.out.maps is None:
            self.out.maps = MapEffects()
        return self.out.maps

    def _each(self, whole: Token) -> ForEach:
        each = self.definition.steps[whole.step].for_each
        assert each is not None
        return each

    def _state(self, whole: Token) -> MapState:
        """To be changed: it is written."""
        states = self._maps().states
        if whole.id not in states:
            states[whole.id] = structs.replace(self.inputs.maps[whole.id])
        return states[whole.id]

    def _may_begin(self) -> bool:
        return self._begun < STARTED_MAX_COUNT and self.work.may_go_on

    def _begin_item(self, whole: Token, token: Token, state: MapState) -> None:
        token.item = state.next
        state.next += 1
        whole.pending += 1
        self._begun += 1
        self.entering.append((token, whole.step))

    def _go_on_later(self, whole: Token) -> None:
        if not whole.arrived:
            whole.arrived = 1
            whole.pending += 1
            self.arm(whole, CONTINUE_TIMER, 0)

    def _skip_items(self, whole: Token, reason: str | None, but: Token | None) -> None:
        items = self.items_of(whole)
        entering = {token.id for token, _ in self.entering}
        for token in sorted(items, key=lambda token: token.seq):
            if token is not but and token.id not in entering:
                self.close(token, HistoryKind.SKIPPED, reason=reason)
            self.remove(token)
        gone = {token.id for token in items}
        self.entering = deque(about for about in self.entering if about[0].id not in gone)

    def _variables(self, token: Token) -> bytes:
        assert token.item is not None
        maps, key = self._maps(), (self.whole(token).id, token.item)
        if key in maps.variables:
            return maps.variables[key]
        if key[0] in maps.begun:
            return maps.begun[key[0]][token.item]
        if key not in self.inputs.items:
            raise ItemsNeeded(*key)
        return self.inputs.items[key]

    def _check_room(self, step: Step, state: MapState, kept: bytes) -> None:
        most = self.inputs.max_written_bytes
        if state.kept_bytes + len(kept) > most:
            raise EvaluationFailed(f"step '{step.id}': more than {most} bytes are collected of its items")


def _rows(each: ForEach, items: list[object]) -> list[bytes]:
    """Return the variables of each item."""
    if each.index is None:
        return [msgspec.json.encode({each.name: item}) for item in items]
    return [msgspec.json.encode({each.name: item, each.index: index}) for index, item in enumerate(items)]
