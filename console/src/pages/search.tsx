// An id, a business key, a definition: each an indexed look-up, none a scan.
import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { Link, useLocation } from "wouter";
import { useAddress } from "../address";
import { EngineError, engine } from "../api/client";
import { Empty, Problem, Skeleton } from "../parts/states";
import { InstanceStatusBadge } from "../parts/status";
import { Ago } from "../parts/time";

const SHOWN = 20;

// Ids are hexadecimal; others need not be asked for.
const ID = /^[0-9a-f]{12,16}$/;

async function look(text: string, signal: AbortSignal) {
  const isId = ID.test(text);
  const byId = !isId ? undefined : engine.instance(text, signal).catch((error: unknown) => {
    if (error instanceof EngineError && (error.status === 404 || error.status === 400)) return undefined;
    throw error;
  });
  const [instance, byKey, byPrefix, definitions, queues] = await Promise.all([
    byId,
    engine.instances({ businessKey: text }, "", SHOWN, signal),
    isId ? undefined : engine.instances({ businessKeyPrefix: text }, "", SHOWN, signal),
    engine.definitions(text, "", signal),
    engine.jobTypes(signal), // the engine has it in memory
  ]);
  const exact = [...(instance ? [instance] : []), ...byKey.items];
  const found = [...exact, ...(byPrefix?.items ?? [])];
  const instances = found.filter((one, at) => found.findIndex((other) => other.id === one.id) === at);
  const jobTypes = queues.items.filter((row) => row.jobType.includes(text)).slice(0, SHOWN);
  const named = definitions.items.find((one) => one.id === text);
  const type = jobTypes.some((row) => row.jobType === text);
  // One that is called exactly that, or the only one that begins so, is what was looked for.
  const single = exact.length === 1 ? exact[0] : exact.length === 0 && instances.length === 1 && definitions.items.length === 0 ? instances[0] : undefined;
  const only = type ? undefined : named ? (instances.length === 0 ? `/definitions/${encodeURIComponent(named.id)}` : undefined) : single && `/instances/${encodeURIComponent(single.id)}`;
  return { instances, definitions: definitions.items, jobTypes, only, more: (byPrefix?.next ?? byKey.next) !== undefined };
}

export function SearchPage() {
  const [params] = useAddress();
  const [, go] = useLocation();
  const text = params.get("q")?.trim() ?? "";
  const found = useQuery({ queryKey: ["search", text], queryFn: ({ signal }) => look(text, signal), enabled: text !== "" });
  const only = found.data?.only;
  useEffect(() => {
    if (only) go(only, { replace: true });
  }, [only, go]);
  return (
    <>
      <div className="head">
        <h1>“{text}”</h1>
      </div>
      <section className="card" aria-label="Found">
        {found.error ? (
          <Problem error={found.error} retry={() => found.refetch()} />
        ) : !found.data ? (
          <Skeleton rows={3} />
        ) : found.data.instances.length + found.data.definitions.length + found.data.jobTypes.length === 0 ? (
          <Empty title="No results">
            <p>Searched: instance ids in full, how business keys begin, words of definitions, parts of job types. An instance key is a filter of the instances page, beside its definition.</p>
          </Empty>
        ) : (
          <ul className="found">
            {found.data.instances.map((one) => (
              <li key={one.id}>
                <InstanceStatusBadge status={one.status} blocked={one.blocked} />
                <Link href={`/instances/${encodeURIComponent(one.id)}`}>
                  <code>{one.id}</code>
                </Link>
                <span>{one.businessKey}</span>
                <span className="mute">
                  {one.definitionId} v{one.definitionVersion}, <Ago at={one.startedAt} />
                </span>
              </li>
            ))}
            {found.data.more && (
              <li>
                <Link href={`/instances?${new URLSearchParams({ businessKeyPrefix: text })}`}>All whose business key begins with that</Link>
              </li>
            )}
            {found.data.jobTypes.map((row) => (
              <li key={row.jobType}>
                <span className="tag">job type</span>
                <Link href={`/jobs?${new URLSearchParams({ jobType: row.jobType, state: "WAITING" })}`}>{row.jobType}</Link>
              </li>
            ))}
            {found.data.definitions.map((one) => (
              <li key={one.id}>
                <span className="tag">definition</span>
                <Link href={`/definitions/${encodeURIComponent(one.id)}`}>{one.name || one.id}</Link>
                <span className="mute">
                  {one.id} v{one.version}
                </span>
              </li>
            ))}
          </ul>
        )}
      </section>
    </>
  );
}
