/**
 * How a process sleeps and wakes, and what becomes of it if a step fails.
 *
 *               lock              checkpoint
 *     running ───────► locked ─────────────────► checkpointed
 *        ▲  timeout:     │ ▲  refused: unlock        │
 *        └─ running ─────┘ └──────── restore ────────┘  refused: sleeps on
 *             unlock
 *
 * While this process sleeps, the driver would keep every call of it waiting, that of the thread that is to wake it, too. So cistern
 * keeps calls from the driver first (native/cuda/asleep_table.h), and makes the steps on another thread.
 */
import { setImmediate, setTimeout } from 'node:timers/promises';
import {
  ArgumentTypeError,
  CisternError,
  type DriverError,
  formatValue,
  ProcessSleepError,
  type ProcessSleepReason,
  resultOrNothing,
  UnsupportedError,
} from '../../basics/errors.js';
import { assertInteger, assertMilliseconds, assertOptions, optionNames } from '../../basics/validation.js';
import { currentBackend } from '../../driver/backend.js';
import { Device, usedDevices } from '../../driver/device.js';
import { nvmlUsage } from '../../driver/nvml.js';
import {
  beginProcessSleep,
  endProcessSleep,
  lackForProcessSleep,
  noteProcessAsleep,
  type ProcessState,
  type ProcessStep,
  type StepResult,
  stepProcess,
} from '../../driver/process-steps.js';
import { Stream } from '../../driver/streams/stream.js';
import { isAnythingCaptured } from '../../driver/streams/stream-identity.js';
import { allNeighbours } from '../../kept-memory/neighbours.js';
import type { MemoryResource } from '../../memory-resource.js';
import { hasEnded, type RunningProcess, runningProcess } from './running-process.js';
import { type SleepOptions, type SleepReport, sleepResource, type WakeReport, wakeResource } from './sleep.js';

/** A resource that falls asleep before its process does. */
export interface ResourceToSleep extends SleepOptions {
  readonly resource: MemoryResource;
}

/** Options of {@link sleepProcess}. */
export interface ProcessSleepOptions {
  /**
   * The process: of this user, on this machine.
   * @defaultValue this one
   */
  readonly pid?: number | undefined;
  /**
   * How long to wait until the process has done what it had queued. New calls of the process wait meanwhile.
   * @defaultValue 10 seconds
   */
  readonly lockTimeoutMilliseconds?: number | undefined;
  /**
   * Resources of this process that {@link sleepResource} puts to sleep first, one after the other: with `keep: 'nothing'`, memory whose contents
   * need not be kept. They wake last, in reverse order.
   * @defaultValue none
   */
  readonly resources?: readonly ResourceToSleep[] | undefined;
}

/** Options of {@link wakeProcess}. */
export interface ProcessWakeOptions {
  /**
   * The process.
   * @defaultValue this one
   */
  readonly pid?: number | undefined;
}

/** The result of {@link sleepProcess}. */
export interface ProcessSleepReport {
  readonly pid: number;
  /**
   * Bytes that the process returned to the devices, with those of its resources; `undefined` if nobody tells: the driver does by NVML,
   * but not in some containers.
   */
  readonly releasedBytes: number | undefined;
  /** Until the process had done what it had queued, and no new call could begin. */
  readonly lockMilliseconds: number;
  /** For the copy of its memory to the host. */
  readonly checkpointMilliseconds: number;
  readonly elapsedMilliseconds: number;
  /** What became of the resources, in the order of the option. */
  readonly resources: readonly SleepReport[];
}

/** The result of {@link wakeProcess}. */
export interface ProcessWakeReport {
  readonly pid: number;
  /** Bytes that the process took from the devices, with those of its resources; `undefined` if nobody tells. */
  readonly takenBytes: number | undefined;
  /** For the copy of its memory to the devices. */
  readonly restoreMilliseconds: number;
  readonly elapsedMilliseconds: number;
  /** What became of the resources, in the order in which they woke. */
  readonly resources: readonly WakeReport[];
}

const sleepOptions = optionNames<ProcessSleepOptions>({ lockTimeoutMilliseconds: true, pid: true, resources: true });
const wakeOptions = optionNames<ProcessWakeOptions>({ pid: true });
const resourceOptions = optionNames<ResourceToSleep>({ keep: true, resource: true, tag: true, unchanged: 'boolean' });
const longestPid = 2 ** 31 - 1;
const longestTimeout = 2 ** 32 - 1;
/** What refusals of the driver mean, as far as its documentation says. */
const hints: Readonly<Record<string, string>> = {
  CUDA_ERROR_NOT_SUPPORTED: ', as some versions do for memory that processes share, and for managed memory',
  CUDA_ERROR_OUT_OF_MEMORY: ': there is not enough memory',
};
/** How often it is checked whether another process still lives, which the driver may never notice. */
const lookMilliseconds = 100;

interface Steps {
  readonly lockMilliseconds: number;
  readonly checkpointMilliseconds: number;
}

/** Those that wait for this process to wake, in the order in which they fell asleep. */
let asleep: readonly ResourceToSleep[] = [];
/** What this thread does with this process. */
let own: 'awake' | 'falling asleep' | 'asleep' | 'waking' = 'awake';

/**
 * Makes a process give its devices away, by the driver's checkpoint: all memory, contexts, graphs and handles of all libraries in it,
 * also of those that know nothing of cistern. The contents go to host memory, and come again at the same addresses when
 * {@link wakeProcess} is called. Needs Linux and a driver of CUDA 12.8 or newer (570).
 *
 * A process puts itself to sleep in one call: a server that is idle. From this call until it is awake, cistern refuses what needs
 * the device (`ERR_CISTERN_ASLEEP`) instead of waiting; frees are noted, and made when it wakes. Calls of other libraries
 * wait in the driver, and with them the thread that makes them: keep them from it. Memory that pools keep free is returned first.
 *
 * Another process needs no preparation, and notices nothing but a pause: its calls to the driver wait until it wakes.
 *
 * Stream order: everything that was queued is done first. Held streams and host functions of another process may keep it from that, so
 * there is a time limit.
 * @throws ProcessSleepError if a step fails; the process then runs on as before, unless `reason` is `'failed'`. `cause` is the
 * driver's error, if it had one.
 * @throws UnsupportedError if the system or the driver cannot do this; ArgumentRangeError (`ERR_INVALID_ARG_VALUE`) if there is no such
 * process, or if `resources` are given for another one.
 * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) while an earlier call for this process has not resolved; (`ERR_CISTERN_CAPTURING`) while a
 * stream of this thread is captured. What {@link sleepResource} throws.
 * @example
 * ```ts
 * using cache = new PoolMemoryResource(new VirtualMemoryResource());
 * const { elapsedMilliseconds } = await sleepProcess({ resources: [{ resource: cache, keep: 'nothing' }] });
 * // The device belongs to others now.
 * await wakeProcess();
 * ```
 */
export async function sleepProcess(options: ProcessSleepOptions = {}): Promise<ProcessSleepReport> {
  assertOptions(options, sleepOptions);
  const { pid = process.pid, lockTimeoutMilliseconds = 10_000, resources = [] } = options;
  assertInteger(pid, 'pid', 1, longestPid);
  assertMilliseconds(lockTimeoutMilliseconds, 'lockTimeoutMilliseconds');
  assertResources(resources, pid);
  assertSupported();
  const target = runningProcess(pid);
  const timeout = Math.min(Math.max(1, Math.round(lockTimeoutMilliseconds)), longestTimeout);
  return pid === process.pid ? sleepItself(target, timeout, resources) : sleepOther(target, timeout);
}

/**
 * Makes a process that is asleep take its devices again, with the contents at the same addresses. Resources that {@link sleepProcess} put
 * to sleep wake after it, in reverse order; if one does not find the memory, the process is awake, and the next call wakes the rest.
 * A process that is not asleep stays as it is; one that somebody has only locked is unlocked.
 *
 * Call it on the thread that has called {@link sleepProcess}. If another process wakes this one, call it all the same.
 * @throws ProcessSleepError if the driver refuses, as if the devices have no memory left. The process sleeps on, nothing is lost, and you can call
 * it again, unless `reason` is `'failed'`.
 * @throws UnsupportedError, ArgumentRangeError, and CisternError (`ERR_CISTERN_INVALID_STATE`), as {@link sleepProcess}. What
 * {@link wakeResource} throws.
 */
export async function wakeProcess(options: ProcessWakeOptions = {}): Promise<ProcessWakeReport> {
  assertOptions(options, wakeOptions);
  const { pid = process.pid } = options;
  assertInteger(pid, 'pid', 1, longestPid);
  assertSupported();
  const target = runningProcess(pid);
  return pid === process.pid ? wakeItself(target) : wakeOther(target);
}

/**
 * The state of a process: `'running'`; `'locked'`, while it falls asleep or wakes, and if somebody did not finish that;
 * `'checkpointed'`, asleep; or `'failed'`.
 * @param pid the process, by default this one
 * @throws ProcessSleepError (`'unused'`) if it uses no device, and what {@link wakeProcess} throws.
 */
export async function processState(pid: number = process.pid): Promise<ProcessState> {
  assertInteger(pid, 'pid', 1, longestPid);
  assertSupported();
  return stateOf(runningProcess(pid));
}

function assertSupported(): void {
  const lack = lackForProcessSleep();
  if (lack !== undefined) throw new UnsupportedError(`processes cannot sleep: ${lack}`);
}

function assertResources(resources: unknown, pid: number): asserts resources is readonly ResourceToSleep[] {
  if (!Array.isArray(resources)) throw new ArgumentTypeError(`resources must be an array, got ${formatValue(resources)}`);
  for (const each of resources) assertOptions(each, resourceOptions, 'each of resources');
  if (resources.length > 0 && pid !== process.pid) {
    throw new ArgumentTypeError(`resources must be empty for process ${pid}: only those of this process can sleep`);
  }
}

async function sleepItself(target: RunningProcess, timeout: number, resources: readonly ResourceToSleep[]): Promise<ProcessSleepReport> {
  const started = performance.now();
  assertSettled('sleep');
  if (own === 'asleep') {
    if ((await stateOf(target)) === 'checkpointed') return nothingReleased(target, started);
    throw new CisternError('ERR_CISTERN_INVALID_STATE', 'this process cannot sleep: somebody else has woken it; await wakeProcess() first');
  }
  own = 'falling asleep';
  const slept: ResourceToSleep[] = [];
  try {
    if (isAnythingCaptured)
      throw new CisternError('ERR_CISTERN_CAPTURING', 'cannot put this process to sleep: a stream is captured into a graph');
    const uuids = uuidsOfDevices();
    const before = bytesHeld(target, uuids);
    const reports: SleepReport[] = [];
    for (const each of resources) {
      reports.push(await sleepResource(each.resource, { keep: each.keep, tag: each.tag, unchanged: each.unchanged }));
      slept.push(each);
    }
    await awaitDevices(target, timeout);
    returnFreeMemory();
    const steps = await fallAsleep(target, timeout, slept);
    const after = currentBackend() === 'software' ? 0 : bytesByNvml(target, uuids);
    return report(target, before, after, steps, started, reports);
  } catch (error) {
    // They sleep on if the driver has left the process asleep.
    if (isFallingAsleep()) await Promise.allSettled(slept.reverse().map(({ resource, tag }) => wakeResource(resource, { tag })));
    throw error;
  } finally {
    if (isFallingAsleep()) own = 'awake';
  }
}

/** The steps of this process, from the first of which on none of its calls reaches the driver. */
async function fallAsleep(target: RunningProcess, timeout: number, slept: readonly ResourceToSleep[]): Promise<Steps> {
  if (!beginProcessSleep()) throw failure(target, 'not-running', 'another thread of it has called sleepProcess()');
  try {
    const steps = await makeSteps(target, timeout, noteProcessAsleep);
    isSleepingWith(slept);
    return steps;
  } catch (error) {
    const { state } = await step(target, 'getState');
    // Otherwise, calls would wait in the driver.
    if (state === 'running') endProcessSleep();
    else isSleepingWith(slept);
    throw error;
  }
}

function isSleepingWith(slept: readonly ResourceToSleep[]): void {
  asleep = slept;
  own = 'asleep';
}

function isFallingAsleep(): boolean {
  return own === 'falling asleep';
}

async function sleepOther(target: RunningProcess, timeout: number): Promise<ProcessSleepReport> {
  const started = performance.now();
  const state = await stateOf(target);
  if (state === 'checkpointed') return nothingReleased(target, started);
  if (state === 'failed') throw failedProcess(target);
  if (state !== 'running') throw failure(target, 'not-running', 'somebody has locked it; wakeProcess() unlocks it');
  const uuids = uuidsOfDevices();
  const before = bytesHeld(target, uuids);
  const steps = await makeSteps(target, timeout);
  return report(target, before, bytesByNvml(target, uuids), steps, started, []);
}

/** Locks and checkpoints. If that fails, the process runs on. */
async function makeSteps(target: RunningProcess, timeout: number, whenLocked?: () => void): Promise<Steps> {
  const started = performance.now();
  const lock = await step(target, 'lock', timeout);
  if (lock.refusal?.driverName === 'CUDA_ERROR_NOT_READY') throw unfinished(target, timeout, lock);
  if (lock.refusal !== undefined) throw refused(target, 'lock it', lock);
  const locked = performance.now();
  whenLocked?.();
  const checkpoint = await step(target, 'checkpoint');
  if (checkpoint.refusal !== undefined) throw await unlocked(target, checkpoint);
  return { lockMilliseconds: locked - started, checkpointMilliseconds: performance.now() - locked };
}

/** Why a process was not moved, once it runs on. */
async function unlocked(target: RunningProcess, checkpoint: StepResult): Promise<ProcessSleepError> {
  if (checkpoint.state !== 'locked') return refused(target, 'move its memory to the host', checkpoint);
  const unlock = await step(target, 'unlock');
  return unlock.refusal === undefined
    ? refused(target, 'move its memory to the host', { ...checkpoint, state: unlock.state })
    : refused(target, 'unlock it, after it refused to move its memory', unlock);
}

async function wakeItself(target: RunningProcess): Promise<ProcessWakeReport> {
  const started = performance.now();
  assertSettled('wake');
  const before = own;
  own = 'waking';
  try {
    const restored = await restoreAndUnlock(target);
    endProcessSleep();
    const reports: WakeReport[] = [];
    while (asleep.length > 0) {
      const { resource, tag } = asleep.at(-1) as ResourceToSleep;
      reports.push(await wakeResource(resource, { tag }));
      asleep = asleep.slice(0, -1);
    }
    return wakeReport(target, restored, started, reports);
  } catch (error) {
    if (error instanceof ProcessSleepError) own = before;
    throw error;
  } finally {
    if (own === 'waking') own = 'awake';
  }
}

async function wakeOther(target: RunningProcess): Promise<ProcessWakeReport> {
  const started = performance.now();
  return wakeReport(target, await restoreAndUnlock(target), started, []);
}

/** Returns how long the restore took; `undefined` if the process was not asleep. Makes no other call of the driver: it might wait. */
async function restoreAndUnlock(target: RunningProcess): Promise<number | undefined> {
  let state = await stateOf(target);
  const started = performance.now();
  let restored: number | undefined;
  if (state === 'checkpointed') {
    const restore = await step(target, 'restore');
    if (restore.refusal !== undefined) throw refused(target, 'move its memory back', restore);
    restored = performance.now() - started;
    state = 'locked';
  }
  if (state === 'failed') throw failedProcess(target);
  if (state === 'locked') {
    const unlock = await step(target, 'unlock');
    if (unlock.refusal !== undefined && unlock.state !== 'running') throw refused(target, 'unlock it', unlock);
  }
  return restored;
}

async function stateOf(target: RunningProcess): Promise<ProcessState> {
  const { refusal, state } = await step(target, 'getState');
  if (refusal?.driverName === 'CUDA_ERROR_NOT_INITIALIZED') {
    throw failure(target, 'unused', 'the driver knows no use of a device by it', { refusal });
  }
  if (refusal !== undefined) throw refused(target, 'tell its state', { refusal, state });
  if (state === undefined) throw failure(target, 'not-running', 'another program makes a checkpoint of it');
  return state;
}

/** A step, unless the process ends, which the driver may never notice. Keeps this process alive until then. */
async function step(target: RunningProcess, name: ProcessStep, timeout?: number): Promise<StepResult> {
  let timer: NodeJS.Timeout | undefined;
  const end = new Promise<'ended'>((resolve) => {
    timer = setInterval(() => {
      if (hasEnded(target)) resolve('ended');
    }, lookMilliseconds);
  });
  try {
    const result = await Promise.race([stepProcess(name, target.pid, timeout), end]);
    if (result !== 'ended' && (result.refusal === undefined || !hasEnded(target))) return result;
    throw failure(target, 'ended', `it ended before the driver had done this step: ${name}`);
  } finally {
    clearInterval(timer);
  }
}

function assertSettled(operation: string): void {
  if (own === 'awake' || own === 'asleep') return;
  throw new CisternError('ERR_CISTERN_INVALID_STATE', `this process cannot ${operation}: it is ${own}; await the call before`);
}

/** Lets the program go on while its devices work. The lock would wait for them, too, but keep calls of this process out meanwhile. */
async function awaitDevices(target: RunningProcess, timeout: number): Promise<void> {
  const patience = new AbortController();
  const late = setTimeout(timeout, 'late' as const, { signal: patience.signal });
  const done = Promise.all(usedDevices().map((device) => device.synchronize()));
  done.catch(() => undefined);
  try {
    if ((await Promise.race([done, late])) === 'late') throw unfinished(target, timeout);
  } finally {
    late.catch(() => undefined);
    patience.abort();
  }
  await setImmediate();
}

/** What pools keep free needs no place on the host. A pool that refuses keeps it. */
function returnFreeMemory(): void {
  for (const neighbour of allNeighbours()) {
    const { resource, isTaking } = neighbour;
    if (isTaking || neighbour.freeBytes() === 0) continue;
    using stream = new Stream({ device: resource.device, nonBlocking: true });
    resultOrNothing(() => neighbour.returnFree(stream, Number.MAX_SAFE_INTEGER));
  }
}

function uuidsOfDevices(): readonly string[] {
  return Array.from({ length: Device.count() }, (_, index) => Device.get(index).uuid);
}

/** The bytes of devices that a process holds; `undefined` if nobody tells. */
function bytesHeld({ pid }: RunningProcess, uuids: readonly string[]): number | undefined {
  if (currentBackend() !== 'software') return bytesByNvml({ pid }, uuids) || undefined; // it has a context at least, so 0 means that NVML numbers it otherwise
  if (pid !== process.pid) return undefined;
  return uuids.reduce((sum, _, index) => {
    const { totalBytes, freeBytes } = Device.get(index).memoryInfo();
    return sum + totalBytes - freeBytes;
  }, 0);
}

function bytesByNvml({ pid }: Pick<RunningProcess, 'pid'>, uuids: readonly string[]): number | undefined {
  let sum = 0;
  for (const uuid of uuids) {
    const processes = nvmlUsage(uuid)?.processes;
    if (processes === undefined) return undefined;
    sum += processes.find((each) => each.pid === pid)?.bytes ?? 0;
  }
  return sum;
}

function report(
  { pid }: RunningProcess,
  before: number | undefined,
  after: number | undefined,
  steps: Steps,
  started: number,
  resources: readonly SleepReport[],
): ProcessSleepReport {
  return Object.freeze({
    pid,
    releasedBytes: before === undefined || after === undefined ? undefined : before - after,
    ...steps,
    elapsedMilliseconds: performance.now() - started,
    resources: Object.freeze(resources),
  });
}

function nothingReleased(target: RunningProcess, started: number): ProcessSleepReport {
  return report(target, 0, 0, { lockMilliseconds: 0, checkpointMilliseconds: 0 }, started, []);
}

function wakeReport(
  target: RunningProcess,
  restored: number | undefined,
  started: number,
  resources: readonly WakeReport[],
): ProcessWakeReport {
  return Object.freeze({
    pid: target.pid,
    takenBytes: restored === undefined ? 0 : bytesHeld(target, uuidsOfDevices()),
    restoreMilliseconds: restored ?? 0,
    elapsedMilliseconds: performance.now() - started,
    resources: Object.freeze(resources),
  });
}

function failure(
  { pid }: RunningProcess,
  reason: ProcessSleepReason,
  why: string,
  { refusal }: Pick<StepResult, 'refusal'> = { refusal: undefined },
): ProcessSleepError {
  const which = pid === process.pid ? 'this process' : `process ${pid}`;
  return new ProcessSleepError(
    `${which} did not change its state: ${why}`,
    { pid, reason },
    refusal === undefined ? {} : { cause: refusal },
  );
}

function unfinished(target: RunningProcess, timeout: number, lock?: StepResult): ProcessSleepError {
  const why = `what it had queued did not end within ${timeout} ms: a stream may be held, or a host function may not return`;
  return failure(target, 'timeout', why, lock);
}

function refused(target: RunningProcess, step: string, { refusal, state }: StepResult): ProcessSleepError {
  if (state === 'failed') return failedProcess(target, refusal);
  const hint = hints[refusal?.driverName ?? ''] ?? '';
  return failure(target, 'refused', `the driver refuses to ${step} with ${refusal?.driverName}${hint}`, { refusal });
}

function failedProcess({ pid }: RunningProcess, cause?: DriverError): ProcessSleepError {
  const message = `the driver cannot go on with process ${pid}, whose state is now FAILED: end it`;
  return new ProcessSleepError(message, { pid, reason: 'failed' }, cause === undefined ? {} : { cause });
}
