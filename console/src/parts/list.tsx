// What lists have in common: a filter of one word, and the way to what comes after the rows shown.
import type { FormEvent } from "react";

interface Pages {
  hasNextPage: boolean;
  isFetchingNextPage: boolean;
  fetchNextPage: () => unknown;
}

/** Nothing when there is no next page. */
export function More({ pages, word = "More" }: { pages: Pages; word?: string }) {
  if (!pages.hasNextPage) return null;
  return (
    <div className="pg">
      <button type="button" className="btn sm" disabled={pages.isFetchingNextPage} onClick={() => pages.fetchNextPage()}>
        {word}
      </button>
    </div>
  );
}

/** One field that is applied with Enter or the button. */
export function WordFilter({ label, value, mono, apply }: { label: string; value: string; mono?: boolean; apply: (value: string) => void }) {
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    apply(String(new FormData(event.currentTarget).get("word")).trim());
  };
  return (
    <div className="flt">
      {/* A new key when the address changes from outside: the field shows what is applied. */}
      <form key={value} className="fields" onSubmit={submit}>
        <input name="word" aria-label={label} placeholder={label} defaultValue={value} className={mono ? "in mono" : "in"} />
        <button type="submit" className="btn">
          Apply
        </button>
      </form>
    </div>
  );
}
