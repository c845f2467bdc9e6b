"""What a CALL_ACTIVITY does within one advance: what it starts, and what comes back when that has ended.

Pure; `advance.py` says when. The instance is made by whoever carries the advance out, in the same transaction, so that
there is none that the end of its caller can't see.
"""

from __future__ import annotations

from functools import partial

import msgspec

from penstock.core.advance.effect import ChildStart
from penstock.core.advance.evaluation import EvaluationFailed
from penstock.core.advance.event import ChildEnded
from penstock.core.advance.for_each import Items
from penstock.core.expression import Expression
from penstock.core.expression.work import BYTES_PER_STEP, STEP_WORK
from penstock.core.graph.definition import BUSINESS_KEY_MAX_CHARS, Callee, Step
from penstock.core.rules.state import CONTINUE_TIMER, InstanceStatus, Token, Trigger, move
from penstock.wire.error_code import CHILD_CANCELLED, CHILD_FAILED, DEFINITION_NOT_FOUND, OWN_PREFIX

DEPTH_MAX = 16
"""Instances that call each other in a row, the first one not counted."""
CHILD_REASON_MAX_CHARS = 1000
"""Of the reason why a child failed, in that of its caller: it may have one of its own child in it."""


class Calls(Items):
    """Enters calls and leaves them."""

    def enter_call(self, token: Token, step: Step, callee: Callee) -> None:
        """Begin to wait for an instance. Raises StepFailed, and nothing is begun then."""
        delays_s = self.boundary_delays_s(token, step)
        call = self.plan_call(token, step, callee)
        move(token, Trigger.CALL)
        self.arm_all(token, delays_s)
        self.make_call(token, call)

    def make_call(self, token: Token, call: ChildStart | None) -> None:
        if call is None:
            self.arm(token, CONTINUE_TIMER, 0)
        else:
            self.out.calls.append(call)

    def plan_call(self, token: Token, step: Step, callee: Callee) -> ChildStart | None:
        """The instance to start; None when this advance starts enough of them. Raises StepFailed."""
        if len(self.out.calls) >= self.inputs.calls_max or not self.work.may_go_on:
            return None
        if (callee.definition_id, callee.version) in self.inputs.uncallable:
            version = f" version {callee.version}" if callee.version else ""
            name = f"'{callee.definition_id}'{version}"
            reason = f"DefinitionNotFound: step '{step.id}' calls {name}, which is not there"
            raise EvaluationFailed(reason, DEFINITION_NOT_FOUND)
        if self.instance.depth >= DEPTH_MAX:
            raise EvaluationFailed(f"CallTooDeep: step '{step.id}' would be call {DEPTH_MAX + 1} in a row")
        self.spend_on(step, STEP_WORK)
        scope = self.scope_of(token)
        if callee.input is None:
            variables: bytes = self.work.keep(partial(msgspec.json.encode, scope))
            self.spend_on(step, len(variables) // BYTES_PER_STEP)
            self.written_bytes += len(variables)
        else:
            variables = self.assign(step, callee.input, dict(scope))
        if self.written_bytes > self.inputs.max_written_bytes and self.out.calls:
            return None
        wrong = self.inputs.unfit.get((callee.definition_id, callee.version, variables))
        if wrong is not None:
            raise EvaluationFailed(
                f"WrongArguments: step '{step.id}' calls '{callee.definition_id}': {wrong}", CHILD_FAILED
            )
        key = self.business_key(step, callee.business_key, scope)
        return ChildStart(token.id, token.seq, callee.definition_id, callee.version, variables, key, token.entry)

    def business_key(self, step: Step, key: Expression | str | None, scope: dict[str, object]) -> str | None:
        value = self.evaluate(step, key, scope) if isinstance(key, Expression) else key
        if value is None or value == "":
            return None
        if not isinstance(value, str) or len(value) > BUSINESS_KEY_MAX_CHARS:
            raise EvaluationFailed(
                f"step '{step.id}': businessKey must be text of at most {BUSINESS_KEY_MAX_CHARS} characters"
            )
        return value

    def result_of(self, step: Step, callee: Callee, given: bytes | None) -> bytes | None:
        """What comes back of an instance that has completed. Raises StepFailed."""
        if not callee.output:
            return None
        assert given is not None, "what is asked for was not read"
        self.spend_on(step, len(given) // BYTES_PER_STEP)
        result = self.work.keep(partial(msgspec.json.decode, given))
        return self.assign(step, callee.output, {**self.scope(), "result": result})


def why_failed(event: ChildEnded) -> tuple[str, str]:
    """The reason and the code with which a call fails, whose instance did not complete. Codes that the engine gave are
    its own: of the caller's step another one is true."""
    child = f"instance '{event.child}' of '{event.definition_id}'"
    reason = f": {event.reason[:CHILD_REASON_MAX_CHARS]}" if event.reason else ""
    if event.status is InstanceStatus.CANCELLED:
        return f"ChildCancelled: {child} was cancelled{reason}", CHILD_CANCELLED
    own = event.code is None or event.code.startswith(OWN_PREFIX)
    return f"ChildFailed: {child} failed{reason}", CHILD_FAILED if own or event.code is None else event.code
