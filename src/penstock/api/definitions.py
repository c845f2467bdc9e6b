"""The operations on definitions. Those on their use only REST has: the console calls them.

`workflow.v1` has messages of its own to upload, read and list them, which are served and sent by hand.
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw, Struct

from penstock.api.operation import (
    CURSOR_MAX_CHARS,
    PAGE,
    SLICE,
    Body,
    DeclaredOperation,
    Grpc,
    Repeat,
    Rest,
    nothing_in,
)
from penstock.api.permission import Permission
from penstock.wire import repair_v1 as w
from penstock.wire.definition_use import DefinitionActivity, TokensView, VariablesInUse, VersionCounts, VersionView
from penstock.wire.model import DefinitionSummary
from penstock.wire.page import Page
from penstock.wire.repair import ImpactView

_PATH: Final = "/v1/definitions/{id}"
_SERVICE: Final = "/penstock.v1.Repair/"
_ID: Final = {"definition_id": "id"}
_DOCUMENT: Final = {"$ref": "#/components/schemas/Definition"}


class UploadDefinition(Struct, frozen=True):
    """JSON text."""

    document: bytes


class ListDefinitions(Struct, frozen=True):
    """Of which definitions, and which part of the list."""

    keyword: str | None = None
    page: int | None = None
    page_size: int | None = None
    cursor: str | None = None
    limit: int | None = None


class GetDefinition(Struct, frozen=True):
    """Which definition: its active version."""

    id: str


class GetDefinitionVersion(Struct, frozen=True):
    """Which version of which definition."""

    id: str
    version: int


class ListDefinitionActivity(Struct, frozen=True):
    """Of which definitions."""

    keyword: str | None = None
    limit: int | None = None
    cursor: str | None = None


class ListVersions(Struct, frozen=True):
    """Of which definition, and which part of its versions."""

    id: str
    limit: int | None = None
    cursor: str | None = None


class ListTokens(Struct, frozen=True):
    """Of which definition and version; 0 is the latest one."""

    id: str
    version: int = 0


class ListVariables(Struct, frozen=True):
    """Of which definition."""

    id: str


UPLOAD_DEFINITION: Final = DeclaredOperation(
    name="uploadDefinition",
    summary="Upload a definition",
    description=(
        "The same content for an id gives its existing version again. Changed content makes the next version. New"
        " starts use the version that was uploaded last, also a former one (`active`), so an upload of the former"
        " text rolls back. The answer names every problem. Any content type but XML is read as JSON."
    ),
    tag="definitions",
    request=UploadDefinition,
    answer=DefinitionSummary,
    needs=Permission.MODEL,
    rest=Rest(
        "POST",
        "/v1/definitions",
        body=Body(field="document", schema=_DOCUMENT, not_xml="definitions are read as JSON, not as XML"),
        status=201,
    ),
    errors=(400, 415),
)
LIST_DEFINITIONS: Final = DeclaredOperation(
    name="listDefinitions",
    summary="List the active versions",
    tag="definitions",
    request=ListDefinitions,
    answer=Page[DefinitionSummary],
    needs=Permission.VIEW,
    rest=Rest(
        "GET",
        "/v1/definitions",
        {"keyword": "In the id or the name, whatever its case.", **PAGE},
        max_chars={"cursor": CURSOR_MAX_CHARS},
    ),
    errors=(400,),
)
GET_DEFINITION: Final = DeclaredOperation(
    name="getDefinition",
    summary="Read the active version",
    description="The definition as it was uploaded, with `version`.",
    tag="definitions",
    request=GetDefinition,
    answer=Raw,
    needs=Permission.VIEW,
    rest=Rest("GET", _PATH, answer=_DOCUMENT),
    errors=(404,),
)
GET_DEFINITION_VERSION: Final = DeclaredOperation(
    name="getDefinitionVersion",
    summary="Read a version",
    description="The definition as it was uploaded, with `version`.",
    tag="definitions",
    request=GetDefinitionVersion,
    answer=Raw,
    needs=Permission.VIEW,
    rest=Rest("GET", _PATH + "/versions/{number}", names={"version": "number"}, answer=_DOCUMENT),
    errors=(404,),
)
ACTIVATE_VERSION: Final = DeclaredOperation(
    name="activateVersion",
    summary="Activate a version for new starts (addition)",
    description=(
        "New starts use this version, also those of schedules, calls and chains that name none. Open instances "
        "stay on their version. The next upload makes its version the active one. 409: it is a durable workflow."
    ),
    tag="definitions",
    request=w.ActivateVersionRequest,
    answer=DefinitionSummary,
    needs=Permission.MODEL,
    rest=Rest("POST", _PATH + "/versions/{number}/activate", names=_ID | {"version": "number"}),
    grpc=Grpc(_SERVICE + "ActivateVersion", answer=w.ActivateVersionResponse),
    errors=(404, 409),
)
DELETE_DEFINITION: Final = DeclaredOperation(
    name="deleteDefinition",
    summary="Delete a durable workflow that no program serves (addition)",
    description=(
        "In all versions: no list shows it, it can't be started, and its id is free. Runs that have ended stay. A"
        " program that registers it again brings it back. 409: it is another definition, a program serves it (as "
        "of the last 30 s), or runs are open."
    ),
    tag="definitions",
    request=w.DeleteDefinitionRequest,
    answer=type(None),
    needs=Permission.MODEL,
    rest=Rest("DELETE", _PATH, status=204, names=_ID),
    grpc=nothing_in(_SERVICE + "DeleteDefinition", w.DeleteDefinitionResponse),
    errors=(400, 404, 409),
    repeat=Repeat.UNTIL_GONE,
)
GET_IMPACT: Final = DeclaredOperation(
    name="getImpact",
    summary="Find open instances that a new version would not fit (addition)",
    description=(
        "The body is a definition as you would upload it. Without a body it is the one of `version` (0, or none: "
        "the latest). Nothing is stored. You get by version and step how many instances stand there. `change` is "
        "SAME, CHANGED or REMOVED (by its id: a renamed step is REMOVED, and `steps` of a migration maps it). "
        "`reasons` keep an instance that stands there from going on in it. `refusals` are of up to 1,000 of the "
        "newest instances, tried as a migration would be, for two seconds at most. Open instances stay on their "
        "version."
    ),
    tag="definitions",
    request=w.GetImpactRequest,
    answer=ImpactView,
    needs=Permission.VIEW,
    rest=Rest(
        "POST",
        _PATH + "/impact",
        {"version": "One that was uploaded; 0, or none: the latest."},
        Body(field="definition", schema=_DOCUMENT, required=False),
        names=_ID,
        id="impact",
    ),
    grpc=Grpc(_SERVICE + "GetImpact"),
    errors=(400, 404, 409, 503),
)
LIST_DEFINITION_ACTIVITY: Final = DeclaredOperation(
    name="listDefinitionActivity",
    summary="Read how much is going on in each definition (addition)",
    description=(
        "For the definitions that `GET /v1/definitions` lists with the same `keyword`, `limit` and `cursor`. "
        "`open` counts open instances as of the last minute (an estimate if `sampled`). `startedWithinHour` and "
        "`failedOfThese` are counted to 1,000 each."
    ),
    tag="definitions",
    request=ListDefinitionActivity,
    answer=Page[DefinitionActivity],
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/definition-activity", {"keyword": "In the id or the name, whatever its case.", **SLICE}),
    errors=(400, 503),
)
LIST_VERSIONS: Final = DeclaredOperation(
    name="listVersions",
    summary="List versions, newest first (addition)",
    description="`open` counts open instances, if `…/tokens` was read within a minute.",
    tag="definitions",
    request=ListVersions,
    answer=Page[VersionView],
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/definitions/{id}/versions", SLICE),
    errors=(400, 404, 503),
)
COUNT_VERSIONS: Final = DeclaredOperation(
    name="countVersions",
    summary="Count the instances of versions by status (addition)",
    description=(
        "Newest version first, at most 20. Exact for a version with up to 10,000 instances, else from a sample, "
        "with `totalIsEstimate`."
    ),
    tag="definitions",
    request=ListVersions,
    answer=Page[VersionCounts],
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/definitions/{id}/counts", SLICE),
    errors=(400, 404, 503),
)
LIST_TOKENS: Final = DeclaredOperation(
    name="listTokens",
    summary="Count the instances at each step (addition)",
    description=(
        "As of the last minute, for a `version` (by default the latest). `failed` is counted to 10,000. With more"
        " than 500,000 open branches the numbers are estimated."
    ),
    tag="definitions",
    request=ListTokens,
    answer=TokensView,
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/definitions/{id}/tokens", {"version": "0, or none: the latest."}),
    errors=(404, 503),
)
LIST_VARIABLES: Final = DeclaredOperation(
    name="listVariables",
    summary="List the variables that instances of a definition have (addition)",
    description=(
        "By name, with their JSON types and in how many instances they are, of the newest 100 instances of any version."
    ),
    tag="definitions",
    request=ListVariables,
    answer=VariablesInUse,
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/definitions/{id}/variables"),
    errors=(404, 503),
)
