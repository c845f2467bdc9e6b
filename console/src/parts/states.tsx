// What a page shows while it waits, when there is nothing, and when the engine refused: never an empty table.
import { useEffect, useState } from "react";
import { EngineError } from "../api/client";

/** Nothing for 150 ms, then bars: what comes at once does not flicker. */
export function Skeleton({ rows = 8 }: { rows?: number }) {
  const [late, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 150);
    return () => clearTimeout(timer);
  }, []);
  return (
    <div className="skeleton" aria-busy="true">
      <span className="sr">Loading</span>
      {late && Array.from({ length: rows }, (_, row) => <i key={row} />)}
    </div>
  );
}

/** What stands in the way: each asks for somebody else. */
export function whatFailed({ status, message }: { status: number; message: string }): string {
  if (status === 0) return "Engine unreachable";
  if (status === 401) return "Not signed in";
  if (status === 403) return "Not permitted";
  if (status === 404) return "Not found";
  if (status === 503 && /database/i.test(message)) return "Database unavailable";
  return status === 429 || status === 503 ? "The engine is busy" : "The engine refused this";
}

/** Without a `retry` it is asked again by itself. */
export function Problem({ error, retry }: { error: unknown; retry?: () => void }) {
  const known = error instanceof EngineError;
  return (
    <div className="problem" role="alert">
      <b>{known ? whatFailed(error) : "This page failed"}</b>
      <p>{known ? error.message : String(error)}</p>
      {retry ? (
        <button type="button" className="btn sm" onClick={retry}>
          Try again
        </button>
      ) : (
        <p className="mute">It is asked again every two seconds.</p>
      )}
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: React.ReactNode }) {
  return (
    <div className="empty">
      <b>{title}</b>
      {children}
    </div>
  );
}
