// Steps are copied, cut and pasted by the browser's own clipboard, with its keys or with buttons. Where it refuses a page that,
// or the page is not trusted with it (plain HTTP), what was copied here is known to the modellers of this browser's tabs.
import { useEffect, useRef } from "react";
import { takesKeys } from "../keyboard";
import { copied as isCopied } from "../parts/copy";
import { copySteps } from "./edits";
import { JsonProblem } from "./json";

const CHANNEL = "penstock steps";

/** What was copied last; `inside`: the browser's clipboard does not have it. */
interface Held {
  text: string;
  inside: boolean;
  /** Whoever signs in next is given none of it. */
  owner: string;
}
let held: Held | undefined;

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
    const elsewhere = (event: ClipboardEvent) => (takesKeys(event.target) && !(event.target instanceof HTMLSelectElement)) || document.querySelector("dialog[open]") !== null;
    const copied = (event: ClipboardEvent) => {
      const marked = String(getSelection()) !== "" && document.activeElement?.closest(".surface") == null;
      if (off || elsewhere(event) || selected.length === 0 || marked) return;
      const steps = copySteps(text, selected);
      event.clipboardData?.setData("text/plain", steps);
      event.preventDefault();
      hold(steps, false);
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
  }, [text, off, selected, takeOut, paste, hold]);
  const latest = useRef(paste);
  latest.current = paste; // somebody may have changed the draft while the browser asked whether the page may read
  const copy = async () => {
    const steps = copySteps(text, selected);
    hold(steps, true);
    const done = await isCopied(steps);
    if (done) hold(steps, false);
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
function useHeld(owner: string): (text: string, inside: boolean) => void {
  const tabs = useRef<BroadcastChannel>(undefined);
  const hold = useRef((text: string, inside: boolean) => {
    held = { text, inside, owner };
    tabs.current?.postMessage(held);
  });
  useEffect(() => {
    const channel = new BroadcastChannel(CHANNEL);
    tabs.current = channel;
    channel.onmessage = ({ data }: MessageEvent<Held | undefined>) => {
      if (data) held = data;
      else if (held) channel.postMessage(held);
    };
    if (!held) channel.postMessage(undefined);
    return () => {
      tabs.current = undefined;
      channel.close();
    };
  }, []);
  return hold.current;
}
