// Two texts, side by side where there is room, else one within the other.
import { MergeView, unifiedMergeView } from "@codemirror/merge";
import { EditorState, type Extension } from "@codemirror/state";
import { EditorView, lineNumbers } from "@codemirror/view";
import { useEffect, useLayoutEffect, useRef, useState } from "react";
import { jsonColours } from "./jsontext";
import { common } from "./parts";

const WIDE_PX = 720;
const FOLDED = { margin: 3, minSize: 4 };

interface Props {
  before: string;
  after: string;
  /** All lines, also those that are the same. */
  whole: boolean;
}

export default function Compare({ before, after, whole }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [wide, setWide] = useState<boolean>();
  useLayoutEffect(() => {
    const measured = new ResizeObserver(([entry]) => setWide(entry!.contentRect.width >= WIDE_PX));
    measured.observe(box.current!);
    return () => measured.disconnect();
  }, []);
  useEffect(() => {
    if (wide === undefined) return;
    const shown = { gutter: true, ...(whole ? {} : { collapseUnchanged: FOLDED }) };
    const parent = box.current!;
    const made = wide
      ? new MergeView({ a: { doc: before, extensions: reading("Before") }, b: { doc: after, extensions: reading("After") }, parent, ...shown })
      : new EditorView({ parent, doc: after, extensions: [...reading("Before and after"), unifiedMergeView({ original: before, mergeControls: false, ...shown })] });
    return () => made.destroy();
  }, [before, after, whole, wide]);
  return <div className="code compare" ref={box} />;
}

function reading(label: string): Extension[] {
  return [
    common(),
    lineNumbers(),
    jsonColours,
    EditorView.lineWrapping,
    EditorState.readOnly.of(true),
    EditorView.editable.of(false),
    EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0" }),
  ];
}
