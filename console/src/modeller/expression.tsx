// A field for an expression: completion while it is typed, and what the engine says of it and gets from it.
import { useQuery } from "@tanstack/react-query";
import { useId, useRef, useState } from "react";
import { engine } from "../api/client";
import { useEditing, type Word } from "./context";
import { useLater } from "./later";

const CHECKED_AFTER_MS = 250;
const SHOWN_MAX = 8;

interface Props {
  label: string;
  value: string;
  kind: "condition" | "value";
  /** An expression only between `${` and `}`; other text is what it says. */
  template?: boolean;
  describedBy?: string | undefined;
  invalid?: boolean;
  change: (value: string) => void;
  /** Elsewhere than while it is typed: a name must not change with each letter. */
  commit?: boolean;
}

export function ExpressionField({ label, value, kind, template, describedBy, invalid, change, commit }: Props) {
  const { words } = useEditing();
  const [typed, setTyped] = useState<string>();
  const [at, setAt] = useState(0);
  const [chosen, setChosen] = useState(0);
  const [shut, setShut] = useState(true);
  const input = useRef<HTMLInputElement>(null);
  const list = useId();
  const shown = typed ?? value;
  const inside = template ? expressionIn(shown) : shown;
  const matches = shut || inside === undefined ? [] : matching(words, wordBefore(shown, at));
  const put = (text: string) => {
    setTyped(text);
    if (!commit) change(text);
  };
  const done = () => {
    if (commit && typed !== undefined && typed !== value) change(typed);
    setTyped(undefined);
    setShut(true);
  };
  const take = (word: Word) => {
    const from = at - wordBefore(shown, at).length;
    const text = `${shown.slice(0, from)}${word.name}${word.call ? "(" : ""}`;
    put(text + shown.slice(at));
    setShut(true);
    requestAnimationFrame(() => input.current?.setSelectionRange(text.length, text.length));
  };
  const keys = (event: React.KeyboardEvent) => {
    if (matches.length === 0) {
      if (event.key === "Enter" && commit) done();
      return;
    }
    if (event.key === "ArrowDown" || event.key === "ArrowUp") setChosen((chosen + (event.key === "ArrowDown" ? 1 : matches.length - 1)) % matches.length);
    else if (event.key === "Enter" || event.key === "Tab") take(matches[chosen] ?? matches[0]!);
    else if (event.key === "Escape") {
      setShut(true);
      event.stopPropagation();
    } else return;
    event.preventDefault();
  };
  return (
    <div className="expression">
      <input
        ref={input}
        className="in mono"
        role="combobox"
        aria-label={label}
        aria-expanded={matches.length > 0}
        aria-controls={list}
        aria-autocomplete="list"
        aria-activedescendant={matches.length ? `${list}-${chosen}` : undefined}
        aria-describedby={describedBy}
        aria-invalid={invalid}
        spellCheck={false}
        autoComplete="off"
        value={shown}
        onChange={(event) => {
          setAt(event.target.selectionStart ?? 0);
          setChosen(0);
          setShut(false);
          put(event.target.value);
        }}
        onFocus={() => setTyped(value)}
        onBlur={done}
        onKeyDown={keys}
      />
      <ul id={list} role="listbox" aria-label="Completions" hidden={matches.length === 0}>
        {matches.map((word, place) => (
          <li key={word.name} id={`${list}-${place}`} role="option" aria-selected={place === chosen} onPointerDown={(event) => {
            event.preventDefault();
            take(word);
          }}>
            <b className="mono">{word.name}</b> <span className="mute">{word.note}</span>
          </li>
        ))}
      </ul>
      {typed !== undefined && inside !== undefined && inside.trim() !== "" && <Verdict expression={inside} kind={kind} />}
    </div>
  );
}

/** Of the field that somebody is in: the engine's word, and what comes out with the variables given. */
function Verdict({ expression, kind }: { expression: string; kind: "condition" | "value" }) {
  const { variables } = useEditing();
  const asked = useLater(expression, CHECKED_AFTER_MS);
  const found = useQuery({
    queryKey: ["expression", asked, kind, variables],
    queryFn: ({ signal }) => engine.checkExpression(asked, kind, variables, signal),
    placeholderData: (before) => before,
    retry: false,
  });
  if (found.error) return <p className="mute">Not checked: {found.error.message}</p>;
  if (!found.data) return null;
  const { ok, problem, value, valueError } = found.data;
  const wrong = problem ?? valueError;
  if (wrong)
    return (
      <p className={ok ? "mute" : "wrong"} role="status">
        {wrong.reason}
        {wrong.to > wrong.from && <> at “{asked.slice(wrong.from, wrong.to)}”</>}
      </p>
    );
  return (
    <p className="mute" role="status">
      gives <b className="mono">{JSON.stringify(value)}</b>
    </p>
  );
}

/** What is between `${` and `}`. */
export function expressionIn(text: string): string | undefined {
  return text.startsWith("${") && text.endsWith("}") ? text.slice(2, -1) : undefined;
}

export function wordBefore(text: string, at: number): string {
  return /[\p{L}_$][\p{L}\p{N}_]*$/u.exec(text.slice(0, at).replace(/^\$\{/, "  "))?.[0] ?? "";
}

function matching(words: readonly Word[], typed: string): Word[] {
  if (typed === "") return [];
  const small = typed.toLowerCase();
  const found = words.filter((word) => word.name.toLowerCase().startsWith(small) && word.name !== typed);
  return found.slice(0, SHOWN_MAX);
}
