// The picture of a definition, with what an instance has done in it. Screen readers get the same as a list.
import { useQuery } from "@tanstack/react-query";
import { memo, useCallback, useLayoutEffect, useMemo, useRef, useState } from "react";
import type { Definition, Step } from "../api/client";
import { Problem, Skeleton } from "../parts/states";
import { type Edge, isBoundary, type StepState, wayOf } from "./edges";
import { heightOf, type Layout, layoutOf, type Point, shortLabel } from "./layout";
import { DRAWN_MAX_STEPS, nearTo } from "./near";
import { Outline, WORD } from "./outline";
import { EVENTS, MARKS, shapeOf } from "./shapes";
import { scaleOf, sizeNow, Viewport } from "./viewport";

interface Props {
  definition: Definition;
  /** None: the picture of a definition that nothing runs in. */
  states?: Map<string, StepState>;
  /** `wayOf` of each. */
  taken?: Set<string>;
  /** Beside the picture's own words: a number at the step, a look, what a screen reader says. */
  notes?: Map<string, Note> | undefined;
  selected?: string | undefined;
  onSelect: (stepId: string | undefined) => void;
}

export interface Note {
  count?: string;
  /** In a pill of the look's colour. */
  mark?: string;
  /** How many instances stand here. */
  open?: string;
  look?: string;
  word: string;
}

const GLYPH: Record<StepState["look"], string> = {
  done: "M-3.400 .2-1 2.600 3.600-2.600",
  run: "M-1.500 0a1.500 1.500 0 1 1 3 0a1.500 1.500 0 1 1-3 0",
  wait: "M-2.600-3.600h5.200L-2.600 3.600h5.200z",
  fail: "M-2.700-2.700 2.700 2.700M2.700-2.700-2.700 2.700",
  skip: "M-3 0h6",
};
/** Below this a whole picture can't be read: it is drawn for the distance. */
export const FAR_BELOW = 0.7;
/** By its longest way alone: beside branches it becomes a tenth longer. */
const FAR_BELOW_BY_WAY = 0.77;

export function Picture(props: Props) {
  const { definition, states, selected } = props;
  const large = definition.steps.length > DRAWN_MAX_STEPS;
  const open = large ? definition.steps.filter((step) => ["run", "wait", "fail"].includes(states?.get(step.id)?.look ?? "")).map((step) => step.id) : [];
  const around = selected !== undefined ? [selected] : open;
  const drawn = useMemo(() => (large ? nearTo(definition, around) : definition), [definition, large, around.join(" ")]);
  return (
    <div className={large ? "picture large" : "picture"}>
      {large && (
        <section aria-label="All steps">
          <p className="mute note">
            {drawn.steps.length} of {definition.steps.length} steps are drawn: those near {selected !== undefined ? "the one chosen" : open.length ? "what is open" : "the beginning"}.
          </p>
          <Outline definition={definition} states={states} choose={props.onSelect} />
        </section>
      )}
      <Drawn key={drawn.id} {...props} definition={drawn} />
      {!large && <Outline definition={definition} states={states} />}
    </div>
  );
}

/** A layout of what has to fit into `room`; `far` where it has to be drawn for the distance, which it is once `small` was told. */
export function useLayout(definition: Definition, edges?: Edge[]) {
  const [far, setFar] = useState<boolean>();
  const room = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    // What will be too small is not laid out twice.
    setFar((before) => before ?? (room.current !== null && scaleOf(sizeNow(room.current), { width: 0, height: heightOf(definition, edges) }) < FAR_BELOW_BY_WAY));
  }, [definition, edges]);
  const layout = useQuery({
    queryKey: ["layout", definition.id, definition.version, far ?? false],
    queryFn: () => layoutOf(definition, far ?? false, edges),
    enabled: far !== undefined,
    staleTime: Number.POSITIVE_INFINITY,
    retry: false,
  });
  const small = useCallback(
    (scale: number) => {
      if (scale < FAR_BELOW && !far) setFar(true);
    },
    [far],
  );
  return { room, layout, far: far ?? false, small };
}

function Drawn(props: Props) {
  const { room, layout, far, small } = useLayout(props.definition);
  if (layout.error) return <Problem error={layout.error} retry={() => layout.refetch()} />;
  if (!layout.data)
    return (
      <div className="canvas" ref={room}>
        <Skeleton rows={3} />
      </div>
    );
  return <Canvas {...props} layout={layout.data} far={far} small={small} />;
}

function Canvas({ layout, small, ...props }: Props & { layout: Layout; far: boolean; small: (scale: number) => void }) {
  const extent = useMemo(() => ({ x: 0, y: 0, width: layout.width, height: layout.height }), [layout]);
  const legend = props.states && (
    <div className="legend" aria-hidden="true">
      <i className="taken" /> path taken <i /> not taken
    </div>
  );
  return (
    <Viewport label={`Picture of ${props.definition.name || props.definition.id}`} extent={extent} fitOn={layout} parts={layout.nodes} keep={layout.nodes.find(({ step }) => step.id === props.selected)} small={small} beside={legend}>
      {() => (
        <>
          <Arrows />
          <Drawing layout={layout} {...props} />
        </>
      )}
    </Viewport>
  );
}

export function Arrows() {
  return (
    <defs>
      {[
        ["arrow", "ah"],
        ["arrow-taken", "ah t"],
        ["arrow-timer", "ah w"],
      ].map(([id, look]) => (
        <marker key={id} id={id} viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">
          <path d="M0 .8 7 4 0 7.200z" className={look} />
        </marker>
      ))}
    </defs>
  );
}

export const Drawing = memo(function Drawing({ layout, far, states, taken, notes, selected, onSelect }: Omit<Props, "definition"> & { layout: Layout; far: boolean }) {
  const lookOf = (edge: Edge) => (taken?.has(wayOf(edge)) ? "taken" : states ? "untaken" : "");
  const first = layout.nodes[0];
  const follow = useCallback((key: string, stepId: string) => focus(stepAt(layout, key, stepId)), [layout]);
  // Edges taken are drawn last, so that no other crosses them.
  const edges = [...layout.edges].sort((a, b) => Number(lookOf(a.edge) === "taken") - Number(lookOf(b.edge) === "taken"));
  return (
    <>
      {first && (
        <g className="start">
          <circle cx={first.x + first.width / 2} cy={first.y - 18} r="5.5" />
          <path className="edge" d={`M${first.x + first.width / 2} ${first.y - 12}V${first.y - 1}`} />
        </g>
      )}
      {edges.map(({ edge, points }) => {
        const look = lookOf(edge);
        const arrow = look === "taken" ? "arrow-taken" : isBoundary(edge) ? "arrow-timer" : "arrow";
        return <path key={edge.id} className={`edge ${edge.kind} ${look}`} d={rounded(points)} markerEnd={`url(#${arrow})`} />;
      })}
      {layout.nodes.map((node) => (
        <Node key={node.step.id} {...node} far={far} state={states?.get(node.step.id)} note={notes?.get(node.step.id)} running={states !== undefined} selected={selected === node.step.id} onSelect={onSelect} follow={follow} />
      ))}
      {edges.map((one) => (
        <EdgeMarks key={one.edge.id} {...one} far={far} look={lookOf(one.edge)} />
      ))}
    </>
  );
});

/** What stands on an edge: the clock of a boundary event, its label unless it is seen from afar. */
export function EdgeMarks({ edge, points, label, far, look }: Layout["edges"][number] & { far: boolean; look: string }) {
  return (
    <>
      {isBoundary(edge) && (
        <g className={`clock ${look}`} data-event={edge.kind === "error" ? "error" : "timer"} transform={`translate(${points[0]!.x} ${points[0]!.y})`}>
          <circle r="8" />
          <path d={edge.kind === "error" ? EVENTS.error : EVENTS.timer} />
        </g>
      )}
      {label && edge.label !== undefined && !far && (
        <g className={`lab ${edge.kind} ${look}`} transform={`translate(${label.x} ${label.y})`}>
          <title>{edge.label}</title>
          <rect width={label.width} height="18" rx="5" />
          <text x={label.width / 2} y="12.8" textAnchor="middle">
            {shortLabel(edge.label)}
          </text>
        </g>
      )}
    </>
  );
}

/** Down and up along the first edge, left and right among those that the same step leads to. */
export function stepAt({ edges }: Pick<Layout, "edges">, key: string, stepId: string): string | undefined {
  const before = edges.find(({ edge }) => edge.to === stepId)?.edge.from;
  if (key === "ArrowDown") return edges.find(({ edge }) => edge.from === stepId)?.edge.to;
  if (key === "ArrowUp") return before;
  if (key !== "ArrowLeft" && key !== "ArrowRight") return undefined;
  const beside = edges.filter(({ edge }) => edge.from === before).map(({ edge }) => edge.to);
  return beside[beside.indexOf(stepId) + (key === "ArrowRight" ? 1 : -1)];
}

function focus(stepId: string | undefined): boolean {
  if (stepId === undefined) return false;
  // In the picture that the keys are in: there may be another one beside it.
  (document.activeElement?.closest("svg") ?? document).querySelector<SVGElement>(`.node[data-step="${CSS.escape(stepId)}"]`)?.focus();
  return true;
}

interface NodeProps {
  step: Step;
  x: number;
  y: number;
  width: number;
  height: number;
  state: StepState | undefined;
  note: Note | undefined;
  running: boolean;
  selected: boolean;
  far: boolean;
  onSelect: (stepId: string | undefined) => void;
  /** Goes along an edge; false when the key leads nowhere. */
  follow: (key: string, stepId: string) => boolean;
}

export function Node({ step, x, y, width, height, far, state, note, running, selected, onSelect, follow }: NodeProps) {
  const tall = height >= 44;
  const additions = additionsOf(step);
  const shape = shapeOf(step.type);
  const name = step.name || step.id;
  const look = state ? `st-${state.look}` : note?.look ? `st-${note.look}` : running ? "st-none" : "";
  const said = state ? `, ${WORD[state.look]}${state.times > 1 ? `, entered ${state.times} times` : ""}` : note ? `, ${note.word}` : running ? ", not reached" : "";
  const select = () => onSelect(selected ? undefined : step.id);
  return (
    // biome-ignore lint: an SVG group can't be a button element
    <g
      className={`node ${shape.hue} ${look}`}
      transform={`translate(${x} ${y})`}
      role="button"
      tabIndex={0}
      aria-pressed={selected}
      aria-label={`${name}${said}`}
      data-step={step.id}
      onClick={select}
      onKeyDown={(event) => {
        if (event.key === "Enter" || event.key === " ") select();
        else if (!follow(event.key, step.id)) return;
        event.preventDefault();
      }}
    >
      <title>{`${name} (${[step.type, ...additions.map((one) => one.says)].join(", ")})`}</title>
      {selected && <rect className="halo" x="-5" y="-5" width={width + 10} height={height + 10} rx="13" />}
      <rect className="body" width={width} height={height} rx={step.type === "END" ? height / 2 : 9} />
      {tall && <rect className="chip" x="8" y={height / 2 - 14} width="28" height="28" rx="7" />}
      <path className="ico" transform={tall ? `translate(14 ${height / 2 - 8})` : `translate(12 ${height / 2 - 7}) scale(.875)`} d={step.message ? MARKS.message : shape.icon} />
      {additions
        .filter(({ what }) => what !== "message") // it is the icon
        .map(({ what }, at) => (
          <path key={what} className="ico" data-addition={what} transform={`translate(${width - 16 - 15 * at} ${height - 15}) scale(.75)`} d={MARKS[what]} />
        ))}
      {far ? (
        <FarName name={name} x={tall ? 48 : 36} middle={height / 2} width={width} wide={!tall} />
      ) : (
        <text className="nm" x={tall ? 44 : 30} y={tall ? 20 : height / 2 + 4.2}>
          {cut(name, tall ? 25 : 19)}
        </text>
      )}
      {tall && !far && (
        <text className="sub" x="44" y="35.5">
          {cut(step.jobType && step.jobType !== step.id ? step.jobType : step.id, 24)}
        </text>
      )}
      {state && (
        <g className={`badge b-${state.look}`} transform={`translate(${width - 3} 2)`}>
          <circle r="9.5" />
          <path d={GLYPH[state.look]} />
        </g>
      )}
      {note?.count !== undefined && (
        <g className="times" transform={`translate(${width - 10} -1)`}>
          <rect x={-note.count.length * 7 - 8} y="-9" width={note.count.length * 7 + 14} height="18" rx="9" />
          <text x={-note.count.length * 3.5 - 1} y="4" textAnchor="middle">
            {note.count}
          </text>
        </g>
      )}
      {note?.open !== undefined && <Pill className="count" right={note.open.length * 7 + 8} text={note.open} />}
      {note?.mark !== undefined && <Pill className={`diff ${note.look ?? ""}`} right={width + 14} text={note.mark} />}
      {state && state.times > 1 && (
        <g className="times" transform={`translate(${width - 24} -1)`}>
          <rect x="-14" y="-8" width="24" height="17" rx="8.5" />
          <text x="-2" y="4" textAnchor="middle">
            ×{state.times}
          </text>
        </g>
      )}
    </g>
  );
}

/** At the upper edge of a card. */
function Pill({ className, right, text }: { className: string; right: number; text: string }) {
  const width = text.length * 7 + 14;
  return (
    <g className={className} transform={`translate(${right - width} -9)`}>
      <rect width={width} height="18" rx="9" />
      <text x={width / 2} y="12.8" textAnchor="middle">
        {text}
      </text>
    </g>
  );
}

/** What a step has beside its type: each is a mark on its card, and words. */
function additionsOf({ compensation, flowKey, forEach, message, priority }: Step): { what: keyof typeof MARKS; says: string }[] {
  return [
    ...(message ? [{ what: "message" as const, says: `message ${message.name}` }] : []),
    ...(forEach ? [{ what: "forEach" as const, says: `for each of ${forEach.items}` }] : []),
    ...(compensation ? [{ what: "compensation" as const, says: `undone by ${compensation.jobType}` }] : []),
    ...(flowKey !== undefined ? [{ what: "flowKey" as const, says: `key ${flowKey}` }] : []),
    ...(priority !== undefined ? [{ what: "priority" as const, says: `priority ${priority}` }] : []),
  ];
}

const FAR_LINE_CHARS = 15;
const FAR_CHAR_PX = 8.2;
const FAR_MARGIN_PX = 8;

/** On two lines, broken between words; what is wide has room for one. */
function FarName({ name, x, middle, width, wide }: { name: string; x: number; middle: number; width: number; wide: boolean }) {
  const lines: string[] = [];
  for (const word of name.split(" ")) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && (wide || longer.length <= FAR_LINE_CHARS)) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  const shown = lines.length > 2 ? [lines[0]!, cut(`${lines[1]} ${lines[2]}`, FAR_LINE_CHARS - 1)] : lines.map((line) => cut(line, wide ? Math.floor((width - x - FAR_MARGIN_PX) / FAR_CHAR_PX) : FAR_LINE_CHARS + 1));
  return shown.map((line, at) => (
    <text key={line} className="nm far" x={x} y={middle + 5 + (at - (shown.length - 1) / 2) * 17}>
      {line}
    </text>
  ));
}

function cut(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

const BEND = 7;

/** A path through the points with rounded bends. */
export function rounded(points: Point[]): string {
  const [first, ...rest] = points;
  let path = `M${first!.x} ${first!.y}`;
  for (let at = 1; at < points.length - 1; at++) {
    const [a, b, c] = [points[at - 1]!, points[at]!, points[at + 1]!];
    const before = Math.hypot(b.x - a.x, b.y - a.y);
    const after = Math.hypot(c.x - b.x, c.y - b.y);
    const bend = Math.min(BEND, before / 2, after / 2);
    if (before === 0 || after === 0) continue;
    path += ` L${b.x - ((b.x - a.x) / before) * bend} ${b.y - ((b.y - a.y) / before) * bend}`;
    path += ` Q${b.x} ${b.y} ${b.x + ((c.x - b.x) / after) * bend} ${b.y + ((c.y - b.y) / after) * bend}`;
  }
  const last = rest.at(-1) ?? first!;
  return `${path} L${last.x} ${last.y}`;
}
