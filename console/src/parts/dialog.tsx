// The browser's own modal dialog: it keeps the focus inside and gives it back.
import { type FormEvent, type RefObject, useEffect, useId, useRef, useState } from "react";
import { EngineError } from "../api/client";
import { Raw, readExact } from "../modeller/json";
import { JsonField } from "./jsonfield";

interface Props {
  title: string;
  /** What the button does, as a verb. */
  verb: string;
  /** Of a second button, which does more. */
  more?: string | undefined;
  danger?: boolean;
  /** Whether it can be done as it stands. */
  ready?: boolean;
  /** Whether the browser looks at the fields; else `act` does. */
  checks?: boolean;
  children?: React.ReactNode;
  /** `more`: by the second button. */
  act: (form: FormData, more: boolean) => Promise<void>;
  close: () => void;
}

/** Also one that is taken out while it is open, of which browsers lose the focus. */
export function useModal(box: RefObject<HTMLDialogElement | null>): void {
  useEffect(() => {
    const before = document.activeElement;
    box.current?.showModal();
    return () => {
      requestAnimationFrame(() => {
        if (document.activeElement === document.body && before instanceof HTMLElement) before.focus();
      });
    };
  }, [box]);
}

const MORE = "more";

export function Dialog({ title, verb, more, danger, ready = true, checks = true, children, act, close }: Props) {
  const box = useRef<HTMLDialogElement>(null);
  const heading = useId();
  const [busy, setBusy] = useState(false);
  const [reason, setReason] = useState<string>();
  useModal(box);
  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    setBusy(true);
    setReason(undefined);
    try {
      const { submitter } = event.nativeEvent as SubmitEvent;
      await act(new FormData(event.currentTarget), submitter instanceof HTMLButtonElement && submitter.value === MORE);
      close();
    } catch (error) {
      setReason(error instanceof EngineError || error instanceof SyntaxError ? error.message : String(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <dialog ref={box} className="card dialog" aria-labelledby={heading} onClose={close} onKeyDown={(event) => event.stopPropagation()}>
      <form noValidate={!checks} onSubmit={submit} onInput={() => setReason(undefined)}>
        <h2 id={heading}>{title}</h2>
        {children}
        {reason !== undefined && (
          <p className="refused" role="alert">
            {reason}
          </p>
        )}
        <div className="acts">
          <button type="button" className="btn" onClick={close}>
            Back
          </button>
          <button type="submit" className={`btn ${danger ? "bad" : more === undefined ? "pri" : ""}`} disabled={busy || !ready}>
            {verb}
          </button>
          {more !== undefined && (
            <button type="submit" value={MORE} className="btn pri" disabled={busy || !ready}>
              {more}
            </button>
          )}
        </div>
      </form>
    </dialog>
  );
}

/** JSON that somebody types: an object of variables; numbers keep all of their digits. Throws SyntaxError, which the dialog shows. */
export function variablesOf(text: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = readExact(text.trim() || "{}");
  } catch (error) {
    throw new SyntaxError(`Variables are no JSON: ${(error as Error).message}`);
  }
  if (typeof value !== "object" || value === null || value instanceof Raw || Array.isArray(value)) throw new SyntaxError('Variables must be a JSON object, such as {"amount": 25}');
  return value as Record<string, unknown>;
}

export function NoteField({ label = "Note, for the audit trail", name = "note" }: { label?: string; name?: string }) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      <input id={id} name={name} className="in" maxLength={1000} />
    </div>
  );
}

export function VariablesField(props: { initial?: string; changed?: (text: string) => void }) {
  return <JsonField label="Variables, as a JSON object" name="variables" {...props} />;
}
