import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useLocation } from "wouter";
import { type Definition, engine, newKey } from "../api/client";
import { readExact, textOf } from "../modeller/json";
import { Dialog, VariablesField, variablesOf } from "../parts/dialog";
import { HiddenNote, shownOf } from "./edit";

export function StartDialog({ definitionId, variables, close }: { definitionId: string; variables?: Record<string, unknown>; close: () => void }) {
  const [, go] = useLocation();
  const queries = useQueryClient();
  // One key per form: pressing the button twice starts one instance.
  const [key] = useState(newKey);
  const given = variables !== undefined || definitionId === "";
  const about = useQuery({ queryKey: ["definition", definitionId, "exact"], queryFn: async ({ signal }) => readExact(await engine.definitionText(definitionId, undefined, signal)) as Definition, enabled: !given, retry: false });
  // What the definition names to begin with (docs/console.md), until somebody has typed something else.
  const example = given ? variables && shownOf(variables) : about.data?.metadata?.exampleVariables;
  return (
    <Dialog
      title="Start an instance"
      verb="Start"
      close={close}
      act={async (form) => {
        const started = await engine.start(String(form.get("definition")), variablesOf(String(form.get("variables"))), String(form.get("business")).trim(), key);
        void queries.invalidateQueries({ queryKey: ["definitions"] }); // how many have started
        go(`/instances/${encodeURIComponent(started.id)}`);
      }}
    >
      <div className="field">
        <label htmlFor="definition">Definition</label>
        <input id="definition" name="definition" className="in mono" defaultValue={definitionId} required />
      </div>
      <div className="field">
        <label htmlFor="business">Business key, if it has one</label>
        <input id="business" name="business" className="in" maxLength={256} />
      </div>
      {variables && <HiddenNote variables={variables} />}
      <VariablesField key={about.status} initial={textOf(example ?? {}, true)} />
    </Dialog>
  );
}
