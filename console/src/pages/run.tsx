// A run of a workflow written as code: its branches as a tree, with what each waits for, and its journal.
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { type Branch, engine, type JournalRecord } from "../api/client";
import { Empty, Problem, Skeleton } from "../parts/states";
import { Badge, type Look } from "../parts/status";
import { type Column, Listing } from "../parts/table";
import { At, bothZones, duration, useNow } from "../parts/time";

const REFRESH_MS = 1_000;
const LOOKS: Record<string, Look> = { done: "ok", failed: "fail", stopped: "skip", running: "run", waiting: "wait", open: "run" };

export function RunTreeView({ id, open }: { id: string; open: boolean }) {
  const tree = useQuery({ queryKey: ["tree", id, open], queryFn: ({ signal }) => engine.tree(id, signal), refetchInterval: open ? REFRESH_MS : false });
  if (tree.error) return <Problem error={tree.error} retry={() => tree.refetch()} />;
  if (!tree.data) return <Skeleton rows={4} />;
  const { branches, waitsFor, mail, view } = tree.data;
  return (
    <div className="run">
      {waitsFor !== undefined && open && (
        <p className="why wait" role="status">
          <b>{waitsFor}</b>
        </p>
      )}
      {branches.length === 0 ? <Empty title="Nothing has run yet" /> : <Branches branches={branches} />}
      {(mail ?? 0) > 0 && <p className="mute note">{`${mail} messages came.`}</p>}
      {view !== undefined && (
        <section className="attempts" aria-label="What the run says of itself">
          <h2>What it says of itself</h2>
          <pre className="json">{JSON.stringify(view, null, 2)}</pre>
        </section>
      )}
    </div>
  );
}

function Branches({ branches }: { branches: Branch[] }) {
  return (
    <ul className="branches">
      {branches.map((branch) => (
        <li key={branch.path}>
          <div className="branch" title={branch.where}>
            <Badge look={LOOKS[branch.status] ?? "skip"}>{branch.status}</Badge>
            <b>{branch.name ?? branch.kind ?? branch.path}</b>
            {branch.kind !== undefined && branch.name !== undefined && <span className="mute">{branch.kind}</span>}
            {(branch.attempt ?? 1) > 1 && <span className="tag">attempt {branch.attempt}</span>}
            <Times branch={branch} />
            {branch.where !== undefined && <code className="mute">{branch.where}</code>}
          </div>
          {branch.children !== undefined && branch.children.length > 0 && <Branches branches={branch.children} />}
        </li>
      ))}
    </ul>
  );
}

function Times({ branch }: { branch: Branch }) {
  const now = useNow();
  const left = branch.dueAt === undefined ? undefined : Date.parse(branch.dueAt) - now;
  return (
    <span className="mute">
      {left !== undefined && <span title={bothZones(branch.dueAt!)}>{left > 0 ? `due in ${duration(left)} ` : "due "}</span>}
      {branch.endedAt !== undefined && branch.startedAt !== undefined ? `took ${duration(Date.parse(branch.endedAt) - Date.parse(branch.startedAt))}` : branch.startedAt !== undefined && left === undefined ? `for ${duration(now - Date.parse(branch.startedAt))}` : ""}
    </span>
  );
}

const RECORDS: Column<JournalRecord>[] = [
  { head: "When", look: "mute", cell: (record) => <At at={record.at} /> },
  {
    head: "What",
    cell: (record) => (
      <>
        {record.kind}
        {(record.attempt ?? 1) > 1 && <span className="mute"> ×{record.attempt}</span>}
      </>
    ),
  },
  { head: "Name", look: "el", title: (record) => (record.payload === undefined ? undefined : JSON.stringify(record.payload)), cell: (record) => record.name ?? "–" },
  { head: "Path", cell: (record) => <code>{record.path || "/"}</code> },
  { head: "Took", look: "r mute", cell: (record) => (record.tookMs === undefined ? "–" : duration(record.tookMs)) },
];

export function Journal({ id }: { id: string }) {
  const pages = useInfiniteQuery({
    queryKey: ["journal", id],
    queryFn: ({ pageParam, signal }) => engine.journal(id, pageParam, signal),
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
  });
  return (
    <>
      <p className="mute note">All that came into the code from outside, in order: what is read again when the run goes on elsewhere.</p>
      <div className="journal">
        <Listing pages={pages} columns={RECORDS} keyOf={(record) => record.pos} empty={<Empty title="Nothing was recorded yet" />} />
      </div>
    </>
  );
}
