// The whole picture, small, in a corner: a press or a drag in it moves what is seen. "Fit", zoom and the keys do the same, so
// it is nothing to screen readers and to Tab. Its steps and ways are drawn anew only when they stand elsewhere.
import { memo, type PointerEvent, useRef } from "react";
import type { Point } from "../graph/layout";
import type { Extent, Sight } from "../graph/viewport";

const LONG_PX = 160;
const SHORT_PX = 56;

export interface MapProps extends Sight {
  boxes: ReadonlyMap<string, Extent>;
  edges: readonly { points: readonly Point[] }[];
  /** Steps with something amiss. */
  flawed: ReadonlySet<string>;
}

export function Minimap({ extent, seen, centre, ...shapes }: MapProps) {
  const svg = useRef<SVGSVGElement>(null);
  /** From the middle of what is seen to where the pointer took hold of it. */
  const hold = useRef<Point>(undefined);
  const pointIn = (event: PointerEvent) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.current!.getScreenCTM()!.inverse());
  const take = (event: PointerEvent) => {
    if (event.button !== 0) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    const at = pointIn(event);
    const by = { x: at.x - seen.x - seen.width / 2, y: at.y - seen.y - seen.height / 2 };
    const isInside = Math.abs(by.x) <= seen.width / 2 && Math.abs(by.y) <= seen.height / 2;
    hold.current = isInside ? by : { x: 0, y: 0 };
    if (!isInside) centre(at);
  };
  const drag = (event: PointerEvent) => {
    if (!hold.current) return;
    const at = pointIn(event);
    centre({ x: at.x - hold.current.x, y: at.y - hold.current.y });
  };
  const letGo = () => {
    hold.current = undefined;
  };
  const { width, height } = sizeOf(extent);
  return (
    <svg ref={svg} className="minimap grip" aria-hidden="true" width={width} height={height} viewBox={`${extent.x} ${extent.y} ${extent.width} ${extent.height}`} onPointerDown={take} onPointerMove={drag} onPointerUp={letGo} onPointerCancel={letGo}>
      <Shapes {...shapes} />
      <rect className="seen" {...seen} />
    </svg>
  );
}

/** As the picture is, but not too thin to be pressed. */
function sizeOf({ width, height }: Extent): { width: number; height: number } {
  const scale = LONG_PX / Math.max(width, height);
  return { width: Math.max(SHORT_PX, width * scale), height: Math.max(SHORT_PX, height * scale) };
}

const Shapes = memo(function Shapes({ boxes, edges, flawed }: Pick<MapProps, "boxes" | "edges" | "flawed">) {
  const drawn = (which: boolean) => [...boxes].flatMap(([id, { x, y, width, height }]) => (flawed.has(id) === which ? [`M${x} ${y}h${width}v${height}h${-width}z`] : [])).join("");
  return (
    <>
      <path className="ways" d={edges.map(({ points }) => `M${points.map(({ x, y }) => `${x} ${y}`).join("L")}`).join("")} />
      <path className="steps" d={drawn(false)} />
      <path className="flawed" d={drawn(true)} />
    </>
  );
});
