import { EditorState, type TransactionSpec } from "@codemirror/state";
import type { EditorView } from "@codemirror/view";
import { expect, test } from "vitest";
import { Mirror } from "./parts";

/** As much of a view as it takes. */
class Shown {
  state: EditorState;
  dispatched = 0;
  constructor(
    readonly mirror: Mirror,
    doc: string,
  ) {
    this.state = EditorState.create({ doc, extensions: mirror.listener });
  }
  dispatch(spec: TransactionSpec, own = true) {
    const transaction = this.state.update(spec);
    this.state = transaction.state;
    this.dispatched += 1;
    const update = { docChanged: transaction.docChanged, state: this.state, transactions: [transaction] };
    if (own) for (const told of this.state.facet((this.mirror.listener as unknown as { facet: Parameters<EditorState["facet"]>[0] }).facet) as ((one: unknown) => void)[]) told(update);
  }
  get text() {
    return this.state.doc.toString();
  }
  take(text: string, heard: number) {
    return this.mirror.take(this as unknown as EditorView, text, heard);
  }
  type(insert: string) {
    this.dispatch({ changes: { from: this.text.length, insert } });
  }
}

test("what was typed meanwhile stays when the page is late, and what is news is put in", () => {
  const told: [string, number][] = [];
  const shown = new Shown(new Mirror((text, times) => told.push([text, times])), "");
  for (const letter of "abc") shown.type(letter);
  expect(told).toEqual([["a", 1], ["ab", 2], ["abc", 3]]);
  expect(shown.take("a", 1)).toBe(false);
  expect(shown.take("", 0)).toBe(false);
  expect(shown.text).toBe("abc");
  expect(shown.take("abc", 3)).toBe(false);
  expect(shown.take("ab", 3)).toBe(true); // an undo
  expect(shown.text).toBe("ab");
  expect(told).toHaveLength(3);
  const before = shown.dispatched;
  shown.take("ab", 3);
  expect(shown.dispatched).toBe(before);
});

test("a step back before the page has heard of anything is news", () => {
  const shown = new Shown(new Mirror(() => undefined), "a");
  shown.type("b");
  shown.type("c");
  expect(shown.take("ab", 2)).toBe(true);
  expect(shown.text).toBe("ab");
});
