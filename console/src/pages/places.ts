// The pages that are no part of the first file, where each stands, and when it is loaded: at once for the address that was
// opened, when a pointer or the keys come to a link, and all of them when the page that is seen has had what it needs.
import { whenIdle } from "../graph/elk";
import { later } from "../parts/later";

export const InstancePage = later(() => import("./instance/page").then((page) => page.InstancePage));
export const FailuresPage = later(() => import("./failures").then((page) => page.FailuresPage));
export const QueuesPage = later(() => import("./queues").then((page) => page.QueuesPage));
export const SchedulesPage = later(() => import("./schedules").then((page) => page.SchedulesPage));
export const AuditPage = later(() => import("./audit").then((page) => page.AuditPage));
export const BatchesPage = later(() => import("./batches").then((page) => page.BatchesPage));
export const BulkPage = later(() => import("./bulk").then((page) => page.BulkPage));
export const BulkOperationPage = later(() => import("./bulk").then((page) => page.BulkOperationPage));
export const BulkPane = later(() => import("./bulk").then((page) => page.BulkPane));
export const SearchPage = later(() => import("./search").then((page) => page.SearchPage));
export const StartDialog = later(() => import("./start").then((page) => page.StartDialog), () => null);
export const UploadFileDialog = later(() => import("./start").then((page) => page.UploadFileDialog), () => null);
export const SqlRequestsPage = later(() => import("./sqlrequests").then((page) => page.SqlRequestsPage));
export const EnginesPage = later(() => import("./engines").then((page) => page.EnginesPage));
export const JobsPage = later(() => import("./jobs").then((page) => page.JobsPage));
export const TimersPage = later(() => import("./timers").then((page) => page.TimersPage));
export const SettingsPage = later(() => import("./settings").then((page) => page.SettingsPage));
export const TasksPage = later(() => import("./tasks").then((page) => page.TasksPage));
export const DefinitionPage = later(() => import("./definition").then((page) => page.DefinitionPage));
export const ModellerPage = later(() => import("../modeller/modeller").then((page) => page.ModellerPage));

interface AnyPage {
  load: () => Promise<unknown>;
}
/** By the first part of the address; with and without more behind it. */
const PLACES: Record<string, { list?: AnyPage; one?: AnyPage }> = {
  instances: { one: InstancePage },
  tasks: { list: TasksPage },
  jobs: { list: JobsPage },
  timers: { list: TimersPage },
  schedules: { list: SchedulesPage },
  definitions: { one: DefinitionPage },
  modeller: { list: ModellerPage, one: ModellerPage },
  audit: { list: AuditPage },
  batches: { list: BatchesPage },
  bulk: { list: BulkPage, one: BulkOperationPage },
  search: { list: SearchPage },
  "sql-requests": { list: SqlRequestsPage },
  engines: { list: EnginesPage },
  settings: { list: SettingsPage },
  failures: { list: FailuresPage },
  queues: { list: QueuesPage },
};
/** What the pages of the first file show only when it is asked for. */
const PARTS: AnyPage[] = [BulkPane, StartDialog, UploadFileDialog];

/** Parts of a path below the console's own. */
export function partsOf(path: string): string[] {
  return path.startsWith(import.meta.env.BASE_URL) ? path.slice(import.meta.env.BASE_URL.length).split("/").filter(Boolean) : [];
}

/** What fails is told when somebody comes to it. */
export function loadPage(path: string): void {
  const [first = "", id] = partsOf(path);
  const place = PLACES[first];
  void (id === undefined ? place?.list : place?.one)?.load().catch(() => undefined);
}

/** One after the other, each when there is nothing else to do; what it gives ends it. */
export function loadAll(): () => void {
  const pages = [...new Set(Object.values(PLACES).flatMap(({ list, one }) => [list, one]).filter((page) => page !== undefined)), ...PARTS];
  let takeBack = () => {};
  const next = () => {
    const page = pages.pop();
    if (page) takeBack = whenIdle(() => void page.load().then(next, () => undefined));
  };
  next();
  return () => {
    pages.length = 0;
    takeBack();
  };
}

/** Links that somebody is about to follow. */
export function loadWhatIsPointedAt(): () => void {
  const point = ({ target }: Event) => {
    const link = target instanceof Element ? target.closest<HTMLAnchorElement>("a[href]") : null;
    if (link?.origin === location.origin) loadPage(link.pathname);
  };
  document.addEventListener("pointerover", point);
  document.addEventListener("focusin", point);
  return () => {
    document.removeEventListener("pointerover", point);
    document.removeEventListener("focusin", point);
  };
}
