// Completing a task of an instance: with its form, as in the inbox, or with JSON where the definition has none.
import { useState } from "react";
import { type Definition, engine } from "../../api/client";
import { Dialog, VariablesField, variablesOf } from "../../parts/dialog";
import { Fields, given, initial, problemsOf, schemaOf, type Values } from "../../parts/form";
import { StepField } from "./stepfield";

interface Props {
  id: string;
  definition: Definition;
  /** User tasks that were open when it was opened: what is typed stays, whatever becomes of them. */
  steps: Definition["steps"];
  close: () => void;
  done: () => Promise<void>;
}

export function CompleteDialog({ id, definition, steps: open, close, done }: Props) {
  const [steps] = useState(open);
  const [stepId, setStepId] = useState(steps[0]!.id);
  const schema = schemaOf(definition, stepId);
  const [typed, setTyped] = useState<Values>();
  const [tried, setTried] = useState(false);
  const values = typed ?? (schema ? initial(schema) : {});
  const problems = schema ? problemsOf(schema, values) : {};
  const choose = (next: string) => {
    setStepId(next);
    setTyped(undefined);
    setTried(false);
  };
  const act = async (form: FormData) => {
    setTried(true);
    if (Object.keys(problems).length > 0) throw new SyntaxError("Not everything is filled in as it is asked for.");
    await engine.completeTask(id, stepId, schema ? given(values) : variablesOf(String(form.get("variables"))));
    await done();
  };
  return (
    <Dialog title="Complete a task" verb="Complete" checks={false} close={close} act={act}>
      <StepField steps={steps} chosen={stepId} choose={choose} />
      {schema ? <Fields key={stepId} schema={schema} values={values} problems={tried ? problems : {}} change={setTyped} /> : <VariablesField key={stepId} />}
    </Dialog>
  );
}
