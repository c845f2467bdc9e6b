// The line in which an expression is typed, as a plain field: until its editor is loaded, and where that can't be.
import type { LineProps } from "../editor/line";
import { loaded } from "../parts/loaded";
import { useTurn } from "./turn";

const useEditor = loaded(() => import("../editor/line"));

export function Line(props: LineProps) {
  // A new definition has such fields, and nothing in them.
  const Editor = useEditor(props.text !== "" || props.focused)?.default;
  const isDue = useTurn(Editor !== undefined);
  return Editor && (isDue || props.focused) ? <Editor {...props} /> : <PlainLine {...props} />;
}

/** Also when it gets the keys: the editor that then takes its place goes on with what is selected. */
function PlainLine({ label, text, describedBy, invalid, begun, put, caret, enter, leave, done }: LineProps) {
  const tell = ({ currentTarget: { selectionStart, selectionEnd } }: React.SyntheticEvent<HTMLInputElement>) => caret(selectionEnd ?? 0, selectionStart ?? 0);
  return (
    <input
      className="in mono"
      aria-label={label}
      aria-describedby={describedBy}
      aria-invalid={invalid}
      spellCheck={false}
      autoComplete="off"
      value={text}
      onChange={(event) => {
        put(event.target.value);
        tell(event); // with the text: the browser tells of it later, and the editor may come before
      }}
      onSelect={tell}
      onMouseDown={(event) => {
        if (!begun) return;
        event.preventDefault(); // the click's place would take the selection's
        event.currentTarget.focus();
      }}
      onFocus={(event) => {
        if (begun) event.currentTarget.select();
        tell(event);
        enter();
      }}
      onBlur={(event) => leave(event.target.value)}
      onKeyDown={(event) => event.key === "Enter" && done(event.currentTarget.value)}
    />
  );
}
