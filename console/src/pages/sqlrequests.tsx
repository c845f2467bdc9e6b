// Requests of SQL functions: what a program's own transaction asked for, and an engine refused or has not carried out yet.
import { useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { engine, type SqlRequest } from "../api/client";
import { Dialog } from "../parts/dialog";
import { Empty } from "../parts/states";
import { type Column, Listing } from "../parts/table";
import { Ago } from "../parts/time";
import { useCan } from "../session";

const REFRESH_MS = 5_000;

export function SqlRequestsPage() {
  const operates = useCan("operate");
  const [state, setState] = useState("FAILED");
  const [asked, setAsked] = useState<{ request: SqlRequest; drop: boolean }>();
  const pages = useInfiniteQuery({
    queryKey: ["sql-requests", state],
    queryFn: ({ pageParam, signal }) => engine.sqlRequests(state, pageParam, signal),
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
    refetchInterval: REFRESH_MS,
  });
  const columns: (Column<SqlRequest> | false)[] = [
    { head: "Request", cell: (row) => <code>{row.id}</code> },
    { head: "Operation", cell: (row) => row.operation },
    {
      head: "Instance",
      cell: (row) =>
        row.instanceId === undefined ? null : row.operation === "start" ? (
          <code>{row.instanceId}</code>
        ) : (
          <Link href={`/instances/${row.instanceId}`}>
            <code>{row.instanceId}</code>
          </Link>
        ),
    },
    { head: "Definition", cell: (row) => row.definitionId ?? "" },
    { head: "Role", cell: (row) => row.role },
    { head: "Reason", look: "el", cell: (row) => row.reason ?? "" },
    { head: "Asked", look: "r mute", cell: (row) => <Ago at={row.askedAt} /> },
    operates &&
      state === "FAILED" && {
        head: <span className="sr">Actions</span>,
        look: "r",
        cell: (row) => (
          <>
            <button type="button" className="btn sm" aria-label={`Retry request ${row.id}`} onClick={() => setAsked({ request: row, drop: false })}>
              Retry…
            </button>{" "}
            <button type="button" className="btn sm bad" aria-label={`Drop request ${row.id}`} onClick={() => setAsked({ request: row, drop: true })}>
              Drop…
            </button>
          </>
        ),
      },
  ];
  return (
    <>
      <div className="head">
        <h1>SQL requests</h1>
        <div className="act">
          <label>
            Show{" "}
            <select className="in" value={state} onChange={(event) => setState(event.target.value)}>
              <option value="FAILED">failed</option>
              <option value="WAITING">waiting</option>
            </select>
          </label>
        </div>
      </div>
      <section className="card" aria-label="SQL requests">
        <Listing
          pages={pages}
          columns={columns}
          keyOf={(row) => row.id}
          more="More"
          empty={
            <Empty title={state === "FAILED" ? "No failed requests" : "No waiting requests"}>
              <p>
                A program asks for a start, a message or a cancel in its own transaction, by the SQL functions of Penstock. A request that the engine
                refuses stands here.
              </p>
            </Empty>
          }
        />
      </section>
      {asked && (
        <Dialog
          title={`${asked.drop ? "Drop" : "Retry"} request ${asked.request.id}?`}
          verb={asked.drop ? "Drop the request" : "Retry the request"}
          danger={asked.drop}
          close={() => setAsked(undefined)}
          act={async () => {
            await (asked.drop ? engine.dropSqlRequest(asked.request.id) : engine.retrySqlRequest(asked.request.id));
            await pages.refetch();
          }}
        >
          <p>{asked.drop ? "Nothing will come of it." : "An engine carries it out with the next ones."}</p>
        </Dialog>
      )}
    </>
  );
}
