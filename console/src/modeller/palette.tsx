// The types of step: drag one into the picture, press its button, or its letter.
import { HUE, ICON } from "../graph/picture";
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

export function typeOfKey(key: string): string | undefined {
  return STEP_TYPES.find((type) => LETTERS[type] === key);
}

export function Palette({ add }: { add: (type: string) => void }) {
  return (
    <section className="palette" aria-label="Add a step">
      <h2>Add a step</h2>
      {STEP_TYPES.map((type) => (
        <button key={type} type="button" draggable onDragStart={(event) => event.dataTransfer.setData(DRAGGED, type)} onClick={() => add(type)}>
          <svg viewBox="-6 -6 28 28" className="graph" aria-hidden="true">
            <g className={HUE[type] ?? "svc"}>
              <rect className="chip" x="-6" y="-6" width="28" height="28" rx="7" />
              <path className="ico" d={ICON[type] ?? ICON.SERVICE_TASK} />
            </g>
          </svg>
          <span>{words(type.toLowerCase().replaceAll("_", " "))}</span>
          {LETTERS[type] && <kbd>{LETTERS[type]!.toUpperCase()}</kbd>}
        </button>
      ))}
      <p className="mute">Drag, press, or type the letter: the step goes after the selected one.</p>
    </section>
  );
}
