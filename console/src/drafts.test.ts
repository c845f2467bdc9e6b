import { beforeEach, expect, test, vi } from "vitest";
import { draftKey, forgetDrafts, noteDraft } from "./drafts";

/** As a browser has it: what is kept are its own keys. */
class Storage {
  getItem(key: string): string | null {
    return (this as unknown as Record<string, string>)[key] ?? null;
  }
  setItem(key: string, text: string): void {
    (this as unknown as Record<string, string>)[key] = text;
  }
  removeItem(key: string): void {
    delete (this as unknown as Record<string, string>)[key];
  }
}

function changed(of: string, day: number): void {
  localStorage.setItem(draftKey("ann", of), "{}");
  noteDraft(draftKey("ann", of), day);
}

const drafts = () => Object.keys(localStorage).filter((key) => key.startsWith("penstock.draft."));

beforeEach(() => void vi.stubGlobal("localStorage", new Storage()));

test("a draft that nobody changed for 90 days goes with the next change", () => {
  changed("old 1", 1_000);
  changed("younger 1", 1_001);
  changed("new 1", 1_090);
  expect(drafts()).toEqual([draftKey("ann", "younger 1"), draftKey("ann", "new 1")]);
});

test("of more than 50 the one changed longest ago goes", () => {
  for (let n = 0; n < 50; n++) changed(`d ${n}`, 1_000 + n);
  changed("d 0", 1_060);
  changed("one more", 1_060);
  expect(drafts().length).toBe(50);
  expect(drafts()).not.toContain(draftKey("ann", "d 1"));
  expect(drafts()).toContain(draftKey("ann", "d 0"));
});

test("a draft that was never noted has its time from now on", () => {
  localStorage.setItem(draftKey("ann", "before"), "{}");
  changed("a", 1_000);
  changed("b", 1_089);
  expect(drafts()).toContain(draftKey("ann", "before"));
  changed("c", 1_090);
  expect(drafts()).not.toContain(draftKey("ann", "before"));
});

test("who signs out leaves no note of a draft", () => {
  changed("a", 1_000);
  forgetDrafts("ann");
  expect(Object.keys(localStorage)).toEqual([]);
});
