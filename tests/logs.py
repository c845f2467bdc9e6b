"""Logging is one per process: whoever sets it up in a test puts it back."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

import structlog

from penstock.log.log import set_trace


def plain_tracebacks() -> None:
    """What an exception leaves in the log where nothing set it up: Python's own text. Rich's, with all locals and the
    sources in colours, takes 0.3 s of CPU for each, and nobody reads it."""
    for processor in structlog.get_config()["processors"]:
        if isinstance(processor, structlog.dev.ConsoleRenderer):
            processor.exception_formatter = structlog.dev.plain_traceback


@contextmanager
def restored_logging() -> Generator[None]:
    """What `configure_logging` changes is as before at the end."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        set_trace(None)
        structlog.reset_defaults()
        logging.captureWarnings(capture=False)
        root.handlers[:], root.level = handlers, level
