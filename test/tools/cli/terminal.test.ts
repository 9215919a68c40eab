import { PassThrough } from 'node:stream';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { progressBar } from '../../../src/tools/cli/progress-bar.js';
import { type Terminal, terminalOf } from '../../../src/tools/cli/terminal.js';

/** A terminal, and what was written to it. */
function newTerminal(): { terminal: Terminal; written: () => string } {
  const stream = Object.assign(new PassThrough(), { isTTY: true, columns: 80 });
  return { terminal: terminalOf({ stdout: stream, stderr: stream }), written: () => String(stream.read() ?? '') };
}

afterEach(() => vi.unstubAllEnvs());

describe('a terminal', () => {
  test.each([
    ['xterm', undefined, true, true],
    ['xterm', '1', true, false],
    ['dumb', undefined, false, false],
    [undefined, undefined, true, true],
  ])('of the kind %s, with NO_COLOR=%s', (kind, noColor, hasBar, hasBold) => {
    vi.stubEnv('TERM', kind);
    vi.stubEnv('NO_COLOR', noColor);
    vi.stubEnv('FORCE_COLOR', '1');
    const { terminal, written } = newTerminal();
    const bar = progressBar(terminal, 'reading', 2);
    bar.update(1, 'half');
    bar.stop();
    expect(written().includes('reading')).toBe(hasBar);
    terminal.stdout.write(terminal.stdout.bold('text'));
    expect(written()).toBe(hasBold ? '\x1b[1mtext\x1b[22m' : 'text');
  });
});
