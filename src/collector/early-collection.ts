/**
 * Collects garbage before memory runs out. To V8 a buffer of 1 GiB of device memory is an object of
 * a few bytes, so it has no reason to collect buffers that a program drops without disposing them.
 *
 * V8 counts memory outside its heap, but only as a sum: it mistakes every change of a few hundred
 * MiB for garbage, although disposed buffers leave none. So cistern does not use that count. It
 * adds up what live buffers hold on each device and on the host, and collects garbage if an
 * allocation would raise that above `pressure` of the size:
 *
 *         0                                    pressure        0.95     1
 *         ├──────────── never ────────────────────┼── timeShare ─┼───────┤   held bytes / size
 *
 *  - it runs a minor collection, then a major one if the held bytes are still above the line;
 *  - after a collection, the next one is due an eighth above what could not be freed, so that a
 *    program that needs that much does not collect constantly;
 *  - it also waits until collections take at most `timeShare` of all time, unless more than 0.95
 *    would be held, because a program that drops buffers quickly could not go on otherwise.
 *
 * The size is what the process may use of the device's memory or, for the host, what is held plus what the system reports
 * as available. Managed memory has the smaller of both: what a device does not use, or has no room for, is on
 * the host, and may all be there. A device refuses requests that it cannot serve, and buffers then collect garbage
 * anyway; a host does not, so the next collection for the host and for managed memory is due at 0.95 at the latest.
 *
 * Cost: an addition and a comparison for an allocation below the line; reading the clock above it.
 */
import { wordSetting } from '../basics/checked-settings.js';
import { ArgumentRangeError, ArgumentTypeError, formatValue } from '../basics/errors.js';
import { MiB } from '../basics/units.js';
import { assertOptions, optionNames } from '../basics/validation.js';
import { budgetBytes, hostBytes } from '../budget/memory-budget.js';
import type { Device, MemoryKind } from '../driver/device.js';
import { runCollectionStage } from './when-memory-is-short.js';

/** Options of {@link configureEarlyCollection}. */
export interface EarlyCollectionOptions {
  /**
   * The share of memory that buffers may hold before garbage is collected, above 0 and at most 1.
   * @defaultValue 0.75
   */
  readonly pressure?: number | undefined;
  /**
   * The share of all time that collections may take, from 0 to 1. 0 turns them off.
   * @defaultValue 0.05; 0 if the environment variable `CISTERN_EARLY_COLLECTION` is `off`
   */
  readonly timeShare?: number | undefined;
}

const knownOptions = optionNames<EarlyCollectionOptions>({ pressure: true, timeShare: true });

const defaultPressure = 0.75;
const defaultTimeShare = 0.05;
/** Above this share, collects regardless of the time. */
const criticalPressure = 0.95;
/** The smallest amount of memory that is worth a collection. */
const leastBytes = 64 * MiB;

/** The options with all of their fields. */
interface CompleteOptions extends EarlyCollectionOptions {
  readonly pressure: number;
  readonly timeShare: number;
}

let settings: CompleteOptions | undefined;
/**
 * Before this time of `performance.now()`, a collection would take more than its share.
 */
let nextAt = 0;
let isCollecting = false;

/** The memory that live buffers hold on one device, on the host, or as managed memory of a device. */
export class HeldMemory {
  /** Callers that take or return memory update this. */
  heldBytes = 0;
  /**
   * An allocation that goes above this calls {@link collectEarly} first. 0 before the first call,
   * when it is unknown.
   */
  dueBytes = 0;
  readonly #device: Device | undefined;
  readonly #isOnHost: boolean;
  /**
   * Below this, the next collection is not worth its time, because the last one could not free what
   * is held.
   */
  #worthwhileBytes = 0;
  #criticalBytes = 0;

  /**
   * @param device `undefined` stands for the host
   * @param isManaged whether it is managed memory of the device
   */
  constructor(device: Device | undefined, isManaged = false) {
    this.#device = device;
    this.#isOnHost = isManaged || device === undefined;
  }

  /** Collects garbage if it is due, before `bytes` more are held, and frees what was collected. */
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
      runCollectionStage('minor-collection');
      if (this.heldBytes + bytes > lineBytes) runCollectionStage('major-collection');
    } finally {
      isCollecting = false;
    }
    const endedAt = performance.now();
    nextAt = endedAt + (endedAt - beganAt) * (1 / timeShare - 1);
    this.#worthwhileBytes = this.heldBytes + bytes + Math.max(lineBytes, heldBefore) / 8;
    this.#findLine(pressure);
  }

  /** Starts again, as if nothing had been collected. */
  restart(): void {
    this.dueBytes = 0;
    this.#worthwhileBytes = 0;
  }

  #hasTime(now: number, bytes: number): boolean {
    return now >= nextAt || this.heldBytes + bytes > Math.max(this.#criticalBytes, this.#worthwhileBytes);
  }

  /**
   * Computes the line above which to collect. Returns the line without regard to fruitless
   * collections.
   */
  #findLine(pressure: number): number {
    const mostOfHost = this.#isOnHost ? Math.min(hostBytes(), this.heldBytes + process.availableMemory()) : Number.POSITIVE_INFINITY;
    const sizeBytes = Math.min(this.#device === undefined ? Number.POSITIVE_INFINITY : budgetBytes('device', this.#device), mostOfHost);
    const lineBytes = Math.max(pressure * sizeBytes, leastBytes);
    this.#criticalBytes = Math.max(criticalPressure * sizeBytes, lineBytes);
    const latestBytes = this.#isOnHost ? this.#criticalBytes : Number.POSITIVE_INFINITY;
    this.dueBytes = Math.min(Math.max(lineBytes, this.#worthwhileBytes), latestBytes);
    return lineBytes;
  }
}

/** Where borrowed memory is counted, which no collection would free. Never due. */
export const uncounted = new HeldMemory(undefined);
uncounted.dueBytes = Number.POSITIVE_INFINITY;

const ofHost = new HeldMemory(undefined);
/** Indexed by device. */
const ofDevices: (HeldMemory | undefined)[] = [];
const managedOfDevices: (HeldMemory | undefined)[] = [];

/** Where buffers with memory of a kind, on a stream of a device, are counted. */
export function heldMemory(kind: MemoryKind, device: Device): HeldMemory {
  if (kind === 'host' || kind === 'pinned-host') return ofHost;
  const isManaged = kind === 'managed';
  const all = isManaged ? managedOfDevices : ofDevices;
  const { index } = device;
  let held = all[index];
  if (held === undefined) {
    held = new HeldMemory(device, isManaged);
    all[index] = held;
  }
  return held;
}

/**
 * Sets when garbage is collected before memory runs out, in this environment (the main thread or
 * one worker): when buffers would hold more than `pressure` of a device's or the host's memory.
 * Missing options get their defaults.
 *
 * Below that, nothing is collected, so a program that disposes its buffers and stays below pays
 * nothing. If you turn this off, buffers that are dropped without being disposed are freed only
 * when V8 collects for its own reasons, or when memory has run out. The host's memory may then run
 * out first, which ends the process.
 *
 * `pressure` and `timeShare` are the same as in CUDA.jl. RMM has no counterpart.
 * @throws ArgumentTypeError, ArgumentRangeError for an invalid option; the settings are then
 * unchanged.
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
  for (const held of [...ofDevices, ...managedOfDevices]) held?.restart();
}

function currentSettings(): CompleteOptions {
  settings ??= { pressure: defaultPressure, timeShare: timeShareFromEnvironment() };
  return settings;
}

function timeShareFromEnvironment(): number {
  return wordSetting('CISTERN_EARLY_COLLECTION', ['on', 'off']) === 'off' ? 0 : defaultTimeShare;
}

function assertFraction(value: unknown, name: string): void {
  if (typeof value !== 'number') throw new ArgumentTypeError(`${name} must be a number, got ${formatValue(value)}`);
  if (!(value >= 0 && value <= 1)) throw new ArgumentRangeError(`${name} must be from 0 to 1, got ${value}`);
}
