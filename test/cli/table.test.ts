import { describe, expect, test } from 'vitest';
import { formatTable } from '../../src/cli/table.js';
import type { OutputStream } from '../../src/cli/terminal.js';

const columns = ['resource', 'first\nfigure', 'second', 'third'].map((title, i) => ({
  title,
  align: i === 0 ? ('left' as const) : ('right' as const),
}));
const rows = [
  ['pool(cuda, initialBytes=9)', '1', '22', '333'],
  ['arena(cuda)', 'failed: ERR_CISTERN_OUT_OF_MEMORY'],
];
const terminal = (width: number) => ({ isTTY: true, columns: width }) as OutputStream;
const widthOf = (text: string) => Math.max(...text.split('\n').map(({ length }) => length));

describe('a table', () => {
  test('continues below if it is too wide for the terminal', () => {
    const text = formatTable(columns, [rows[0] as string[]], 'table', terminal(44));
    expect(widthOf(text)).toBeLessThanOrEqual(44);
    expect(text.match(/^pool\(cuda, initialBytes=9\)/gm)).toHaveLength(2);
    expect(text).toMatch(/ 22\n[\s\S]*third\n.* 333\n$/);
  });

  test('is one table on a terminal that is wide enough, and elsewhere', () => {
    const wide = formatTable(columns, rows, 'table', terminal(200));
    expect(wide.match(/^pool/gm)).toHaveLength(1);
    expect(wide).toContain('failed: ERR_CISTERN_OUT_OF_MEMORY');
    process.env['NO_COLOR'] = '1';
    expect(formatTable(columns, rows, 'table', {} as OutputStream)).toContain('initialBytes=9)');
  });
});
