"""How steps fail and instances end within one advance, and what is kept for `retry`.

A part of `advance`, its only user.
"""

from __future__ import annotations

import msgspec
from msgspec import structs

from penstock.core.advance.compensation import Compensation
from penstock.core.advance.effect import Chain, Undoing
from penstock.core.advance.evaluation import EvaluationFailed
from penstock.core.graph.definition import Catch, Step, StepType
from penstock.core.rules.state import HistoryKind, InstanceStatus, Token, TokenState, change_status


class Ending(Compensation):
    """Fails steps and ends instances."""

    def complete(self, token: Token, result: bytes | None) -> None:
        definition = self.definition
        if definition.auto_start_next and definition.next_workflow_id is not None:
            if not self.inputs.next_known or not self.inputs.may_chain or self.inputs.next_problem is not None:
                reason = f"NextWorkflowNotFound: {definition.next_workflow_id}"
                if self.inputs.next_problem is not None:
                    reason = f"WrongArguments: '{definition.next_workflow_id}' follows: {self.inputs.next_problem}"
                elif self.inputs.next_known:
                    reason = f"too many workflows in one chain: '{definition.next_workflow_id}' was not started"
                self.end_instance(InstanceStatus.FAILED, reason, culprit=token)
                return
            self.out.chain = Chain(definition.next_workflow_id)
        self.end_instance(InstanceStatus.COMPLETED, None, culprit=token)
        self.instance.result = result

    def fail(
        self,
        token: Token,
        reason: str,
        code: str | None = None,
        *,
        worker: str | None = None,
        data: bytes | None = None,
    ) -> None:
        """The step of ``token`` failed for good, and the instance with it unless an error boundary takes the code. Of
        an item the boundary is the whole step's; without one its forEach may keep the error."""
        whole = self.whole(token)
        step = self.definition.steps[token.step]
        if step.compensates is not None:
            reason = f"compensation of step '{self.definition.steps[step.compensates].id}' failed: {reason}"
        caught = None if code is None else step.catch(code)
        if caught is not None and code is not None and self.out.steps_run < self.steps_max:
            self.out.steps_run += 1  # a call that can't be made may fail and be caught again and again in one advance
            output = self.merge(whole, _error(step, caught, code, reason, data))
            if whole is not token:
                self.close(token, HistoryKind.FAILED, worker=worker, reason=reason, code=code)
            if self.is_map(whole):
                self.close_map(whole, reason, token)
            by = worker if whole is token else None
            self.close(whole, HistoryKind.CAUGHT, worker=by, reason=reason, output=output, code=code)
            self.entering.append((whole, caught.target))
            return
        if whole is not token and code is not None and step.for_each is not None and step.for_each.collects_errors:
            try:
                kept = self.error_of_item(token, code, reason)
            except EvaluationFailed as failed:
                reason, code = failed.reason, failed.code
            else:
                self.close(token, HistoryKind.FAILED, worker=worker, reason=reason, code=code)
                self.item_over(token, kept, HistoryKind.FAILED)
                return
        if whole is not token:
            self.close(whole, HistoryKind.FAILED, reason=reason, code=code)
        self.close(token, HistoryKind.FAILED, worker=worker, reason=reason, code=code)
        self.end_instance(InstanceStatus.FAILED, reason, culprit=token, code=code)

    def finish_item(
        self,
        token: Token,
        kind: HistoryKind,
        *,
        worker: str | None = None,
        reason: str | None = None,
        output: bytes | None = None,
    ) -> None:
        """An item is done, or skipped with a result."""
        try:
            kept, enough = self.judge_item(token, output)
        except EvaluationFailed as failed:
            self.keep_raw(token, kind, failed, output, worker=worker, reason=reason)
            return
        self.close(token, kind, worker=worker, reason=reason)
        if output is not None and self.definition.steps[token.step].compensation is not None:
            self.out.item_outputs.append((self.out.history[-1].position, output))
        self.item_over(token, kept, kind, enough=enough)

    def keep_raw(
        self,
        token: Token,
        kind: HistoryKind,
        failed: EvaluationFailed,
        raw: bytes | None,
        *,
        worker: str | None = None,
        reason: str | None = None,
    ) -> None:
        """The work of the step, or of an item, is done, and the engine's own mapping of its result has failed: the step
        is closed as done, its raw result kept for a `retry`, and the instance fails after it."""
        if not self.inputs.keeps_raw:
            self.fail(token, failed.reason, failed.code, worker=worker)
            return
        self.close(token, kind, worker=worker, reason=reason)
        token.raw = self.out.history[-1].position
        self.out.item_outputs.append((token.raw, raw or b"{}"))
        self.out.raw_kept = True
        self.mapping_failed(token, failed)

    def mapping_failed(self, token: Token, failed: EvaluationFailed) -> None:
        """The instance fails behind a step that is done."""
        whole = self.whole(token)
        if whole is not token:
            self.close(whole, HistoryKind.FAILED, reason=failed.reason, code=failed.code)
        token.leaving = True
        self.end_instance(InstanceStatus.FAILED, failed.reason, culprit=token, code=failed.code)

    def end_instance(
        self, status: InstanceStatus, reason: str | None, culprit: Token | None = None, code: str | None = None
    ) -> None:
        """Close everything that is open. ``culprit``: the token whose step brought the end, and was closed already;
        `retry` enters it again, or leaves it when it was done. What has failed may be undone first."""
        if status is InstanceStatus.FAILED and culprit is not None and self.undo_failure(reason, culprit, code):
            return
        if status is InstanceStatus.FAILED and self.out.ended_as is None:
            entering = {token.id: index for token, index in self.entering}
            self.out.snapshot = [
                self.keep_for_retry(token, token is culprit, entering.get(token.id)) for token in self.tokens.values()
            ]
        self.close_open(reason, culprit)
        for token in [*self.tokens.values()]:
            self.remove(token)
        change_status(self.instance, status, reason, code)
        self.out.ended = True

    def cancel(self, reason: str | None, *, undo: bool) -> None:
        undoing = Undoing(InstanceStatus.CANCELLED, reason, None, None, job=False)
        if not (undo and self.undo_first(undoing, None)):
            self.end_instance(InstanceStatus.CANCELLED, reason)

    def undo_failure(self, reason: str | None, culprit: Token, code: str | None) -> bool:
        """Undo what the instance did before it is FAILED; False where that is not to be, and changes nothing. A handler
        that failed is tried again by a `retry`."""
        step = self.definition.steps[culprit.step]
        if not self.definition.undoes_failures or step.compensates is not None:
            return False
        job = step.type is StepType.SERVICE_TASK and culprit.attempt > 0 and not culprit.leaving
        return self.undo_first(Undoing(InstanceStatus.FAILED, reason, code, step.index, job), culprit)

    def keep_for_retry(self, token: Token, culprit: bool, entering: int | None) -> Token:
        """The token as `retry` finds it: open steps READY (entered anew, as the entry they were), gateways and
        forEach steps with their counts."""
        kept = structs.replace(
            token,
            attempt=0,
            failures=0,
            expiries=0,
            claimed_by=None,
            claimed_at=None,
            lease_until=None,
            waits_for=None,
            held=None,
            run_queue=None,
            priority=token.priority % 10,  # without what an open run goes before others
        )
        if entering is not None:
            kept.step = entering
            kept.entry = self.reentering.get(token.id)
        elif token.leaving:
            kept.entry = None
        elif culprit or token.is_open or self.is_map(token):
            kept.entry = token.entry_id
        if entering is not None or token.is_open or (culprit and not (token.pending and self.is_map(token))):
            kept.state = TokenState.READY
        return kept


def _error(step: Step, caught: Catch, code: str, message: str, data: bytes | None) -> bytes | None:
    """What the error boundary's variable becomes."""
    if caught.variable is None:
        return None
    error = {"code": code, "message": message, "stepId": step.id, "data": None if data is None else msgspec.Raw(data)}
    return msgspec.json.encode({caught.variable: error})
