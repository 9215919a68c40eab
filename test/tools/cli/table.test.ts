import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { Output, type RawStream } from '../../../src/tools/cli/output.js';
import { formatTable } from '../../../src/tools/cli/table.js';

const columns = ['resource', 'first\nfigure', 'second', 'third'].map((title, i) => ({
  title,
  align: i === 0 ? ('left' as const) : ('right' as const),
}));
const rows = [
  ['pool(cuda, initialBytes=9)', '1', '22', '333'],
  ['arena(cuda)', 'failed: ERR_CISTERN_OUT_OF_MEMORY'],
];
const terminal = (width: number) => new Output({ isTTY: true, columns: width } as RawStream);
const widthOf = (text: string) => Math.max(...text.split('\n').map(({ length }) => length));

describe('a table', () => {
  beforeEach(() => vi.stubEnv('NO_COLOR', '1'));
  afterEach(() => vi.unstubAllEnvs());

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
    expect(formatTable(columns, rows, 'table', new Output({} as RawStream))).toContain('initialBytes=9)');
  });
});
