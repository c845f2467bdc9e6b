// The settings of the engine that answers, as it runs; nothing can be changed here.
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { engine } from "../api/client";
import { Empty, Problem, Skeleton } from "../parts/states";

export function SettingsPage() {
  const [word, setWord] = useState("");
  const found = useQuery({ queryKey: ["settings"], queryFn: ({ signal }) => engine.settings(signal) });
  const groups = useMemo(() => {
    const shown = (found.data?.items ?? []).filter((one) => word === "" || `${one.name} ${one.env} ${one.description}`.toLowerCase().includes(word.toLowerCase()));
    const byGroup = new Map<string, typeof shown>();
    for (const one of shown) byGroup.set(one.group, [...(byGroup.get(one.group) ?? []), one]);
    return [...byGroup];
  }, [found.data, word]);
  if (found.error) return <Problem error={found.error} retry={() => found.refetch()} />;
  if (!found.data) return <Skeleton />;
  return (
    <>
      <div className="head">
        <h1>Settings</h1>
        <span className="mute">of the engine that answers; set by its file, environment and options</span>
      </div>
      <div className="flt">
        <input aria-label="Search settings" placeholder="Search settings" className="in" value={word} onChange={(event) => setWord(event.target.value)} />
      </div>
      {groups.length === 0 && (
        <Empty title="No results">
          <p>Searched: names, environment variables and what settings are for.</p>
        </Empty>
      )}
      {groups.map(([group, items]) => (
        <section key={group} className="card queues" aria-label={group}>
          <h2>{group}</h2>
          <table className="wide settings">
            <thead>
              <tr>
                <th>Setting</th>
                <th>Value</th>
                <th>Default</th>
                <th>What it is</th>
              </tr>
            </thead>
            <tbody>
              {items.map((one) => (
                <tr key={one.name}>
                  <td title={one.env}>
                    <code>{one.name}</code>
                  </td>
                  <td className="el value" title={one.value}>
                    {one.secret ? one.set ? "set, not shown" : "not set" : <b className={one.set ? undefined : "mute"}>{one.value || "–"}</b>}
                  </td>
                  <td className="el value mute" title={one.default} data-label="default">
                    {one.default || "–"}
                  </td>
                  <td className="said">{one.description}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      ))}
    </>
  );
}
