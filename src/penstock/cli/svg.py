"""The picture of a definition as SVG: the console's shapes and colours, light and dark, in one file without scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Final, assert_never

from penstock.cli.drawing import Edge, edges
from penstock.cli.layout import Box, Way, place
from penstock.core.definition import Definition, Step, StepType

MARGIN_PX: Final = 24
START_PX: Final = 34
"""For the dot above the first step."""
NAME_MAX_CHARS: Final = 25
NARROW_MAX_CHARS: Final = 17
SECOND_LINE_MAX_CHARS: Final = 27
LABEL_MAX_CHARS: Final = 34
_CHAR_PX: Final = 6.3
_BEND_PX: Final = 7
_NO_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STYLE: Final = """
  svg{--bg:#f4f6f7;--card:#fff;--ink:#13212b;--ink-2:#5f6d79;--line:#c8d0d5;--edge:#6b7a86;--wait:#0b6e6a;
    --svc:#2c5aa8;--usr:#8a3b86;--dec:#8a5200;--trf:#4e5aa8;--gat:#3b4954;background:var(--bg)}
  @media (prefers-color-scheme:dark){svg{--bg:#0d1317;--card:#1a242b;--ink:#e7edf1;--ink-2:#8fa0ac;--line:#3a4954;
    --edge:#8fa0ac;--wait:#5fcfc7;--svc:#8db3f5;--usr:#e09adb;--dec:#ecb74a;--trf:#a9b2f7;--gat:#b3c0ca}}
  text{font:500 12.5px system-ui,sans-serif;fill:var(--ink)}
  .sub,.lab text{font:11px ui-monospace,monospace;fill:var(--ink-2)}
  .body{fill:var(--card);stroke:var(--line)}.mark{stroke:none}.start{fill:var(--ink)}
  .svc{fill:var(--svc)}.usr{fill:var(--usr)}.dec{fill:var(--dec)}.trf{fill:var(--trf)}.wai{fill:var(--wait)}
  .gat{fill:var(--gat)}.edge{fill:none;stroke:var(--edge);stroke-width:1.4}
  .edge.event{stroke:var(--wait);stroke-dasharray:4 3}.lab rect{fill:var(--bg)}.head{fill:var(--edge)}
"""


def svg(definition: Definition) -> str:
    """A whole SVG document. Raises `layout.TooLarge`."""
    steps = definition.steps[: definition.undo_step]
    boxes = [Box(*_size(step)) for step in steps]
    drawn = [(edge, Way(step.index, edge.target, _label_box(edge))) for step in steps for edge in edges(step)]
    width, height = place(boxes, [way for _, way in drawn])
    lines = [*_start(boxes[0])]
    lines += [line for edge, way in drawn for line in _edge(edge, way)]
    lines += [line for step, box in zip(steps, boxes, strict=True) for line in _node(step, box)]
    lines += [line for edge, way in drawn for line in _label(edge, way)]
    loops = max((box.x + box.width for _, way in drawn if (box := way.label) is not None), default=0.0)
    return "\n".join(
        (_head(definition, max(width, loops) + 2 * MARGIN_PX, height + START_PX + 2 * MARGIN_PX), *lines, "</g></svg>")
    )


def _head(definition: Definition, width: float, height: float) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">'
        f'<title id="title">{_text(definition.name)}</title><style>{_STYLE}</style>'
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 .8 7 4 0 7.2z" class="head"/></marker></defs>'
        f'<g transform="translate({MARGIN_PX} {MARGIN_PX + START_PX})">'
    )


def _size(step: Step) -> tuple[float, float]:
    match step.type:
        case StepType.END:
            return 150, 34
        case StepType.PARALLEL_GATEWAY | StepType.JOIN_GATEWAY:
            return 168, 30
        case (
            StepType.SERVICE_TASK
            | StepType.USER_TASK
            | StepType.CALL_ACTIVITY
            | StepType.DECISION
            | StepType.TRANSFORMATION
            | StepType.WAIT
            | StepType.COMPENSATE
        ):
            return 212, 46
        case _:
            assert_never(step.type)


def _hue(kind: StepType) -> str:
    match kind:
        case StepType.SERVICE_TASK | StepType.CALL_ACTIVITY:
            return "svc"
        case StepType.USER_TASK:
            return "usr"
        case StepType.DECISION:
            return "dec"
        case StepType.TRANSFORMATION:
            return "trf"
        case StepType.WAIT:
            return "wai"
        case StepType.PARALLEL_GATEWAY | StepType.JOIN_GATEWAY | StepType.COMPENSATE | StepType.END:
            return "gat"
        case _:
            assert_never(kind)


def _start(first: Box) -> Iterator[str]:
    yield f'<circle class="start" cx="{first.centre:.1f}" cy="-26" r="5.5"/>'
    yield f'<path class="edge" d="M{first.centre:.1f} -20V-1" marker-end="url(#arrow)"/>'


def _node(step: Step, box: Box) -> Iterator[str]:
    tall = box.height > 40
    round_px = box.height / 2 if step.type is StepType.END else 9
    words = step.type.value.replace("_", " ").lower()
    more = [words]
    if step.job_type is not None and step.job_type != step.id:
        more.append(step.job_type)
    if step.callee is not None:
        more.append(step.callee.definition_id)
    if step.message is not None:
        more.append(f"message {step.message.name}")
    if step.for_each is not None:
        more.append("for each")
    yield f'<g transform="translate({box.x:.1f} {box.y:.1f})"><title>{_text(f"{step.name} ({step.id})")}</title>'
    yield f'<rect class="body" width="{box.width}" height="{box.height}" rx="{round_px}"/>'
    yield f'<rect class="mark {_hue(step.type)}" x="10" y="{box.height / 2 - 6}" width="12" height="12" rx="3"/>'
    cut = _cut(step.name, NAME_MAX_CHARS if tall else NARROW_MAX_CHARS)
    yield f'<text x="30" y="{19.5 if tall else box.height / 2 + 4.5:.1f}">{cut}</text>'
    if tall:
        yield f'<text class="sub" x="30" y="35.5">{_cut(" · ".join(more), SECOND_LINE_MAX_CHARS)}</text>'
    yield "</g>"


def _edge(edge: Edge, way: Way) -> Iterator[str]:
    look = "edge event" if edge.boundary else "edge"
    yield f'<path class="{look}" d="{_path(way.points)}" marker-end="url(#arrow)"/>'


def _label_box(edge: Edge) -> Box | None:
    return Box(min(len(edge.label), LABEL_MAX_CHARS) * _CHAR_PX + 16, 18) if edge.label else None


def _label(edge: Edge, way: Way) -> Iterator[str]:
    box = way.label
    if box is not None:
        yield f'<g class="lab" transform="translate({box.x:.1f} {box.y:.1f})"><title>{_text(edge.label)}</title>'
        yield f'<rect width="{box.width:.1f}" height="{box.height}" rx="5"/>'
        text = _cut(edge.label, LABEL_MAX_CHARS)
        yield f'<text x="{box.width / 2:.1f}" y="13" text-anchor="middle">{text}</text></g>'


def _path(points: list[tuple[float, float]]) -> str:
    """Straight lines with round corners."""
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        start, end = _near(here, before), _near(here, after)
        parts.append(f"L{start[0]:.1f} {start[1]:.1f}Q{here[0]:.1f} {here[1]:.1f} {end[0]:.1f} {end[1]:.1f}")
    return "".join((*parts, f"L{points[-1][0]:.1f} {points[-1][1]:.1f}"))


def _near(corner: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """A point a bend's length from the corner, at most half the way to the other."""
    (x, y), (to_x, to_y) = corner, other
    length = abs(to_x - x) + abs(to_y - y)
    share = min(_BEND_PX, length / 2) / length
    return x + (to_x - x) * share, y + (to_y - y) * share


def _cut(text: str, most: int) -> str:
    line = " ".join(text.split())
    return _text(line if len(line) <= most else f"{line[: most - 1]}…")


def _text(text: str) -> str:
    """What XML can't hold becomes a replacement character."""
    return escape(_NO_XML.sub("\ufffd", text))
