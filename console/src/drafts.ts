// Where the modeller keeps drafts in this browser. Whoever signs out leaves none behind.
export const DRAFT_KEY = "penstock.draft.";

export function forgetDrafts(): void {
  try {
    for (const key of Object.keys(localStorage)) if (key.startsWith(DRAFT_KEY)) localStorage.removeItem(key);
  } catch {
    // a browser that keeps nothing
  }
}
