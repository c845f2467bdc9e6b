"""Writes the pages of docs/ that come from the code; `make docs` runs it, a test finds them stale.

Relies on the installed package. With --check it writes nothing and fails when a page differs.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from dashboard import dashboard
from prometheus_client.metrics import MetricWrapperBase
from rest_page import rest_page
from states import with_diagrams

from penstock.access import table
from penstock.access.roles import ALLOWED, LEAST_ROLE, Role
from penstock.api.permission import Permission
from penstock.cli.app import app
from penstock.client import Client
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

This page is for you if you configure an engine. After it you know every setting with its default and its bounds, and
where you can set it.

Command-line options win over environment variables, which win over the YAML file (`--config FILE`, else
`/etc/workflow/engine.yaml` if it exists), which wins over the defaults. One name serves everywhere: `rest_port` is
`rest_port:` in the file and `WE_REST_PORT` in the environment. (`WE_`, some names without it such as `DB_MAX_CONNS`,
and `/etc/workflow` are of [the contract](rest.md): existing installations keep their configuration.) If the file has an
unknown key or a bad value, the start ends with exit code 2, and the engine reports every problem with its place.

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
    proved, none = (", ".join(dict.fromkeys(needs[each])) for each in (Permission.PROVED, Permission.NONE))
    parts.append(f"\n{wrapped(f'With any proof: {proved}. With none: {none}.')}\n\n")
    return "".join(parts)


def wrapped(prose: str) -> str:
    """A paragraph in the width of the pages."""
    return textwrap.fill(prose, 120, break_long_words=False, break_on_hyphens=False)


def security() -> str:
    """The page as it is, with the table of roles written anew."""
    before, _, rest = (TOP / "docs" / "security.md").read_text().partition(ROLES_BEGIN)
    return before + ROLES_BEGIN + roles() + ROLES_END + rest.partition(ROLES_END)[2]


STATES_INTRO = """\
# States

<!-- Written by `make docs` from src/penstock/core/rules/state.py. -->

This page is for you if you read states in the database, or change the engine. After it you know every state of tokens
and instances, and each transition with its reason.

An instance is a set of tokens: its open branches. A token stands on one step, and a job is a token on a service task.
Only these transitions exist: a trigger in the databases of the test suite refuses every other one.
`src/penstock/core/rules/state.py` says what the states mean, [guarantees](guarantees.md) what Penstock promises.

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

This page is for you if you monitor an engine. After it you know the name, type and labels of each of its metrics.

Prometheus reads them from `GET /metrics` on the metrics port. A histogram has `_bucket`, `_sum` and `_count`.
[Operations](operations.md) says what to do when one of them moves, [worker](worker.md) has the metrics of a worker.
Only engines whose `dispatch_mode` is `kafka_outbox` have those with *Kafka mode only*.

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

This page is for you if you work with Penstock in a terminal. After it you know each command with its arguments, options
and exit codes.

`penstock COMMAND --help` prints the same. Commands that use the engines' database take `--config FILE` and read the
[settings](configuration.md) as `penstock serve` does. All commands take `--json`, except those that keep running. They
print one JSON document, or one line for each item if they do several things or follow changes. Errors stay text on
standard error.

| exit code | means |
|---|---|
| 0 | done |
| 1 | it failed, or found something wrong |
| 2 | wrong use or wrong settings |
| 141 | the reader of its output has gone (`penstock instance list \\| head -1`), as of other tools |
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
    reported = reference.FUNCTIONS.values()
    rows = (f"| `{one.signature}` | {one.text} | `{one.example}` → `{one.gives}` |\n" for one in reported)
    table = "\n| | gives | such as |\n|---|---|---|\n" + "".join(rows) + "\n"
    return before + FUNCTIONS_BEGIN + table + FUNCTIONS_END + rest.partition(FUNCTIONS_END)[2]


PUBLIC = (
    "penstock.client",
    "penstock.client.builder",
    "penstock.worker",
    "penstock.worker.kafka",
    "penstock.durable",
    "penstock.durable.blocking",
    "penstock.testing",
)
"""Modules whose names are public: those in `__all__`, else the classes and functions that the module defines."""
NAMES_BEGIN = "<!-- public names: written by `make docs` from __all__ -->\n"
NAMES_END = "<!-- public names end -->\n"


def public_names() -> dict[str, list[str]]:
    """By module, in the order of the alphabet."""
    return {name: sorted(_names_of(import_module(name))) for name in PUBLIC}


def _names_of(module: ModuleType) -> list[str]:
    plain = inspect.getmembers(module, lambda value: inspect.isclass(value) or inspect.isfunction(value))
    defined = [name for name, value in plain if value.__module__ == module.__name__]
    return getattr(module, "__all__", [name for name in defined if not name.startswith("_")])


def releases() -> str:
    """The page as it is, with the public names written anew."""
    before, _, rest = (TOP / "docs" / "releases.md").read_text().partition(NAMES_BEGIN)
    lines = (f"**`{module}`**: {', '.join(f'`{name}`' for name in names)}" for module, names in public_names().items())
    text = "".join(f"\n{wrapped(line)}\n" for line in lines)
    return before + NAMES_BEGIN + text + "\n" + NAMES_END + rest.partition(NAMES_END)[2]


def architecture() -> str:
    """The page as it is, with the diagrams of states drawn anew."""
    return with_diagrams((TOP / "ARCHITECTURE.md").read_text())


METHODS_BEGIN = "    # methods: written by `make docs` from those of Client\n"
METHODS_END = "    # methods end\n"
NOT_BLOCKING = {"call", "aclose"}
"""`SyncClient` has `run` and `close` for them."""


def blocking_client() -> str:
    """Each method of the client, and each of its iterators, without await."""
    before, _, rest = (TOP / "src/penstock/client/blocking.py").read_text().partition(METHODS_BEGIN)
    lines: list[str] = []
    for kind in reversed(Client.__mro__):
        for name, method in vars(kind).items():
            if inspect.isfunction(method) and not name.startswith("_") and name not in NOT_BLOCKING:
                how = "_blocking" if inspect.iscoroutinefunction(method) else "_iterating"
                lines.append(f"    {name} = {how}(Client.{name})\n")
    return before + METHODS_BEGIN + "".join(lines) + METHODS_END + rest.partition(METHODS_END)[2]


PAGES = {
    "src/penstock/client/blocking.py": blocking_client,
    "ARCHITECTURE.md": architecture,
    "deploy/grafana/penstock.json": dashboard,
    "docs/commands.md": commands,
    "docs/configuration.md": configuration,
    "docs/expressions.md": expressions,
    "docs/metrics.md": metrics,
    "docs/releases.md": releases,
    "docs/rest.md": rest_page,
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
