"""Where a workflow function stands, so that two programs with a workflow of one name are told from one that moved."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

_MAIN: Final = ("__main__", "__mp_main__")


class Origin(NamedTuple):
    """``name``: import name of the module, of a script run directly the file's stem, and the function's name. The same
    for a module however it is run. ``folder``: of its file."""

    name: str
    folder: str


def origin_of(function: Callable[..., Any]) -> Origin:
    """Return the origin of a workflow function."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    file = "" if code is None else code.co_filename
    folder = os.path.dirname(os.path.realpath(file)) if os.path.isfile(file) else os.getcwd()
    name = getattr(function, "__name__", type(function).__name__)
    return Origin(f"{_module_name(function.__module__)}.{name}", folder)


def _module_name(name: str) -> str:
    if name not in _MAIN:
        return name
    main = sys.modules.get(name)
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    return name if file is None else os.path.splitext(os.path.basename(file))[0]
