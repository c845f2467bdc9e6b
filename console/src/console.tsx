// The shell: rail, top bar, search, and which page stands at which address.
import { useQuery } from "@tanstack/react-query";
import { Fragment, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { Link, Redirect, Route, Switch, useLocation } from "wouter";
import { decoded } from "./address";
import { type Count, EngineError, engine } from "./api/client";
import { useShortcuts } from "./keyboard";
import { DefinitionsPage } from "./pages/definitions";
import { InstancesPage } from "./pages/instances";
import { OverviewPage } from "./pages/overview";
import { AuditPage, BatchesPage, BulkOperationPage, BulkPage, DefinitionPage, EnginesPage, FailuresPage, InstancePage, JobsPage, loadAll, loadWhatIsPointedAt, ModellerPage, QueuesPage, SchedulesPage, SearchPage, SettingsPage, SqlRequestsPage, TasksPage, TimersPage } from "./pages/places";
import { Boundary } from "./parts/boundary";
import { useModal } from "./parts/dialog";
import { Icon, type IconName } from "./parts/icons";
import { Empty, whatFailed } from "./parts/states";
import { chooseUtc, useUtc } from "./parts/time";
import { Account, NoRole, SignIn, useMe, useSamePerson, useSignedOut } from "./session";
import { chooseTheme, currentTheme } from "./theme";
import { useReadiness } from "./watch/watch";

interface Room {
  path: string;
  name: string;
  icon: IconName;
  key: string;
  /** Pages that one comes to from here, by the first part of their address. */
  more?: Record<string, string>;
}
const ROOMS: Room[] = [
  { path: "/", name: "Overview", icon: "overview", key: "g o", more: { "/failures": "Failures" } },
  { path: "/instances", name: "Instances", icon: "instances", key: "g i", more: { "/bulk": "Bulk operations", "/batches": "Batches", "/sql-requests": "SQL requests" } },
  { path: "/tasks", name: "Tasks", icon: "tick", key: "g t" },
  { path: "/jobs", name: "Jobs", icon: "jobs", key: "g j", more: { "/queues": "Queues" } },
  { path: "/timers", name: "Timers", icon: "hourglass", key: "g w" },
  { path: "/schedules", name: "Schedules", icon: "clock", key: "g c" },
  { path: "/definitions", name: "Definitions", icon: "definitions", key: "g d" },
  { path: "/modeller", name: "Modeller", icon: "pencil", key: "g m" },
  { path: "/engines", name: "Engines", icon: "engines", key: "g e" },
  { path: "/audit", name: "Audit", icon: "info", key: "g a" },
  { path: "/settings", name: "Settings", icon: "settings", key: "g s" },
];
export function Console() {
  const [page, go] = useLocation();
  const search = useRef<HTMLInputElement>(null);
  const [helping, setHelping] = useState(false);
  const visit = useCallback(
    (path: string) => {
      go(path);
      document.getElementById("main")?.focus({ preventScroll: true }); // the keys are for the page now
    },
    [go],
  );
  useShortcuts(
    useMemo(
      () => ({
        "/": () => search.current?.select(),
        "?": () => setHelping(true),
        ".": () => document.querySelector<HTMLElement>(".selbar .act button, .head .act button, .head .act a")?.focus(),
        ...Object.fromEntries(ROOMS.map((room) => [room.key, () => visit(room.path)])),
      }),
      [visit],
    ),
  );
  // The keys go with the page: what had them may be gone with the one before.
  const before = useRef(page);
  useEffect(() => {
    if (before.current === page) return;
    before.current = page;
    const frame = requestAnimationFrame(() => {
      const at = document.activeElement; // what is replaced is hidden first, until the page has loaded
      if (!at || at === document.body || !at.checkVisibility()) document.getElementById("main")?.focus({ preventScroll: true });
    });
    return () => cancelAnimationFrame(frame);
  }, [page]);
  useUtc(); // all that is shown is shown again in the other zone
  const me = useMe();
  useSignedOut();
  useSamePerson(me.data?.name);
  useEffect(loadWhatIsPointedAt, []);
  if (me.error instanceof EngineError && me.error.status === 401) return <SignIn />;
  if (me.data?.name !== undefined && !me.data.can.includes("view")) return <NoRole name={me.data.name} />;
  return (
    <div className="app">
      <a className="skip" href="#main">
        Skip to the page
      </a>
      <header className="top">
        <Link href="/" className="brand">
          <Mark />
          Penstock
        </Link>
        <Crumbs />
        <Search input={search} />
        <Live />
        <UtcButton />
        <ThemeButton />
        <button type="button" className="iconbtn" aria-label="Keyboard shortcuts" title="Keyboard shortcuts (?)" onClick={() => setHelping(true)}>
          <Icon name="help" />
        </button>
      </header>
      <Rail />
      <main id="main" tabIndex={-1} onKeyDown={alongTabs}>
        {page !== "/" && <Outage />}
        <Boundary page={page}>
          <Switch>
            <Route path="/" component={OverviewPage} />
            <Route path="/instances" component={InstancesPage} />
            <Route path="/instances/:id">{({ id }) => <InstancePage key={id} id={decoded(id)} />}</Route>
            <Route path="/definitions" component={DefinitionsPage} />
            <Route path="/definitions/:id">{({ id }) => <DefinitionPage key={id} id={decoded(id)} />}</Route>
            <Route path="/modeller">
              <ModellerPage />
            </Route>
            <Route path="/modeller/:id">{({ id }) => <ModellerPage key={id} id={decoded(id)} />}</Route>
            <Route path="/tasks" component={TasksPage} />
            <Route path="/jobs" component={JobsPage} />
            <Route path="/timers" component={TimersPage} />
            <Route path="/settings" component={SettingsPage} />
            <Route path="/audit" component={AuditPage} />
            <Route path="/batches" component={BatchesPage} />
            <Route path="/sql-requests" component={SqlRequestsPage} />
            <Route path="/engines" component={EnginesPage} />
            <Route path="/queues" component={QueuesPage} />
            <Route path="/schedules" component={SchedulesPage} />
            <Route path="/failures" component={FailuresPage} />
            <Route path="/bulk" component={BulkPage} />
            <Route path="/bulk/:id">{({ id }) => <BulkOperationPage key={id} id={decoded(id)} />}</Route>
            <Route path="/search" component={SearchPage} />
            <Route path="/index.html">
              <Redirect to="/" />
            </Route>
            <Route>
              <Empty title="Not found">
                <p>
                  Back to the <Link href="/">overview</Link>.
                </p>
              </Empty>
            </Route>
          </Switch>
        </Boundary>
      </main>
      {helping && <Shortcuts close={() => setHelping(false)} />}
    </div>
  );
}

/** The arrows go from tab to tab, as screen readers say that they do. */
function alongTabs(event: React.KeyboardEvent): void {
  const tab = event.target as HTMLElement;
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (by === undefined || tab.role !== "tab") return;
  const all = [...tab.parentElement!.querySelectorAll<HTMLElement>("[role=tab]")];
  const next = all[(all.indexOf(tab) + by + all.length) % all.length]!;
  next.focus();
  next.click();
  event.preventDefault();
}

function Mark() {
  return (
    <svg viewBox="0 0 24 24" aria-hidden="true">
      <rect width="24" height="24" rx="6.5" fill="var(--accent)" />
      <path d="M5 6.500h5.500c5 0 3.500 8.500 8.500 8.500" fill="none" stroke="var(--accent-ink)" strokeWidth="3" strokeLinecap="round" />
      <circle cx="8" cy="16.5" r="2.6" fill="none" stroke="var(--accent-ink)" strokeWidth="2" />
    </svg>
  );
}

/** Where a page stands: the room, a page beside that, and what it is about. */
function placeOf(path: string): { room: Room; beside?: [string, string]; rest: string } | undefined {
  const at = path.indexOf("/", 1);
  const first = at < 0 ? path : path.slice(0, at);
  const rest = at < 0 ? "" : decoded(path.slice(at + 1));
  for (const room of ROOMS) {
    if (room.path === first) return { room, rest };
    const name = room.more?.[first];
    if (name !== undefined) return { room, beside: [first, name], rest };
  }
  return undefined;
}

function Crumbs() {
  const [path] = useLocation();
  const { room, beside, rest } = placeOf(path) ?? { rest: "" };
  const title = [rest, beside?.[1] ?? room?.name ?? "Penstock", "Penstock"].filter((part, at, all) => part && all.indexOf(part) === at).join(" · ");
  useEffect(() => {
    document.title = title;
  }, [title]);
  if (!room) return <nav className="crumbs" aria-label="Breadcrumb" />;
  const above: [string, string][] = [[room.path, room.name], ...(beside ? [beside] : [])];
  const last = rest ? undefined : above.pop();
  return (
    <nav className="crumbs" aria-label="Breadcrumb">
      {above.map(([href, name]) => (
        <Fragment key={href}>
          <Link href={href}>{name}</Link> <span aria-hidden="true">/</span>{" "}
        </Fragment>
      ))}
      {last ? <b>{last[1]}</b> : <b className="mono">{rest}</b>}
    </nav>
  );
}

function Search({ input }: { input: React.RefObject<HTMLInputElement | null> }) {
  const [, go] = useLocation();
  return (
    <form
      className="search"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        const text = input.current?.value.trim();
        if (!text) return;
        go(`/search?q=${encodeURIComponent(text)}`);
        document.getElementById("main")?.focus({ preventScroll: true });
      }}
    >
      <Icon name="search" />
      <input
        ref={input}
        aria-label="Search"
        placeholder="Instance id, business key, definition…"
        maxLength={256}
        onKeyDown={(event) => event.key === "Escape" && event.currentTarget.blur()}
      />
      <kbd>/</kbd>
    </form>
  );
}

/** Whether the engine answers, in a word. */
function Live() {
  const ready = useReadiness();
  const away = ready.error ? whatFailed(ready.error) : ready.data?.degraded?.length ? `Without ${ready.data.degraded.join(", ")}` : undefined;
  const title = ready.error ? ready.error.message : "The engine answers and its database does, too";
  return (
    <span className={away ? "live away" : "live"} title={title} role="status">
      <i />
      {away ?? (ready.data ? "Live" : "…")}
    </span>
  );
}

/** On every page, and on a phone, too: why nothing can be shown or done now. */
function Outage() {
  const { error } = useReadiness();
  if (!error) return null; // an alert that stands empty is one, too
  return (
    <p className="banner fail" role="alert">
      <b>{whatFailed(error)}.</b> {error.message} What stands here may be old. It is asked again every two seconds.
    </p>
  );
}

function UtcButton() {
  const utc = useUtc();
  const zone = utc ? "UTC" : (Intl.DateTimeFormat().resolvedOptions().timeZone ?? "local");
  return (
    <button type="button" className="btn sm utc" aria-pressed={utc} title={`Times are shown in ${zone}`} onClick={() => chooseUtc(!utc)}>
      UTC
    </button>
  );
}

function ThemeButton() {
  const [theme, setTheme] = useState(currentTheme);
  const other = theme === "dark" ? "light" : "dark";
  return (
    <button
      type="button"
      className="iconbtn"
      aria-label={`${other === "dark" ? "Dark" : "Light"} mode`}
      onClick={() => {
        chooseTheme(other);
        setTheme(other);
      }}
    >
      <Icon name={other === "dark" ? "moon" : "sun"} />
    </button>
  );
}

/** Failed instances of those that started within a day: counted by an index. */
function FailedCount({ enabled }: { enabled: boolean }) {
  const found = useRailQuery(["instances", "count", "rail"], enabled, (signal) => engine.countInstances({ status: "FAILED", startedAfter: new Date(Date.now() - DAY_MS).toISOString() }, signal));
  return <RailCount found={found} word="failed" title="Failed, of those that started within a day" bad />;
}

/** Tasks that wait for people: counted by an index, and anew when one was completed here. */
function TaskCount({ enabled }: { enabled: boolean }) {
  const found = useRailQuery(["tasks", "count"], enabled, (signal) => engine.countTasks(signal));
  return <RailCount found={found} word="open" title="Tasks that are open" />;
}

function useRailQuery<T>(queryKey: string[], enabled: boolean, ask: (signal: AbortSignal) => Promise<T>): T | undefined {
  return useQuery({ enabled, queryKey, queryFn: ({ signal }) => ask(signal), refetchInterval: RAIL_MS, retry: false }).data;
}

function RailCount({ found, word, title, bad = false }: { found: Count | undefined; word: string; title: string; bad?: boolean }) {
  if (!found?.count) return null;
  return (
    <span className={bad ? "n bad" : "n"} title={title}>
      {`${found.exact ? "" : "> "}${found.count.toLocaleString("en")}`}
      <span className="sr"> {word}</span>
    </span>
  );
}

function Rail() {
  const [path] = useLocation();
  const here = placeOf(path)?.room;
  // What the page itself asks for goes first: the engine answers those who look two at a time.
  const [later, setLater] = useState(false);
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const seen = () => {
      clearTimeout(timer); // a tab that nobody sees asks nothing
      if (!document.hidden) timer = setTimeout(() => setLater(true), RAIL_AFTER_MS);
    };
    seen();
    document.addEventListener("visibilitychange", seen);
    return () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, []);
  useEffect(() => (later ? loadAll() : undefined), [later]);
  const engines = useRailQuery(["engines", "rail"], later, (signal) => engine.engines(signal));
  const alive = engines?.items.filter((one) => one.alive).length;
  const rail = useRef<HTMLElement>(null);
  useEffect(() => {
    // On a narrow screen the rail is a row that scrolls.
    rail.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [here]);
  return (
    <nav className="nav" aria-label="Main" ref={rail}>
      {ROOMS.map((room) => (
        <Link key={room.path} href={room.path} aria-current={room === here ? "page" : undefined}>
          <Icon name={room.icon} />
          <span>{room.name}</span>
          {room.path === "/instances" && <FailedCount enabled={later} />}
          {room.path === "/tasks" && <TaskCount enabled={later} />}
          {room.path === "/engines" && alive !== undefined && <span className="n">{alive}</span>}
        </Link>
      ))}
      <div className="foot">
        <Account />
        {engines && (
          <p>
            {[...new Set(engines.items.flatMap((one) => (one.alive && one.report ? [one.report.version] : [])))].map((version) => `penstock ${version}`).join(", ")}
            <br />
            PostgreSQL {engines.database.version} · {engines.items.find((one) => one.alive)?.mode}
          </p>
        )}
        <a href="/docs">REST interface</a>
      </div>
    </nav>
  );
}

const RAIL_MS = 30_000;
const RAIL_AFTER_MS = 1_500;
const DAY_MS = 86_400_000;
const KEYS: [string, string][] = [
  ["/", "Search"],
  ...ROOMS.map((room): [string, string] => [room.key, room.name]),
  ["j k", "Next row, row before"],
  ["Enter", "Open the row"],
  ["x", "Select the row"],
  ["b r", "Retry what is selected; b c cancel, b s signal, b m repair"],
  [".", "To the page's actions"],
  ["c", "Claim the task"],
  ["Ctrl Enter", "Complete the task"],
  ["r", "Retry the failed instance"],
  ["n p", "Stepping through a journal: next record, record before; F10 and Shift F10, too; < first, > last"],
  ["?", "This help"],
  ["Esc", "Close"],
];

const KEYS_OF_MODELLER: [string, string][] = [
  ["A letter", "Adds a step after the selected one, or hangs an event on it: the palette shows which"],
  ["Tab ↑ ↓ ← →", "From step to step, along the ways"],
  ["Enter", "Edit the step; Esc leads back to the picture"],
  ["Space", "Choose the step, with those chosen"],
  ["Shift F10", "The step's menu, as + opens it"],
  ["Alt ↑", "Move the step, with each arrow"],
  ["Delete", "Delete what is chosen"],
  ["Ctrl Z", "Undo; with Shift redo"],
  ["Ctrl C", "Copy steps; X cuts, V pastes"],
  ["Ctrl Space", "In an expression: complete"],
  ["Esc Tab", "Leave the JSON text, where Tab indents"],
  ["Ctrl F", "In the JSON text: search"],
  ["F8", "In the JSON text: to the next problem"],
  ["Ctrl Shift [", "In the JSON text: fold; with ] unfold"],
];

function Shortcuts({ close }: { close: () => void }) {
  const box = useRef<HTMLDialogElement>(null);
  const [place] = useLocation();
  const keys = place.startsWith("/modeller") ? [...KEYS_OF_MODELLER, ...KEYS.filter(([key]) => /^(\/|g .|\?|Esc)$/.test(key))] : KEYS;
  useModal(box);
  return (
    <dialog ref={box} className="card dialog" aria-labelledby="keys" onClose={close}>
      <h2 id="keys">Keyboard shortcuts</h2>
      <dl className="keys">
        {keys.map(([key, text]) => (
          <div key={text}>
            <dt>
              {key.split(" ").map((part) => (
                <kbd key={part}>{part}</kbd>
              ))}
            </dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
      <div className="acts">
        <button type="button" className="btn" onClick={close}>
          Close
        </button>
      </div>
    </dialog>
  );
}
