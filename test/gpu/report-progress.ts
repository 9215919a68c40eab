// Loaded before each test file of a suite for a CUDA device. Writes down which file and which test
// begin and end, in the tests' own process: nothing else comes from there once it hangs.
import { appendFileSync } from 'node:fs';
import { relative } from 'node:path';
import { afterEach, beforeEach, expect } from 'vitest';

const results = process.env['CISTERN_TEST_RESULTS'];

if (results !== undefined) {
  const write = (line: object) => appendFileSync(results, `${JSON.stringify(line)}\n`);
  const file = relative(process.cwd(), expect.getState().testPath ?? '');
  write({ file, name: 'the file itself', progress: 'began' });
  beforeEach(({ task }) => write({ file, name: task.fullTestName, progress: 'began' }));
  // The reporter's line may never come: it is written by another process, to which one that hangs sends nothing more.
  afterEach(({ task }) =>
    write({ file, name: task.fullTestName, progress: 'ended', sofar: task.result?.state === 'fail' ? 'failed' : 'passed' }),
  );
}
