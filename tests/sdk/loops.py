"""The type of the `run` fixture."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

Run = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]
