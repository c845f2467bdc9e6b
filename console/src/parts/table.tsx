// A table, and a list that is read page by page: what they show while they wait, when nothing is there, and when the
// engine refused is the same everywhere.
import type { Key, ReactNode } from "react";
import { More } from "./list";
import { Problem, Skeleton } from "./states";

export interface Column<Row> {
  head: ReactNode;
  /** Classes of its cells: `r` for numbers, `mute`, `el` for what may be cut. */
  look?: string;
  /** Stands before the value on narrow screens, where there are no heads. */
  label?: string;
  title?: (row: Row) => string | undefined;
  cell: (row: Row) => ReactNode;
}

interface TableProps<Row> {
  columns: (Column<Row> | false)[];
  rows: Row[];
  keyOf: (row: Row, at: number) => Key;
  isCurrent?: (row: Row) => boolean;
  /** Of a side pane: it has no cards on narrow screens. */
  plain?: boolean;
}

export function Table<Row>({ columns, rows, keyOf, isCurrent, plain }: TableProps<Row>) {
  const shown = columns.filter((column) => column !== false);
  return (
    <table className={plain ? undefined : "wide"}>
      <thead>
        <tr>
          {shown.map((column, at) => (
            <th key={at} className={/\br\b/.test(column.look ?? "") ? "r" : undefined}>
              {column.head}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map((row, index) => (
          <tr key={keyOf(row, index)} aria-current={isCurrent?.(row) ? "true" : undefined}>
            {shown.map((column, at) => (
              <td key={at} className={column.look} data-label={column.label} title={column.title?.(row)}>
                {column.cell(row)}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

interface Pages<Item> {
  data: { pages: { items: Item[] }[] } | undefined;
  error: Error | null;
  isPending: boolean;
  hasNextPage: boolean;
  isFetchingNextPage: boolean;
  fetchNextPage: () => unknown;
  refetch: () => unknown;
}

interface ListingProps<Row> extends Omit<TableProps<Row>, "rows"> {
  pages: Pages<Row>;
  /** What it means that there is nothing, and what to do. */
  empty: ReactNode;
  /** The word for the way to the next page. */
  more?: string;
}

export function Listing<Row>({ pages, empty, more = "More", ...table }: ListingProps<Row>) {
  if (pages.error) return <Problem error={pages.error} retry={() => pages.refetch()} />;
  if (pages.isPending || !pages.data) return <Skeleton />;
  const rows = pages.data.pages.flatMap((page) => page.items);
  return (
    <>
      {rows.length === 0 ? empty : <Table rows={rows} {...table} />}
      <More pages={pages} word={more} />
    </>
  );
}

interface Query<T> {
  data: T | undefined;
  error: Error | null;
  refetch: () => unknown;
}

/** What one reading gives, once it is there. */
export function Read<T>({ of, children, rows = 3 }: { of: Query<T>; children: (data: T) => ReactNode; rows?: number }) {
  if (of.error) return <Problem error={of.error} retry={() => of.refetch()} />;
  return of.data === undefined ? <Skeleton rows={rows} /> : children(of.data);
}
