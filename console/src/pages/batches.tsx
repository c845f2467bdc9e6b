// Batches: many starts as one, which go on whatever happens to this page.
import { useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import { type Batch, engine, newKey, type StartItem } from "../api/client";
import { readExact } from "../modeller/json";
import { CopyId } from "../parts/copy";
import { Dialog, NoteField } from "../parts/dialog";
import { Empty } from "../parts/states";
import { type Column, Listing } from "../parts/table";
import { Ago } from "../parts/time";
import { useCan } from "../session";

const REFRESH_MS = 5_000;
const EXAMPLE = '{"definitionId": "order", "variables": {"amount": 1}}\n{"definitionId": "order", "variables": {"amount": 2}}';

export function BatchesPage() {
  const operates = useCan("operate");
  const [starting, setStarting] = useState(false);
  const [cancelling, setCancelling] = useState<Batch>();
  const pages = useInfiniteQuery({
    queryKey: ["batches"],
    queryFn: ({ pageParam, signal }) => engine.batches(pageParam, signal),
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
    refetchInterval: REFRESH_MS,
  });
  const number = (value: number) => value.toLocaleString("en");
  const columns: (Column<Batch> | false)[] = [
    { head: "Batch", cell: (row) => (<><code>{row.id}</code> <CopyId id={row.id} /></>) },
    { head: "State", cell: (row) => row.state.toLowerCase() },
    { head: "Starts", look: "r", label: "starts", cell: (row) => number(row.total) },
    { head: "To begin", look: "r", label: "to begin", cell: (row) => number(row.pending) },
    { head: "Running", look: "r", label: "running", cell: (row) => number(row.active) },
    { head: "Completed", look: "r", label: "completed", cell: (row) => number(row.completed) },
    { head: "Failed", look: "r", label: "failed", cell: (row) => number(row.failed) },
    { head: "Refused", look: "r", label: "refused", cell: (row) => number(row.refused) },
    { head: "Note", look: "el mute", cell: (row) => row.reason ?? row.note ?? "" },
    { head: "Begun", look: "r mute", cell: (row) => <Ago at={row.createdAt} /> },
    operates && {
      head: <span className="sr">Actions</span>,
      look: "r",
      cell: (row) =>
        row.endedAt === undefined && (
          <button type="button" className="btn sm bad" aria-label={`Cancel batch ${row.id}`} onClick={() => setCancelling(row)}>
            Cancel…
          </button>
        ),
    },
  ];
  return (
    <>
      <div className="head">
        <h1>Batches</h1>
        {operates && (
          <div className="act">
            <button type="button" className="btn pri" onClick={() => setStarting(true)}>
              Start a batch
            </button>
          </div>
        )}
      </div>
      <section className="card" aria-label="Batches">
        <Listing
          pages={pages}
          columns={columns}
          keyOf={(row) => row.id}
          more="Older"
          empty={
            <Empty title="No batches">
              <p>
                A batch starts many instances as one: here, with <code>penstock batch start</code>, or by <code>POST /v1/batches</code>.
              </p>
            </Empty>
          }
        />
      </section>
      {starting && <StartBatch close={() => setStarting(false)} done={() => pages.refetch()} />}
      {cancelling && (
        <Dialog
          title={`Cancel batch ${cancelling.id}?`}
          verb="Cancel the batch"
          danger
          close={() => setCancelling(undefined)}
          act={async (form) => {
            await engine.cancelBatch(cancelling.id, String(form.get("note")).trim());
            await pages.refetch();
          }}
        >
          <p>
            {number(cancelling.pending)} starts are skipped, and {number(cancelling.active)} open instances are cancelled.
          </p>
          <NoteField label="Why, shown with the batch" />
        </Dialog>
      )}
    </>
  );
}

/** One key per form: pressing the button twice starts one batch. */
function StartBatch({ close, done }: { close: () => void; done: () => Promise<unknown> }) {
  const [key] = useState(newKey);
  return (
    <Dialog
      title="Start a batch"
      verb="Start"
      close={close}
      act={async (form) => {
        await engine.startBatch(itemsOf(String(form.get("items"))), String(form.get("complete")).trim(), String(form.get("note")).trim(), key);
        await done();
      }}
    >
      <div className="field">
        <label htmlFor="items">Starts, a JSON object on each line</label>
        <textarea id="items" name="items" className="in mono" rows={8} placeholder={EXAMPLE} spellCheck={false} required />
      </div>
      <div className="field">
        <label htmlFor="complete">Definition that is started when all have ended, if any</label>
        <input id="complete" name="complete" className="in mono" />
      </div>
      <NoteField label="Note, shown with the batch" />
    </Dialog>
  );
}

/** Throws SyntaxError, which names the line. */
export function itemsOf(text: string): StartItem[] {
  return text.split("\n").flatMap((line, at) => {
    if (!line.trim()) return [];
    try {
      const item = readExact(line) as StartItem;
      if (typeof item === "object" && item !== null && typeof item.definitionId === "string") return [item];
    } catch (error) {
      throw new SyntaxError(`Line ${at + 1} is no JSON: ${(error as Error).message}`);
    }
    throw new SyntaxError(`Line ${at + 1} must be an object with a definitionId, such as {"definitionId": "order"}`);
  });
}
