import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { useAddress } from "../address";
import { engine } from "../api/client";
import { WordFilter } from "../parts/list";
import { Empty } from "../parts/states";
import { Listing } from "../parts/table";
import { Ago } from "../parts/time";
import { useCan } from "../session";
import { StartDialog } from "./start";

export function DefinitionsPage() {
  const [params, change] = useAddress();
  const keyword = params.get("keyword") ?? "";
  const operates = useCan("operate");
  const [starting, setStarting] = useState<string>();
  const pages = useInfiniteQuery({
    queryKey: ["definitions", keyword],
    queryFn: ({ pageParam, signal }) => engine.definitions(keyword, pageParam, signal),
    placeholderData: keepPreviousData,
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
  });
  return (
    <>
      <div className="head">
        <h1>Definitions</h1>
      </div>
      <WordFilter label="Word in id or name" value={keyword} apply={(word) => change({ keyword: word })} />
      <section className="card" aria-label="Definitions" aria-busy={pages.isPlaceholderData}>
        <Listing
          pages={pages}
          keyOf={(row) => row.id}
          empty={
            <Empty title={keyword ? "No definition has that word" : "No definition yet"}>
              <p>
                Upload one by <code>POST /v1/definitions</code>; the repository's <code>examples/</code> has some.
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
            { head: "Name", look: "el", title: (row) => row.description, cell: (row) => row.name },
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
    </>
  );
}
