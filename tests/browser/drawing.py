"""What people do in the modeller, measured and filmed; the loan process of the examples, drawn from nothing by keys.

python -m tests.browser.drawing film FOLDER     a picture (PNG) after each step that is drawn
python -m tests.browser.drawing frames          how evenly the page draws: 200 steps opened and dragged, three times,
                                                beside an empty page while a worker computes
python -m tests.browser.drawing minutes         the first five minutes of docs/console.md: clicks, keys and seconds
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from penstock.testing.definitions import Json, definition, end, service, step
from tests import postgres
from tests.browser.test_console import Visitor
from tests.runtime.engine_process import EngineProcess

TOP = Path(__file__).resolve().parents[2]
EXAMPLES = TOP / "examples"
LOAN = EXAMPLES / "loan-process.json"
EXAMPLE = EXAMPLES / "expense-approval.json"
LARGE_STEPS = 200
SLOW_MS = 20
TIMEOUT_MS = 40_000
LETTERS = {
    "SERVICE_TASK": "s",
    "USER_TASK": "u",
    "DECISION": "d",
    "TRANSFORMATION": "t",
    "WAIT": "w",
    "PARALLEL_GATEWAY": "p",
    "JOIN_GATEWAY": "j",
    "END": "e",
}
_WATCH = """() => {
    const seen = window.seen = {at: [], long: [], still: 0}, steps = document.getElementsByClassName("node");
    const before = steps.length;
    const next = at => {
        seen.at.push(at);
        if (steps.length <= before && seen.still === seen.at.length - 1) seen.still++;
        if (window.seen === seen) requestAnimationFrame(next);
    };
    requestAnimationFrame(next);
    new PerformanceObserver(list => seen.long.push(...list.getEntries().map(one => one.duration)))
        .observe({entryTypes: ["longtask"]});
}"""
_EMPTY = """<style>
    @keyframes turn { to { transform: rotate(1turn) } }
    div { width: 90px; height: 90px; background: teal; animation: turn 1s linear infinite }
</style><div></div>"""
_COMPUTE = """() => new Promise(done => {
    const program = "const end = Date.now() + 2000; while (Date.now() < end) Math.sqrt(Math.random()); postMessage(0)";
    new Worker(URL.createObjectURL(new Blob([program]))).onmessage = done;
})"""
_TRACED = ["devtools.timeline", "disabled-by-default-devtools.timeline"]
_KEYS_LEFT = "name => document.activeElement.getAttribute('aria-label') !== name"
_SEEN = "() => { const seen = window.seen; window.seen = undefined; return seen; }"


class Frames(NamedTuple):
    """Of a stretch of time: how long each frame stood, tasks that held the page for more than 50 ms, and what CPU each
    task of the page's thread took, which other programs on the machine change little. The first ``still`` frames had no
    new step: so long the worker laid out."""

    frame_ms: Sequence[float]
    long_task_ms: Sequence[float]
    task_cpu_ms: Sequence[float]
    still: int

    def __str__(self) -> str:
        ordered = sorted(self.frame_ms)
        p95 = ordered[int(len(ordered) * 0.95)]
        came = self.frame_ms[self.still :]
        long = ", ".join(f"{one:.0f}" for one in self.long_task_ms) or "none"
        return (
            f"{len(ordered)} frames in {sum(ordered) / 1000:.1f} s, median {ordered[len(ordered) // 2]:.1f} ms, "
            f"p95 {p95:.1f}; frames above {SLOW_MS} ms: {_slow(self.frame_ms[: self.still])}"
            f"{f', and while steps came {_slow(came)}' if came else ''}; tasks above 50 ms: {long}; "
            f"most CPU of a task: {', '.join(f'{one:.1f}' for one in sorted(self.task_cpu_ms)[:-4:-1])} ms"
        )


def _slow(frame_ms: Sequence[float]) -> str:
    slow = sorted(one for one in frame_ms if one > SLOW_MS)
    return f"{len(slow)} of {len(frame_ms)}" + (f" ({', '.join(f'{one:.0f}' for one in slow)})" if slow else "")


def large(steps: int) -> Json:
    """Decisions one after the other, each with three branches that meet again."""
    blocks = (steps - 1) // 5
    made: list[Json] = []
    for n in range(blocks):
        ways = {"n > 1": f"a{n}", "n > 5": f"b{n}", "true": f"c{n}"}
        made.append(step(f"d{n}", "DECISION", conditionalNextSteps=ways))
        made += [service(f"{branch}{n}", f"m{n}") for branch in "abc"]
        made.append(service(f"m{n}", f"d{n + 1}" if n + 1 < blocks else "end"))
    return definition(*made, end(), definition_id="large")


def laid_out(page: Any) -> None:
    page.locator('.surface[aria-busy="false"]').wait_for(timeout=TIMEOUT_MS)


def frames_of_layout(page: Any, home: str, body: dict[str, Any]) -> Frames:
    """From when a file is opened in an empty modeller to when its last step stands in the picture."""
    page.goto(f"{home}modeller")
    laid_out(page)
    _watch(page)
    page.locator("input[type=file]").set_input_files(
        {"name": "large.json", "mimeType": "application/json", "buffer": json.dumps(body).encode()}
    )
    last = body["steps"][-2]["id"]
    page.locator(f'.node[data-step="{last}"]').wait_for(timeout=TIMEOUT_MS)
    laid_out(page)
    return _frames(page)


def frames_of_nothing(page: Any) -> Frames:
    """Of a page with a square that turns, while a worker computes for 2 s: what the machine leaves to any page."""
    page.goto("about:blank")
    page.set_content(_EMPTY)
    _watch(page)
    page.evaluate(_COMPUTE)
    return _frames(page)


def frames_of_drag(page: Any, step_id: str, moves: int) -> Frames:
    box = page.locator(f'.node[data-step="{step_id}"] .body').bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    _watch(page)
    for n in range(moves):
        page.mouse.move(x + n, y + n % 50)
    seen = _frames(page)
    page.mouse.up()
    return seen


def frames_while(page: Any, act: Callable[[], None]) -> Frames:
    """And a moment after, in which the engine is asked."""
    _watch(page)
    act()
    page.wait_for_timeout(600)
    return _frames(page)


def _watch(page: Any) -> None:
    page.context.browser.start_tracing(page=page, categories=_TRACED)
    page.evaluate(_WATCH)


def _frames(page: Any) -> Frames:
    seen = page.evaluate(_SEEN)
    events = json.loads(page.context.browser.stop_tracing())["traceEvents"]
    threads = {
        (one["pid"], one["tid"])
        for one in events
        if one["name"] == "thread_name" and one["args"]["name"] == "CrRendererMain"
    }
    tasks = [
        one.get("tdur", 0) / 1000  # one that the end of the trace cuts has none
        for one in events
        if one["name"].endswith("RunTask") and one["ph"] == "X" and (one["pid"], one["tid"]) in threads
    ]
    stood = [after - before for before, after in zip(seen["at"], seen["at"][1:], strict=False)]
    return Frames(stood, seen["long"], tasks, max(0, seen["still"] - 1))


class Artist:
    """Draws a definition by keys alone: each step by its letter, then its fields, in the order in which they stand."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.properties = page.get_by_role("region", name="Properties")
        self.pictures: list[bytes] = []

    def draw(self, body: dict[str, Any], home: str, *, every: int = 1) -> None:
        """With a picture after so many of what it does, and at the end."""
        self.page.goto(f"{home}modeller")
        laid_out(self.page)
        self._begin()
        acts = [*((self._place, one) for one in body["steps"]), *((self._fill, one) for one in body["steps"])]
        for at, (act, one) in enumerate(acts, 1):
            act(one)
            if at % every == 0:
                self._shoot()
        self._define(body)
        self._shoot()

    def _begin(self) -> None:
        """Without the END that a new definition has."""
        self.page.locator('.node[data-step="end"]').focus()
        self.page.keyboard.press("Delete")
        self.page.locator('.node[data-step="end"]').wait_for(state="detached", timeout=TIMEOUT_MS)

    def _place(self, one: dict[str, Any]) -> None:
        """At the end and wired to nothing, as nothing is selected. A parallel block goes without what comes with it."""
        self.page.locator(".palette button").first.focus()
        self.page.keyboard.press("Escape")
        self.page.keyboard.press(LETTERS[one["type"]])
        self._type("Id", one["id"])
        self.page.locator(f'.node[data-step="{one["id"]}"]').wait_for(timeout=TIMEOUT_MS)
        for extra in ("branch", "branch-2", "join") if one["type"] == "PARALLEL_GATEWAY" else ():
            self.page.locator(f'.node[data-step="{extra}"]').focus()
            self.page.keyboard.press("Escape")
            self.page.keyboard.press("Delete")
            if extra == "join":  # which leads nowhere: it is asked where the gateway's way to it leads
                asked = self.page.get_by_role("dialog", name="Delete join?")
                asked.get_by_role("button", name="Delete").focus(timeout=TIMEOUT_MS)
                self.page.keyboard.press("Enter")
            self.page.locator(f'.node[data-step="{extra}"]').wait_for(state="detached", timeout=TIMEOUT_MS)

    def _open(self, step_id: str) -> None:
        self.page.locator(f'.node[data-step="{step_id}"]').focus()
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("Space")

    def _type(self, label: str, text: str) -> None:
        field = self.properties.get_by_label(label, exact=True)
        field.focus()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(text)
        field.blur()

    def _choose(self, label: str, value: str) -> None:
        self.properties.get_by_label(label, exact=True).select_option(value, timeout=TIMEOUT_MS)

    def _press(self, name: str) -> None:
        """And wait until the keys are where they go from there: what is pressed before goes there as well."""
        self.properties.get_by_role("button", name=name, exact=True).focus()
        self.page.keyboard.press("Enter")
        self.page.wait_for_function(_KEYS_LEFT, arg=name, timeout=TIMEOUT_MS)

    def _fill(self, one: dict[str, Any]) -> None:
        self._open(one["id"])
        for name, value in one.items():
            match name:
                case "id" | "type":
                    pass
                case "nextStep" | "joinStep":
                    self._choose(_words(name), value)
                case "parallelNextSteps":
                    for at, branch in enumerate(value, 1):
                        self._press("Add to parallel next steps")
                        self._choose(f"Parallel next steps {at}", branch)
                case "transformations":
                    self._assign(value)
                case "conditionalNextSteps":
                    self._fork(value)
                case "boundaryEvents":
                    for at, event in enumerate(value, 1):
                        self._hang(f"Boundary events {at}", event)
                case _:
                    self._type(_words(name), str(value))

    def _assign(self, values: dict[str, Any]) -> None:
        for at, (name, value) in enumerate(values.items(), 1):
            if at > 1:  # a new step has one
                self._press("Add to transformations")
            self._type(f"Transformations {at}: name", name)
            label = f"Transformations {at}: value"
            if isinstance(value, str):
                self._type(label, value)
            else:
                self._press(f"{label} as JSON")
                self._type(label, json.dumps(value))

    def _fork(self, ways: dict[str, Any]) -> None:
        """The otherwise comes first and stays the last."""
        for _ in ways:
            self._press("Add to conditional next steps")
        for at, (condition, to) in enumerate(ways.items(), 1):
            if condition != "true":
                self._type(f"Conditional next steps {at}: condition", condition)
            self._choose(f"Conditional next steps {at}: goes to", to)

    def _hang(self, label: str, event: dict[str, Any]) -> None:
        self._press("Add to boundary events")
        self._choose(f"{label}: type", event["type"])
        self._type(f"{label}: duration", event["duration"])
        self._choose(f"{label}: interrupting", json.dumps(event["interrupting"]))
        self._choose(f"{label}: target step id", event["targetStepId"])

    def _define(self, body: dict[str, Any]) -> None:
        self.page.locator(".palette button").first.focus()
        self.page.keyboard.press("Escape")
        for name, value in body.items():
            if isinstance(value, bool):
                self._choose(_words(name), json.dumps(value))
            elif name != "steps":
                self._type(_words(name), value if isinstance(value, str) else json.dumps(value))

    def _shoot(self) -> None:
        laid_out(self.page)
        self.page.get_by_role("button", name="Fit").click(timeout=TIMEOUT_MS)
        self.pictures.append(self.page.screenshot())


class Minutes(NamedTuple):
    """What a path through the console took."""

    clicks: int
    seconds: float


def first_minutes(visitor: Visitor) -> Minutes:
    """With an engine that has nothing: an example is opened, uploaded and started, and is seen at work."""
    began, page = time.monotonic(), visitor.page
    visitor.go("modeller").see("No problems")
    page.locator("input[type=file]").set_input_files(EXAMPLE)
    visitor.clicks += 1
    visitor.see(f"Opened {EXAMPLE.name}")
    laid_out(page)
    visitor.click("button", "Upload…")
    page.get_by_role("dialog").get_by_role("button", name="Upload").click(timeout=TIMEOUT_MS)
    visitor.clicks += 1
    visitor.click("link", "Show it")
    visitor.click("button", "Start", exact=True)
    page.get_by_role("dialog").get_by_role("button", name="Start").click(timeout=TIMEOUT_MS)
    visitor.clicks += 1
    page.wait_for_url(re.compile("/console/instances/"), timeout=TIMEOUT_MS)
    page.locator(".node.st-run, .node.st-wait").first.wait_for(timeout=TIMEOUT_MS)
    return Minutes(visitor.clicks, time.monotonic() - began)


def _words(name: str) -> str:
    """A field's name as the modeller writes it."""
    return re.sub("([A-Z])", r" \1", name).lower().capitalize()


def main(arguments: Sequence[str]) -> int:
    from playwright.sync_api import sync_playwright

    match arguments:
        case ["film", _] | ["frames"] | ["minutes"]:
            what = arguments[0]
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    directory = postgres.run_directory(durable=False)
    with (
        postgres.shared_server(directory, durable=False) as server,
        server.database(postgres.apply_schema) as dsn,
        EngineProcess(dsn) as engine,
        sync_playwright() as playwright,
    ):
        engine.wait_ready()
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        visitor = Visitor(page, engine)
        if what == "film":
            artist = Artist(page)
            artist.draw(json.loads(LOAN.read_text()), visitor.home)
            folder = Path(arguments[1])
            folder.mkdir(parents=True, exist_ok=True)
            for at, picture in enumerate(artist.pictures):
                (folder / f"{at:03}.png").write_bytes(picture)
            print(f"{len(artist.pictures)} pictures in {folder}")
        elif what == "frames":
            for _ in range(3):  # each with a browser's storage of its own
                page = browser.new_page(viewport={"width": 1440, "height": 900})
                print(f"empty page: {frames_of_nothing(page)}")
                print(f"opened: {frames_of_layout(page, visitor.home, large(LARGE_STEPS))}")
                print(f"drag: {frames_of_drag(page, 'd20', 200)}")
                page.close()
        else:
            print(first_minutes(visitor))
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
