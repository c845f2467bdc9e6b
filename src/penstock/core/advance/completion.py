"""Completed step executions that may be undone: what `advance` asks about them, and the answers. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from penstock.core.advance.effect import Compensation


class DoneExecution(msgspec.Struct, frozen=True):
    """A completed step execution, by the position of its row."""

    position: int
    step: int
    output: bytes | None
    item: int | None


class Question(NamedTuple):
    """Which completion is needed: the newest of these steps that no handler has, nor is among ``taken`` (positions);
    with ``after`` (a handler's token) of those that came before what that one has undone. What the handlers on the
    tokens ``freed`` were to undo counts as nobody's. Of the steps ``by_item`` each item is one, and not the whole."""

    steps: tuple[int, ...]
    by_item: tuple[int, ...] = ()
    after: int | None = None
    taken: tuple[int, ...] = ()
    freed: tuple[int, ...] = ()


class CompletionAnswer(NamedTuple):
    """The answer; and how the instance is to end, if it is being undone already."""

    completion: DoneExecution | None
    undoing: Compensation | None

    @property
    def position(self) -> int | None:
        return None if self.completion is None else self.completion.position


class CompletionsNeeded(Exception):
    """Look this up, and advance again."""

    def __init__(self, question: Question) -> None:
        super().__init__()
        self.question = question


Answers = Mapping[Question, CompletionAnswer]
