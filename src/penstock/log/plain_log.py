"""A log for people, of programs that have set up none: texts are shown as `penstock.plain` shows them.

Needs the standard library only, as workers do.
"""

from __future__ import annotations

import logging

from penstock.plain import escaped, escaped_lines


class PlainFormatter(logging.Formatter):
    """One line a record, unless its message is written in lines; tracebacks have theirs."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """See ``logging.Formatter``."""
        in_lines = isinstance(record.msg, str) and "\n" in record.msg
        return (escaped_lines if in_lines else escaped)(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``. What it has escaped stays as it is."""
        return escaped_lines(super().format(record))


def escape_last_resort() -> None:
    """What is logged while no handler is set up goes to standard error: escaped from now on."""
    if logging.lastResort is not None and logging.lastResort.formatter is None:
        logging.lastResort.setFormatter(PlainFormatter())
