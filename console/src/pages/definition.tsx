// One definition: its picture with what stands on each step, its versions, two of them beside each other.
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { type ReactNode, useMemo, useState } from "react";
import { Link } from "wouter";
import { useAddress } from "../address";
import { shownOf, versionOf } from "../api/asks";
import { type Definition, engine } from "../api/client";
import { changesOf } from "../graph/diff";
import { type Note, Picture } from "../graph/picture";
import { Dialog } from "../parts/dialog";
import { Icon } from "../parts/icons";
import { later } from "../parts/later";
import { Empty, Problem, Skeleton } from "../parts/states";
import { Read, Table } from "../parts/table";
import { Ago } from "../parts/time";
import { useCan } from "../session";
import { StartDialog } from "./start";

const TOKENS_REFRESH_MS = 60_000;
/** Failures of a step are counted so far. */
const FAILED_MAX = 10_000;
const TABS = { open: "Open now", versions: "Versions", differences: "Differences", json: "JSON" } as const;
type Tab = keyof typeof TABS;
const TwoPictures = later(() => import("./compared").then((it) => it.TwoPictures));
const ChangesPanel = later(() => import("./compared").then((it) => it.ChangesPanel));
type Tokens = Awaited<ReturnType<typeof engine.tokens>>;

export function DefinitionPage({ id }: { id: string }) {
  const [params, change] = useAddress();
  const [starting, setStarting] = useState(false);
  const operates = useCan("operate");
  const asked = Number(params.get("version")) || undefined;
  const shown = useQuery(shownOf(id, asked));
  const version = shown.data?.version ?? 0;
  const tokens = useQuery({
    queryKey: ["tokens", id, version],
    queryFn: ({ signal }) => engine.tokens(id, version, signal),
    refetchInterval: TOKENS_REFRESH_MS,
    enabled: version > 0,
  });
  const asTab = params.get("tab") ?? "open";
  const tab: Tab = asTab in TABS ? (asTab as Tab) : "open";
  const against = Number(params.get("against")) || version - 1;
  const other = useQuery({ ...versionOf(id, against), enabled: tab === "differences" && against > 0 });
  const compared = tab === "differences" ? other.data : undefined;
  const changes = useMemo(() => (compared && shown.data ? changesOf(compared, shown.data) : []), [compared, shown.data]);
  const texts = useMemo(() => ({ before: written(compared), after: written(shown.data) }), [compared, shown.data]);
  const notes = useMemo(() => notesOfTokens(tokens.data), [tokens.data]);
  if (shown.error) return <Problem error={shown.error} retry={() => shown.refetch()} />;
  if (!shown.data) return <Skeleton />;
  const definition = shown.data;
  const selected = params.get("step") ?? undefined;
  const select = (one: string | undefined) => change({ step: one }, true);
  const step = definition.steps.find((one) => one.id === selected);
  return (
    <div className="instance">
      <header className="ihead">
        <div className="head">
          <h1>{definition.name || id}</h1>
          <span className="tag">{id}</span>
          <span className="tag">v{definition.version}</span>
          <div className="act">
            <Link className="btn" href={`/modeller/${encodeURIComponent(id)}${asked === undefined ? "" : `?version=${asked}`}`}>
              Open in modeller
            </Link>
            <Link className="btn" href={`/instances?definitionId=${encodeURIComponent(id)}`}>
              View instances
            </Link>
            {operates && (
              <button type="button" className="btn pri" onClick={() => setStarting(true)}>
                <Icon name="play" />
                Start
              </button>
            )}
          </div>
        </div>
        {definition.description && <p className="mute">{definition.description}</p>}
      </header>
      <div className="halves">
        <section aria-label="Picture" className="half">
          {compared ? (
            <TwoPictures
              id={`${id} ${compared.version} ${version}`}
              before={compared}
              after={definition}
              changes={changes}
              names={{ before: `v${compared.version}`, after: `v${version}` }}
              selected={selected}
              onSelect={select}
            />
          ) : (
            <Picture definition={definition} notes={notes} selected={selected} onSelect={select} />
          )}
        </section>
        <section className="half side" aria-label="Details">
          <div className="tabs" role="tablist">
            {(Object.keys(TABS) as Tab[]).map((one) => (
              <button key={one} type="button" role="tab" aria-selected={tab === one} aria-controls="tab" onClick={() => change({ tab: one === "open" ? undefined : one }, true)}>
                {TABS[one]}
              </button>
            ))}
          </div>
          <div id="tab" role="tabpanel" aria-label={TABS[tab]} className="panel" tabIndex={0}>
            {tab === "open" && <Open tokens={tokens} definition={definition} selected={selected} select={select} />}
            {tab === "versions" && <Versions id={id} shown={version} counted={tokens.data?.at} choose={(one) => change({ version: String(one), step: undefined })} />}
            {tab === "differences" && (
              <Differences definition={definition} against={against} other={other} choose={(one) => change({ against: String(one) }, true)}>
                {compared && <ChangesPanel changes={changes} before={compared} after={definition} texts={texts} touches={`v${version}`} selected={selected} select={select} />}
              </Differences>
            )}
            {tab === "json" && <pre className="json">{JSON.stringify(step ?? definition, null, 2)}</pre>}
          </div>
        </section>
      </div>
      {starting && <StartDialog definitionId={id} close={() => setStarting(false)} />}
    </div>
  );
}

function notesOfTokens(tokens: Tokens | undefined): Map<string, Note> | undefined {
  return tokens && new Map(tokens.steps.filter((step) => step.open > 0).map((step) => [step.stepId, { count: step.open.toLocaleString(), word: `${step.open} open` }]));
}

interface OpenProps {
  definition: Definition;
  tokens: { data: Tokens | undefined; error: Error | null; refetch: () => unknown };
  selected: string | undefined;
  select: (id: string | undefined) => void;
}

function failedHref(definition: Definition, stepId: string): string {
  const version = definition.version === undefined ? {} : { definitionVersion: String(definition.version) };
  return `/instances?${new URLSearchParams({ status: "FAILED", definitionId: definition.id, stepId, ...version })}`;
}

function Open({ definition, tokens, selected, select }: OpenProps) {
  if (tokens.error) return <Problem error={tokens.error} retry={() => tokens.refetch()} />;
  if (!tokens.data) return <Skeleton rows={3} />;
  const { steps, instances, sampled, at } = tokens.data;
  const name = (step: string) => definition.steps.find((one) => one.id === step)?.name || step;
  if (steps.length === 0)
    return (
      <Empty title="No instance of this version is open">
        <p>
          Counted <Ago at={at} />, once a minute at most.
        </p>
      </Empty>
    );
  return (
    <>
      <p className="mute note">
        {sampled ? "About " : ""}
        {instances.toLocaleString()} {instances === 1 ? "instance is" : "instances are"} open, counted <Ago at={at} />
      </p>
      <Table
        plain
        rows={steps}
        keyOf={(step) => step.stepId}
        columns={[
          {
            head: "Step",
            cell: (step) => (
              <button type="button" className="link" aria-pressed={selected === step.stepId} onClick={() => select(selected === step.stepId ? undefined : step.stepId)}>
                {name(step.stepId)}
              </button>
            ),
          },
          { head: "Open", look: "r", cell: (step) => step.open.toLocaleString("en") },
          { head: "Waiting to retry", look: "r", cell: (step) => step.backingOff ?? 0 },
          { head: "Failed", look: "r", cell: (step) => (step.failed ? <Link href={failedHref(definition, step.stepId)}>{`${step.failed >= FAILED_MAX ? "> " : ""}${step.failed.toLocaleString("en")}`}</Link> : 0) },
          { head: "Oldest", look: "r mute", cell: (step) => (step.oldest === undefined ? "–" : <Ago at={step.oldest} />) },
        ]}
      />
    </>
  );
}

/** `counted`: when what is open was, with which the versions come again. */
function Versions({ id, shown, counted, choose }: { id: string; shown: number; counted: string | undefined; choose: (version: number) => void }) {
  const found = useQuery({ queryKey: ["versions", id, counted], placeholderData: keepPreviousData, queryFn: ({ signal }) => engine.versions(id, "", signal) });
  const models = useCan("model");
  const [asked, setAsked] = useState<number>();
  const activate = async () => {
    await engine.activateVersion(id, asked!);
    await found.refetch();
  };
  return (
    <>
    {asked !== undefined && (
      <Dialog title={`Activate version ${asked} of ${id}?`} verb="Activate" close={() => setAsked(undefined)} act={activate}>
        <p>New starts use it from now on: those of schedules and chains, too. Instances that are open go on in their version.</p>
      </Dialog>
    )}
    <Read of={found}>
      {({ items }) => (
        <Table
          plain
          rows={items}
          keyOf={(one) => one.version}
          isCurrent={(one) => one.version === shown}
          columns={[
            {
              head: "Version",
              cell: (one) => (
                <>
                  <button type="button" className="link" onClick={() => choose(one.version)}>
                    v{one.version}
                  </button>
                  {one.version === shown && <span className="mute"> shown</span>}
                  {one.active && <span className="mute"> active</span>}
                </>
              ),
            },
            { head: "Name", look: "el", cell: (one) => one.name },
            { head: "Open", look: "r", cell: (one) => one.open?.toLocaleString("en") ?? "–" },
            { head: "Uploaded", look: "r mute", cell: (one) => <Ago at={one.uploadedAt} /> },
            models && {
              head: <span className="sr">Actions</span>,
              look: "r",
              cell: (one) =>
                one.active ? null : (
                  <button type="button" className="btn sm" aria-label={`Activate version ${one.version}`} onClick={() => setAsked(one.version)}>
                    Activate…
                  </button>
                ),
            },
          ]}
        />
      )}
    </Read>
    </>
  );
}

interface DifferencesProps {
  definition: Definition;
  against: number;
  other: { data: Definition | undefined; error: Error | null; refetch: () => unknown };
  choose: (version: number) => void;
  children: ReactNode;
}

/** Without what every version has of its own. */
function written(definition: Definition | undefined): string {
  return JSON.stringify({ ...definition, version: undefined }, null, 2);
}

function Differences({ definition, against, other, choose, children }: DifferencesProps) {
  const version = definition.version!;
  if (against < 1)
    return (
      <Empty title="There is no version before this one">
        <p>An upload that differs makes the next version; what differs is then shown here, and in two pictures.</p>
      </Empty>
    );
  return (
    <>
      <label className="version note">
        v{version} against version{" "}
        <input
          key={against}
          className="in"
          inputMode="numeric"
          defaultValue={against}
          onBlur={(event) => {
            const asked = Number(event.target.value);
            if (Number.isInteger(asked) && asked > 0 && asked !== against) choose(asked);
          }}
          onKeyDown={(event) => event.key === "Enter" && event.currentTarget.blur()}
        />
      </label>
      {other.error ? <Problem error={other.error} retry={() => other.refetch()} /> : !other.data ? <Skeleton rows={3} /> : children}
    </>
  );
}
