// What can be done to several steps at once.
import type { Point } from "../graph/layout";
import type { Extent } from "../graph/viewport";
import { type Alignment, ALIGNMENTS, aligned } from "./align";
import type { ClipboardActs } from "./clipboard";
import { StepActs } from "./stepacts";

interface Props {
  count: number;
  /** They come to stand elsewhere. */
  put: (place: (boxes: ReadonlyMap<string, Extent>) => ReadonlyMap<string, Point>) => void;
  remove: () => void;
  clipboard: ClipboardActs;
}

export function SeveralPanel({ count, put, remove, clipboard }: Props) {
  return (
    <>
      <header className="phead">
        <h2>{count} steps</h2>
        <StepActs {...clipboard} remove={remove} />
      </header>
      <div className="field" role="group" aria-label="Align">
        <span className="lbl">Align with the first one chosen</span>
        <div className="aligns">
          {(Object.keys(ALIGNMENTS) as Alignment[]).map((how) => (
            <button key={how} type="button" className="btn sm" onClick={() => put((boxes) => aligned(boxes, how))}>
              {ALIGNMENTS[how]}
            </button>
          ))}
        </div>
      </div>
    </>
  );
}
