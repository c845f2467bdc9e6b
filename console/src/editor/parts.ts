// What the console's editors have in common. They are CodeMirror's, in files of their own that are loaded where one is shown.
import { Annotation, EditorState, type Extension, type TransactionSpec } from "@codemirror/state";
import { EditorView } from "@codemirror/view";
import { replaced } from "./texts";
import "./editor.css";

/** Of a change that comes from where the text is kept. */
const given = Annotation.define<boolean>();

/**
 * Typed over what is selected. The browser would do it, and write the look of what goes into the page as a style, which the
 * page's policy refuses and tells of.
 */
const typedOver = EditorView.domEventHandlers({
  beforeinput(event, view) {
    const over = event.inputType === "insertText" && event.data !== null && !view.composing && !view.state.readOnly ? getSelection() : null;
    if (!over?.anchorNode || !over.focusNode || over.isCollapsed || !view.contentDOM.contains(over.anchorNode)) return false;
    // The editor hears of a selection a moment later.
    const ends = [view.posAtDOM(over.anchorNode, over.anchorOffset), view.posAtDOM(over.focusNode, over.focusOffset)];
    const [from, to] = [Math.min(...ends), Math.max(...ends)];
    const insert = view.state.toText(event.data!);
    view.dispatch({ changes: { from, to, insert }, selection: { anchor: from + insert.length }, userEvent: "input.type", scrollIntoView: true });
    return true;
  },
});

/** Line ends stay as they are, and the page's policy admits what CodeMirror has of styles, by its nonce. */
export function common(): Extension {
  const nonce = document.querySelector<HTMLMetaElement>('meta[name="csp-nonce"]')?.content ?? "";
  return [EditorView.cspNonce.of(nonce), EditorState.lineSeparator.of("\n"), typedOver];
}

/**
 * A view's text that is kept elsewhere: what is typed is told there, and what it is there is put in with as few characters
 * as it takes. What comes before all that was told has been heard is late, and no news.
 */
export class Mirror {
  private told = 0;

  /** `times`: how often it has told, to be given to `take` as soon as the text is of that. */
  constructor(tell: (text: string, times: number) => void) {
    this.listener = EditorView.updateListener.of((update) => {
      if (!update.docChanged || update.transactions.some((one) => one.annotation(given))) return;
      this.told += 1;
      tell(update.state.doc.toString(), this.told);
    });
  }

  readonly listener: Extension;

  /** Whether the view has another text by it. */
  take(view: EditorView, text: string, heard: number, more?: (end: number) => TransactionSpec): boolean {
    const now = view.state.doc.toString();
    if (heard !== this.told || text === now) return false;
    const change = replaced(now, text);
    view.dispatch({ changes: change, annotations: given.of(true), ...more?.(change.from + change.insert.length) });
    return true;
  }
}
