// What is edited of what is selected: a step, several, or the definition. Its fields are those of the language's table.
import { useEffect, useRef } from "react";
import { useEditing } from "./context";
import { child, nodeAt, type Path, stringOf } from "./json";
import { renameStep } from "./edits";
import { Field, Unknown, words } from "./fields";
import { COMMON, DEFINITION, neededBy, STEP, usedBy } from "./language";
import { PeoplePanel } from "./people";
import { CommittedText } from "./text";

/** Of a field; of "" what is about the whole. */
interface Problems {
  (field: string): readonly string[];
}

function Said({ problems }: { problems: readonly string[] }) {
  return problems.map((problem) => (
    <p key={problem} className="wrong">
      {problem}
    </p>
  ));
}

export function StepPanel({ id, problems, renamed, remove, acts }: { id: string; problems: Problems; renamed: (to: string) => void; remove: () => void; acts: React.ReactNode }) {
  const { draft, edit } = useEditing();
  const place = draft.places.get(id)!;
  const path: Path = ["steps", place];
  const node = nodeAt(draft.root, path)!;
  const type = stringOf(child(node, "type")) ?? "";
  const used = usedBy(type);
  const shown = [...COMMON.slice(1), ...used];
  const others = node.members!.map((one) => one.key).filter((name) => name !== "id" && !shown.includes(name));
  const first = useRef<HTMLDivElement>(null);
  useEffect(() => {
    first.current?.closest(".panel")?.scrollTo(0, 0);
  }, [id]);
  return (
    <div ref={first}>
      <header className="phead">
        <div>
          <h2>{stringOf(child(node, "name")) || id}</h2>
          <p className="mute">{words(type.toLowerCase().replaceAll("_", " "))}</p>
        </div>
        <button type="button" className="btn sm" onClick={remove}>
          Delete
        </button>
      </header>
      {acts}
      <Said problems={problems("")} />
      <div className="field">
        <span className="lbl" aria-hidden="true">
          Id <span className="star"> needed</span>
        </span>
        <CommittedText
          label="Id"
          value={id}
          invalid={problems("id").length > 0}
          commit={(to) => {
            if (to === "" || draft.places.has(to)) return `“${to}” ${to === "" ? "is no id" : "is another step's"}`;
            edit((now) => renameStep(now, id, to));
            renamed(to);
            return undefined;
          }}
        />
        <Said problems={problems("id")} />
      </div>
      {shown.map((name) => (
        <Field
          key={name}
          schema={STEP.properties[name]!}
          label={words(name)}
          path={[...path, name]}
          node={child(node, name)}
          needed={["name", "type", ...neededBy(type)].includes(name)}
          problems={problems(name)}
        />
      ))}
      {type === "USER_TASK" && <PeoplePanel id={id} />}
      {others.map((name) =>
        name in STEP.properties ? (
          <div key={name} className="unused">
            <p className="mute">A {words(type.toLowerCase().replaceAll("_", " ")).toLowerCase()} does not use this:</p>
            <Field schema={STEP.properties[name]!} label={words(name)} path={[...path, name]} node={child(node, name)} problems={problems(name)} />
          </div>
        ) : (
          <div key={name}>
            <Unknown path={[...path, name]} name={name} />
            <Said problems={problems(name)} />
          </div>
        ),
      )}
    </div>
  );
}

export function DefinitionPanel({ problems }: { problems: Problems }) {
  const { draft } = useEditing();
  const fields = Object.keys(DEFINITION.properties).filter((name) => !["steps", "version"].includes(name));
  const strange = draft.root.members?.filter((one) => !(one.key in DEFINITION.properties)) ?? [];
  return (
    <>
      <header className="phead">
        <h2>The definition</h2>
      </header>
      <Said problems={problems("")} />
      {fields.map((name) => (
        <Field
          key={name}
          schema={DEFINITION.properties[name]!}
          label={words(name)}
          path={[name]}
          node={child(draft.root, name)}
          needed={DEFINITION.required?.includes(name) ?? false}
          problems={problems(name)}
        />
      ))}
      {strange.map((one) => (
        <div key={one.key}>
          <Unknown path={[one.key]} name={one.key} />
          <Said problems={problems(one.key)} />
        </div>
      ))}
    </>
  );
}
