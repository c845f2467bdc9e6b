// Shortcuts, which never answer while somebody types.
import { useEffect } from "react";

const LEADER_MS = 1_000;

/** `keys` are a key (`r`), or a leader and a key (`g i`). */
export function useShortcuts(shortcuts: Record<string, () => void>): void {
  useEffect(() => {
    let leader = "";
    let since = 0;
    const heard = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      const at = event.target;
      if (at instanceof HTMLElement && (at.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName))) return;
      if (document.querySelector("dialog[open]")) return;
      const led = leader && Date.now() - since < LEADER_MS ? shortcuts[`${leader} ${event.key}`] : undefined;
      leader = led ? "" : event.key;
      since = Date.now();
      const act = led ?? shortcuts[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    };
    addEventListener("keydown", heard);
    return () => removeEventListener("keydown", heard);
  }, [shortcuts]);
}
