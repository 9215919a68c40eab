import Table from 'cli-table3';

const noLines = Object.fromEntries(
  [
    'top',
    'top-mid',
    'top-left',
    'top-right',
    'bottom',
    'bottom-mid',
    'bottom-left',
    'bottom-right',
    'left',
    'left-mid',
    'mid',
    'mid-mid',
    'right',
    'right-mid',
    'middle',
  ].map((name) => [name, '']),
);

/**
 * A table for people. A row that has the same first cell as the row above leaves it out.
 * @param {readonly string[]} titles
 * @param {readonly (readonly string[])[]} rows
 * @param {number} [textColumns] the number of columns, from the first, that hold text
 */
export function formatTable(titles, rows, textColumns = 1) {
  const table = new Table({
    head: [...titles],
    colAligns: titles.map((_, i) => (i < textColumns ? 'left' : 'right')),
    chars: noLines,
    style: { head: [], border: [], 'padding-left': 0, 'padding-right': 2 },
  });
  let above = '';
  for (const [first, ...rest] of rows) {
    table.push([first === above ? '' : first, ...rest]);
    above = first;
  }
  return `${table.toString().replace(/ +$/gm, '')}\n`;
}
