"""Pages are easy to read: for whom they are, short cells, wrapped prose, links to terms, no hashes and dates."""

from __future__ import annotations

import re
from pathlib import Path

from tests.house.sources import TOP

CELL_MAX_CHARS = 200
PROSE_MAX_CHARS = 120
LONG_CELLS = {
    # How many cells are longer than that. Only ever lower one.
    "docs/commands.md": 8,  # made from the help of commands
    "docs/configuration.md": 3,  # made from the settings
    "docs/security.md": 3,  # who may call what, made from the table of roles
}
HASH = re.compile(r"(?<![.\w])(?=[0-9a-f]{0,9}[0-9])(?=[0-9a-f]{0,9}[a-f])[0-9a-f]{7,10}\b")
COMMON = {
    "assign", "attempt", "batch", "business key", "call", "claim", "command", "compensate", "definition", "delta",
    "durable workflow", "effects", "executor", "fault injection", "gateway", "branch", "handler", "history",
    "idempotency key", "import cycle", "instance", "instance key", "item", "job", "job type", "join", "message",
    "queue", "record", "reference model", "relay", "release", "repair", "repository checks", "run", "service task",
    "signal", "step", "token", "user task", "variables", "wait", "worker", "workflow function",
}  # fmt: skip
"""Terms that stand in most sentences: a page need not link them."""
GENERATED = "Written by `make docs` from"
HEADING = re.compile(r"^#+ (.+)$")
LINK = re.compile(r"\]\(([^)#\s]*\.md)?(?:#([^)\s]+))?\)")
DATE = re.compile(
    r"\b20[2-9]\d-\d\d-\d\d\b|\b(?:January|February|March|April|May|June|July|August|September|October|November|December)"
    r" 20\d\d\b"
)
DATES = {
    # Lines with the date of a measurement, or of what was read. Only ever lower one: measurements belong into
    # benchmarks/results, and pages of a release have its date.
    "CHANGELOG.md": 1,
    "docs/choosing.md": 1,
    "docs/comparison.md": 2,
    "docs/console.md": 7,
    "docs/durable-coming-from.md": 1,
    "docs/installation.md": 1,
    "docs/operations.md": 1,
    "docs/other-languages.md": 1,
    "docs/queues.md": 2,
    "docs/scaling.md": 2,
    "docs/schedules.md": 1,
    "docs/sizing.md": 3,
    "docs/starts.md": 1,
}
UPSTREAM_HASHES = {"docs/operations.md": {"1b5dd3a"}}
"""Commits of PostgreSQL, which readers look up there."""


def pages() -> list[Path]:
    top = (TOP / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"))
    return [*top, *sorted((TOP / "docs").rglob("*.md"))]


def lines(page: Path) -> list[tuple[int, str]]:
    """Those outside of code blocks, with their numbers."""
    found: list[tuple[int, str]] = []
    in_code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            found.append((number, line))
    return found


def long_cells(line: str) -> int:
    cells = re.split(r"(?<!\\)\|", line) if line.startswith("|") else []
    return sum(len(cell.strip()) > CELL_MAX_CHARS for cell in cells)


def test_a_cell_is_a_phrase() -> None:
    assert long_cells(f"| a | {'b' * 201} |") == 1
    found = {str(page.relative_to(TOP)): sum(long_cells(line) for _, line in lines(page)) for page in pages()}
    assert {page: count for page, count in found.items() if count} == LONG_CELLS


def test_prose_is_wrapped() -> None:
    found = [
        f"{page.relative_to(TOP)}:{number}"
        for page in pages()
        for number, line in lines(page)
        if len(line) > PROSE_MAX_CHARS and " " in line.strip() and not line.lstrip().startswith(("|", "<", "#"))
    ]
    assert found == []


def test_user_pages_name_no_commits() -> None:
    assert HASH.search("commit 30a3fbf;"), "the pattern finds one"
    users = [page for page in pages() if "decisions" not in page.parts]
    found = {
        str(page.relative_to(TOP)): hits
        for page in users
        if (hits := {hit for _, line in lines(page) for hit in HASH.findall(line)})
    }
    assert found == UPSTREAM_HASHES


def user_pages() -> list[Path]:
    return sorted((TOP / "docs").glob("*.md"))


def test_user_pages_have_no_dates() -> None:
    assert DATE.search("on 23 November 2026")
    assert DATE.search("(2026-11-23)")
    prose = re.compile(r"`[^`]*`")
    found = {
        str(page.relative_to(TOP)): hits
        for page in [TOP / "README.md", TOP / "CHANGELOG.md", *user_pages()]
        if (hits := sum(bool(DATE.search(prose.sub("", line))) for _, line in lines(page)))
    }
    assert {page: hits for page, hits in found.items() if hits > DATES.get(page, 0)} == {}


def test_a_page_begins_with_its_reader() -> None:
    def opening(page: Path) -> str:
        parts = [part for part in page.read_text().split("\n\n")[1:] if not part.startswith("<!--")]
        return " ".join(parts[0].split())

    found = {page.name: opening(page) for page in user_pages()}
    wrong = [
        name
        for name, text in found.items()
        if not re.match(r"This page is for (you|people|everybody)\b", text)
        or (name not in ("pages.md", "glossary.md") and not re.search(r"\. After .*\byou\b", text))
    ]
    assert wrong == []


def anchors(page: Path) -> set[str]:
    """The addresses of its headings, as code hosts make them."""
    found: set[str] = set()
    for _, line in lines(page):
        if heading := HEADING.match(line):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "")
            name = re.sub(r"[^\w -]", "", plain.lower()).strip().replace(" ", "-")
            repeated = sum(
                each == name or (each.startswith(f"{name}-") and each[len(name) + 1 :].isdigit()) for each in found
            )
            found.add(f"{name}-{repeated}" if repeated else name)
    return found


def test_links_lead_to_headings_that_are_there() -> None:
    known: dict[Path, set[str]] = {}
    broken: list[str] = []
    for page in pages():
        for _, line in lines(page):
            for target, anchor in LINK.findall(line):
                other = (page.parent / target).resolve() if target else page
                if anchor and other.is_file() and anchor not in known.setdefault(other, anchors(other)):
                    broken.append(f"{page.relative_to(TOP)}: {target}#{anchor}")
    assert broken == []


def terms() -> set[str]:
    rows = re.findall(r"^\| \*\*(.+?)\*\*", (TOP / "docs" / "glossary.md").read_text(), re.MULTILINE)
    return {term for row in rows for term in row.split(", ")} - COMMON


def unlinked(text: str) -> list[str]:
    """Terms that stand in a page's prose and are linked nowhere on it."""
    linked = " ".join(" ".join(re.findall(r"\[([^\]]*)\]\([^)]*glossary\.md", text)).lower().split())
    prose = re.sub(r"^```.*?^```|^[|#<].*?$|`[^`\n]*`|\[[^\]]*\]\([^)]*\)", " ", text, flags=re.DOTALL | re.MULTILINE)
    used = (
        term for term in terms() if re.search(rf"(?<![\w/-]){re.escape(term)}(?:s|es)?(?![\w/-])", prose, re.IGNORECASE)
    )
    return sorted(term for term in used if term.lower() not in linked)


def linked_late(text: str) -> list[str]:
    """Terms that stand in a page's prose before the link to them, with the line."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    prose = re.sub(r"^```.*?^```|^[|#<].*?$|`[^`\n]*`", blank, text, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"\[[^\]]*\]\((?![^)]*glossary\.md)[^)]*\)", blank, prose)
    links = [(link.start(), link.end()) for link in re.finditer(r"\[[^\]]*\]\([^)]*\)", prose)]
    late: list[str] = []
    for term in sorted(terms()):
        words = r"\s+".join(map(re.escape, term.split()))
        first = re.search(rf"(?<![\w/-]){words}(?:s|es)?(?![\w/-])", prose, re.IGNORECASE)
        if first is not None and not any(begin <= first.start() < end for begin, end in links):
            late.append(f"{term}, line {prose.count(chr(10), 0, first.start()) + 1}")
    return late


def test_a_term_is_linked_where_a_page_uses_it_first() -> None:
    assert unlinked("The lease ends.") == ["lease"]
    assert unlinked("The [lease](glossary.md#jobs-and-workers) ends. A lease is short.") == []
    assert linked_late("A\nlease ends. The [lease](glossary.md#jobs-and-workers) is short.") == ["lease, line 2"]
    assert linked_late("The [audit\ntrail](glossary.md#guarantees) has it. The audit trail is long.") == []
    written = [page for page in [*user_pages(), TOP / "ARCHITECTURE.md"] if GENERATED not in page.read_text()]
    texts = {page.name: page.read_text() for page in written if page.stem != "glossary"}
    assert {name: missing for name, text in texts.items() if (missing := unlinked(text))} == {}
    assert {name: late for name, text in texts.items() if (late := linked_late(text))} == {}
