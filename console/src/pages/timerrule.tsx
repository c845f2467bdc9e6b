// When boundary timers with another duration fire after a migration, and how many of them would be due at once by each rule.
import type { BulkRequest } from "../api/client";

export type TimerRule = "FROM_ENTRY" | "KEEP_DEADLINE" | "FROM_NOW";
export const TIMER_RULES: readonly TimerRule[] = ["FROM_ENTRY", "KEEP_DEADLINE", "FROM_NOW"];
const WORDS: Record<TimerRule, string> = {
  FROM_ENTRY: "so long after their step was entered, at once where that is over",
  KEEP_DEADLINE: "when they would have fired",
  FROM_NOW: "so long from now",
};

/** In words; nothing where it is not known. */
export function dueOf(count: number | undefined): string {
  if (count === undefined) return "";
  return count === 0 ? "none is due at once" : `${count.toLocaleString("en")} ${count === 1 ? "is" : "are"} due at once`;
}

interface Props {
  rule: TimerRule;
  choose: (rule: TimerRule) => void;
  /** By rule, of those that are known. */
  due: Partial<Record<TimerRule, number | undefined>>;
}

export function TimerRuleField({ rule, choose, due }: Props) {
  return (
    <fieldset className="field">
      <legend className="lbl">Boundary timers that have another duration there fire</legend>
      {TIMER_RULES.map((one) => (
        <label key={one} className="line">
          <input type="radio" name="timers" value={one} checked={rule === one} onChange={() => choose(one)} />
          <span>
            {WORDS[one]} <code>{one}</code>
            {due[one] !== undefined && <b>: {dueOf(due[one])}</b>}
          </span>
        </label>
      ))}
    </fieldset>
  );
}

/** What a request has of it: nothing for the engine's own rule. */
export function ruleOf(rule: TimerRule): Pick<BulkRequest, "timers"> & { timers?: TimerRule } {
  return rule === "FROM_ENTRY" ? {} : { timers: rule };
}
