"""What an editor shows of a decorator or a start says what each parameter means."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from penstock.durable import App, Nursery, Step, child, each, start, step, workflow
from penstock.testing import explore, run_workflow

CALLS: list[Callable[..., Any]] = [
    type(step).__call__, step.transaction, Step.using, workflow, App.start, App.run, child, start, each,
    Nursery.start_soon, run_workflow, explore,
]  # fmt: skip


def explained(docstring: str) -> set[str]:
    """The parameters of which the docstring says something."""
    return set(re.findall(r"^ +(\w+): \w", docstring, re.MULTILINE)) | set(re.findall(r"``(\w+)``", docstring))


@pytest.mark.parametrize("call", [*CALLS, App], ids=lambda call: call.__qualname__)
def test_each_parameter_is_explained(call: Callable[..., Any]):
    docstring = inspect.getdoc(call)
    assert docstring is not None
    parameters = set(inspect.signature(call).parameters) - {"self", "kwargs"}
    assert parameters - explained(inspect.cleandoc("-\n" + docstring)) == set()
