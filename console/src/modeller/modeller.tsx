// The modeller: a definition as a picture, as fields and as text, all of the one text that is exported and uploaded.
import { useQuery } from "@tanstack/react-query";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { Link, useLocation } from "wouter";
import { useAddress } from "../address";
import { engine } from "../api/client";
import type { Point } from "../graph/layout";
import { Outline } from "../graph/outline";
import { Problem, Skeleton } from "../parts/states";
import { useCan } from "../session";
import type { Extent } from "../graph/viewport";
import { type Alignment, aligned } from "./align";
import { type Hanging, HangDialog, RemoveDialog } from "./asks";
import { Canvas, stepElement } from "./canvas";
import { type Finding, useNotes, useVerdict } from "./check";
import { useClipboard } from "./clipboard";
import { EditingContext } from "./context";
import { Differences } from "./differences";
import { type Draft, type DraftEdge, pathIn, rangeOf, readDraft } from "./draft";
import { addBoundary, addStep, beginElsewhere, connect, disconnect, EMPTY, insertOnWay, leadElsewhere, mayHang, pasteSteps, pin, removeSteps, successorsOf, tidy } from "./edits";
import { download, ImportButton } from "./files";
import { keep, useHistory } from "./history";
import { JsonProblem, parse, pretty } from "./json";
import { Findings } from "./findings";
import { Given } from "./given";
import { boundaryOfKey, type BoundaryType, isBoundaryType, Palette, typeOfKey } from "./palette";
import { DefinitionPanel, StepPanel } from "./panel";
import { SeveralPanel } from "./several";
import { begun, type Trial, TryIt } from "./try";
import { sameText, UploadDialog } from "./upload";
import { useWords } from "./words";
import "./modeller.css";

const VIEWS = { picture: "Picture", json: "JSON", try: "Try it", differences: "Differences" } as const;
type View = keyof typeof VIEWS;
const LEADER_MS = 1_000;
/** Laid out within about two seconds (spec of the console, section 4). */
const DRAWN_MAX_STEPS = 500;

/** Without an id: a definition that is new. */
export function ModellerPage({ id }: { id?: string }) {
  const [params] = useAddress();
  const version = Number(params.get("version")) || undefined;
  const found = useQuery({
    queryKey: ["definition text", id, version],
    queryFn: async ({ signal }) => {
      const text = await engine.definitionText(id!, version, signal);
      return { text: pretty(text, ["version"]), version: (JSON.parse(text) as { version: number }).version };
    },
    enabled: id !== undefined,
    staleTime: Number.POSITIVE_INFINITY,
  });
  if (id === undefined) return <Modeller place="" base={EMPTY} version={undefined} />;
  if (found.error) return <Problem error={found.error} retry={() => found.refetch()} />;
  if (!found.data) return <Skeleton />;
  return <Modeller key={`${id} ${found.data.version}`} place={`${id} ${found.data.version}`} base={found.data.text} version={found.data.version} />;
}

/** The draft of a text; while somebody types what is no JSON, the one before. */
function useDraft(text: string): { draft: Draft; broken: JsonProblem | undefined } {
  const last = useRef<Draft>(undefined);
  return useMemo(() => {
    try {
      last.current = readDraft(text);
      return { draft: last.current, broken: undefined };
    } catch (error) {
      if (!(error instanceof JsonProblem)) throw error;
      return { draft: last.current ?? readDraft(EMPTY), broken: error };
    }
  }, [text]);
}

function Modeller({ place, base, version }: { place: string; base: string; version: number | undefined }) {
  const [params, changeAddress] = useAddress();
  const [, go] = useLocation();
  const { history, change: changeText, edit } = useHistory(place, base);
  const text = history.now;
  const { draft, broken } = useDraft(text);
  const began = useMemo(() => readDraft(base), [base]);
  const verdict = useVerdict(text, draft);
  const [chosen, choose] = useState<readonly string[]>([]);
  const [chosenWay, chooseWay] = useState<DraftEdge>();
  const [removing, setRemoving] = useState<readonly string[]>();
  const [hanging, setHanging] = useState<Hanging>();
  const [uploading, setUploading] = useState(false);
  const [said, say] = useState("");
  const [refused, refuse] = useState("");
  const [fitOn, fitAgain] = useState(0);
  const models = useCan("model");
  const asked = params.get("view") ?? "picture";
  const view: View = asked in VIEWS ? (asked as View) : "picture";
  const edge = useMemo(() => chosenWay && draft.edges.find((each) => isSame(each, chosenWay))?.id, [chosenWay, draft]);
  const selected = useMemo(() => chosen.filter((id) => draft.places.has(id)), [chosen, draft]);
  const one = selected.length === 1 ? selected[0] : undefined;
  const notes = useNotes(verdict.findings);
  const [typedVariables, setVariables] = useState<string>();
  const variables = typedVariables ?? exampleOf(draft);
  const given = readable(variables) ? variables : "{}";
  const [trial, setTrial] = useState<Trial>();
  const fresh = useMemo(() => begun(given), [given]);
  const trying = trial ?? fresh;
  const words = useWords(draft, verdict.check, version, given);
  const flawed = useMemo(() => new Set(verdict.findings.flatMap((one) => (one.hint ? [] : [JSON.stringify(pathIn(draft, one.path))]))), [verdict.findings, draft]);
  const editing = useMemo(() => ({ draft, edit, words, variables: given, flawed }), [draft, edit, words, given, flawed]);
  const change = (to: { do: "undo" | "redo" }) => {
    chooseWay(undefined); // another way may stand in its place
    changeText(to);
  };
  const select = useCallback((ids: readonly string[]) => {
    choose(ids);
    chooseWay(undefined);
    refuse("");
  }, []);

  const add = useCallback(
    (type: string, after?: string, at?: Point) => {
      if (broken) return;
      // A definition that begins with its END does nothing: what is added with nothing chosen comes before it.
      const begins = draft.definition.steps[0];
      const made = addStep(text, type, after ?? (begins?.type === "END" && type !== "END" ? begins.id : undefined));
      edit(() => (at ? pin(made.text, new Map([[made.id, at]])) : made.text));
      select([made.id]);
      say(`Added ${made.id}`);
      // It is in the picture once it is laid out.
      focusLater(made.id);
    },
    [text, broken, draft, edit, select],
  );
  const hang = (type: BoundaryType, onto: string | undefined) => {
    if (broken) return;
    if (onto !== undefined && mayHang(text, onto)) setHanging({ type, onto });
    else refuse(onto === undefined ? "Choose the task or the wait first on which it is to hang." : `Nothing can hang on ${onto}: only on tasks, calls and waits.`);
  };
  const drop = (type: string, onto: string | undefined, at: Point, way: DraftEdge | undefined) => {
    if (isBoundaryType(type)) return hang(type, onto);
    if (onto !== undefined) return add(type, onto);
    if (way === undefined) return add(type, undefined, at);
    if (broken) return;
    const made = insertOnWay(text, type, way);
    edit(() => made.text);
    select([made.id]);
    say(`Added ${made.id}`);
  };
  const stand = useRef<ReadonlyMap<string, Extent>>(new Map());
  const align = (how: Alignment) => {
    const boxes = new Map(selected.flatMap((id): [string, Extent][] => (stand.current.has(id) ? [[id, stand.current.get(id)!]] : [])));
    edit((now) => pin(now, aligned(boxes, how)));
  };
  const takeOut = useCallback(
    (ids: readonly string[]) => {
      if (ids.length === 0 || broken) return;
      const next = successorsOf(text, ids);
      if (next.length > 1) setRemoving(ids);
      else {
        edit((now) => removeSteps(now, ids, next[0]));
        select(next);
        say(`Deleted ${ids.join(", ")}`);
        if (next[0] !== undefined) focusLater(next[0]);
      }
    },
    [text, broken, edit, select],
  );
  const takeOutEdge = () => {
    const chosenEdge = draft.edges.find((each) => each.id === edge);
    if (chosenEdge) edit((now) => disconnect(now, chosenEdge));
    chooseWay(undefined);
  };
  useClipboard(text, broken ? [] : selected, () => takeOut(selected), (copied) => {
    const made = pasteSteps(text, copied);
    edit(() => made.text);
    select(made.ids);
    say(`Pasted ${made.ids.length}`);
  });
  const leader = useRef(0);
  const oneNow = useRef(one);
  oneNow.current = one;
  const keys = (event: KeyboardEvent | React.KeyboardEvent) => {
    const at = event.target as HTMLElement;
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName)) {
      if (event.key === "Escape" && one !== undefined) {
        stepElement(one)?.focus();
        // With another id it is another element.
        requestAnimationFrame(() => oneNow.current !== undefined && focusLater(oneNow.current, document.body));
      }
      return;
    }
    const command = event.ctrlKey || event.metaKey;
    if (command && event.key.toLowerCase() === "z" && view === "try") setTrial({ ...trying, moves: trying.moves.slice(0, -1) });
    else if (command && event.key.toLowerCase() === "z") change({ do: event.shiftKey ? "redo" : "undo" });
    else if (command && event.key.toLowerCase() === "y") change({ do: "redo" });
    else if (command && event.key.toLowerCase() === "a" && at.closest(".surface")) select([...draft.places.keys()]);
    else if (command || event.altKey) return;
    else if ((event.key === "Delete" || event.key === "Backspace") && at.closest(".surface, .palette")) {
      if (edge !== undefined) takeOutEdge();
      else takeOut(selected.length ? selected : focusedStep());
    } else if (event.key === "Escape") select([]);
    else if (event.key === "g") leader.current = Date.now();
    else if (at.closest(".surface, .palette") && Date.now() - leader.current > LEADER_MS) {
      const [type, event_] = [typeOfKey(event.key), boundaryOfKey(event.key)];
      const onto = selected.at(-1) ?? focusedStep()[0];
      if (event_ !== undefined) hang(event_, onto);
      else if (type !== undefined) add(type, onto);
      else return;
    } else return;
    if (event.key !== "g") event.preventDefault();
  };
  const keysNow = useRef(keys);
  keysNow.current = keys;
  useEffect(() => {
    // After a press beside all that takes keys.
    const elsewhere = (event: KeyboardEvent) => event.target === document.body && keysNow.current(event);
    document.addEventListener("keydown", elsewhere);
    return () => document.removeEventListener("keydown", elsewhere);
  }, []);
  const open = useCallback((id: string) => {
    select([id]);
    requestAnimationFrame(() => document.querySelector<HTMLInputElement>(".modeller .panel input")?.select());
  }, [select]);
  const source = useRef<HTMLTextAreaElement>(null);
  const show = ({ step, path }: Finding) => {
    if (view === "json" && source.current && !broken) return markIn(source.current, text, rangeOf(draft, path));
    changeAddress({ view: undefined }, true);
    if (step === undefined) select([]);
    else open(step);
  };
  return (
    <EditingContext value={editing}>
      <div className="modeller" onKeyDown={keys}>
        <header className="mhead">
          <h1>{draft.definition.name || draft.definition.id || "Without a name"}</h1>
          {version !== undefined && <span className="tag">from v{version}</span>}
          <span className="mute">{text === base ? "as it was" : `${history.past.length === 1 ? "1 change" : `${history.past.length} changes`}, kept in this browser`}</span>
          <span className="sr" role="status">
            {said}
          </span>
          <div className="seg" role="group" aria-label="Steps back and forth">
            <button type="button" title="Ctrl Z" disabled={!history.past.length} onClick={() => change({ do: "undo" })}>
              Undo
            </button>
            <button type="button" title="Ctrl Shift Z" disabled={!history.future.length} onClick={() => change({ do: "redo" })}>
              Redo
            </button>
            <button
              type="button"
              title="Lay it out anew, without the places where steps were put"
              onClick={() => {
                edit(tidy);
                fitAgain(fitOn + 1);
              }}
            >
              Tidy
            </button>
          </div>
          <div className="seg" role="group" aria-label="View">
            {(Object.keys(VIEWS) as View[]).map((each) => (
              <button key={each} type="button" aria-pressed={view === each} onClick={() => changeAddress({ view: each === "picture" ? undefined : each }, true)}>
                {VIEWS[each]}
              </button>
            ))}
          </div>
          <div className="act">
            <ImportButton
              take={(read) => {
                edit(() => read);
                select([]);
                fitAgain(fitOn + 1);
              }}
              say={say}
            />
            <button type="button" className="btn" onClick={() => download(text, `${draft.definition.id || "definition"}.json`)}>
              Export
            </button>
            {models && (
              <button type="button" className="btn pri" disabled={broken !== undefined} onClick={() => setUploading(true)}>
                Upload…
              </button>
            )}
          </div>
        </header>
        {view === "picture" && (
          <div className="desk">
            <Palette add={(type) => add(type, one)} hang={(type) => hang(type, one)} refused={broken ? "The text is no JSON: nothing changes here until it is mended there." : refused} />
            {draft.definition.steps.length > DRAWN_MAX_STEPS ? (
              <section aria-label="All steps" className="list">
                <p className="mute note">{draft.definition.steps.length} steps are too many to be laid out while they are edited: here they are as a list.</p>
                <Outline definition={draft.definition} states={undefined} edges={draft.edges} choose={open} />
              </section>
            ) : (
              <Canvas
                draft={draft}
                fitOn={fitOn}
                notes={notes}
                selected={selected}
                edge={edge}
                select={select}
                selectEdge={(picked: DraftEdge | undefined) => {
                  choose(picked ? [picked.from] : []);
                  chooseWay(picked);
                }}
                open={open}
                moved={(pins, nudged) => edit((now) => pin(now, pins), nudged ? `move ${[...pins.keys()].join(" ")}` : undefined)}
                connect={(from, to) => edit((now) => connect(now, from, to))}
                lead={(picked, end, to) => {
                  edit((now) => (end === "to" ? leadElsewhere(now, picked, to) : beginElsewhere(now, picked, to)));
                  chooseWay(undefined); // another way may stand in its place
                }}
                drop={drop}
                places={stand}
                addAfter={() => document.querySelector<HTMLElement>(".palette button")?.focus()}
              />
            )}
            <section className="panel props" aria-label="Properties" tabIndex={0}>
              {one !== undefined ? (
                <StepPanel
                  key={draft.places.get(one)}
                  id={one}
                  problems={(field) => verdict.findings.filter((each) => each.step === one && (each.field ?? "") === field).map((each) => `${each.text}${each.path.endsWith(field) ? "" : ` (${each.path})`}`)}
                  renamed={(to) => select([to])}
                  remove={() => takeOut([one])}
                  acts={
                    edge !== undefined && (
                      <p className="row unknown">
                        A way is chosen.
                        <button type="button" className="btn sm" onClick={takeOutEdge}>
                          Remove the way
                        </button>
                      </p>
                    )
                  }
                />
              ) : selected.length > 1 ? (
                <SeveralPanel count={selected.length} align={align} remove={() => takeOut(selected)} />
              ) : (
                <DefinitionPanel problems={(field) => verdict.findings.filter((each) => each.step === undefined && (each.path.startsWith("steps") ? "" : (each.field ?? "")) === field).map((each) => each.text)} />
              )}
              <Given variables={variables} readable={readable(variables)} change={setVariables} />
            </section>
          </div>
        )}
        {view === "json" && (
          <div className="source">
            <textarea ref={source} className="mono" aria-label="The definition as JSON" spellCheck={false} value={inLines(text)} onChange={(event) => edit((now) => endedAs(now, event.target.value), "json")} />
            {broken && (
              <p className="wrong" role="status">
                Line {text.slice(0, broken.at).split("\n").length}: {broken.message}. The picture shows what could be read last.
              </p>
            )}
          </div>
        )}
        {view === "try" &&
          (broken || verdict.check?.valid === false ? (
            <p className="wrong note">{broken ? "It can be tried once the text is JSON." : "It can be tried once its problems are mended: they are listed below."}</p>
          ) : (
            <TryIt draft={draft} checked={!verdict.stale} trial={trying} change={setTrial} save={download} say={say} />
          ))}
        {view === "differences" && <Differences draft={draft} base={began} version={version} valid={verdict.check?.valid === true} selected={one} select={(id) => select(id === undefined ? [] : [id])} />}
        <Findings verdict={verdict} draft={draft} show={show} edit={edit} />
      </div>
      {removing && (
        <RemoveDialog
          ids={removing}
          next={successorsOf(text, removing)}
          close={() => {
            setRemoving(undefined);
            focusLater(removing[0]!);
          }}
          act={(instead) => {
            edit((now) => removeSteps(now, removing, instead));
            select(instead === undefined ? [] : [instead]);
            if (instead !== undefined) focusLater(instead);
          }}
        />
      )}
      {hanging && (
        <HangDialog
          {...hanging}
          steps={draft.definition.steps}
          close={() => {
            setHanging(undefined);
            focusLater(hanging.onto);
          }}
          act={(to, timer) => {
            const made = addBoundary(text, hanging.type, hanging.onto, to, timer);
            edit(() => made);
            select([hanging.onto]);
            say(`Added to ${hanging.onto}`);
            focusLater(hanging.onto);
          }}
        />
      )}
      {uploading && (
        <UploadDialog
          text={text}
          base={base}
          draft={draft}
          version={version}
          began={began.definition.id}
          verdict={verdict}
          close={() => setUploading(false)}
          done={(made) => {
            // The newest version would stand in place of the draft.
            if (made.version !== made.latest) return changeAddress({ same: String(made.version), latest: String(made.latest), uploaded: undefined }, true);
            keep(place, undefined);
            // What comes next is of this version, also where there was none before.
            go(`/modeller/${encodeURIComponent(made.id)}?${made.same ? "same" : "uploaded"}=${made.version}`, { replace: true });
          }}
        />
      )}
      {(params.get("uploaded") || params.get("same")) && (
        <p className="uploaded" role="status">
          {params.get("same") ? sameText(Number(params.get("same")), Number(params.get("latest") ?? params.get("same"))) : `Uploaded as version ${params.get("uploaded")}.`} <Link href={`/definitions/${encodeURIComponent(draft.definition.id)}`}>Show it</Link>
        </p>
      )}
    </EditingContext>
  );
}

function focusedStep(): string[] {
  const id = document.activeElement?.closest<SVGElement>("[data-step]")?.dataset.step;
  return id === undefined ? [] : [id];
}

const FOCUS_WITHIN_FRAMES = 1_200;

/** The layout comes some frames later, and a dialog that is taken out leaves the focus to nobody. Whoever has gone
 * elsewhere meanwhile stays there. */
function focusLater(id: string, from = document.activeElement, frames = FOCUS_WITHIN_FRAMES): void {
  requestAnimationFrame(() => {
    const now = document.activeElement;
    if (frames === 0 || (now !== from && now !== document.body)) return;
    const element = stepElement(id);
    element?.focus(); // nothing outside of a dialog takes it while that is open
    if (!element || document.activeElement !== element) focusLater(id, from, frames - 1);
  });
}

/** Their ids change with what is drawn before them. */
function isSame(one: DraftEdge, other: DraftEdge): boolean {
  return one.from === other.from && one.to === other.to && JSON.stringify(one.path) === JSON.stringify(other.path);
}

/** As a text area has it. */
function inLines(text: string): string {
  return text.replaceAll("\r\n", "\n");
}

/** What was typed in a text area, with the line ends of the text before. */
function endedAs(before: string, typed: string): string {
  return /\r\n/.test(before) && !/(^|[^\r])\n/.test(before) ? typed.replaceAll("\n", "\r\n") : typed;
}

/** Selects a part of the text, and scrolls to it. */
function markIn(area: HTMLTextAreaElement, text: string, { start, end }: { start: number; end: number }): void {
  const shown = (at: number) => inLines(text.slice(0, at));
  const line = shown(start).split("\n").length - 1;
  area.scrollTop = (area.scrollHeight * line) / area.value.split("\n").length - area.clientHeight / 3;
  area.focus({ preventScroll: true });
  area.setSelectionRange(shown(start).length, shown(end).length);
}

function readable(variables: string): boolean {
  try {
    return parse(variables).kind === "object";
  } catch {
    return false;
  }
}

function exampleOf(draft: Draft): string {
  const node = draft.root.members?.find((one) => one.key === "metadata")?.value.members?.find((one) => one.key === "exampleVariables")?.value;
  return node?.kind === "object" ? draft.text.slice(node.start, node.end) : "{}";
}
