// What lists of a journal's records show of each.
import type { JournalRecord } from "../api/client";
import type { Column } from "../parts/table";
import { At, duration } from "../parts/time";

export const RECORDS: Column<JournalRecord>[] = [
  { head: "When", look: "mute", cell: (record) => <At at={record.at} /> },
  {
    head: "What",
    cell: (record) => (
      <>
        {record.kind}
        {record.replayed && (
          <>
            {" "}
            <span className="tag">replayed</span>
          </>
        )}
        {(record.attempt ?? 1) > 1 && <span className="mute"> ×{record.attempt}</span>}
      </>
    ),
  },
  { head: "Name", look: "el", title: (record) => (record.payload === undefined ? undefined : JSON.stringify(record.payload)), cell: (record) => record.name ?? "–" },
  { head: "Path", cell: (record) => <code>{record.path || "/"}</code> },
  { head: "Took", look: "r mute", cell: (record) => (record.tookMs === undefined ? "–" : duration(record.tookMs)) },
  { head: "From", look: "el mute", cell: (record) => record.sender ?? "–" },
];
