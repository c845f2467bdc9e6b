// What can be done to the steps that are selected, beside their name: as their keys do it.
import { ActButton } from "../parts/copy";
import type { ClipboardActs } from "./clipboard";

export function StepActs({ copy, cut, paste, off, remove }: ClipboardActs & { remove: () => void }) {
  return (
    <span className="acts">
      <ActButton title="Ctrl C" disabled={off} act={async () => ((await copy()) ? "Copied" : "Copied for this browser")}>
        Copy
      </ActButton>
      <button type="button" className="btn sm" title="Ctrl X" disabled={off} onClick={cut}>
        Cut
      </button>
      <button type="button" className="btn sm" title="Ctrl V" disabled={off} onClick={paste}>
        Paste
      </button>
      <button type="button" className="btn sm" onClick={remove}>
        Delete
      </button>
    </span>
  );
}
