"""Whether the hot path runs as C here (tools/compiled.py) or as the Python that stands beside it.

A leaf, and light: `penstock --version` imports it.
"""

from __future__ import annotations

import os
from importlib.machinery import EXTENSION_SUFFIXES

from penstock import __version__


def is_compiled() -> bool:
    """Return whether the compiled modules are there: all of them come with one wheel, or none."""
    beside = os.path.join(os.path.dirname(__file__), "loop", "poller")
    return any(os.path.exists(beside + suffix) for suffix in EXTENSION_SUFFIXES)


def shown_version() -> str:
    """The version, and that it is the compiled one if it is."""
    return f"{__version__} (compiled)" if is_compiled() else __version__
