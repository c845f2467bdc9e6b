"""Reads the forEach of a step. As `draft`, of which this is a part: every problem is noted."""

from __future__ import annotations

from typing import Final

from penstock.core.expression import Expression
from penstock.core.graph.definition import DefinitionLimits, ForEach
from penstock.core.parsing.draft_expressions import DraftCompiler, is_expression
from penstock.core.parsing.field_reader import FieldReader, Problems
from penstock.core.parsing.strict_json import quote

ITEM_NAME: Final = "item"
"""The variable of an item, where `as` says none."""
PARALLEL_DEFAULT: Final = 100
SCOPE_NAMES: Final = ("result", "items")
"""What `collect` and `until` know beside the variables."""


class ForEachReader:
    """Reads them against the same limits and into the same list of problems as the steps."""

    def __init__(self, limits: DefinitionLimits, problems: Problems, compiler: DraftCompiler) -> None:
        self._limits = limits
        self._problems = problems
        self._compiler = compiler

    def read(self, outer: FieldReader, *, used: bool) -> ForEach | None:
        """None where there is none, or the step's type does not use it."""
        fields = outer.fields("forEach")
        if fields is None or not used:
            return None
        reader = FieldReader(fields, outer.at("forEach"), self._problems)
        items = self._expression(reader, "items", required=True)
        name = self._name(reader, "as")
        index = self._name(reader, "index")
        parallel = reader.whole_number("parallel")
        if parallel is not None and not 1 <= parallel <= self._limits.parallel_max_count:
            reader.refuse("parallel", f"must lie between 1 and {self._limits.parallel_max_count}")
        collect = self._expression(reader, "collect")
        into = self._name(reader, "into")
        for given, missing in (("collect", "into"), ("into", "collect")):
            if given in reader.given and missing not in reader.given:
                reader.refuse(missing, f"required beside {given}")
        until = self._expression(reader, "until")
        on_error = reader.text("onError", max_chars=self._limits.id_max_chars)
        if on_error not in (None, "FAIL", "COLLECT"):
            reader.refuse("onError", f"must be FAIL or COLLECT, not {quote(on_error)}")
        reader.refuse_unknown()
        self._check_names(reader, {"as": name or ITEM_NAME, "index": index, "into": into})
        outer.given["forEach"] = reader.given
        if items is None:
            return None
        return ForEach(
            items,
            name or ITEM_NAME,
            index,
            PARALLEL_DEFAULT if parallel is None else parallel,
            collect,
            into,
            until,
            on_error == "COLLECT",
        )

    def _name(self, reader: FieldReader, field: str) -> str | None:
        return reader.text(field, max_chars=self._limits.id_max_chars)

    def _expression(self, reader: FieldReader, field: str, *, required: bool = False) -> Expression | None:
        source = reader.text(field, required=required, max_chars=self._limits.expression_max_chars)
        if source is None:
            return None
        if not is_expression(source):
            reader.refuse(field, f"must be an expression, ${{…}}, not {quote(source)}")
            return None
        return self._compiler.compile(source, reader.at(field))

    @staticmethod
    def _check_names(reader: FieldReader, names: dict[str, str | None]) -> None:
        """They are different variables, and none that `collect` and `until` know anyway."""
        taken: dict[str, str] = {}
        for field, name in names.items():
            if name is None:
                continue
            if field != "into" and name in SCOPE_NAMES:
                reader.refuse(field, f"{quote(name)} is what collect and until know of the item that is done")
            first = taken.setdefault(name, field)
            if first != field:
                reader.refuse(field, f"the same variable as {first}: {quote(name)}")
