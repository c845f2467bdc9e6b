"""The OpenAPI 3.1 document: the operations of `operations`, with the schemas of `schemas`.

Pure. A test holds it against the routes and against the OpenAPI schema.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec

from penstock import __version__
from penstock.access.roles import LEAST_ROLE
from penstock.api.permission import Permission
from penstock.rest.operation import Parameter, RestOperation, ref
from penstock.rest.operations import OPERATIONS, TAGS
from penstock.rest.schemas import component_schemas

Json = dict[str, Any]

_DESCRIPTION: Final = """\
A durable workflow engine. Bodies are JSON in camelCase. In requests unknown fields are ignored and a null field counts
as absent (a definition refuses unknown fields). Times are RFC 3339 in UTC. Lists are `[]` when empty.
Every answer that is not a success has the body `Error`."""
_REASONS: Final = {
    400: "The request is wrong; `reason` names the field.",
    401: "With authentication: no token, or one that is wrong.",
    403: "The caller lacks the role; without authentication: a web page of another origin.",
    404: "Unknown.",
    409: "Its state does not allow it.",
    410: "Jobs are dispatched through Kafka.",
    413: "Too large.",
    415: "An XML content type.",
    422: "A value does not fit what the program that gets it has published; `problems` has its place.",
    429: "Too many of these at once; try again.",
    503: "The database is away or the engine is stopping; try again.",
}
_COMMON_ERRORS: Final = (413, 503)
_PROOF: Final = "An API token, or a JSON Web Token of the issuer. Engines without authentication need none."


@cache
def openapi_json() -> bytes:
    """Return the document as JSON."""
    return msgspec.json.encode(openapi_document())


def openapi_document() -> Json:
    """Return the document."""
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": __version__, "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": component_schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": _PROOF}},
        },
    }


def _operation(operation: RestOperation) -> Json:
    found: Json = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "parameters": [_parameter(parameter) for parameter in operation.all_parameters()],
        "responses": {
            str(operation.status): _response(operation),
            **{str(status): _response(operation._replace(answer=answer)) for status, answer in operation.also},
            **_errors(operation),
        },
    }
    needed = operation.needs
    if needed is not Permission.NONE:
        found["security"] = [{}, {"token": []}]
    if needed in LEAST_ROLE:
        found["x-penstock-role"] = LEAST_ROLE[needed].value
    if operation.description:
        found["description"] = operation.description
    if operation.body is not None:
        content = {"application/json": {"schema": operation.body}}
        found["requestBody"] = {"required": operation.body_required, "content": content}
    return found


def _parameter(parameter: Parameter) -> Json:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.required or parameter.place == "path",
        "description": parameter.description,
        "schema": parameter.schema,
    }


def _response(operation: RestOperation) -> Json:
    if operation.answer is None:
        return {"description": operation.answer_description}
    return {
        "description": operation.answer_description,
        "content": {operation.answer_type: {"schema": operation.answer}},
    }


def _errors(operation: RestOperation) -> Json:
    statuses = {*operation.errors, *(_COMMON_ERRORS if operation.method == "POST" else ())}
    if operation.needs is not Permission.NONE:
        statuses |= {401, 403}
    if operation.refuses_unknown_parameters:
        statuses.add(400)
    content = {"application/json": {"schema": ref("Error")}}
    return {str(status): {"description": _REASONS[status], "content": content} for status in sorted(statuses)}
