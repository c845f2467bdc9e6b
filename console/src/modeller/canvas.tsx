// The picture of a draft, in which steps are chosen, moved and connected.
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { memo, type PointerEvent, type RefObject, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { isBoundary } from "../graph/edges";
import { useElkSoon } from "../graph/elk";
import { type Layout, layoutOf, type Point, sizeOf } from "../graph/layout";
import { Outline } from "../graph/outline";
import { Arrows, EdgeMarks, FAR_BELOW, Node, type Note, rounded, stepAt } from "../graph/picture";
import { type Extent, Viewport } from "../graph/viewport";
import { Problem, Skeleton } from "../parts/states";
import { loaded } from "../parts/loaded";
import type { MenuAct } from "./addmenu";
import type { ClipboardActs } from "./clipboard";
import type { Draft, DraftEdge } from "./draft";
import { DRAGGED, stepElement } from "./drawn";
import { usedBy } from "./language";
import type { MapProps } from "./minimap";
import { usePressed } from "./press";
import { routed } from "./route";
import { changedStep, useSlices } from "./sight";

const LAID_OUT_AFTER_MS = 120;
const CLICK_PX = 4;
const NUDGE_PX = 10;
const PADDING = 40;
/** New steps that are drawn in one frame, with their ways. */
const SLICE_MAX_STEPS = 10;

interface Props {
  draft: Draft;
  /** Another one: all is shown again. */
  fitOn: unknown;
  notes: Map<string, Note>;
  selected: readonly string[];
  edge: string | undefined;
  select: (ids: readonly string[]) => void;
  selectEdge: (edge: DraftEdge | undefined) => void;
  /** Somebody wants to edit the step: the focus goes there. */
  open: (id: string) => void;
  /** `nudged`: a little, by a key. */
  moved: (pins: Map<string, Point>, nudged: boolean) => void;
  connect: (from: string, to: string) => void;
  /** One end of a way was dragged to another step. */
  lead: (edge: DraftEdge, end: End, to: string) => void;
  /** Dropped from the palette on a step, on a way, or on nothing. */
  drop: (type: string, onto: string | undefined, at: Point, way: DraftEdge | undefined) => void;
  /** Where the steps stand. */
  places: RefObject<ReadonlyMap<string, Extent>>;
  clipboard: ClipboardActs;
  /** What is selected is to go. */
  remove: () => void;
}
type End = "from" | "to";

/** What a menu is of: a step, or a place in the picture, which may be of a way. */
type MenuOf = { step: string } | { step?: undefined; at: Point; pressed: Point; way: DraftEdge | undefined };

/** What is under way with the pointer down. */
type Drag = { what: "steps"; pointer: number; from: Point; by: Point; ids: readonly string[] } | { what: "band"; pointer: number; from: Point; to: Point } | { what: "edge"; pointer: number; from: Point; to: Point; edge?: DraftEdge; end: End; step: string };

const Way = memo(function Way({ one: { edge, points }, chosen, choose }: { one: DrawnEdge; chosen: boolean; choose: (edge: DraftEdge) => void }) {
  const path = useMemo(() => rounded(points), [points]);
  return (
    <g className={chosen ? "chosen" : ""}>
      <path className={`edge ${edge.kind}`} d={path} markerEnd={`url(#${isBoundary(edge) ? "arrow-timer" : "arrow"})`} />
      <path className="hit" data-edge={edge.id} data-from={edge.from} data-to={edge.to} d={path} onClick={() => choose(edge)} />
    </g>
  );
});
const Marks = memo(EdgeMarks);

const useMinimap = loaded(() => import("./minimap"));

/** It comes where not all is in sight. */
function SmallPicture(props: MapProps) {
  const found = useMinimap();
  return found && <found.Minimap {...props} />;
}

interface PlacedStepProps extends Extent {
  step: Draft["definition"]["steps"][number];
  first: boolean;
  note: Note | undefined;
  selected: boolean;
  far: boolean;
  press: (event: PointerEvent, id: string) => void;
  open: (id: string) => void;
  follow: (key: string, id: string) => boolean;
}

const PlacedStep = memo(function PlacedStep({ step, first, note, selected, far, press, open, follow, ...box }: PlacedStepProps) {
  return (
    <g onPointerDown={(event) => press(event, step.id)} onDoubleClick={() => open(step.id)} onClickCapture={(event) => event.stopPropagation()}>
      {first && (
        <g className="start">
          <circle cx={box.x + box.width / 2} cy={box.y - 18} r="5.5" />
          <path className="edge" d={`M${box.x + box.width / 2} ${box.y - 12}V${box.y - 1}`} />
        </g>
      )}
      <Node step={step} {...box} state={undefined} note={note} running={false} selected={selected} far={far} onSelect={NOTHING} follow={follow} />
    </g>
  );
});

export function Canvas(props: Props) {
  const { draft } = props;
  // Only what changes the layout: names that are typed move nothing.
  const shape = useMemo(() => JSON.stringify([draft.definition.steps.map(({ id, type }) => [id, type]), draft.edges.map((edge) => [edge.path, edge.to, edge.kind, edge.label?.length])]), [draft]);
  const [asked, setAsked] = useState({ shape, draft });
  useEffect(() => {
    if (asked.shape === shape) return;
    const timer = setTimeout(() => setAsked({ shape, draft }), LAID_OUT_AFTER_MS);
    return () => clearTimeout(timer);
  }, [shape, draft, asked.shape]);
  const found = useQuery({
    queryKey: ["layout", "draft", asked.shape],
    queryFn: () => layoutOf({ ...asked.draft.definition, id: asked.shape }, false, asked.draft.edges),
    staleTime: Number.POSITIVE_INFINITY,
    placeholderData: keepPreviousData,
    structuralSharing: false, // comparing what is large takes long
    retry: false,
  });
  useElkSoon(found.data !== undefined); // the next edit lays it out anew, also where this one was kept
  if (found.error) return <Problem error={found.error} retry={() => found.refetch()} />;
  if (!found.data) return <Skeleton rows={3} />;
  return <Laid {...props} layout={found.data} busy={asked.shape !== shape || found.isPlaceholderData} />;
}

function Laid({ layout, busy, ...props }: Props & { layout: Layout; busy: boolean }) {
  const { draft, selected } = props;
  const [drag, setDrag] = useState<Drag>();
  const boxes = useSteady(useMemo(() => boxesOf(draft, layout), [draft, layout]));
  const shifted = useMemo(() => (drag?.what === "steps" ? shift(boxes, drag) : boxes), [boxes, drag]);
  const still = useMemo(() => edgesOf(draft, layout, boxes), [draft, layout, boxes]);
  // While steps are dragged, only what leads to or from them is drawn anew.
  const edges = useMemo(() => (drag?.what === "steps" ? still.map((one) => (drag.ids.includes(one.edge.from) || drag.ids.includes(one.edge.to) ? routed(one.edge, shifted, draft.edges) : one)) : still), [draft, still, shifted, drag]);
  useEffect(() => {
    props.places.current = boxes;
  }, [boxes, props.places]);
  const extent = useMemo(() => extentOf(boxes, layout), [boxes, layout]);
  // All is shown again, or what was changed is brought into sight, once it is laid out.
  const sight = useRef({ fitOn: props.fitOn, extent, draft, selected, keep: selected.at(-1) });
  const before = sight.current;
  if (!busy && before.extent !== extent) sight.current = { fitOn: props.fitOn, extent, draft, selected, keep: changedStep(before.draft, draft, selected) };
  else if (!busy && (before.selected !== selected || before.fitOn !== props.fitOn)) sight.current = { ...before, fitOn: props.fitOn, selected, keep: selected.at(-1) };
  const placed = useMemo(() => draft.definition.steps.filter((step) => boxes.has(step.id)), [draft, boxes]);
  const drawn = useSlices(placed, idOf, SLICE_MAX_STEPS);
  const drawnIds = useMemo(() => new Set(drawn.map(idOf)), [drawn]);
  const told = useMemo(() => [...props.notes].filter(([id]) => drawnIds.has(id)), [props.notes, drawnIds]);
  const notes = new Map(useSlices(told, wordsOf, SLICE_MAX_STEPS));
  const flawed = useMemo(() => new Set([...props.notes].flatMap(([id, { look }]) => (look === "fail" ? [id] : []))), [props.notes]);
  const ways = drawn === placed ? edges : edges.filter(({ edge }) => drawnIds.has(edge.from) && drawnIds.has(edge.to));
  const scale = useRef(1);
  const frame = useRef<HTMLDivElement>(null);
  const [menu, setMenu] = useState<MenuOf>();
  const pressed = usePressed(menu);
  const adds = draft.definition.steps.find((step) => step.id === menu?.step);
  const surface = useRef<SVGGElement>(null);
  // The keys stay in the picture when the step that had them goes; what is pasted right after a cut goes, and comes again.
  const focused = useRef<string>(undefined);
  const isGone = useRef(false);
  useEffect(() => {
    const had = focused.current;
    if (had === undefined || document.activeElement !== document.body) return;
    isGone.current ||= !drawnIds.has(had);
    if (busy || drawn !== placed || !isGone.current) return;
    stepElement(drawnIds.has(had) ? had : (sight.current.keep ?? draft.definition.steps[0]?.id ?? ""))?.focus();
  });
  const follow = useCallback(
    (key: string, id: string) => {
      const next = stepAt({ edges: draft.edges.map((edge) => ({ edge, points: [] })) }, key, id);
      if (next !== undefined) stepElement(next)?.focus();
      return next !== undefined;
    },
    [draft],
  );
  const pointIn = (event: { clientX: number; clientY: number }): Point => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(surface.current!.getScreenCTM()!.inverse());
    return { x: at.x, y: at.y };
  };
  const banded = useRef(false);
  const latest = useRef({ selected, select: props.select });
  latest.current = { selected, select: props.select };
  const press = useCallback((event: PointerEvent, id: string) => {
    if (event.button !== 0) return;
    const { selected, select } = latest.current;
    const chosen = event.shiftKey ? (selected.includes(id) ? selected.filter((one) => one !== id) : [...selected, id]) : selected.includes(id) ? selected : [id];
    select(chosen);
    if (event.shiftKey) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    setDrag({ what: "steps", pointer: event.pointerId, from: { x: event.clientX, y: event.clientY }, by: { x: 0, y: 0 }, ids: chosen });
  }, []);
  const stretch = (event: PointerEvent) => {
    banded.current = false;
    const at = event.target as Element;
    if (event.button !== 0 || !event.shiftKey || !at.closest(".canvas") || at.closest("button, .node, .grip, .hit")) return;
    event.stopPropagation(); // else the picture moved
    event.currentTarget.setPointerCapture(event.pointerId);
    setDrag({ what: "band", pointer: event.pointerId, from: pointIn(event), to: pointIn(event) });
  };
  const pull = (event: PointerEvent, from: Point, step: string, end: End, edge?: DraftEdge) => {
    if (event.button !== 0) return;
    event.stopPropagation();
    event.currentTarget.setPointerCapture(event.pointerId);
    setDrag({ what: "edge", pointer: event.pointerId, from, to: from, step, end, ...(edge ? { edge } : {}) });
  };
  const dragged = (drag: Drag, event: PointerEvent): Drag =>
    drag.what === "steps" ? { ...drag, by: { x: (event.clientX - drag.from.x) / scale.current, y: (event.clientY - drag.from.y) / scale.current } } : { ...drag, to: pointIn(event) };
  const moving = (event: PointerEvent) => {
    if (drag?.pointer === event.pointerId) setDrag(dragged(drag, event));
  };
  const release = (event: PointerEvent) => {
    if (drag?.pointer !== event.pointerId) return;
    const ended = dragged(drag, event); // the last move is not drawn yet on a page that is busy
    setDrag(undefined);
    if (ended.what === "steps") {
      if (Math.hypot(ended.by.x, ended.by.y) * scale.current >= CLICK_PX) props.moved(positions(shift(boxes, ended), ended.ids), false);
      return;
    }
    if (ended.what === "band") {
      banded.current = true; // a click comes after it
      const met = meeting(boxes, bandOf(ended));
      props.select([...new Set([...selected, ...met])]);
      if (met[0] !== undefined) stepElement(met[0])?.focus(); // the keys are for them
      return;
    }
    const onto = stepUnder(event);
    if (onto === undefined) return;
    if (ended.edge) props.lead(ended.edge, ended.end, onto);
    else props.connect(ended.step, onto);
  };
  const keys = (event: React.KeyboardEvent) => {
    const step = (event.target as Element).closest<SVGElement>("[data-step]")?.dataset.step;
    if (step === undefined) return;
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.altKey && by) {
      const ids = selected.includes(step) ? selected : [step];
      props.moved(positions(shift(boxes, { ids, by: { x: by[0]! * NUDGE_PX, y: by[1]! * NUDGE_PX } }), ids), true);
    } else if (event.shiftKey && by) {
      const next = stepAt({ edges: still }, event.key, step);
      if (next === undefined) return;
      props.select([...new Set([...(selected.includes(step) ? selected : [step]), next])]);
      stepElement(next)?.focus();
    } else if (event.key === "+") {
      props.select([step]);
      setMenu({ step });
    } else if (event.key === "Enter" && !event.shiftKey) {
      props.select([step]);
      props.open(step);
    } else if (event.key === " " || event.key === "Enter") {
      props.select(selected.includes(step) ? selected.filter((one) => one !== step) : [...selected, step]);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const openMenu = (event: React.MouseEvent) => {
    const at = event.target as Element;
    if (!at.closest(".canvas") || at.closest("button, .minimap")) return;
    event.preventDefault();
    const step = at.closest<SVGElement>("[data-step]")?.dataset.step;
    if (step !== undefined && !selected.includes(step)) props.select([step]);
    setMenu(step === undefined ? { at: pointIn(event), pressed: { x: event.clientX, y: event.clientY }, way: edgeUnder(event, draft) } : { step });
  };
  const closeMenu = (back: boolean) => {
    setMenu(undefined);
    if (back && menu?.step !== undefined) stepElement(menu.step)?.focus();
  };
  const { copy, cut, paste, off } = props.clipboard;
  const paster: MenuAct = { label: "Paste", keys: "Ctrl V", off, act: paste };
  const acts: MenuAct[] = menu?.step === undefined ? [paster] : [{ label: "Copy", keys: "Ctrl C", off, act: copy }, { label: "Cut", keys: "Ctrl X", off, act: cut }, paster, { label: "Delete", keys: "Del", act: props.remove }];
  const single = selected.length === 1 ? shifted.get(selected[0]!) : undefined;
  const singleStep = single && draft.definition.steps.find((step) => step.id === selected[0]);
  const chosenEdge = edges.find(({ edge }) => edge.id === props.edge);
  return (
    <div
      className="surface"
      ref={frame}
      aria-busy={busy || drawn !== placed}
      onDragOver={(event) => event.dataTransfer.types.includes(DRAGGED) && event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        props.drop(event.dataTransfer.getData(DRAGGED), stepUnder(event), pointIn(event), edgeUnder(event, draft));
      }}
      onFocus={(event) => {
        focused.current = event.target.closest<SVGElement>("[data-step]")?.dataset.step;
        isGone.current = false;
      }}
      onBlur={(event) => {
        if (event.target.isConnected && event.relatedTarget !== null) focused.current = undefined;
      }}
      onPointerDownCapture={stretch}
      onPointerMove={moving}
      onPointerUp={release}
      onPointerCancel={() => setDrag(undefined)}
      onKeyDownCapture={keys}
      onContextMenu={openMenu}
      onClick={(event) => !banded.current && !(event.target as Element).closest("button, .node, .grip, .hit") && props.select([])}
    >
      <Viewport label={`Picture of ${draft.definition.name || draft.definition.id || "the draft"}`} extent={sight.current.extent} fitOn={sight.current.fitOn} parts={[...boxes.values()]} keep={boxes.get(sight.current.keep ?? "")} map={(at) => <SmallPicture {...at} boxes={boxes} edges={still} flawed={flawed} />}>
        {(view) => {
          scale.current = view.scale;
          // What can't be read is drawn for the distance, where it stands: nothing is laid out anew by a zoom.
          const far = view.scale < FAR_BELOW;
          return (
            <g ref={surface}>
              <Arrows />
              {ways.map((one) => (
                <Way key={one.edge.id} one={one} chosen={one.edge.id === props.edge} choose={props.selectEdge} />
              ))}
              {drawn.map((step) => {
                const box = shifted.get(step.id)!;
                return <PlacedStep key={step.id} step={step} {...box} first={step === draft.definition.steps[0]} note={notes.get(step.id)} selected={selected.includes(step.id)} far={far} press={press} open={props.open} follow={follow} />;
              })}
              {ways.map((one) => (
                <Marks key={one.edge.id} {...one} far={far} look="" />
              ))}
              {drag?.what === "band" && <rect className="band" {...bandOf(drag)} />}
              {drag?.what === "edge" && <path className="edge pulled" d={`M${drag.from.x} ${drag.from.y}L${drag.to.x} ${drag.to.y}`} />}
              {single && (
                <>
                  <circle
                    className="hd grip"
                    data-grip="connect"
                    cx={single.x + single.width / 2}
                    cy={single.y + single.height + 5}
                    r="6"
                    onPointerDown={(event) => pull(event, { x: single.x + single.width / 2, y: single.y + single.height }, selected[0]!, "to")}
                  />
                  <g
                    className="plus grip"
                    data-grip="add"
                    role="button"
                    tabIndex={0}
                    aria-haspopup="menu"
                    aria-label={addLabel(singleStep)}
                    transform={`translate(${single.x + single.width + 20} ${single.y + single.height / 2})`}
                    onClick={() => setMenu({ step: selected[0]! })}
                    onKeyDown={(event) => {
                      if (event.key !== "Enter" && event.key !== " ") return;
                      event.preventDefault();
                      setMenu({ step: selected[0]! });
                    }}
                  >
                    <title>{addLabel(singleStep)} (+)</title>
                    <circle className="reach" r="15" />
                    <circle r="10" />
                    <path d="M-4.500 0h9M0-4.500v9" />
                  </g>
                </>
              )}
              {chosenEdge && (
                <>
                  <circle
                    className="hd grip"
                    data-grip="start"
                    cx={chosenEdge.points[0]!.x}
                    cy={chosenEdge.points[0]!.y}
                    r="7"
                    onPointerDown={(event) => pull(event, chosenEdge.points.at(-1)!, chosenEdge.edge.to, "from", chosenEdge.edge)}
                  />
                  <circle
                    className="hd grip"
                    data-grip="end"
                    cx={chosenEdge.points.at(-1)!.x}
                    cy={chosenEdge.points.at(-1)!.y - 3}
                    r="7"
                    onPointerDown={(event) => pull(event, chosenEdge.points[0]!, chosenEdge.edge.from, "to", chosenEdge.edge)}
                  />
                </>
              )}
            </g>
          );
        }}
      </Viewport>
      <Outline definition={draft.definition} states={undefined} edges={draft.edges} drawn={drawn} />
      {menu && pressed && (menu.step === undefined || adds) && (
        <pressed.AddMenu
          key={menu.step ?? `${menu.pressed.x} ${menu.pressed.y}`}
          within={frame}
          beside={() => (menu.step === undefined ? new DOMRect(menu.pressed.x, menu.pressed.y) : stepElement(menu.step)?.getBoundingClientRect())}
          label={menu.step !== undefined ? addLabel(adds) : menu.way ? `Add between ${menu.way.from} and ${menu.way.to}` : "Add here"}
          hangs={adds !== undefined && usedBy(adds.type).includes("boundaryEvents")}
          acts={acts.map((one) => ({
            ...one,
            act: () => {
              closeMenu(true);
              one.act();
            },
          }))}
          choose={(type) => {
            setMenu(undefined);
            if (menu.step === undefined) props.drop(type, undefined, menu.at, menu.way);
            else props.drop(type, menu.step, { x: 0, y: 0 }, undefined);
          }}
          close={closeMenu}
        />
      )}
    </div>
  );
}

/** Nothing comes after an END. */
function addLabel(step: { id: string; name: string; type: string } | undefined): string {
  return `Add ${step?.type === "END" ? "before" : "after"} ${step?.name || step?.id}`;
}

type DrawnEdge = Layout["edges"][number] & { edge: DraftEdge };
const NOTHING = () => {};
const wordsOf = ([id, { word }]: [string, Note]) => `${id} ${word}`;
const idOf = ({ id }: { id: string }) => id;

function stepUnder(event: { clientX: number; clientY: number }): string | undefined {
  const under = document.elementsFromPoint(event.clientX, event.clientY);
  return under.map((one) => one.closest<SVGElement>("[data-step]")?.dataset.step).find((id) => id !== undefined);
}

function edgeUnder(event: { clientX: number; clientY: number }, draft: Draft): DraftEdge | undefined {
  const id = document.elementsFromPoint(event.clientX, event.clientY).map((one) => (one as SVGElement).dataset?.edge).find((one) => one !== undefined);
  return draft.edges.find((edge) => edge.id === id);
}

function boxesOf(draft: Draft, layout: Layout): Map<string, Extent> {
  const laid = new Map(layout.nodes.filter((node) => node.step).map((node) => [node.step.id, node]));
  return new Map(
    draft.definition.steps.flatMap((step): [string, Extent][] => {
      const at = draft.pins.get(step.id) ?? laid.get(step.id);
      return at ? [[step.id, { x: at.x, y: at.y, ...sizeOf(step, false) }]] : [];
    }),
  );
}

/** The same object as long as nothing stands elsewhere. */
function useSteady(boxes: ReadonlyMap<string, Extent>): ReadonlyMap<string, Extent> {
  const last = useRef(boxes);
  const same = last.current.size === boxes.size && [...boxes].every(([id, { x, y, width, height }]) => {
    const before = last.current.get(id);
    return before !== undefined && before.x === x && before.y === y && before.width === width && before.height === height;
  });
  if (!same) last.current = boxes;
  return last.current;
}

function bandOf({ from, to }: { from: Point; to: Point }): Extent {
  return { x: Math.min(from.x, to.x), y: Math.min(from.y, to.y), width: Math.abs(to.x - from.x), height: Math.abs(to.y - from.y) };
}

function meeting(boxes: ReadonlyMap<string, Extent>, band: Extent): string[] {
  const meets = (box: Extent) => box.x < band.x + band.width && box.x + box.width > band.x && box.y < band.y + band.height && box.y + box.height > band.y;
  return [...boxes].flatMap(([id, box]) => (meets(box) ? [id] : []));
}

function shift(boxes: ReadonlyMap<string, Extent>, { ids, by }: { ids: readonly string[]; by: Point }): Map<string, Extent> {
  return new Map([...boxes].map(([id, box]) => [id, ids.includes(id) ? { ...box, x: box.x + by.x, y: box.y + by.y } : box]));
}

function positions(boxes: ReadonlyMap<string, Extent>, ids: readonly string[]): Map<string, Point> {
  return new Map(ids.flatMap((id) => (boxes.has(id) ? [[id, boxes.get(id)!]] : [])));
}

/** The layout's own ways, but for steps that stand elsewhere than it put them, and for sides that somebody chose. */
function edgesOf(draft: Draft, layout: Layout, boxes: ReadonlyMap<string, Extent>): DrawnEdge[] {
  const keyOf = (edge: DraftEdge) => JSON.stringify([edge.path, edge.to]);
  const same = new Map(layout.edges.map((one) => [one.edge, one]));
  let alike: Map<string, Layout["edges"][number]> | undefined; // of another draft that was laid out
  const laid = (edge: DraftEdge) => same.get(edge) ?? (alike ??= new Map(layout.edges.map((one) => [keyOf(one.edge as DraftEdge), one]))).get(keyOf(edge));
  return draft.edges
    .filter((edge) => boxes.has(edge.from) && boxes.has(edge.to))
    .map((edge) => {
      const own = laid(edge);
      return own && !edge.sides && !draft.pins.has(edge.from) && !draft.pins.has(edge.to) ? { ...own, edge } : routed(edge, boxes, draft.edges);
    });
}

/** Of all steps, and of the ways of the layout where nobody has moved a step. */
function extentOf(boxes: ReadonlyMap<string, Extent>, layout: Layout): Extent {
  const unmoved = layout.nodes.every(({ step, x, y }) => step === undefined || (boxes.get(step.id)?.x === x && boxes.get(step.id)?.y === y));
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  const take = (x: number, y: number, width = 0, height = 0) => {
    left = Math.min(left, x);
    top = Math.min(top, y);
    right = Math.max(right, x + width);
    bottom = Math.max(bottom, y + height);
  };
  for (const { x, y, width, height } of boxes.values()) take(x, y, width, height);
  for (const { points, label } of unmoved ? layout.edges : []) {
    for (const { x, y } of points) take(x, y);
    if (label) take(label.x, label.y, label.width);
  }
  if (left === Infinity) return { x: 0, y: 0, width: 400, height: 300 };
  return { x: left - PADDING, y: top - PADDING, width: right - left + 2 * PADDING, height: bottom - top + 2 * PADDING };
}
