import { keepPreviousData, useInfiniteQuery, useQueries } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { useAddress } from "../address";
import { type DefinitionActivity, engine } from "../api/client";
import { useElkSoon } from "../graph/elk";
import { FileButton, type TextFile } from "../parts/file";
import { WordFilter } from "../parts/list";
import { Empty } from "../parts/states";
import { Listing } from "../parts/table";
import { Ago, bothZones } from "../parts/time";
import { useCan } from "../session";
import { StartDialog, UploadFileDialog } from "./places";

const ACTIVITY_MS = 60_000;
/** Counted no further (engine/instances/definition_use.py). */
const COUNTED_MAX = 1_000;

function told(one: DefinitionActivity | undefined, text: (one: DefinitionActivity) => string): string {
  return one === undefined ? "–" : text(one);
}

function upTo(count: number): string {
  return count < COUNTED_MAX ? count.toLocaleString("en") : `${COUNTED_MAX.toLocaleString("en")} or more`;
}

/** Of many it is not known how many there are. */
function failedPart({ startedWithinHour, failedOfThese }: DefinitionActivity): string {
  if (startedWithinHour === 0) return "–";
  if (startedWithinHour >= COUNTED_MAX) return upTo(failedOfThese);
  return `${((100 * failedOfThese) / startedWithinHour).toFixed(failedOfThese === 0 ? 0 : 1)} %`;
}

/** An engine of the version before, asked during an upgrade, tells none. */
function countedAtOf(one: Partial<DefinitionActivity> | undefined): string | undefined {
  return one?.countedAt === undefined ? undefined : bothZones(one.countedAt);
}

export function DefinitionsPage() {
  const [params, change] = useAddress();
  const keyword = params.get("keyword") ?? "";
  const operates = useCan("operate");
  const models = useCan("model");
  const [starting, setStarting] = useState<string>();
  const [file, setFile] = useState<TextFile>();
  const pages = useInfiniteQuery({
    queryKey: ["definitions", keyword],
    queryFn: ({ pageParam, signal }) => engine.definitions(keyword, pageParam, signal),
    placeholderData: keepPreviousData,
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
  });
  useElkSoon(pages.data !== undefined);
  // Beside the list, which is there at once: a page of it for each page of that.
  const going = useQueries({
    queries: ((pages.data?.pageParams ?? []) as string[]).map((cursor) => ({
      queryKey: ["definitions", "activity", keyword, cursor],
      queryFn: ({ signal }: { signal: AbortSignal }) => engine.definitionActivity(keyword, cursor, signal),
      staleTime: ACTIVITY_MS,
      refetchInterval: ACTIVITY_MS,
      retry: false,
    })),
    combine: (results) => new Map(results.flatMap((result) => result.data?.items ?? []).map((one) => [one.id, one])),
  });
  const counted = [...going.values()][0]?.countedAt;
  return (
    <>
      <div className="head">
        <h1>Definitions</h1>
        {counted !== undefined && (
          <p className="mute">
            Open instances were counted <Ago at={counted} />
          </p>
        )}
        {models && (
          <div className="act">
            <FileButton take={setFile}>Upload a file…</FileButton>
          </div>
        )}
      </div>
      <WordFilter label="Word in id or name" value={keyword} apply={(word) => change({ keyword: word })} />
      <section className="card" aria-label="Definitions" aria-busy={pages.isPlaceholderData}>
        <Listing
          pages={pages}
          keyOf={(row) => row.id}
          empty={
            <Empty title={keyword ? "No definition has that word" : "No definition yet"}>
              <p>
                Upload a file, or draw one in the <Link href="/modeller">modeller</Link>, or use <code>POST /v1/definitions</code>; the repository's <code>examples/</code> has some.
              </p>
            </Empty>
          }
          columns={[
            {
              head: "Definition",
              cell: (row) => (
                <Link href={`/definitions/${encodeURIComponent(row.id)}`}>
                  <code>{row.id}</code>
                </Link>
              ),
            },
            { head: "Name", look: "el", title: (row) => row.description, cell: (row) => <Link href={`/definitions/${encodeURIComponent(row.id)}`} tabIndex={-1}>{row.name}</Link> },
            { head: "Open", look: "r", label: "open", title: (row) => countedAtOf(going.get(row.id)), cell: (row) => told(going.get(row.id), (one) => `${one.sampled ? "about " : ""}${one.open.toLocaleString("en")}`) },
            { head: "Started within an hour", look: "r", label: "started within an hour", cell: (row) => told(going.get(row.id), (one) => upTo(one.startedWithinHour)) },
            { head: "Failed of these", look: "r", label: "failed of these", cell: (row) => told(going.get(row.id), failedPart) },
            { head: "Latest version", look: "r", cell: (row) => `v${row.version}` },
            { head: "Uploaded", look: "r mute", cell: (row) => <Ago at={row.uploadedAt} /> },
            operates && {
              head: <span className="sr">Start</span>,
              look: "r",
              cell: (row) => (
                <button type="button" className="btn sm" onClick={() => setStarting(row.id)} aria-label={`Start ${row.id}`}>
                  Start
                </button>
              ),
            },
          ]}
        />
      </section>
      {starting !== undefined && <StartDialog definitionId={starting} close={() => setStarting(undefined)} />}
      {file !== undefined && <UploadFileDialog file={file} close={() => setFile(undefined)} />}
    </>
  );
}
