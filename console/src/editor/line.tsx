// One line of code that grows with its text: what it says is coloured, completed and explained by what is known.
import { acceptCompletion, autocompletion, closeCompletion, CompletionContext, type CompletionResult, completionStatus, currentCompletions, insertCompletionText, moveCompletionSelection, pickedCompletion, setSelectedCompletion, startCompletion } from "@codemirror/autocomplete";
import { history, historyKeymap, standardKeymap } from "@codemirror/commands";
import { setDiagnostics } from "@codemirror/lint";
import { Compartment, EditorState, Prec, StateEffect } from "@codemirror/state";
import { Decoration, EditorView, hoverTooltip, keymap, ViewPlugin } from "@codemirror/view";
import { useEffect, useLayoutEffect, useRef, useState } from "react";
import { helpOf, matching, tokensOf, wantedAt, wordBefore } from "../modeller/completion";
import type { Word } from "../modeller/context";
import { common, Mirror } from "./parts";

export interface LineProps {
  label: string;
  text: string;
  describedBy?: string | undefined;
  invalid?: boolean | undefined;
  template?: boolean | undefined;
  words: readonly Word[];
  /** JSON text of those that expressions are tried with. */
  variables: string;
  /** What the engine can't read. */
  wrong?: { from: number; to: number; reason: string } | undefined;
  /** Nobody has typed it yet: all of it is selected when somebody comes, and so typed over. */
  begun?: boolean | undefined;
  /** Somebody is in it, and where: what is selected begins at `anchor`. */
  focused: boolean;
  at: number;
  anchor: number;
  put: (text: string) => void;
  caret: (at: number, anchor: number) => void;
  enter: () => void;
  /** With what stands there: the page may not yet have drawn what it was told last. */
  leave: (text: string) => void;
  done: (text: string) => void;
}

/** What is known has changed. */
const renewed = StateEffect.define<null>();
const past = new Compartment();

export default function CodeLine(props: LineProps) {
  const { label, text, describedBy, invalid, words, wrong } = props;
  const box = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView>(undefined);
  const latest = useRef(props);
  latest.current = props;
  const mirror = useRef<Mirror>(undefined);
  const [heard, hear] = useState(0);
  // Before the next key: the field whose place it takes has gone, and with it the focus.
  useLayoutEffect(() => {
    mirror.current = new Mirror((typed, times) => {
      latest.current.put(typed);
      hear(times); // comes with the text
    });
    const { text: doc, focused, at, anchor } = latest.current;
    const state = EditorState.create({ doc, selection: { anchor: Math.min(anchor, doc.length), head: Math.min(at, doc.length) }, extensions: [mirror.current.listener, ...extensions(() => latest.current)] });
    const made = new EditorView({ state, parent: box.current! });
    view.current = made;
    if (focused) made.focus();
    return () => made.destroy();
  }, []);
  useEffect(() => {
    if (!mirror.current!.take(view.current!, text, heard)) return;
    // It may be of another step, or another row: what was typed before is not undone in it.
    view.current!.dispatch({ effects: past.reconfigure([]) });
    view.current!.dispatch({ effects: past.reconfigure(history()) });
  }, [text, heard]);
  const [isNew, isMarked] = [useRef(true), useRef(false)];
  useEffect(() => {
    // One that has just come knows: each of these takes as long as making it does.
    if (!isNew.current) view.current!.dispatch({ effects: renewed.of(null) });
    isNew.current = false;
  }, [label, describedBy, invalid, words, isNew]);
  const [from, to, reason] = [wrong?.from, wrong?.to, wrong?.reason];
  useEffect(() => {
    if (from === undefined && !isMarked.current) return;
    isMarked.current = from !== undefined;
    const { state } = view.current!;
    const within = (at: number) => Math.min(at, state.doc.length);
    const found = from === undefined ? [] : [{ from: within(from), to: within(to!), severity: "error" as const, message: reason! }];
    view.current!.dispatch(setDiagnostics(state, found));
  }, [from, to, reason, isMarked]);
  return <div ref={box} />;
}

function extensions(now: () => LineProps) {
  const { source, chooser, take } = completion(now);
  return [
    common(),
    past.of(history()),
    EditorView.lineWrapping,
    EditorView.editorAttributes.of({ class: "in mono" }),
    EditorView.contentAttributes.of(() => {
      const { label, describedBy, invalid } = now();
      return { "aria-label": label, "aria-multiline": "false", tabindex: "0", "aria-invalid": String(Boolean(invalid)), ...(describedBy ? { "aria-describedby": describedBy } : {}) };
    }),
    EditorView.clipboardInputFilter.of((text) => text.replace(/\s*[\r\n]+\s*/g, " ")),
    EditorView.updateListener.of(({ state, selectionSet, docChanged }) => {
      if (selectionSet || docChanged) now().caret(state.selection.main.head, state.selection.main.anchor);
    }),
    EditorView.domEventHandlers({
      focus: (_, view) => {
        if (now().begun) view.dispatch({ selection: { anchor: 0, head: view.state.doc.length } });
        now().enter();
      },
      blur: (_, view) => now().leave(view.state.doc.toString()),
      mousedown: (_, view) => {
        if (!now().begun) return false;
        view.focus(); // without the click's place, which would take the selection's
        return true;
      },
    }),
    colours(now),
    hoverTooltip((shown, pos) => {
      const text = shown.state.doc.toString();
      const told = helpOf(now().words, text, pos);
      return told ? { pos: pos - wordBefore(text, pos).length, above: true, create: () => ({ dom: helpBox(told.note, told.help!) }) } : null;
    }),
    autocompletion({ override: [source], selectOnOpen: false, defaultKeymap: false, icons: false, activateOnTypingDelay: 0, interactionDelay: 0 }),
    chooser,
    Prec.high(
      keymap.of([
        { key: "Ctrl-Space", run: startCompletion },
        { key: "ArrowDown", run: moveCompletionSelection(true) },
        { key: "ArrowUp", run: moveCompletionSelection(false) },
        { key: "Escape", run: closeShown, stopPropagation: true },
        { key: "Tab", run: take },
        {
          key: "Enter",
          run: (view) => {
            if (!take(view)) now().done(view.state.doc.toString());
            return true;
          },
        },
      ]),
    ),
    keymap.of([...historyKeymap, ...standardKeymap]),
  ];
}

/** Escape is meant for a list that is seen: one that is only being asked for goes, and so does the key, to whom it was meant for. */
function closeShown(view: EditorView): boolean {
  const isShown = view.dom.querySelector(".cm-tooltip-autocomplete") !== null;
  return closeCompletion(view) && isShown;
}

/** A list that comes by itself takes Enter and Tab only where letters of a word were typed. */
function completion(now: () => LineProps) {
  let asked = false;
  const source = ({ state, pos, explicit }: CompletionContext): CompletionResult | null => {
    const { words, variables, template } = now();
    const text = state.doc.toString();
    asked = explicit;
    if ((template && !text.startsWith("${")) || (!explicit && wantedAt(words, text, pos) === "nothing")) return null;
    const options = matching(words, variables, text, pos).map(({ name, call, note, help }) => ({ label: name, detail: note, apply: call ? `${name}(` : name, ...(help ? { info: help } : {}) }));
    return options.length ? { from: pos - wordBefore(text, pos).length, options, filter: false } : null;
  };
  let seen: readonly unknown[] = [];
  const chooser = EditorView.updateListener.of(({ state, view }) => {
    const shown = currentCompletions(state);
    if (shown === seen || shown.length === 0) return;
    seen = shown;
    if (asked || wantedAt(now().words, state.doc.toString(), state.selection.main.head) === "taken") view.dispatch({ effects: setSelectedCompletion(0) });
  });
  // Where the list of the last letter is still to come, what it will begin with: the same keys do the same, however fast.
  const take = (view: EditorView): boolean => {
    if (acceptCompletion(view)) return true;
    const { state } = view;
    const pos = state.selection.main.head;
    if (completionStatus(state) !== "pending" || wantedAt(now().words, state.doc.toString(), pos) !== "taken") return false;
    const found = source(new CompletionContext(state, pos, false));
    const first = found?.options[0];
    if (!first) return false;
    view.dispatch({ ...insertCompletionText(state, first.apply as string, found.from, pos), annotations: pickedCompletion.of(first) });
    return true;
  };
  return { source, chooser, take };
}

function colours(now: () => LineProps) {
  const drawn = ({ state }: EditorView) => {
    const { words, template } = now();
    return Decoration.set(tokensOf(words, state.doc.toString(), template === true).map(({ from, to, kind }) => Decoration.mark({ class: `code-${kind}` }).range(from, to)));
  };
  return ViewPlugin.define(
    (view) => ({
      drawn: drawn(view),
      update(update) {
        if (update.docChanged || update.transactions.some((one) => one.effects.some((each) => each.is(renewed)))) this.drawn = drawn(update.view);
      },
    }),
    { decorations: (one) => one.drawn },
  );
}

function helpBox(note: string, help: string): HTMLElement {
  const box = document.createElement("div");
  box.className = "code-help";
  box.role = "tooltip";
  const signature = box.appendChild(document.createElement("b"));
  signature.className = "mono";
  signature.textContent = note;
  box.append(` ${help}`);
  return box;
}
