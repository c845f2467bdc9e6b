// Changing the variables of an instance that waits or has failed: as one JSON object, of which only what differs is sent.
import { useRef, useState } from "react";
import { engine, HIDDEN, type Instance } from "../api/client";
import { textOf } from "../modeller/json";
import { Dialog, NoteField, VariablesField, variablesOf } from "../parts/dialog";
import { flawOf } from "../parts/jsontyped";

/** Without values that are not shown. */
export function shownOf(variables: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(variables).filter(([, value]) => value !== HIDDEN));
}

/** What was set and what was taken out, top-level name by name. */
export function changesOf(before: Record<string, unknown>, after: Record<string, unknown>): { set: Record<string, unknown>; remove: string[] } {
  const set = Object.fromEntries(Object.entries(after).filter(([name, value]) => !Object.hasOwn(before, name) || textOf(before[name]) !== textOf(value)));
  return { set, remove: Object.keys(before).filter((name) => !Object.hasOwn(after, name)) };
}

const VALUE_SHOWN_CHARS = 300;

function cut(value: unknown): string {
  const text = textOf(value);
  return text.length > VALUE_SHOWN_CHARS ? `${text.slice(0, VALUE_SHOWN_CHARS)}…` : text;
}

/** Before anything is saved. Nothing where the text can't be read. */
function Differences({ before, text }: { before: Record<string, unknown>; text: string }) {
  if (flawOf(text)) return null;
  const { set, remove } = changesOf(before, variablesOf(text));
  const names = [...new Set([...remove, ...Object.keys(set)])];
  return (
    <section aria-label="What changes" role="status">
      {names.length === 0 ? (
        <p className="mute">Nothing is changed yet.</p>
      ) : (
        <pre className="fielddiff mono">
          {names.map((name) => (
            <span key={name}>
              {Object.hasOwn(before, name) && <del>{`- ${name}: ${cut(before[name])}\n`}</del>}
              {Object.hasOwn(set, name) && <ins>{`+ ${name}: ${cut(set[name])}\n`}</ins>}
            </span>
          ))}
        </pre>
      )}
    </section>
  );
}

/** That some variables are not shown, and stay as they are or are left out. */
export function HiddenNote({ variables }: { variables: Record<string, unknown> }) {
  const hidden = Object.keys(variables).filter((name) => variables[name] === HIDDEN);
  if (hidden.length === 0) return null;
  return <p className="mute">Not shown here, and not touched unless you write them: {hidden.join(", ")}.</p>;
}

interface Props {
  instance: Instance;
  close: () => void;
  done: (saved: boolean, retried: boolean) => Promise<void>;
  /** Of a failed one: it may go on at once. */
  retry?: ((note: string) => Promise<unknown>) | undefined;
}

export function EditDialog({ instance, close, done, retry }: Props) {
  const now = shownOf(instance.variables);
  // What others write while somebody types is no change of theirs.
  const [typed, setTyped] = useState<string>();
  const began = useRef(now);
  if (typed === undefined) began.current = now;
  /** Also by a press before, whose retry was refused. */
  const saved = useRef(false);
  const save = async (form: FormData, goesOn: boolean) => {
    const wanted = variablesOf(String(form.get("variables")));
    const { set, remove } = changesOf(began.current, wanted);
    const note = String(form.get("note")).trim();
    if (Object.keys(set).length > 0 || remove.length > 0) {
      await engine.editVariables(instance.id, set, remove, note);
      saved.current = true;
    }
    began.current = wanted; // also where the retry is refused
    if (goesOn)
      await retry?.(note).catch((error: Error) => {
        throw new SyntaxError(`${saved.current ? "The variables are saved, but it" : "It"} was not retried: ${error.message}`);
      });
    await done(saved.current, goesOn);
  };
  return (
    <Dialog title="Edit variables" verb="Save" more={retry && "Save and retry"} close={close} act={save}>
      <p>Only what you change is written. Workers that have a job of this instance go on with what they were given.</p>
      <HiddenNote variables={instance.variables} />
      <VariablesField initial={textOf(now, true)} changed={setTyped} />
      {typed !== undefined && <Differences before={began.current} text={typed} />}
      <NoteField />
    </Dialog>
  );
}
