"""`penstock check`: the open runs of workflows against the code that is to be deployed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import msgspec
import typer

from penstock.cli.options import print_json
from penstock.cli.plain import echo, echo_lines
from penstock.cli.runs import ask

if TYPE_CHECKING:
    from penstock.durable.check import Report
    from penstock.durable.local import LocalRuns
    from penstock.durable.workflow import Workflow

BREAKS, NOT_LOADED = 1, 2
PROCESSES_MAX = 16


class NotLoaded(ValueError):
    """There is no such module, or nothing in it to check."""


def run_check(target: str, name: str | None, at: str | None, processes: int | None, *, as_json: bool) -> int:
    """Prints what it finds. 0: all runs can go on; 1: some can't; 2: there is no such code, or no database.

    ``processes``: so many replay, from the first run on; None: one for each processor, where there are many runs.
    """
    from penstock.durable.check import check
    from penstock.durable.replay_processes import ALONE_MAX_RUNS, replay_processes

    try:
        owner, workflows = load(target)
    except NotLoaded as error:
        echo(f"penstock: {error}", err=True)
        return NOT_LOADED

    count = processes or (1 if getattr(sys, "frozen", False) else min(os.cpu_count() or 1, PROCESSES_MAX))
    alone = ALONE_MAX_RUNS if processes is None else 0

    async def checked(runs: LocalRuns) -> list[Report]:
        with replay_processes(partial(workflows_of, target), count, alone=alone) as elsewhere:
            return await check(runs, workflows, elsewhere)

    try:
        reports = ask(at, checked, owner if name is None else name)
    except typer.Exit:
        return NOT_LOADED
    if as_json:
        print_json([_json(report) for report in reports])
    else:
        for report in reports:
            echo_lines(_lines(report))
    return BREAKS if any(report.breaks for report in reports) else 0


def workflows_of(target: str) -> list[Workflow[..., Any]]:
    """As `load`."""
    return load(target)[1]


def load(target: str) -> tuple[str, list[Workflow[..., Any]]]:
    """The name of the App, '' where there is none, and the workflows of ``module``, or of ``module:attribute``: an App,
    a workflow, or several. Raises NotLoaded."""
    from penstock.durable.app import App
    from penstock.durable.workflow import Workflow

    module_name, _, attribute = target.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module_name)
    except Exception as error:  # whatever the module raises
        raise NotLoaded(f"{module_name} can't be imported: {type(error).__name__}: {error}") from error
    for part in filter(None, attribute.split(".")):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise NotLoaded(f"{module_name} has no {attribute}") from None
    held: list[object] = [found] if attribute else list(cast("dict[str, object]", vars(found)).values())
    apps = [value for value in held if isinstance(value, App)]
    if len(apps) == 1:
        return apps[0].name, apps[0].workflows
    if attribute and isinstance(found, Iterable):
        held = list(cast("Iterable[object]", found))
    workflows = [cast("Workflow[..., Any]", value) for value in held if isinstance(value, Workflow)]
    workflows = list(dict.fromkeys(workflows))
    if not workflows:
        raise NotLoaded(f"{target}: there is no workflow")
    return "", workflows


def _lines(report: Report) -> list[str]:
    about = f"{report.workflow}@{report.version}: {report.runs:,} open runs, {report.records:,} records"
    if report.missing:
        return [f"{about}: there is no code for this version here"]
    lines = [about if report.found else f"{about}: ok"]
    for each in report.found:
        lines.append(f"  {each.finding.verdict}, {each.count:,} runs ({', '.join(each.runs)}): {each.finding.text}")
        lines += [f"    | {line}" for line in (each.finding.patch or "").splitlines()]
    for patch, (yes, no) in report.patches.items():
        lines.append(f"  patched({patch!r}): {yes:,} runs say yes, {no:,} say no")
    return lines


def _json(report: Report) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(report)
    found = [{**msgspec.to_builtins(each.finding), "count": each.count, "runs": each.runs} for each in report.found]
    patches = {name: {"yes": yes, "no": no} for name, (yes, no) in report.patches.items()}
    return {**shown, "ok": not report.breaks, "found": found, "patches": patches}
