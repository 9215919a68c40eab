/** Failures and delays of the software device's driver functions, for tests of what a program does then. */
import { formatValue, invalidValue } from '../../basics/errors.js';
import { assertInteger } from '../../basics/validation.js';
import { mailbox, native } from '../../driver/native.js';
import { check, outOfMemoryStatus } from '../../driver/status.js';

/**
 * Makes every later call of a driver function of the software device take at least this long, on
 * the calling thread. 0 removes the delay.
 * @param functionName CUDA's name, such as `cuEventRecord`
 */
export function setCallLatency(functionName: string, nanoseconds: number): void {
  assertFunction(functionName);
  assertInteger(nanoseconds, 'nanoseconds', 0);
  native().setLatency(functionName, nanoseconds);
  check('set a latency');
}

/**
 * Makes the nth next call (1 is the very next) of a driver function of the software device fail. 0
 * cancels a failure.
 * @param functionName CUDA's name, such as `cuMemAlloc`
 * @param status the `CUresult` it returns; out of memory by default
 * @returns whether a failure that was requested earlier for this function, and is now cancelled,
 * had not happened yet. So `failCall(functionName, 0)` returns whether the call was never made.
 */
export function failCall(functionName: string, nth = 1, status: number = outOfMemoryStatus): boolean {
  assertFunction(functionName);
  assertInteger(nth, 'nth', 0);
  assertInteger(status, 'status', 1, 999);
  native().failCall(functionName, nth, status);
  check('inject a failure');
  return mailbox[1] === 1;
}

/** The driver functions that can be delayed and failed, by CUDA's names. */
export function driverFunctionNames(): readonly string[] {
  return native().functionNames;
}

function assertFunction(name: string): void {
  if (native().functionNames.includes(name)) return;
  throw invalidValue(`there is no driver function ${formatValue(name)}; see driverFunctionNames()`);
}
