// Completing a task of an instance: as in the inbox, with its form, or with JSON where the definition has none.
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { type Definition, engine, type UserTask } from "../../api/client";
import { Dialog, VariablesField, variablesOf } from "../../parts/dialog";
import { Fields, given, initial, problemsOf, schemaOf, type Values } from "../../parts/form";
import { askForEnd, isOver, isTheirs, nameOf, Theirs, useClerk, wordsOf } from "../clerk";
import { StepField } from "./stepfield";

interface Props {
  definition: Definition;
  /** That were open when it was opened, at least one: what is typed stays, whatever becomes of them. */
  tasks: UserTask[];
  close: () => void;
  done: () => Promise<void>;
}

interface Question {
  send: (by: string) => Promise<void>;
  answered: () => void;
  back: () => void;
}

export function CompleteDialog({ definition, tasks, close, done }: Props) {
  const clerk = useClerk();
  const queries = useQueryClient();
  const [chosen, choose] = useState(tasks[0]!.executionId);
  const task = tasks.find((one) => one.executionId === chosen)!;
  const schema = schemaOf(definition, task.stepId);
  const [typed, setTyped] = useState<Values>();
  const [tried, setTried] = useState(false);
  const [question, setQuestion] = useState<Question>();
  const theirs = new Map(tasks.filter((one) => isTheirs(one, clerk)).map((one) => [one.executionId, ` (${one.assignee} has it)`]));
  const values = typed ?? (schema ? initial(schema) : {});
  const problems = schema ? problemsOf(schema, values) : {};
  const send = async (variables: Values, by: string) => {
    try {
      await engine.completeTask(task.instanceId, task.stepId, variables, task.executionId, clerk.nameless && by ? by : undefined);
    } catch (error) {
      if (isOver(error)) throw new SyntaxError(`${wordsOf(await askForEnd(queries, task))}. What you have typed was not sent.`);
      throw error;
    }
    if (clerk.nameless && by) clerk.remember(by);
    await done();
  };
  const act = async (form: FormData) => {
    setTried(true);
    if (Object.keys(problems).length > 0) throw new SyntaxError("Not everything is filled in as it is asked for.");
    const variables = schema ? given(values) : variablesOf(String(form.get("variables")));
    if (!isTheirs(task, clerk)) return send(variables, clerk.name);
    await new Promise<void>((answered, refuse) => setQuestion({ send: (by) => send(variables, by), answered, back: () => refuse(new SyntaxError("It was not completed.")) }));
  };
  return (
    <>
      <Dialog title="Complete a task" verb="Complete" checks={false} close={close} act={act}>
        <StepField
          steps={tasks.map((one) => ({ id: one.executionId, name: nameOf(one) }))}
          note={(id) => theirs.get(id) ?? ""}
          chosen={chosen}
          choose={(next) => {
            choose(next);
            setTyped(undefined);
            setTried(false);
          }}
        />
        {isTheirs(task, clerk) && (
          <p className="banner wait">
            <b>{task.assignee}</b> has this task. Whoever completes it takes it from them.
          </p>
        )}
        {schema ? <Fields key={chosen} schema={schema} values={values} problems={tried ? problems : {}} change={setTyped} /> : <VariablesField key={chosen} />}
        {clerk.name !== "" && <p className="mute">You complete it as {clerk.name}.</p>}
      </Dialog>
      {question && (
        <Theirs
          assignee={task.assignee}
          verb="Complete it anyway"
          clerk={clerk}
          act={(by) => question.send(by).then(question.answered)}
          close={() => {
            setQuestion(undefined);
            question.back();
          }}
        />
      )}
    </>
  );
}
