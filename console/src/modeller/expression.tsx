// A field for an expression: completion and help while it is typed, and what the engine says of it and gets from it, at
// the characters that it is about.
import { useQuery } from "@tanstack/react-query";
import { useId, useRef, useState } from "react";
import { type ExpressionVerdict, engine } from "../api/client";
import { useEditing, type Word } from "./context";
import { child, type Node, type Path, parse } from "./json";
import { useLater } from "./later";

const CHECKED_AFTER_MS = 250;
const SHOWN_MAX = 12;
/** Of the field's text from its edge: border and padding. */
const INSET_PX = 10;

interface Props {
  /** Where it stands in the definition. */
  path: Path;
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

export function ExpressionField({ path, label, value, kind, template, describedBy, invalid, change, commit }: Props) {
  const { words, variables, flawed } = useEditing();
  const [typed, setTyped] = useState<string>();
  const [at, setAt] = useState(0);
  /** By an arrow key; none: what fits what is typed. */
  const [moved, setMoved] = useState<number>();
  const [list, setList] = useState<"shut" | "open" | "asked for">("shut");
  const input = useRef<HTMLInputElement>(null);
  const listId = useId();
  const shown = typed ?? value;
  const inside = template ? expressionIn(shown) : shown;
  // While it is typed, no } ends it yet.
  const begun = !template || shown.startsWith("${");
  const wanted = list === "asked for" ? "taken" : list === "open" ? wantedAt(words, shown, at) : "nothing";
  const matches = wanted === "nothing" || !begun ? [] : matching(words, variables, shown, at);
  const chosen = moved ?? (wanted === "taken" ? 0 : -1);
  const asked = inside !== undefined && inside.trim() !== "" && (typed !== undefined || flawed.has(JSON.stringify(path)));
  const verdict = useExpressionVerdict(asked ? inside : undefined, kind);
  // A template's expression begins behind its `${`.
  const shift = template ? 2 : 0;
  const wrong = verdict.problem && { from: verdict.problem.from + shift, chars: Math.max(1, verdict.problem.to - verdict.problem.from) };
  const [scrolled, setScrolled] = useState(0);
  const ruler = useRef<HTMLSpanElement>(null);
  const here = typed === undefined || matches.length > 0 ? undefined : helpOf(words, shown, at);
  const put = (text: string) => {
    setTyped(text);
    if (!commit) change(text);
  };
  const done = () => {
    if (commit && typed !== undefined && typed !== value) change(typed);
    setTyped(undefined);
    setList("shut");
  };
  const take = (word: Word) => {
    const from = at - wordBefore(shown, at).length;
    const text = `${shown.slice(0, from)}${word.name}${word.call ? "(" : ""}`;
    put(text + shown.slice(at));
    setList("shut");
    requestAnimationFrame(() => input.current?.setSelectionRange(text.length, text.length));
  };
  const keys = (event: React.KeyboardEvent) => {
    if (event.key === " " && event.ctrlKey) {
      setMoved(undefined);
      setList("asked for");
      event.preventDefault();
      return;
    }
    const word = matches[chosen];
    if (event.key === "Enter" && !word && commit) return done();
    if (matches.length === 0) return;
    if (event.key === "ArrowDown") setMoved((chosen + 1) % matches.length);
    else if (event.key === "ArrowUp") setMoved((chosen > 0 ? chosen : matches.length) - 1);
    else if ((event.key === "Enter" || event.key === "Tab") && word) take(word);
    else if (event.key === "Escape") {
      setList("shut");
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
        aria-controls={listId}
        aria-autocomplete="list"
        aria-activedescendant={matches[chosen] ? `${listId}-${chosen}` : undefined}
        aria-describedby={describedBy}
        aria-invalid={invalid}
        spellCheck={false}
        autoComplete="off"
        value={shown}
        onChange={(event) => {
          setAt(event.target.selectionStart ?? 0);
          setMoved(undefined);
          setList("open");
          put(event.target.value);
        }}
        onSelect={(event) => {
          const now = event.currentTarget.selectionStart ?? 0;
          if (now !== at) setMoved(undefined);
          setAt(now);
        }}
        onScroll={(event) => setScrolled(event.currentTarget.scrollLeft)}
        onPointerMove={(event) => {
          // The letters are all as wide as each other: the one under the pointer is counted out.
          const field = event.currentTarget;
          const column = Math.floor((event.clientX - field.getBoundingClientRect().left - INSET_PX + field.scrollLeft) / ruler.current!.getBoundingClientRect().width);
          const told = helpOf(words, shown, column);
          field.title = told ? `${told.note}: ${told.help}` : "";
        }}
        onFocus={() => setTyped(value)}
        onBlur={done}
        onKeyDown={keys}
      />
      <span className="underlines mono" aria-hidden="true">
        <span ref={ruler} className="ruler" />
        {wrong && <i style={{ left: `calc(${INSET_PX - 1 - scrolled}px + ${wrong.from}ch)`, width: `${wrong.chars}ch` }} />}
      </span>
      <ul id={listId} role="listbox" aria-label="Completions" hidden={matches.length === 0}>
        {matches.map((word, place) => (
          <li key={word.name} title={word.help} id={`${listId}-${place}`} role="option" aria-selected={place === chosen} onPointerDown={(event) => {
            event.preventDefault();
            take(word);
          }}>
            <b className="mono">{word.name}</b> <span className="mute">{word.note}</span>
          </li>
        ))}
      </ul>
      {typed !== undefined && begun && inside === undefined && <p className="mute">Text, as long as no {"}"} ends it.</p>}
      {typed !== undefined && asked && <Said {...verdict} />}
      {here && (
        <p className="mute">
          <b className="mono">{here.note}</b> {here.help}
        </p>
      )}
    </div>
  );
}

interface Answered extends ExpressionVerdict {
  /** What was asked about. */
  expression: string;
  /** As the engine wrote it: JavaScript's numbers could not keep all digits. */
  written?: string | undefined;
}

export function answered(text: string, expression: string): Answered {
  const value = child(parse(text), "value");
  const verdict = JSON.parse(text) as ExpressionVerdict;
  // The engine counts characters; JavaScript, those outside of the basic plane twice.
  const at = (chars: number) => Array.from(expression).slice(0, chars).join("").length;
  const placed = (one: NonNullable<ExpressionVerdict["problem"]>) => ({ ...one, from: at(one.from), to: at(one.to) });
  return {
    ...verdict,
    ...(verdict.problem ? { problem: placed(verdict.problem) } : {}),
    ...(verdict.valueError ? { valueError: placed(verdict.valueError) } : {}),
    expression,
    written: value && text.slice(value.start, value.end),
  };
}

interface Verdict {
  error: Error | null;
  /** None: the engine was not asked, or has not answered. */
  data?: Answered | undefined;
  /** What can't be read, and where, if it is of what stands there now. */
  problem?: ExpressionVerdict["problem"];
}

/** The engine's word, and what comes out with the variables given. Undefined: nothing is asked. */
function useExpressionVerdict(expression: string | undefined, kind: "condition" | "value"): Verdict {
  const { variables } = useEditing();
  const asked = useLater(expression, CHECKED_AFTER_MS);
  const found = useQuery({
    queryKey: ["expression", asked, kind, variables],
    queryFn: async ({ signal }) => answered(await engine.checkExpression(asked!, kind, variables, signal), asked!),
    enabled: asked !== undefined,
    placeholderData: (before) => before,
    retry: false,
  });
  const fresh = asked === expression && !found.isPlaceholderData;
  return { error: found.error, data: found.data, problem: fresh ? found.data?.problem : undefined };
}

function Said({ error, data }: Verdict) {
  if (error) return <p className="mute">Not checked: {error.message}</p>;
  if (!data) return null;
  const { ok, problem, written, valueError, expression } = data;
  const wrong = problem ?? valueError;
  if (wrong)
    return (
      <p className={ok ? "mute" : "wrong"} role="status">
        {wrong.reason}
        {wrong.to > wrong.from && <> at “{expression.slice(wrong.from, wrong.to)}”</>}
      </p>
    );
  return (
    <p className="mute" role="status">
      gives <b className="mono">{written}</b>
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

const STRINGS = /"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`/gu;
const TERM_FOLLOWS = /(?:^(?:\$\{)?|[-+*/%^<>=!&|?:;,([{.]|\b(?:and|or|not|in|matches|contains|startsWith|endsWith|let))\s*$/u;

/**
 * Of a list that nobody asked for. Nothing: within a string, a number or a word, and behind what is complete. Shown: a term
 * may begin, or stands there as it is; Enter and Tab are for what was typed. Taken: they take what the letters begin.
 */
export function wantedAt(words: readonly Word[], text: string, at: number): "nothing" | "shown" | "taken" {
  const typed = wordBefore(text, at);
  const before = text.slice(0, at - typed.length).replace(STRINGS, "0");
  if (/["'`]|\d$|\d\.$/u.test(before) || /^[\p{L}\p{N}_]/u.test(text.slice(at))) return "nothing";
  if (typed === "") return TERM_FOLLOWS.test(before) ? "shown" : "nothing";
  return words.some((word) => word.name === typed) ? "shown" : "taken";
}

const OWNER = /([\p{L}_$][\p{L}\p{N}_]*(?:\??\.[\p{L}_$][\p{L}\p{N}_]*)*)\??\.$/u;

/** Of all that may stand there: after a dot the keys of what stands before it, among the variables given, and methods. */
export function matching(words: readonly Word[], variables: string, text: string, at: number): Word[] {
  const typed = wordBefore(text, at);
  const before = text.slice(0, at - typed.length);
  const owner = OWNER.exec(before)?.[1];
  const may = /\.$/.test(before) && !/\d\.$/.test(before) ? [...keysOf(variables, owner), ...words.filter((word) => word.method)] : words.filter((word) => !word.method);
  const small = typed.toLowerCase();
  return may.filter((word) => word.name.toLowerCase().startsWith(small) && word.name !== typed).slice(0, SHOWN_MAX);
}

function keysOf(variables: string, owner: string | undefined): Word[] {
  const found = owner?.split(/\??\./).reduce<Node | undefined>(child, parse(variables));
  return (found?.members ?? []).filter(({ key }) => /^[\p{L}_$][\p{L}\p{N}_]*$/u.test(key)).map(({ key }) => ({ name: key, call: false, note: `of ${owner}` }));
}

/** Of the word that has the character at this place, or ends there. */
export function helpOf(words: readonly Word[], text: string, at: number): Word | undefined {
  const name = wordBefore(text, at) + (/^[\p{L}\p{N}_]*/u.exec(text.slice(Math.max(0, at)))?.[0] ?? "");
  return name === "" ? undefined : words.find((word) => word.name === name && word.help !== undefined);
}
