import { counters, native } from '../../driver/native.js';

/** How often this environment has called the driver since it started, on all devices. */
export interface DriverCallCounts {
  /** Allocations of every kind, including host memory and each page of virtual memory. */
  readonly allocations: number;
  readonly frees: number;
  readonly eventRecords: number;
  readonly eventWaits: number;
  /** Blocking synchronizations of a stream, an event or a device. */
  readonly synchronizations: number;
  /** The calls of each function, by CUDA's name. */
  readonly byFunction: Readonly<Record<string, number>>;
}

const groups = {
  allocations: ['cuMemAlloc', 'cuMemAllocManaged', 'cuMemHostAlloc', 'cuMemHostRegister', 'cuMemAllocFromPoolAsync', 'cuMemCreate'],
  frees: ['cuMemFree', 'cuMemFreeHost', 'cuMemHostUnregister', 'cuMemFreeAsync', 'cuMemUnmap'],
  eventRecords: ['cuEventRecord'],
  eventWaits: ['cuStreamWaitEvent'],
  synchronizations: ['cuStreamSynchronize', 'cuEventSynchronize', 'cuCtxSynchronize'],
} as const;

/** The current counts. To count the calls in between, subtract two of them. */
export function driverCallCounts(): DriverCallCounts {
  const counts = counters();
  const names = native().functionNames;
  const byFunction: Record<string, number> = {};
  for (const [i, name] of names.entries()) byFunction[name] = counts[i] as number;
  const sum = (group: keyof typeof groups) => groups[group].reduce((total, name) => total + (byFunction[name] as number), 0);
  return {
    allocations: sum('allocations') + (counts[names.length] as number),
    frees: sum('frees') + (counts[names.length + 1] as number),
    eventRecords: sum('eventRecords'),
    eventWaits: sum('eventWaits'),
    synchronizations: sum('synchronizations'),
    byFunction,
  };
}
