import { afterAll } from 'vitest';
import { Stream } from '../../src/index.js';

/** A stream for the tests of one file; it ends after them. */
export const stream = new Stream();
afterAll(() => stream.dispose());
