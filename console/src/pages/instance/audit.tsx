// Who did what.
import { useInfiniteQuery } from "@tanstack/react-query";
import { type AuditRecord, engine } from "../../api/client";
import { Empty } from "../../parts/states";
import { type Column, Listing } from "../../parts/table";
import { At } from "../../parts/time";

const COLUMNS: Column<AuditRecord>[] = [
  { head: "When", look: "mute", cell: (record) => <At at={record.at} /> },
  {
    head: "What",
    title: (record) => record.detail,
    cell: (record) => (
      <>
        {record.kind.replaceAll("_", " ").toLowerCase()}
        {record.detail !== undefined && <div className="detail mute">{record.detail}</div>}
      </>
    ),
  },
  { head: "Step", cell: (record) => record.stepId ?? "–" },
  { head: "Who", look: "mute", cell: (record) => record.actor ?? "–" },
];

export function Audit({ id }: { id: string }) {
  const pages = useInfiniteQuery({
    queryKey: ["audit", id],
    queryFn: ({ pageParam, signal }) => engine.audit(id, pageParam, signal),
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
  });
  // Records only grow at the end.
  return <Listing pages={pages} columns={COLUMNS} keyOf={(_, at) => at} empty={<Empty title="No record: the audit trail is switched off" />} />;
}
