// Where the modeller keeps drafts in this browser: each person's for that person, also after a session that expired. Whoever
// signs out leaves none behind. Of those who never come back the oldest go.
const DRAFT_KEY = "penstock.draft.";
/** Of each draft the day since 1970 on which it was changed last. */
const DAYS = "penstock.drafts";
const DAY_MS = 86_400_000;
const DRAFTS_MAX = 50;
const DAYS_MAX = 90;

/** Of one person, who has no name without authentication; a blank ends the name. */
function ownedBy(name: string | undefined): string {
  return `${DRAFT_KEY}${encodeURIComponent(name ?? "")} `;
}

/** Under which key a draft is kept; `of`: the definition and its version, or nothing for a new one. */
export function draftKey(name: string | undefined, of: string): string {
  return ownedBy(name) + of;
}

/** It was changed: others go that nobody has changed for long, or that are too many. Throws where the browser keeps nothing. */
export function noteDraft(place: string, today = Math.floor(Date.now() / DAY_MS)): void {
  const noted = days();
  if (noted.get(place) === today) return;
  // One that is not noted was left by an engine that noted none.
  const others = Object.keys(localStorage).flatMap((key): [string, number][] => (key.startsWith(DRAFT_KEY) && key !== place ? [[key, noted.get(key) ?? today]] : []));
  others.sort(([, one], [, other]) => other - one);
  const kept = new Map([[place, today], ...others.filter(([, day], at) => at < DRAFTS_MAX - 1 && day > today - DAYS_MAX)]);
  for (const [key] of others) if (!kept.has(key)) localStorage.removeItem(key);
  keepDays(kept);
}

export function forgetDrafts(name: string | undefined): void {
  try {
    for (const key of Object.keys(localStorage)) if (key.startsWith(ownedBy(name))) localStorage.removeItem(key);
    keepDays(new Map([...days()].filter(([key]) => !key.startsWith(ownedBy(name)))));
  } catch {
    // a browser that keeps nothing
  }
}

function days(): Map<string, number> {
  return new Map(Object.entries(JSON.parse(localStorage.getItem(DAYS) ?? "{}") as Record<string, number>));
}

function keepDays(of: ReadonlyMap<string, number>): void {
  if (of.size === 0) localStorage.removeItem(DAYS);
  else localStorage.setItem(DAYS, JSON.stringify(Object.fromEntries(of)));
}
