"""Runs the guides of docs/ as a new operator would: from an empty directory and home, with a wheel of a clean clone.

    .venv/bin/python tools/guides.py [PAGE …] [--log FILE] [--keep]

A block runs when a comment stands before it: `<!-- runs -->`, or what is to come of it:

    <!-- runs: prints "TEXT" -->           its output has to contain that
    <!-- runs: background until "TEXT" --> it goes on beside the others; the page waits for that in what it says
    <!-- runs: as NAME prints "TEXT" -->   a program: it is saved under that name and run by Python
    <!-- runs: saved as NAME -->           a file of any kind: it is saved under that name

Blocks of a page are one shell, in their order; the first that fails ends the page. As root they run as the account
`postgres`, as PostgreSQL's programs demand. A page that says $KAFKA finds a broker of its own there (needs Java and
Maven), one that says $OLD a wheel of the version before: of the commit that --old names. Needs a network for what pip
installs. Exit code 1 when a page failed.
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

TOP: Final = Path(__file__).resolve().parents[1]
DOCS: Final = TOP / "docs"
ACCOUNT: Final = "postgres"
OLD: Final = "0e3755de^"
"""Its schema is one version older. Nothing is released yet, so it is no tag."""
PAGE_MAX_S: Final = 420
BACKGROUND_MAX_S: Final = 90
END_ALL: Final = 'for job in $(jobs -p); do pkill -P "$job"; kill "$job"; done 2>/dev/null || true; wait || true'
"""What runs in the background is a shell with one child."""
BLOCK: Final = re.compile(r"^<!-- runs(?:: ([^\n]*?))? -->\n```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
WORDS: Final = re.compile(
    r"(?:(?P<saved>saved )?as (?P<name>[\w.]+) ?)?"
    r'(?:background until "(?P<until>[^"]+)")?(?:prints "(?P<prints>[^"]+)")?'
)


class Block(NamedTuple):
    """One of a page, with what its comment says."""

    line: int
    language: str
    text: str
    saved: bool
    """It is kept and not run."""
    name: str | None
    until: str | None
    prints: str | None


class Wrong(Exception):
    """The page says something that this does not know."""


def blocks(page: Path) -> Iterator[Block]:
    """Those that run, in their order. Raises Wrong."""
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        said = WORDS.fullmatch(found[1] or "")
        line = text.count("\n", 0, found.start()) + 1
        saved = said is not None and said["saved"] is not None
        known = saved or (found[2] == "python" if said and said["name"] else found[2] == "sh")
        if said is None or not known or (saved and said["prints"]):
            raise Wrong(f"{page.name}:{line}: `runs` is not understood, or of this kind of block")
        yield Block(line, found[2], found[3], saved, said["name"], said["until"], said["prints"])


def guides() -> list[Path]:
    """The pages with blocks that run."""
    return [page for page in sorted(DOCS.rglob("*.md")) if "\n<!-- runs" in page.read_text(encoding="utf-8")]


def script(page: Path) -> str:
    """The page as one shell program, which says what it does."""
    lines = ["set -euo pipefail", f"trap '{END_ALL}' EXIT"]
    for number, block in enumerate(blocks(page)):
        out = f".block-{number}"
        lines.append(f"echo '== {page.name}:{block.line}'")
        if block.name is not None:
            lines += [f"cat > {block.name} <<'END OF {block.name}'", block.text + f"END OF {block.name}"]
            if not block.saved:
                lines.append(f"python3 {block.name} 2>&1 | tee {out}")
        elif block.until is not None:
            lines += ["{", block.text + f"}} > {out} 2>&1 &"]
            lines.append(
                f"for _ in $(seq {BACKGROUND_MAX_S * 5}); do grep -qF '{block.until}' {out} && break;"
                " kill -0 $! || break; sleep 0.2; done"
            )
            lines += [f"cat {out}", f"grep -qF '{block.until}' {out}"]
        else:  # in this shell: what it sets is there for those that follow
            lines += [f"exec 8>&1 9>&2 > {out} 2>&1", block.text + "exec >&8 2>&9 8>&- 9>&-", f"cat {out}"]
        if block.prints is not None:
            lines.append(f"grep -qF '{block.prints}' {out} || {{ echo 'MISSING: {block.prints}'; exit 1; }}")
    lines.append(f"echo '== {page.name}: done'")
    return "\n".join(lines) + "\n"


def wheel(directory: Path, commit: str) -> Path:
    """Of a clean clone of this checkout, at that commit."""
    directory.mkdir()
    directory.chmod(0o755)
    clone = directory / "clone"
    subprocess.run(["git", "clone", "-q", str(TOP), str(clone)], check=True)
    subprocess.run(["git", "-C", str(clone), "checkout", "-q", "--detach", commit], check=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", directory / "wheels", clone], check=True
    )
    (found,) = (directory / "wheels").glob("*.whl")
    return found


@contextmanager
def surroundings(page: Path, directory: Path, old: str) -> Generator[dict[str, str]]:
    """Variables that say where to find what the page needs beside this version."""
    with ExitStack() as stack:
        found: dict[str, str] = {}
        text = page.read_text(encoding="utf-8")
        if re.search(r"\$\{?OLD\b", text):
            before = directory / "old"
            found["OLD"] = str(next(before.glob("wheels/*.whl")) if before.exists() else wheel(before, old))
        if re.search(r"\$\{?KAFKA\b", text):
            sys.path.insert(0, str(TOP))
            from tests.kafka.broker import KafkaBroker

            found["KAFKA"] = stack.enter_context(KafkaBroker()).bootstrap
        yield found


def run(page: Path, built: Path, directory: Path, more: Mapping[str, str]) -> tuple[int, str]:
    """The exit code, and all that was said."""
    place, home = directory / page.stem, directory / f"{page.stem}-home"
    for each in (place, home):
        each.mkdir()
    (home / "constraints.txt").write_text(f"penstock-workflow=={built.name.split('-')[1]}\n")
    program = place / ".guide.sh"
    program.write_text(script(page))
    environment = {
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PATH": f"{home}/venv/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/usr/local/go/bin",
        "PIP_CONSTRAINT": str(home / "constraints.txt"),
        "PIP_FIND_LINKS": str(built.parent),  # `pip install penstock-workflow` is to find this one
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        **more,
    } | {name: value for name, value in os.environ.items() if name.endswith(("_proxy", "_PROXY"))}
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:
        account = pwd.getpwnam(ACCOUNT)
        identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        for each in (place, home):
            os.chown(each, account.pw_uid, account.pw_gid)
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    subprocess.run([python, "-m", "venv", home / "venv"], check=True, env=environment, cwd=place, **identity)
    log = directory / f"{page.stem}.log"  # no pipe: a server that is left would hold it open
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["bash", program], cwd=place, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True, **identity,
        )  # fmt: skip
    try:
        process.wait(PAGE_MAX_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # the trap ends what it began
        process.wait()
    said = log.read_text(encoding="utf-8", errors="replace")
    if process.returncode:  # what the block said that failed
        outs = sorted(place.glob(".block-*"), key=lambda path: path.stat().st_mtime)
        said += outs[-1].read_text(errors="replace") if outs else ""
    for left in place.glob("*/postmaster.pid"):
        os.kill(int(left.read_text().split()[0]), signal.SIGINT)
    return process.returncode, said


def main(options: argparse.Namespace) -> int:
    """The exit code."""
    pages = [DOCS / f"{Path(name).stem}.md" for name in options.pages] or guides()
    directory = Path(tempfile.mkdtemp(prefix="penstock-guides-", dir="/var/tmp"))
    directory.chmod(0o755)
    failed: list[str] = []
    try:
        built = wheel(directory / "new", "HEAD")
        for page in pages:
            began = time.monotonic()
            with surroundings(page, directory, options.old) as more:
                code, said = run(page, built, directory, more)
            text = f"{said}== {page.name}: exit code {code} after {time.monotonic() - began:.0f} s\n\n"
            print(text, end="", flush=True)
            if options.log:
                with options.log.open("a") as log:
                    log.write(text)
            if code:
                failed.append(page.name)
    finally:
        if options.keep:
            print(f"kept: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    print(
        f"{len(pages) - len(failed)} of {len(pages)} guides ran" + (f"; failed: {', '.join(failed)}" if failed else "")
    )
    return int(bool(failed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="as quickstart; without any all that run")
    parser.add_argument("--log", type=Path, help="also into this file")
    parser.add_argument("--old", default=OLD, metavar="COMMIT", help="the version before, for upgrades [%(default)s]")
    parser.add_argument("--keep", action="store_true", help="leave the directories")
    sys.exit(main(parser.parse_args()))
