import type { Stream } from '../../src/index.js';
import { skipTest } from './skip-test.js';

/** Skips the test if the driver cannot capture a stream. */
export function needCaptures(stream: Stream): void {
  try {
    stream.capture(() => {}).dispose();
  } catch {
    skipTest('needs a driver that captures');
  }
}
