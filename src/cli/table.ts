import Table from 'cli-table3';
import { markdownTable } from 'markdown-table';
import { bold, type OutputStream } from './terminal.js';

/** The forms in which results are printed. */
export type OutputFormat = 'table' | 'json' | 'markdown';

/** A column of a table. A title may have several lines. */
export interface Column {
  readonly title: string;
  readonly align: 'left' | 'right';
}

/** A table as text or Markdown. If a row is too short, its last cell takes up the rest. */
export function formatTable(
  columns: readonly Column[],
  rows: readonly (readonly string[])[],
  format: 'table' | 'markdown',
  stream: OutputStream,
): string {
  return format === 'markdown' ? formatMarkdown(columns, rows) : formatText(columns, rows, stream);
}

/** A heading above a table. */
export function formatHeading(text: string, format: 'table' | 'markdown', stream: OutputStream): string {
  return format === 'markdown' ? `### ${escapeMarkdown(text)}\n\n` : `${bold(text, stream)}\n`;
}

/** Escapes text so that Markdown shows it as it is. */
export function escapeMarkdown(text: string): string {
  return text.replace(/[\\`*_|<>[\]]/g, '\\$&');
}

function formatText(columns: readonly Column[], rows: readonly (readonly string[])[], stream: OutputStream): string {
  const table = new Table({
    head: columns.map(({ title }) =>
      title
        .split('\n')
        .map((line) => bold(line, stream))
        .join('\n'),
    ),
    colAligns: columns.map(({ align }) => align),
    chars: { ...noLines, mid: '', 'left-mid': '', 'mid-mid': '', 'right-mid': '' },
    style: { head: [], border: [], 'padding-left': 0, 'padding-right': 2 },
  });
  for (const row of rows) {
    const rest = columns.length - row.length;
    table.push(rest === 0 ? [...row] : [...row.slice(0, -1), { content: row.at(-1) as string, colSpan: rest + 1 }]);
  }
  return `${table.toString().replace(/ +$/gm, '')}\n`;
}

function formatMarkdown(columns: readonly Column[], rows: readonly (readonly string[])[]): string {
  const head = columns.map(({ title }) => title.replaceAll('\n', ' '));
  return `${markdownTable(
    [head, ...rows].map((row) => row.map(escapeMarkdown)),
    { align: columns.map(({ align }) => align) },
  )}\n`;
}

const noLines = {
  top: '',
  'top-mid': '',
  'top-left': '',
  'top-right': '',
  bottom: '',
  'bottom-mid': '',
  'bottom-left': '',
  'bottom-right': '',
  left: '',
  right: '',
  middle: '',
};
