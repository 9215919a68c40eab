import { GiB } from '../../src/basics/units.js';
import { Device } from '../../src/driver/device.js';
import { skipTest } from './skip-test.js';

/** Skips the test on a device that would take too long to fill. */
export function needSmallDevice(): void {
  if (Device.get().memoryInfo().freeBytes > GiB) skipTest('more than 1 GiB of the device is free');
}

/** Skips the test if there is only one device. */
export function needSecondDevice(): void {
  if (Device.count() < 2) skipTest('there is no second device');
}

/**
 * The free bytes of the first device once all its work has run and every free of a pool counts: the
 * driver counts one only when a synchronization has seen it.
 */
export function settledFreeBytes(): number {
  Device.get().synchronizeSync();
  return Device.get().memoryInfo().freeBytes;
}

/** Skips the test if the driver has no memory pools. */
export function needMemoryPools(): void {
  if (Device.get().attribute('memoryPoolsSupported') !== 1) skipTest('the device has no pools');
}

/**
 * The environment variables that set the memory of each device under test, if that can be chosen.
 */
export function deviceMemory(mebibytes: number): Record<string, string> {
  const megabytes = String(mebibytes);
  return { CISTERN_SOFTWARE_MEMORY: `${megabytes}MiB`, STRICT_DRIVER_MEMORY_MB: megabytes, STRICT_DRIVER_CONTEXT_MB: '0' };
}
