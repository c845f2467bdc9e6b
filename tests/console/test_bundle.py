"""The console's committed files are those of its sources, and stay small. Needs no Node."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path

from penstock.cli.shapes import as_json
from tools.openapi_hash import openapi_hash

TOP = Path(__file__).parents[2]
SOURCES = TOP / "console"
STATIC = TOP / "src/penstock/console/static"
# What the first page loads, compressed (spec of the console, section 4).
SCRIPT_MAX_BYTES = 120_000
STYLE_MAX_BYTES = 12_000
FONTS_MAX_BYTES = 89_000
PICTURE_MAX_BYTES = 75_000
MODELLER_MAX_BYTES = 140_000
"""With CodeMirror, as its fields and its JSON show it. What comes by a press more has limits of its own."""
TRY_MAX_BYTES = 5_100
DIFFERENCES_MAX_BYTES = 6_000
PRESSED_MAX_BYTES = {
    "pressed": 2_800,
    "people": 1_200,
    "minimap": 1_000,
    "toend": 1_000,
    "early": 1_000,
    "fixes": 2_200,
    "rejected": 1_600,
    "bulk": 4_800,
    "start": 2_600,
}
"""Menus and questions; forms for people; the small picture; of Try it "To the end" and what comes early;
what repairs a problem at once; messages that a run rejected; what is done to many instances; a start and an upload."""
SEARCH_MAX_BYTES = 7_000
COMPARE_MAX_BYTES = 11_000
LAYOUT_MAX_BYTES = 475_000
"""ELK's worker, after the first paint."""


def sources_hash() -> str:
    """As `sourcesHash` of console/build.mjs."""
    inside = [path for path in (SOURCES / "src").rglob("*") if path.is_file() and ".test." not in path.name]
    outside = ["build.mjs", "index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts"]
    names = sorted([path.relative_to(SOURCES).as_posix() for path in inside] + outside)
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode() + b"\0" + (SOURCES / name).read_bytes() + b"\0")
    return digest.hexdigest()


def packed_bytes(path: Path) -> int:
    return len(gzip.compress(path.read_bytes(), 9, mtime=0))


def test_the_bundle_is_made_of_these_sources() -> None:
    made_of = json.loads((STATIC / "build.json").read_text())["sources"]
    assert made_of == sources_hash(), "run `make console` and commit what it makes"


def test_the_types_are_those_of_the_engines_interface() -> None:
    made_of = json.loads((STATIC / "build.json").read_text())["openapi"]
    assert made_of == openapi_hash(), "run `make console` and commit what it makes"


def test_steps_are_drawn_as_penstock_draw_does() -> None:
    assert (SOURCES / "src/graph/shapes.json").read_text() == as_json(), "run `make console` and commit what it makes"


def test_the_page_names_files_that_are_there() -> None:
    page = (STATIC / "index.html").read_text()
    named = re.findall(r'(?:src|href)="/console/([^"]+)"', page)
    assert len(named) >= 2
    assert [name for name in named if not (STATIC / name).is_file()] == []


def packed(*patterns: str) -> int:
    return sum(packed_bytes(path) for pattern in patterns for path in (STATIC / "assets").glob(pattern))


def test_what_is_loaded_first_is_small() -> None:
    named = re.findall(r'(?:src|href)="/console/(assets/[^"]+)"', (STATIC / "index.html").read_text())
    scripts = sum(packed_bytes(STATIC / name) for name in named if name.endswith(".js"))
    styles = sum(packed_bytes(STATIC / name) for name in named if name.endswith(".css"))
    fonts = sum(path.stat().st_size for path in (STATIC / "assets").glob("*.woff2"))
    compare = packed("editor-merge-*.js", "compare-*.js")
    search = packed("editor-search-*.js")
    trial = packed("try-*.js")
    differences = packed("differences-*.js", "compared-*.js")
    pressed = {name: packed(f"{name}-*.js") for name in PRESSED_MAX_BYTES}
    editor = packed("editor-*.js", "line-*.js", "source-*.js") - packed("editor-merge-*.js") - search
    modeller = packed("modeller-*.js") + editor
    later = packed("*.js") - scripts - modeller - compare - search - trial - differences - sum(pressed.values())
    print(
        f"{scripts=} {styles=} {later=} {modeller=} {editor=} {search=} {trial=} {compare=} {differences=} {pressed=}"
    )
    assert 0 < scripts <= SCRIPT_MAX_BYTES
    assert 0 < styles <= STYLE_MAX_BYTES
    assert 0 < fonts <= FONTS_MAX_BYTES
    assert 0 < later <= PICTURE_MAX_BYTES
    assert 0 < modeller <= MODELLER_MAX_BYTES
    assert 0 < editor < modeller
    assert 0 < compare <= COMPARE_MAX_BYTES
    assert 0 < search <= SEARCH_MAX_BYTES
    assert 0 < trial <= TRY_MAX_BYTES
    assert 0 < differences <= DIFFERENCES_MAX_BYTES
    assert {name for name, most in PRESSED_MAX_BYTES.items() if not 0 < pressed[name] <= most} == set()
    assert [name for name in named if re.search(r"/(editor|line|source|compare)", name)] == []
    assert 0 < packed("../vendor/*.js") <= LAYOUT_MAX_BYTES


def test_licences_of_all_that_is_inside_are_reported() -> None:
    reported = (STATIC / "THIRD-PARTY.txt").read_text()
    lock = json.loads((SOURCES / "package-lock.json").read_text())["packages"]
    shipped = {path.removeprefix("node_modules/") for path, about in lock.items() if path and not about.get("dev")}
    assert {"react", "react-dom", "elkjs", "@fontsource-variable/inter", "@codemirror/view", "@lezer/common"} <= shipped
    missing = {name for name in shipped if not re.search(rf"^{re.escape(name)} \d", reported, re.MULTILINE)}
    assert missing == {name for name in missing if lock[f"node_modules/{name}"].get("optional")}
    assert "Eclipse Public License" in reported
    assert "SIL OPEN FONT LICENSE" in reported
