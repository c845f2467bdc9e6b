import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { useAddress } from "../address";
import { engine } from "../api/client";
import { Picture } from "../graph/picture";
import { Icon } from "../parts/icons";
import { Problem, Skeleton } from "../parts/states";
import { useCan } from "../session";
import { StartDialog } from "./start";

export function DefinitionPage({ id }: { id: string }) {
  const [params, change] = useAddress();
  const [starting, setStarting] = useState(false);
  const operates = useCan("operate");
  const asked = Number(params.get("version")) || undefined;
  const latest = useQuery({ queryKey: ["definition", id, "latest"], queryFn: ({ signal }) => engine.definition(id, undefined, signal) });
  const shown = useQuery({
    queryKey: ["definition", id, asked ?? "latest"],
    queryFn: ({ signal }) => engine.definition(id, asked, signal),
  });
  if (shown.error) return <Problem error={shown.error} retry={() => shown.refetch()} />;
  if (!shown.data) return <Skeleton />;
  const definition = shown.data;
  const selected = params.get("step") ?? undefined;
  const newest = latest.data?.version ?? definition.version ?? 1;
  const versions = Array.from({ length: newest }, (_, at) => newest - at);
  const step = definition.steps.find((one) => one.id === selected);
  return (
    <div className="instance">
      <header className="ihead">
        <div className="head">
          <h1>{definition.name || id}</h1>
          <span className="tag">{id}</span>
          <label className="version">
            Version{" "}
            <select className="in" value={definition.version} onChange={(event) => change({ version: event.target.value, step: undefined })}>
              {versions.map((version) => (
                <option key={version} value={version}>
                  {version}
                </option>
              ))}
            </select>
          </label>
          <div className="act">
            <Link className="btn" href={`/instances?definitionId=${encodeURIComponent(id)}`}>
              Its instances
            </Link>
            {operates && (
              <button type="button" className="btn pri" onClick={() => setStarting(true)}>
                <Icon name="play" />
                Start
              </button>
            )}
          </div>
        </div>
        {definition.description && <p className="mute">{definition.description}</p>}
      </header>
      <div className="halves">
        <section aria-label="Picture" className="half">
          <Picture definition={definition} selected={selected} onSelect={(one) => change({ step: one }, true)} />
        </section>
        <section className="half side" aria-label={step ? step.name || step.id : "JSON"}>
          <div className="panel" tabIndex={0}>
            <pre className="json">{JSON.stringify(step ?? definition, null, 2)}</pre>
          </div>
        </section>
      </div>
      {starting && <StartDialog definitionId={id} close={() => setStarting(false)} />}
    </div>
  );
}
