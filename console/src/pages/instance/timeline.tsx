// One row per execution, and the attempts of the step that is selected.
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { engine, type Definition, type Execution, type RecordedAttempt } from "../../api/client";
import { timelineOf } from "../../graph/timeline";
import { CopyButton, CopyId } from "../../parts/copy";
import { Empty } from "../../parts/states";
import { ExecutionBadge } from "../../parts/status";
import { At, duration, useNow } from "../../parts/time";

export function TimelineTab({ history, definition, selected, select }: { history: Execution[]; definition: Definition | undefined; selected: string | undefined; select: (id: string | undefined) => void }) {
  const now = useNow();
  const open = history.some((entry) => entry.endedAt === undefined);
  const until = open ? now : 0;
  const timeline = useMemo(() => timelineOf(history, until), [history, until]);
  const names = new Map(definition?.steps.map((step) => [step.id, step.name]));
  if (history.length === 0)
    return (
      <Empty title="Nothing has run yet">
        <p>Every execution of a step and every attempt will have a row here.</p>
      </Empty>
    );
  const chosen = history.filter((entry) => entry.stepId === selected);
  return (
    <>
      <div className="gantt-head" aria-hidden="true">
        <span>Step</span>
        <span>{timeline.folded && "long gaps folded"}</span>
      </div>
      <ol className="gantt">
        {timeline.rows.map(({ execution, bars, ms }) => (
          <li key={execution.id} className={execution.stepId === selected ? "on" : ""}>
            <button type="button" aria-pressed={execution.stepId === selected} onClick={() => select(execution.stepId === selected ? undefined : execution.stepId)}>
              <span className="name">
                {names.get(execution.stepId) || execution.stepId}
                {execution.attemptNumber > 1 && <span className="mute"> ×{execution.attemptNumber}</span>}
              </span>
              <span className="track">
                {bars.map((bar, at) => (
                  // biome-ignore lint: bars of a row keep their order
                  <i key={at} className={bar.look} title={bar.text} style={{ left: `${bar.from * 100}%`, width: `${(bar.to - bar.from) * 100}%` }} />
                ))}
              </span>
              <span className="took">{(execution.attempts?.length ?? 0) > 1 ? `${execution.attempts!.length} attempts` : duration(ms)}</span>
              <span className="sr">{execution.status.toLowerCase()}</span>
            </button>
          </li>
        ))}
      </ol>
      {chosen.map((entry) => (
        <Attempts key={entry.id} entry={entry} name={names.get(entry.stepId) || entry.stepId} />
      ))}
    </>
  );
}

function Attempts({ entry, name }: { entry: Execution; name: string }) {
  const recorded = useQuery({
    queryKey: ["attempts", entry.id, entry.status, entry.attempts?.length],
    queryFn: ({ signal }) => engine.attempts(entry.id, signal),
    enabled: (entry.attempts ?? []).length > 0,
  });
  const details = new Map(recorded.data?.items.map((attempt) => [attempt.attempt, attempt]));
  return (
    <section className="attempts" aria-label={`Attempts of ${name}`}>
      <h2>
        {name} <span className="tag">{entry.stepId}</span> <ExecutionBadge status={entry.status} />
      </h2>
      <p className="mute">
        <code>{entry.id}</code> <CopyId id={entry.id} /> entered <At at={entry.startedAt} />
        {entry.endedAt !== undefined && (
          <>
            , ended <At at={entry.endedAt} />
          </>
        )}
      </p>
      {entry.failureReason !== undefined && (
        <p className="mono refused">
          {entry.errorCode !== undefined && <b>{entry.errorCode} </b>}
          {entry.failureReason}
        </p>
      )}
      {(entry.attempts ?? []).length > 0 && (
        <ol className="card">
          {entry.attempts!.map((attempt) => (
            <li key={attempt.attempt}>
              <div>
                <b>Attempt {attempt.attempt}</b>
                {attempt.worker !== undefined && ` · ${attempt.worker}`}
                {attempt.reason !== undefined && <p className="mono">{attempt.reason}</p>}
                <StackTrace of={details.get(attempt.attempt)} instance={entry.instanceId} step={entry.stepId} />
                <Recorded word="Given" value={details.get(attempt.attempt)?.parameters} bytes={details.get(attempt.attempt)?.parametersBytes} />
                <Recorded word="Told last" value={details.get(attempt.attempt)?.progress} />
                <Recorded word="Gave" value={details.get(attempt.attempt)?.result} bytes={details.get(attempt.attempt)?.resultBytes} />
              </div>
              <span className="mute">{attempt.startedAt !== undefined && attempt.endedAt !== undefined ? duration(Date.parse(attempt.endedAt) - Date.parse(attempt.startedAt)) : attempt.status.toLowerCase()}</span>
            </li>
          ))}
        </ol>
      )}
    </section>
  );
}

/** Where the worker had the error; copied with what somebody else needs to find it. */
function StackTrace({ of, instance, step }: { of: RecordedAttempt | undefined; instance: string; step: string }) {
  const trace = of?.stackTrace;
  if (of === undefined || trace === undefined) return null;
  const about = [`Instance ${instance}, step ${step}, attempt ${of.attempt}`, of.worker && `Worker ${of.worker}`, of.endedAt && `Failed ${of.endedAt}`].filter(Boolean).join("\n");
  return (
    <details className="trace">
      <summary className="mute">Stack trace</summary>
      <CopyButton text={() => `${about}\n\n${trace}`}>Copy</CopyButton>
      <pre className="mono">{trace}</pre>
    </details>
  );
}

/** What is kept of an attempt, as JSON; of what is too large the bytes. */
function Recorded({ word, value, bytes }: { word: string; value: unknown; bytes?: number | undefined }) {
  if (value === undefined && bytes === undefined) return null;
  return (
    <details>
      <summary className="mute">{word}</summary>
      <pre className="mono">{value === undefined ? `${bytes} bytes: too many to be kept` : JSON.stringify(value, null, 2)}</pre>
    </details>
  );
}
