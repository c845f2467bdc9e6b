// What is edited of what is selected: a step, several, or the definition. Its fields are those of the language's table.
import { useEffect, useRef } from "react";
import type { ClipboardActs } from "./clipboard";
import { useEditing, useTold } from "./context";
import { child, nodeAt, type Path, stringOf } from "./json";
import { hasGivenJobType, renameStepAsTyped } from "./edits";
import { Field, Said, Unknown } from "./fields";
import { COMMON, DEFINITION, neededBy, STEP, usedBy } from "./language";
import { SAYS } from "./palette";
import { usePeople } from "./press";
import { words } from "./spoken";
import { StepActs } from "./stepacts";
import { CommittedText } from "./text";

/** Of a step or the definition as a whole: the keys may be led here. */
function SaidHere({ path }: { path: Path }) {
  const { place, ...told } = useTold(path);
  return (
    <div data-place={place} tabIndex={-1}>
      <Said {...told} />
    </div>
  );
}

interface StepProps {
  id: string;
  renamed: (to: string) => void;
  remove: () => void;
  clipboard: ClipboardActs;
  acts: React.ReactNode;
}

export function StepPanel({ id, renamed, remove, clipboard, acts }: StepProps) {
  const { draft, edit } = useEditing();
  const place = draft.places.get(id)!;
  const path: Path = ["steps", place];
  const node = nodeAt(draft.root, path)!;
  const type = stringOf(child(node, "type")) ?? "";
  const used = usedBy(type);
  const shown = [...COMMON.slice(1), ...used];
  const others = node.members!.map((one) => one.key).filter((name) => name !== "id" && !shown.includes(name));
  const named = useTold([...path, "id"]);
  const people = usePeople(type === "USER_TASK");
  const first = useRef<HTMLDivElement>(null);
  useEffect(() => {
    first.current?.closest(".panel")?.scrollTo(0, 0);
  }, [id]);
  return (
    <div ref={first}>
      <header className="phead">
        <div>
          <h2>{stringOf(child(node, "name")) || id}</h2>
          <p className="mute">
            {words(type.toLowerCase().replaceAll("_", " "))}
            {SAYS[type] && `: ${SAYS[type].charAt(0).toLowerCase()}${SAYS[type].slice(1)}`}
          </p>
        </div>
        <StepActs {...clipboard} remove={remove} />
      </header>
      {acts}
      <SaidHere path={path} />
      <div className="field" data-place={named.place}>
        <span className="lbl" aria-hidden="true">
          Id <span className="star"> needed</span>
        </span>
        <CommittedText
          label="Id"
          value={id}
          invalid={named.problems.length > 0}
          commit={(to) => {
            if (to === "" || draft.places.has(to)) return `“${to}” ${to === "" ? "is no id" : "is another step's"}`;
            edit((now) => renameStepAsTyped(now, id, to));
            renamed(to);
            return undefined;
          }}
        />
        <Said {...named} />
      </div>
      {shown.map((name) => (
        <Field
          key={name}
          schema={STEP.properties[name]!}
          label={words(name)}
          path={[...path, name]}
          node={child(node, name)}
          needed={["name", "type", ...neededBy(type)].includes(name)}
          note={name === "jobType" && hasGivenJobType(node) ? "Came with the step: nobody has chosen it yet." : undefined}
        />
      ))}
      {type === "USER_TASK" && people && <people.PeoplePanel id={id} />}
      {others.map((name) =>
        name in STEP.properties ? (
          <div key={name} className="unused">
            <p className="mute">A {words(type.toLowerCase().replaceAll("_", " ")).toLowerCase()} does not use this:</p>
            <Field schema={STEP.properties[name]!} label={words(name)} path={[...path, name]} node={child(node, name)} />
          </div>
        ) : (
          <Unknown key={name} path={[...path, name]} name={name} />
        ),
      )}
    </div>
  );
}

export function DefinitionPanel({ paste, off }: ClipboardActs) {
  const { draft } = useEditing();
  const fields = Object.keys(DEFINITION.properties).filter((name) => !["steps", "version"].includes(name));
  const strange = draft.root.members?.filter((one) => !(one.key in DEFINITION.properties)) ?? [];
  return (
    <>
      <header className="phead">
        <h2>The definition</h2>
        <button type="button" className="btn sm" title="Ctrl V" disabled={off} onClick={paste}>
          Paste steps
        </button>
      </header>
      <SaidHere path={[]} />
      {fields.map((name) => (
        <Field
          key={name}
          schema={DEFINITION.properties[name]!}
          label={words(name)}
          path={[name]}
          node={child(draft.root, name)}
          needed={DEFINITION.required?.includes(name) ?? false}
        />
      ))}
      {strange.map((one) => (
        <Unknown key={one.key} path={[one.key]} name={one.key} />
      ))}
    </>
  );
}
