"""Reads the boundary events of a step, and lists of error codes.

As `draft`, of which this is a part: each rule that concerns one step alone, every problem noted.
"""

from __future__ import annotations

from typing import cast

import msgspec

from penstock.core.expression import Expression
from penstock.core.graph.definition import DefinitionLimits
from penstock.core.parsing.draft_expressions import DraftCompiler
from penstock.core.parsing.field_reader import FieldReader, Problems, kind_of
from penstock.core.parsing.strict_json import join_path, quote
from penstock.wire.error_code import code_problem


class BoundaryDraft(msgspec.Struct, frozen=True):
    duration: str
    seconds: float | Expression
    interrupting: bool
    target: str | None


class CatchDraft(msgspec.Struct, frozen=True):
    codes: tuple[str, ...] | None
    """None: any."""
    variable: str | None
    target: str | None


class BoundaryReader:
    """Reads them against the same limits and into the same list of problems as the steps."""

    def __init__(self, limits: DefinitionLimits, problems: Problems, compiler: DraftCompiler) -> None:
        self._limits = limits
        self._problems = problems
        self._compiler = compiler

    def read(self, reader: FieldReader, *, checked: bool, may_fail: bool) -> list[BoundaryDraft | CatchDraft]:
        """``checked``: the step's type uses them. ``may_fail``: it can have error boundaries."""
        name = "boundaryEvents"
        items = reader.items(name)
        if items is None:
            return []
        if len(items) > self._limits.boundary_events_max_count:
            reader.refuse(name, f"more than {self._limits.boundary_events_max_count} boundary events")
            return []
        boundaries: list[BoundaryDraft | CatchDraft] = []
        canonical: list[object] = []
        for place, item in enumerate(items):
            path = join_path(reader.at(name), place)
            if not isinstance(item, dict):
                self._problems.add(path, f"must be an object, not {kind_of(item)}")
                boundaries.append(BoundaryDraft(duration="", seconds=0, interrupting=False, target=None))
                continue
            event = FieldReader(cast("dict[str, object]", item), path, self._problems)
            boundaries.append(self._boundary(event, checked=checked))
            canonical.append(event.given)
        reader.given[name] = canonical
        if checked:
            self._check_catches(reader.at(name), boundaries, may_fail=may_fail)
        return boundaries

    def codes(self, reader: FieldReader, name: str, *, checked: bool, own: bool = False) -> tuple[str, ...] | None:
        """A list of codes, None when there is none. ``own``: the engine's may be named."""
        items = reader.items(name)
        if items is None or not checked:
            return None
        if not items:
            reader.refuse(name, "must have at least one code")
        if len(items) > self._limits.error_codes_max_count:
            reader.refuse(name, f"more than {self._limits.error_codes_max_count} codes")
            return ()
        codes: dict[str, None] = {}
        for place, item in enumerate(items):
            path = join_path(reader.at(name), place)
            if not isinstance(item, str):
                self._problems.add(path, f"must be a string, not {kind_of(item)}")
            elif (problem := code_problem(item, own=own)) is not None:
                self._problems.add(path, problem)
            elif item in codes:
                self._problems.add(path, f"the code {quote(item)} stands twice")
            else:
                codes[item] = None
        return tuple(codes)

    def _boundary(self, reader: FieldReader, *, checked: bool) -> BoundaryDraft | CatchDraft:
        max_chars = self._limits.id_max_chars
        kind = reader.text("type", required=checked, max_chars=max_chars)
        if kind == "ERROR":
            return self._catch(reader, checked=checked)
        if checked and kind is not None and kind != "TIMER":
            reader.refuse("type", f"must be TIMER or ERROR, not {quote(kind)}")
        duration = reader.text("duration", required=checked, max_chars=self._limits.expression_max_chars)
        interrupting = reader.flag("interrupting")
        target = reader.text("targetStepId", required=checked, max_chars=max_chars)
        reader.refuse_unknown()
        seconds = None
        if checked and duration is not None:
            seconds = self._compiler.lasting(duration, reader.at("duration"))
        return BoundaryDraft(duration=duration or "", seconds=seconds or 0, interrupting=interrupting, target=target)

    def _catch(self, reader: FieldReader, *, checked: bool) -> CatchDraft:
        max_chars = self._limits.id_max_chars
        codes = self.codes(reader, "errorCodes", checked=checked, own=True)
        variable = reader.text("errorVariable", max_chars=max_chars)
        target = reader.text("targetStepId", required=checked, max_chars=max_chars)
        reader.refuse_unknown()
        return CatchDraft(codes=codes, variable=variable, target=target)

    def _check_catches(self, path: str, boundaries: list[BoundaryDraft | CatchDraft], *, may_fail: bool) -> None:
        """Each code is taken by one error boundary, and one for any comes last."""
        taken: set[str] = set()
        any_at: int | None = None
        for place, event in enumerate(boundaries):
            if not isinstance(event, CatchDraft):
                continue
            here = join_path(path, place)
            if not may_fail:
                self._problems.add(here, "a WAIT does not fail: it has no error boundaries")
            if any_at is not None:
                self._problems.add(here, f"comes after {join_path(path, any_at)}, which takes every error")
            elif event.codes is None:
                any_at = place
            for code in event.codes or ():
                if code in taken:
                    self._problems.add(join_path(here, "errorCodes"), f"the code {quote(code)} is taken before")
                taken.add(code)
