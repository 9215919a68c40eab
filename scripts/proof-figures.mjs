/**
 * The tables of figures in docs/proof.md. Their rows lie in docs/proof-figures.json, where the commands that
 * measure them put them if they are called with `--save`. `node scripts/proof-figures.mjs` writes the
 * tables into the page, and a test compares the two.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { argv } from 'node:process';
import { fileURLToPath } from 'node:url';
import { markdownTable } from 'markdown-table';

const data = new URL('../docs/proof-figures.json', import.meta.url);
const page = new URL('../docs/proof.md', import.meta.url);

/**
 * Puts rows into a table, and writes the page. A table that does not exist gets the columns of the first row. A row replaces the one that has the same first cell; a
 * cell that is not given stays.
 *
 * @param {string} topic the name of the table
 * @param {readonly Readonly<Record<string, string | number>>[]} rows cells by column
 */
export function saveFigures(topic, rows) {
  const tables = readTables();
  tables[topic] ??= { columns: Object.keys(rows[0] ?? {}), rows: [] };
  const table = tables[topic];
  for (const row of rows) {
    const unknown = Object.keys(row).filter((column) => !table.columns.includes(column));
    if (unknown.length > 0) throw new Error(`the table ${topic} has no column ${unknown.join(', ')}`);
    const key = String(row[table.columns[0]]);
    let cells = table.rows.find(([first]) => first === key);
    if (cells === undefined) {
      cells = table.columns.map(() => '');
      table.rows.push(cells);
    }
    table.columns.forEach((column, i) => {
      if (row[column] !== undefined) cells[i] = format(row[column]);
    });
  }
  writeFileSync(data, `${JSON.stringify(tables, undefined, 1).replaceAll(/\[\n\s+("[^[\]{}]*?)\n\s+\]/g, oneLine)}\n`);
  writePage();
}

/**
 * @returns {string} the page, with its tables: `figures: NAME, latest N` has the last rows of a table, and
 * `sums: NAMES: COLUMNS` a row with the sums of each table's columns
 */
export function pageWithTables() {
  const tables = readTables();
  const tableOf = (name) => {
    if (tables[name] === undefined) throw new Error(`docs/proof-figures.json has no ${name}`);
    return tables[name];
  };
  const marked = /(<!-- (figures|sums): ([\w, -]+?)(?:, latest (\d+))?(?:: ([\w, ]+))? -->\n\n)(?:\|.*\n)*/g;
  return readFileSync(page, 'utf8').replaceAll(marked, (_all, marker, kind, names, count, summed) => {
    const { columns, rows } = kind === 'figures' ? tableOf(names) : sumsOf(names.split(', '), summed.split(', '), tableOf);
    const shown = rows.slice(count === undefined ? 0 : -Number(count));
    const isNumber = columns.map((_, i) => shown.every((row) => /^[\d,.]*$/.test(row[i])));
    return `${marker}${markdownTable([columns, ...shown], { align: isNumber.map((is) => (is ? 'r' : null)), alignDelimiters: false })}\n`;
  });
}

/** A table with a row for each table, of the sums of some columns. */
function sumsOf(names, columns, tableOf) {
  const rows = names.map((name) => {
    const table = tableOf(name);
    const sumOf = (column) => table.rows.reduce((sum, row) => sum + Number(row[table.columns.indexOf(column)].replaceAll(',', '')), 0);
    return [name, format(table.rows.length), ...columns.map((column) => format(sumOf(column)))];
  });
  return { columns: ['all runs of', 'rows', ...columns], rows };
}

/** The day of a run, for a column. */
export function today() {
  return new Date().toISOString().slice(0, 10);
}

function writePage() {
  writeFileSync(page, pageWithTables());
}

function readTables() {
  return JSON.parse(readFileSync(data, 'utf8'));
}

function format(cell) {
  return typeof cell === 'number' ? cell.toLocaleString('en-US', { maximumFractionDigits: 0 }) : cell;
}

function oneLine(_all, cells) {
  return `[${cells.split(/\n\s+/).join(' ')}]`;
}

if (argv[1] === fileURLToPath(import.meta.url)) writePage();
