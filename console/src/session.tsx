// Who is signed in, what they may do, and the page where they sign in.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useEffect, useState } from "react";
import { ME } from "./api/asks";
import { EngineError, engine, onSignedOut, type Permission } from "./api/client";
import { forgetDrafts } from "./drafts";
import { forgetLayouts } from "./graph/kept";

export function useMe() {
  return useQuery(ME);
}

const TABS = "penstock who";

/** Tabs tell each other who is there, and begin anew where that is somebody else by now, or nobody: all tabs have the newest session. */
export function useSamePerson(name: string | undefined) {
  useEffect(() => {
    if (name === undefined) return;
    const tabs = new BroadcastChannel(TABS);
    tabs.onmessage = ({ data }) => data !== name && location.reload();
    tabs.postMessage(name);
    return () => tabs.close();
  }, [name]);
}

function tellThatNobodyIsThere(): void {
  const tabs = new BroadcastChannel(TABS);
  tabs.postMessage(undefined);
  tabs.close();
}

/** Whether a button is shown at all. What is not shown is refused by the engine, too. */
export function useCan(permission: Permission): boolean {
  return useMe().data?.can.includes(permission) ?? false;
}

/** Ask again who is there as soon as any call is told that it has to sign in. */
export function useSignedOut() {
  const queries = useQueryClient();
  useEffect(() => onSignedOut(() => void queries.resetQueries(ME)), [queries]);
}

export function Account() {
  const me = useMe().data;
  const queries = useQueryClient();
  const [refused, setRefused] = useState<string>();
  if (me?.name === undefined) return null;
  const leave = async () => {
    try {
      await engine.signOut();
    } catch (error) {
      return setRefused(error instanceof EngineError ? error.message : String(error));
    }
    tellThatNobodyIsThere();
    forgetDrafts(me.name);
    await forgetLayouts();
    queries.clear(); // what one person has read is not shown to the next
    location.assign("/console/");
  };
  return (
    <div className="account">
      <span title={`May: ${me.can.join(", ") || "nothing"}`}>{me.name}</span>
      {me.sessionEndsAt !== undefined && (
        <button type="button" className="link" onClick={() => void leave()}>
          Sign out
        </button>
      )}
      {refused !== undefined && (
        <span className="wrong" role="alert">
          Still signed in: {refused}
        </span>
      )}
    </div>
  );
}

const REFUSED: Record<string, string> = {
  refused: "The issuer did not vouch for you. Try again.",
  away: "The issuer does not answer as it should. The engine's log says more.",
  full: "Too many people are signed in.",
};

export function SignIn() {
  const queries = useQueryClient();
  // What was read before a session ended is not shown to whoever signs in next.
  useEffect(() => queries.removeQueries({ type: "inactive" }), [queries]);
  const ways = useQuery({ queryKey: ["ways"], queryFn: ({ signal }) => engine.signInWays(signal), staleTime: Number.POSITIVE_INFINITY });
  const [refused, setRefused] = useState(() => REFUSED[new URLSearchParams(location.search).get("signIn") ?? ""]);
  const [busy, setBusy] = useState(false);
  const attempt = async (act: () => Promise<void>) => {
    setBusy(true);
    setRefused(undefined);
    try {
      await act();
    } catch (error) {
      setRefused(error instanceof EngineError ? error.message : String(error));
      setBusy(false);
    }
  };
  const withToken = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const token = String(new FormData(event.currentTarget).get("token"));
    void attempt(async () => {
      queries.setQueryData(ME.queryKey, await engine.signIn(token));
    });
  };
  const atIssuer = () =>
    attempt(async () => {
      const params = new URLSearchParams(location.search);
      params.delete("signIn");
      const { url } = await engine.beginSignIn(location.pathname + (params.size ? `?${params}` : ""));
      location.assign(url);
    });
  return (
    <main className="signin" id="main">
      <div className="card">
        <h1>Sign in to Penstock</h1>
        {refused !== undefined && (
          <p className="refused" role="alert">
            {refused}
          </p>
        )}
        {ways.data?.oidc !== undefined && (
          <>
            <button type="button" className="btn pri" disabled={busy} onClick={() => void atIssuer()}>
              Sign in at {hostOf(ways.data.oidc)}
            </button>
            <p className="or mute">or</p>
          </>
        )}
        <form onSubmit={withToken}>
          <div className="field">
            <label htmlFor="token">API token</label>
            <input id="token" name="token" type="password" className="in mono" autoComplete="off" required />
            <p className="hint">The engine gives a session for it; this page does not keep it.</p>
          </div>
          <button type="submit" className={`btn ${ways.data?.oidc === undefined ? "pri" : ""}`} disabled={busy}>
            Sign in
          </button>
        </form>
      </div>
    </main>
  );
}

/** Somebody who is known, and has no role. */
export function NoRole({ name }: { name: string }) {
  return (
    <main className="signin" id="main">
      <div className="card">
        <h1>You have no role here</h1>
        <p>
          You are signed in as <b>{name}</b>, who may see nothing on this engine. An administrator gives roles.
        </p>
        <Account />
      </div>
    </main>
  );
}

function hostOf(issuer: string): string {
  try {
    return new URL(issuer).host;
  } catch {
    return issuer;
  }
}
