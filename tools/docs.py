"""Writes the pages of docs/ that come from the code; `make docs` runs it, a test finds them stale.

Relies on the installed package. With --check it writes nothing and fails when a page differs.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import typer
from dashboard import dashboard
from prometheus_client.metrics import MetricWrapperBase

from penstock.access import table
from penstock.access.roles import ALLOWED, LEAST_ROLE, Permission, Role
from penstock.cli.app import app
from penstock.core.expression import reference
from penstock.core.rules.state import (
    BIRTH_STATES,
    ENTERING,
    INSTANCE_TRANSITIONS,
    TOKEN_TRANSITIONS,
    InstanceStatus,
    TokenState,
)
from penstock.rest.operations import OPERATIONS
from penstock.settings import SETTINGS, SettingInfo
from penstock.telemetry.metrics import Metrics

TOP = Path(__file__).parents[1]

INTRO = """\
# Configuration

<!-- Written by `make docs` from src/penstock/settings. -->

Command-line options win over environment variables, which win over the YAML file (`--config FILE`, else
`/etc/workflow/engine.yaml` when it exists), which wins over the defaults. One name serves everywhere: `rest_port` is
`rest_port:` in the file and `WE_REST_PORT` in the environment. An unknown key in the file or a bad value ends the start
with exit code 2, and every problem is told with the place where it stands.

Lists are YAML lists, or one string with commas. An empty environment variable counts as absent.

Secrets come from the environment or from a mounted file whose path is in `<NAME>_FILE` (in the YAML file:
`<name>_file`), and are never logged. A `postgres_dsn` without a password may stand in the YAML file.

```yaml
# /etc/workflow/engine.yaml
postgres_dsn_file: /run/secrets/penstock-dsn
rest_port: 8080
db_max_conns: 20
log_level: info
```
"""


def default(info: SettingInfo) -> str:
    if info.default is None:
        return "–"
    if info.is_list:
        return "`" + ",".join(info.default) + "`" if info.default else "(empty)"
    return f"`{str(info.default).lower() if isinstance(info.default, bool) else info.default}`"


def bounds(info: SettingInfo) -> str:
    return (
        ""
        if info.bounds is None
        else " – ".join(f"{bound:g}" if bound < 1e6 else f"{bound:.0f}" for bound in info.bounds)
    )


def configuration() -> str:
    parts = [INTRO]
    group = ""
    for info in SETTINGS.values():
        if info.group != group:
            group = info.group
            parts.append(
                f"\n## {group}\n\n| setting | environment | default | bounds | meaning |\n|---|---|---|---|---|\n"
            )
        variable = f"`{info.env}`, `{info.env}_FILE`" if info.secret else f"`{info.env}`"
        parts.append(f"| `{info.name}` | {variable} | {default(info)} | {bounds(info)} | {info.description} |\n")
    return "".join(parts)


ROLES_BEGIN = "<!-- roles: written by `make docs` from src/penstock/access -->\n"
ROLES_END = "<!-- roles end -->\n"


def roles() -> str:
    """One row for each permission: who has it, and for what it is needed."""
    parts = ["\n| needed for | " + " | ".join(Role) + " |\n|---|" + "---|" * len(Role) + "\n"]
    needs: dict[Permission, list[str]] = {}
    for operation in OPERATIONS:
        needs.setdefault(operation.needs, []).append(f"`{operation.method} {operation.path}`")
    for path, permission in table.RPC.items():
        needs.setdefault(permission, []).append(f"`{path.rpartition('/')[2]}`")
    needs[table.METRICS].append("the metrics port")
    needs[Permission.EXECUTE].append("executors of durable workflows")
    for permission in LEAST_ROLE:
        marks = ("yes" if permission in ALLOWED[role] else "" for role in Role)
        parts.append(f"| **{permission}**: {', '.join(dict.fromkeys(needs[permission]))} | {' | '.join(marks)} |\n")
    parts.append(f"\nWith any proof: {', '.join(needs[Permission.PROVED])}. ")
    parts.append(f"With none: {', '.join(dict.fromkeys(needs[Permission.NONE]))}.\n\n")
    return "".join(parts)


def security() -> str:
    """The page as it is, with the table of roles written anew."""
    before, _, rest = (TOP / "docs" / "security.md").read_text().partition(ROLES_BEGIN)
    return before + ROLES_BEGIN + roles() + ROLES_END + rest.partition(ROLES_END)[2]


STATES_INTRO = """\
# States

<!-- Written by `make docs` from src/penstock/core/rules/state.py. -->

An instance is a set of tokens: its open branches. A token stands on one step, and a job is a token on a service task.
These are all the ways in which a state changes, whoever changes it; a trigger in the databases of the test suite
refuses every other one. What the states mean: `src/penstock/core/rules/state.py`. What is promised of them:
[guarantees.md](guarantees.md).

## Tokens

The numbers are those of the column `token.state`. `CALLED` and `DELAYED` are of a later version.
"""


def states() -> str:
    """The tables of transitions, as diagrams and in words."""
    every = frozenset(TokenState) - {TokenState.ENDED}
    parts = [STATES_INTRO, "\n```mermaid\nstateDiagram-v2\n"]
    arrows: dict[tuple[str, str], list[str]] = {}
    for trigger, row in TOKEN_TRANSITIONS.items():
        sources = ["any"] if row.sources == every else [source.name for source in sorted(row.sources)]
        for source in sources:
            arrows.setdefault((source, row.target.name), []).append(trigger.value)
    parts += (f"    {source} --> {target}: {', '.join(why)}\n" for (source, target), why in arrows.items())
    parts.append("    any --> [*]: its branch or its instance ends\n```\n\n`any`: every state but `ENDED`.\n")
    parts.append(f"A token comes to be in {_names(BIRTH_STATES)}.\n\n| why | from | to | when |\n|---|---|---|---|\n")
    for trigger, row in TOKEN_TRANSITIONS.items():
        source = "any" if row.sources == every else _names(row.sources)
        name = f"**{trigger.value}**" if trigger in ENTERING else trigger.value
        parts.append(f"| {name} | {source} | `{row.target.name}` | {row.when} |\n")
    parts.append("\nThose in bold begin a step execution; `end` may follow automatic steps.\n")
    numbers = ", ".join(f"{int(state)} `{state.name}`" for state in TokenState)
    parts.append(f"\nNumbers: {numbers}.\n\n## Instances\n\n```mermaid\nstateDiagram-v2\n    [*] --> ACTIVE\n")
    for status, targets in INSTANCE_TRANSITIONS.items():
        why = ": retry" if status is InstanceStatus.FAILED else ""
        parts += (f"    {status.name} --> {target.name}{why}\n" for target in sorted(targets))
    numbers = ", ".join(f"{int(status)} `{status.name}`" for status in InstanceStatus)
    parts.append(f"```\n\nNumbers, in the column `instance.status`: {numbers}.\n")
    return "".join(parts)


def _names(states: frozenset[TokenState]) -> str:
    return ", ".join(f"`{state.name}`" for state in sorted(states))


METRICS_INTRO = """\
# Metrics

<!-- Written by `make docs` from src/penstock/telemetry/metrics/registry.py. -->

`GET /metrics` on the metrics port, for Prometheus. A histogram has `_bucket`, `_sum` and `_count`. What to do when one
of them moves: [operations](operations.md). Those of a worker: [worker](worker.md). Those that say
*Kafka mode only* are on the page of engines whose `dispatch_mode` is `kafka_outbox`, and on no other.

| metric | type | labels | meaning |
|---|---|---|---|
"""


def metrics() -> str:
    """Each metric of an engine; those that one that polls does not show say so."""
    polling = {family.name for family in Metrics(kafka=False).registry.collect()}
    registry: Any = Metrics().registry  # the labels of a metric without children are told nowhere else
    rows: set[str] = set()
    for metric in registry._names_to_collectors.values():
        if isinstance(metric, MetricWrapperBase):
            about: Any = metric
            name = about._name + ("_total" if about._type == "counter" else "")
            labels = ", ".join(f"`{label}`" for label in about._labelnames)
            where = "" if about._name in polling else " (*Kafka mode only*)"
            rows.add(f"| `{name}` | {about._type} | {labels} | {about._documentation}{where} |\n")
    return METRICS_INTRO + "".join(sorted(rows))


COMMANDS_INTRO = """\
# Commands

<!-- Written by `make docs` from src/penstock/cli. -->

`penstock COMMAND --help` says the same. Commands that touch the engines' database take `--config FILE` and read the
[settings](configuration.md) as `penstock serve` does. `--json` is taken by all but those that run on: one JSON
document, or a line for each where several things are done or news is followed; what goes wrong stays text on standard
error. Exit codes: 0 done, 1 failed or found something wrong, 2 wrong use or wrong settings, 141 when who reads what it
prints has gone (`penstock instance list | head -1`), as of other tools.
"""


def commands() -> str:
    """Each command with its arguments and options; hidden ones are for the engine itself."""
    parts = [COMMANDS_INTRO]
    pending: list[tuple[str, Any]] = [("penstock", typer.main.get_command(app))]
    while pending:
        name, command = pending.pop(0)
        if command.hidden:
            continue
        if subcommands := getattr(command, "commands", None):
            pending[:0] = [(f"{name} {each}", subcommand) for each, subcommand in subcommands.items()]
            continue
        context = typer.Context(command, info_name=name)
        usage = " ".join([name, *command.collect_usage_pieces(context)])
        parts.append(f"\n## {name}\n\n`{usage}`\n\n{inspect.cleandoc(command.help)}\n")
        rows = [record for each in command.get_params(context) if (record := each.get_help_record(context))]
        rows = [(option, text) for option, text in rows if "--help" not in option]
        if rows:
            parts.append("\n| | |\n|---|---|\n")
            parts += (f"| `{option}` | {_cell(text)} |\n" for option, text in rows)
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("${ }", "`${ }`")


FUNCTIONS_BEGIN = "<!-- functions: written by `make docs` from src/penstock/core/expression/reference.py -->\n"
FUNCTIONS_END = "<!-- functions end -->\n"


def expressions() -> str:
    """The page as it is, with the table of functions written anew."""
    before, _, rest = (TOP / "docs" / "expressions.md").read_text().partition(FUNCTIONS_BEGIN)
    told = reference.FUNCTIONS.values()
    rows = (f"| `{one.signature}` | {one.text} | `{one.example}` → `{one.gives}` |\n" for one in told)
    table = "\n| | gives | such as |\n|---|---|---|\n" + "".join(rows) + "\n"
    return before + FUNCTIONS_BEGIN + table + FUNCTIONS_END + rest.partition(FUNCTIONS_END)[2]


PAGES = {
    "deploy/grafana/penstock.json": dashboard,
    "docs/commands.md": commands,
    "docs/configuration.md": configuration,
    "docs/expressions.md": expressions,
    "docs/metrics.md": metrics,
    "docs/security.md": security,
    "docs/states.md": states,
}


def main() -> int:
    stale = [page for page, text in PAGES.items() if not (TOP / page).exists() or (TOP / page).read_text() != text()]
    for page in stale:
        if "--check" in sys.argv:
            print(f"{page} is stale: make docs")
        else:
            (TOP / page).write_text(PAGES[page]())
            print(f"wrote {page}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
