// Changing the variables of an instance that waits or has failed: as one JSON object, of which only what differs is sent.
import { useId } from "react";
import { engine, type Instance } from "../api/client";
import { Dialog, VariablesField, variablesOf } from "../parts/dialog";

/** What was set and what was taken out, top-level name by name. */
export function changesOf(before: Record<string, unknown>, after: Record<string, unknown>): { set: Record<string, unknown>; remove: string[] } {
  const set = Object.fromEntries(Object.entries(after).filter(([name, value]) => !Object.hasOwn(before, name) || JSON.stringify(before[name]) !== JSON.stringify(value)));
  return { set, remove: Object.keys(before).filter((name) => !Object.hasOwn(after, name)) };
}

export function EditDialog({ instance, close, done }: { instance: Instance; close: () => void; done: () => Promise<void> }) {
  const id = useId();
  const save = async (form: FormData) => {
    const { set, remove } = changesOf(instance.variables, variablesOf(String(form.get("variables"))));
    if (Object.keys(set).length === 0 && remove.length === 0) return;
    await engine.editVariables(instance.id, set, remove, String(form.get("note")).trim());
    await done();
  };
  return (
    <Dialog title="Edit variables" verb="Save" close={close} act={save}>
      <p>Only what you change is written. Workers that have a job of this instance go on with what they were given.</p>
      <VariablesField initial={JSON.stringify(instance.variables, null, 2)} />
      <div className="field">
        <label htmlFor={id}>Note, for the audit trail</label>
        <input id={id} name="note" className="in" maxLength={1000} />
      </div>
    </Dialog>
  );
}
