"""What a row of the table of routes (`operations`) holds: method, path, handler, who may, messages, statuses, words.

Knows no route and no class of routes. Must not do I/O.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, get_args, get_origin

import msgspec

from penstock.api.permission import Permission

Schema = dict[str, Any]
Kind = type[msgspec.Struct]
STRING: Final[Schema] = {"type": "string"}
TIME: Final[Schema] = {"type": "string", "format": "date-time"}
INTEGER: Final[Schema] = {"type": "integer"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
VARIABLES: Final[Schema] = {"type": "object", "additionalProperties": True}


def ref(name: str) -> Schema:
    """Return a schema of the components."""
    return {"$ref": f"#/components/schemas/{name}"}


def name_of(kind: Kind) -> str:
    """What the schema of a class is called: `InstancePage` of `Page[Instance]`."""
    return "".join(part.__name__ for part in (*get_args(kind), get_origin(kind) or kind))


def struct(kind: Kind) -> Schema:
    """Return the schema of a struct."""
    return ref(name_of(kind))


def either(*kinds: Kind) -> Schema:
    """Return one of several structs."""
    return {"anyOf": [struct(kind) for kind in kinds]}


def list_in(field: str, kind: Kind | str) -> Schema:
    """Return an object with one list."""
    items = ref(kind) if isinstance(kind, str) else struct(kind)
    return {
        "type": "object",
        "properties": {field: {"type": "array", "items": items}},
        "required": [field],
    }


_PATH_TEXTS: Final = {
    "id": "Id, percent-encoded or not.",
    "stepId": "Id of the step.",
    "number": "Version, 1 or more.",
    "key": "Instance key.",
    "updateId": "Id of a call of an update.",
    "kind": "schedule or queue.",
    "position": "Of a message in the journal, as `rejected` of the run's tree has it.",
}
INLINE: Final = frozenset({"JobRoutes", "StartRoutes"})
"""The classes whose handlers are served without the framework."""


class Parameter(NamedTuple):
    """A parameter beside the body."""

    name: str
    place: str
    description: str
    schema: Schema = STRING
    required: bool = False
    """Those of the path always are."""


Bound = Callable[..., Awaitable[Any]]


CONSOLE_HEADER: Final = "X-Penstock-Console"
"""Only pages of the engine's own origin can send it: others would have to ask first, and are told no."""


class RestOperation(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    handler: Bound | None
    """A method of one of the classes of routes; those of `INLINE` take a `RestRequest`, the others are the framework's.
    None: it is served as its row in `penstock.api` says."""
    needs: Permission
    """Without which the call is refused."""
    id: str
    tag: str
    summary: str
    description: str = ""
    parameters: Sequence[Parameter] = ()
    body: Schema | None = None
    body_required: bool = True
    status: int = 200
    answer: Schema | None = None
    answer_type: str = "application/json"
    answer_description: str = "Done."
    errors: Sequence[int] = ()
    also: Sequence[tuple[int, Schema]] = ()
    """Other successes: status and answer."""
    waits: bool = False
    """Whether it may be parked for long, and so ends with the token that it came with."""
    waits_with: bytes = b""
    """Likewise, but only where this is in the body."""
    for_people: bool = False
    """Whether it is made for people: what is hidden from the console (`hiding`) is masked for everybody."""

    def bound(self, handler_classes: Sequence[object]) -> Bound:
        """The handler of the one of ``handler_classes`` that has it."""
        assert self.handler is not None
        [handler_class] = [
            handler_class for handler_class in handler_classes if type(handler_class).__name__ == self.handler_class
        ]
        handler: Bound = getattr(handler_class, self.handler.__name__)
        return handler

    def waits_for(self, body: bytes) -> bool:
        """Return whether a call with this body may be parked for long; a name may be hidden by escapes."""
        return self.waits or (self.waits_with != b"" and (self.waits_with in body or b"\\u" in body))

    @property
    def inline(self) -> bool:
        """Return whether it is served without the framework."""
        return self.handler_class in INLINE

    @property
    def handler_class(self) -> str:
        """The name of the class that has the handler; empty where there is none."""
        return "" if self.handler is None else self.handler.__qualname__.partition(".")[0]

    @property
    def query_names(self) -> frozenset[str]:
        """The parameters of the query that there are."""
        return frozenset(parameter.name for parameter in self.parameters if parameter.place == "query")

    @property
    def refuses_unknown_parameters(self) -> bool:
        """Additions do, so a mistyped filter does not act on everything. Calls of the contract ignore them, and so do
        probes and pages: proxies and health checks add some."""
        return self.path.startswith("/v1/") and self.summary.endswith("(addition)")

    def all_parameters(self) -> list[Parameter]:
        """Return those of the path too."""
        names = [part[1:-1] for part in self.path.split("/") if part.startswith("{")]
        return [*(Parameter(name, "path", _PATH_TEXTS[name]) for name in names), *self.parameters]


Route = tuple[RestOperation, Bound]
"""A row, and its handler for one engine."""


SLICE: Final = (
    Parameter("limit", "query", "1 to 200, clamped.", INTEGER),
    Parameter("cursor", "query", "The `next` of the slice before."),
)
"""Of a list that is read by key."""
