// JSON in an editor: colours, folds, indentation, and the bracket that belongs to the one at the caret. It is read by words
// of a line, as no word of it goes over one: a parser for that alone would be 11 kB more.
import { foldService, indentService } from "@codemirror/language";
import { type EditorState, type Extension, StateField, type Text } from "@codemirror/state";
import { Decoration, type DecorationSet, EditorView, ViewPlugin } from "@codemirror/view";
import { bracketsOf, wordsOf } from "./jsonwords";

const coloured = new Map(["propertyName", "string", "number", "bool", "null", "punctuation"].map((kind) => [kind, Decoration.mark({ class: `tok-${kind}` })]));

const colours = ViewPlugin.define(
  (view) => ({
    drawn: drawn(view),
    update(update) {
      if (update.docChanged || update.viewportChanged) this.drawn = drawn(update.view);
    },
  }),
  { decorations: (one) => one.drawn },
);

/** Of what is in sight, which may be several parts of one long line. */
export function drawn({ state, visibleRanges }: Pick<EditorView, "state" | "visibleRanges">): DecorationSet {
  let past = 0;
  const found = visibleRanges.flatMap(({ from, to }) => {
    const start = state.doc.lineAt(from).from;
    const seen = wordsOf(state.sliceDoc(start, state.doc.lineAt(to).to)).filter((word) => start + word.from >= past && start + word.from < to && start + word.to > from);
    past = to;
    return seen.map((word) => coloured.get(word.kind)!.range(start + word.from, start + word.to));
  });
  return Decoration.set(found);
}

const pairs = new WeakMap<Text, ReadonlyMap<number, number>>();

function pairsOf({ doc }: EditorState): ReadonlyMap<number, number> {
  const known = pairs.get(doc) ?? bracketsOf(doc.toString());
  pairs.set(doc, known);
  return known;
}

/** What stands between the last bracket that a line opens and the one that closes it further down. */
const folds = foldService.of((state, from, to) => {
  const all = pairsOf(state);
  for (let at = to - 1; at >= from; at--) {
    const close = all.get(at);
    if (close !== undefined && close > to) return { from: at + 1, to: close };
  }
  return null;
});

const indents = indentService.of((context, pos) => {
  const line = context.state.doc.lineAt(pos);
  const before = context.simulatedBreak === null ? (line.number > 1 ? context.state.doc.line(line.number - 1) : undefined) : context.lineAt(pos, -1);
  if (!before) return 0;
  const closes = /^\s*[}\]]/.test(context.textAfterPos(pos)) ? 1 : 0;
  const opens = /[{[]\s*$/.test(before.text) ? 1 : 0;
  return Math.max(0, context.lineIndent(before.from) + (opens - closes) * context.unit);
});

const [matches, alone] = ["matching", "nonmatching"].map((what) => Decoration.mark({ class: `cm-${what}Bracket` }));

function bracketsAt(state: EditorState): DecorationSet {
  const { main } = state.selection;
  const at = [main.head - 1, main.head].find((place) => place >= 0 && /[{}[\]]/.test(state.sliceDoc(place, place + 1)));
  if (!main.empty || at === undefined) return Decoration.none;
  const all = pairsOf(state);
  const other = all.get(at);
  if (other !== undefined) return Decoration.set([at, other].map((place) => matches!.range(place, place + 1)), true);
  // One that is text of a string belongs to none.
  const line = state.doc.lineAt(at);
  return wordsOf(line.text).some(({ kind, from }) => kind === "punctuation" && line.from + from === at) ? Decoration.set(alone!.range(at, at + 1)) : Decoration.none;
}

const brackets = StateField.define<DecorationSet>({
  create: bracketsAt,
  update: (before, { docChanged, selection, state }) => (docChanged || selection ? bracketsAt(state) : before),
  provide: (field) => EditorView.decorations.from(field),
});

export const jsonText: Extension = [colours, folds, indents, brackets];
export const jsonColours: Extension = colours;
