import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { EventKind } from '../../../src/tools/formats/event-columns.js';
import { type RecordedRun, readRecordedRun } from '../../../src/tools/formats/index.js';
import { runLibrary } from '../../../src/tools/outside/run-library.js';
import { builtForTests } from '../../support/built-for-tests.js';
import { type CommandRun, runCistern } from '../cli/run-cistern.js';

/** The folder with the driver and the programs, or why the tests are skipped. */
export const outside =
  process.platform !== 'linux' || runLibrary() === undefined
    ? { missing: 'programs can be recorded from outside on Linux with glibc only' }
    : await builtForTests('buildOutside', 'the driver and programs for `cistern run`');

/** The path of one of the programs. */
export function outsideProgram(name: string): string {
  return join(outside.path as string, name);
}

/** The environment of a program that finds the driver. */
export function outsideEnvironment(): Record<string, string> {
  return { LD_LIBRARY_PATH: outside.path as string, CISTERN_SOFTWARE_MEMORY: '1GiB' };
}

/** A folder that exists as long as it is used. */
export async function inFolder<T>(use: (folder: string) => Promise<T>): Promise<T> {
  const folder = mkdtempSync(join(tmpdir(), 'cistern-outside-'));
  try {
    return await use(folder);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** Runs `cistern run` with options and a program. */
export function runOutside(
  file: string,
  options: readonly string[],
  program: readonly string[],
  act?: Parameters<typeof runCistern>[1],
  environment = {},
): Promise<CommandRun> {
  return runCistern(['run', '-o', file, ...options, '--', ...program], act, { ...outsideEnvironment(), ...environment });
}

/** The allocations of a run, each with its layer, bytes, stream, account, label, stack and whether it was freed. */
export interface OutsideAllocation {
  readonly layer: string;
  readonly bytes: number;
  readonly stream: string;
  readonly thread: string;
  readonly account: string;
  label: string;
  readonly stack: string;
  isFreed: boolean;
}

/** Reads a recording that must be whole. */
export async function readOutside(file: string): Promise<{ run: RecordedRun; allocations: readonly OutsideAllocation[] }> {
  const run = await readRecordedRun(file);
  const allocations: OutsideAllocation[] = [];
  const live = new Map<string, OutsideAllocation>();
  for (let i = 0; i < run.eventCount; i++) {
    const key = `${run.layerOf[i]} ${run.firsts[i]}`;
    if (run.kinds[i] === EventKind.allocate) {
      const allocation = {
        layer: run.layers[run.layerOf[i] as number]?.name as string,
        bytes: run.seconds[i] as number,
        stream: run.streams[run.streamOf[i] as number] as string,
        thread: run.threads[run.threadOf[i] as number] as string,
        account: run.accounts[run.accountOf[i] as number] as string,
        label: '',
        stack: run.stacks[run.stackOf[i] as number] as string,
        isFreed: false,
      };
      if (live.has(key)) throw new Error(`${key} is allocated twice`);
      live.set(key, allocation);
      allocations.push(allocation);
    } else if (run.kinds[i] === EventKind.free) {
      const freed = live.get(key);
      if (freed === undefined) throw new Error(`${key} is freed, but was not allocated`);
      freed.isFreed = true;
      live.delete(key);
    } else if (run.kinds[i] === EventKind.label) {
      (live.get(key) as OutsideAllocation).label = run.labels[run.seconds[i] as number] as string;
    }
  }
  return { run, allocations };
}

/** The bytes on devices after each step of a random program, which registers three pages of the host when a step ends; and the peak. */
export function deviceBytesOfSteps(run: RecordedRun): { sums: number[]; peak: number } {
  const sums: number[] = [];
  let sum = 0;
  let peak = 0;
  for (let i = 0; i < run.eventCount; i++) {
    const kind = run.kinds[i];
    if (kind !== EventKind.allocate && kind !== EventKind.free) continue;
    const layer = run.layers[run.layerOf[i] as number]?.name;
    if (layer === 'registered host' && kind === EventKind.allocate && run.seconds[i] === 3 * 4096) sums.push(sum);
    if (layer !== 'device 0') continue;
    sum += (kind === EventKind.allocate ? 1 : -1) * (run.seconds[i] as number);
    peak = Math.max(peak, sum);
  }
  return { sums, peak };
}
