// A definition's JSON with colours, folding, search and what is amiss at its characters. It has no history of its own: its
// steps back and forth are the draft's.
import { copyLineDown, copyLineUp, deleteLine, indentLess, indentMore, indentSelection, indentWithTab, insertBlankLine, moveLineDown, moveLineUp, selectLine, simplifySelection, standardKeymap, toggleTabFocusMode } from "@codemirror/commands";
import { foldGutter, foldKeymap } from "@codemirror/language";
import { type Diagnostic, lintGutter, lintKeymap, setDiagnostics } from "@codemirror/lint";
import { EditorState, Prec, StateEffect } from "@codemirror/state";
import { EditorView, highlightActiveLine, highlightSpecialChars, type KeyBinding, keymap, lineNumbers, type ViewUpdate } from "@codemirror/view";
import { type Ref, useEffect, useImperativeHandle, useLayoutEffect, useRef, useState } from "react";
import { jsonText } from "./jsontext";
import { common, Mirror } from "./parts";
import { isGoneOn, Lines, type Typed } from "./texts";

export type Mark = (range: { start: number; end: number }) => void;

export interface SourceProps {
  label: string;
  describedBy: string;
  text: string;
  /** Undefined: not known yet, what was told last may stand. */
  flaws: readonly { start: number; end: number; hint: boolean; text: string }[] | undefined;
  /** `of`: what is typed on belongs to one step back. */
  change: (text: string, of: string) => void;
  step: (way: "undo" | "redo") => void;
  mark: Ref<Mark>;
  /** What somebody has selected in the plain text when it comes: where that began, and where the caret is. */
  at: { anchor: number; head: number } | undefined;
  /** In a form the tabulator goes to the next field. */
  leavesByTab?: boolean;
}

export default function CodeSource(props: SourceProps) {
  const { text, flaws, mark } = props;
  const box = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView>(undefined);
  const latest = useRef(props);
  latest.current = props;
  const lines = useRef(new Lines(text));
  const mirror = useRef<Mirror>(undefined);
  const [heard, hear] = useState(0);
  const [isAway, setAway] = useState(false);
  // Before `mark` can be called.
  useLayoutEffect(() => {
    const groups = new Groups();
    mirror.current = new Mirror((shown, times) => {
      latest.current.change(lines.current.kept(shown), groups.last);
      hear(times); // comes with the text
    });
    const extensions = [groups.listener, mirror.current.listener, ...extensionsOf((way) => latest.current.step(way), latest.current, finder(setAway))];
    const { at } = latest.current;
    const doc = lines.current.shown;
    const within = (place = 0) => Math.min(place, doc.length);
    const made = new EditorView({ state: EditorState.create({ doc, selection: { anchor: within(at?.anchor), head: within(at?.head) }, extensions }), parent: box.current! });
    view.current = made;
    if (at !== undefined) made.focus();
    return () => made.destroy();
  }, []);
  useEffect(() => {
    lines.current = new Lines(text);
    mirror.current!.take(view.current!, lines.current.shown, heard, (end) => ({ selection: { anchor: end }, scrollIntoView: true }));
  }, [text, heard]);
  useEffect(() => {
    if (flaws) view.current!.dispatch(setDiagnostics(view.current!.state, flaws.map((one) => placed(one, lines.current, view.current!.state.doc.length))));
  }, [flaws]);
  useImperativeHandle(
    mark,
    () => (range) => {
      const [anchor, head] = [lines.current.place(range.start), lines.current.place(range.end)];
      view.current!.dispatch({ selection: { anchor, head }, effects: EditorView.scrollIntoView(anchor, { y: "start", yMargin: 60 }) });
      view.current!.focus();
    },
    [],
  );
  return (
    <>
      <div className="code" ref={box} />
      {isAway && (
        <p className="wrong" role="status">
          Searching could not be loaded: with the next press the browser searches what is in sight.
        </p>
      )}
    </>
  );
}

/** CodeMirror's `defaultKeymap` without what is of comments, of syntax trees and of several carets, which JSON here has none of. */
const EDITING: readonly KeyBinding[] = [
  { key: "Alt-ArrowUp", run: moveLineUp },
  { key: "Shift-Alt-ArrowUp", run: copyLineUp },
  { key: "Alt-ArrowDown", run: moveLineDown },
  { key: "Shift-Alt-ArrowDown", run: copyLineDown },
  { key: "Escape", run: simplifySelection },
  { key: "Mod-Enter", run: insertBlankLine },
  { key: "Alt-l", mac: "Ctrl-l", run: selectLine },
  { key: "Mod-[", run: indentLess },
  { key: "Mod-]", run: indentMore },
  { key: "Mod-Alt-\\", run: indentSelection },
  { key: "Shift-Mod-k", run: deleteLine },
  { key: "Ctrl-m", mac: "Shift-Alt-m", run: toggleTabFocusMode },
];

/** Searching is a file of its own; with it come the other keys that it has. Where it can't be loaded that is told, and the
 * next press is the browser's own search, while it is asked for again. */
function finder(say: (isAway: boolean) => void): (view: EditorView) => boolean {
  let [isAsked, isAway] = [false, false];
  return (view) => {
    const handled = !isAway;
    if (isAsked) return handled;
    isAsked = true;
    void import("@codemirror/search").then(
      ({ openSearchPanel, search, searchKeymap }) => {
        view.dispatch({ effects: StateEffect.appendConfig.of([search({ top: true }), Prec.high(keymap.of(searchKeymap))]) });
        say(false);
        if (handled) openSearchPanel(view);
      },
      () => {
        // The engine is away, or a newer one has other files.
        [isAsked, isAway] = [false, true];
        say(true);
      },
    );
    return handled;
  };
}

type Flaw = NonNullable<SourceProps["flaws"]>[number];

function placed({ start, end, hint, text }: Flaw, lines: Lines, length: number): Diagnostic {
  const within = (at: number) => Math.min(lines.place(at), length);
  return { from: within(start), to: within(end), severity: hint ? "info" : "error", message: text };
}

function extensionsOf(step: SourceProps["step"], { label, describedBy, leavesByTab }: SourceProps, find: (view: EditorView) => boolean) {
  const undo = () => {
    step("undo");
    return true;
  };
  const redo = () => {
    step("redo");
    return true;
  };
  return [
    common(),
    lineNumbers(),
    lintGutter(),
    foldGutter(),
    highlightSpecialChars(),
    highlightActiveLine(),
    jsonText,
    EditorView.contentAttributes.of({ "aria-label": label, "aria-describedby": describedBy, tabindex: "0" }),
    EditorView.clipboardInputFilter.of((text) => text.replace(/\r\n?/g, "\n")),
    // From a menu, or by a shaken phone.
    EditorView.domEventHandlers({
      beforeinput: (event) => (event.inputType === "historyUndo" ? undo() : event.inputType === "historyRedo" && redo()),
    }),
    keymap.of([
      { key: "Mod-z", run: undo, preventDefault: true },
      { key: "Mod-y", mac: "Mod-Shift-z", run: redo, preventDefault: true },
      { key: "Mod-Shift-z", run: redo, preventDefault: true },
      ...(leavesByTab ? [] : [indentWithTab]),
      ...lintKeymap,
      ...["Mod-f", "F3", "Mod-g"].map((key) => ({ key, run: find })),
      ...foldKeymap,
      ...EDITING,
      ...standardKeymap,
    ]),
  ];
}

/** One for the page: an editor that comes again goes on with none of those before. */
let groupsBegun = 0;

/** Of what is typed, what belongs to one step back. */
class Groups {
  private before: Typed | undefined;

  get last(): string {
    return `json ${groupsBegun}`;
  }

  readonly listener = EditorView.updateListener.of((update) => {
    if (!update.docChanged) return;
    const typed = typedBy(update);
    if (!isGoneOn(this.before, typed.old)) groupsBegun += 1;
    this.before = typed.now;
  });
}

function typedBy({ transactions, changes }: ViewUpdate): { old: Typed; now: Typed } {
  const is = (event: string) => transactions.some((one) => one.isUserEvent(event));
  const kind = is("input.type") ? "type" : is("delete") ? "delete" : "other";
  const at = Date.now();
  let [old, now] = [{ kind, at, from: 0, to: 0 } as Typed, { kind, at, from: 0, to: 0 } as Typed];
  changes.iterChangedRanges((fromA, toA, fromB, toB) => {
    old = { ...old, from: fromA, to: toA };
    now = { ...now, from: fromB, to: toB };
  });
  return { old, now };
}
