// A field for an expression: what the engine says of it while it is typed, and gets from it, at the characters that it is
// about, and what its words are for.
import { useQuery } from "@tanstack/react-query";
import { useRef, useState } from "react";
import { type ExpressionVerdict, engine } from "../api/client";
import { expressionIn, helpOf } from "./completion";
import { useEditing, useUntaken } from "./context";
import { isNever } from "./edits";
import { child, type Path, parse } from "./json";
import { useLater } from "./later";
import { Line } from "./line";

const CHECKED_AFTER_MS = 250;

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
  const isTyped = useRef(false); // and not yet taken over: a key may come before the page has drawn the one before
  const [at, setAt] = useState(0);
  const [anchor, setAnchor] = useState(0);
  const shown = typed ?? value;
  const inside = template ? expressionIn(shown) : shown;
  const asked = inside !== undefined && inside.trim() !== "" && (typed !== undefined || flawed.has(JSON.stringify(path)));
  const verdict = useExpressionVerdict(asked ? inside : undefined, kind);
  // A template's expression begins behind its `${`.
  const shift = template ? 2 : 0;
  const wrong = verdict.problem && { reason: verdict.problem.reason, from: verdict.problem.from + shift, to: verdict.problem.to + shift };
  const here = typed === undefined ? undefined : helpOf(words, shown, at);
  useUntaken(commit === true && typed !== undefined && typed !== value);
  const done = (text: string) => {
    if (commit && isTyped.current && text !== value) change(text);
    isTyped.current = false;
    setTyped(undefined);
  };
  return (
    <div className="expression">
      <Line
        label={label}
        text={shown}
        describedBy={describedBy}
        invalid={invalid}
        template={template}
        words={words}
        variables={variables}
        wrong={wrong}
        begun={kind === "condition" && typed === undefined && isNever(value)}
        focused={typed !== undefined}
        at={at}
        anchor={anchor}
        put={(text) => {
          isTyped.current = true;
          setTyped(text);
          if (!commit) change(text);
        }}
        caret={(head, from) => {
          setAt(head);
          setAnchor(from);
        }}
        enter={() => setTyped((now) => now ?? value)}
        leave={done}
        done={(text) => commit && done(text)}
      />
      {typed !== undefined && shown.startsWith("${") && template && inside === undefined && <p className="mute">Text, as long as no {"}"} ends it.</p>}
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
