"""The ready worker for HTTP requests: a handler for jobs of the type ``http.request``.

A job's request is a variable (`HttpRequest`), and what comes back is another one. `penstock worker http` runs this
handler in a process of its own; nothing of it runs in the engine. Whoever uploads definitions decides what is sent, so
the process decides where it may go: to the allowed addresses only, to private networks only where that was said, and
with the secrets that it was given by name.
"""

from __future__ import annotations

import ipaddress
import math
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote

import anyio
import httpx
import msgspec

from penstock.client.rest import OnePieceBody
from penstock.worker.context import JobContext
from penstock.worker.errors import StepError

JOB_TYPE: Final = "http.request"
VARIABLE: Final = "http"
"""Where a request is looked for when no variable has the id of the step."""
ANSWER_MAX_BYTES: Final = 256 * 1024
HEADERS_MAX_BYTES: Final = 16 * 1024
TIMEOUT_S: Final = 30.0
TIMEOUT_MAX_S: Final = 600.0
ERROR_BODY_MAX_CHARS: Final = 2_000
TRIED_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which a request may succeed later."""
_HEADERS: Final = {
    "Accept": "application/json, */*;q=0.5",
    "Accept-Encoding": "identity",  # a few compressed bytes could become more than there is memory
    "User-Agent": "penstock-worker-http",
}
_SECRET: Final = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class HttpRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A request, as a variable of the instance says it.

    ``body`` is sent as JSON; a text is sent as it is. ``{{NAME}}`` in a header is the secret of that name.
    ``result`` is the variable for the answer: by default the request's own name with ``Response`` after it.
    """

    url: str
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] = "GET"
    headers: dict[str, str] = {}
    query: dict[str, str | int | float | bool] = {}
    body: Any = msgspec.UNSET
    timeout_seconds: float = TIMEOUT_S
    result: str | None = None


class AllowedPlace(NamedTuple):
    """Where requests may go: an origin, and the path below which they stay."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, text: str) -> AllowedPlace:
        """Read ``https://api.example/v2``. Raises ValueError for what is no such address."""
        try:
            url = httpx.URL(text)
        except httpx.InvalidURL as error:
            raise ValueError(f"{text!r} is not a URL: {error}") from None
        if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query or url.fragment:
            raise ValueError(f"{text!r}: give an address such as https://api.example or https://api.example/v2")
        return cls(url.scheme, url.host, _port(url), url.path.rstrip("/"))

    def holds(self, url: httpx.URL) -> bool:
        """Return whether a URL is of this place. A path with ``..`` in any form is of none."""
        path = unquote(unquote(url.raw_path.split(b"?")[0].decode("ascii")))
        if (url.scheme, url.host, _port(url)) != self[:3] or ".." in re.split(r"[/\\]", path):
            return False
        return path == self.path or path.startswith(self.path + "/")


class RequestSecret(NamedTuple):
    """A secret that requests may name, and where it may go; None: to every allowed place."""

    value: str
    place: AllowedPlace | None = None


class HttpRequests:
    """The handler, for one process.

    Args:
        allow: where requests may go.
        private: networks that are not public and may be called all the same, such as 10.0.0.0/8.
        secrets: by name, what ``{{NAME}}`` in a header stands for.
        answer_max_bytes: the most bytes of an answer's body; a larger one fails the job.
        tls: for authorities of your own; by default the well-known ones are trusted.
    """

    def __init__(
        self,
        allow: Sequence[AllowedPlace],
        *,
        private: Sequence[Network] = (),
        secrets: Mapping[str, RequestSecret] | None = None,
        answer_max_bytes: int = ANSWER_MAX_BYTES,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if not allow:
            raise ValueError("allow: say where requests may go, such as https://api.example")
        self._allow = tuple(allow)
        self._private = tuple(private)
        self._secrets = dict(secrets or {})
        self._answer_max_bytes = answer_max_bytes
        self._tls = tls or httpx.create_ssl_context()

    async def handle(self, variables: dict[str, Any], context: JobContext) -> dict[str, Any]:
        """Run the request of a job: the handler. Raises StepError with the code of what went wrong."""
        name = context.step_id if context.step_id in variables else VARIABLE
        request = read_request(variables, name, context.step_id)
        url = self._checked(request.url)
        headers = self._headers(request, url, context.idempotency_key)
        result = request.result or f"{name}Response"
        try:
            with anyio.fail_after(request.timeout_seconds):
                answer = await self._send(request, url, headers)
        except TimeoutError:
            raise StepError(
                "HTTP_TIMEOUT", f"{_shown(url)} did not answer within {request.timeout_seconds:g} s"
            ) from None
        except (httpx.HTTPError, OSError) as error:
            raise StepError("HTTP_UNREACHABLE", f"{_shown(url)}: {self._masked(str(error) or repr(error))}") from None
        if answer["status"] < 400:
            return {result: answer}
        shown = answer["body"] if isinstance(answer["body"], str) else msgspec.json.encode(answer["body"]).decode()
        raise StepError(
            f"HTTP_{answer['status']}",
            f"{_shown(url)} answered {answer['status']}: {self._masked(shown[:ERROR_BODY_MAX_CHARS])}",
            variables={result: answer},
            retryable=answer["status"] in TRIED_AGAIN,
        )

    def _checked(self, text: str) -> httpx.URL:
        try:
            url = httpx.URL(text)
        except httpx.InvalidURL as error:
            raise StepError("HTTP_INVALID", f"url: {error}", retryable=False) from None
        if not any(place.holds(url) for place in self._allow):
            raise StepError(
                "HTTP_NOT_ALLOWED", f"url: {_shown(url)} is not below an address that --allow gives", retryable=False
            )
        return url

    def _headers(self, request: HttpRequest, url: httpx.URL, key: str) -> httpx.Headers:
        def secret(found: re.Match[str]) -> str:
            one = self._secrets.get(found[1])
            if one is None or (one.place is not None and not one.place.holds(url)):
                reason = f"headers: {{{{{found[1]}}}}} is not a secret that --secret gives for this address"
                raise StepError("HTTP_NOT_ALLOWED", reason, retryable=False)
            return one.value

        headers = httpx.Headers(_HEADERS)
        if request.method in ("POST", "PATCH"):
            headers["Idempotency-Key"] = key
        for name, value in request.headers.items():
            if name.lower() in ("host", "content-length", "transfer-encoding", "connection"):
                raise StepError("HTTP_INVALID", f"headers: {name} is not yours to set", retryable=False)
            filled = _SECRET.sub(secret, value)
            if not name.isascii() or not filled.isprintable():
                raise StepError("HTTP_INVALID", f"headers: {name!r} holds what no header can", retryable=False)
            headers[name] = filled
        return headers

    async def _send(self, request: HttpRequest, url: httpx.URL, headers: httpx.Headers) -> dict[str, Any]:
        address = await self._resolve(url)
        if request.query:
            url = url.copy_merge_params(request.query)
        content: bytes | None = None
        if request.body is not msgspec.UNSET:
            content = request.body.encode() if isinstance(request.body, str) else msgspec.json.encode(request.body)
            kind = "text/plain; charset=utf-8" if isinstance(request.body, str) else "application/json"
            headers.setdefault("Content-Type", kind)
        # To the very address that was checked: asked again, the name could lead elsewhere by then.
        headers["Host"] = url.netloc.decode("ascii")
        async with httpx.AsyncClient(verify=self._tls, trust_env=False, timeout=request.timeout_seconds) as client:
            sent = client.build_request(
                request.method,
                url.copy_with(host=address),
                headers=headers,
                content=content,
                extensions={"sni_hostname": url.host} if url.scheme == "https" else {},
            )
            if content is not None:
                sent.stream = OnePieceBody(content)
            response = await client.send(sent, stream=True, follow_redirects=False)
            try:
                return await self._read(response, url)
            finally:
                await response.aclose()

    async def _resolve(self, url: httpx.URL) -> str:
        found = await anyio.getaddrinfo(url.host, _port(url), type=socket.SOCK_STREAM)
        addresses = [str(each[4][0]) for each in found]
        for text in addresses:
            address = ipaddress.ip_address(text.partition("%")[0])
            mapped = getattr(address, "ipv4_mapped", None) or address
            if not (mapped.is_global and not mapped.is_multicast) and not any(mapped in one for one in self._private):
                reason = f"url: {url.host} is {text}, a private address; --private gives networks that may be called"
                raise StepError("HTTP_NOT_ALLOWED", reason, retryable=False)
        return addresses[0]

    async def _read(self, response: httpx.Response, url: httpx.URL) -> dict[str, Any]:
        headers = {name.lower(): value for name, value in response.headers.items()}
        if sum(len(name) + len(value) for name, value in headers.items()) > HEADERS_MAX_BYTES:
            raise StepError(
                "HTTP_TOO_LARGE", f"{_shown(url)}: over {HEADERS_MAX_BYTES} bytes of headers", retryable=False
            )
        body = bytearray()
        with anyio.CancelScope() as reading:  # to break off an async generator would leave it to the garbage collector
            async for piece in response.aiter_raw():
                if len(body) + len(piece) > self._answer_max_bytes:
                    reading.cancel()
                else:
                    body += piece
        if reading.cancel_called:
            reason = f"{_shown(url)}: the body is over {self._answer_max_bytes} bytes"
            raise StepError("HTTP_TOO_LARGE", reason, retryable=False)
        return {"status": response.status_code, "headers": headers, "body": _value(bytes(body), response, url)}

    def _masked(self, text: str) -> str:
        for name, secret in self._secrets.items():
            text = text.replace(secret.value, f"{{{{{name}}}}}") if secret.value else text
        return text


def read_request(variables: Mapping[str, Any], name: str, step_id: str) -> HttpRequest:
    """Return the request in a variable. Raises StepError, which names the field."""
    if name not in variables:
        reason = f"there is no request: set the variable {step_id!r} or {VARIABLE!r} to an object with a url"
        raise StepError("HTTP_INVALID", reason, retryable=False)
    try:
        request = msgspec.convert(variables[name], HttpRequest)
    except msgspec.ValidationError as error:
        raise StepError("HTTP_INVALID", f"{name}: {error}", retryable=False) from None
    if not (math.isfinite(request.timeout_seconds) and 0 < request.timeout_seconds <= TIMEOUT_MAX_S):
        raise StepError("HTTP_INVALID", f"{name}.timeoutSeconds: over 0, at most {TIMEOUT_MAX_S:g}", retryable=False)
    return request


def _value(body: bytes, response: httpx.Response, url: httpx.URL) -> Any:
    """Return the body: what its JSON means, else its text; None where there is none. Reads that of an error
    leniently."""
    if not body:
        return None
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise ValueError("it is compressed, which was not asked for")
        if kind == "application/json" or kind.endswith("+json"):
            if b"\\u0000" in body:
                raise ValueError("it holds NUL, which no variable can")
            return msgspec.json.decode(body)
        text = body.decode(response.charset_encoding or "utf-8")
        if "\0" in text:
            raise ValueError("it is neither JSON nor text")
    except (ValueError, LookupError, RecursionError) as error:  # msgspec's and Unicode's errors are ValueErrors
        if response.status_code >= 400:
            return body.decode("ascii", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
        raise StepError("HTTP_UNREADABLE", f"{_shown(url)}: the body can't be read: {error}", retryable=False) from None
    return text


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _shown(url: httpx.URL) -> str:
    """Without what may be secret: a user, a query."""
    return str(url.copy_with(userinfo=b"", query=None, fragment=None))
