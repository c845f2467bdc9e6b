// What the address that was opened needs, begun before anything is drawn: who is there, the page's file, what it asks the
// engine for, and where it has a picture what lays that out. React begins to ask when the first frame has been painted.
import type { QueryClient } from "@tanstack/react-query";
import { decoded } from "./address";
import { askForInstance, ME, shownOf, textOf } from "./api/asks";
import { elkWorker } from "./graph/elk";
import { isAnythingKept } from "./graph/kept";
import { loadPage, partsOf } from "./pages/places";

export function begin(queries: QueryClient): void {
  void queries.prefetchQuery(ME);
  loadPage(location.pathname);
  const [place, coded] = partsOf(location.pathname);
  if (coded === undefined) return;
  const [id, version] = [decoded(coded), Number(new URLSearchParams(location.search).get("version")) || undefined];
  if (place === "instances") askForInstance(queries, id).catch(() => undefined); // the page asks again, and tells
  else if (place === "definitions") void queries.prefetchQuery(shownOf(id, version));
  else if (place === "modeller") void queries.prefetchQuery(textOf(id, version));
  else return;
  // A browser that has laid something out before is likely to have this, too.
  if (!isAnythingKept()) elkWorker();
}
