import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { useAddress } from "../address";
import { engine } from "../api/client";
import { More, WordFilter } from "../parts/list";
import { Empty, Problem, Skeleton } from "../parts/states";
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
  const rows = pages.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <>
      <div className="head">
        <h1>Definitions</h1>
      </div>
      <WordFilter label="Word in id or name" value={keyword} apply={(word) => change({ keyword: word })} />
      <section className="card" aria-label="Definitions" aria-busy={pages.isPlaceholderData}>
        {pages.error ? (
          <Problem error={pages.error} retry={() => pages.refetch()} />
        ) : pages.isPending ? (
          <Skeleton />
        ) : rows.length === 0 ? (
          <Empty title={keyword ? "No definition has that word" : "No definition yet"}>
            <p>
              Upload one by <code>POST /v1/definitions</code>; the repository's <code>examples/</code> has some.
            </p>
          </Empty>
        ) : (
          <table className="wide">
            <thead>
              <tr>
                <th>Definition</th>
                <th>Name</th>
                <th className="r">Latest version</th>
                <th className="r">Uploaded</th>
                <th>
                  <span className="sr">Start</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={row.id}>
                  <td>
                    <Link href={`/definitions/${encodeURIComponent(row.id)}`}>
                      <code>{row.id}</code>
                    </Link>
                  </td>
                  <td className="el" title={row.description}>
                    {row.name}
                  </td>
                  <td className="r">v{row.version}</td>
                  <td className="r mute">
                    <Ago at={row.uploadedAt} />
                  </td>
                  <td className="r">
                    {operates && (
                      <button type="button" className="btn sm" onClick={() => setStarting(row.id)} aria-label={`Start ${row.id}`}>
                        Start
                      </button>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
        <More pages={pages} />
      </section>
      {starting !== undefined && <StartDialog definitionId={starting} close={() => setStarting(undefined)} />}
    </>
  );
}
