import { formatBytes, formatCount } from './format.js';

/** A column of a table: its head, and what it shows of each row. Numbers stand at the right. */
export interface Column<Row> {
  readonly head: string;
  readonly cell: (row: Row) => HTMLElement | string;
  readonly isNumber: boolean;
}

/** The class of a column's cells. */
export function classOf({ isNumber }: Pick<Column<never>, 'isNumber'>): string | undefined {
  return isNumber ? 'number' : undefined;
}

/** A column of words; `–` where a row has none. */
export function words<Row>(head: string, cell: (row: Row) => HTMLElement | string | null): Column<Row> {
  return { head, cell: (row) => cell(row) ?? '–', isNumber: false };
}

/** A column of numbers, which the caller has formatted. */
export function number<Row>(head: string, cell: (row: Row) => string): Column<Row> {
  return { head, cell, isNumber: true };
}

type MaybeNumber = number | null | undefined;

/** A column of numbers; `–` where a row has none. */
export function formatted<Row>(head: string, value: (row: Row) => MaybeNumber, format: (value: number) => string): Column<Row> {
  return number(head, (row) => {
    const found = value(row) ?? null;
    return found === null ? '–' : format(found);
  });
}

/** A column of bytes. */
export function bytes<Row>(head: string, value: (row: Row) => MaybeNumber): Column<Row> {
  return formatted(head, value, formatBytes);
}

/** A column of counts. */
export function count<Row>(head: string, value: (row: Row) => MaybeNumber): Column<Row> {
  return formatted(head, value, formatCount);
}
