"""Where the boxes and edges of a picture stand: a layered layout from top to bottom, the same for the same input.

Pure; knows nothing of definitions. The method is Sugiyama's: edges that close a circle are turned, each box gets the
layer of the longest way to it, edges that pass layers get a point in each, layers are sorted so that edges cross
little, and boxes drawn towards their neighbours. Edges run between the layers, side by side on tracks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

GAP_PX: Final = 28
"""Between boxes of a layer."""
TRACK_PX: Final = 10
"""Between edges that run side by side."""
CHANNEL_PX: Final = 14
"""Above the first and below the last track between two layers."""
SWEEPS: Final = 8
POINTS_MAX: Final = 200_000
"""Of all edges in all layers; what has more is refused."""


@dataclass(slots=True)
class Box:
    """A box to place: a step, the label of an edge, or, without a size, a point that an edge passes."""

    width: float
    height: float
    x: float = 0
    y: float = 0
    layer: int = 0
    place: int = 0
    above: list[Box] = field(default_factory=list["Box"])
    below: list[Box] = field(default_factory=list["Box"])

    @property
    def centre(self) -> float:
        """Its middle, from the left."""
        return self.x + self.width / 2


@dataclass(slots=True)
class Way:
    """An edge between two of the boxes. `placed` gives its points and where its label stands."""

    source: int
    target: int
    label: Box | None = None
    points: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    passes: list[Box] = field(default_factory=list[Box])
    """All boxes on it, from the upper end to the lower one."""
    turned: bool = False


class TooLarge(Exception):
    """More than `POINTS_MAX`."""


def place(boxes: Sequence[Box], ways: Sequence[Way]) -> tuple[float, float]:
    """Gives each box its place and each way its points; the width and height of all. Raises TooLarge.

    The first box is the entry. What no way leads to stands in the first layer, too.
    """
    straight = [way for way in ways if way.source != way.target]
    _turn(boxes, straight)
    _rank(boxes, straight)
    layers = _layers(boxes, straight)
    _sort(layers)
    width = _spread(layers)
    height = _route(layers, straight)
    for way in ways:
        if way.source == way.target:
            _loop(boxes[way.source], way)
    return width, height


def _turn(boxes: Sequence[Box], ways: Sequence[Way]) -> None:
    """Turns each edge that leads back to a box from which it was come to, depth first in the order given."""
    out: list[list[Way]] = [[] for _ in boxes]
    for way in ways:
        out[way.source].append(way)
    seen, open_boxes = [False] * len(boxes), [False] * len(boxes)
    for root in range(len(boxes)):
        if seen[root]:
            continue
        stack = [(root, iter(out[root]))]
        seen[root] = open_boxes[root] = True
        while stack:
            here, rest = stack[-1]
            found = next(rest, None)
            if found is None:
                open_boxes[here] = False
                stack.pop()
            elif open_boxes[found.target]:
                found.turned = True
            elif not seen[found.target]:
                seen[found.target] = open_boxes[found.target] = True
                stack.append((found.target, iter(out[found.target])))


def _ends(way: Way) -> tuple[int, int]:
    """Return the upper and the lower box."""
    return (way.target, way.source) if way.turned else (way.source, way.target)


def _rank(boxes: Sequence[Box], ways: Sequence[Way]) -> None:
    """Boxes stand on even layers; the labels of edges have the odd ones."""
    waiting, below = [0] * len(boxes), [list[int]() for _ in boxes]
    for way in ways:
        upper, lower = _ends(way)
        below[upper].append(lower)
        waiting[lower] += 1
    ready = [index for index, count in enumerate(waiting) if count == 0]
    for index in ready:
        for lower in below[index]:
            boxes[lower].layer = max(boxes[lower].layer, boxes[index].layer + 2)
            waiting[lower] -= 1
            if waiting[lower] == 0:
                ready.append(lower)


def _layers(boxes: Sequence[Box], ways: Sequence[Way]) -> list[list[Box]]:
    """Return the boxes of each layer, with those that stand for edges which pass it."""
    if sum(abs(boxes[way.target].layer - boxes[way.source].layer) for way in ways) > POINTS_MAX:
        raise TooLarge
    layers: list[list[Box]] = [[] for _ in range(max(box.layer for box in boxes) + 1)]
    for box in boxes:
        layers[box.layer].append(box)
    for way in ways:
        upper, lower = (boxes[index] for index in _ends(way))
        way.passes = [upper]
        for layer in range(upper.layer + 1, lower.layer):
            labelled = way.label is not None and layer == (lower.layer - 1 if way.turned else upper.layer + 1)
            point = way.label if labelled and way.label is not None else Box(0, 0)
            point.layer = layer
            layers[layer].append(point)
            way.passes.append(point)
        way.passes.append(lower)
        for one, next_one in pairwise(way.passes):
            one.below.append(next_one)
            next_one.above.append(one)
    return layers


def _sort(layers: list[list[Box]]) -> None:
    for layer in layers:
        _number(layer)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for layer in layers[1:] if down else layers[-2::-1]:
            wanted = {id(box): _mean([each.place for each in (box.above if down else box.below)], box) for box in layer}
            layer.sort(key=lambda box: (wanted[id(box)], box.place))
            _number(layer)


def _mean(places: Sequence[int], box: Box) -> float:
    return sum(places) / len(places) if places else box.place


def _number(layer: Sequence[Box]) -> None:
    for place_in_layer, box in enumerate(layer):
        box.place = place_in_layer


def _spread(layers: Sequence[Sequence[Box]]) -> float:
    """Boxes of a layer side by side, then each as near to its neighbours as those beside it allow; gives the width."""
    for layer in layers:
        x = 0.0
        for box in layer:
            box.x = x
            x += box.width + (GAP_PX if box.width else TRACK_PX * 2)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            _draw_towards(layer, down=down)
    left = min(box.x for layer in layers for box in layer)
    for layer in layers:
        for box in layer:
            box.x -= left
    return max(box.x + box.width for layer in layers for box in layer)


def _draw_towards(layer: Sequence[Box], *, down: bool) -> None:
    """Boxes that want to overlap share the room around the middle of what they want."""
    groups: list[tuple[float, float, list[Box]]] = []
    """Left edge, width, boxes."""
    for box in layer:
        near = (box.above or box.below) if down else (box.below or box.above)
        wanted = sum(each.centre for each in near) / len(near) - box.width / 2 if near else box.x
        group = (wanted, box.width, [box])
        while groups and groups[-1][0] + groups[-1][1] + GAP_PX > group[0]:
            x, width, members = groups.pop()
            ours = len(group[2])
            total = len(members) + ours
            middle = (x * len(members) + (group[0] - width - GAP_PX) * ours) / total
            group = (middle, width + GAP_PX + group[1], members + group[2])
        groups.append(group)
    for left, _, members in groups:
        x = left
        for box in members:
            box.x = x
            x += box.width + GAP_PX


def _route(layers: Sequence[Sequence[Box]], ways: Sequence[Way]) -> float:
    """Gives layers their height and ways their points, downwards; the whole height."""
    pieces: dict[int, list[tuple[Way, int]]] = {}
    for way in ways:
        for at, box in enumerate(way.passes[:-1]):
            pieces.setdefault(box.layer, []).append((way, at))
    out_ports, in_ports = _ports(ways, out=True), _ports(ways, out=False)
    y = 0.0
    for number, layer in enumerate(layers):
        height = max(box.height for box in layer) if layer else 0.0
        for box in layer:
            box.y = y + (height - box.height) / 2
        y += height
        here = [(out_ports[id(way), at], in_ports[id(way), at + 1], way, at) for way, at in pieces.get(number, [])]
        tracks = _tracks([(start, end) for start, end, _, _ in here])
        for (start, end, way, at), track in zip(here, tracks, strict=True):
            upper = way.passes[at]
            line = y + CHANNEL_PX + track * TRACK_PX
            way.points += [(start, upper.y + upper.height), (start, line), (end, line)]
        y += 2 * CHANNEL_PX + max(tracks, default=0) * TRACK_PX
    for way in ways:
        lower = way.passes[-1]
        way.points.append((in_ports[id(way), len(way.passes) - 1], lower.y))
        if way.turned:
            way.points.reverse()
        way.points = _without_doubles(way.points)
    return y - 2 * CHANNEL_PX


def _ports(ways: Sequence[Way], *, out: bool) -> dict[tuple[int, int], float]:
    """Where each piece of a way leaves or enters a box: side by side in the order of where they lead."""
    meeting: dict[int, list[tuple[float, Way, int, Box]]] = {}
    for way in ways:
        for at, box in enumerate(way.passes):
            other = at + 1 if out else at - 1
            if 0 <= other < len(way.passes):
                meeting.setdefault(id(box), []).append((way.passes[other].centre, way, at, box))
    found: dict[tuple[int, int], float] = {}
    for users in meeting.values():
        users.sort(key=lambda user: user[0])
        for number, (_, way, at, box) in enumerate(users):
            found[id(way), at] = box.x + box.width * (number + 1) / (len(users) + 1)
    return found


def _tracks(spans: Sequence[tuple[float, float]]) -> list[int]:
    """Which track each span runs on: the first that is free over its width. Straight ones need none."""
    taken: list[float] = []
    """Up to where each track is used, from the left."""
    found = [0] * len(spans)
    for number in sorted(range(len(spans)), key=lambda each: min(spans[each])):
        left, right = min(spans[number]), max(spans[number])
        if left == right:
            continue
        free = next((track for track, end in enumerate(taken) if end < left), len(taken))
        taken[free : free + 1] = [right + TRACK_PX]
        found[number] = free
    return found


def _without_doubles(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without points that repeat, or lie on the line between their neighbours."""
    kept: list[tuple[float, float]] = []
    for point in points:
        if kept and kept[-1] == point:
            continue
        if len(kept) > 1 and (kept[-2][0] == kept[-1][0] == point[0] or kept[-2][1] == kept[-1][1] == point[1]):
            kept.pop()
        kept.append(point)
    return kept


def _loop(box: Box, way: Way) -> None:
    right, top = box.x + box.width, box.y
    way.points = [
        (right, top + box.height * 0.7),
        (right + TRACK_PX, top + box.height * 0.7),
        (right + TRACK_PX, top + box.height * 0.3),
        (right, top + box.height * 0.3),
    ]
    if way.label is not None:
        way.label.x, way.label.y = right + TRACK_PX * 1.5, top
