/**
 * Collecting garbage before memory runs out: to V8 a buffer of 1 GiB of device memory is an object of some bytes, so it has no reason to
 * collect the buffers that a program drops without disposing them.
 *
 * V8 has an account for memory outside its heap, but that knows only sums: it takes every swing of some hundred MiB for garbage, though
 * buffers that are disposed leave none. So V8 is not told. What live buffers hold is added up here instead, for each device and for the
 * host, and garbage is collected when an allocation would make it more than `pressure` of what there is:
 *
 *         0                                    pressure        0.95     1
 *         ├──────────── never ────────────────────┼── timeShare ─┼───────┤   held bytes / size
 *
 *  - a minor collection, and a major one if that did not bring the held bytes below the line again;
 *  - after a collection, the next one comes an eighth above what it could not free, so that a program that needs so much does not collect
 *    all the time;
 *  - and not before so much time has gone by that collections take `timeShare` of all time at most, unless more than 0.95 would be held: a
 *    program that drops buffers quickly could not go on otherwise.
 *
 * The size is the memory of the device; for the host, what is held and what the system says is available. A device refuses what it does not
 * have, which makes buffers collect in any case; a host does not, so for the host the next collection is due at 0.95 at the latest.
 *
 * Cost: an addition and a comparison for an allocation below the line; a look at the clock above it.
 */
import { totalmem } from 'node:os';
import type { Device } from '../driver/device.js';
import type { MemoryKind } from '../driver/plain-memory.js';
import { ArgumentRangeError, ArgumentTypeError, formatValue } from '../errors.js';
import { MiB } from '../units.js';
import { assertOptions, optionNames } from '../validation.js';
import { reclaimUnreachableBuffers } from './reclaim-unreachable-buffers.js';

/** Options of {@link configureEarlyCollection}. */
export interface EarlyCollectionOptions {
  /**
   * How much of the memory buffers may hold before garbage is collected, above 0 and at most 1.
   * @defaultValue 0.75
   */
  readonly pressure?: number;
  /**
   * How much of all time collections may take, from 0 to 1. 0 turns them off.
   * @defaultValue 0.05; 0 where the environment variable `CISTERN_EARLY_COLLECTION` is `off`
   */
  readonly timeShare?: number;
}

const knownOptions = optionNames<EarlyCollectionOptions>({ pressure: true, timeShare: true });

const defaultPressure = 0.75;
const defaultTimeShare = 0.05;
/** Where there is no time to lose. */
const criticalPressure = 0.95;
/** What is worth a collection at least. */
const leastBytes = 64 * MiB;

let settings: Required<EarlyCollectionOptions> | undefined;
/** By `performance.now()`: before it, a collection would take more than its share of time. */
let nextAt = 0;
let isCollecting = false;

/** What live buffers hold of one device, or of the host's memory. */
export class HeldMemory {
  /** Whoever takes or gives back memory adds it here. */
  heldBytes = 0;
  /** Above it, an allocation calls {@link collectEarly} first. Unknown, and therefore 0, before the first. */
  dueBytes = 0;
  readonly #device: Device | undefined;
  /** The next collection is not worth its time below it, because the last one could not free what is held. */
  #worthwhileBytes = 0;
  #criticalBytes = 0;

  /** @param device `undefined` stands for the host */
  constructor(device: Device | undefined) {
    this.#device = device;
  }

  /** Collects garbage if it is time to, before `bytes` more are held. Frees what was collected. */
  collectEarly(bytes: number): void {
    if (isCollecting) return;
    const { pressure, timeShare } = currentSettings();
    if (timeShare === 0) {
      this.dueBytes = Number.POSITIVE_INFINITY;
      return;
    }
    const beganAt = performance.now();
    if (this.dueBytes > 0 && !this.#hasTime(beganAt, bytes)) return;
    const lineBytes = this.#findLine(pressure);
    if (this.heldBytes + bytes <= this.dueBytes || !this.#hasTime(beganAt, bytes)) return;
    const heldBefore = this.heldBytes;
    isCollecting = true;
    try {
      reclaimUnreachableBuffers('minor');
      if (this.heldBytes + bytes > lineBytes) reclaimUnreachableBuffers('major');
    } finally {
      isCollecting = false;
    }
    const endedAt = performance.now();
    nextAt = endedAt + (endedAt - beganAt) * (1 / timeShare - 1);
    this.#worthwhileBytes = this.heldBytes + bytes + Math.max(lineBytes, heldBefore) / 8;
    this.#findLine(pressure);
  }

  /** Begins again, as if nothing had been collected. */
  restart(): void {
    this.dueBytes = 0;
    this.#worthwhileBytes = 0;
  }

  #hasTime(now: number, bytes: number): boolean {
    return now >= nextAt || this.heldBytes + bytes > Math.max(this.#criticalBytes, this.#worthwhileBytes);
  }

  /** Finds out from where on to collect. Returns it as if no collection had been fruitless. */
  #findLine(pressure: number): number {
    const sizeBytes = this.#device?.totalBytes ?? Math.min(totalmem(), this.heldBytes + process.availableMemory());
    const lineBytes = Math.max(pressure * sizeBytes, leastBytes);
    this.#criticalBytes = Math.max(criticalPressure * sizeBytes, lineBytes);
    const latestBytes = this.#device === undefined ? this.#criticalBytes : Number.POSITIVE_INFINITY;
    this.dueBytes = Math.min(Math.max(lineBytes, this.#worthwhileBytes), latestBytes);
    return lineBytes;
  }
}

const ofHost = new HeldMemory(undefined);
/** By the device's index. */
const ofDevices: (HeldMemory | undefined)[] = [];

/** Where buffers are counted whose memory is of a kind, on a stream of a device. */
export function heldMemory(kind: MemoryKind, device: Device): HeldMemory {
  if (kind === 'host' || kind === 'pinned-host') return ofHost;
  const { index } = device;
  let held = ofDevices[index];
  if (held === undefined) {
    held = new HeldMemory(device);
    ofDevices[index] = held;
  }
  return held;
}

/**
 * Says when garbage is collected although memory has not run out, in this environment (the main thread or one worker): when what buffers
 * hold of a device, or of the host's memory, would be more than `pressure` of it. What is left out gets its default.
 *
 * Nothing is collected before, so a program that disposes its buffers and stays below pays nothing. Where this is off, buffers that are
 * dropped without being disposed are freed once V8 collects for a reason of its own, and when memory has run out. The host's memory may then
 * run out first, which ends the process.
 *
 * `pressure` and `timeShare` are those of CUDA.jl. RMM has no counterpart.
 * @throws ArgumentTypeError, ArgumentRangeError for an option out of its range; everything is as before then.
 * @example
 * ```ts
 * configureEarlyCollection({ timeShare: 0 }); // off: this program disposes all its buffers
 * ```
 */
export function configureEarlyCollection(options: EarlyCollectionOptions = {}): void {
  assertOptions(options, knownOptions);
  const { pressure = defaultPressure, timeShare = timeShareFromEnvironment() } = options;
  assertFraction(pressure, 'pressure');
  if (pressure === 0) throw new ArgumentRangeError('pressure must be above 0, got 0');
  assertFraction(timeShare, 'timeShare');
  settings = { pressure, timeShare };
  nextAt = 0;
  ofHost.restart();
  for (const held of ofDevices) held?.restart();
}

function currentSettings(): Required<EarlyCollectionOptions> {
  settings ??= { pressure: defaultPressure, timeShare: timeShareFromEnvironment() };
  return settings;
}

function timeShareFromEnvironment(): number {
  const value = process.env['CISTERN_EARLY_COLLECTION'] ?? '';
  if (value === '' || value === 'on') return defaultTimeShare;
  if (value === 'off') return 0;
  throw new ArgumentRangeError(`CISTERN_EARLY_COLLECTION must be 'on' or 'off', got ${formatValue(value)}`, 'ERR_INVALID_ARG_VALUE');
}

function assertFraction(value: unknown, name: string): void {
  if (typeof value !== 'number') throw new ArgumentTypeError(`${name} must be a number, got ${formatValue(value)}`);
  if (!(value >= 0 && value <= 1)) throw new ArgumentRangeError(`${name} must be from 0 to 1, got ${value}`);
}
