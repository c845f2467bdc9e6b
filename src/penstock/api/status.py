"""The operations that tell people how an engine and its work are. Only REST has them: the console calls them."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.api.operation import SLICE, DeclaredOperation, Rest
from penstock.api.permission import Permission
from penstock.wire.failures import FailureList
from penstock.wire.me import Me
from penstock.wire.open_work import TimerView
from penstock.wire.overview import EngineList, OverviewView
from penstock.wire.page import Page
from penstock.wire.setting import SettingView

DEFAULT_RANGE: Final = "15m"
"""Of the overview."""


class GetOverview(Struct, frozen=True):
    """Over which time."""

    range: str = DEFAULT_RANGE


class ListFailures(Struct, frozen=True):
    """Of which definition, over which time."""

    definition_id: str | None = None
    range: str = "24h"


class ListEngines(Struct, frozen=True):
    """All of them."""


class ListTimers(Struct, frozen=True):
    """Which timers to list."""

    kind: str | None = None
    limit: int | None = None
    cursor: str | None = None


class GetMe(Struct, frozen=True):
    """Whoever calls."""


class ListSettings(Struct, frozen=True):
    """All of them."""


LIST_FAILURES: Final = DeclaredOperation(
    name="listFailures",
    summary="List failures by cause (addition)",
    description=(
        "The newest 1,000 failures of instances that started within `range` (`24h`, or `all`), of one "
        "`definitionId` (among the newest 100,000) or of all. They are grouped by definition, version, step and "
        "cause. `text` has the error code and the reason of the newest failure. Use it as the filter `cause` of "
        "lists. Failures have one cause if their code is the same and their reasons differ only in quoted parts, "
        "URLs, mail addresses, paths, UUIDs, IP addresses, hexadecimal ids and numbers. The number of a status "
        "(`HTTP 503`, `exit code 1`) tells causes apart."
    ),
    tag="instances",
    request=ListFailures,
    answer=FailureList,
    needs=Permission.VIEW,
    rest=Rest(
        "GET",
        "/v1/failures",
        {"definitionId": "Of any version.", "range": "`15m`, `1h`, `24h` (the default), `7d` or `all`."},
    ),
    errors=(400, 503),
)
OVERVIEW: Final = DeclaredOperation(
    name="overview",
    summary="Read the overview (addition)",
    description=(
        "The numbers of the console's first page. Rates come from samples of all engines, queues from this "
        "engine's measurement of the last ten seconds."
    ),
    tag="service",
    request=GetOverview,
    answer=OverviewView,
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/overview", {"range": "`15m` (the default), `1h`, `24h` or `7d`."}),
    errors=(400,),
)
LIST_ENGINES: Final = DeclaredOperation(
    name="listEngines",
    summary="List engines, also those of the last day (addition)",
    description=(
        "`report` has what each engine said of itself within five seconds, `database` what matters of the database."
    ),
    tag="service",
    request=ListEngines,
    answer=EngineList,
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/engines"),
)
LIST_TIMERS: Final = DeclaredOperation(
    name="listTimers",
    summary="List open timers, next first (addition)",
    description="`kind` is `boundary`, `retry`, `wait` or `wake`. A page may be short before the last one.",
    tag="service",
    request=ListTimers,
    answer=Page[TimerView],
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/timers", {"kind": "`boundary`, `retry`, `wait` or `wake`.", **SLICE}),
    errors=(400, 503),
)
LIST_SETTINGS: Final = DeclaredOperation(
    name="listSettings",
    summary="List the settings of the engine that answers (addition)",
    description="For secrets you get only whether they are set.",
    tag="service",
    request=ListSettings,
    answer=list[SettingView],
    needs=Permission.OPERATE,
    rest=Rest("GET", "/v1/settings"),
)
GET_ME: Final = DeclaredOperation(
    name="me",
    summary="Read who calls, and what they may do (addition)",
    description="`can` has `view`, `operate`, `model`, `tasks`, `work`. `jobTypes`: work of these job types only.",
    tag="service",
    request=GetMe,
    answer=Me,
    needs=Permission.PROVED,
    rest=Rest("GET", "/v1/me", answers="`can` holds `view`, `operate`, `model`, `tasks`, `work`."),
)
