// The modeller: a definition as a picture, as fields and as text, all of the one text that is exported and uploaded.
import { useQuery } from "@tanstack/react-query";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { Link, useLocation } from "wouter";
import { useAddress } from "../address";
import { textOf } from "../api/asks";
import { draftKey } from "../drafts";
import { endsShortcut, takesKeys } from "../keyboard";
import type { Mark } from "../editor/source";
import type { Point } from "../graph/layout";
import { Outline } from "../graph/outline";
import { later } from "../parts/later";
import { Problem, Skeleton } from "../parts/states";
import { useCan, useMe } from "../session";
import type { Extent } from "../graph/viewport";
import type { Hanging } from "./asks";
import { Canvas } from "./canvas";
import { type Finding, toldOf, useNotes, useVerdict } from "./check";
import { useClipboard } from "./clipboard";
import { EditingContext } from "./context";
import { type Draft, type DraftEdge, pathIn, rangeOf, readDraft } from "./draft";
import { stepElement } from "./drawn";
import { addBoundary, addStep, beginElsewhere, connect, disconnect, EMPTY, insertOnWay, isLedTo, leadElsewhere, mayHang, pasteSteps, pin, removeSteps, successorsOf, tidy } from "./edits";
import { download, ImportButton } from "./files";
import { focusField, focusLater } from "./focus";
import { keep, useHistory } from "./history";
import { JsonProblem, parse } from "./json";
import { Findings } from "./findings";
import { Given } from "./given";
import { boundaryOfKey, type BoundaryType, isBoundaryType, Palette, typeOfKey } from "./palette";
import { DefinitionPanel, StepPanel } from "./panel";
import { usePressed, usePressedSoon } from "./press";
import { Source } from "./source";
import { OtherTabs } from "./tabs";
import { begun, type Trial } from "./trial";
import { sameText, UploadButton } from "./upload";
import { useWords } from "./words";
import "./modeller.css";

const VIEWS = { picture: "Picture", json: "JSON", try: "Try it", differences: "Differences" } as const;
type View = keyof typeof VIEWS;
/** Laid out within about two seconds (spec of the console, section 4). */
const DRAWN_MAX_STEPS = 500;

const Differences = later(() => import("./differences").then((tab) => tab.Differences));
const TryIt = later(() => import("./try").then((tab) => tab.TryIt));

/** Without an id: a definition that is new. */
export function ModellerPage({ id }: { id?: string }) {
  const [params] = useAddress();
  const version = Number(params.get("version")) || undefined;
  const found = useQuery({ ...textOf(id, version), enabled: id !== undefined });
  const me = useMe();
  const missing = me.data === undefined ? me : id !== undefined && found.data === undefined ? found : undefined;
  if (missing?.error) return <Problem error={missing.error} retry={() => missing.refetch()} />;
  // Whose draft it is has to be known before one is shown.
  if (me.data === undefined) return <Skeleton />;
  if (id !== undefined && found.data === undefined) return <Skeleton />;
  const place = draftKey(me.data.name, found.data === undefined ? "" : `${id} ${found.data.version}`);
  return <Modeller key={place} place={place} base={found.data?.text ?? EMPTY} version={found.data?.version} />;
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
  const { history, change: changeText, edit, clash, settle, isKept } = useHistory(place, base);
  const text = history.now;
  const { draft, broken } = useDraft(text);
  const began = useMemo(() => readDraft(base), [base]);
  const verdict = useVerdict(text, draft);
  const [chosen, choose] = useState<readonly string[]>([]);
  const [chosenWay, chooseWay] = useState<DraftEdge>();
  const [removing, setRemoving] = useState<readonly string[]>();
  const [hanging, setHanging] = useState<Hanging>();
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
  const backOfTrial = useRef<() => void>(undefined);
  const words = useWords(draft, verdict.check, version, given);
  const flawed = useMemo(() => new Set(verdict.findings.flatMap((one) => (one.hint ? [] : [JSON.stringify(pathIn(draft, one.path))]))), [verdict.findings, draft]);
  const told = useMemo(() => toldOf(verdict.findings), [verdict.findings]);
  const editing = useMemo(() => ({ draft, edit, words, variables: given, flawed, told }), [draft, edit, words, given, flawed, told]);
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
  const put = (place: (boxes: ReadonlyMap<string, Extent>) => ReadonlyMap<string, Point>) => {
    const boxes = new Map(selected.flatMap((id): [string, Extent][] => (stand.current.has(id) ? [[id, stand.current.get(id)!]] : [])));
    edit((now) => pin(now, place(boxes)));
  };
  const takeOut = useCallback(
    (ids: readonly string[]) => {
      if (ids.length === 0 || broken) return;
      const next = successorsOf(text, ids);
      if (next.length > 1 || (next.length === 0 && isLedTo(text, ids))) setRemoving(ids);
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
  const pasted = (copied: string) => {
    const made = pasteSteps(text, copied);
    const last = made.ids.at(-1);
    if (last === undefined) throw new JsonProblem("no steps", 0);
    edit(() => made.text);
    select(made.ids);
    say(`Pasted ${made.ids.length}`);
    focusLater(last);
  };
  const clipboard = useClipboard({ text, off: broken !== undefined, selected, owner: place.slice(0, place.indexOf(" ")), takeOut: () => takeOut(selected), paste: pasted, refuse });
  const pressed = usePressed(removing ?? hanging ?? (selected.length > 1 && selected));
  usePressedSoon();
  const oneNow = useRef(one);
  oneNow.current = one;
  const keys = (event: KeyboardEvent | React.KeyboardEvent) => {
    const at = event.target as HTMLElement;
    if (takesKeys(at)) {
      if (event.key === "Escape" && one !== undefined) {
        stepElement(one)?.focus();
        // With another id it is another element.
        requestAnimationFrame(() => oneNow.current !== undefined && focusLater(oneNow.current, document.body));
      }
      return;
    }
    const command = event.ctrlKey || event.metaKey;
    if (command && event.key.toLowerCase() === "z" && view === "try") backOfTrial.current?.();
    else if (command && event.key.toLowerCase() === "z") change({ do: event.shiftKey ? "redo" : "undo" });
    else if (command && event.key.toLowerCase() === "y") change({ do: "redo" });
    else if (command && event.key.toLowerCase() === "a" && at.closest(".surface")) select([...draft.places.keys()]);
    else if (command || event.altKey) return;
    else if ((event.key === "Delete" || event.key === "Backspace") && at.closest(".surface, .palette")) {
      if (edge !== undefined) takeOutEdge();
      else takeOut(selected.length ? selected : focusedStep());
    } else if (event.key === "Escape") select([]);
    else if (view === "picture" && !at.closest(".panel") && !endsShortcut(event.key)) {
      const [type, event_] = [typeOfKey(event.key), boundaryOfKey(event.key)];
      const onto = selected.at(-1) ?? focusedStep()[0];
      if (event_ !== undefined) hang(event_, onto);
      else if (type !== undefined) add(type, onto);
      else return;
    } else return;
    event.preventDefault();
  };
  const keysNow = useRef(keys);
  keysNow.current = keys;
  useEffect(() => {
    // After a press beside all that takes keys, and when the page was just opened by a key or from the rail.
    const elsewhere = (event: KeyboardEvent) => (event.target as Element).matches("body, #main, .nav *") && keysNow.current(event);
    document.addEventListener("keydown", elsewhere);
    return () => document.removeEventListener("keydown", elsewhere);
  }, []);
  const open = useCallback((id: string) => {
    select([id]);
    requestAnimationFrame(() => document.querySelector<HTMLInputElement>(".modeller .panel input")?.select());
  }, [select]);
  const mark = useRef<Mark>(null);
  const show = ({ step, path, character, place: field }: Finding) => {
    if (view === "json" && mark.current && !broken) return mark.current(rangeOf(draft, path, character));
    changeAddress({ view: undefined }, true);
    select(step === undefined ? [] : [step]);
    focusField(field);
  };
  return (
    <EditingContext value={editing}>
      <div className="modeller" onKeyDown={keys}>
        <header className="mhead">
          <h1>{draft.definition.name || draft.definition.id || "Without a name"}</h1>
          {version !== undefined && <span className="tag">from v{version}</span>}
          <span className="mute">{text === base ? "no changes" : `${history.past.length === 1 ? "1 change" : `${history.past.length} changes`}, ${isKept ? "kept in this browser" : clash ? "not kept" : "not kept: too much for this browser, Export keeps it in a file"}`}</span>
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
              text={text}
              over={text === base ? undefined : `What was changed in ${draft.definition.name || draft.definition.id || "it"} is not uploaded.`}
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
              <UploadButton
                text={text}
                base={base}
                draft={draft}
                version={version}
                began={began.definition.id}
                verdict={verdict}
                disabled={broken !== undefined}
                compared={view === "differences"}
                done={(made) => {
                  // The newest version would stand in place of the draft.
                  if (made.version !== made.latest) return changeAddress({ same: String(made.version), latest: String(made.latest), uploaded: undefined }, true);
                  keep(place, undefined);
                  // What comes next is of this version, also where there was none before.
                  go(`/modeller/${encodeURIComponent(made.id)}?${made.same ? "same" : "uploaded"}=${made.version}`, { replace: true });
                }}
              />
            )}
          </div>
          <OtherTabs
            place={place}
            clash={clash}
            choose={(ours) => {
              settle(ours);
              if (!ours) edit(() => clash!.text ?? base);
            }}
          />
        </header>
        {view === "picture" && (
          <div className="desk">
            <Palette add={(type) => add(type, one)} hang={(type) => hang(type, one)} refused={broken ? "The text is no JSON. Repair it there first: until then nothing changes here." : refused} />
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
                clipboard={clipboard}
                remove={() => takeOut(selected)}
              />
            )}
            <section className="panel props" aria-label="Properties" tabIndex={0}>
              {one !== undefined ? (
                <StepPanel
                  key={draft.places.get(one)}
                  id={one}
                  renamed={(to) => select([to])}
                  remove={() => takeOut([one])}
                  clipboard={clipboard}
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
                pressed && <pressed.SeveralPanel count={selected.length} put={put} remove={() => takeOut(selected)} clipboard={clipboard} />
              ) : (
                <DefinitionPanel {...clipboard} />
              )}
              <Given variables={variables} readable={readable(variables)} change={setVariables} />
            </section>
          </div>
        )}
        {view === "json" && <Source text={text} draft={draft} broken={broken} verdict={verdict} change={(typed, of) => edit(() => typed, of)} step={(way) => change({ do: way })} mark={mark} />}
        {view === "try" &&
          (broken || verdict.check?.valid === false ? (
            <p className="wrong note">{broken ? "You can try it once the text is JSON." : "You can try it once its problems are repaired. They are listed below."}</p>
          ) : (
            <TryIt draft={draft} checked={!verdict.stale} trial={trying} change={setTrial} back={backOfTrial} save={download} say={say} />
          ))}
        {view === "differences" && <Differences draft={draft} base={began} version={version} latest={verdict.check?.latest} valid={verdict.check?.valid === true} selected={one} select={(id) => select(id === undefined ? [] : [id])} />}
        <Findings verdict={verdict} draft={draft} show={show} edit={edit} />
      </div>
      {removing && pressed && (
        <pressed.RemoveDialog
          ids={removing}
          next={successorsOf(text, removing)}
          others={[...draft.places.keys()].filter((id) => !removing.includes(id) && !successorsOf(text, removing).includes(id))}
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
      {hanging && pressed && (
        <pressed.HangDialog
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

/** Their ids change with what is drawn before them. */
function isSame(one: DraftEdge, other: DraftEdge): boolean {
  return one.from === other.from && one.to === other.to && JSON.stringify(one.path) === JSON.stringify(other.path);
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
