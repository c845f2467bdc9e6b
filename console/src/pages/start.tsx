import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useLocation } from "wouter";
import { type Definition, type DraftCheck, engine, newKey } from "../api/client";
import { readExact, textOf } from "../modeller/json";
import { Dialog, VariablesField, variablesOf } from "../parts/dialog";
import type { TextFile } from "../parts/file";
import { useCan } from "../session";
import { HiddenNote, shownOf } from "./edit";

/** The instance comes up when it has started. One key per form: pressing the button twice starts one instance. `first`: what goes before, once the form can be read. */
function useStart() {
  const [, go] = useLocation();
  const queries = useQueryClient();
  const [key] = useState(newKey);
  return async (definitionId: string, form: FormData, first?: () => Promise<unknown>) => {
    const variables = variablesOf(String(form.get("variables")));
    await first?.();
    const started = await engine.start(definitionId, variables, String(form.get("business")).trim(), key);
    void queries.invalidateQueries({ queryKey: ["definitions"] }); // how many have started
    go(`/instances/${encodeURIComponent(started.id)}`);
  };
}

function BusinessKeyField() {
  return (
    <div className="field">
      <label htmlFor="business">Business key, if it has one</label>
      <input id="business" name="business" className="in" maxLength={256} />
    </div>
  );
}

export function StartDialog({ definitionId, variables, close }: { definitionId: string; variables?: Record<string, unknown>; close: () => void }) {
  const start = useStart();
  const given = variables !== undefined || definitionId === "";
  const about = useQuery({ queryKey: ["definition", definitionId, "exact"], queryFn: async ({ signal }) => readExact(await engine.definitionText(definitionId, undefined, signal)) as Definition, enabled: !given, retry: false });
  // What the definition names to begin with (docs/console.md), until somebody has typed something else.
  const example = given ? variables && shownOf(variables) : about.data?.metadata?.exampleVariables;
  return (
    <Dialog title="Start an instance" verb="Start" close={close} act={(form) => start(String(form.get("definition")), form)}>
      <div className="field">
        <label htmlFor="definition">Definition</label>
        <input id="definition" name="definition" className="in mono" defaultValue={definitionId} required />
      </div>
      <BusinessKeyField />
      {variables && <HiddenNote variables={variables} />}
      <VariablesField key={about.status} initial={textOf(example ?? {}, true)} />
    </Dialog>
  );
}

const PROBLEMS_SHOWN = 5;

/** A definition from a file becomes the newest version of its id, and is started with the variables that it names as an example. */
export function UploadFileDialog({ file, close }: { file: TextFile; close: () => void }) {
  const [, go] = useLocation();
  const queries = useQueryClient();
  const operates = useCan("operate");
  const start = useStart();
  const verdict = useQuery({ queryKey: ["validate file", file.text], queryFn: ({ signal }) => engine.validate(file.text, signal), gcTime: 0, retry: false });
  const [{ id, metadata }] = useState(() => ({ ...(readExact(file.text.replace(/^\ufeff/, "")) as Partial<Definition>) }));
  return (
    <Dialog
      title={`Upload ${file.name}?`}
      verb="Upload"
      more={operates ? "Upload and start" : undefined}
      ready={verdict.data?.valid === true}
      close={close}
      act={async (form, more) => {
        const upload = async () => {
          await engine.upload(file.text);
          await queries.invalidateQueries(); // what is known of the newest version, too
        };
        if (more) return start(String(id), form, upload);
        await upload();
        go(`/definitions/${encodeURIComponent(String(id))}`);
      }}
    >
      {verdict.error && <p className="wrong">Not checked: {verdict.error.message}</p>}
      {verdict.data && <Becomes id={String(id)} check={verdict.data} />}
      {operates && verdict.data?.valid && (
        <>
          <BusinessKeyField />
          <VariablesField initial={textOf(metadata?.exampleVariables ?? {}, true)} />
        </>
      )}
    </Dialog>
  );
}

function Becomes({ id, check: { valid, problems, same, latest } }: { id: string; check: DraftCheck }) {
  if (!valid)
    return (
      <>
        <p className="wrong">The engine finds {problems.length === 1 ? "a problem" : `${problems.length} problems`}; the modeller, where Import opens the file, shows each where it is.</p>
        <ul className="reasons">
          {problems.slice(0, PROBLEMS_SHOWN).map((one) => (
            <li key={`${one.path} ${one.reason}`}>
              <code>{one.path}</code>: {one.reason}
            </li>
          ))}
        </ul>
      </>
    );
  return (
    <p>
      <b className="mono">{id}</b>{" "}
      {same !== undefined ? `has this text already, as version ${same}: an upload changes nothing.` : latest === undefined ? "is new: this becomes its version 1." : `gets version ${latest + 1}. New instances take it; those that run stay on theirs.`}
    </p>
  );
}
