// What "+" at a step opens, and the right button: the types of step that may come there, what may hang on it, and what its
// keys do otherwise.
import { type RefObject, useEffect, useLayoutEffect, useRef, useState } from "react";
import { Choice, EVENTS_ON_IT, SAYS, STEPS } from "./palette";

const MARGIN_PX = 8;

/** What keys do, too. */
export interface MenuAct {
  label: string;
  keys: string;
  off?: boolean;
  act: () => void;
}

interface Props {
  /** Where the step is that it is of, or what was pressed: it opens beside it. */
  beside: () => DOMRect | undefined;
  within: RefObject<HTMLElement | null>;
  label: string;
  /** Whether timers and errors may hang on it. */
  hangs: boolean;
  acts: readonly MenuAct[];
  choose: (type: string) => void;
  /** `back`: the keys go back to the step. */
  close: (back: boolean) => void;
}

export function AddMenu({ beside, within, label, hangs, acts, choose, close }: Props) {
  const menu = useRef<HTMLDivElement>(null);
  const [at, setAt] = useState<{ left: number; top: number }>();
  useLayoutEffect(() => {
    const [step, frame, own] = [beside(), within.current!.getBoundingClientRect(), menu.current!.getBoundingClientRect()];
    if (!step) return;
    const fits = (start: number, size: number, room: number) => Math.max(MARGIN_PX, Math.min(start, room - size - MARGIN_PX));
    setAt({ left: fits(step.right - frame.left + 3 * MARGIN_PX, own.width, frame.width), top: fits(step.top - frame.top, own.height, frame.height) });
  }, []);
  useEffect(() => {
    if (at) menu.current!.querySelector("button")?.focus();
  }, [at]);
  const choices = hangs ? [...STEPS, ...EVENTS_ON_IT] : STEPS;
  const keys = (event: React.KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const all = [...menu.current!.querySelectorAll<HTMLButtonElement>("button:enabled")];
    const here = all.indexOf(document.activeElement as HTMLButtonElement);
    const to = { ArrowDown: here + 1, ArrowUp: here - 1 + all.length, Home: 0, End: all.length - 1 }[event.key];
    const meant = choices.find(({ letter }) => letter === event.key);
    if (to !== undefined) all[to % all.length]!.focus();
    else if (event.key === "Escape" || event.key === "Tab") close(true);
    else if (meant) choose(meant.type);
    else if (event.key === "Enter" || event.key === " ") {
      event.stopPropagation(); // the button takes it
      return;
    } else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div
      ref={menu}
      role="menu"
      aria-label={label}
      className="addmenu"
      style={at ?? { visibility: "hidden" }}
      onKeyDown={keys}
      onBlur={(event) => !event.currentTarget.contains(event.relatedTarget) && document.hasFocus() && close(false)}
      onPointerDown={(event) => event.stopPropagation()}
      onContextMenu={(event) => event.preventDefault()}
    >
      <p className="mute">{label}</p>
      {choices.map((one) => (
        <button key={one.type} type="button" title={SAYS[one.type]} role="menuitem" tabIndex={-1} onClick={() => choose(one.type)}>
          <Choice {...one} />
        </button>
      ))}
      <hr />
      {acts.map(({ label, keys, off, act }) => (
        <button key={label} type="button" role="menuitem" tabIndex={-1} disabled={off} onClick={act}>
          <span>{label}</span>
          <kbd>{keys}</kbd>
        </button>
      ))}
    </div>
  );
}
