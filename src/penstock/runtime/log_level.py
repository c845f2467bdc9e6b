"""SIGUSR1: the settings are read again, and `log_level` and `log_format` count from then on; nothing else is touched.

Settings that can't be read are told and change nothing. Of several processes the parent hears it and tells the others.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import trio

from penstock.log.log import configure_logging, get_logger
from penstock.settings import Settings, SettingsError

log = get_logger(__name__)
Read = Callable[[], Settings]


async def watch(
    read: Read,
    on_change: Callable[[Settings], None] | None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Take SIGUSR1 until cancelled; ``tell`` hears of settings whose log counts now."""
    with trio.open_signal_receiver(signal.SIGUSR1) as signals:
        task_status.started()
        async for _ in signals:
            try:
                settings = await trio.to_thread.run_sync(read)
            except SettingsError as error:
                log.error("the settings can't be reloaded: nothing changes", problems=error.problems)  # noqa: TRY400 - for operators, no trace
                continue
            configure_logging(settings.log_level, settings.log_format)
            log.warning("the log level was changed", log_level=settings.log_level, log_format=settings.log_format)
            if on_change is not None:
                on_change(settings)
