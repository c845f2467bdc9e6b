// One instance.
import { keepPreviousData, useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useMemo } from "react";
import { useAddress } from "../../address";
import { historyOf, markOf, stateOf, versionOf } from "../../api/asks";
import { type Definition, isCode, isFinal, type Execution, type HistoryPage } from "../../api/client";
import { statesOf, takenOf } from "../../graph/edges";
import { Picture } from "../../graph/picture";
import { textOf } from "../../modeller/json";
import { More } from "../../parts/list";
import { Problem, Skeleton } from "../../parts/states";
import { useWatch } from "../../watch/watch";
import { Journal, RunTreeView } from "../run";
import { Audit } from "./audit";
import { Heading } from "./heading";
import { TimelineTab } from "./timeline";
import { Timers } from "./timers";
import { AsOf, Variables, VariablesAfter, WithVariables, WrittenHere } from "./variables";
import { WhyLine } from "./why";

/** Changes are told; this is for what time alone changes, such as a queue that nobody polls. */
const REFRESH_MS = 15_000;
const TABS = ["timeline", "journal", "calls", "variables", "audit", "timers", "json"] as const;
type Tab = (typeof TABS)[number];
const TAB_WORDS: Record<Tab, string> = { timeline: "Timeline", journal: "Journal", calls: "Calls", variables: "Variables", audit: "Audit", timers: "Timers", json: "JSON" };

export function InstancePage({ id }: { id: string }) {
  const [params, change] = useAddress();
  const state = useQuery({
    ...stateOf(id),
    refetchInterval: (query) => (query.state.data && isFinal(query.state.data.instance) ? false : REFRESH_MS),
  });
  const queries = useQueryClient();
  const goesOn = state.data !== undefined && state.data.instance.completedAt === undefined;
  useWatch(state.data && !isFinal(state.data.instance) ? [id] : [], undefined, () => void queries.invalidateQueries({ queryKey: ["state", id] }));
  const mark = state.data && markOf(state.data);
  const history = useInfiniteQuery({
    ...historyOf(id, mark),
    enabled: mark !== undefined,
    placeholderData: keepPreviousData,
  });
  const shown = state.data?.instance;
  const definition = useQuery({ ...versionOf(shown?.definitionId, shown?.definitionVersion), enabled: shown !== undefined });
  const entries = useMemo(() => entriesOf(history.data?.pages ?? []), [history.data]);
  if (state.error && !state.data) return <Problem error={state.error} retry={() => state.refetch()} />;
  if (!state.data) return <Skeleton />;
  const selected = params.get("step") ?? undefined;
  const select = (step: string | undefined) => change({ step }, true);
  // A durable workflow has one step, which an executor runs: what there is to see is its branches and its journal.
  const asCode = definition.data !== undefined && isCode(definition.data);
  const hasCalls = definition.data?.steps.some((step) => step.type === "CALL_ACTIVITY") ?? false;
  const tabs = TABS.filter((one) => (one !== "journal" || asCode) && (one !== "calls" || hasCalls));
  const tab = tabs.find((one) => one === params.get("tab")) ?? "timeline";
  return (
    <div className="instance">
      <Heading state={state.data} definition={definition.data} />
      <WhyLine why={state.data.why} instance={state.data.instance} signals={state.data.signals} />
      <div className="halves">
        <section aria-label={asCode ? "Branches" : "Picture"} className="half">
          {asCode ? <RunTreeView id={id} open={goesOn} sends /> : definition.error ? <Problem error={definition.error} retry={() => definition.refetch()} /> : definition.data ? <Drawn definition={definition.data} history={entries} selected={selected} select={select} /> : <Skeleton rows={3} />}
        </section>
        <section className="half side" aria-label="Details">
          <div className="tabs" role="tablist">
            {tabs.map((one) => (
              <button key={one} type="button" role="tab" aria-selected={tab === one} aria-controls="tab" onClick={() => change({ tab: one === "timeline" ? undefined : one }, true)}>
                {TAB_WORDS[one]}
                {one === "timeline" && <span className="c">{`${entries.length}${history.hasNextPage ? "+" : ""}`}</span>}
                {one === "timers" && <span className="c">{state.data.timers.length}</span>}
              </button>
            ))}
          </div>
          <div id="tab" role="tabpanel" aria-label={TAB_WORDS[tab]} className="panel" tabIndex={0}>
            {tab === "timeline" && (
              <>
                {history.error ? <Problem error={history.error} retry={() => history.refetch()} /> : history.isPending ? <Skeleton /> : <TimelineTab history={entries} definition={definition.data} selected={selected} select={select} />}
                {selected !== undefined && <WrittenHere id={id} entries={entries} stepId={selected} all={(after) => change({ tab: "variables", after })} />}
                <More pages={history} />
              </>
            )}
            {tab === "journal" && <Journal id={id} mark={mark} open={goesOn} />}
            {tab === "calls" && <RunTreeView id={id} open={goesOn} empty="It has called no instance yet" />}
            {tab === "variables" && (
              <>
                <AsOf entries={entries} definition={definition.data} chosen={params.get("after") ?? ""} choose={(after) => change({ after: after || undefined }, true)} />
                {params.get("after") ? (
                  <VariablesAfter id={id} entries={entries} after={params.get("after")!} />
                ) : (
                  <WithVariables id={id} mark={mark}>{(instance) => <Variables variables={instance.variables} />}</WithVariables>
                )}
              </>
            )}
            {tab === "audit" && <Audit id={id} />}
            {tab === "timers" && <Timers timers={state.data.timers} definition={definition.data} open={goesOn} />}
            {tab === "json" && <WithVariables id={id} mark={mark}>{(instance) => <pre className="json">{textOf(instance, true)}</pre>}</WithVariables>}
          </div>
        </section>
      </div>
    </div>
  );
}

/** In order of entry. Once all are there, they are counted by step. */
function entriesOf(pages: HistoryPage[]): Execution[] {
  const entries = pages.flatMap((page) => page.items).reverse();
  if (pages.length === 0 || pages.at(-1)?.next !== undefined) return entries;
  const times = new Map<string, number>();
  return entries.map((entry) => {
    const attemptNumber = (times.get(entry.stepId) ?? 0) + 1;
    times.set(entry.stepId, attemptNumber);
    return { ...entry, attemptNumber };
  });
}

function Drawn({ definition, history, selected, select }: { definition: Definition; history: Execution[]; selected: string | undefined; select: (id: string | undefined) => void }) {
  const states = useMemo(() => statesOf(definition, history), [definition, history]);
  const taken = useMemo(() => takenOf(definition, history), [definition, history]);
  return <Picture definition={definition} states={states} taken={taken} selected={selected} onSelect={select} />;
}
