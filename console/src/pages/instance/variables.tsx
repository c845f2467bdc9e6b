// Variables of an instance: now, and as any of its executions left them.
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Fragment, useMemo, useState } from "react";
import { MARKED_KEPT_MS } from "../../api/asks";
import { type Definition, engine, type Execution, type Instance } from "../../api/client";
import { textOf } from "../../modeller/json";
import { CopyButton } from "../../parts/copy";
import { Empty, Problem, Skeleton } from "../../parts/states";
import { Read } from "../../parts/table";

type Values = Record<string, unknown>;

/** The instance with its variables, which are read where they are shown only. */
export function WithVariables({ id, mark, children }: { id: string; mark: string | undefined; children: (instance: Instance) => React.ReactNode }) {
  const instance = useQuery({ queryKey: ["instance", id, mark], queryFn: ({ signal }) => engine.instance(id, signal), placeholderData: keepPreviousData, gcTime: MARKED_KEPT_MS });
  // What was read once stays: somebody may be about to change it.
  if (instance.error && !instance.data) return <Problem error={instance.error} retry={() => instance.refetch()} />;
  return instance.data ? children(instance.data) : <Skeleton />;
}

/** In place of an execution's id: what the instance was started with. */
const AT_START = "start";

/** Which moment's variables are shown: now, at the start, or as one of the executions that are loaded left them. */
export function AsOf({ entries, definition, chosen, choose }: { entries: Execution[]; definition: Definition | undefined; chosen: string; choose: (id: string) => void }) {
  const names = new Map(definition?.steps.map((step) => [step.id, step.name]));
  const ended = entries.filter((entry) => entry.endedAt !== undefined && entry.stepType !== "END");
  return (
    <label className="asof">
      As of{" "}
      <select className="in" value={chosen} onChange={(event) => choose(event.target.value)}>
        <option value="">now</option>
        <option value={AT_START}>its start</option>
        {chosen !== "" && chosen !== AT_START && !ended.some((entry) => entry.id === chosen) && <option value={chosen}>{chosen}</option>}
        {ended.map((entry) => (
          <option key={entry.id} value={entry.id}>
            {`after ${names.get(entry.stepId) || entry.stepId}${entry.attemptNumber > 1 ? ` ×${entry.attemptNumber}` : ""}`}
          </option>
        ))}
      </select>
    </label>
  );
}

/** What one execution left, with what it wrote and what that was before: as the one before it, by its end, had left it. */
function useLeft(id: string, entries: Execution[], after: string) {
  const ended = entries.filter((entry) => entry.endedAt !== undefined && entry.stepType !== "END");
  const before = ended[ended.findIndex((entry) => entry.id === after) - 1]?.id;
  const read = (execution: string | undefined) => ({
    queryKey: ["variables", id, execution],
    queryFn: ({ signal }: { signal: AbortSignal }) => engine.variablesAfter(id, execution!, signal),
    enabled: execution !== undefined,
    staleTime: Number.POSITIVE_INFINITY,
  });
  return { left: useQuery(read(after)), before: useQuery(read(before)).data?.variables as Values | undefined };
}

export function VariablesAfter({ id, entries, after }: { id: string; entries: Execution[]; after: string }) {
  const { left, before } = useLeft(id, entries, after);
  return <Read of={left}>{({ variables, changed }) => <Variables variables={variables as Values} changed={changed} before={before} />}</Read>;
}

/** What the last execution of a step wrote, against the one before it; the others are a click away. */
export function WrittenHere({ id, entries, stepId, all }: { id: string; entries: Execution[]; stepId: string; all: (after: string) => void }) {
  const last = entries.findLast((entry) => entry.stepId === stepId && entry.endedAt !== undefined);
  return last && last.stepType !== "END" ? <Written id={id} entries={entries} after={last.id} all={all} /> : null;
}

function Written({ id, entries, after, all }: { id: string; entries: Execution[]; after: string; all: (after: string) => void }) {
  const { left, before } = useLeft(id, entries, after);
  const values = left.data?.variables as Values | undefined;
  return (
    <section className="attempts" aria-label="Variables here">
      <h2>
        Variables here
        {values && (
          <button type="button" className="link more" onClick={() => all(after)}>
            all {Object.keys(values).length}
          </button>
        )}
      </h2>
      <Read of={left} rows={2}>
        {({ changed }) =>
          changed.length === 0 ? (
            <p className="mute">It wrote none.</p>
          ) : (
            <pre className="fielddiff">
              {changed.map((name) => (
                <Fragment key={name}>
                  {before && Object.hasOwn(before, name) && <del>{`- ${name} ${cutOff(before[name])}\n`}</del>}
                  {values && Object.hasOwn(values, name) && <ins>{`+ ${name} ${cutOff(values[name])}\n`}</ins>}
                </Fragment>
              ))}
            </pre>
          )
        }
      </Read>
    </section>
  );
}

const LINE_MAX_CHARS = 400;

function cutOff(value: unknown): string {
  const text = textOf(value);
  return text.length > LINE_MAX_CHARS ? `${text.slice(0, LINE_MAX_CHARS)}…` : text;
}

const SHOWN_MAX_CHARS = 256 * 1024;

/** `before`: what those that changed were. */
export function Variables({ variables, changed = [], before }: { variables: Values; changed?: string[]; before?: Values | undefined }) {
  const [word, setWord] = useState("");
  const rows = useMemo(() => Object.entries(variables).map(([name, value]): [string, string] => [name, textOf(value, true)]).sort(([a], [b]) => a.localeCompare(b)), [variables]);
  const shown = rows.filter(([name, text]) => word === "" || name.includes(word) || text.includes(word));
  if (rows.length === 0)
    return (
      <Empty title="This instance has no variables">
        <p>It was started without, and no step has written any.</p>
      </Empty>
    );
  return (
    <>
      <div className="vtools">
        <input aria-label="Search variables" placeholder="Search variables" className="in" value={word} onChange={(event) => setWord(event.target.value)} />
        <CopyButton text={() => textOf(variables, true)}>Copy all</CopyButton>
      </div>
      <dl className="vars">
        {shown.map(([name, text]) => (
          <div key={name}>
            <dt className="mono">
              {name}
              {changed.includes(name) && <span className="tag">written here</span>}
            </dt>
            {before && changed.includes(name) && Object.hasOwn(before, name) && (
              <dd className="was">
                <del>{cutOff(before[name])}</del>
              </dd>
            )}
            <dd>{text.length > SHOWN_MAX_CHARS ? <Large text={text} /> : <pre>{text}</pre>}</dd>
          </div>
        ))}
      </dl>
    </>
  );
}

function Large({ text }: { text: string }) {
  const [open, setOpen] = useState(false);
  if (open) return <pre>{text}</pre>;
  return (
    <button type="button" className="btn sm" onClick={() => setOpen(true)}>
      Show {Math.round(text.length / 1024)} kB
    </button>
  );
}
