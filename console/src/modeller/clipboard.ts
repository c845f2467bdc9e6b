// Steps are copied, cut and pasted by the browser's own clipboard.
import { useEffect } from "react";
import { takesKeys } from "../keyboard";
import { copySteps } from "./edits";
import { JsonProblem } from "./json";

/** Steps are copied and pasted as JSON text, also to another tab. */
export function useClipboard(text: string, selected: readonly string[], takeOut: () => void, paste: (copied: string) => void): void {
  useEffect(() => {
    const elsewhere = (event: ClipboardEvent) => (takesKeys(event.target) && !(event.target instanceof HTMLSelectElement)) || document.querySelector("dialog[open]") !== null;
    const copied = (event: ClipboardEvent) => {
      const marked = String(getSelection()) !== "" && document.activeElement?.closest(".surface") == null;
      if (elsewhere(event) || selected.length === 0 || marked) return;
      event.clipboardData?.setData("text/plain", copySteps(text, selected));
      event.preventDefault();
    };
    const pasted = (event: ClipboardEvent) => {
      const clip = event.clipboardData?.getData("text/plain") ?? "";
      if (elsewhere(event) || !clip.trimStart().startsWith("[")) return;
      try {
        paste(clip);
        event.preventDefault();
      } catch (error) {
        if (!(error instanceof JsonProblem)) throw error; // something else was copied
      }
    };
    const cut = (event: ClipboardEvent) => {
      copied(event);
      if (event.defaultPrevented) takeOut();
    };
    document.addEventListener("copy", copied);
    document.addEventListener("cut", cut);
    document.addEventListener("paste", pasted);
    return () => {
      document.removeEventListener("copy", copied);
      document.removeEventListener("cut", cut);
      document.removeEventListener("paste", pasted);
    };
  }, [text, selected, takeOut, paste]);
}
