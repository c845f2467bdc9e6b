// Copying works over plain HTTP, too, where browsers give pages no clipboard.
import { useState } from "react";
import { Icon } from "./icons";

const SAID_MS = 2_000;

interface ActProps {
  /** What it says when it is done. */
  act: () => Promise<string>;
  small?: boolean;
  title?: string;
  disabled?: boolean;
  children: React.ReactNode;
}

export function ActButton({ act, small = true, children, ...more }: ActProps) {
  const [said, setSaid] = useState<string>();
  const press = async () => {
    setSaid(await act());
    setTimeout(() => setSaid(undefined), SAID_MS);
  };
  return (
    <>
      <button type="button" className={small ? "btn sm" : "btn"} onClick={() => void press()} {...more}>
        <Icon name="copy" />
        {said ?? children}
      </button>
      <span className="sr" role="status">
        {said}
      </span>
    </>
  );
}

/** `text` is asked for when the button is pressed. */
export function CopyButton({ text, small = true, children }: { text: () => string; small?: boolean; children: React.ReactNode }) {
  return (
    <ActButton small={small} act={async () => ((await copied(text())) ? "Copied" : "The browser does not copy")}>
      {children}
    </ActButton>
  );
}

/** Beside an id: a button of its height. */
export function CopyId({ id }: { id: string }) {
  const [said, setSaid] = useState<string>();
  const press = async () => {
    setSaid((await copied(id)) ? "Copied" : "The browser does not copy");
    setTimeout(() => setSaid(undefined), SAID_MS);
  };
  return (
    <button type="button" className="iconbtn copyid" aria-label={said ? `${said}: ${id}` : `Copy ${id}`} title={said ?? "Copy"} onClick={() => void press()}>
      <Icon name={said === "Copied" ? "tick" : "copy"} />
    </button>
  );
}

/** Whether the browser has it. */
export async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const before = document.activeElement;
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    if (before instanceof HTMLElement || before instanceof SVGElement) before.focus(); // the keys were there
    return done;
  }
}
