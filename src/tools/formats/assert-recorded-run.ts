import { ArgumentTypeError, formatValue } from '../../basics/errors.js';
import type { RecordedRun } from './recorded-run.js';

/** @throws ArgumentTypeError if the value is not a run. Not beside {@link RecordedRun}, which pages use in browsers. */
export function assertRecordedRun(value: unknown, name: string): asserts value is RecordedRun {
  const { kinds, layers } = (value ?? {}) as Partial<RecordedRun>;
  if (kinds instanceof Uint8Array && Array.isArray(layers)) return;
  throw new ArgumentTypeError(`${name} must be a RecordedRun, which readRecordedRun returns, got ${formatValue(value)}`);
}
