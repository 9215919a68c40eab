import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll } from 'vitest';
import { Recording } from '../../src/recording/index.js';

import { readRecording } from './read-recording.js';

/** A folder for the tests of one file; it is removed after them. */
export const folder = mkdtempSync(join(tmpdir(), 'cistern-recordings-'));
afterAll(() => rmSync(folder, { recursive: true }));

let files = 0;

/** The path of a recording that does not exist yet. */
export const newFile = () => join(folder, `${files++}.cistern`);

/** Records what a function does, and reads it. */
export async function recorded(use: (recording: Recording) => void | Promise<void>) {
  const file = newFile();
  const recording = new Recording({ file });
  try {
    await use(recording);
  } finally {
    recording.dispose();
  }
  return readRecording(file);
}
