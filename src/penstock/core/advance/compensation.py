"""Undoing what was done, within one advance: a COMPENSATE, and the end of an instance that is undone before it.

The completed executions of steps with a `compensation` are undone one after the other, those that completed last first,
each by a handler: a job on a token of its own, whose parent waits as FORKED. Which execution comes next is asked of
whoever carries the advance out (`CompletionsNeeded`): only that one is read, however many there are. Which of them a
handler has undone, or is about to, is kept with the instance, so that none is undone twice.

Pure; `advance.py` says when.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.core.advance.completion import CompletionAnswer, CompletionsNeeded, DoneExecution, Question
from penstock.core.advance.effect import CompensatedStep, Undoing
from penstock.core.advance.for_each import Items
from penstock.core.graph.definition import Definition, Step
from penstock.core.rules.state import HistoryKind, Token, TokenState, Trigger, move


def is_compensating(definition: Definition, tokens: Iterable[Token]) -> bool:
    """Return whether the instance of these tokens is being compensated, and then ends."""
    step = definition.undo_step
    return step is not None and any(t.step == step and t.state is TokenState.FORKED for t in tokens)


def compensating(definition: Definition, done: DoneExecution) -> bytes:
    """What the job of a handler sees beside the instance's variables, a JSON object."""
    output = None if done.output is None else msgspec.Raw(done.output)
    about: dict[str, object] = {"stepId": definition.steps[done.step].id, "output": output}
    if done.item is not None:
        about["item"] = done.item
    return msgspec.json.encode({"compensating": about})


class Compensation(Items):
    """Enters a COMPENSATE and leads from one handler to the next."""

    def compensate(self, token: Token, step: Step) -> None:
        """The token has entered a COMPENSATE."""
        self.record(token, HistoryKind.COMPLETED)
        found = self._newest(step)
        if found is None:
            self._go_past(token, step)
            return
        self._undo(token, found)

    def handler_done(self, token: Token) -> Undoing | None:
        """On to the next one, or past the COMPENSATE; or to the end of the instance, which is given then."""
        assert token.parent_id is not None
        parent = self.tokens[token.parent_id]
        step = self.definition.steps[parent.step]
        found = self._ask(Question(step.undoes, self._by_item(step), after=token.id))
        self.remove(token)
        if found.completion is not None:
            self._begin_handler(parent, found.completion)
            return None
        if parent.step == self.definition.undo_step:
            assert found.undoing is not None, "it is not known how the instance ends"
            return found.undoing
        parent.pending = 0
        self.mark_changed(parent)
        self._go_past(parent, step)
        return None

    def undo_first(self, undoing: Undoing, culprit: Token | None) -> bool:
        """Undo what the instance did before it ends; False where there is nothing to undo, or that is under way."""
        index = self.definition.undo_step
        if index is None or is_compensating(self.definition, self.tokens.values()):
            return False
        step = self.definition.steps[index]
        self._free_handlers()
        found = self._newest(step)
        if found is None:
            return False
        self.close_open(undoing.failure, culprit)
        root = self.tokens[self.instance.id]
        for token in [token for token in self.tokens.values() if self.is_map(token)]:
            self.forget_map(token)
        for token in [token for token in self.tokens.values() if token is not root]:
            self.remove(token)
        root.parent_id, root.leaving = None, False
        # bounded as if it came now: what failed may have been an advance that took too much
        self.steps_max = self.out.steps_run + self.inputs.max_automatic_steps
        self.work.begin_anew()
        self.begin_execution(root, step)
        self.record(root, HistoryKind.COMPLETED)
        self.out.undoing = undoing
        self._undo(root, found)
        return True

    def _free_handlers(self) -> None:
        """What handlers have not done yet is to be undone by others."""
        for token in self.tokens.values():
            self.free(token)
        self.out.undone.clear()
        self.undoes.clear()

    def _undo(self, parent: Token, found: DoneExecution) -> None:
        """Begin to, with what is found first."""
        move(parent, Trigger.COMPENSATE if parent.state is TokenState.ENDED else Trigger.FORK)
        parent.pending, parent.arrived = 1, 0
        self._begin_handler(parent, found)

    def _begin_handler(self, parent: Token, found: DoneExecution) -> None:
        handler = self.definition.steps[found.step].compensation
        assert handler is not None
        token = self.new_token(handler, parent_id=parent.id, side=parent.side)
        self.undoes[token.id] = found
        self.out.undone.append(CompensatedStep(found.position, token.id))
        self.entering.append((token, handler))

    def close_open(self, reason: str | None, culprit: Token | None) -> None:
        """Close what is open, but for ``culprit`` and the whole that it is an item of, and forget what this advance was
        about to do."""
        entering = {token.id for token, _ in self.entering}
        self.entering.clear()
        closed = () if culprit is None else (culprit, self.whole(culprit))
        for token in sorted(self.tokens.values(), key=lambda token: (token.item is None, token.seq)):
            is_open = (token.is_open or self.is_map(token)) and token.id not in entering
            if is_open and not any(token is other for other in closed):
                self.close(token, HistoryKind.SKIPPED, reason=reason)
            elif token.state is TokenState.DELAYED:  # no step was entered: none is closed
                self.out.disarmed.append((token.id, token.seq))
        self.out.queued.clear()  # nothing that this very advance queued, called or armed survives
        self.out.calls.clear()
        self.out.armed.clear()

    def _go_past(self, token: Token, step: Step) -> None:
        assert step.next is not None
        self.entering.append((token, step.next))

    def _newest(self, step: Step) -> DoneExecution | None:
        """What is to be undone first. What this very advance has completed is not stored yet."""
        taken = {completion.position for completion in self.undoes.values()}
        for row in reversed(self.out.history):
            each = row.item is not None
            if (
                row.kind is HistoryKind.COMPLETED
                and row.step in step.undoes
                and each is (self.definition.steps[row.step].for_each is not None)
                and row.position not in taken
            ):
                output = next((given for at, given in self.out.item_outputs if at == row.position), row.output)
                return DoneExecution(row.position, row.step, output, row.item)
        stored = tuple(sorted(taken - {row.position for row in self.out.history}))
        question = Question(step.undoes, self._by_item(step), taken=stored, freed=tuple(sorted(self.freed)))
        return self._ask(question).completion

    def _by_item(self, step: Step) -> tuple[int, ...]:
        return tuple(index for index in step.undoes if self.definition.steps[index].for_each is not None)

    def _ask(self, question: Question) -> CompletionAnswer:
        found = self.inputs.completions.get(question)
        if found is None:
            raise CompletionsNeeded(question)
        return found
