// The types of step: drag one into the picture, press its button, or its letter.
import { EVENTS, shapeOf } from "../graph/shapes";
import { DRAGGED } from "./drawn";
import { HTTP_REQUEST } from "./edits";
import { STEP_TYPES } from "./language";
import { words } from "./spoken";

const LETTERS: Record<string, string> = {
  SERVICE_TASK: "s",
  USER_TASK: "u",
  CALL_ACTIVITY: "c",
  COMPENSATE: "b",
  DECISION: "d",
  TRANSFORMATION: "t",
  WAIT: "w",
  PARALLEL_GATEWAY: "p",
  JOIN_GATEWAY: "j",
  END: "e",
};

/** To whoever sees them for the first time. */
export const SAYS: Record<string, string> = {
  SERVICE_TASK: "A program does it: a worker that asks for jobs of its type.",
  USER_TASK: "A person does it, on the page of tasks.",
  CALL_ACTIVITY: "Another workflow runs; this one waits for its end.",
  COMPENSATE: "Undoes what steps before it did, where they say how.",
  DECISION: "Goes one of several ways, by conditions.",
  TRANSFORMATION: "Sets variables, by expressions.",
  WAIT: "Waits for a time, a signal or a message.",
  PARALLEL_GATEWAY: "Goes several ways at once, which meet at its join.",
  JOIN_GATEWAY: "The ways of a parallel gateway meet here.",
  END: "The instance ends here.",
  [HTTP_REQUEST]: "Calls an HTTP API: `penstock worker http` does it. The first of its two steps says what is requested.",
  TIMER: "After a time it goes on elsewhere, or something begins beside the step.",
  ERROR: "When the step fails for good, it goes on elsewhere.",
};

/** What hangs on the selected step. */
const BOUNDARIES = { TIMER: { letter: "m", name: "Timer", mark: EVENTS.timer }, ERROR: { letter: "x", name: "Error", mark: EVENTS.error } } as const;
export type BoundaryType = keyof typeof BOUNDARIES;
const BOUNDARY_TYPES = Object.keys(BOUNDARIES) as BoundaryType[];

export function isBoundaryType(type: string): type is BoundaryType {
  return type in BOUNDARIES;
}

export function boundaryOfKey(key: string): BoundaryType | undefined {
  return BOUNDARY_TYPES.find((type) => BOUNDARIES[type].letter === key);
}

export function typeOfKey(key: string): string | undefined {
  return STEP_TYPES.find((type) => LETTERS[type] === key);
}

/** What is chosen from: types of step, and what hangs on one. */
interface Choosable {
  type: string;
  name: string;
  letter: string | undefined;
}
export const STEPS: readonly Choosable[] = [
  ...STEP_TYPES.map((type) => ({ type, name: words(type.toLowerCase().replaceAll("_", " ")), letter: LETTERS[type] })),
  { type: HTTP_REQUEST, name: "HTTP request", letter: undefined },
];
export const EVENTS_ON_IT: readonly Choosable[] = BOUNDARY_TYPES.map((type) => ({ type, name: BOUNDARIES[type].name, letter: BOUNDARIES[type].letter }));

/** Its shape, its name and its letter. */
export function Choice({ type, name, letter }: Choosable) {
  return (
    <>
      <svg viewBox="-6 -6 28 28" className="graph" aria-hidden="true">
        {isBoundaryType(type) ? (
          <g className="clock" transform="translate(8 8)">
            <circle r="8" />
            <path d={BOUNDARIES[type].mark} />
          </g>
        ) : (
          <g className={shapeOf(type).hue}>
            <rect className="chip" x="-6" y="-6" width="28" height="28" rx="7" />
            <path className="ico" d={shapeOf(type).icon} />
          </g>
        )}
      </svg>
      <span>{name}</span>
      {letter && <kbd>{letter.toUpperCase()}</kbd>}
    </>
  );
}

/** `refused`: why what was pressed did nothing. */
export function Palette({ add, hang, refused }: { add: (type: string) => void; hang: (type: BoundaryType) => void; refused: string }) {
  return (
    <section className="palette" aria-label="Add a step">
      <h2>Add a step</h2>
      {STEPS.map((one) => (
        <button key={one.type} type="button" title={SAYS[one.type]} draggable onDragStart={(event) => event.dataTransfer.setData(DRAGGED, one.type)} onClick={() => add(one.type)}>
          <Choice {...one} />
        </button>
      ))}
      <h2>Boundary events</h2>
      {EVENTS_ON_IT.map((one) => (
        <button key={one.type} type="button" title={SAYS[one.type]} draggable onDragStart={(event) => event.dataTransfer.setData(DRAGGED, one.type)} onClick={() => hang(one.type as BoundaryType)}>
          <Choice {...one} />
        </button>
      ))}
      <p className="wrong" role="alert">
        {refused}
      </p>
      <p className="mute">Drag, press, or type the letter: the step goes after the selected one.</p>
    </section>
  );
}
