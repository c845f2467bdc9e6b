"""How the tests of expressions evaluate: one fixed time, and short ways to a result or an error."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.core.expression import DEFAULT, ExpressionError, ExpressionLimits, parse

NOW = datetime(2031, 5, 4, 12, 30, 15, 250_000, tzinfo=UTC)


def value(source, variables=None, limits: ExpressionLimits = DEFAULT) -> Any:
    return parse(source, limits).evaluate(variables or {}, NOW)


def failure(source, variables=None, limits: ExpressionLimits = DEFAULT) -> ExpressionError:
    """The error of evaluating; parsing must work."""
    expression = parse(source, limits)
    with pytest.raises(ExpressionError) as caught:
        expression.evaluate(variables or {}, NOW)
    return caught.value


def refusal(source, limits: ExpressionLimits = DEFAULT) -> ExpressionError:
    """The error of parsing."""
    with pytest.raises(ExpressionError) as caught:
        parse(source, limits)
    return caught.value


@contextmanager
def at_most(cpu_seconds: float) -> Generator[None]:
    """Of this thread's CPU time, without a garbage collection over all that thousands of tests have left."""
    gc.disable()
    before = time.thread_time()
    try:
        yield
        assert time.thread_time() - before < cpu_seconds
    finally:
        gc.enable()


def outcome(call: Callable[[], Any]) -> Any:
    """What ``call`` gives, or the `ExpressionError` that it raises; anything else comes through."""
    try:
        return call()
    except ExpressionError as error:
        return error


def same(left, right) -> bool:
    """Equal, and of the same types throughout: Python's 1 == True == 1.0 would hide mistakes."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return left == right
