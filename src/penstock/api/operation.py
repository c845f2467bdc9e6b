"""What a row of the table of operations holds: its form on both wires, who may call, what may be sent again.

Servers and clients read it, so it imports neither. A row decides nothing: what an operation does is bound to it in the
engine (`penstock.engine.operations.table`).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct

from penstock.api.permission import Permission
from penstock.wire.alike import alike, plain_type
from penstock.wire.page import Page

Q = TypeVar("Q", bound=Struct)
A = TypeVar("A")

SLICE: Final[Mapping[str, str]] = {"limit": "1 to 200, clamped.", "cursor": "The `next` of the slice before."}
"""The query of a list that is read by key."""
CURSOR_MAX_CHARS: Final = 3_000
"""Some cursors hold a business key."""
PAGE: Final[Mapping[str, str]] = {
    "page": "From 0.",
    "pageSize": "1 to 200, clamped; by default 20.",
    "cursor": "The `next` of the slice before. Slices leave nothing out and repeat nothing (addition).",
    "limit": "As `pageSize`, of a slice: in place of pages, from the first one on.",
}
"""The query of a list that is read by key, or by number."""


class Repeat(enum.Enum):
    """When an operation may be sent again after a call that did not get its answer."""

    ALWAYS = "always"
    """Sending it twice has the effect of sending it once."""

    UNTIL_GONE = "until-gone"
    """As ALWAYS, and that what it deletes is not found, once an answer was lost, is success."""

    IF_NOT_APPLIED = "if-not-applied"
    """Only when the first request surely had no effect (``Unavailable.maybe_applied`` is False)."""


class Where(enum.Enum):
    """Where a field of a request stands over REST."""

    PATH = enum.auto()
    QUERY = enum.auto()
    HEADER = enum.auto()
    BODY = enum.auto()
    """A field of the body."""
    WHOLE = enum.auto()
    """All of the body."""


class ItemRefused(Exception):
    """What an engine answers to one of many: the code and the reason of an error."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class FieldPlace(NamedTuple):
    """A field of a request, its name and its place over REST, and its type without None."""

    field: str
    name: str
    where: Where
    type: Any


class Body(Struct, frozen=True, kw_only=True):
    """The body of a request over REST: one field of it, or all fields that stand nowhere else."""

    field: str = ""
    """The field that is all of the body."""
    kind: type[Struct] | None = None
    """Its class, where that is not made of the fields: the request itself, or one that has the fields' names."""
    schema: Mapping[str, Any] | None = None
    """How it is described, where its class says too little."""
    not_xml: str = ""
    """Why a body is refused whose header says that it is XML. Whatever else headers say is read as JSON."""
    noun: str = ""
    """What it is, where a field that it does not have is refused: "a schedule"."""
    name: str = ""
    """Of the schema, where the body has several fields."""
    text: str = ""
    """Likewise what they mean."""
    aliases: Mapping[str, str] = {}
    """Fields that are read where another one is absent, and which."""
    values: tuple[str, ...] = ()
    """Those that hold JSON of any kind, whose form and size the server checks."""
    required: bool = True


class Rest(Struct, frozen=True):
    """The form of an operation over REST. ``query`` and ``headers`` describe each parameter; ``names`` has the fields
    that REST calls otherwise than by their names in camelCase."""

    method: str
    path: str
    query: Mapping[str, str] = {}
    body: Body | None = None
    status: int = 200
    names: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    choices: Mapping[str, Sequence[str]] = {}
    """The values that a parameter of the query can have."""
    max_chars: Mapping[str, int] = {}
    """How long a parameter of the query may be, where it may be longer than a name."""
    answer: Mapping[str, Any] | None = None
    """How the answer is described, where its class says too little."""
    answers: str = ""
    """What the answer is, in words."""
    for_people: bool = False
    """Whether it is made for people: what is hidden from the console is masked for everybody."""
    by_hand: str = ""
    """Why a handler of its own serves the route; the row says all else of it."""
    id: str = ""
    """Of the route in the OpenAPI document, where it is not the operation's name."""
    when: str = ""
    """What in the body or in the query asks for this operation, where another one has the same route."""


NO_REST: Final = Rest("", "")
"""Of an operation that only gRPC has."""


class Grpc(Struct, frozen=True):
    """The form of an operation over gRPC. Where messages differ from request and answer: their classes; and the ways
    there and back, where names of fields do not say them (`alike`). ``read`` gets the request, too: it may say what
    the answer leaves out. ``names`` has the fields that errors call otherwise, as the message does; ``lacks`` those
    that the message has no place for; ``cleaned`` the texts that are cut and cleaned, and never refused."""

    method: str
    message: type[Struct] | None = None
    send: Callable[[Any], Any] | None = None
    take: Callable[[Any], Any] | None = None
    answer: type[Struct] | None = None
    give: Callable[[Any], Any] | None = None
    read: Callable[[Any, Any], Any] | None = None
    names: Mapping[str, str] = {}
    lacks: tuple[str, ...] = ()
    cleaned: tuple[str, ...] = ()
    elsewhere: bool = False
    """Whether the method is served otherwise than this row says: by hand, as it takes many, or as another row says."""
    as_is: bool = False
    """Whether the request is read as it comes: the engine's method looks itself what is empty, item by item."""
    headers: Mapping[str, str] = {}
    """The fields that are sent as metadata, and their names there."""
    needed: tuple[str, ...] | None = None
    """What has to be given, where that is not what REST has in the path, and ``required``."""

    def request_of(self, message: Any, kind: type[Q]) -> Q:
        """What a message asks for. Raises ValueError."""
        if self.take is not None:
            asked: Q = self.take(message)
            return asked
        return message if self.message is None else alike(message, kind)

    def answer_in(self, answer: Any) -> Any:
        """Return the message with an answer."""
        if self.give is not None:
            return self.give(answer)
        return answer if self.answer is None else alike(answer, self.answer)


class DeclaredOperation(Struct, Generic[Q, A], frozen=True, eq=False, kw_only=True):
    """What an operation is. ``tag``, ``summary``, ``description`` and ``errors`` (statuses) are for the reference. Over
    gRPC ``required`` have to be given, as has what stands in the path over REST. ``holds`` names the field with the
    seconds that the engine may hold the call; ``keyed`` those of which one
    makes a repeat safe; ``maps`` those with variables, whose form and size both servers check."""

    name: str
    summary: str
    description: str = ""
    tag: str
    request: type[Q]
    answer: type[A]
    needs: Permission
    rest: Rest = NO_REST
    grpc: Grpc | None = None
    """What a client calls; without it clients have the operation over REST only."""
    also: tuple[Grpc, ...] = ()
    """Further methods, which clients of other services call."""
    errors: tuple[int, ...] = ()
    required: tuple[str, ...] = ()
    repeat: Repeat = Repeat.ALWAYS
    holds: str = ""
    keyed: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Its name as that of a class, for traces and messages."""
        return self.name[0].upper() + self.name[1:]

    @property
    def is_over_rest(self) -> bool:
        """Return whether it has a form over REST."""
        return self.rest is not NO_REST

    @property
    def methods(self) -> list[Grpc]:
        """List its forms over gRPC that are served as the row says."""
        return [form for form in (self.grpc, *self.also) if form is not None and not form.elsewhere]

    @property
    def items(self) -> Any:
        """Return the class of what is in its answer's list, where the answer is one; it is in ``items`` over REST."""
        return get_args(self.answer)[0] if get_origin(self.answer) is list else None

    @property
    def answers_nothing(self) -> bool:
        """Return whether there is nothing in its answer."""
        return self.answer is NoneType

    def message_of(self, request: Q) -> Struct:
        """What is sent over gRPC. Raises ValueError."""
        assert self.grpc is not None
        if self.grpc.send is not None:
            sent: Struct = self.grpc.send(request)
            return sent
        return request if self.grpc.message is None else alike(request, self.grpc.message)

    def answer_of(self, message: Any, request: Q) -> Any:
        """Return the answer in a message."""
        assert self.grpc is not None
        if self.grpc.read is not None:
            return self.grpc.read(message, request)
        kind: Any = self.answer
        return message if self.grpc.answer is None else alike(message, kind)

    def places(self) -> list[FieldPlace]:
        """Where each field of its request stands over REST, in their order; nowhere where it has no form there."""
        return [] if not self.is_over_rest else [self._place(field) for field in msgspec.structs.fields(self.request)]

    def needed(self) -> list[str]:
        """The texts that have to be given: those of the path, and others that the row names."""
        paths = [place.field for place in self.places() if place.where is Where.PATH and place.type is str]
        return [*paths, *self.required]

    def _place(self, field: msgspec.structs.FieldInfo) -> FieldPlace:
        coded = camel(field.name) if field.encode_name == field.name else field.encode_name
        name = self.rest.names.get(field.name) or coded
        kind = plain_type(field.type)
        if f"{{{name}}}" in self.rest.path:
            return FieldPlace(field.name, name, Where.PATH, kind)
        if name in self.rest.query:
            return FieldPlace(field.name, name, Where.QUERY, kind)
        if name in self.rest.headers:
            return FieldPlace(field.name, name, Where.HEADER, kind)
        if self.rest.body is None:
            raise TypeError(f"{self.name}: {field.name} has no place over REST")
        return FieldPlace(field.name, name, Where.WHOLE if self.rest.body.field == field.name else Where.BODY, kind)


Row: TypeAlias = DeclaredOperation[Any, Any]
"""One of whatever request and answer."""


def items_in(method: str, answer: type[Struct], field: str, sent: type[Struct] | None = None, kind: Any = None) -> Grpc:
    """Return the form of a list over gRPC: a page's items in a field, the cursor of the next one beside it. Items are
    sent in a class of their own where ``sent`` names it, and are of ``kind``."""

    def give(page: Page[Any]) -> Struct:
        items = page.items if sent is None else [alike(item, sent) for item in page.items]
        return answer(**{field: list(items), "next": page.next or ""})

    def read(message: Any, _request: object) -> Page[Any]:
        items = getattr(message, field)
        return Page(items=items if kind is None else [alike(item, kind) for item in items], next=message.next or None)

    return Grpc(method, answer=answer, give=give, read=read)


def nothing_in(method: str, answer: type[Struct], **more: Any) -> Grpc:
    """Return the form over gRPC of an operation whose answer is empty."""
    return Grpc(method, answer=answer, give=lambda _: answer(), read=lambda _message, _request: None, **more)


def camel(name: str) -> str:
    """A name as JSON has it."""
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)
