// Shortcuts, which never answer while somebody types.
import { useEffect } from "react";

const LEADER_MS = 1_000;
/** Of a shortcut of two keys whose first was pressed: those that end it, and until when. */
let begun: { seconds: ReadonlySet<string>; until: number } | undefined;

/** Whether a key ends a shortcut of two: it means nothing else then. */
export function endsShortcut(key: string): boolean {
  return begun !== undefined && Date.now() < begun.until && begun.seconds.has(key);
}

/** Whether somebody types there, or chooses by a letter; a box or a button that is ticked takes none. */
export function takesKeys(at: EventTarget | null): boolean {
  if (!(at instanceof HTMLElement)) return false;
  if (at instanceof HTMLInputElement) return !/^(checkbox|radio|button|submit|reset|range|color|file)$/.test(at.type);
  return at.isContentEditable || /^(TEXTAREA|SELECT)$/.test(at.tagName);
}

/** `keys` are a key (`r`, `Shift+F10`), or a leader and a key (`g i`). */
export function useShortcuts(shortcuts: Record<string, () => void>): void {
  useEffect(() => {
    const leaders = leadersOf(Object.keys(shortcuts));
    let leader = "";
    const heard = (event: KeyboardEvent) => {
      const led = leader && endsShortcut(event.key) ? shortcuts[`${leader} ${event.key}`] : undefined;
      // Whatever comes next, the two are over: also where somebody else has taken the second, or it was typed.
      if (leader) begun = undefined;
      leader = "";
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      if (takesKeys(event.target)) return;
      if (document.querySelector("dialog[open]")) return;
      const seconds = led ? undefined : leaders.get(event.key);
      if (seconds) {
        leader = event.key;
        begun = { seconds, until: Date.now() + LEADER_MS };
      }
      const act = led ?? shortcuts[event.shiftKey && /^F\d+$/.test(event.key) ? `Shift+${event.key}` : event.key];
      if (!act) return;
      event.preventDefault();
      act();
    };
    addEventListener("keydown", heard);
    return () => removeEventListener("keydown", heard);
  }, [shortcuts]);
}

/** The first keys of two, with those that may follow. */
export function leadersOf(keys: readonly string[]): ReadonlyMap<string, ReadonlySet<string>> {
  const found = new Map<string, Set<string>>();
  for (const key of keys) {
    const [first, second] = key.split(" ");
    if (second !== undefined) found.set(first!, (found.get(first!) ?? new Set()).add(second));
  }
  return found;
}
