"""What the framework's routes read from a request beside its body, and how their answers become the framework's."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote_to_bytes

from quart import Request, Response

from penstock.engine.requests.paging import NAME_MAX_CHARS
from penstock.engine.requests.payload import check_text
from penstock.errors import BadRequest
from penstock.rest.exchange import Reply, Scope

if TYPE_CHECKING:
    from penstock.rest.operation import RestOperation

ROUTE: Final = "penstock.route"
"""Key in the scope under which the row of the route is left."""
_WHOLE: Final = re.compile(r"-?[0-9]{1,30}")
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}


def respond(reply: Reply) -> Response:
    """Return the framework's form of a reply."""
    response = Response(reply.body or b"", reply.status, content_type=reply.content_type.decode())
    for name, value in reply.headers:
        response.headers.add(name.decode(), value.decode())
    return response


async def body_of(request: Request) -> bytes:
    """The whole body, which the application has read before."""
    body = await request.get_data()
    assert isinstance(body, bytes)
    return body


def _given(request: Request, name: str) -> str | None:
    """The route's row names every parameter that its handler reads; else the documentation would lack it."""
    operation: RestOperation = cast("Scope", request.scope)[ROUTE]
    assert name in operation.query_names, f"{operation.id} reads {name}, which its row in rest/operations.py lacks"
    value: str | None = request.args.get(name)
    return value


def query_text(request: Request, name: str, max_chars: int = NAME_MAX_CHARS) -> str | None:
    """A parameter of the query, None when it is absent or empty. Raises BadRequest for what can't be searched for."""
    value = _given(request, name)
    if value and "%" in value:  # the framework leaves what is no UTF-8 as it came
        try:
            unquote_to_bytes(request.query_string).decode()
        except UnicodeDecodeError:
            raise BadRequest(f"{name}: not UTF-8") from None
    return check_text(value, name, max_chars) if value else None


def query_family(request: Request, name: str) -> dict[str, str]:
    """All parameters of a family, ``attr.*``, by what their names have after the dot. Raises BadRequest for one that
    is given twice."""
    operation: RestOperation = cast("Scope", request.scope)[ROUTE]
    assert name in operation.query_names, f"{operation.id} reads {name}, which its row in rest/operations.py lacks"
    prefix = name.removesuffix("*")
    found: dict[str, str] = {}
    for key, value in request.args.items(multi=True):
        if key.startswith(prefix):
            part = key.removeprefix(prefix)
            if part in found:
                raise BadRequest(f"{prefix}{part[:NAME_MAX_CHARS]}: is given twice")
            found[part] = value
    return found


def query_number(request: Request, name: str, default: int = 0) -> int:
    """Return a whole number. Raises BadRequest."""
    found = query_whole(request, name)
    return default if found is None else found


def query_whole(request: Request, name: str) -> int | None:
    """A whole number, None when it is absent or empty. Raises BadRequest."""
    value = _given(request, name)
    if not value:
        return None
    if _WHOLE.fullmatch(value) is None:
        raise BadRequest(f"{name}: must be a whole number")
    return int(value)


def query_time(request: Request, name: str) -> datetime | None:
    """An RFC 3339 time with its zone. Raises BadRequest."""
    value = _given(request, name)
    if not value:
        return None
    try:
        found = datetime.fromisoformat(value)
        if found.tzinfo is None:
            raise ValueError
        found.timestamp()
    except (ValueError, OverflowError):
        raise BadRequest(f"{name}: must be a time such as 2026-01-31T12:00:00Z") from None
    return found


def query_flag(request: Request, name: str) -> bool:
    """``true``, ``false``, ``1`` or ``0``. Raises BadRequest."""
    value = _given(request, name)
    if not value:
        return False
    flag = _FLAGS.get(value.lower())
    if flag is None:
        raise BadRequest(f"{name}: must be true or false")
    return flag
