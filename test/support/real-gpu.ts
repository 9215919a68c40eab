import { noFaultsReason } from './direct-faults.mjs';
import { skipTest } from './skip-test.js';

/** Whether the device under test is a GPU, and not the strict driver. */
export const isGpu = process.env['CISTERN_DEVICE'] === 'cuda' && process.env['STRICT_DRIVER_CONTROL'] === undefined;

/** Skips a test that makes a call fail after others, which a skip in its middle would leave half done. */
export function needFaults(): void {
  if (isGpu) skipTest(noFaultsReason);
}

/**
 * Whether tests may ask for more managed memory than the device has. On a GPU only if `CISTERN_TEST_OVERSUBSCRIPTION` is 1: the
 * driver then moves pages without end, and a GPU that others use may hang.
 */
export const mayOversubscribe = !isGpu || process.env['CISTERN_TEST_OVERSUBSCRIPTION'] === '1';

export const oversubscriptionReason = 'asks a GPU for more managed memory than it has, unless CISTERN_TEST_OVERSUBSCRIPTION is 1';

/** Skips a test that holds so many streams that others would wait behind them in a hardware queue. */
export function needHardwareQueues(streams: number): void {
  if (isGpu && streams > 16) skipTest('a GPU has fewer hardware queues than streams that are held');
}
