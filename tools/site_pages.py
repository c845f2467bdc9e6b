"""What mkdocs does beside its settings (mkdocs.yml): pages of the repository's top become pages of the site.

They stand outside of docs/, where people and code hosts look for them. Links between the two are turned; links to what
is no page (examples, sources) become plain text, as a site has no address for them.

Code hosts draw Mermaid, a site only with a script from elsewhere: a flowchart that follows its definition becomes the
picture that `penstock draw` makes of it.
"""

from __future__ import annotations

import posixpath
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.cli.svg import svg
from penstock.core.parsing.parsing import parse_definition

TOP = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#\s]*)((?:#[^)\s]*)?)\)")

FILE = re.compile(r"^```(\w+) ([\w.-]+)$", re.MULTILINE)
"""A block that is a file: the name is for readers and tests."""
DRAWN = re.compile(
    r"^(```json (?P<name>[\w-]+)\.json\n(?P<text>[^`]*)^```\n)\n```mermaid\nflowchart [^`]*^```$", re.MULTILINE
)


def on_files(files: Any, config: Any) -> Any:
    """The pages of the top are files of the site, too."""
    made: Any = import_module("mkdocs.structure.files").File  # of the extra `docs`, which type checkers don't have
    for name in PAGES:
        files.append(made.generated(config, name, content=(TOP / name).read_text(encoding="utf-8")))
    for page in sorted((TOP / "docs").glob("*.md")):
        for drawn in DRAWN.finditer(page.read_text(encoding="utf-8")):
            picture = svg(parse_definition(drawn["text"].encode()))
            files.append(made.generated(config, f"images/language/{drawn['name']}.svg", content=picture))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links, blocks and pictures as they are on the site."""
    markdown = DRAWN.sub(r"\1\n![\g<name>.json, drawn](images/language/\g<name>.svg)", markdown)
    markdown = FILE.sub(r'```\1 title="\2"', markdown)
    top = page.file.src_uri in PAGES
    folder = posixpath.dirname(page.file.src_uri) or "."
    markdown = re.sub(r"(src(?:set)?=\")docs/", r"\1", markdown) if top else markdown

    def turn(link: re.Match[str]) -> str:
        text, target, anchor = link.groups()
        path = posixpath.normpath(posixpath.join(folder, target.removeprefix("docs/") if top else target))
        path = path.removeprefix("../")  # from docs/ to the repository's top, which is the site's top, too
        inside = files.get_file_from_path(path) is not None
        return f"[{text}]({posixpath.relpath(path, folder)}{anchor})" if inside else text

    return LINK.sub(turn, markdown)
