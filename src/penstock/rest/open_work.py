"""The route on the attempts of a job: who calls decides whether stack traces are shown."""

from __future__ import annotations

from typing import Final, cast

import msgspec
from quart import Response, request

from penstock.engine.engine import Engine
from penstock.engine.status.open_work import UnlockBody
from penstock.log.masking import MASK, mask_text
from penstock.rest.codec import optional_decoder
from penstock.rest.exchange import NO_CONTENT, Reply, Scope
from penstock.rest.hiding import hides
from penstock.rest.reading import body_of, query_number, query_text, respond
from penstock.settings import SETTINGS, Secret, SettingInfo, Settings

_read_unlock = optional_decoder(UnlockBody)
_encode = msgspec.json.Encoder().encode


STACK_TRACE: Final = "stackTrace"
"""By this name a pattern hides the stack traces of workers from the console."""


class SettingView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One setting of this engine. Of a secret only whether it is ``set``; ``default`` is empty where there is none."""

    name: str
    env: str
    group: str
    description: str
    set: bool
    value: str = ""
    default: str = ""
    secret: bool = False


class OpenWorkRoutes:
    """One route."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def timers(self) -> Response:
        """``GET /v1/timers``"""
        found = await self._engine.open_work.timers(
            query_text(request, "kind"), query_text(request, "cursor"), query_number(request, "limit", 50)
        )
        return respond(Reply(200, _encode(found)))

    async def job_types(self) -> Response:
        """``GET /v1/job-types``"""
        return respond(Reply(200, b'{"items":%b}' % _encode(await self._engine.overview.job_types())))

    async def unlock(self, id: str) -> Response:
        """``POST /v1/jobs/{id}/unlock``"""
        await self._engine.open_work.unlock(id, _read_unlock(await body_of(request)).note)
        return respond(NO_CONTENT)

    async def attempts(self, id: str) -> Response:
        """``GET /v1/executions/{id}/attempts``"""
        found = await self._engine.attempts.of(id)
        if hides(self._engine.hiding, STACK_TRACE, cast("Scope", request.scope)["headers"]):
            found = [msgspec.structs.replace(one, stack_trace=MASK if one.stack_trace else None) for one in found]
        return respond(Reply(200, b'{"items":%b}' % _encode(found)))

    async def forget_checkpoint(self, id: str) -> Response:
        """``DELETE /v1/jobs/{id}/checkpoint``"""
        await self._engine.attempts.forget_checkpoint(id, query_text(request, "note"))
        return respond(NO_CONTENT)

    async def settings(self) -> Response:
        """``GET /v1/settings``"""
        return respond(Reply(200, b'{"items":%b}' % _encode(settings_of(self._engine.settings))))


def settings_of(settings: Settings) -> list[SettingView]:
    """As they may be shown: no secret, and no password in an address."""
    return [
        SettingView(
            name=info.name,
            env=info.env,
            group=info.group,
            description=info.description,
            set=(value := getattr(settings, info.name)) != info.default,
            value="" if _is_secret(info) else _text(value),
            default="" if _is_secret(info) else _text(info.default),
            secret=_is_secret(info),
        )
        for info in SETTINGS.values()
    ]


def _is_secret(info: SettingInfo) -> bool:
    return info.secret or info.name == "api_tokens"  # their digests are no secrets, and nobody's business


def _text(value: object) -> str:
    if value is None or isinstance(value, Secret):
        return ""
    if isinstance(value, tuple):
        return ", ".join(map(_text, cast("tuple[object, ...]", value)))
    if isinstance(value, bool):
        return "true" if value else "false"
    return mask_text(str(value))
