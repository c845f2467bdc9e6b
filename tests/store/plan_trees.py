"""Plans as PostgreSQL writes them for its own developers (``debug_print_plan``): EXPLAIN does not tell what is pruned
while a statement runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg.errors import SyntaxError as NoPlan

Tree = dict[str, Any]
"""A node: its fields, lists of what stands in them, and its kind under ``kind``."""

_TOKEN = re.compile(r"[(){}]|(?:\\.|[^\s(){}\\])+", re.DOTALL)
_INSERT = "3"  # of CmdType; the others recheck rows
_LOG = "SET debug_print_plan = on; SET debug_pretty_print = off; SET client_min_messages = log"


def _read(tokens: Iterator[str], first: str) -> Any:
    if first == "(":
        return [_read(tokens, token) for token in iter(lambda: next(tokens), ")")]
    if first != "{":
        return first
    node: Tree = {"kind": next(tokens)}
    field: list[Any] = []
    for token in iter(lambda: next(tokens), "}"):
        if token.startswith(":"):
            field = node.setdefault(token[1:], [])
        else:
            field.append(_read(tokens, token))
    return node


def nodes(part: Any) -> Iterator[Tree]:
    """All of them, from the top."""
    if isinstance(part, dict):
        yield part
    for below in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from nodes(below)


def plan(connection: psycopg.Connection, statement: bytes) -> str | None:
    """Of the statement for any values; None where it has none (SET, BEGIN, ...)."""
    found: list[str] = []

    def keep(notice: psycopg.errors.Diagnostic) -> None:
        if (notice.message_primary or "").startswith("plan"):
            found.append(notice.message_detail or "")

    connection.add_notice_handler(keep)
    try:
        connection.execute(_LOG)
        connection.execute(b"EXPLAIN (GENERIC_PLAN) " + statement)
    except NoPlan:
        return None
    finally:
        connection.remove_notice_handler(keep)
    return found[-1]


def _pruned_later(tree: Tree) -> set[str]:
    """Numbers of the prunings that ask values of the run itself."""
    infos = [node for node in nodes(tree["partPruneInfos"]) if node["kind"] == "PARTITIONPRUNEINFO"]
    tables = [[node for node in nodes(info) if node["kind"] == "PARTITIONEDRELPRUNEINFO"] for info in infos]
    return {
        str(number)
        for number, found in enumerate(tables)
        if any(node["exec_pruning_steps"] != ["<>"] for node in found)
    }


def _rechecks(node: Tree) -> bool:
    """Whether rows that others changed meanwhile are looked at again there."""
    return node["kind"] == "LOCKROWS" or (node["kind"] == "MODIFYTABLE" and node["operation"] != [_INSERT])


def locks_rows(written: str) -> bool:
    """Whether the plan locks any row beside those that it changes."""
    return "{LOCKROWS " in written


def prunes_in_a_recheck(written: str) -> bool:
    """Whether a recheck prepares run-time pruning: all subselects and CTEs of the statement, and what is below it."""
    if "{PARTITIONPRUNEINFO " not in written:
        return False
    tokens = (token[0] for token in _TOKEN.finditer(written))
    tree = _read(tokens, next(tokens))
    if not any(map(_rechecks, nodes([tree["planTree"], tree["subplans"]]))):
        return False
    prepared = [tree["subplans"], *filter(_rechecks, nodes(tree["planTree"]))]
    later = _pruned_later(tree)
    return any(node.get("part_prune_index", ["-1"])[0] in later for node in nodes(prepared))
