"""The routes of operations that are served as their rows say (`penstock.api`): made here, none by hand.

Each is one view of the framework: it reads path, query and body into the request, and writes what the engine answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import ModuleType
from typing import Any, Final, TypeVar

import msgspec
from quart import Response, request

from penstock.api import ROUTED, rows_of
from penstock.api.operation import Body, DeclaredOperation, FieldPlace, Row, Where
from penstock.engine.operations.table import Serve
from penstock.engine.requests.hiding import Hiding
from penstock.engine.requests.paging import NAME_MAX_CHARS
from penstock.engine.requests.payload import (
    PayloadLimits,
    check_json_value,
    check_text,
    check_variables,
    given_variables,
    unknown_field,
)
from penstock.errors import BadRequest, NotFound, UnsupportedFormat
from penstock.loop.offload import INLINE_MAX_BYTES, run_sized, take_turn
from penstock.rest import codec
from penstock.rest.exchange import Reply, text_header
from penstock.rest.hiding import hides
from penstock.rest.operation import (
    BOOLEAN,
    INTEGER,
    STRING,
    TIME,
    Bound,
    Kind,
    Parameter,
    RestOperation,
    Schema,
    list_in,
    struct,
)
from penstock.rest.reading import body_of, query_family, query_flag, query_text, query_time, query_whole, respond
from penstock.wire.model import Instance
from penstock.wire.noun import text_bytes

_QUERY: Final[Mapping[Any, tuple[Schema, Callable[[Any, str], Any]]]] = {
    str: (STRING, query_text), int: (INTEGER, query_whole), bool: (BOOLEAN, query_flag), datetime: (TIME, query_time),
    float: (INTEGER, query_whole), Mapping[str, str]: (STRING, query_family),
}  # fmt: skip
_NUMBER_MAX_DIGITS: Final = 10
_encode = msgspec.json.Encoder().encode
Q = TypeVar("Q", bound=msgspec.Struct)


def route_of(row: Row) -> RestOperation:
    """Return the row of the table of routes."""
    rest, others = row.rest, others_of(row)
    types = {place.name: place.type for place in _places(row, others)}
    query = {**rest.query, **{name: text for other in others for name, text in other.rest.query.items()}}
    choices = {**rest.choices, **{name: values for other in others for name, values in other.rest.choices.items()}}
    needed = {place.name for place in row.places() if place.field in row.required}
    return RestOperation(
        rest.method, rest.path, None, row.needs, rest.id or row.name, row.tag, row.summary, row.description,
        parameters=[
            *(
                Parameter(
                    name, "query", text, _QUERY[types[name]][0] | _choices(choices.get(name)), name in needed
                )
                for name, text in query.items()
            ),
            *(Parameter(name, "header", text) for name, text in rest.headers.items()),
        ],
        body=None if rest.body is None else _schema_of(row, rest.body),
        body_required=rest.body is not None and rest.body.required,
        status=rest.status,
        answer=_answer_of(row, *(other for other in others if other.rest.status == rest.status)),
        errors=row.errors,
        also=[
            (other.rest.status, answer)
            for other in others
            if other.rest.status != rest.status and (answer := _answer_of(other)) is not None
        ],
        answer_description=rest.answers or "Done.",
        waits=bool(row.holds),
        for_people=rest.for_people,
    )  # fmt: skip


def routes_of(noun: ModuleType) -> list[RestOperation]:
    """Return the rows of the table of routes, of a noun's operations that have one."""
    return [route_of(row) for row in rows_of(noun) if row.is_over_rest and not row.rest.when]


def others_of(row: Row) -> list[Row]:
    """The operations with the same route, which a flag in the body asks for."""
    place = (row.rest.method, row.rest.path)
    return [other for other in ROUTED if other.rest.when and (other.rest.method, other.rest.path) == place]


def _places(row: Row, others: Iterable[Row]) -> list[FieldPlace]:
    """Return where the fields of all operations of a route stand, each once."""
    found = {place.name: place for one in (*others, row) for place in one.places()}
    return list(found.values())


def _choices(values: Sequence[str] | None) -> Schema:
    if values is None:
        return {}
    return {"const": values[0]} if len(values) == 1 else {"enum": [*values]}


def _schema_of(row: Row, body: Body) -> Schema:
    return struct(body_kind(row, body)) if body.schema is None else dict(body.schema)


def _answer_of(row: Row, *others: Row) -> Schema | None:
    if others:
        return {"anyOf": [_answer_of(one) for one in (row, *others)]}
    if row.rest.answer is not None:
        return dict(row.rest.answer)
    if row.items is not None:
        return list_in("items", row.items)
    return None if row.answers_nothing else struct(row.answer)


def kinds_of(rows: Iterable[Row]) -> list[Kind]:
    """Return the classes that their documents describe, each once."""
    bodies = [(row, row.rest.body) for row in rows if row.rest.body is not None and row.rest.body.schema is None]
    found = [body_kind(row, body) for row, body in bodies]
    answers = [row.items or row.answer for row in rows if not row.answers_nothing and row.rest.answer is None]
    return list(dict.fromkeys((*found, *answers)))


def required_of(rows: Iterable[Row]) -> dict[str, list[str]]:
    """The fields that bodies have to have, by the names of their schemas."""
    return {
        row.rest.body.name: [place.name for place in row.places() if place.field in row.required]
        for row in rows
        if row.rest.body is not None and row.rest.body.name and row.required
    }


_made: dict[str, Kind] = {}


def body_kind(row: Row, body: Body) -> Kind:
    """Return the class of a body: the field that it is, one that the row names, or one made of the fields that stand
    nowhere else."""
    if body.kind is not None:
        return body.kind
    if body.field:
        whole: list[Kind] = [place.type for place in row.places() if place.where is Where.WHOLE]
        return whole[0]
    if body.name not in _made:
        fields = [
            (place.field, msgspec.Raw, msgspec.field(default_factory=msgspec.Raw, name=place.name))
            if place.type is msgspec.Raw
            else (place.field, place.type | None, msgspec.field(default=None, name=place.name))
            for place in row.places()
            if place.where is Where.BODY
        ]
        namespace = {"__doc__": body.text}
        _made[body.name] = msgspec.defstruct(
            body.name, fields, bases=(codec.RequestBody,), namespace=namespace, kw_only=True
        )
    return _made[body.name]


def view_of(row: Row, bound: Mapping[str, Serve], limits: PayloadLimits, hiding: Hiding | None = None) -> Bound:
    """What serves the route: a view of the framework."""
    body, others = row.rest.body, others_of(row)
    places = _places(row, others)
    read = None if body is None else _body_reader(row, body, limits)

    async def view(**path: str) -> Response:
        given = _outside_body(row, places, path, hiding)
        if read is not None:
            if body is not None and body.not_xml and _is_xml(request.headers.get("Content-Type", "")):
                raise UnsupportedFormat(body.not_xml)
            data = await body_of(request)
            given |= await run_sized(len(data), partial(read, data))
        asked = next((other for other in others if given.get(other.rest.when)), row)
        said = {name: value for name in asked.request.__struct_fields__ if (value := given.get(name)) is not None}
        found = await bound[asked.name](asked.request(**said))  # what is left out has its default
        if isinstance(found, Instance) and text_bytes(found.variables) > INLINE_MAX_BYTES:
            await take_turn()
        return respond(Reply(asked.rest.status, _text_of(asked, found)))

    return view


def _is_xml(content_type: str) -> bool:
    return "xml" in content_type.partition(";")[0].lower()


def _text_of(row: Row, found: Any) -> bytes | None:
    """Return the body of an answer."""
    if row.items is not None:
        return b'{"items":%b}' % _encode(found)
    return None if row.answers_nothing else _encode(found)


_OUTSIDE: Final = frozenset({Where.PATH, Where.QUERY, Where.HEADER})


def asked_in_query(row: DeclaredOperation[Q, Any], hiding: Hiding) -> Q:
    """What the request that is served here asks for, where all of it stands in the query. Raises BadRequest."""
    given = _outside_body(row, row.places(), {}, hiding)
    return row.request(**{name: value for name, value in given.items() if value is not None})


def _outside_body(
    row: Row, places: Sequence[FieldPlace], path: Mapping[str, str], hiding: Hiding | None
) -> dict[str, Any]:
    """What stands in the path, the query and headers, by field. Raises BadRequest, also for a filter by what the caller
    is not shown: it would tell the value."""
    given = {place.field: _outside(row, place, path) for place in places if place.where in _OUTSIDE}
    for place in places:
        if place.type == Mapping[str, str] and hiding is not None and place.where is Where.QUERY:
            headers, prefix = list(request.scope["headers"]), place.name.removesuffix("*")
            for name in given[place.field]:
                if any(hides(hiding, one, headers) for one in (name, name.rpartition(".")[0])):
                    raise BadRequest(f"{prefix}{name[:NAME_MAX_CHARS]}: is hidden from the console")
    return given


def _outside(row: Row, place: FieldPlace, path: Mapping[str, str]) -> Any:
    """A field that stands in the path, the query or a header."""
    if place.where is Where.PATH:
        return number_of(place, path[place.name]) if place.type is int else path[place.name]
    if place.where is Where.HEADER:
        headers: dict[bytes, bytes] = dict(request.scope["headers"])
        return text_header(headers, place.name.lower().encode())
    if place.type is str:
        return query_text(request, place.name, row.rest.max_chars.get(place.name, NAME_MAX_CHARS))
    return _QUERY[place.type][1](request, place.name)


def number_of(place: FieldPlace, text: str) -> int:
    """Read a number that stands in a path. Raises NotFound."""
    if not (text.isascii() and text.isdigit() and len(text) <= _NUMBER_MAX_DIGITS and int(text) > 0):
        raise NotFound(f"{place.field} '{text[:20]}' is unknown")
    return int(text)


def _fields_in(row: Row, body: Body, limits: PayloadLimits, found: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a body, with those that others stand for. Raises BadRequest, PayloadTooLarge."""
    called: dict[str, str] = {}
    for other, name in body.aliases.items():
        value = found.pop(other)
        if not found[name] or (isinstance(found[name], msgspec.Raw) and bytes(found[name]) in (b"", b"null")):
            found[name], called[name] = value, other
    for name in row.maps:
        found[name] = given_variables(found[name], limits, called.get(name, name))
    for name in body.values:
        if bytes(found[name]) not in (b"", b"null"):
            check_json_value(bytes(found[name]), limits, name)
    return found


def _body_reader(row: Row, body: Body, limits: PayloadLimits) -> Callable[[bytes], dict[str, Any]]:
    """What reads the fields that stand in the body. It raises BadRequest."""
    kind: type[Any] = body_kind(row, body)
    read = codec.decoder(kind) if body.required else codec.optional_decoder(kind)
    if body.field in row.maps:
        return lambda data: {body.field: check_variables(data, limits, "body") if data.strip() else None}
    if kind is bytes:
        return lambda data: {body.field: data}
    if not body.field:
        return lambda data: _fields_in(row, body, limits, msgspec.structs.asdict(read(data)))
    read_names = codec.decoder(dict[str, msgspec.Raw]) if body.noun else None

    def read_whole(data: bytes) -> dict[str, Any]:
        if read_names is not None and (unknown := unknown_field(kind, read_names(data))) is not None:
            raise BadRequest(f"{check_text(unknown, 'body', NAME_MAX_CHARS)}: is not a field of {body.noun}")
        return {body.field: read(data)}

    return read_whole
