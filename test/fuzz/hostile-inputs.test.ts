import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, test } from 'vitest';
import { formats } from './hostile-inputs.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-hostile-'));
afterAll(() => rmSync(folder, { recursive: true }));

const script = fileURLToPath(new URL('fuzz-process.mjs', import.meta.url));
/** Far more than a busy machine needs, and nothing to what careless code would take: a process is ended after it. */
const mostMilliseconds = 150_000;

describe('an input that was made to cost far more than its bytes', () => {
  test.each(Object.keys(formats))(
    'is read, or refused in a short line: %s',
    (format) => {
      const file = join(folder, format);
      writeFileSync(file, format);
      // In a separate process, because code that does not end can only be ended with its process.
      const { status, signal, stdout, stderr } = spawnSync(process.execPath, [script, '--replay', 'hostile-inputs', file], {
        encoding: 'utf8',
        timeout: mostMilliseconds,
        killSignal: 'SIGKILL',
      });
      expect({ status, signal, stdout, stderr: stderr.slice(-2000) }).toMatchObject({
        status: 0,
        signal: null,
        stdout: '1 inputs passed\n',
        stderr: expect.stringMatching(/\n\d{2,} inputs\n$/),
      });
    },
    mostMilliseconds + 10_000,
  );
});
