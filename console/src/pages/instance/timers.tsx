// Timers of one instance.
import type { Definition, InstanceState } from "../../api/client";
import { Empty } from "../../parts/states";
import { Table } from "../../parts/table";
import { bothZones, duration, useNow } from "../../parts/time";

const TIMER_WORDS: Record<string, string> = { boundary: "boundary event", retry: "next attempt", wait: "end of the wait", wake: "the run goes on" };

export function Timers({ timers, definition, open }: { timers: InstanceState["timers"]; definition: Definition | undefined; open: boolean }) {
  const now = useNow();
  const names = new Map(definition?.steps.map((step) => [step.id, step.name]));
  const name = (step: string) => names.get(step) || step;
  if (timers.length === 0)
    return (
      <Empty title="No timer is armed">
        <p>{open ? "Nothing happens here by itself: boundary events, retries and waits with a time would be listed." : "It has ended, and its timers with it."}</p>
      </Empty>
    );
  return (
    <Table
      plain
      rows={timers}
      keyOf={(_, at) => at} // a step may have several timers for the same moment
      columns={[
        { head: "Step", cell: (timer) => name(timer.stepId) },
        { head: "What", cell: (timer) => `${TIMER_WORDS[timer.kind] ?? timer.kind}${timer.target === undefined ? "" : `, goes to ${name(timer.target)}`}` },
        { head: "Fires in", look: "r", title: (timer) => bothZones(timer.fireAt), cell: (timer) => (Date.parse(timer.fireAt) > now ? duration(Date.parse(timer.fireAt) - now) : "due") },
      ]}
    />
  );
}
