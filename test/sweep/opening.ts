import { driverFunctionNames } from '../../src/tools/testing/index.js';
import { runModule } from '../support/run-module.js';
import type { SweepResult } from './sweep.js';

/**
 * What happens only once in a process: opening a driver and its devices. Each trial has its own
 * process, with the built package.
 */
export const openingName = 'opening a driver and its devices';

const statuses = [2, 999];

/** Makes each call fail, each time in a process of its own. */
export function sweepOpening(onTrial: (fault: string) => void): SweepResult {
  const result: SweepResult = {
    scenario: openingName,
    errors: 0,
    recoveries: 0,
    seconds: 0,
    untouched: 0,
    leaks: 0,
    stranded: 0,
    problems: [],
  };
  for (const name of driverFunctionNames()) {
    for (const status of statuses) {
      for (let nth = 1; playOpening(name, nth, status, onTrial, result); nth++);
    }
  }
  return result;
}

/** Returns whether a call failed. */
function playOpening(name: string, nth: number, status: number, onTrial: (fault: string) => void, result: SweepResult): boolean {
  const fault = `${name} ${nth} with ${status}`;
  onTrial(fault);
  const end = runModule(programOf(name, nth, status));
  const { errors, problems, usedBytes } = end.status === 0 ? JSON.parse(end.stdout) : { errors: [], problems: [], usedBytes: 0 };
  if (end.status !== 0) problems.push(`the process ends (${end.signal ?? end.status}); ${end.stderr}`);
  if (usedBytes > 0) {
    result.leaks++;
    problems.push(`leaks ${usedBytes} bytes`);
  }
  result.problems.push(...problems.map((problem: string) => `${fault}: ${problem}`));
  if (errors.length > 0) result.errors++;
  else result.untouched++;
  return errors.length > 0;
}

function programOf(name: string, nth: number, status: number): string {
  return `
    import { CisternError, CudaAsyncMemoryResource, CudaMemoryResource, Device, Stream } from 'cistern';
    import { failCall } from 'cistern/testing';
    const errors = [];
    const problems = [];
    const attempt = (step, action) => {
      try {
        return action();
      } catch (error) {
        errors.push(step);
        if (!(error instanceof CisternError)) problems.push(step + ': fails untyped, ' + error);
      }
      return action();
    };
    failCall(${JSON.stringify(name)}, ${nth}, ${status});
    attempt('count', () => Device.count());
    for (const index of [0, 1]) {
      const device = attempt('get', () => Device.get(index));
      attempt('measure', () => device.memoryInfo());
      const stream = attempt('make a stream', () => new Stream({ device }));
      for (const type of [CudaMemoryResource, CudaAsyncMemoryResource]) {
        const resource = attempt('make a resource', () => new type({ device }));
        const pointer = attempt('allocate', () => resource.allocate(1000, stream));
        attempt('free', () => resource.deallocate(pointer, 1000, stream));
        attempt('dispose', () => resource.dispose());
      }
      attempt('dispose the stream', () => stream.dispose());
    }
    failCall(${JSON.stringify(name)}, 0);
    let usedBytes = 0;
    for (const index of [0, 1]) {
      Device.get(index).synchronizeSync();
      const { freeBytes, totalBytes } = Device.get(index).memoryInfo();
      usedBytes += totalBytes - freeBytes;
    }
    console.log(JSON.stringify({ errors, problems, usedBytes }));
  `;
}
