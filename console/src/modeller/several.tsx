// What can be done to several steps at once.
import { type Alignment, ALIGNMENTS } from "./align";

export function SeveralPanel({ count, align, remove }: { count: number; align: (how: Alignment) => void; remove: () => void }) {
  return (
    <>
      <header className="phead">
        <h2>{count} steps</h2>
        <button type="button" className="btn sm" onClick={remove}>
          Delete
        </button>
      </header>
      <div className="field" role="group" aria-label="Align">
        <span className="lbl">Align with the first one chosen</span>
        <div className="aligns">
          {(Object.keys(ALIGNMENTS) as Alignment[]).map((how) => (
            <button key={how} type="button" className="btn sm" onClick={() => align(how)}>
              {ALIGNMENTS[how]}
            </button>
          ))}
        </div>
      </div>
    </>
  );
}
