"""Writes what an installation costs into docs/installation.md: sizes, dependencies, import times; `make sizes` runs it.

Measures the environment that it runs in (`.venv`, filled from the lock). The dependencies are checked by a test; sizes
and times are those of the machine and the day that the page names.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
import time
import tomllib
from datetime import UTC, datetime
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from statistics import median

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

sys.path.insert(0, str(Path(__file__).parents[1]))
from tools.lock import requirements as asked_for

TOP = Path(__file__).parents[1]
PAGE = TOP / "docs" / "installation.md"
BEGIN = "<!-- sizes: written by `make sizes` -->\n"
END = "<!-- sizes end -->\n"

INSTALLATIONS: dict[str, tuple[str, list[str]]] = {
    "penstock-workflow": ("import penstock.client, penstock.worker", []),
    "penstock-workflow[engine]": ("import penstock.runtime.service", ["engine"]),
    "penstock-workflow[engine,kafka]": ("import penstock.runtime.service, aiokafka", ["engine", "kafka"]),
    "penstock-workflow[testing]": ("import penstock.testing.rehearsal", ["testing"]),
}
"""What is installed: what its users import, and the extras."""
RUNS = 7


def needed_by(requirements: list[str], extra: str = "") -> set[str]:
    """The names of all distributions that an installer would bring for these, with what they need in turn; ``extra`` is
    that of who requires them."""
    found: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), extra) for text in requirements]
    for wanted, of_extra in waiting:
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": of_extra}):
            continue
        name = canonicalize_name(wanted.name)
        for extra in ("", *sorted(wanted.extras)):
            if (name, extra) not in found:
                found.add((name, extra))
                waiting += [(Requirement(text), extra) for text in distribution(name).requires or ()]
    return {name for name, _ in found}


def installed_bytes(names: set[str]) -> int:
    paths = {Path(str(file.locate())) for name in names for file in distribution(name).files or []}
    return sum(path.stat().st_size for path in paths if path.is_file() and path.suffix != ".pyc")


def import_seconds(statement: str, needed: set[str]) -> float:
    """Of a new interpreter, less what it takes with nothing to import: the median of several. What users would not have
    is not there: httpx imports rich where it finds it."""
    absent = [
        name
        for name, owners in packages_distributions().items()
        if not {"penstock-workflow", *needed} & {canonicalize_name(owner) for owner in owners}
    ]
    without = f"import sys; sys.modules.update(dict.fromkeys({absent!r}))"
    times: dict[str, list[float]] = {f"{without}\n{statement}": [], without: []}
    for _ in range(RUNS):
        for code, measured in times.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            measured.append(time.perf_counter() - started)
    whole, empty = map(median, times.values())
    return whole - empty


def wheel_bytes() -> int:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", directory, str(TOP)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        [wheel] = Path(directory).glob("*.whl")
        return wheel.stat().st_size


def rows() -> str:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    lines = ["| installed | other distributions | MB on disk, without .pyc | import | |", "|---|---|---|---|---|"]
    for name, (statement, extras) in INSTALLATIONS.items():
        needed = needed_by(asked_for(project, *extras))
        size, taken = installed_bytes(needed) / 1e6, import_seconds(statement, needed) * 1e3
        lines.append(f"| `{name}` | {len(needed)} | {size:.1f} | {taken:.0f} ms | `{statement}` |")
    about = (
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {datetime.now(UTC):%Y-%m-%d}"
    )
    return (
        f"\nThe wheel has {wheel_bytes() / 1e6:.2f} MB. {about}; import times are the median of {RUNS} new processes"
        f" with a warm disk cache, less an empty one's, without what tests and linters need:\n\n"
        + "\n".join(lines)
        + "\n\n"
    )


def main() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + rows() + END + rest.partition(END)[2])
    print(f"wrote {PAGE.relative_to(TOP)}")


if __name__ == "__main__":
    main()
