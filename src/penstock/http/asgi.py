"""The shapes of ASGI 3 that the servers and the application agree on.

Messages and scopes are plain dictionaries, as the ASGI specification has them: both servers and quart-trio exchange
them, so nothing stricter would hold.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CERTIFICATE = "penstock.certificate"
"""An ASGI extension: whom the client's TLS certificate names, such as ``dns:w.example``."""

ON_PROVED = "penstock.on_proved"
"""An ASGI extension: to be called when it is known who calls, so that the connection makes room for nobody."""

Headers = list[tuple[bytes, bytes]]
Pairs = tuple[tuple[bytes, bytes], ...]
"""Headers that can be looked up."""
