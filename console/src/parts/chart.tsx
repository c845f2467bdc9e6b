// Small pictures of numbers over time. The numbers themselves stand beside them, so screen readers skip these.
import { short, useUtc } from "./time";
import { useId } from "react";

const WIDTH = 700;
const HEIGHT = 226;

export interface Line {
  name: string;
  look: "started" | "completed" | "failed";
  values: number[];
}

/** The next round number: 1, 2 or 5 times a power of ten. */
export function roundUp(value: number): number {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((digit) => digit * power).find((round) => round >= value - 1e-9)!;
}

/** Round numbers from such a top down to 0, as many as have room. */
export function ticksOf(top: number): number[] {
  const digit = Math.round(top / 10 ** Math.floor(Math.log10(top) + 1e-9));
  const parts = digit === 2 ? 4 : 5;
  return Array.from({ length: parts + 1 }, (_, at) => Number(((top * (parts - at)) / parts).toPrecision(2)));
}

export function RateChart({ lines, since, stepSeconds }: { lines: Line[]; since: string; stepSeconds: number }) {
  const id = useId();
  const perSecond = lines.map((line) => ({ ...line, values: line.values.map((value) => value / stepSeconds) }));
  const count = Math.max(2, ...perSecond.map((line) => line.values.length));
  const top = roundUp(Math.max(...perSecond.flatMap((line) => line.values)));
  const ticks = ticksOf(top);
  const x = (at: number) => ((at / (count - 1)) * WIDTH).toFixed(1);
  const y = (value: number) => (HEIGHT - 1 - (value / top) * (HEIGHT - 6)).toFixed(1);
  const first = Date.parse(since);
  useUtc();
  const days = stepSeconds * count > 172_800;
  return (
    <div className="chart">
      <div className="y" aria-hidden="true">
        {ticks.map((tick) => (
          <span key={tick}>{tick}</span>
        ))}
      </div>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true" data-chart={id}>
        {ticks.map((tick) => (
          <path key={tick} className="grid-line" d={`M0 ${y(tick)}H${WIDTH}`} />
        ))}
        {perSecond.map((line) => {
          const path = line.values.map((value, at) => `${x(at)} ${y(value)}`).join("L");
          return (
            <g key={line.name} className={`line ${line.look}`}>
              {line.look === "completed" && <path className="area" d={`M${path}L${WIDTH} ${HEIGHT}L0 ${HEIGHT}z`} />}
              <path d={`M${path}`} />
            </g>
          );
        })}
      </svg>
      <div className="x" aria-hidden="true">
        {[0, 0.25, 0.5, 0.75, 1].map((part) => (
          <span key={part}>{short(first + part * (count - 1) * stepSeconds * 1_000, days, part === 1)}</span>
        ))}
      </div>
    </div>
  );
}

export function Spark({ values, bad }: { values: number[]; bad: boolean }) {
  const top = Math.max(1, ...values);
  const points = values.map((value, at) => `${((at / Math.max(1, values.length - 1)) * 128 + 1).toFixed(1)} ${(18 - (value / top) * 16).toFixed(1)}`);
  return (
    <svg width="130" height="20" className={bad ? "spark bad" : "spark"} aria-hidden="true">
      {points.length > 1 && <path d={`M${points.join("L")}`} />}
    </svg>
  );
}
