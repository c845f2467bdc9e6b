// A field that is taken over when it is left or Enter is pressed: others follow what it says.
import { useState } from "react";
import { useUntaken } from "./context";

interface Props {
  label: string;
  value: string;
  invalid?: boolean;
  /** Gives the reason when it can't be. */
  commit: (value: string) => string | undefined;
}

export function CommittedText({ label, value, invalid, commit }: Props) {
  const [typed, setTyped] = useState<string>();
  const [refused, setRefused] = useState<string>();
  useUntaken(typed !== undefined && typed !== value);
  const done = () => {
    const reason = typed === undefined || typed === value ? undefined : commit(typed);
    setRefused(reason);
    setTyped(undefined);
  };
  return (
    <>
      <input
        className="in mono"
        aria-label={label}
        aria-invalid={invalid || refused !== undefined}
        spellCheck={false}
        value={typed ?? value}
        onChange={(event) => setTyped(event.target.value)}
        onBlur={done}
        onKeyDown={(event) => event.key === "Enter" && done()}
      />
      {refused && (
        <p className="wrong" role="alert">
          {refused}
        </p>
      )}
    </>
  );
}
