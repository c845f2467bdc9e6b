// Another run with the journal of a durable run up to one of its operations, and where a run comes from.
import { useState } from "react";
import { Link, useLocation } from "wouter";
import { engine, type ForkedFrom, newKey } from "../api/client";
import { Dialog } from "../parts/dialog";

/** Kinds of the records that end an operation, which can be done again. */
const ENDS: ReadonlySet<string> = new Set(["done", "failed", "child", "supplied"]);
const KEY_SHOWN = 6;
const WORDS: Record<string, string> = { start: "from the start", end: "from the end of the journal" };

export function endsOperation(record: { kind: string; path?: string | undefined }): boolean {
  return ENDS.has(record.kind) && !!record.path;
}

/** `path`: of the operation that the new run does again, or `start`, or `end`. The new run comes up when it has started. */
export function RunAgain({ id, path, children }: { id: string; path: string; children: string }) {
  const [, go] = useLocation();
  const [suggested, suggest] = useState<string>();
  const words = WORDS[path] ?? `from ${path}`;
  const act = async (form: FormData) => {
    const started = await engine.fork(id, path, String(form.get("fork")).trim(), form.get("later") !== null);
    go(`/instances/${encodeURIComponent(started.id)}`);
  };
  return (
    <>
      <button type="button" className="btn sm" aria-label={`Run again ${words}`} onClick={() => suggest(`${id}-${newKey().slice(0, KEY_SHOWN)}`)}>
        {children}
      </button>
      {suggested !== undefined && (
        <Dialog title={`Run again ${words}`} verb="Run again" close={() => suggest(undefined)} act={act}>
          <p>Another run starts. It has the records of the journal before that place, and does everything after it by itself: steps run again. This run stays as it is.</p>
          <div className="field">
            <label htmlFor="fork-id">Id of the new run, which is started once under it</label>
            <input id="fork-id" name="fork" className="in mono" maxLength={256} defaultValue={suggested} required />
          </div>
          {path !== "end" && (
            <p>
              <label>
                <input type="checkbox" name="later" /> The new run also gets the messages that came after that place
              </label>
            </p>
          )}
        </Dialog>
      )}
    </>
  );
}

export function ForkOrigin({ from }: { from: ForkedFrom }) {
  return (
    <p className="mute note">
      Forked from <Link href={`/instances/${encodeURIComponent(from.id ?? "")}`}>{from.id}</Link> at <code>{from.path}</code>.
    </p>
  );
}
