// What the code of durable workflows says of schedules and queues: shown with these, and put again.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { type Declaration, engine } from "../api/client";
import { useCan } from "../session";
import { Dialog } from "./dialog";
import { Badge } from "./status";

const REFRESH_MS = 5_000;
const PAGES_MAX = 20;
const TEXTS: Record<string, string> = { AS_IN_CODE: "From code", CHANGED: "Changed here", DELETED: "Deleted here", NOT_IN_CODE: "No longer in code" };

/** In words, with the workflow that says it. */
export function declaredText({ state, workflow, version }: Declaration): string {
  return `${TEXTS[state] ?? state}: ${workflow}, version ${version}`;
}

/** By id, what code has of a kind. */
export function useDeclared(kind: "schedule" | "queue"): Map<string, Declaration> {
  const found = useQuery({ queryKey: ["declarations"], queryFn: ({ signal }) => all(signal), refetchInterval: REFRESH_MS });
  return new Map((found.data ?? []).filter((one) => one.kind === kind).map((one) => [one.id, one]));
}

async function all(signal: AbortSignal): Promise<Declaration[]> {
  const found: Declaration[] = [];
  let cursor: string | undefined = "";
  for (let page = 0; cursor !== undefined && page < PAGES_MAX; page++) {
    const { items, next }: { items: Declaration[]; next?: string } = await engine.declarations(cursor, signal);
    found.push(...items);
    cursor = next;
  }
  return found;
}

/** The mark of a row, and the way back to what the code says. */
export function Declared({ of, done }: { of: Declaration | undefined; done: () => Promise<unknown> }) {
  const operates = useCan("operate");
  const queries = useQueryClient();
  const [asked, setAsked] = useState(false);
  if (of === undefined) return null;
  const act = async () => {
    await engine.applyDeclaration(of.kind, of.id);
    await queries.invalidateQueries({ queryKey: ["declarations"] });
    await done();
  };
  return (
    <>
      <span title={declaredText(of)}>
        <Badge look={of.state === "AS_IN_CODE" ? "run" : "wait"}>{TEXTS[of.state] ?? of.state}</Badge>
      </span>
      {operates && (of.state === "CHANGED" || of.state === "DELETED") && (
        <button type="button" className="btn sm" aria-label={`Put ${of.id} as in code`} onClick={() => setAsked(true)}>
          As in code…
        </button>
      )}
      {asked && (
        <Dialog title={`Put ${of.id} as in code?`} verb="As in code" danger close={() => setAsked(false)} act={act}>
          <p>{`The ${of.kind} gets what ${of.workflow}, version ${of.version}, says. What was changed here is lost.`}</p>
        </Dialog>
      )}
    </>
  );
}

/** Those that somebody has deleted: they stand in no list. */
export function Deleted({ found, done }: { found: Map<string, Declaration>; done: () => Promise<unknown> }) {
  const deleted = [...found.values()].filter((one) => one.state === "DELETED");
  return deleted.map((one) => (
    <p key={one.id} className="note">
      <code>{one.id}</code> <Declared of={one} done={done} />
    </p>
  ));
}
