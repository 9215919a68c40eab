import Table from 'cli-table3';
import { markdownTable } from 'markdown-table';
import { type Output, visible, visibleInLine } from './output.js';

/** The formats in which results are printed. */
export type OutputFormat = 'table' | 'json' | 'markdown';

/** A column of a table. A title may have several lines. */
export interface Column {
  readonly title: string;
  readonly align: 'left' | 'right';
}

/**
 * A table as text or Markdown. If a row is too short, its last cell takes up the rest. Cells are shown in one
 * line, because their width must be known before they are printed.
 */
export function formatTable(
  columns: readonly Column[],
  rows: readonly (readonly string[])[],
  format: 'table' | 'markdown',
  stream: Output,
): string {
  const heads = columns.map(({ title, align }) => ({ title: visible(title), align }));
  const cells = rows.map((row) => row.map(visibleInLine));
  return format === 'markdown' ? formatMarkdown(heads, cells) : formatText(heads, cells, stream);
}

/** A heading above a table. */
export function formatHeading(text: string, format: 'table' | 'markdown', stream: Output): string {
  return format === 'markdown' ? `### ${escapeMarkdown(visibleInLine(text))}\n\n` : `${stream.bold(visibleInLine(text))}\n`;
}

/** Escapes text so that Markdown shows it as it is. */
export function escapeMarkdown(text: string): string {
  return text.replace(/[\\`*_|<>[\]]/g, '\\$&');
}

/**
 * On a terminal that is too narrow, the table continues in another one below, which begins with the
 * same first column. Elsewhere, each row is one line.
 */
function formatText(columns: readonly Column[], rows: readonly (readonly string[])[], stream: Output): string {
  const widest = stream.columns ?? Number.POSITIVE_INFINITY;
  const widthOf = (column: number) => {
    const heads = (columns[column] as Column).title.split('\n');
    // The last cell of a short row may be wider than its column.
    const cells = rows.filter((row) => row.length === columns.length || column === 0).map((row) => row[column] as string);
    return Math.max(...[...heads, ...cells].map(({ length }) => length)) + gap;
  };
  const parts: number[][] = [[0]];
  let width = widthOf(0);
  for (let column = 1; column < columns.length; column++) {
    width += widthOf(column);
    const part = parts.at(-1) as number[];
    if (part.length === 1 || width - gap <= widest) part.push(column);
    else {
      parts.push([0, column]);
      width = widthOf(0) + widthOf(column);
    }
  }
  const texts = parts.map((part, index) => {
    const shown = rows.map((row) =>
      row.length === columns.length ? part.map((column) => row[column] as string) : index === 0 ? row : [row[0] as string, ''],
    );
    return plainTable(
      part.map((column) => columns[column] as Column),
      shown,
      stream,
    );
  });
  return texts.join('\n');
}

function plainTable(columns: readonly Column[], rows: readonly (readonly string[])[], stream: Output): string {
  const table = new Table({
    head: columns.map(({ title }) =>
      title
        .split('\n')
        .map((line) => stream.bold(line))
        .join('\n'),
    ),
    colAligns: columns.map(({ align }) => align),
    chars: noLines,
    style: { head: [], border: [], 'padding-left': 0, 'padding-right': gap },
  });
  for (const row of rows) {
    const rest = columns.length - row.length;
    table.push(rest === 0 ? [...row] : [...row.slice(0, -1), { content: row.at(-1) as string, colSpan: rest + 1 }]);
  }
  return `${table
    .toString()
    .split('\n')
    .map((line) => line.trimEnd())
    .join('\n')}\n`;
}

function formatMarkdown(columns: readonly Column[], rows: readonly (readonly string[])[]): string {
  const head = columns.map(({ title }) => title.replaceAll('\n', ' '));
  return `${markdownTable(
    [head, ...rows].map((row) => row.map(escapeMarkdown)),
    { align: columns.map(({ align }) => align) },
  )}\n`;
}

/** Spaces between columns. */
const gap = 2;

const lines = ['top', 'top-mid', 'top-left', 'top-right', 'bottom', 'bottom-mid', 'bottom-left', 'bottom-right', 'left', 'right', 'middle'];
const noLines = Object.fromEntries([...lines, 'mid', 'left-mid', 'mid-mid', 'right-mid'].map((line) => [line, '']));
