// Copying works over plain HTTP, too, where browsers give pages no clipboard.
import { useState } from "react";
import { Icon } from "./icons";

const SAID_MS = 2_000;

/** `text` is asked for when the button is pressed. */
export function CopyButton({ text, small = true, children }: { text: () => string; small?: boolean; children: React.ReactNode }) {
  const [said, setSaid] = useState<string>();
  const copy = async () => {
    setSaid((await copied(text())) ? "Copied" : "The browser does not copy");
    setTimeout(() => setSaid(undefined), SAID_MS);
  };
  return (
    <button type="button" className={small ? "btn sm" : "btn"} onClick={() => void copy()}>
      <Icon name="copy" />
      <span role="status">{said ?? children}</span>
    </button>
  );
}

async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
