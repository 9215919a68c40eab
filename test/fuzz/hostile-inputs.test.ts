import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, expect, test } from 'vitest';
import { formats } from './hostile-inputs.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-hostile-'));
afterAll(() => rmSync(folder, { recursive: true }));

const script = fileURLToPath(new URL('fuzz-process.mjs', import.meta.url));
/** Far more than a busy machine needs, and nothing to what careless code would take: a process is ended after it. */
const mostMilliseconds = 300_000;

test(
  'an input that was made to cost far more than its bytes is read, or refused in a short line, in each format',
  () => {
    const files = Object.keys(formats).map((format) => {
      const file = join(folder, format);
      writeFileSync(file, format);
      return file;
    });
    // In a separate process, because code that does not end can only be ended with its process. It tells of each format and input.
    const { status, signal, stdout, stderr } = spawnSync(process.execPath, [script, '--replay', 'hostile-inputs', ...files], {
      encoding: 'utf8',
      timeout: mostMilliseconds,
      killSignal: 'SIGKILL',
    });
    expect({ status, signal, stdout, stderr: stderr.slice(-2000) }).toMatchObject({
      status: 0,
      signal: null,
      stdout: `${files.length} inputs passed\n`,
    });
    expect(stderr.match(/^\d{2,} inputs$/gm)).toHaveLength(files.length);
  },
  mostMilliseconds + 10_000,
);
