// Steps are copied, cut and pasted by the browser's own clipboard, with its keys or with buttons. Where it refuses a page that,
// or the page is not trusted with it (plain HTTP), what was copied here is known to the modellers of this browser's tabs.
import { useEffect, useRef } from "react";
import { takesKeys } from "../keyboard";
import { copied as isCopied } from "../parts/copy";
import { copySteps } from "./edits";
import { JsonProblem } from "./json";

const CHANNEL = "penstock steps";

/** What was copied last; `inside`: the browser's clipboard does not have it. */
export interface Held {
  text: string;
  /** When: what tabs tell each other may come late. */
  at: number;
  inside: boolean;
  /** Whoever signs in next is given none of it. */
  owner: string;
}
let held: Held | undefined;

/** Which of two was copied later; of one copying what is told last of it. */
export function latest(one: Held | undefined, other: Held): Held {
  return one && one.at > other.at ? one : other;
}

/** Later than what was copied before, whatever became of the clock. */
export function timeAfter(one: Held | undefined, now: number): number {
  return one ? Math.max(now, one.at + 1) : now;
}

export interface ClipboardActs {
  /** The text can't be read: nothing is taken from it. */
  off: boolean;
  /** Whether the browser's clipboard has them, too. */
  copy: () => Promise<boolean>;
  cut: () => void;
  paste: () => void;
}

interface Props {
  text: string;
  off: boolean;
  selected: readonly string[];
  owner: string;
  takeOut: () => void;
  paste: (copied: string) => void;
  /** Why a button did nothing. */
  refuse: (reason: string) => void;
}

/** Steps are copied and pasted as JSON text, also to another tab. */
export function useClipboard({ text, off, selected, owner, takeOut, paste, refuse }: Props): ClipboardActs {
  const hold = useHeld(owner);
  useEffect(() => {
    // An editor that has taken it has put other lines in place of the one at which it came.
    const elsewhere = (event: ClipboardEvent) => event.defaultPrevented || (takesKeys(event.target) && !(event.target instanceof HTMLSelectElement)) || document.querySelector("dialog[open]") !== null;
    const copied = (event: ClipboardEvent) => {
      const marked = String(getSelection()) !== "" && document.activeElement?.closest(".surface") == null;
      if (off || elsewhere(event) || selected.length === 0 || marked) {
        // The last that was copied: a button pastes no steps from before it.
        const other = copiedOf(event);
        if (other) hold(other, false);
        return false;
      }
      const steps = copySteps(text, selected);
      event.clipboardData?.setData("text/plain", steps);
      event.preventDefault();
      hold(steps, false);
      return true;
    };
    const pasted = (event: ClipboardEvent) => {
      const clip = event.clipboardData?.getData("text/plain") ?? "";
      if (off || elsewhere(event) || !clip.trimStart().startsWith("[")) return;
      try {
        paste(clip);
        event.preventDefault();
      } catch (error) {
        if (!(error instanceof JsonProblem)) throw error; // something else was copied
      }
    };
    const cut = (event: ClipboardEvent) => {
      if (copied(event)) takeOut();
    };
    document.addEventListener("copy", copied);
    document.addEventListener("cut", cut);
    document.addEventListener("paste", pasted);
    return () => {
      document.removeEventListener("copy", copied);
      document.removeEventListener("cut", cut);
      document.removeEventListener("paste", pasted);
    };
  }, [text, off, selected, takeOut, paste, hold]);
  const latest = useRef(paste);
  latest.current = paste; // somebody may have changed the draft while the browser asked whether the page may read
  const copy = async () => {
    const steps = copySteps(text, selected);
    const at = hold(steps, true);
    const done = await isCopied(steps);
    if (done) hold(steps, false, at);
    return done;
  };
  return {
    off,
    copy,
    cut: () => {
      void copy();
      takeOut();
    },
    paste: async () => {
      const own = held?.owner === owner ? held : undefined;
      const outside = own?.inside ? undefined : await readClipboard();
      const clip = outside ?? own?.text;
      const isPasted = clip !== undefined && pasteOf(clip, latest.current);
      refuse(isPasted ? "" : "No steps were copied, or the browser does not tell this page: press Ctrl V in the picture.");
    },
  };
}

/** What the browser takes, or an editor gave it. */
function copiedOf({ target, clipboardData }: ClipboardEvent): string {
  const given = clipboardData?.getData("text/plain");
  if (given) return given;
  if (target instanceof HTMLInputElement || target instanceof HTMLTextAreaElement) return target.value.slice(target.selectionStart ?? 0, target.selectionEnd ?? 0);
  return String(getSelection());
}

/** Whether they were steps. */
function pasteOf(clip: string, paste: (copied: string) => void): boolean {
  if (!clip.trimStart().startsWith("[")) return false;
  try {
    paste(clip);
    return true;
  } catch (error) {
    if (!(error instanceof JsonProblem)) throw error;
    return false;
  }
}

async function readClipboard(): Promise<string | undefined> {
  try {
    return await navigator.clipboard.readText();
  } catch {
    return undefined; // refused, or a page that has no such thing
  }
}

/** Tells other tabs what was copied here, and hears it of them, also what was copied before this one came. */
function useHeld(owner: string): (text: string, inside: boolean, at?: number) => number {
  const tabs = useRef<BroadcastChannel>(undefined);
  const hold = useRef((text: string, inside: boolean, at = timeAfter(held, Date.now())) => {
    held = latest(held, { text, inside, owner, at });
    tabs.current?.postMessage(held);
    return at;
  });
  useEffect(() => {
    const channel = new BroadcastChannel(CHANNEL);
    tabs.current = channel;
    channel.onmessage = ({ data }: MessageEvent<Held | undefined>) => {
      if (data) held = latest(held, data);
      else if (held) channel.postMessage(held);
    };
    channel.postMessage(undefined); // other tabs may have copied while none of them was heard here
    return () => {
      tabs.current = undefined;
      channel.close();
    };
  }, []);
  return hold.current;
}
