"""Write the calls of docs/rest.md, from the OpenAPI document and recorded examples; `make docs` runs it.

The page's rules and nouns are written by hand. A block between marks has the calls of one tag, each under a heading,
with fields, errors and an example with its answer. The last block has the objects that answers and bodies contain.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from penstock.rest.openapi import openapi_document
from penstock.rest.operations import TAGS

Json = Mapping[str, Any]
DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
PAGE: Final = DOCS / "rest.md"
EXAMPLES: Final = Path(__file__).with_name("rest_examples.json")
ADDITION: Final = re.compile(r"\s*\((?:an )?additions?\)")
LINE_MAX_CHARS = 110
EXAMPLE_MAX_LINES = 60
CELL_MAX_CHARS = 190
ELSEWHERE: Final = {"Definition": "definitions.md", "Step": "definitions.md"}
"""Objects that have a page of their own."""
SEE: Final[Mapping[str, str]] = {
    "uploadDefinition": "[definitions](definitions.md)",
    "validateDefinition": "[hints](definitions.md#what-is-hinted-at)",
    "impact": "[migrations](mending.md#migrate)",
    "startInstance": "[starts](starts.md)",
    "listInstances": "[search attributes](definitions.md#search-attributes), [runs](durable-concepts.md)",
    "cancelInstance": "[compensation](definitions.md#compensation)",
    "sendMessage": "[messages that do not fit](durable.md#messages-that-do-not-fit)",
    "askRun": "[updates](durable-messages.md#updates)",
    "getRunView": "[views](durable-messages.md#views)",
    "resolveMessage": "[messages that do not fit](durable.md#messages-that-do-not-fit)",
    "forkRun": "[forks](durable-fork.md)",
    "retryInstance": "[a run that failed](durable.md#a-run-that-failed), [repair](mending.md)",
    "setPriority": "[queues](queues.md)",
    "skipStep": "[repair](mending.md)",
    "moveToken": "[repair](mending.md)",
    "migrateInstance": "[migrations](mending.md#migrate), [timers](mending.md#timers-with-another-duration)",
    "failJob": "[errors](definitions.md#errors)",
    "publishMessage": "[messages](definitions.md#messages)",
    "me": "[security](security.md)",
    "listDeclarations": "[schedules in code](schedules.md#in-code)",
    "listSqlRequests": "[SQL functions](your-transaction.md#after-the-commit)",
    "signIn": "[signing in](security.md#signing-in-at-the-console)",
    "putQueue": "[queues](queues.md)",
    "startBatch": "[many as one](starts.md#many-as-one)",
    "putSchedule": "[schedules](schedules.md)",
}
"""Pages that say more about a call."""


def rest_page() -> str:
    """The page as it is, with the calls between its marks written anew. Raises LookupError where a mark is missing."""
    document = openapi_document()
    examples: Json = json.loads(EXAMPLES.read_text())
    page = PAGE.read_text()
    for tag in TAGS:
        page = _between(page, f"calls of {tag}", _calls(document, tag, examples))
    return _between(page, "objects", _objects(document))


def _between(page: str, mark: str, text: str) -> str:
    begin, end = f"<!-- {mark}: written by `make docs` -->\n", "<!-- end -->\n"
    before, found, rest = page.partition(begin)
    if not found:
        raise LookupError(f"{PAGE.name} has no place for {mark}")
    return before + begin + text + end + rest.partition(end)[2]


def _operations(document: Json, tag: str) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if operation["tags"] == [tag]:
                yield method.upper(), path, operation


def _calls(document: Json, tag: str, examples: Json) -> str:
    operations = list(_operations(document, tag))
    parts = ["\n| call | does | addition |\n|---|---|---|\n"]
    for method, path, operation in operations:
        summary, added = _without_mark(operation["summary"])
        parts.append(f"| [`{method} {path}`](#{_anchor(summary)}) | {summary} | {added} |\n")
    for method, path, operation in operations:
        parts.append(_call(document, method, path, operation, examples.get(operation["operationId"])))
    return "".join(parts) + "\n"


def _call(document: Json, method: str, path: str, operation: Json, example: Json | None) -> str:
    summary, added = _without_mark(operation["summary"])
    parts = [f"\n### {summary}\n\n`{method} {path}`\n"]
    if text := _without_mark(operation.get("description", ""))[0]:
        parts.append(f"\n{_wrapped(text)}\n")
    if more := SEE.get(operation["operationId"]):
        parts.append(f"\n{_wrapped(f'See {more}.')}\n")
    good = [(status, one) for status, one in operation["responses"].items() if int(status) < 400]
    answers = ", ".join(f"{status} {_answer(one)}".strip() for status, one in good)
    errors = ", ".join(status for status in operation["responses"] if int(status) >= 400)
    parts.append(f"\n- Role: {operation.get('x-penstock-role', 'none')}. Addition: {added or 'no'}.\n")
    parts.append(f"- Answer: {answers}.\n- Errors: {errors or 'none'}.\n")
    rows = [
        (one["name"], one["in"], one["schema"], one["description"], one["required"]) for one in operation["parameters"]
    ]
    body = operation.get("requestBody")
    fields: list[tuple[str, str, Json, str, bool]] = []
    if body is not None:
        schema = _resolved(document, body["content"]["application/json"]["schema"])
        if (name := _name(body["content"]["application/json"]["schema"])) in ELSEWHERE:
            parts.append(f"- Body: a [{name.lower()}]({ELSEWHERE[name]}).\n")
        elif "properties" not in schema:
            parts.append("- Body: an object with variables.\n")
        else:
            required = schema.get("required", ())
            fields = [
                (field, "body", one, one.get("description", ""), field in required)
                for field, one in schema["properties"].items()
            ]
    if rows or fields:
        parts.append("\n| field | in | type | required | meaning | addition |\n|---|---|---|---|---|---|\n")
        for name, place, schema, text, needed in rows + fields:
            meaning, mark = _without_mark(text)
            cells = (f"`{name}`", place, _type(schema), "yes" if needed else "", _meaning(schema, meaning), mark)
            parts.append(f"| {' | '.join(cells)} |\n")
    if example is not None:
        parts.append(_example(example))
    return "".join(parts)


def _example(example: Json) -> str:
    lines = [f"{example['method']} {example['path']}"]
    lines += (f"{name}: {value}" for name, value in (example["headers"] or {}).items())
    if example["body"] is not None:
        lines += ["", _shown(example["body"])]
    answer = [str(example["status"])]
    if example["answer"] is not None:
        answer += ["", _shown(example["answer"])]
    return "\n```http\n" + "\n".join(lines) + "\n```\n\n```text\n" + "\n".join(answer) + "\n```\n"


def _shown(value: Any) -> str:
    """JSON in one line where it is short; lists in recorded answers have their first item only."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) <= LINE_MAX_CHARS:
        return line
    lines = _compact(value).splitlines()
    return "\n".join([*lines[:EXAMPLE_MAX_LINES], "…"] if len(lines) > EXAMPLE_MAX_LINES else lines)


def _compact(value: Any, indent: int = 0) -> str:
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= LINE_MAX_CHARS or not isinstance(value, dict | list):
        return line
    pad = " " * (indent + 2)
    if isinstance(value, list):
        items: list[Any] = value
        return "[\n" + ",\n".join(pad + _compact(one, indent + 2) for one in items) + f"\n{' ' * indent}]"
    fields: dict[str, Any] = value
    inner = ",\n".join(f"{pad}{json.dumps(name)}: {_compact(one, indent + 2)}" for name, one in fields.items())
    return "{\n" + inner + f"\n{' ' * indent}}}"


def _objects(document: Json) -> str:
    """Each object that an answer or a body contains, but for bodies that stand with their call."""
    inlined = {
        _name(operation["requestBody"]["content"]["application/json"]["schema"])
        for tag in TAGS
        for _, _, operation in _operations(document, tag)
        if "requestBody" in operation
    }
    used = _references(list(document["components"]["schemas"].values()))
    for tag in TAGS:
        for _, _, operation in _operations(document, tag):
            used |= _references(operation["responses"])
    parts: list[str] = []
    for name, schema in document["components"]["schemas"].items():
        if name in ELSEWHERE or (name in inlined and name not in used):
            continue
        parts.append(f"\n### {name}\n")
        parts.append("\n| field | type | always | meaning | addition |\n|---|---|---|---|---|\n")
        required = schema.get("required", ())
        for field, one in schema["properties"].items():
            meaning, mark = _without_mark(one.get("description", ""))
            cells = (f"`{field}`", _type(one), "yes" if field in required else "", _meaning(one, meaning), mark)
            parts.append(f"| {' | '.join(cells)} |\n")
    return "".join(parts) + "\n"


def _references(node: Any) -> set[str]:
    if isinstance(node, dict):
        fields: dict[str, Any] = node
        found = {_name(fields)} if "$ref" in fields else set[str]()
        return found.union(*map(_references, fields.values()))
    return set[str]().union(*map(_references, node)) if isinstance(node, list) else set()


def _answer(response: Json) -> str:
    content = response.get("content")
    if content is None:
        return "without a body"
    return _type(next(iter(content.values()))["schema"])


def _type(schema: Json) -> str:
    if "$ref" in schema:
        name = _name(schema)
        return f"[{name}]({ELSEWHERE.get(name, '#' + name.lower())})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    kind = schema.get("type", "JSON")
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if kind == "object" and schema.get("properties"):
        fields = ", ".join(f"`{name}`: {_type(one)}" for name, one in schema["properties"].items())
        return f"object with {fields}"
    if schema.get("format") == "date-time":
        return "time"
    return str(kind)


def _meaning(schema: Json, text: str) -> str:
    """The description, and the values that there are."""
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else schema.get("items", {}).get("enum", ()))
    one_of = ", ".join(f"`{value}`" for value in values)
    if len(text) + len(one_of) > CELL_MAX_CHARS:
        one_of = "see above"
    return " ".join(part for part in (text.replace("|", "\\|"), one_of) if part).replace("\n", " ")


def _name(schema: Json) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _resolved(document: Json, schema: Json) -> Json:
    return document["components"]["schemas"][_name(schema)] if "$ref" in schema else schema


def _without_mark(text: str) -> tuple[str, str]:
    """A text without its mark of an addition, and "yes" where it had one."""
    plain = ADDITION.sub("", text)
    return plain, "yes" if plain != text else ""


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _wrapped(prose: str) -> str:
    return textwrap.fill(prose, 120, break_long_words=False, break_on_hyphens=False)
