"""The picture of a definition as SVG: the console's shapes and colours, light and dark, in one file without scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Final, NamedTuple

from penstock.cli.drawing import DrawnEdge, edges
from penstock.cli.layout import Box, Way, place
from penstock.cli.shapes import EVENTS, MARKS, shape_of
from penstock.core.expression import Expression
from penstock.core.graph.definition import Definition, Step, StepType

MARGIN_PX: Final = 24
START_PX: Final = 34
"""For the dot above the first step."""
NAME_MAX_CHARS: Final = 25
NARROW_MAX_CHARS: Final = 15
SECOND_LINE_MAX_CHARS: Final = 24
LABEL_MAX_CHARS: Final = 34
_CHAR_PX: Final = 6.3
_BEND_PX: Final = 7
_NO_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STYLE: Final = """
  svg{--bg:#f4f6f7;--card:#fff;--ink:#13212b;--ink-2:#5f6d79;--line:#c8d0d5;--edge:#6b7a86;--svc:#2c5aa8;
    --svc-soft:#e7eefa;--usr:#8a3b86;--usr-soft:#f8e9f7;--dec:#8a5200;--dec-soft:#fbf0d9;--trf:#4e5aa8;--trf-soft:#eceefb;
    --wai:#0b6e6a;--wai-soft:#def3f1;--gat:#3b4954;--gat-soft:#e9edef;background:var(--bg)}
  @media (prefers-color-scheme:dark){svg{--bg:#0d1317;--card:#1a242b;--ink:#e7edf1;--ink-2:#8fa0ac;--line:#3a4954;
    --edge:#8fa0ac;--svc:#8db3f5;--svc-soft:#18284a;--usr:#e09adb;--usr-soft:#371a36;--dec:#ecb74a;--dec-soft:#352808;
    --trf:#a9b2f7;--trf-soft:#222748;--wai:#5fcfc7;--wai-soft:#0f302e;--gat:#b3c0ca;--gat-soft:#212c33}}
  text{font:500 12.5px system-ui,sans-serif;fill:var(--ink)}
  .sub,.lab text{font:11px ui-monospace,monospace;fill:var(--ink-2)}
  .body{fill:var(--card);stroke:var(--line)}.start{fill:var(--ink)}
  .ico,.clock path{fill:none;stroke:var(--hue);stroke-width:1.5;stroke-linecap:round;stroke-linejoin:round}
  .chip{fill:var(--soft)}.svc{--hue:var(--svc);--soft:var(--svc-soft)}.usr{--hue:var(--usr);--soft:var(--usr-soft)}
  .dec{--hue:var(--dec);--soft:var(--dec-soft)}.trf{--hue:var(--trf);--soft:var(--trf-soft)}
  .wai,.clock{--hue:var(--wai);--soft:var(--wai-soft)}.gat,.end{--hue:var(--gat);--soft:var(--gat-soft)}
  .gat .body,.end .body{fill:var(--soft)}.clock circle{fill:var(--card);stroke:var(--wai);stroke-width:1.4}
  .edge{fill:none;stroke:var(--edge);stroke-width:1.4}.edge.event{stroke:var(--wai);stroke-dasharray:4 4}
  .lab rect{fill:var(--bg)}.head{fill:var(--edge)}.event-head{fill:var(--wai)}
"""


def svg(definition: Definition) -> str:
    """Return a whole SVG document. Raises `layout.TooLarge`. Hidden steps are marks on the steps that they undo."""
    steps = [step for step in definition.steps[: definition.undo_step] if step.compensates is None]
    boxes = [Box(shape_of(step.type).width, shape_of(step.type).height) for step in steps]
    drawn = [
        (edge, Way(step.index, edge.target, _label_box(edge)))
        for step in steps
        for edge in edges(step)
        if edge.target < len(steps)
    ]
    width, height = place(boxes, [way for _, way in drawn])
    lines = [*_start(boxes[0])]
    lines += [line for edge, way in drawn for line in _edge(edge, way)]
    lines += [line for step, box in zip(steps, boxes, strict=True) for line in _node(definition, step, box)]
    lines += [line for edge, way in drawn for line in _on_edge(edge, way)]
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
        '<path d="M0 .8 7 4 0 7.2z" class="head"/></marker>'
        '<marker id="arrow-event" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 .8 7 4 0 7.2z" class="event-head"/></marker></defs>'
        f'<g transform="translate({MARGIN_PX} {MARGIN_PX + START_PX})">'
    )


class _Addition(NamedTuple):
    """What a step has beside its type."""

    mark: str
    says: str


def _additions(definition: Definition, step: Step) -> Iterator[_Addition]:
    if step.message is not None:
        yield _Addition("message", f"message {step.message.name}")
    if step.for_each is not None:
        yield _Addition("forEach", f"for each of {_written(step.for_each.items)}")
    if step.compensation is not None:
        yield _Addition("compensation", f"undone by {definition.steps[step.compensation].job_type}")
    if step.turn is not None and step.turn.key is not None:
        yield _Addition("flowKey", f"key {_written(step.turn.key)}")
    if step.turn is not None and step.turn.priority is not None:
        yield _Addition("priority", f"priority {_written(step.turn.priority)}")


def _written(value: Expression | str | int) -> str:
    return value.source if isinstance(value, Expression) else str(value)


def _start(first: Box) -> Iterator[str]:
    yield f'<circle class="start" cx="{first.centre:.1f}" cy="-26" r="5.5"/>'
    yield f'<path class="edge" d="M{first.centre:.1f} -20V-1" marker-end="url(#arrow)"/>'


def _node(definition: Definition, step: Step, box: Box) -> Iterator[str]:
    shape = shape_of(step.type)
    tall = box.height > 40
    middle = box.height / 2
    additions = list(_additions(definition, step))
    words = ", ".join((step.type.value.replace("_", " ").lower(), *(one.says for one in additions)))
    yield f'<g class="{shape.hue}" transform="translate({box.x:.1f} {box.y:.1f})">'
    yield f"<title>{_text(f'{step.name} ({step.id}): {words}')}</title>"
    round_px = middle if step.type is StepType.END else 9
    yield f'<rect class="body" width="{box.width}" height="{box.height}" rx="{round_px}"/>'
    icon = shape.icon if step.message is None else MARKS["message"]
    if tall:
        yield f'<rect class="chip" x="8" y="{middle - 14}" width="28" height="28" rx="7"/>'
        yield f'<path class="ico" transform="translate(14 {middle - 8})" d="{icon}"/>'
    else:
        yield f'<path class="ico" transform="translate(12 {middle - 7}) scale(.875)" d="{icon}"/>'
    marks = [MARKS[one.mark] for one in additions if one.mark != "message"]
    for at, mark in enumerate(marks):
        place_px = f"translate({box.width - 16 - 15 * at} {box.height - 15}) scale(.75)"
        yield f'<path class="ico" transform="{place_px}" d="{mark}"/>'
    cut = _cut(step.name, NAME_MAX_CHARS if tall else NARROW_MAX_CHARS)
    yield f'<text x="{44 if tall else 30}" y="{20 if tall else middle + 4.2:.1f}">{cut}</text>'
    if tall:
        second = step.callee.definition_id if step.callee is not None else step.job_type or step.id
        yield f'<text class="sub" x="44" y="35.5">{_cut(second, SECOND_LINE_MAX_CHARS - 2 * len(marks))}</text>'
    yield "</g>"


def _edge(edge: DrawnEdge, way: Way) -> Iterator[str]:
    style, head = ("edge event", "arrow-event") if edge.boundary else ("edge", "arrow")
    yield f'<path class="{style}" d="{_path(way.points)}" marker-end="url(#{head})"/>'


def _label_box(edge: DrawnEdge) -> Box | None:
    return Box(min(len(edge.label), LABEL_MAX_CHARS) * _CHAR_PX + 16, 18) if edge.label else None


def _on_edge(edge: DrawnEdge, way: Way) -> Iterator[str]:
    if edge.event is not None:
        x, y = way.points[0]
        yield f'<g class="clock" transform="translate({x:.1f} {y:.1f})"><circle r="8"/>'
        yield f'<path d="{EVENTS[edge.event]}"/></g>'
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
    """Return a point a bend's length from the corner, at most half the way to the other."""
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
