"""How soon the console's pages are useful: `python -m tests.browser.paint`.

Each of `PLACES` is opened by a browser that has nothing of it yet, and come to from the overview. A page is useful when
it has its heading and, in the place of what it is for, no placeholder any more. An instance's is useful twice: when it
tells why the instance stands where it stands, with its timeline, and when its picture stands, which takes 1.6 MB of
program.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.browser.pictures import furnished

TIMEOUT_MS = 40_000
PLACES = ("instances", "tasks", "jobs", "timers", "schedules", "definitions", "modeller", "engines", "settings")
"""As the rail has them."""
_WATCH = """(() => {
    window.watch = before => {
        window.useful = undefined;
        window.told = undefined;
        const look = () => {
            const heading = document.querySelector("main h1");
            if (window.told === undefined && heading && heading !== before && document.querySelector("main .gantt"))
                requestAnimationFrame(() => { window.told ??= performance.now(); });
            const waits = document.querySelector("main .skeleton, main .canvas:not(:has(svg))");
            if (heading && heading !== before && !waits)
                requestAnimationFrame(() => { window.useful = performance.now(); });
            else requestAnimationFrame(look);
        };
        requestAnimationFrame(look);
    };
    window.watch(null);
})()"""
_GO = """place => {
    const link = document.querySelector(`nav[aria-label="Main"] a[href="/console/${place}"]`);
    performance.clearResourceTimings();
    window.began = performance.now();
    window.watch(document.querySelector("main h1"));
    link.click();
}"""
_SEEN = """() => {
    const began = window.began ?? 0;
    const asked = performance.getEntriesByType("resource")
        .filter(one => one.startTime >= began && one.startTime < window.useful)
        .map(one => ({path: new URL(one.name).pathname, at: one.startTime, until: one.responseEnd,
                      bytes: one.encodedBodySize}));
    return {began, useful: window.useful, told: window.told, asked};
}"""


class Paint(NamedTuple):
    """Of a page, until it was useful."""

    place: str
    useful_ms: float
    own_ms: float
    """Without the time in which answers of the engine that it needed were under way."""
    cpu_ms: float
    """Of the page's thread: other programs on the machine change it little."""
    files: list[str]
    file_bytes: int
    calls: list[str]
    told_ms: float | None
    """Of an instance: until what its page says stood there."""

    def __str__(self) -> str:
        told = "" if self.told_ms is None else f"{self.told_ms:4.0f} ms, with its picture after "
        return (
            f"{self.place or 'overview':<12} useful after {told}{self.useful_ms:4.0f} ms, "
            f"own part {self.own_ms:4.0f} ms, CPU {self.cpu_ms:4.0f} ms; "
            f"{len(self.files)} files of {self.file_bytes / 1000:.0f} kB, {len(self.calls)} calls"
        )


def opened(page: Any, home: str, place: str) -> Paint:
    """In a page that has shown nothing, of a browser context that keeps nothing."""
    page.add_init_script(_WATCH)
    session = _metrics_of(page)
    page.goto(home + place)
    return _seen(page, session, place, 0)


def come_to(page: Any, place: str) -> Paint:
    """By the rail, in a page that was `opened`."""
    session = _metrics_of(page)
    before = _cpu_ms(session)
    page.evaluate(_GO, place)
    return _seen(page, session, place, before)


def _metrics_of(page: Any) -> Any:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    return session


def _cpu_ms(session: Any) -> float:
    found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return float(found["TaskDuration"]) * 1000


def _seen(page: Any, session: Any, place: str, cpu_before_ms: float) -> Paint:
    page.wait_for_function("() => window.useful !== undefined", timeout=TIMEOUT_MS)
    cpu_ms = _cpu_ms(session) - cpu_before_ms
    session.detach()
    seen = page.evaluate(_SEEN)
    files = [one for one in seen["asked"] if one["path"].startswith("/console/")]
    calls = [one for one in seen["asked"] if one not in files]
    useful_ms = seen["useful"] - seen["began"]
    waited_ms = _covered_ms([(one["at"], one["until"]) for one in calls if one["until"] <= seen["useful"]])
    return Paint(
        place,
        useful_ms,
        useful_ms - waited_ms,
        cpu_ms,
        [one["path"] for one in files],
        sum(one["bytes"] for one in files),
        [one["path"] for one in calls],
        seen["told"] - seen["began"] if seen.get("told") else None,
    )


def _covered_ms(spans: list[tuple[float, float]]) -> float:
    """By any of them."""
    covered, end = 0.0, 0.0
    for start, until in sorted(spans):
        covered += max(0.0, until - max(start, end))
        end = max(end, until)
    return covered


def main() -> None:
    with furnished() as (browser, home, made):
        instance = f"instances/{made.loan}"
        print("with nothing kept:")
        for place in ("", *PLACES, instance):
            context = browser.new_context(viewport={"width": 1440, "height": 900})
            print(opened(context.new_page(), home, place))
            context.close()
        print("from the overview:")
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        opened(page, home, "")
        for place in PLACES:
            print(come_to(page, place))
        page.close()


if __name__ == "__main__":
    main()
