// The types of step: drag one into the picture, press its button, or its letter.
import { EVENTS, shapeOf } from "../graph/shapes";
import { DRAGGED } from "./canvas";
import { words } from "./fields";
import { STEP_TYPES } from "./language";

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

/** `refused`: why what was pressed did nothing. */
export function Palette({ add, hang, refused }: { add: (type: string) => void; hang: (type: BoundaryType) => void; refused: string }) {
  return (
    <section className="palette" aria-label="Add a step">
      <h2>Add a step</h2>
      {STEP_TYPES.map((type) => (
        <button key={type} type="button" draggable onDragStart={(event) => event.dataTransfer.setData(DRAGGED, type)} onClick={() => add(type)}>
          <svg viewBox="-6 -6 28 28" className="graph" aria-hidden="true">
            <g className={shapeOf(type).hue}>
              <rect className="chip" x="-6" y="-6" width="28" height="28" rx="7" />
              <path className="ico" d={shapeOf(type).icon} />
            </g>
          </svg>
          <span>{words(type.toLowerCase().replaceAll("_", " "))}</span>
          {LETTERS[type] && <kbd>{LETTERS[type]!.toUpperCase()}</kbd>}
        </button>
      ))}
      <h2>Hang on a step</h2>
      {BOUNDARY_TYPES.map((type) => (
        <button key={type} type="button" draggable onDragStart={(event) => event.dataTransfer.setData(DRAGGED, type)} onClick={() => hang(type)}>
          <svg viewBox="-6 -6 28 28" className="graph" aria-hidden="true">
            <g className="clock" transform="translate(8 8)">
              <circle r="8" />
              <path d={BOUNDARIES[type].mark} />
            </g>
          </svg>
          <span>{BOUNDARIES[type].name}</span>
          <kbd>{BOUNDARIES[type].letter.toUpperCase()}</kbd>
        </button>
      ))}
      <p className="wrong" role="alert">
        {refused}
      </p>
      <p className="mute">Drag, press, or type the letter: the step goes after the selected one.</p>
    </section>
  );
}
